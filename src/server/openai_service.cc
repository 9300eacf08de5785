#include "server/openai_service.h"

#include <functional>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/log.h"
#include "server/run_on.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

// Lets a handler sleep until there is news, on its connection's strand.
class Sleeper {
 public:
  explicit Sleeper(const asio::any_io_executor& executor) : timer_(executor, asio::steady_timer::time_point::max()) {}

  // A wake-up that comes before the sleep is lost, so look at what you wait for right before.
  asio::awaitable<void> Sleep() {
    boost::system::error_code ignored;
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  void Wake() {
    timer_.cancel();
    if (on_wake_) on_wake_();
  }
  void OnWake(std::function<void()> on_wake) { on_wake_ = std::move(on_wake); }

 private:
  asio::steady_timer timer_;
  std::function<void()> on_wake_;
};

// For the engine thread: posts a wake-up to the strand; harmless when the handler has ended.
std::function<void()> Waker(const asio::any_io_executor& executor, const std::shared_ptr<Sleeper>& sleeper) {
  return [executor, weak = std::weak_ptr<Sleeper>(sleeper)] {
    asio::post(executor, [weak] {
      if (const auto alive = weak.lock()) alive->Wake();
    });
  };
}

// When a handler ends, however it ends: nobody calls into its frame any more.
class HandlerScope {
 public:
  HandlerScope(HttpExchange& exchange, std::shared_ptr<GenerationInbox> inbox)
      : exchange_(exchange), inbox_(std::move(inbox)) {}
  ~HandlerScope() {
    inbox_->Close();
    exchange_.OnDisconnect(nullptr);
  }
  HandlerScope(const HandlerScope&) = delete;
  HandlerScope& operator=(const HandlerScope&) = delete;

 private:
  HttpExchange& exchange_;
  std::shared_ptr<GenerationInbox> inbox_;
};

// The response of one job. The header is held back until the first news, so that an early failure has its own status.
class Responder {
 public:
  Responder(HttpExchange& exchange, CompletionJob& job) : exchange_(exchange), job_(job) {}

  // False: the response is over.
  asio::awaitable<bool> Advance(const std::vector<TokenEvent>& events) {
    const Status applied = job_.Apply(events);
    if (!applied.ok()) {
      co_await Fail(applied.error());
      co_return false;
    }
    if (job_.stream()) co_return co_await AdvanceStream();
    if (!job_.finished()) co_return true;
    HttpReply reply;
    reply.body = job_.TakeBody();
    co_await exchange_.Send(std::move(reply));
    co_return false;
  }

 private:
  asio::awaitable<bool> AdvanceStream() {
    const bool started = co_await Start();
    if (!started) co_return false;
    const std::string text = job_.TakeEvents();
    const bool written = co_await exchange_.Write(text);
    if (!written) co_return false;
    if (!job_.finished()) co_return true;
    co_await exchange_.EndStream();
    co_return false;
  }

  asio::awaitable<bool> Start() {
    if (std::exchange(started_, true)) co_return true;
    co_return co_await exchange_.StartStream("text/event-stream; charset=utf-8");
  }

  asio::awaitable<void> Fail(const Error& error) {
    spdlog::warn("generation failed ({}): {}", ErrorCodeName(error.code), error.message);
    job_.Cancel();
    if (!started_) {
      co_await exchange_.Send(ErrorReply(error));
      co_return;
    }
    const std::string text = ErrorEvent(error) + std::string(kDoneEvent);
    co_await exchange_.Write(text);
    co_await exchange_.EndStream();
  }

  HttpExchange& exchange_;
  CompletionJob& job_;
  bool started_ = false;
};

HttpReply JsonReply(std::string body) {
  HttpReply reply;
  reply.body = std::move(body);
  return reply;
}

}  // namespace

OpenAiService::OpenAiService(ServingContext context, ModelListing listing, OpenAiServiceOptions options)
    : context_([&context] {
        ServingContext without = context;
        without.finder = nullptr;
        return without;
      }()),
      finder_(context.finder),
      listing_(std::move(listing)),
      options_(options),
      tokenizers_(static_cast<std::size_t>(std::max(1, options.tokenizer_threads))) {}

OpenAiService::~OpenAiService() {
  tokenizers_.join();
  finders_.join();
}

void OpenAiService::AddRoutes(RouteTable& routes) {
  routes.Add("POST", "/v1/chat/completions",
             [this](HttpExchange& exchange) { return Complete(exchange, Endpoint::kChat); });
  routes.Add("POST", "/v1/completions",
             [this](HttpExchange& exchange) { return Complete(exchange, Endpoint::kCompletion); });
  routes.Add("GET", "/v1/models", [this](HttpExchange& exchange) { return Models(exchange); });
  routes.Add("GET", "/v1/models/*", [this](HttpExchange& exchange) { return Model(exchange); });
  routes.AddSimple("GET", "/health", [this](const HttpRequest&) { return Health(); });
  for (const char* method : {"GET", "POST"}) {   // SageMaker's probe
    routes.AddSimple(method, "/ping", [](const HttpRequest&) { return HttpReply(); });
  }
  routes.AddSimple("GET", "/version",
                   [](const HttpRequest&) { return JsonReply("{\"version\":\"" LORAMUX_VERSION "\"}"); });
}

HttpReply OpenAiService::Health() const {
  const GenerationLoad load = context_.generation->Load();
  return JsonReply(fmt::format("{{\"status\":\"ok\",\"running\":{},\"waiting\":{}}}", load.running, load.waiting));
}

asio::awaitable<void> OpenAiService::Models(HttpExchange& exchange) {
  HttpReply reply;
  co_await RunOn(finders_, [&] { reply = JsonReply(ModelListBody(*context_.registry, listing_, finder_)); });
  co_await exchange.Send(std::move(reply));
}

asio::awaitable<void> OpenAiService::Model(HttpExchange& exchange) {
  HttpReply reply;
  co_await RunOn(finders_, [&] {
    auto body = ModelBody(*context_.registry, listing_, exchange.request().tail, finder_);
    reply = body.ok() ? JsonReply(std::move(*body)) : ErrorReply(body.error());
  });
  co_await exchange.Send(std::move(reply));
}

asio::awaitable<void> OpenAiService::Complete(HttpExchange& exchange, Endpoint endpoint) {
  std::optional<Result<CompletionJob>> job;
  co_await RunOn(tokenizers_,
                 [&] { job.emplace(CompletionJob::Prepare(context_, endpoint, exchange.request().body)); });
  if (!job->ok() && finder_ != nullptr && job->error().code == ErrorCode::kNotFound && job->error().param == "model") {
    // Looking for it on the disk may take a while: not on a tokenizer's thread.
    ServingContext finding = context_;
    finding.finder = finder_;
    co_await RunOn(finders_, [&] { job.emplace(CompletionJob::Prepare(finding, endpoint, exchange.request().body)); });
  }
  if (!job->ok()) {
    co_await exchange.Send(ErrorReply(job->error()));
    co_return;
  }
  co_await Run(exchange, std::move(**job));
}

asio::awaitable<void> OpenAiService::Run(HttpExchange& exchange, CompletionJob job) {
  const auto sleeper = std::make_shared<Sleeper>(exchange.executor());
  const auto inbox =
      std::make_shared<GenerationInbox>(options_.max_buffered_bytes, Waker(exchange.executor(), sleeper));
  const HandlerScope scope(exchange, inbox);
  sleeper->OnWake([&exchange, inbox = inbox.get()] {
    if (inbox->overflowed() && !exchange.disconnected()) {
      spdlog::warn("a client reads too slowly; its request is cancelled");
      exchange.Abort();
    }
  });
  exchange.OnDisconnect([&job, sleeper = sleeper.get()] {
    job.Cancel();
    sleeper->Wake();
  });
  const Status submitted = exchange.disconnected() ? Status(Ok{}) : job.Submit(inbox);
  if (!submitted.ok()) {
    co_await exchange.Send(ErrorReply(submitted.error()));
    co_return;
  }
  Responder responder(exchange, job);
  bool more = true;
  while (more && !exchange.disconnected()) {
    const std::vector<TokenEvent> events = inbox->Take();
    if (events.empty()) {
      co_await sleeper->Sleep();
    } else {
      more = co_await responder.Advance(events);
    }
  }
}

}  // namespace loramux
