#include "server/completion/completion_service.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <malloc.h>

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "auth/objective_headers.h"
#include "base/log.h"
#include "http/random_source.h"
#include "http/run_on.h"
#include "server/adapters/adapter_request.h"
#include "server/completion/prompt_limit.h"
#include "server/completion/request_spans.h"
#include "server/fleet/fleet_headers.h"
#include "server/fleet/load_report.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

// Suspends a handler until there is news, on its connection's strand.
class Sleeper {
 public:
  explicit Sleeper(const asio::any_io_executor& executor) : timer_(executor) {}

  // Sleeps until Wake, or for `longest` (0: without limit). Returns true if `longest` passed without a Wake. A Wake
  // before the sleep is lost, so check the condition immediately before.
  asio::awaitable<bool> Sleep(std::chrono::milliseconds longest) {
    if (longest.count() > 0) {
      timer_.expires_after(longest);
    } else {
      timer_.expires_at(asio::steady_timer::time_point::max());
    }
    boost::system::error_code woken;
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    co_return !woken;
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

// Returns a function for the engine thread that posts a Wake to the strand. It does nothing once the handler has ended.
std::function<void()> Waker(const asio::any_io_executor& executor, const std::shared_ptr<Sleeper>& sleeper) {
  return [executor, weak = std::weak_ptr<Sleeper>(sleeper)] {
    asio::post(executor, [weak] {
      if (const auto alive = weak.lock()) alive->Wake();
    });
  };
}

// Removes all callbacks into a handler's frame when the handler ends, for whatever reason.
class HandlerScope {
 public:
  HandlerScope(HttpExchange& exchange, std::shared_ptr<GenerationInbox> inbox)
      : exchange_(exchange), inbox_(std::move(inbox)) {}
  ~HandlerScope() {
    inbox_->Close();
    exchange_.OnDisconnect(nullptr);
    exchange_.OnCutOff(nullptr);
  }
  HandlerScope(const HandlerScope&) = delete;
  HandlerScope& operator=(const HandlerScope&) = delete;

 private:
  HttpExchange& exchange_;
  std::shared_ptr<GenerationInbox> inbox_;
};

// Alternatives and tokens that a network thread turns into text by itself. More of them are work for the queue.
constexpr std::size_t kMaxInlineTokens = 64;
constexpr std::size_t kMaxInlineBytes = 16 * 1024;  // bytes of a body that a network thread serialises by itself
constexpr std::size_t kEventsPerPiece = 128;
constexpr const char* kUnknownFieldsHeader = "X-Loramux-Unknown-Fields";
constexpr const char* kLeftOutToolsHeader = "X-Loramux-Left-Out-Tools";
constexpr std::size_t kOtherBodyBytes = std::size_t{1} << 20;  // bytes of tools and template variables
// Beyond this, it is worth returning the freed memory of a body or an answer to the system.
constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

std::size_t TokensOf(std::span<const GenerationEvent> events) {
  std::size_t count = 0;
  for (const GenerationEvent& event : events) count += event.token ? 1 + event.token->top_logprobs.size() : 0;
  return count;
}

// The response of one job. It sends the header with the first news, so that an early failure can have its own status.
// Long work is done on `work`, as the tenant's.
class Responder {
 public:
  Responder(HttpExchange& exchange, CompletionJob& job, FairWorkQueue& work)
      : exchange_(exchange), job_(job), work_(work), tenant_(WorkTenant(exchange.request())) {}

  // Sends a comment line, which clients ignore. False: the response is over.
  asio::awaitable<bool> KeepAlive() {
    if (!job_.request().stream) co_return true;
    const bool started = co_await Start();
    if (!started) co_return false;
    co_return co_await exchange_.Write(job_.writer().KeepAlive());
  }

  // Applies events and sends their output. False: the response is over.
  asio::awaitable<bool> Advance(std::span<const GenerationEvent> events) {
    bool more = true;
    while (more && !events.empty()) {
      const std::size_t count = std::min(events.size(), kEventsPerPiece);
      more = co_await AdvancePiece(events.first(count));
      events = events.subspan(count);
    }
    co_return more;
  }

  // True if the answer, so far, had so many alternatives that much memory is to be freed.
  bool large() const { return bytes_ > kLargeBytes; }

  // Ends the response with an error: as a reply with its own status, or as an event if the stream has begun.
  asio::awaitable<void> Fail(const Error& error) {
    LogWith(spdlog::level::warn, fmt::format("generation failed ({}): {}", ErrorCodeName(error.code), error.message),
            {{"request_id", exchange_.trace().request_id}});
    job_.Cancel();
    if (!started_) {
      co_await exchange_.Send(ErrorReply(error));
      co_return;
    }
    const std::string text = job_.writer().Failure(error);
    co_await exchange_.Write(text);
    co_await exchange_.EndStream();
  }

 private:
  // What some events lead to.
  struct Outcome {
    Status applied = Ok{};
    bool finished = false;
    std::string text;  // streaming: the events to send
  };

  Outcome Apply(std::span<const GenerationEvent> events) {
    Outcome outcome{job_.Apply(events), job_.finished(), {}};
    if (outcome.applied.ok() && job_.request().stream) outcome.text = job_.TakeEvents();
    return outcome;
  }

  asio::awaitable<bool> AdvancePiece(std::span<const GenerationEvent> events) {
    Outcome outcome;
    if (TokensOf(events) <= kMaxInlineTokens) {
      outcome = Apply(events);
    } else {
      co_await RunOn(work_, tenant_, [&] { outcome = Apply(events); });
    }
    bytes_ = std::max(bytes_, job_.HeldBytes());
    if (!outcome.applied.ok()) {
      co_await Fail(outcome.applied.error());
      co_return false;
    }
    if (job_.request().stream) co_return co_await SendEvents(outcome);
    if (!outcome.finished) co_return true;
    co_await SendBody();
    co_return false;
  }

  asio::awaitable<bool> SendEvents(const Outcome& outcome) {
    const bool started = co_await Start();
    if (!started) co_return false;
    const bool written = co_await exchange_.Write(outcome.text);
    if (!written || !outcome.finished) co_return written;
    co_await exchange_.EndStream();
    co_return false;
  }

  asio::awaitable<void> SendBody() {
    HttpReply reply;
    if (job_.HeldBytes() <= kMaxInlineBytes) {
      reply.body = job_.TakeBody();
    } else {
      co_await RunOn(work_, tenant_, [&] { reply.body = job_.TakeBody(); });
    }
    co_await exchange_.Send(std::move(reply));
  }

  asio::awaitable<bool> Start() {
    if (std::exchange(started_, true)) co_return true;
    co_return co_await exchange_.StartStream("text/event-stream; charset=utf-8");
  }

  HttpExchange& exchange_;
  CompletionJob& job_;
  FairWorkQueue& work_;
  const std::string tenant_;
  std::size_t bytes_ = 0;  // held by the job at most
  bool started_ = false;
};

// Names the fields that are probably misspelt in a header of the response and in the log.
void ReportMistakes(HttpExchange& exchange, std::span<const LikelyMistake> mistakes) {
  if (mistakes.empty()) return;
  std::string header;
  for (const LikelyMistake& mistake : mistakes) {
    header += fmt::format("{}{};meant={}", header.empty() ? "" : ", ", mistake.name, mistake.meant);
    LogWith(spdlog::level::warn,
            fmt::format("the request has an unknown field `{}`, which was ignored; `{}` was probably meant",
                        mistake.name, mistake.meant),
            {{"request_id", exchange.trace().request_id}});
  }
  exchange.AddHeader(kUnknownFieldsHeader, std::move(header));
}

// Names the tools that the model was not offered.
void ReportLeftOutTools(HttpExchange& exchange, std::span<const std::string> tools) {
  if (!tools.empty()) exchange.AddHeader(kLeftOutToolsHeader, fmt::format("{}", fmt::join(tools, ", ")));
}

// What routers and gateways read of the response: the content that answers, and the load if they ask for it.
void TellRouters(HttpExchange& exchange, const GenerationService& generation, const Result<CompletionJob>& job) {
  if (job.ok() && !job->adapter_digest().empty()) {
    exchange.AddHeader(kAdapterDigestHeader, std::string(job->adapter_digest()));
    exchange.AddHeader(kWeightVersionHeader, job->weight_version());
  }
  const std::string_view format = exchange.request().Header(kLoadReportFormatHeader);
  if (format.empty()) return;
  if (auto report = LoadReport(format, generation.Load())) exchange.AddHeader(kLoadReportHeader, std::move(*report));
}

ErrorForm FormOf(const Dialect& dialect) {
  return [&dialect](int status, std::string_view message, std::string_view param) {
    return dialect.ErrorBody(status, message, param);
  };
}

// The threads that compile grammars give way to others, and no tenant has two of them.
FairWorkOptions CompilersBeside(const FairWorkOptions& work) {
  return {.threads = work.threads, .spare_threads = 0, .threads_per_tenant = 1, .niceness = 10};
}

HttpReply JsonReply(std::string body) {
  HttpReply reply;
  reply.body = std::move(body);
  return reply;
}

// True if the reply refuses a router's request because its content is not here.
bool WantsOtherContent(const HttpRequest& request, const HttpReply& reply) {
  return reply.status == 503 && !request.Header(kRequireDigestHeader).empty();
}

}  // namespace

CompletionService::CompletionService(const ServingContext& context, ServerMetrics& metrics,
                                     CompletionServiceOptions options)
    : context_(context),
      metrics_(metrics),
      options_(std::move(options)),
      work_(*context.clock, options_.work),
      compilers_(*context.clock, CompilersBeside(options_.work)) {}

CompletionService::~CompletionService() { finders_.join(); }

void CompletionService::AddProbes(RouteTable& routes) {
  routes.AddSimple(
      "GET", "/health", [this](const HttpRequest& request) { return Health(request); }, RouteAccess::kOpen);
  for (const char* method : {"GET", "POST"}) {  // the probe of SageMaker
    routes.AddSimple(
        method, "/ping", [this](const HttpRequest&) { return Ping(); }, RouteAccess::kOpen);
  }
  routes.AddSimple(
      "GET", "/version", [](const HttpRequest&) { return JsonReply("{\"version\":\"" LORAMUX_VERSION "\"}"); },
      RouteAccess::kOpen);
  if (!options_.tokenizer_info.empty()) {
    routes.AddSimple("GET", "/tokenizer_info",
                     [this](const HttpRequest&) { return JsonReply(options_.tokenizer_info); });
  }
}

void CompletionService::AddDialect(RouteTable& routes, std::string path, const Dialect& dialect) {
  HttpRoute route;
  route.method = "POST";
  route.path = std::move(path);
  route.handler = [this, &dialect](HttpExchange& exchange) { return Complete(exchange, dialect); };
  if (!dialect.many_prompts()) route.max_body_bytes = MaxChatBytes();
  route.error_form = FormOf(dialect);
  routes.Add(std::move(route));
}

void CompletionService::AddText(RouteTable& routes, std::string path, TextParser parse, const Dialect& dialect,
                                std::size_t characters) {
  HttpRoute route;
  route.method = "POST";
  route.path = std::move(path);
  const TextLimits limits = TextLimitsOf(options_.max_model_len, options_.max_tokenize_bytes);
  route.max_body_bytes = BoundedProduct(limits.max_bytes, characters, kOtherBodyBytes);
  route.handler = [this, limits, parse = std::move(parse)](HttpExchange& exchange) {
    return AnswerText({work_, finders_}, context_, limits, parse, exchange);
  };
  route.error_form = FormOf(dialect);
  routes.Add(std::move(route));
}

// The text of a chat has one prompt's bytes at most, as JSON writes them, and its tools and variables some more.
std::size_t CompletionService::MaxChatBytes() const {
  const auto prompt = PromptLimit::For(*context_.tokenizer, options_.max_model_len);
  return BoundedProduct(prompt.bytes, kJsonCharactersPerByte, kOtherBodyBytes);
}

HttpReply CompletionService::Health(const HttpRequest& request) const {
  if (request.draining) return ErrorReply(503, "The server is shutting down.");
  if (const Status health = context_.generation->Health(); !health.ok()) return ErrorReply(health.error());
  const GenerationLoad load = context_.generation->Load();
  return JsonReply(fmt::format("{{\"status\":\"ok\",\"running\":{},\"waiting\":{}}}", load.running, load.waiting));
}

HttpReply CompletionService::Ping() const {
  const Status health = context_.generation->Health();
  return health.ok() ? HttpReply() : ErrorReply(health.error());
}

asio::awaitable<void> CompletionService::Complete(HttpExchange& exchange, const Dialect& dialect) {
  const TimeNs received = context_.clock->Now();
  std::optional<Result<CompletionJob>> job = co_await Prepare(exchange, dialect, received);
  exchange.ReleaseBody();
  if (!job || exchange.disconnected()) {
    Trace(exchange, received, nullptr);
    co_return;
  }
  TellRouters(exchange, *context_.generation, *job);
  if (!job->ok()) {
    HttpReply reply = NotStarted(ErrorReply(job->error()));
    if (WantsOtherContent(exchange.request(), reply)) reply.headers.emplace_back(kOtherContentHeader, "1");
    co_await exchange.Send(std::move(reply));
    Trace(exchange, received, nullptr);
    co_return;
  }
  ReportMistakes(exchange, (*job)->request().mistakes);
  ReportLeftOutTools(exchange, (*job)->request().left_out_tools);
  (*job)->Count(metrics_, received);
  co_await Run(exchange, std::move(**job), received);
}

// Gives the spans of a request that has ended to the exporter. `job`: null if the request was refused.
void CompletionService::Trace(const HttpExchange& exchange, TimeNs received, const CompletionJob* job) const {
  if (!options_.spans->exports()) return;
  const HttpRequest& request = exchange.request();
  const TracePlace place = PlaceInTrace(exchange.trace(), request.Header("traceparent"),
                                        options_.spans->options().sample_share, RandomIdBits);
  if (!place.sampled) return;
  const RequestFacts facts{.method = request.method,
                           .path = request.path,
                           .model = job == nullptr ? std::string() : job->request().model,
                           .request_id = exchange.trace().request_id,
                           .received = received,
                           .ended = context_.clock->Now(),
                           .status = exchange.status(),
                           .complete = exchange.complete()};
  const std::vector<SequenceEnd> sequences = job == nullptr ? std::vector<SequenceEnd>() : job->Sequences();
  options_.spans->Add(SpansOf(place, facts, sequences, RandomIdBits));
}

// What the headers say; the context's other parts are the service's.
Result<ServingContext> CompletionService::ContextOf(HttpExchange& exchange, TimeNs received) const {
  const HttpRequest& request = exchange.request();
  ServingContext context = context_;
  context.caller = &CallerOf(request);
  context.received = received;
  context.require_digest = request.Header(kRequireDigestHeader);
  context.gone = &exchange.WatchClient();
  ASSIGN_OR_RETURN(context.ttft,
                   ObjectiveIn([&](std::string_view name) { return request.Header(name); }, kTtftHeaders));
  return context;
}

// Opening an adapter on the disk may take a while, so it does not run on the threads of the queue; nor does compiling a
// grammar. Null: the client is gone.
asio::awaitable<std::optional<Result<CompletionJob>>> CompletionService::Prepare(HttpExchange& exchange,
                                                                                 const Dialect& dialect,
                                                                                 TimeNs received) {
  const HttpRequest& request = exchange.request();
  const std::string tenant = WorkTenant(request);
  const auto context = ContextOf(exchange, received);
  if (!context.ok()) co_return Result<CompletionJob>(dialect.InOwnNames(context.error()));
  const std::atomic<bool>& gone = *context->gone;
  std::optional<Result<CompletionJob>> job;
  bool resolved = false, built = false;
  // Goes on with the job; an error takes its place.
  const auto advance = [&](auto step) {
    Status status = ((**job).*step)();
    if (!status.ok()) job.emplace(std::move(status).error());
    return job->ok();
  };
  const auto build = [&] { built = advance(&CompletionJob::Build); };
  co_await RunOn(work_, tenant, gone, [&] {
    job.emplace(CompletionJob::Parse(*context, dialect, request.body, request.tenant));
    if (request.body.size() > kLargeBytes) malloc_trim(0);
    if (!job->ok() || !(*job)->registered()) return;
    resolved = advance(&CompletionJob::Resolve);
    if (resolved && !(*job)->slow()) build();
  });
  if (gone || !job || !job->ok()) co_return job;
  if (!resolved) co_await RunOn(finders_, [&] { resolved = advance(&CompletionJob::Resolve); });
  if (gone || !job->ok() || built) co_return job;
  if ((*job)->slow()) {
    co_await RunOn(compilers_, tenant, gone, build);
  } else {
    co_await RunOn(work_, tenant, gone, build);
  }
  co_return job;
}

asio::awaitable<void> CompletionService::Run(HttpExchange& exchange, CompletionJob job, TimeNs received) {
  const auto sleeper = std::make_shared<Sleeper>(exchange.executor());
  const auto inbox =
      std::make_shared<GenerationInbox>(options_.max_buffered_bytes, Waker(exchange.executor(), sleeper));
  const HandlerScope scope(exchange, inbox);
  sleeper->OnWake([&exchange, inbox = inbox.get()] {
    if (inbox->overflowed() && !exchange.disconnected()) {
      LogWith(spdlog::level::warn, "a client reads too slowly; the server cancelled its request",
              {{"request_id", exchange.trace().request_id}});
      exchange.Abort();
    }
  });
  exchange.OnDisconnect([sleeper = sleeper.get()] { sleeper->Wake(); });
  bool cut_off = false;
  exchange.Describe(job.id() + " of " + job.request().model);
  exchange.OnCutOff([&cut_off, sleeper = sleeper.get()] {
    cut_off = true;
    sleeper->Wake();
  });
  const Status submitted = exchange.disconnected() ? Status(Ok{}) : job.Submit(inbox);
  if (!submitted.ok()) {
    HttpReply reply = ErrorReply(submitted.error());
    if (!job.began()) reply = NotStarted(std::move(reply));
    co_await exchange.Send(std::move(reply));
    Trace(exchange, received, &job);
    co_return;
  }
  Responder responder(exchange, job, work_);
  bool more = true;
  while (more && !exchange.disconnected()) {
    const std::vector<GenerationEvent> events = inbox->Take();
    if (cut_off) {
      co_await responder.Fail(Unavailable("The server is shutting down; the answer is cut off here."));
      more = false;
    } else if (events.empty()) {
      const bool quiet = co_await sleeper->Sleep(options_.sse_keepalive);
      if (quiet) more = co_await responder.KeepAlive();
    } else {
      more = co_await responder.Advance(events);
    }
  }
  job.Cancel();
  exchange.AddDetails(job.Summary());
  Trace(exchange, received, &job);
  if (!responder.large()) co_return;
  co_await RunOn(work_, WorkTenant(exchange.request()), [&job] {
    { const CompletionJob freed = std::move(job); }
    malloc_trim(0);
  });
}

}  // namespace loramux
