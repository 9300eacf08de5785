// An engine for this directory's tests, which follows a script on its own thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/wait_until_for_test.h"
#include "server/generation/generation_service.h"

namespace loramux {

// Ids of the test tokenizer: the id of a byte is its value.
inline constexpr TokenId kBosToken = 256, kEosToken = 257;
inline constexpr std::int64_t kTestVocabSize = 300;  // size of the model's vocabulary; the tokenizer has 258
inline constexpr std::int64_t kTestMaxTokens = 4096;

// Returns the token ids of a text.
inline std::vector<TokenId> Bytes(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

// The engine's answer to one request.
struct Script {
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kStop;
  TokenId stop_token = kEosToken;
  Error error = Internal("scripted failure");  // if finish is kError
  bool repeat = false;                         // begin again at the end, until max_tokens or a cancellation
  bool endless = false;                        // with `repeat`: max_tokens does not end it, only a cancellation
};

// A script that generates `text` and stops.
inline Script Say(std::string_view text) {
  Script script;
  script.tokens = Bytes(text);
  return script;
}

// Steps like an engine: every running request gets its next token, then a step's time passes. A test that needs a
// request to be in flight holds the steps.
class ScriptedService final : public GenerationService {
 public:
  // Returns the script for a request, or the error with which Submit refuses it.
  using Director = std::function<Result<Script>(const GenerationRequest&)>;

  explicit ScriptedService(Director director) : director_(std::move(director)), thread_([this] { Loop(); }) {}
  ~ScriptedService() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void set_step_time(std::chrono::microseconds time) { step_time_us_ = time.count(); }
  // No further step, except as many as AllowSteps says.
  void HoldSteps() { SetAllowedSteps(0); }
  void AllowSteps(std::int64_t count) { SetAllowedSteps(count); }
  // As many steps as there is work for.
  void ReleaseSteps() { SetAllowedSteps(-1); }

  Result<RequestId> Submit(GenerationRequest request) override {
    const std::lock_guard lock(mutex_);
    ASSIGN_OR_RETURN(Script script, director_(request));
    const RequestId id{++last_id_};
    submitted_.push_back(request);
    submitted_.back().on_event = nullptr;
    running_.emplace(id, Running{std::move(request), std::move(script), 0, false});
    changed_.notify_all();
    return id;
  }
  void Cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(id);
    if (found == running_.end()) return;
    found->second.cancelled = true;
    changed_.notify_all();
  }
  void SetHold(Hold hold) override {
    const std::lock_guard lock(mutex_);
    held_ = hold == Hold::kAll;
    changed_.notify_all();
  }
  void AbortAll() override {}
  void DropHistory(std::function<void(Result<std::int64_t>)> done) override { done(0); }
  std::int64_t MaxSequenceTokens(AdapterGeneration) const override { return kTestMaxTokens; }
  Status Health() const override {
    const std::lock_guard lock(mutex_);
    return health_;
  }
  void set_health(Status health) {
    const std::lock_guard lock(mutex_);
    health_ = std::move(health);
  }
  GenerationLoad Load() const override {
    const std::lock_guard lock(mutex_);
    return {static_cast<std::int64_t>(running_.size()), 0};
  }

  std::vector<GenerationRequest> submitted() const {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  int cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  // That many requests have come, in all, and none runs. False after kTestPatience.
  bool WaitUntilIdleAfter(std::size_t requests) const {
    return WaitUntil([&] {
      const std::lock_guard lock(mutex_);
      return submitted_.size() >= requests && running_.empty();
    });
  }
  // That many requests run at the same time. False after kTestPatience.
  bool WaitUntilRunning(std::int64_t requests) const {
    return WaitUntil([&] { return Load().running >= requests; });
  }

 private:
  struct Running {
    GenerationRequest request;
    Script script;
    std::size_t next = 0;
    bool cancelled = false;
    TimeNs first_step = 0;
  };

  void SetAllowedSteps(std::int64_t count) {
    const std::lock_guard lock(mutex_);
    allowed_steps_ = count;
    changed_.notify_all();
  }

  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || (!running_.empty() && allowed_steps_ != 0 && !held_); });
      if (stopping_) return;
      if (allowed_steps_ > 0) --allowed_steps_;
      Step(lock);
      const std::chrono::microseconds pause(step_time_us_);
      if (pause.count() > 0) changed_.wait_for(lock, pause, [this] { return stopping_; });
    }
  }

  // Callbacks run without the lock, as in the engine. Only this thread erases.
  void Step(std::unique_lock<std::mutex>& lock) {
    std::vector<RequestId> batch;
    for (const auto& [id, running] : running_) batch.push_back(id);
    for (const RequestId id : batch) {
      Running& running = running_.at(id);
      const bool cancelled = running.cancelled;
      lock.unlock();
      const bool ended = Advance(id, running, cancelled);
      lock.lock();
      if (!ended) continue;
      running_.erase(id);
      cancelled_ += cancelled ? 1 : 0;
    }
  }

  // With the first event: token i of the prompt has the log-probability -i, and the likeliest tokens are 'a', 'b', ...
  static std::vector<ScoredToken> ScoresOf(const Running& running) {
    std::vector<ScoredToken> scores;
    const GenerationRequest& request = running.request;
    if (running.first_step != 0 || request.prompt_logprobs < 0) return scores;
    for (std::size_t i = 1; i < request.prompt.size(); ++i) {
      ScoredToken& score = scores.emplace_back();
      score.id = request.prompt[i];
      score.logprob = -static_cast<float>(i);
      score.rank = static_cast<std::int32_t>(i) + 2;
      for (int k = 0; k < request.prompt_logprobs; ++k)
        score.top_logprobs.push_back({'a' + k, -0.25f - static_cast<float>(k)});
    }
    return scores;
  }

  // The embedding {3, 4, 0, 0} as a mean, and the same backwards for the last token; times the length of the prompt.
  static std::vector<float> EmbeddingOf(const GenerationRequest& request) {
    if (!request.pooling) return {};
    const auto length = static_cast<float>(request.prompt.size());
    if (*request.pooling == Pooling::kMean) return {3 * length, 4 * length, 0, 0};
    return {0, 0, 4 * length, 3 * length};
  }

  static bool Advance(RequestId id, Running& running, bool cancelled) {
    GenerationEvent event;
    event.id = id;
    event.prompt_tokens = static_cast<std::int32_t>(running.request.prompt.size());
    event.cached_prompt_tokens = event.prompt_tokens / 2;
    event.now = OsClock().Now();
    event.prompt_scores = ScoresOf(running);
    if (running.first_step == 0) running.first_step = event.now;
    event.arrival = event.first_scheduled = running.first_step;
    SampledToken token;
    const auto& tokens = running.script.tokens;
    if (cancelled) {
      event.finish = FinishReason::kCancelled;
    } else if (running.request.max_tokens == 0) {
      event.finish = FinishReason::kLength;
      event.embedding = EmbeddingOf(running.request);
    } else if (running.next < tokens.size() || running.script.repeat) {
      token.id = tokens[running.next++ % tokens.size()];
      token.logprob = -0.5f;
      for (int i = 0; i < running.request.sampling.top_logprobs; ++i) {
        token.top_logprobs.push_back({'a' + i, -0.25f - static_cast<float>(i)});
      }
      event.token = std::move(token);
      if (!running.script.endless && static_cast<std::int64_t>(running.next) == running.request.max_tokens) {
        event.finish = FinishReason::kLength;
      }
    } else {
      event.finish = running.script.finish;
      token.id = running.script.stop_token;
      token.logprob = -0.125f;
      if (event.finish == FinishReason::kStop) event.stop = std::move(token);
      if (event.finish == FinishReason::kError) event.error = running.script.error;
    }
    event.generated_tokens = static_cast<std::int32_t>(running.next);
    running.request.on_event(event);
    return event.finish != FinishReason::kNone;
  }

  const Director director_;
  std::atomic<std::int64_t> step_time_us_ = 0;
  mutable std::mutex mutex_;
  Status health_ = Ok{};
  std::condition_variable changed_;
  std::map<RequestId, Running> running_;
  std::vector<GenerationRequest> submitted_;
  std::uint64_t last_id_ = 0;
  int cancelled_ = 0;
  std::int64_t allowed_steps_ = -1;  // -1: any number
  bool held_ = false, stopping_ = false;
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace loramux
