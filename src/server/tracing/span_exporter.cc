#include "server/tracing/span_exporter.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>

#include "base/log.h"
#include "base/wall_clock.h"
#include "http/client.h"

namespace loramux {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;

constexpr const char* kTracesPath = "/v1/traces";
constexpr std::size_t kMaxExportAnswerBytes = 64 << 10;
constexpr milliseconds kSlice(50);  // how often a running export looks whether the end has come
constexpr milliseconds kFirstPause(1000);

// What became of one export.
struct Exported {
  int status = 0;      // status of the response; 0: there was none
  std::string answer;  // its body, or why there was none
};

// The collector may take these spans later (OTLP's specification, "Failures").
bool ComesBack(int status) { return status == 0 || status == 429 || status == 502 || status == 503 || status == 504; }

}  // namespace

// One collector.
class SpanExporter::Connection {
 public:
  Connection(const SpanExporterOptions& options, Url url, const Clock& clock)
      : authority_(url.authority()),
        client_(context_.get_executor(),
                {.url = std::move(url),
                 .user_agent = "loramux/" + options.resource.service_version,
                 .headers = options.headers,
                 .timeout = options.timeout},
                clock) {}

  // Sends a body. Ends early, without an answer, once `give_up` is true.
  Exported Post(std::string body, const std::function<bool()>& give_up) {
    Exported exported;
    bool done = false;
    context_.restart();
    asio::co_spawn(context_, Exchange(std::move(body), exported), [&done](std::exception_ptr) { done = true; });
    while (!done) {
      context_.run_for(kSlice);
      if (!done && give_up()) client_.CancelAll();
    }
    return exported;
  }
  const std::string& authority() const { return authority_; }

 private:
  asio::awaitable<void> Exchange(std::string body, Exported& exported) {
    HttpCallRequest request;
    request.method = "POST";
    request.path = kTracesPath;
    request.body = std::move(body);
    request.repeatable = false;  // spans that are sent twice are counted twice
    HttpCall call(client_, std::move(request));
    const ExchangeEnd begun = co_await call.Begin();
    if (!begun.ok()) {
      exported.answer = begun.detail.empty() ? "no answer" : begun.detail;
      co_return;
    }
    std::string piece;
    do {
      const ExchangeEnd read = co_await call.ReadPiece(piece);
      if (!read.ok()) break;  // the status says what counts
      if (exported.answer.size() + piece.size() <= kMaxExportAnswerBytes) exported.answer += piece;
    } while (!piece.empty());
    exported.status = call.status();
  }

  asio::io_context context_;
  const std::string authority_;
  HttpClient client_;
};

Result<std::unique_ptr<SpanExporter>> SpanExporter::Start(SpanExporterOptions options, const Clock& clock) {
  ASSIGN_OR_RETURN(Url url, ParseUrl(options.endpoint, "--otlp-endpoint"));
  if (url.prefix.ends_with(kTracesPath)) url.prefix.resize(url.prefix.size() - std::string_view(kTracesPath).size());
  auto connection = std::make_unique<Connection>(options, std::move(url), clock);
  return std::unique_ptr<SpanExporter>(new SpanExporter(std::move(options), std::move(connection), clock));
}

SpanExporter::SpanExporter(SpanExporterOptions options, std::unique_ptr<Connection> connection, const Clock& clock)
    : options_(std::move(options)), clock_(clock), connection_(std::move(connection)) {
  if (exports()) thread_ = std::thread([this] { Run(); });
}

std::unique_ptr<SpanExporter> SpanExporter::None() {
  static const OsClock clock;
  return std::unique_ptr<SpanExporter>(new SpanExporter({}, nullptr, clock));
}

SpanExporter::~SpanExporter() {
  if (!exports()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_by_ = clock_.Now() + options_.flush_limit.count() * kNsPerMs;
  }
  news_.notify_all();
  thread_.join();
}

void SpanExporter::Add(std::vector<Span> spans) {
  CHECK(exports());
  if (spans.empty()) return;
  bool full_batch = false;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || queue_.size() + spans.size() > options_.queue_spans) return Drop(spans.size());
    queue_.insert(queue_.end(), std::make_move_iterator(spans.begin()), std::make_move_iterator(spans.end()));
    full_batch = queue_.size() >= options_.batch_spans;
  }
  if (full_batch) news_.notify_one();
}

SpanCounts SpanExporter::counts() const {
  const std::lock_guard lock(mutex_);
  return {sent_, dropped_, refused_, static_cast<std::int64_t>(queue_.size())};
}

std::vector<Span> SpanExporter::TakeBatch() {
  const std::lock_guard lock(mutex_);
  const auto count = static_cast<std::ptrdiff_t>(std::min(queue_.size(), options_.batch_spans));
  std::vector<Span> batch(std::make_move_iterator(queue_.begin()), std::make_move_iterator(queue_.begin() + count));
  queue_.erase(queue_.begin(), queue_.begin() + count);
  return batch;
}

// To the front of the queue, for a later try.
void SpanExporter::Return(std::vector<Span> batch) {
  const std::lock_guard lock(mutex_);
  const std::size_t room = options_.queue_spans - std::min(queue_.size(), options_.queue_spans);
  const std::size_t kept = stopping_ ? 0 : std::min(room, batch.size());
  Drop(batch.size() - kept);
  queue_.insert(queue_.begin(), std::make_move_iterator(batch.end() - static_cast<std::ptrdiff_t>(kept)),
                std::make_move_iterator(batch.end()));
}

// False: the collector may take the spans later.
bool SpanExporter::SendBatch(std::vector<Span> batch) {
  const std::int64_t offset = UnixNanoseconds() - clock_.Now();
  const auto give_up = [this] {
    const std::lock_guard lock(mutex_);
    return stopping_ && clock_.Now() > stop_by_;
  };
  const Exported exported = connection_->Post(ExportBody(options_.resource, batch, offset), give_up);
  const auto count = static_cast<std::int64_t>(batch.size());
  const bool later = ComesBack(exported.status);
  if (exported.status == 200) {
    const std::int64_t rejected = std::min(count, RejectedSpans(exported.answer));
    refused_ += rejected;
    sent_ += count - rejected;
    if (!std::exchange(reachable_, true)) spdlog::info("OTLP: {} takes spans again", connection_->authority());
    return true;
  }
  if (std::exchange(reachable_, false)) {
    spdlog::warn("OTLP: {} does not take spans ({}); requests go on without. It is asked again{}",
                 connection_->authority(),
                 exported.status == 0 ? exported.answer : fmt::format("status {}", exported.status),
                 later ? "" : ", but these spans are lost: check --otlp-endpoint and --otlp-headers");
  }
  if (later) {
    Return(std::move(batch));
  } else {
    refused_ += count;
  }
  return false;
}

void SpanExporter::Run() {
  milliseconds pause(0);
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const bool trouble = pause.count() > 0;
      news_.wait_for(lock, trouble ? pause : options_.interval,
                     [&] { return stopping_ || (!trouble && queue_.size() >= options_.batch_spans); });
      if (stopping_ && (queue_.empty() || clock_.Now() > stop_by_)) {
        Drop(queue_.size());
        queue_.clear();
        return;
      }
    }
    std::vector<Span> batch = TakeBatch();
    if (batch.empty()) continue;
    if (SendBatch(std::move(batch))) {
      pause = milliseconds(0);
    } else {
      pause = std::min(std::max(pause * 2, kFirstPause), options_.longest_pause);
    }
  }
}

}  // namespace loramux
