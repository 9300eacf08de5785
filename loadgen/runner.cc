#include "loadgen/runner.h"

#include <csignal>
#include <exception>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "report/shown_text.h"

namespace loramux::load {

namespace asio = boost::asio;

namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds(200);
// in a closed loop, which would otherwise retry without pause
constexpr auto kPauseAfterNoConnection = std::chrono::milliseconds(100);

asio::awaitable<void> Sleep(std::chrono::nanoseconds duration) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  timer.expires_after(duration);
  boost::system::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

// Runs one coroutine to its end. Blocks.
void RunToEnd(asio::io_context& context, asio::awaitable<void> work) {
  asio::co_spawn(context, std::move(work), asio::detached);
  context.run();
  context.restart();
}

}  // namespace

BenchRunner::BenchRunner(HttpClientOptions client, RunOptions options, const Clock& clock)
    : clock_(clock), client_(context_, std::move(client), clock), options_(options) {}

Result<ModelNames> BenchRunner::FetchModels() {
  BodyCollector body;
  ExchangeEnd end;
  const auto fetch = [](ApiClient& client, BodyCollector& body, ExchangeEnd& end) -> asio::awaitable<void> {
    end = co_await client.Exchange("/v1/models", "", body);
  };
  RunToEnd(context_, fetch(client_, body, end));
  const std::string where = "http" + std::string(client_.url().tls ? "s" : "") + "://" + client_.url().authority() +
                            client_.url().prefix + "/v1/models";
  if (end.kind != ExchangeEnd::Kind::kComplete) return Unavailable(fmt::format("{}: {}", where, end.detail));
  if (body.status() != 200)
    return Unavailable(fmt::format("{}: status {}: {}", where, body.status(), ShownText(ErrorText(body.body()))));
  ModelNames names = ParseModels(body.body());
  if (names.bases.empty() && names.adapters.empty()) {
    return Unavailable(fmt::format("{}: expected a list of models that generate text, found '{}'", where,
                                   ShownText(body.body().substr(0, 120))));
  }
  return names;
}

RequestRecord BenchRunner::Ask(const std::string& model, const std::string& prompt, std::int64_t max_tokens) {
  RequestRecord record;
  std::int64_t pieces = 0;
  ReplyReader reader(options_.endpoint, /*stream=*/false, record, pieces);
  ApiRequest request{.endpoint = options_.endpoint,
                     .stream = false,
                     .model = model,
                     .dialogue = {{"user", prompt}},
                     .max_tokens = max_tokens};
  const auto ask = [](ApiClient& client, const ApiRequest& request, ReplyReader& reader) -> asio::awaitable<void> {
    const ExchangeEnd end =
        co_await client.Exchange(std::string(EndpointPath(request.endpoint)), ToJson(request), reader);
    reader.Finish(end, client.Now(), std::nullopt);
  };
  RunToEnd(context_, ask(client_, request, reader));
  return record;
}

Result<TokenScale> BenchRunner::MeasureScale(const std::string& model) {
  constexpr std::int64_t kFew = 20, kMany = 80;
  std::int64_t tokens[2] = {};
  for (const bool many : {false, true}) {
    Prng prng(many ? 1 : 2);
    const RequestRecord record = Ask(model, RandomWords(many ? kMany : kFew, prng), 1);
    if (!record.ok()) {
      return Unavailable(fmt::format("the server did not answer a first request for '{}': {}: {}", model,
                                     record.failure_kind(), record.detail));
    }
    tokens[many] = record.input_tokens;
  }
  // The server reports no token counts: assume a usual tokenizer.
  if (tokens[1] <= tokens[0] || tokens[0] <= 0) return TokenScale{};
  const double per_word = static_cast<double>(tokens[1] - tokens[0]) / (kMany - kFew);
  return TokenScale{.per_word = per_word, .overhead = std::max(0.0, static_cast<double>(tokens[0]) - per_word * kFew)};
}

void BenchRunner::Start(asio::awaitable<void> work) {
  ++working_;
  asio::co_spawn(context_, std::move(work), [this](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);  // lack of memory or a bug, not a result to count
    OnWorkDone();
  });
}

void BenchRunner::OnWorkDone() {
  if (--working_ == 0) context_.stop();
}

asio::awaitable<void> BenchRunner::WaitUntil(TimeNs at) {
  const TimeNs now = client_.Now();
  if (at > now) co_await Sleep(std::chrono::nanoseconds(at - now));
}

asio::awaitable<void> BenchRunner::OpenLoop(const SessionMaker& maker, const Trace& trace) {
  constexpr TimeNs kGlance = kNsPerSecond / 5;  // how often a long wait checks for a stop
  for (const Arrival& arrival : trace.arrivals) {
    Session session = maker.MakeSession(next_session_++, &arrival);  // made before it is due
    while (!stopping_ && client_.Now() < arrival.at) {
      co_await WaitUntil(std::min(arrival.at, client_.Now() + kGlance));
    }
    if (stopping_) co_return;
    Start(RunSession(std::move(session), arrival.at));
  }
}

asio::awaitable<void> BenchRunner::ClosedLoopWorker(const SessionMaker& maker) {
  const auto end = static_cast<TimeNs>(options_.duration_s * 1e9);
  while (!stopping_ && (options_.sessions <= 0 || next_session_ < options_.sessions) &&
         (end <= 0 || client_.Now() < end)) {
    const std::int64_t index = next_session_++;
    co_await RunSession(maker.MakeSession(index, nullptr), -1);
  }
}

asio::awaitable<void> BenchRunner::RunSession(Session session, TimeNs scheduled) {
  ApiRequest request{.endpoint = options_.endpoint,
                     .stream = options_.stream,
                     .model = (*models_)[static_cast<std::size_t>(session.model)],
                     .temperature = options_.temperature};
  if (!session.prefix.empty()) request.dialogue.emplace_back("system", session.prefix);
  for (int turn = 0; turn < static_cast<int>(session.turns.size()); ++turn) {
    if (turn > 0 && options_.think_s > 0)
      co_await Sleep(std::chrono::nanoseconds(static_cast<TimeNs>(options_.think_s * 1e9)));
    if (turn > 0 && stopping_) co_return;
    request.dialogue.emplace_back("user", session.turns[static_cast<std::size_t>(turn)].prompt);
    std::string answer;
    const Failure failure = co_await RunTurn(session, turn, request, turn == 0 ? scheduled : -1, answer);
    if (failure == Failure::kConnect && scheduled < 0) co_await Sleep(kPauseAfterNoConnection);
    // Without an answer the dialogue cannot continue.
    if (failure != Failure::kNone && failure != Failure::kWrongAnswer) co_return;
    request.dialogue.emplace_back("assistant", std::move(answer));
  }
}

asio::awaitable<Failure> BenchRunner::RunTurn(const Session& session, int turn, ApiRequest request, TimeNs scheduled,
                                              std::string& answer) {
  const Turn& question = session.turns[static_cast<std::size_t>(turn)];
  request.max_tokens = question.max_tokens;
  request.ignore_eos = question.ignore_eos;
  RequestRecord record{.session = session.index,
                       .turn = turn,
                       .model = session.model,
                       .scheduled = scheduled,
                       .requested_output_tokens = question.max_tokens};
  ReplyReader reader(options_.endpoint, options_.stream, record, progress_.tokens);
  ++progress_.started;
  std::string body = ToJson(request);
  record.sent = client_.Now();
  const ExchangeEnd end =
      co_await client_.Exchange(std::string(EndpointPath(options_.endpoint)), std::move(body), reader);
  reader.Finish(end, client_.Now(), question.answer);
  answer = reader.text();
  ++progress_.finished;
  progress_.failed += record.ok() ? 0 : 1;
  if (!options_.stream) progress_.tokens += record.output_tokens;
  result_.records.push_back(std::move(record));
  co_return result_.records.back().failure;
}

asio::awaitable<void> BenchRunner::ReportProgress(const std::function<void(const RunProgress&)>& progress) {
  while (true) {
    progress_.elapsed = client_.Now();
    progress(progress_);
    co_await Sleep(kProgressInterval);
  }
}

asio::awaitable<void> BenchRunner::WatchSignals() {
  asio::signal_set signals(context_, SIGINT, SIGTERM);
  boost::system::error_code ignored;
  co_await signals.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  result_.interrupted = stopping_ = true;
  co_await signals.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  client_.CancelAll();
}

RunResult BenchRunner::Run(const SessionMaker& maker, const Trace* trace,
                           const std::function<void(const RunProgress&)>& progress) {
  models_ = &maker.models();
  result_.started_unix_s = clock_.UnixSeconds();
  client_.set_origin(clock_.Now());
  if (trace != nullptr) Start(OpenLoop(maker, *trace));
  for (int i = 0; trace == nullptr && i < options_.concurrency; ++i) Start(ClosedLoopWorker(maker));
  asio::co_spawn(context_, ReportProgress(progress), asio::detached);
  asio::co_spawn(context_, WatchSignals(), asio::detached);
  context_.run();
  for (const RequestRecord& record : result_.records) result_.duration = std::max(result_.duration, record.end);
  return std::move(result_);
}

}  // namespace loramux::load
