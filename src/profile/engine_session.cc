#include "profile/engine_session.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace loramux {
namespace {

constexpr std::size_t kStepsReserved = std::size_t{1} << 18;
constexpr std::size_t kTransfersReserved = std::size_t{1} << 16;

// Counts requests down; callbacks come from the engine's thread.
class Countdown {
 public:
  explicit Countdown(std::size_t open) : open_(open) {}
  void Down(std::size_t count, bool failed) {
    const std::lock_guard lock(mutex_);
    failed_ |= failed;
    if ((open_ -= count) == 0) condition_.notify_one();
  }
  // Waits for all. Returns true if none has failed.
  bool Wait() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return open_ == 0; });
    return !failed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::size_t open_;
  bool failed_ = false;
};

// The sending side of a run.
class OpenLoop {
 public:
  OpenLoop(EngineSession& session, const std::vector<EngineRequest>& requests)
      : session_(session), requests_(requests), served_(requests.size()), open_(requests.size()) {}

  Status Run() {
    const Clock& clock = session_.runtime().clock();
    start_ = clock.Now();
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const TimeNs wait = start_ + requests_[i].due - clock.Now();
      if (wait > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(wait));
      const Status sent = Send(i);
      if (sent.ok()) continue;
      // requests submitted before may still run, and their callbacks use this object
      open_.Down(requests_.size() - i, true);
      open_.Wait();
      return sent;
    }
    if (!open_.Wait()) return Internal("a request ended early");
    return Ok{};
  }
  std::vector<ServedRequest> TakeServed() { return std::move(served_); }
  TimeNs start() const { return start_; }

 private:
  Status Send(std::size_t i) {
    const EngineRequest& asked = requests_[i];
    GenerationRequest request;
    request.prompt = asked.prompt;
    if (!session_.adapters().empty()) request.adapter = session_.adapters()[asked.adapter]->generation;
    request.sampling.temperature = 0;
    request.max_tokens = asked.output_tokens;
    request.length_hint = asked.output_tokens;
    request.ignore_eos = true;
    request.on_event = [this, &served = served_[i]](const GenerationEvent& event) {
      if (event.token.has_value()) {
        served.last_token = event.now - start_;
        if (served.tokens++ == 0) served.first_token = served.last_token;
      }
      if (event.finish == FinishReason::kNone) return;
      served.seen = event.arrival - start_;
      open_.Down(1, event.finish != FinishReason::kLength);
    };
    served_[i].sent = session_.runtime().clock().Now() - start_;
    ASSIGN_OR_RETURN([[maybe_unused]] const RequestId id, session_.runtime().engine().Submit(std::move(request)));
    return Ok{};
  }

  EngineSession& session_;
  const std::vector<EngineRequest>& requests_;
  std::vector<ServedRequest> served_;
  Countdown open_;
  TimeNs start_ = 0;
};

}  // namespace

Result<std::unique_ptr<EngineSession>> EngineSession::Create(std::unique_ptr<PlacedModel> model, RuntimeOptions options,
                                                             const std::vector<std::string>& adapters) {
  std::unique_ptr<EngineSession> session(new EngineSession);
  session->steps_.reserve(kStepsReserved);
  options.wrap_executor = [steps = &session->steps_](std::unique_ptr<Executor> executor) {
    return std::make_unique<StepRecorder>(std::move(executor), steps);
  };
  session->transfers_.reserve(kTransfersReserved);
  options.wrap_transfer = [transfers = &session->transfers_](std::unique_ptr<PageTransfer> transfer) {
    return std::make_unique<TransferRecorder>(std::move(transfer), transfers);
  };
  ASSIGN_OR_RETURN(session->runtime_, Runtime::Create(std::move(model), std::move(options)));
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    ASSIGN_OR_RETURN(auto version,
                     session->runtime_->registry().Register("adapter-" + std::to_string(i), adapters[i], 0));
    session->adapters_.push_back(std::move(version));
  }
  session->runtime_->Start();
  return session;
}

EngineSession::~EngineSession() {
  if (runtime_ != nullptr) runtime_->Stop();
}

// When the last request has ended, all steps have ended too; no step begins before the next run.
Result<EngineRun> EngineSession::Run(const std::vector<EngineRequest>& requests) {
  steps_.clear();
  transfers_.clear();
  OpenLoop loop(*this, requests);
  RETURN_IF_ERROR(loop.Run());
  EngineRun run{.requests = loop.TakeServed(), .steps = steps_, .transfers = transfers_};
  for (ObservedStep& step : run.steps) step.begin -= loop.start();
  for (const ServedRequest& request : run.requests) run.end = std::max(run.end, request.last_token);
  return run;
}

}  // namespace loramux
