#include "router/router.h"

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

#include "auth/access.h"
#include "auth/caller_gate.h"
#include "auth/error_body.h"
#include "base/log.h"
#include "http/exchange.h"
#include "http/json_reader.h"
#include "http/server.h"
#include "router/fan_out.h"
#include "router/model_list.h"
#include "router/router_metrics.h"

namespace loramux {
namespace {

constexpr const char* kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

struct Guards {
  std::unique_ptr<AccessControl> access;  // null: the servers check keys
  std::unique_ptr<TlsContext> tls;        // null: plain HTTP
};

Result<Guards> LoadGuards(const RouterOptions& options) {
  Guards guards;
  if (!options.api_key_file.empty()) {
    ASSIGN_OR_RETURN(guards.access, AccessControl::Load(options.api_key_file, options.key_limits));
  }
  if (options.tls.enabled()) {
    ASSIGN_OR_RETURN(guards.tls, TlsContext::Load(options.tls));
  }
  return guards;
}

HttpServerOptions OneThread(HttpServerOptions options, RouterMetrics& metrics) {
  options.threads = 1;
  options.hooks.responded = [&metrics](int status) { metrics.CountResponse(status); };
  return options;
}

// "ready" if the server takes requests.
std::string_view StateName(const Dispatcher::ServerState& state, const RoutedServer* server) {
  if (state.ejected) return "ejected";
  if (state.draining) return "draining";
  return server != nullptr && server->fault.empty() ? "ready" : "silent";
}

}  // namespace

struct Router::Impl {
  Impl(RouterOptions router_options, const Clock& router_clock, Guards loaded, std::unique_ptr<Dispatcher> dispatch)
      : options(std::move(router_options)),
        clock(router_clock),
        guards(std::move(loaded)),
        dispatcher(std::move(dispatch)),
        http(OneThread(options.http, metrics), routes, clock, guards.tls.get()),
        pool(http.executor(), options.access, *dispatcher, workers, clock),
        models(pool),
        fan_out(pool, models, options.shared_catalogue, options.admin_key),
        proxy(pool, metrics, options.answer_timeout) {
    routes.SetErrorForm(ErrorBody);
    AddOwnRoutes();
    models.AddRoutes(routes);
    fan_out.AddRoutes(routes);
    proxy.AddRoutes(routes);
    routes.SetGate(CallerGate(guards.access.get(), /*fleet_key=*/"", options.trust_fairness_header, clock));
  }

  void AddOwnRoutes();
  HttpReply Health(const HttpRequest& request) const;

  const RouterOptions options;
  const Clock& clock;
  Guards guards;
  std::unique_ptr<Dispatcher> dispatcher;
  RouterMetrics metrics;
  std::atomic<bool> leaving{false};
  boost::asio::thread_pool workers{1};  // parses long snapshots and lists of models
  RouteTable routes;
  HttpServer http;  // its thread runs all that follows, and has ended before that is destroyed
  ServerPool pool;
  ModelList models;
  FanOut fan_out;
  Proxy proxy;
};

void Router::Impl::AddOwnRoutes() {
  const auto add = [this](const char* method, const char* path, std::function<HttpReply(const HttpRequest&)> make) {
    routes.AddSimple(method, path, std::move(make), RouteAccess::kOpen);
  };
  add("GET", "/health", [this](const HttpRequest& request) { return Health(request); });
  for (const char* method : {"GET", "POST"}) {  // the probe of SageMaker
    add(method, "/ping", [this](const HttpRequest& request) { return Health(request); });
  }
  add("GET", "/version", [this](const HttpRequest&) {
    HttpReply reply;
    reply.body = DumpJson({{"version", options.version}, {"role", "router"}, {"policy", options.dispatch.policy}});
    return reply;
  });
  add("GET", "/metrics", [this](const HttpRequest&) {
    HttpReply reply;
    reply.content_type = kMetricsContentType;
    reply.body = metrics.Page(*dispatcher, http.connections(), clock.Now());
    return reply;
  });
}

// Ready while at least one server is.
HttpReply Router::Impl::Health(const HttpRequest& request) const {
  const TimeNs now = clock.Now();
  Json servers = Json::array();
  bool ready = false;
  for (const Dispatcher::ServerState& state : dispatcher->States(now)) {
    const auto server = pool.Find(state.name);
    const std::string_view name = StateName(state, server.get());
    Json entry = {{"name", state.name},       {"state", name},
                  {"share", state.share},     {"in_flight", state.in_flight},
                  {"running", state.running}, {"waiting", state.waiting}};
    if (server != nullptr && !server->fault.empty()) entry["fault"] = server->fault;
    ready = ready || name == "ready";
    servers.push_back(std::move(entry));
  }
  const bool stopping = leaving || request.draining;
  HttpReply reply;
  reply.status = ready && !stopping ? 200 : 503;
  reply.body = DumpJson({{"status", stopping ? "draining"
                                    : ready  ? "ready"
                                             : "no server is ready"},
                         {"in_flight", metrics.in_flight},
                         {"servers", std::move(servers)}});
  return reply;
}

Status CheckRouterFiles(const RouterOptions& options) {
  ASSIGN_OR_RETURN(const Guards guards, LoadGuards(options));
  return Ok{};
}

Result<std::unique_ptr<Router>> Router::Start(RouterOptions options, const Clock& clock) {
  ASSIGN_OR_RETURN(Guards guards, LoadGuards(options));
  ASSIGN_OR_RETURN(std::unique_ptr<Dispatcher> dispatcher, Dispatcher::Create(options.dispatch));
  auto impl = std::make_unique<Impl>(std::move(options), clock, std::move(guards), std::move(dispatcher));
  RETURN_IF_ERROR(impl->http.Start());
  return std::unique_ptr<Router>(new Router(std::move(impl)));
}

Router::Router(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Router::~Router() { Shutdown(); }

std::uint16_t Router::port() const { return impl_->http.port(); }

void Router::SetServers(std::vector<ServerAddress> servers) {
  boost::asio::post(impl_->http.executor(), [impl = impl_.get(), servers = std::move(servers)]() mutable {
    impl->pool.Set(std::move(servers));
  });
}

void Router::SetCatalogue(Catalogue catalogue) {
  boost::asio::post(impl_->http.executor(), [impl = impl_.get(), catalogue = std::move(catalogue)]() mutable {
    impl->proxy.SetCatalogue(std::move(catalogue));
  });
}

void Router::Reload() {
  const auto report = [](const char* what, const Status& status) {
    if (status.ok()) return spdlog::info("{} read again", what);
    spdlog::error("{} could not be read again, so the old ones stay in use: {}", what, status.error().message);
  };
  if (impl_->guards.access != nullptr) report("API keys", impl_->guards.access->Reload());
  if (impl_->guards.tls != nullptr) report("TLS certificate and key", impl_->guards.tls->Reload());
}

void Router::StartDraining() { impl_->leaving = true; }

DrainReport Router::Shutdown() {
  impl_->leaving = true;
  boost::asio::post(impl_->http.executor(), [impl = impl_.get()] { impl->pool.Stop(); });
  return impl_->http.Shutdown();
}

}  // namespace loramux
