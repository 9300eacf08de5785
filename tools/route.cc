#include "tools/route.h"

#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "auth/bearer_key.h"
#include "base/clock.h"
#include "base/log.h"
#include "cluster/default_model.h"
#include "cluster/route_policy.h"
#include "costs/performance_profile.h"
#include "envoy/picker.h"
#include "http/bound_port.h"
#include "router/answer_lengths.h"
#include "router/router.h"
#include "router/server_sources.h"
#include "tools/etcd_flags.h"
#include "tools/fleet_view.h"
#include "tools/listen_flags.h"
#include "tools/service_notify.h"
#include "tools/signals.h"

namespace loramux {
namespace {

// A router holds many more connections than a server, and each costs it little.
constexpr int kConnections = 65'536;
constexpr int kFilesPerConnection = 2;  // the client's and the server's

struct RouteFlags {
  RouterOptions router;
  std::vector<std::string> servers;
  EtcdOptions etcd;
  std::chrono::milliseconds dns_interval{10'000};
  std::string profile;
  std::string fleet_key_file, admin_key_file;
  std::optional<std::int64_t> ext_proc;  // port of the endpoint picker, which takes the router's place
  std::chrono::milliseconds drain_notice{1'000};
  double tpot_objective_ms = 0;
  std::string log_level = "info", log_format = "text";
  std::vector<std::string> warnings;  // warnings of the command line and the environment
};

Result<RouterOptions> OptionsOf(const RouteFlags& flags) {
  RouterOptions options = flags.router;
  options.version = LORAMUX_VERSION;
  options.http.max_held_body_bytes = std::max(options.http.max_held_body_bytes, options.http.max_body_bytes * 4);
  options.dispatch.tpot_objective =
      static_cast<TimeNs>(flags.tpot_objective_ms / 1000 * static_cast<double>(kNsPerSecond));
  if (!flags.fleet_key_file.empty()) {
    ASSIGN_OR_RETURN(options.access.fleet_key, ReadKeyFile(flags.fleet_key_file, "--fleet-key-file"));
  }
  if (!flags.admin_key_file.empty()) {
    ASSIGN_OR_RETURN(options.admin_key, ReadKeyFile(flags.admin_key_file, "--admin-key-file"));
  } else if (IsLoopback(options.http.host)) {
    options.admin_key = std::string();  // the servers check
  }
  options.shared_catalogue = !flags.etcd.urls.empty();
  options.dispatch.model = DefaultPerformanceModel();
  options.access.learn_profile = flags.profile.empty();
  if (!flags.profile.empty()) {
    auto profile = LoadPerformanceProfile(flags.profile);
    if (!profile.ok()) return Error{profile.error().code, "--profile: " + profile.error().message, "--profile"};
    options.dispatch.model = std::make_shared<const PerformanceModel>(profile->EngineModel());
  }
  if (!flags.ext_proc) {
    ASSIGN_OR_RETURN(options.http.bound_port, BoundPort::Bind(options.http.host, options.http.port));
  }
  return options;
}

// The endpoint picker, in the place of the router.
Status PickUntilStopped(const RouteFlags& flags, Signals& signals, const RouterOptions& router, ServerSources sources) {
  const OsClock clock;
  ASSIGN_OR_RETURN(const std::unique_ptr<Picker> picker,
                   Picker::Start(router, static_cast<std::uint16_t>(*flags.ext_proc), clock));
  ASSIGN_OR_RETURN(std::unique_ptr<ServerWatch> watch,
                   ServerWatch::Start(std::move(sources), flags.dns_interval, [&](std::vector<ServerAddress> servers) {
                     if (flags.etcd.urls.empty()) picker->SetServers(servers);
                   }));
  ASSIGN_OR_RETURN(std::unique_ptr<FleetView> fleet,
                   FleetView::Start(
                       flags.etcd, clock, [&](std::vector<ServerAddress> servers) { picker->SetServers(servers); },
                       [&](Catalogue catalogue) { picker->SetCatalogue(std::move(catalogue)); }));
  signals.MarkReady();
  spdlog::info("ready: {}://{}:{} picks servers for Envoy, of {}, by {}", router.tls.enabled() ? "grpcs" : "grpc",
               flags.router.http.host, picker->port(),
               fmt::join(flags.etcd.urls.empty() ? flags.servers : flags.etcd.urls, ","), flags.router.dispatch.policy);
  NotifyReady(picker->port());
  while (signals.Wait() == SIGHUP) watch->Reload();
  const std::chrono::milliseconds timeout = router.http.drain_timeout;
  spdlog::info("no new exchanges; up to {} s for those that need an answer", SecondsOf(timeout));
  NotifyStopping(SecondsOf(timeout));
  watch.reset();
  fleet.reset();
  const std::int64_t cut_off = picker->Shutdown(timeout);
  if (cut_off > 0) spdlog::warn("cut off {} exchanges of proxies", cut_off);
  return Ok{};
}

// Waits until a signal asks for the end, and answers until the drain has ended.
void RouteUntilStopped(const RouteFlags& flags, Signals& signals, Router& router, ServerWatch& watch) {
  int signal = signals.Wait();
  for (; signal == SIGHUP; signal = signals.Wait()) {
    router.Reload();
    watch.Reload();
  }
  const double notice = SecondsOf(flags.drain_notice), timeout = SecondsOf(flags.router.http.drain_timeout);
  spdlog::info("{}: /health says so for {} s; then up to {} s for running requests; {} ends them at once",
               signal == SIGINT ? "Ctrl-C" : "SIGTERM", notice, timeout,
               signal == SIGINT ? "Ctrl-C again" : "a second signal");
  NotifyStopping(notice + timeout);
  router.StartDraining();
  std::this_thread::sleep_for(flags.drain_notice);
  LogDrained(router.Shutdown());
}

Status Route(const RouteFlags& flags) {
  Signals signals;
  RETURN_IF_ERROR(InitLogging(flags.log_level, flags.log_format));
  for (const std::string& warning : flags.warnings) spdlog::warn("{}", warning);
  if (!flags.ext_proc) RETURN_IF_ERROR(RaiseOpenFileLimit(flags.router.http.max_connections, kFilesPerConnection));
  if (flags.servers.empty() == flags.etcd.urls.empty()) {
    return InvalidArgument(
        "--servers: expected either servers, as in --servers 10.0.0.1:8000,10.0.0.2:8000, or --etcd URL", "--servers");
  }
  ASSIGN_OR_RETURN(ServerSources sources, ServerSources::Parse(flags.servers));
  ASSIGN_OR_RETURN(RouterOptions options, OptionsOf(flags));
  if (flags.ext_proc) return PickUntilStopped(flags, signals, options, std::move(sources));
  if (!options.api_key_file.empty() && options.access.fleet_key.empty()) {
    spdlog::warn(
        "--api-key-file without --fleet-key-file: servers without keys of their own do not learn whose request is "
        "whose, so all keys share their prefix caches and their turns; give router and servers one key");
  }
  const OsClock clock;
  const bool tls = options.tls.enabled();
  ASSIGN_OR_RETURN(const std::unique_ptr<Router> router, Router::Start(std::move(options), clock));
  ASSIGN_OR_RETURN(const std::unique_ptr<ServerWatch> watch,
                   ServerWatch::Start(std::move(sources), flags.dns_interval, [&](std::vector<ServerAddress> servers) {
                     if (flags.etcd.urls.empty()) router->SetServers(std::move(servers));
                   }));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<FleetView> fleet,
      FleetView::Start(
          flags.etcd, clock, [&](std::vector<ServerAddress> servers) { router->SetServers(std::move(servers)); },
          [&](Catalogue catalogue) { router->SetCatalogue(std::move(catalogue)); }));
  signals.MarkReady();
  spdlog::info("ready: {}://{}:{} routes to {} by {}", tls ? "https" : "http", flags.router.http.host, router->port(),
               fmt::join(flags.etcd.urls.empty() ? flags.servers : flags.etcd.urls, ","), flags.router.dispatch.policy);
  NotifyReady(router->port());
  RouteUntilStopped(flags, signals, *router, *watch);
  return Ok{};
}

void AddServerFlags(CommandLine& line, RouteFlags& flags) {
  const std::string group = "Servers (files are read again at SIGHUP)";
  line.Add({.names = "--servers",
            .target = &flags.servers,
            .unit = "SERVER",
            .group = group,
            .help = "The servers: HOST:PORT, http:// or https:// URLs, dns:NAME:PORT for each address that a name has, "
                    "file:FILE for a file with one of these a line",
            .comma_list = true,
            .common = true});
  AddEtcdFlags(
      line, flags.etcd,
      "Members of an etcd cluster, as in http://a:2379,http://b:2379, in place of --servers: the servers are those "
      "that registered there (loramux serve --etcd), and a load goes to one of them, for all");
  line.Add({.names = "--dns-interval",
            .target = &flags.dns_interval,
            .unit = "SECONDS",
            .group = group,
            .help = "Time between two looks at the names of dns:",
            .range = {{0.1, 86400}}});
  line.Add({.names = "--fleet-key-file",
            .target = &flags.fleet_key_file,
            .unit = "FILE",
            .group = group,
            .help = "Key that routers and servers share. The router shows it for the servers' snapshots, and signs "
                    "with it whose request each one is; they have the same flag",
            .path = FlagPath::kExistingFile,
            .common = true});
  line.Add({.names = "--servers-ca",
            .target = &flags.router.access.ca_file,
            .unit = "FILE",
            .group = group,
            .help = "PEM file of authorities that certificates of https:// servers may come from, besides the system's",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--insecure-servers",
            .target = &flags.router.access.insecure,
            .group = group,
            .help = "Do not check the certificates of https:// servers"});
  line.Add({.names = "--connect-timeout",
            .target = &flags.router.access.connect_timeout,
            .unit = "SECONDS",
            .group = group,
            .help = "Time for a connection to a server; then another server is asked",
            .range = {{0.01, 600}}});
  line.Add({.names = "--answer-timeout",
            .target = &flags.router.answer_timeout,
            .unit = "SECONDS",
            .group = group,
            .help = "Time that a server may send nothing: before its answer begins, and between two pieces of it",
            .range = {{0.1, 86400}}});
}

void AddPolicyFlags(CommandLine& line, RouteFlags& flags) {
  const std::string group = "Choice of a server";
  DispatcherOptions& dispatch = flags.router.dispatch;
  std::string names;
  for (const RoutePolicyName& policy : RoutePolicies()) names += (names.empty() ? "" : ", ") + std::string(policy.name);
  line.Add({.names = "--policy",
            .target = &dispatch.policy,
            .unit = "NAME",
            .group = group,
            .help = "How a request's server is chosen, one of " + names,
            .common = true});
  line.Add({.names = "--profile",
            .target = &flags.profile,
            .unit = "FILE",
            .group = group,
            .help = "A file of `loramux profile` of a server's device: the times that the choice is computed with",
            .default_text = "that of the first server that has one, else a rough model of a GPU",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--tpot-objective",
            .target = &flags.tpot_objective_ms,
            .unit = "MS",
            .group = group,
            .help = "Time per output token that loramux, algorithm1 and first-fit try to keep; 0: none",
            .range = {{0.0, 1e6}}});
  dispatch.average_answer = static_cast<std::int64_t>(AnswerLengths::kUnknown);
  line.Add({.names = "--average-answer",
            .target = &dispatch.average_answer,
            .unit = "TOKENS",
            .group = group,
            .help = "avg_resp_len of CaraServe's Algorithm 1 (policies algorithm1*): tokens of the average answer; 0: "
                    "the mean of the answers that the request's adapter gave",
            .range = {{0.0, 1e6}}});
  line.Add({.names = "--slow-start",
            .target = &dispatch.health.slow_start,
            .form = FlagForm::kSeconds,
            .unit = "SECONDS",
            .group = group,
            .help = "Time over which a new or returned server grows to its full share",
            .range = {{0.0, 3600}}});
}

void AddHealthFlags(CommandLine& line, RouteFlags& flags) {
  const std::string group = "Choice of a server";
  DispatcherOptions& dispatch = flags.router.dispatch;
  line.Add({.names = "--failures-to-eject",
            .target = &dispatch.health.failures_to_eject,
            .unit = "N",
            .group = group,
            .help = "Failed connections and time-outs in a row after which a server gets nothing for a while",
            .range = {{1, 1000}}});
  line.Add({.names = "--errors-to-eject",
            .target = &dispatch.health.errors_to_eject,
            .unit = "N",
            .group = group,
            .help =
                "Answers with a status of 500 or more (but for 501), or that nothing was begun, in a row, within 30 "
                "seconds, after which a server gets nothing for a while, and then one request at a time until one "
                "works; 0: such answers never count",
            .range = {{0, 1000}}});
  line.Add({.names = "--ejection",
            .target = &dispatch.health.ejection,
            .form = FlagForm::kSeconds,
            .unit = "SECONDS",
            .group = group,
            .help = "How long it gets nothing; twice as long with each further time",
            .range = {{0.0, 3600}}});
  line.Add({.names = "--most-ejected",
            .target = &dispatch.most_ejected,
            .unit = "SHARE",
            .group = group,
            .help = "Share of the servers that may be ejected; if more are, all get requests again",
            .range = {{0.0, 1.0}}});
  line.Add({.names = "--retry-budget",
            .target = &dispatch.retry_budget,
            .unit = "SHARE",
            .group = group,
            .help = "Requests that may be sent to a further server, as a share of all. Only a request that no server "
                    "began is sent again",
            .range = {{0.0, 1.0}}});
}

void AddListenFlags(CommandLine& line, RouteFlags& flags) {
  const std::string group = "HTTP";
  HttpServerOptions& http = flags.router.http;
  line.Add({.names = "--host",
            .target = &http.host,
            .unit = "ADDRESS",
            .group = group,
            .help = "Address to listen on; the default is reachable from this machine only",
            .common = true});
  line.Add({.names = "--port",
            .target = &http.port,
            .unit = "PORT",
            .group = group,
            .help = "TCP port to listen on; 0 takes a free one",
            .common = true});
  line.Add({.names = "--ext-proc",
            .target = &flags.ext_proc,
            .unit = "PORT",
            .group = group,
            .help = "Forward nothing, and be the endpoint picker of an Envoy or an inference gateway: listen for their "
                    "external processing (gRPC) here, instead of on --port. 0 takes a free one",
            .range = {{0, 65535}}});
  line.Add({.names = "--max-body-size",
            .target = &http.max_body_bytes,
            .form = FlagForm::kBytes,
            .unit = "BYTES",
            .group = group,
            .help = "Largest request body, as in 16MiB; a larger one gets 413"});
  line.Add({.names = "--max-connections",
            .target = &http.max_connections,
            .unit = "N",
            .group = group,
            .help = "Open connections of clients at a time; each one that waits for an answer needs two open files",
            .range = {{1, 1 << 20}}});
  line.Add({.names = "--drain-notice",
            .target = &flags.drain_notice,
            .unit = "SECONDS",
            .group = group,
            .help = "Time after SIGTERM in which /health says 503 and requests are still taken, so that a balancer "
                    "before this router can turn away",
            .range = {{0.0, 3600.0}}});
  line.Add({.names = "--drain-timeout",
            .target = &http.drain_timeout,
            .unit = "SECONDS",
            .group = group,
            .help = "Time that running requests get to finish after that",
            .range = {{0.0, 86400.0}}});
  line.Add(
      {.names = "--allowed-origins",
       .target = &http.allowed_origins,
       .unit = "ORIGIN",
       .group = group,
       .help = "Origins of web pages that may call this router (CORS), as in https://chat.example.com; * allows all",
       .comma_list = true});
}

void AddAccessFlags(CommandLine& line, RouteFlags& flags) {
  const std::string group = "Access (files are read again at SIGHUP)";
  line.Add({.names = "--api-key-file",
            .target = &flags.router.api_key_file,
            .unit = "FILE",
            .group = group,
            .help = "JSON file of API keys that the router checks, with the models and limits of each, before a server "
                    "is asked; without it the servers check the keys, which are passed on either way",
            .path = FlagPath::kExistingFile});
  AddKeyConcurrencyFlag(line, flags.router.key_limits, group);
  line.Add({.names = "--admin-key-file",
            .target = &flags.admin_key_file,
            .unit = "FILE",
            .group = group,
            .help = "Key that loads and unloads of adapters need, the same as the servers'. Without it a router that "
                    "other machines can reach refuses them, and another one leaves the check to the servers",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--tls-cert",
            .target = &flags.router.tls.certificate,
            .unit = "FILE",
            .group = group,
            .help = "PEM file with the certificate chain; serves HTTPS",
            .common = true});
  line.Add({.names = "--tls-key",
            .target = &flags.router.tls.key,
            .unit = "FILE",
            .group = group,
            .help = "PEM file with the certificate's private key",
            .common = true});
  line.Add({.names = "--trust-fairness-header",
            .target = &flags.router.trust_fairness_header,
            .group = group,
            .help = "Let the clients' header x-llm-d-inference-fairness-id or x-gateway-inference-fairness-id name the "
                    "tenant. Without it the router names each tenant by the API key that it checked, or by the "
                    "client's address"});
}

void AddRouteFlags(CommandLine& line, RouteFlags& flags) {
  line.ReadConfiguration(&flags.warnings);
  line.set_footer(
      "A request goes to the server that will answer it first: the router knows which adapters each server has "
      "loaded,\n"
      "what waits there, and which prompts it has cached (docs/guide/many-servers.md).\n"
      "Examples:\n"
      "  loramux route --servers 10.0.0.1:8000,10.0.0.2:8000 --host 0.0.0.0\n"
      "  loramux route --servers dns:loramux.default.svc:8000 --api-key-file keys.json --fleet-key-file fleet.key\n"
      "  loramux route --servers 10.0.0.1:8000,10.0.0.2:8000 --ext-proc 9002   # behind deploy/envoy/envoy.yaml\n"
      "  loramux route --servers file:servers.txt --policy most-idle   # kill -HUP reads the file again\n"
      "  curl localhost:8080/health                                    # the state of each server\n"
      "  curl localhost:8080/v1/load_lora_adapter -H 'Authorization: Bearer ADMIN_KEY' \\\n"
      "    -H 'Content-Type: application/json' -d '{\"lora_name\": \"sql\", \"lora_path\": \"/adapters/sql\"}'");
  AddServerFlags(line, flags);
  AddPolicyFlags(line, flags);
  AddHealthFlags(line, flags);
  AddListenFlags(line, flags);
  AddAccessFlags(line, flags);
  AddHttpLimitFlags(line, flags.router.http);
  const std::string group = "Log";
  line.Add({.names = "--log-level",
            .target = &flags.log_level,
            .unit = "LEVEL",
            .group = group,
            .help = "Least severe log records to write: trace, debug, info, warn, error or off",
            .common = true});
  line.Add({.names = "--log-format",
            .target = &flags.log_format,
            .unit = "FORMAT",
            .group = group,
            .help = "text writes a line per record, json an object per line",
            .choices = {"text", "json"}});
}

int RunRoute(const RouteFlags& flags) {
  const Status status = Route(flags);
  return status.ok() ? 0 : FailCommand("route", status.error());
}

}  // namespace

Command RouteCommand() {
  const auto flags = std::make_shared<RouteFlags>();
  flags->router.http.port = 8080;
  flags->router.http.max_connections = kConnections;
  Command command{.name = "route", .summary = "Send the requests of one address to many servers"};
  AddRouteFlags(command.line, *flags);
  command.run = [flags] { return RunRoute(*flags); };
  return command;
}

}  // namespace loramux
