#include "tools/profile/engine_bench.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace loramux {
namespace {

constexpr std::size_t kStreams = 16;
constexpr std::int64_t kPrompt = 16;
constexpr std::int32_t kOutput = 48;

// Notes how long the engine takes from a result to the next batch. Used by the engine's thread.
class GapRecorder final : public Executor {
 public:
  GapRecorder(std::unique_ptr<Executor> inner, std::vector<TimeNs>* gaps) : inner_(std::move(inner)), gaps_(gaps) {}

  void Submit(const ExecutorBatch& batch) override {
    inner_->Submit(batch);
    if (ended_ > 0) gaps_->push_back(clock_.Now() - ended_);
    ended_ = 0;
  }
  bool Poll(ExecutorResult& result) override {
    if (!inner_->Poll(result)) return false;
    ended_ = clock_.Now();
    return true;
  }

 private:
  OsClock clock_;
  std::unique_ptr<Executor> inner_;
  std::vector<TimeNs>* gaps_;
  TimeNs ended_ = 0;   // of the last step; 0: another began since
};

// Generates on all streams until each has its tokens.
Status RunStreams(Runtime& runtime, std::int64_t vocab_size) {
  std::mutex mutex;
  std::condition_variable condition;
  std::size_t open = kStreams;
  std::optional<Error> refused;
  for (std::size_t i = 0; i < kStreams; ++i) {
    GenerationRequest request;
    for (std::int64_t t = 0; t < kPrompt; ++t) {
      request.prompt.push_back(static_cast<TokenId>((t * 37 + static_cast<std::int64_t>(i) * 101 + 5) % vocab_size));
    }
    request.sampling.temperature = 0;
    request.max_tokens = kOutput;
    request.ignore_eos = true;
    request.on_event = [&](const GenerationEvent& event) {
      if (event.finish == FinishReason::kNone) return;
      const std::lock_guard lock(mutex);
      if (--open == 0) condition.notify_one();
    };
    const auto submitted = runtime.engine().Submit(std::move(request));
    if (submitted.ok()) continue;
    refused = submitted.error();
    const std::lock_guard lock(mutex);
    --open;
  }
  std::unique_lock lock(mutex);
  condition.wait(lock, [&] { return open == 0; });
  if (refused) return *refused;
  return Ok{};
}

}  // namespace

Result<double> SecondsBetweenSteps(std::unique_ptr<Model> model, RuntimeOptions options) {
  const std::int64_t vocab_size = model->config().vocab_size;
  options.max_model_len = 0;   // whatever the server is limited to, the streams fit
  std::vector<TimeNs> gaps;    // written by the engine's thread until Stop
  options.wrap_executor = [&](std::unique_ptr<Executor> executor) {
    return std::make_unique<GapRecorder>(std::move(executor), &gaps);
  };
  ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime, Runtime::Create(std::move(model), std::move(options)));
  runtime->Start();
  const Status status = RunStreams(*runtime, vocab_size);
  runtime->Stop();
  RETURN_IF_ERROR(status);
  if (gaps.empty()) return 0.0;
  const auto middle = gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2);
  std::nth_element(gaps.begin(), middle, gaps.end());
  return static_cast<double>(*middle) / static_cast<double>(kNsPerSecond);
}

}  // namespace loramux
