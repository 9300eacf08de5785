#include "server/adapters/adapter_service.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "http/error_status.h"
#include "http/json_reader.h"
#include "http/run_on.h"
#include "hub/adapter_source.h"
#include "server/adapters/adapter_request.h"
#include "server/adapters/ticket.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

// Where a request loads from.
std::string OriginOf(const Result<AdapterAdmin::LoadRequest>& parsed) {
  if (!parsed.ok()) return {};
  const auto source = ParseAdapterSource(parsed->path);
  return source.ok() ? OriginOf(*source) : std::string();
}

const char* OutcomeText(AdapterAdmin::LoadOutcome outcome) {
  return outcome == AdapterAdmin::LoadOutcome::kUnchanged
             ? "is already loaded with the same content; nothing was reloaded."
             : "added successfully.";
}

}  // namespace

AdapterService::AdapterService(AdapterChanges changes, const Clock& clock, AdapterServiceOptions options)
    : changes_(std::move(changes)),
      options_(std::move(options)),
      workers_(static_cast<std::size_t>(options_.threads)),
      downloads_(clock, {.threads = options_.download_threads,
                         .spare_threads = 0,
                         .threads_per_tenant = std::max(1, options_.download_threads / 2)}) {}

AdapterService::~AdapterService() { workers_.join(); }

void AdapterService::AddRoutes(RouteTable& routes) {
  const auto add = [&](const char* method, const char* path, Operation operation, Dialect dialect) {
    routes.Add(
        method, path, [this, operation, dialect](HttpExchange& exchange) { return Run(exchange, operation, dialect); },
        RouteAccess::kOpen);  // the handlers check a key of their own
  };
  add("POST", "/v1/load_lora_adapter", &AdapterService::Load, Dialect::kVllm);
  add("POST", "/v1/unload_lora_adapter", &AdapterService::Unload, Dialect::kVllm);
  add("POST", "/load_lora_adapter", &AdapterService::Load, Dialect::kSglang);
  add("POST", "/unload_lora_adapter", &AdapterService::Unload, Dialect::kSglang);
  add("POST", "/adapters", &AdapterService::Load, Dialect::kSageMaker);
  add("POST", "/skyrl/v1/load_lora_adapter", &AdapterService::Load, Dialect::kSkyRl);
  add("DELETE", "/adapters/*", &AdapterService::Unload, Dialect::kSageMaker);
}

Result<AdapterAdmin::LoadRequest> AdapterService::Parse(const HttpRequest& request, Dialect dialect) {
  if (dialect == Dialect::kSageMaker) return ParseSageMakerRequest(request.body);
  auto parsed = ParseLoadRequest(request.body);
  if (parsed.ok() && dialect == Dialect::kSkyRl) parsed->replace = true;  // its servers always replace
  return parsed;
}

asio::awaitable<void> AdapterService::Run(HttpExchange& exchange, Operation operation, Dialect dialect) {
  HttpReply reply;
  if (auto refusal = options_.gate.Refusal(exchange.request())) {
    reply = std::move(*refusal);
  } else {
    constexpr const char* kTooMany = "too many adapter operations at the same time; try again later";
    std::optional<HttpReply> done;
    {
      const Ticket ticket(in_, options_.max_waiting);
      done = NotStarted(ErrorReply(Unavailable(kTooMany)));
      if (ticket.ok()) {
        co_await RunOn(workers_, [&] { done = (this->*operation)(exchange.request(), dialect); });
      }
    }
    if (!done) {
      const Ticket ticket(downloading_, options_.max_downloads);
      done = NotStarted(ErrorReply(Unavailable(kTooMany)));
      if (ticket.ok()) {
        co_await RunOn(downloads_, OriginOf(Parse(exchange.request(), dialect)),
                       [&] { done = LoadFromSource(exchange.request(), dialect); });
      }
    }
    reply = *std::move(done);
  }
  co_await exchange.Send(std::move(reply));
}

std::optional<HttpReply> AdapterService::Load(const HttpRequest& request, Dialect dialect) {
  const auto parsed = Parse(request, dialect);
  if (parsed.ok() && IsRemoteSource(parsed->path)) return std::nullopt;
  return LoadParsed(parsed, dialect);
}

HttpReply AdapterService::LoadFromSource(const HttpRequest& request, Dialect dialect) {
  return LoadParsed(Parse(request, dialect), dialect);
}

HttpReply AdapterService::LoadParsed(const Result<AdapterAdmin::LoadRequest>& parsed, Dialect dialect) {
  if (!parsed.ok()) return Reply(parsed.error(), {}, dialect, nullptr);
  const auto loaded = changes_.load(*parsed);
  if (!loaded.ok()) return Reply(loaded.error(), {}, dialect, nullptr);
  return Reply(Ok{}, "Success: LoRA adapter '" + parsed->name + "' " + OutcomeText(loaded->outcome), dialect,
               loaded->version.get());
}

std::optional<HttpReply> AdapterService::Unload(const HttpRequest& request, Dialect dialect) {
  const auto name = dialect == Dialect::kSageMaker ? request.tail : ParseUnloadRequest(request.body);
  if (!name.ok()) return Reply(name.error(), {}, dialect, nullptr);
  const Status status = changes_.unload(*name);
  return Reply(status, "Success: LoRA adapter '" + *name + "' removed successfully.", dialect, nullptr);
}

HttpReply AdapterService::Reply(const Status& status, std::string text, Dialect dialect,
                                const AdapterVersion* version) const {
  HttpReply reply;
  if (version != nullptr) reply.headers = VersionHeaders(*version);
  if (!status.ok()) {
    spdlog::warn("adapter operation refused ({}): {}", ErrorCodeName(status.error().code), status.error().message);
    reply.status = HttpStatus(status.error());
    if (reply.status == 503) reply.headers.emplace_back("Retry-After", "1");
  }
  if (dialect == Dialect::kSglang) {
    if (reply.status == 404) reply.status = 400;  // SGLang uses one status for all failures
    reply.body = SglangBody(status.ok() ? nullptr : &status.error(), changes_.loaded());
  } else if (status.ok() && dialect == Dialect::kSageMaker) {
    reply.body = DumpJson({{"status", std::move(text)}});
  } else if (status.ok() && dialect == Dialect::kSkyRl) {
    reply.body = DumpJson({{"status", "ok"}, {"message", std::move(text)}});
  } else if (status.ok()) {
    reply.content_type = "text/plain; charset=utf-8";
    reply.body = std::move(text);
  } else {
    reply.body = AdapterErrorBody(status.error());
  }
  return reply;
}

}  // namespace loramux
