// A server on the demo model whose transfers the test lets pass, layer by layer.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "residency/transfer.h"
#include "runtime/runtime.h"

namespace loramux {

inline const std::filesystem::path kDemo = std::filesystem::path(LORAMUX_SOURCE_DIR) / "demo";

// Holds transfers of one kind from the host to the device until the test lets them pass, layer by layer.
class Gate {
 public:
  void Hold(TransferJob job) { held_.push_back(std::move(job)); }
  bool holding() const { return !held_.empty(); }
  const LayerProgress& progress() const { return *held_.front().progress; }
  void PassLayer() {
    const TransferJob& job = held_.front();
    const std::int32_t layer = job.progress->arrived();
    CopyLayer(job, memory_, layer);
    job.progress->Publish(layer + 1);
  }
  void Complete() {
    done_.push_back({held_.front().id, std::nullopt});
    held_.erase(held_.begin());
  }
  void Fail() {
    held_.front().progress->Fail();
    done_.push_back({held_.front().id, IoError("injected")});
    held_.erase(held_.begin());
  }
  void PassAll() {
    for (; holding(); Complete()) {
      while (!progress().ended()) PassLayer();
    }
  }

 private:
  friend class GatedTransfer;
  TierMemory memory_;
  std::vector<TransferJob> held_;
  std::vector<TransferCompletion> done_;
};

// Transfers from the host to the device wait in the gates, of adapters and of keys and values; others complete at once,
// but for reads from disk after HoldDisk. Used only by the thread that steps the engine, which is the test's.
class GatedTransfer final : public PageTransfer {
 public:
  Gate adapters, kv;

  ~GatedTransfer() override {
    disk_layers_.release(1024);
    for (std::thread& reader : readers_) reader.join();
  }
  void Submit(TransferJob job) override {
    if (job.kind() == TransferKind::kHostToDevice)
      (job.adapter != nullptr ? adapters : kv).Hold(std::move(job));
    else if (job.from.tier == Tier::kDisk && holds_disk_)
      readers_.emplace_back([this, job = std::move(job)] {
        TransferCompletion read = RunTransfer(job, adapters.memory_, [this](std::size_t) { disk_layers_.acquire(); });
        const std::lock_guard lock(mutex_);
        read_.push_back(std::move(read));
      });
    else
      done_.push_back(RunTransfer(job, adapters.memory_));
  }
  // From now on, each layer but the last that is read from disk waits for one of PassDiskLayers.
  void HoldDisk() { holds_disk_ = true; }
  void PassDiskLayers(std::ptrdiff_t layers) { disk_layers_.release(layers); }
  std::optional<TransferCompletion> Poll() override {
    const auto take = [this](std::vector<TransferCompletion>& from) {
      std::move(from.begin(), from.end(), std::back_inserter(done_));
      from.clear();
    };
    {
      const std::lock_guard lock(mutex_);
      take(read_);
    }
    take(adapters.done_);
    take(kv.done_);
    if (done_.empty()) return std::nullopt;
    TransferCompletion completion = std::move(done_.front());
    done_.erase(done_.begin());
    return completion;
  }

  // Must be called before the first job.
  void set_memory(const TierMemory& memory) { adapters.memory_ = kv.memory_ = memory; }

 private:
  std::vector<TransferCompletion> done_;
  bool holds_disk_ = false;
  std::counting_semaphore<> disk_layers_{0};
  std::mutex mutex_;
  std::vector<TransferCompletion> read_;  // by readers_
  std::vector<std::thread> readers_;      // last, because they use the others
};

// The demo model of six layers; the test steps its engine.
struct RealWorld {
  struct Answer {
    std::vector<TokenId> tokens;
    std::vector<float> logprobs;
    std::string error;
    bool ended = false;
    std::int32_t cached_tokens = 0;
    bool operator==(const Answer& other) const { return tokens == other.tokens && logprobs == other.logprobs; }
  };

  GatedTransfer* transfer = nullptr;  // owned by the runtime
  std::unique_ptr<Runtime> runtime;
  AdapterGeneration adapter = kBaseModel;

  explicit RealWorld(std::int64_t device_memory = std::int64_t{64} << 20, RuntimeOptions options = {},
                     const std::filesystem::path& rot13 = kDemo / "adapters/rot13") {
    options.device_memory = device_memory;
    options.host_memory = std::int64_t{64} << 20;
    options.page_tokens = 4;
    options.threads = 2;
    options.base_names = {"base"};
    options.wrap_transfer = [this](std::unique_ptr<PageTransfer>) {
      auto gated = std::make_unique<GatedTransfer>();
      transfer = gated.get();
      return gated;
    };
    auto loaded = Runtime::Load(kDemo / "model", options, {});
    EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message);
    runtime = std::move(loaded).value();
    transfer->set_memory(runtime->tiers());
    const auto version = runtime->registry().Register("rot13", rot13, 0);
    EXPECT_TRUE(version.ok());
    adapter = (*version)->generation;
  }

  static std::vector<TokenId> Prompt(TokenId first, int length = 33) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back((first * 17 + i * 29) % 200 + 3);
    return prompt;
  }
  void Submit(std::vector<TokenId> prompt, AdapterGeneration who, Answer& answer) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.adapter = who;
    request.max_tokens = 6;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sampling.top_logprobs = 3;
    request.on_event = [&answer](const GenerationEvent& event) {
      if (event.token.has_value()) {
        answer.tokens.push_back(event.token->id);
        for (const TokenLogprob& top : event.token->top_logprobs) answer.logprobs.push_back(top.logprob);
      }
      answer.ended = event.finish != FinishReason::kNone;
      answer.cached_tokens = event.cached_prompt_tokens;
      if (event.error.has_value()) answer.error = event.error->message;
    };
    ASSERT_TRUE(runtime->engine().Submit(std::move(request)).ok());
  }
  void StepUntil(const std::function<bool()>& condition) {
    while (!condition()) {
      if (!runtime->engine().Step()) std::this_thread::yield();
    }
  }
  // Without held transfers.
  Answer Ask(std::vector<TokenId> prompt, AdapterGeneration who) {
    Answer answer;
    Submit(std::move(prompt), who, answer);
    StepUntil([&] {
      transfer->adapters.PassAll();
      transfer->kv.PassAll();
      return answer.ended;
    });
    EXPECT_EQ(answer.error, "");
    return answer;
  }
  // Lets the layers pass one by one, each only when the executor waits for it and so has computed those before. Stops
  // after `pass` layers.
  void PassInLockstep(Gate& gate, std::int32_t pass) {
    const LayerProgress& progress = gate.progress();
    ASSERT_EQ(progress.layers(), 6);
    for (std::int32_t layer = 0; layer < progress.lead(); ++layer) gate.PassLayer();
    StepUntil([&] { return runtime->engine().Stats().early_admissions > 0; });
    for (std::int32_t layer = progress.lead(); layer < pass; ++layer) {
      StepUntil([&] { return progress.awaited() == layer; });
      gate.PassLayer();
    }
  }
  void ExpectExact() {
    StepUntil([&] {
      transfer->adapters.PassAll();
      transfer->kv.PassAll();
      return runtime->engine().Idle();
    });
    while (runtime->engine().Step()) {
    }
    runtime->engine().CheckIntegrity();
  }
};

}  // namespace loramux
