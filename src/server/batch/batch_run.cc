#include "server/batch/batch_run.h"

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "auth/error_body.h"
#include "http/error_status.h"
#include "server/api/api_routes.h"
#include "server/batch/batch_format.h"
#include "server/generation/generation_inbox.h"

namespace loramux {
namespace {

// Most bytes of tokens that this thread has not taken yet, per request. It always takes them soon.
constexpr std::size_t kMaxInboxBytes = std::size_t{64} << 20;

// The numbers of jobs with news, from the engine's thread.
class ReadyJobs {
 public:
  void Add(std::int64_t number) {
    {
      const std::lock_guard lock(mutex_);
      numbers_.push_back(number);
    }
    added_.notify_one();
  }
  // Waits until there are some, and returns them.
  std::vector<std::int64_t> Take() {
    std::unique_lock lock(mutex_);
    added_.wait(lock, [this] { return !numbers_.empty(); });
    return std::exchange(numbers_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable added_;
  std::vector<std::int64_t> numbers_;
};

// A request that runs. The inbox is closed before the list of ready jobs goes.
struct RunningJob {
  RunningJob(BatchItem line, const Dialect& form, CompletionJob prepared, std::shared_ptr<GenerationInbox> events)
      : item(std::move(line)), dialect(form), job(std::move(prepared)), inbox(std::move(events)) {}
  ~RunningJob() { inbox->Close(); }

  BatchItem item;
  const Dialect& dialect;
  CompletionJob job;
  std::shared_ptr<GenerationInbox> inbox;
};

class BatchRunner {
 public:
  BatchRunner(const ServingContext& context, const BatchRunOptions& options, BatchOutput& output)
      : context_(context), options_(options), output_(output) {}

  Result<BatchProgress> Run(std::FILE* input) {
    LineReader reader(input);
    std::string line;
    while (reader.Next(line)) {
      ++number_;
      RETURN_IF_ERROR(Take(line));
      while (static_cast<std::int64_t>(running_.size()) >= options_.max_jobs) RETURN_IF_ERROR(Advance());
    }
    if (reader.failed()) return Error{ErrorCode::kIoError, "the input cannot be read to its end"};
    while (!running_.empty()) RETURN_IF_ERROR(Advance());
    return progress_;
  }

 private:
  Status Take(const std::string& line) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) return Ok{};
    BatchItem item;
    const Status parsed = ParseBatchLine(line, number_, item);
    if (!seen_.insert(KeyOf(item)).second) return Repeated(item);
    if (output_.Has(KeyOf(item))) return Skip();
    if (!parsed.ok()) return WriteError(item, "invalid_line", parsed.error());
    const ApiPath* path = FindApiPath(item.url);
    if (path == nullptr) {
      return WriteError(item, "invalid_url", NotFound("`url`: expected a path of this server, found " + item.url));
    }
    return path->text ? AnswerText(item, *path) : Start(std::move(item), *path->dialect);
  }

  static const std::string& KeyOf(const BatchItem& item) { return item.custom_id.empty() ? item.id : item.custom_id; }

  Status Skip() {
    ++progress_.skipped;
    return Count();
  }

  // Only the first line with a custom_id is answered. The output has one line with it, so the second has its own id.
  Status Repeated(BatchItem item) {
    const std::string custom_id = std::exchange(item.custom_id, {});
    if (output_.Has(item.id)) return Skip();
    return WriteError(item, "repeated_custom_id",
                      InvalidArgument("`custom_id`: expected a unique one, found " + custom_id + " twice"));
  }

  Status WriteError(const BatchItem& item, std::string_view code, const Error& error) {
    return Write(item, BatchErrorLine(item, code, error.message), /*failed=*/true);
  }

  Status WriteFailure(const BatchItem& item, const Dialect& dialect, const Error& error) {
    const int status = HttpStatus(error);
    const std::string body = dialect.ErrorBody(status, error.message, error.param);
    return Write(item, BatchResponseLine(item, status, {}, body), /*failed=*/true);
  }

  Status Write(const BatchItem& item, std::string_view line, bool failed) {
    RETURN_IF_ERROR(output_.Write(KeyOf(item), line));
    progress_.failed += failed ? 1 : 0;
    return Count();
  }

  Status Count() {
    ++progress_.lines;
    if (options_.progress) options_.progress(progress_);
    return Ok{};
  }

  Status AnswerText(const BatchItem& item, const ApiPath& path) {
    const auto body = AnswerNow(path.text, context_, options_.text, item.body);
    if (!body.ok()) return WriteFailure(item, *path.dialect, body.error());
    return Write(item, BatchResponseLine(item, 200, {}, *body), /*failed=*/false);
  }

  Status Start(BatchItem item, const Dialect& dialect) {
    auto job = CompletionJob::Prepare(context_, dialect, item.body);
    if (!job.ok()) return WriteFailure(item, dialect, job.error());
    if (job->request().stream) {
      return WriteFailure(item, dialect, InvalidArgument("`stream`: expected false in a batch, found true", "stream"));
    }
    auto inbox = std::make_shared<GenerationInbox>(kMaxInboxBytes, [this, number = number_] { ready_.Add(number); });
    auto running = std::make_unique<RunningJob>(std::move(item), dialect, std::move(*job), inbox);
    const Status submitted = running->job.Submit(std::move(inbox));
    if (!submitted.ok()) return WriteFailure(running->item, dialect, submitted.error());
    running_.emplace(number_, std::move(running));
    return Ok{};
  }

  // Waits for news, and writes what has ended.
  Status Advance() {
    for (const std::int64_t number : ready_.Take()) {
      const auto found = running_.find(number);
      if (found == running_.end()) continue;
      RunningJob& running = *found->second;
      const std::vector<GenerationEvent> events = running.inbox->Take();
      for (const GenerationEvent& event : events) progress_.tokens += event.token ? 1 : 0;
      const Status applied = running.inbox->overflowed() ? Status(Internal("The answer came faster than it was taken."))
                                                         : running.job.Apply(events);
      if (applied.ok() && !running.job.finished()) continue;
      const auto ended = std::move(found->second);
      running_.erase(found);
      RETURN_IF_ERROR(End(*ended, applied));
    }
    return Ok{};
  }

  Status End(RunningJob& ended, const Status& applied) {
    if (!applied.ok()) return WriteFailure(ended.item, ended.dialect, applied.error());
    const std::string line = BatchResponseLine(ended.item, 200, ended.job.id(), ended.job.TakeBody());
    return Write(ended.item, line, /*failed=*/false);
  }

  const ServingContext& context_;
  const BatchRunOptions& options_;
  BatchOutput& output_;
  BatchProgress progress_;
  std::int64_t number_ = 0;               // number of the line, from 1
  std::unordered_set<std::string> seen_;  // keys of the lines so far
  ReadyJobs ready_;
  std::map<std::int64_t, std::unique_ptr<RunningJob>> running_;  // by line; goes before `ready_`
};

}  // namespace

Result<BatchProgress> RunBatch(const ServingContext& context, const BatchRunOptions& options, std::FILE* input,
                               BatchOutput& output) {
  return BatchRunner(context, options, output).Run(input);
}

}  // namespace loramux
