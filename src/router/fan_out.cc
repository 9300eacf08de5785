#include "router/fan_out.h"

#include <algorithm>

#include <fmt/format.h>

#include "auth/bearer_key.h"
#include "base/log.h"
#include "http/json_reader.h"
#include "router/ask_servers.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMostSaidBytes = 256 * 1024;
constexpr auto kLoadPatience = std::chrono::seconds(300);    // a load reads the file, or fetches it from afar
constexpr auto kPausePatience = std::chrono::seconds(1800);  // a pause may wait for the longest answers

bool Succeeded(int status) { return status >= 200 && status < 300; }

// Adds "did it" to what the servers said. A server that never had the adapter has unloaded it, if another one had it.
std::vector<bool> Outcomes(const std::vector<ServerAnswer>& answers, bool unload) {
  std::vector<bool> done;
  for (const ServerAnswer& answer : answers) done.push_back(Succeeded(answer.status));
  const bool any = std::find(done.begin(), done.end(), true) != done.end();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (unload && any && answers[i].status == 404) done[i] = true;
  }
  return done;
}

HttpReply ReplyTo(const std::vector<ServerAnswer>& answers, bool unload) {
  const std::vector<bool> done = Outcomes(answers, unload);
  Json results = Json::array();
  HttpReply reply;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const ServerAnswer& answer = answers[i];
    const int status = answer.status == 0 ? 502 : answer.status;
    if (!done[i]) reply.status = std::max(reply.status, status);
    const Json parsed = ParseAnswer(answer.body);
    Json result = {{"server", answer.server}, {"ok", static_cast<bool>(done[i])}, {"status", status}};
    result["answer"] = answer.status == 0 ? Json(answer.fault) : parsed.is_discarded() ? Json(answer.body) : parsed;
    results.push_back(std::move(result));
  }
  const auto count = std::count(done.begin(), done.end(), true);
  Json body = {{"ok", static_cast<std::size_t>(count) == done.size()},
               {"message", fmt::format("{} of {} servers did it", count, done.size())},
               {"servers", std::move(results)}};
  reply.body = DumpJson(body);
  return reply;
}

}  // namespace

void FanOut::AddRoutes(RouteTable& routes) {
  const auto add = [&](const char* method, const char* path, Operation operation) {
    // Refusal checks another key than the gate.
    const auto access = operation == Operation::kQuestion ? RouteAccess::kGated : RouteAccess::kOpen;
    routes.Add(
        method, path, [this, operation](HttpExchange& exchange) { return Run(exchange, operation); }, access);
  };
  add("POST", "/v1/load_lora_adapter", Operation::kLoad);
  add("POST", "/load_lora_adapter", Operation::kLoad);
  add("POST", "/v1/unload_lora_adapter", Operation::kUnload);
  add("POST", "/unload_lora_adapter", Operation::kUnload);
  add("POST", "/skyrl/v1/load_lora_adapter", Operation::kLoad);
  add("POST", "/adapters", Operation::kLoad);
  add("DELETE", "/adapters/*", Operation::kUnload);
  add("DELETE", "/v1/adapters/*", Operation::kUnload);
  // An upload is larger than open routes take.
  routes.Add({.method = "PUT",
              .path = "/v1/adapters/*",
              .handler = [this](HttpExchange& exchange) { return Run(exchange, Operation::kLoad); },
              .gate = [this](HttpRequest& request) { return Refusal(request); }});
  for (const char* path : {"/pause", "/resume", "/abort_requests", "/reset_prefix_cache", "/flush_cache"})
    add("POST", path, Operation::kPause);
  for (const char* path : {"/server_info", "/get_world_size"}) add("GET", path, Operation::kQuestion);
}

// Servers that only their own machine can reach may check no key.
std::optional<HttpReply> FanOut::Refusal(const HttpRequest& request) const {
  if (!admin_key_) {
    return ErrorReply(403, "This router changes no adapters: start it with --admin-key-file FILE.");
  }
  if (admin_key_->empty() || SameKey(BearerToken(request.Header("Authorization")), *admin_key_)) return std::nullopt;
  HttpReply reply = ErrorReply(401, "This needs the admin key: send it as `Authorization: Bearer KEY`.");
  reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

// A repeated load is refused as one that was done, so only a server without an answer is left for the next.
asio::awaitable<std::vector<ServerAnswer>> FanOut::Ask(std::vector<std::shared_ptr<RoutedServer>> servers,
                                                       HttpCallRequest question, bool one,
                                                       RunningQuestions& running) const {
  if (!one) {
    std::vector<ServerAnswer> answers =
        co_await AskServers(servers, std::move(question), kMostSaidBytes, &running, pool_.access().silence_patience);
    co_return answers;
  }
  std::vector<ServerAnswer> answers;
  for (const auto& server : servers) {
    HttpCallRequest copy = question;
    const std::vector<std::shared_ptr<RoutedServer>> next = {server};
    answers = co_await AskServers(next, std::move(copy), kMostSaidBytes, &running, pool_.access().silence_patience);
    if (answers.front().status != 0 || running.cancelled()) break;
  }
  co_return answers;
}

asio::awaitable<void> FanOut::Run(HttpExchange& exchange, Operation operation) {
  const HttpRequest& request = exchange.request();
  std::vector<std::shared_ptr<RoutedServer>> servers = pool_.All();
  const std::string wanted = PercentDecode(QueryParameter(request.query, "server").value_or(""));
  if (!wanted.empty()) {
    std::erase_if(servers, [&](const auto& server) { return server->address.name != wanted; });
  }
  HttpReply reply;
  if (auto refusal = operation == Operation::kQuestion ? std::nullopt : Refusal(request)) {
    reply = std::move(*refusal);
  } else if (servers.empty()) {
    reply = wanted.empty()
                ? ErrorReply(503, "There is no server.")
                : ErrorReply(404, fmt::format("`server`: there is no server {}; /health names all.", wanted));
  } else {
    const bool changes_adapters = operation == Operation::kLoad || operation == Operation::kUnload;
    HttpCallRequest question{.method = request.method,
                             .path = request.target,
                             .body = request.body,
                             .timeout = changes_adapters ? kLoadPatience : kPausePatience};
    question.as_given = true;
    for (const char* name : {"Authorization", "Content-Type", "Origin"}) {
      const std::string_view value = request.Header(name);
      if (!value.empty()) question.headers.emplace_back(name, value);
    }
    question.headers.emplace_back("X-Request-Id", exchange.trace().request_id);
    RunningQuestions running;
    exchange.OnCutOff([&running] { running.Cancel(); });
    const std::vector<ServerAnswer> answers =
        co_await Ask(std::move(servers), std::move(question),
                     operation == Operation::kQuestion || (changes_adapters && shared_catalogue_), running);
    exchange.OnCutOff(nullptr);
    if (changes_adapters) models_.Forget();
    if (running.cancelled()) {
      reply = ErrorReply(503, "The router is shutting down; servers may go on with the change.");
    } else if (operation == Operation::kQuestion && answers.front().status != 0) {
      reply.status = answers.front().status;
      reply.body = answers.front().body;
    } else {
      reply = ReplyTo(answers, operation == Operation::kUnload);
    }
    spdlog::info("{}: status {} from {} servers", request.path, reply.status, answers.size());
  }
  co_await exchange.Send(std::move(reply));
}

}  // namespace loramux
