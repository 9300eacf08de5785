#include "tools/controller_command.h"

#include <csignal>
#include <filesystem>
#include <memory>
#include <thread>
#include <pthread.h>

#include "base/log.h"
#include "formats/file.h"
#include "http/url.h"
#include "kubernetes/controller.h"
#include "tools/command_line/environment.h"
#include "tools/etcd_flags.h"

namespace loramux {
namespace {

// Where Kubernetes puts what a pod needs to call the API server.
constexpr const char* kAccount = "/var/run/secrets/kubernetes.io/serviceaccount/";

struct ControllerFlags {
  bool kubernetes = false;
  EtcdOptions etcd;
  std::string server, token_file, ca_file, space;
  std::string log_level = "info", log_format = "text";
  std::vector<std::string> warnings;
};

std::string InAccount(const char* name) {
  const std::string path = std::string(kAccount) + name;
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? path : std::string();
}

Result<KubeOptions> KubeOptionsOf(const ControllerFlags& flags) {
  KubeOptions options{.token_file = flags.token_file, .ca_file = flags.ca_file};
  std::string url = flags.server;
  if (url.empty()) {
    const auto host = EnvironmentValue("KUBERNETES_SERVICE_HOST"), port = EnvironmentValue("KUBERNETES_SERVICE_PORT");
    if (!host || !port) {
      return InvalidArgument(
          "--kube-server: expected a URL, because this is no pod (KUBERNETES_SERVICE_HOST is not set)",
          "--kube-server");
    }
    url = "https://" + (host->find(':') == std::string::npos ? *host : "[" + *host + "]") + ":" + *port;
  }
  ASSIGN_OR_RETURN(options.server, ParseUrl(url, "--kube-server"));
  if (options.token_file.empty()) options.token_file = InAccount("token");
  if (options.ca_file.empty()) options.ca_file = InAccount("ca.crt");
  return options;
}

Result<std::string> SpaceOf(const ControllerFlags& flags) {
  constexpr std::size_t kMaxNameBytes = 63;
  std::string space = flags.space;
  if (space.empty()) {
    const auto text = ReadTextFile(InAccount("namespace"), kMaxNameBytes + 1);
    if (text.ok()) space = text->substr(0, text->find('\n'));
  }
  const bool plain = space.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
  if (!space.empty() && space.size() <= kMaxNameBytes && plain) return space;
  return InvalidArgument("--kube-namespace: expected the name of a namespace, found '" + space + "'",
                         "--kube-namespace");
}

Status RunUntilStopped(const ControllerFlags& flags) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before any other thread is made
  std::signal(SIGPIPE, SIG_IGN);
  RETURN_IF_ERROR(InitLogging(flags.log_level, flags.log_format));
  for (const std::string& warning : flags.warnings) spdlog::warn("{}", warning);
  if (!flags.kubernetes)
    return InvalidArgument("--kubernetes: expected this flag: there is no other mode", "--kubernetes");
  const OsClock clock;
  ASSIGN_OR_RETURN(const KubeOptions options, KubeOptionsOf(flags));
  ASSIGN_OR_RETURN(const std::string space, SpaceOf(flags));
  ASSIGN_OR_RETURN(const std::unique_ptr<EtcdClient> etcd, EtcdClient::Open(flags.etcd, clock));
  if (etcd == nullptr) return InvalidArgument("--etcd: expected a URL of the fleet's etcd, found none", "--etcd");
  const KubeClient kubernetes(options, clock);
  KubernetesController controller({.space = space}, kubernetes, *etcd, clock);
  spdlog::info("ready: LoraAdapters of {} at {} -> the catalogue in {}", space, options.server.authority(),
               etcd->names());
  {
    std::jthread worker([&](std::stop_token stop) { controller.Run(stop); });
    int signal = 0;
    sigwait(&ends, &signal);
    worker.request_stop();
    etcd->Stop();
  }
  spdlog::info("stopped; the catalogue stays as it is");
  return Ok{};
}

void AddControllerFlags(CommandLine& line, ControllerFlags& flags) {
  line.ReadConfiguration(&flags.warnings);
  line.set_footer("Example, in a pod:  loramux controller --kubernetes --etcd http://etcd-0.etcd:2379");
  line.Add({.names = "--kubernetes",
            .target = &flags.kubernetes,
            .help = "Watch the LoraAdapter objects of a namespace, write them to the catalogue, and set their status",
            .common = true});
  AddEtcdFlags(line, flags.etcd, "Members of the etcd cluster that holds the fleet's catalogue");
  const std::string api = "API server";
  line.Add({.names = "--kube-server",
            .target = &flags.server,
            .unit = "URL",
            .group = api,
            .help = "Address of the API server",
            .default_text = "what a pod's environment says"});
  line.Add({.names = "--kube-namespace",
            .target = &flags.space,
            .unit = "NAME",
            .group = api,
            .help = "Namespace of the objects",
            .default_text = "the pod's"});
  line.Add({.names = "--kube-token-file",
            .target = &flags.token_file,
            .unit = "FILE",
            .group = api,
            .help = "Token to show; read again for each call",
            .default_text = "that of the pod's service account"});
  line.Add({.names = "--kube-ca",
            .target = &flags.ca_file,
            .unit = "FILE",
            .group = api,
            .help = "PEM file of the authority of the API server's certificate",
            .default_text = "that of the pod's service account"});
  line.Add({.names = "--log-level",
            .target = &flags.log_level,
            .unit = "LEVEL",
            .help = "Least severe log records to write: trace, debug, info, warn, error or off"});
  line.Add({.names = "--log-format",
            .target = &flags.log_format,
            .unit = "FORMAT",
            .help = "text writes a line per record, json an object per line",
            .choices = {"text", "json"}});
}

int RunController(const ControllerFlags& flags) {
  const Status status = RunUntilStopped(flags);
  return status.ok() ? 0 : FailCommand("controller", status.error());
}

}  // namespace

Command ControllerCommand() {
  const auto flags = std::make_shared<ControllerFlags>();
  Command command{.name = "controller", .summary = "Keep a fleet's catalogue of adapters as Kubernetes objects say"};
  AddControllerFlags(command.line, *flags);
  command.run = [flags] { return RunController(*flags); };
  return command;
}

}  // namespace loramux
