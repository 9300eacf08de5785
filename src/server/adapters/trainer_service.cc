#include "server/adapters/trainer_service.h"

#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/log.h"
#include "http/json_reader.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

// How often a pause looks whether the last request has ended.
constexpr std::chrono::milliseconds kLook(2);

enum class PauseMode { kAbort, kWait, kKeep };

Result<PauseMode> ModeOf(std::string_view query) {
  const auto wait = QueryParameter(query, "wait_for_inflight_requests");  // the older name
  if (wait == "true" || wait == "1") return PauseMode::kWait;
  const std::string_view mode = QueryParameter(query, "mode").value_or("abort");
  if (mode == "abort") return PauseMode::kAbort;
  if (mode == "wait") return PauseMode::kWait;
  if (mode == "keep") return PauseMode::kKeep;
  return InvalidArgument("`mode`: expected abort, wait or keep, found '" + std::string(mode.substr(0, 40)) + "'",
                         "mode");
}

HttpReply JsonReply(const Json& json) {
  HttpReply reply;
  reply.body = DumpJson(json);
  return reply;
}

// Waits until `done` is true or the client is gone.
template <typename Done>
asio::awaitable<void> Until(HttpExchange& exchange, Done done) {
  const std::atomic<bool>& gone = exchange.WatchClient();
  asio::steady_timer timer(exchange.executor());
  while (!gone && !done()) {
    timer.expires_after(kLook);
    boost::system::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

// The parameters of vLLM's /reset_prefix_cache, which SkyRL sends in the body. What vLLM calls an external cache is the
// host tier here, which is dropped always. Error: pages of running requests are to go too.
Status CheckReset(const HttpRequest& request) {
  constexpr const char* kField = "reset_running_requests";
  std::string running(QueryParameter(request.query, kField).value_or("false"));
  if (!request.body.empty()) {
    ASSIGN_OR_RETURN(const Json body, ParseJson(request.body, {.max_depth = 8, .max_values = 256}));
    if (body.is_object() && body.contains(kField)) running = DumpJson(body[kField]);
  }
  if (running == "false" || running == "0") return Ok{};
  return Unsupported(
      "`reset_running_requests`: expected false, because running requests keep their keys and values; end them first "
      "with POST /pause?mode=abort",
      kField);
}

// Error: the body names single requests.
Status CheckAbort(std::string_view body) {
  if (body.empty()) return Ok{};
  ASSIGN_OR_RETURN(const Json json, ParseJson(body, {.max_depth = 8, .max_values = 4096}));
  const bool none = json.is_object() && (!json.contains("request_ids") || json["request_ids"].empty());
  if (none) return Ok{};
  return Unsupported(
      "`request_ids`: expected nothing, which aborts all requests; one request ends when its client closes the "
      "connection",
      "request_ids");
}

}  // namespace

TrainerService::TrainerService(GenerationService& generation, const AdapterRegistry& registry,
                               TrainerServiceOptions options)
    : generation_(generation), registry_(registry), options_(std::move(options)) {}

void TrainerService::AddRoutes(RouteTable& routes) {
  // The handlers check a key of their own.
  routes.Add(
      "POST", "/pause", [this](HttpExchange& exchange) { return Pause(exchange); }, RouteAccess::kOpen);
  routes.Add(
      "POST", "/resume", [this](HttpExchange& exchange) { return Resume(exchange); }, RouteAccess::kOpen);
  routes.Add(
      "POST", "/abort_requests", [this](HttpExchange& exchange) { return Abort(exchange); }, RouteAccess::kOpen);
  const auto drop = [this](HttpExchange& exchange) { return DropCache(exchange); };
  routes.Add("POST", "/reset_prefix_cache", drop, RouteAccess::kOpen);
  routes.Add("POST", "/flush_cache", drop, RouteAccess::kOpen);
  const auto tell = [&](const char* path, auto what) {
    routes.Add("GET", path,
               [what](HttpExchange& exchange) -> asio::awaitable<void> { co_await exchange.Send(what()); });
  };
  tell("/is_paused", [this] { return JsonReply({{"is_paused", hold_ != Hold::kNone}}); });
  tell("/get_world_size", [] { return JsonReply({{"world_size", 1}}); });
  tell("/server_info", [this] {
    HttpReply reply;
    reply.body = ServerInfo();
    return reply;
  });
}

asio::awaitable<void> TrainerService::Pause(HttpExchange& exchange) {
  HttpReply reply = JsonReply({{"status", "paused"}});
  if (auto refusal = options_.gate.Refusal(exchange.request())) {
    reply = std::move(*refusal);
  } else if (const auto mode = ModeOf(exchange.request().query); !mode.ok()) {
    reply = ErrorReply(mode.error());
  } else {
    hold_ = *mode == PauseMode::kKeep ? Hold::kAll : Hold::kNew;
    generation_.SetHold(hold_);
    if (*mode == PauseMode::kAbort) generation_.AbortAll();
    spdlog::info("paused: {}", *mode == PauseMode::kKeep ? "all requests are held" : "new requests are held");
    const auto idle = [this] {
      const GenerationLoad load = generation_.Load();
      return load.running + load.waiting == 0;
    };
    if (*mode != PauseMode::kKeep) co_await Until(exchange, idle);  // what is held stays held if the client is gone
  }
  co_await exchange.Send(std::move(reply));
}

asio::awaitable<void> TrainerService::Resume(HttpExchange& exchange) {
  HttpReply reply = JsonReply({{"status", "resumed"}});
  if (auto refusal = options_.gate.Refusal(exchange.request())) {
    reply = std::move(*refusal);
  } else {
    hold_ = Hold::kNone;
    generation_.SetHold(Hold::kNone);
    spdlog::info("resumed: no request is held");
  }
  co_await exchange.Send(std::move(reply));
}

asio::awaitable<void> TrainerService::Abort(HttpExchange& exchange) {
  const GenerationLoad load = generation_.Load();
  HttpReply reply = JsonReply({{"status", "aborted"}, {"aborted", load.running + load.waiting}});
  if (auto refusal = options_.gate.Refusal(exchange.request())) {
    reply = std::move(*refusal);
  } else if (const Status all = CheckAbort(exchange.request().body); !all.ok()) {
    reply = ErrorReply(all.error());
  } else {
    generation_.AbortAll();
  }
  co_await exchange.Send(std::move(reply));
}

asio::awaitable<void> TrainerService::DropCache(HttpExchange& exchange) {
  HttpReply reply;
  if (auto refusal = options_.gate.Refusal(exchange.request())) {
    reply = std::move(*refusal);
  } else if (const Status asked = CheckReset(exchange.request()); !asked.ok()) {
    reply = ErrorReply(asked.error());
  } else {
    const auto pages = std::make_shared<std::promise<Result<std::int64_t>>>();
    const std::shared_future<Result<std::int64_t>> dropped = pages->get_future().share();
    generation_.DropHistory([pages](Result<std::int64_t> count) { pages->set_value(std::move(count)); });
    const auto ended = [&] { return dropped.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
    co_await Until(exchange, ended);
    if (!ended()) co_return;  // the client is gone
    reply = dropped.get().ok() ? JsonReply({{"status", "reset"}, {"pages", *dropped.get()}})
                               : ErrorReply(dropped.get().error());
  }
  co_await exchange.Send(std::move(reply));
}

// As far as trainers read vLLM's configuration. There are no slots for adapters, so the number of adapters has no
// bound.
std::string TrainerService::ServerInfo() const {
  constexpr std::int32_t kAny = std::numeric_limits<std::int32_t>::max();
  return DumpJson(
      {{"vllm_config",
        {{"model_config",
          {{"model", options_.model_path},
           {"served_model_name", registry_.base_names()},
           {"dtype", "torch." + registry_.model().dtype},
           {"max_model_len", options_.max_model_len},
           {"logprobs_mode", LogprobsModeName(options_.logprobs_mode)}}},
         {"parallel_config",
          {{"data_parallel_size", 1}, {"tensor_parallel_size", 1}, {"pipeline_parallel_size", 1}, {"world_size", 1}}},
         {"lora_config",
          {{"max_lora_rank", registry_.max_rank()},
           {"max_loras", kAny},
           {"max_cpu_loras", kAny},
           {"on_reload", options_.on_reload}}}}}});
}

}  // namespace loramux
