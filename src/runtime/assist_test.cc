// Steps whose adapter is on its way to the emulated device: the processor computes the layers that are not there yet,
// and the answer is that of a resident adapter.
#include <atomic>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <semaphore>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "engine/step_batch_builder.h"
#include "formats/random_adapter.h"
#include "gpu/emulated/emulated_device.h"
#include "gpu/kernels/assist.h"
#include "memory/page_geometry.h"
#include "runtime/arrived_words.h"
#include "runtime/counting_device_for_test.h"
#include "runtime/gpu_executor.h"
#include "tensor/half_float.h"

namespace loramux::assist_test {
namespace {

constexpr std::int32_t kLayers = 4;
constexpr std::int64_t kPageTokens = 8;

ModelConfig Config() {
  ModelConfig c;
  c.hidden_size = 64;
  c.num_layers = kLayers;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 16;
  c.intermediate_size = 96;
  c.vocab_size = 330;  // logits of an adapter come in two parts
  c.max_position = 1024;
  c.sliding_window.assign(kLayers, 0);
  return c;
}

const std::vector<LoraTarget> kAll = {LoraTarget::kQ,    LoraTarget::kK,  LoraTarget::kV,    LoraTarget::kO,
                                      LoraTarget::kGate, LoraTarget::kUp, LoraTarget::kDown, LoraTarget::kLmHead};

// A load that the test lets arrive: the events of a device's transfer, without its copy engine.
class Load final : public LayerEvents {
 public:
  explicit Load(const std::uint32_t* word) : word_(word) {}
  void EnqueueWait(DeviceStream& /*stream*/, std::int64_t /*layer*/) const override { ++waits; }
  const std::uint32_t* ArrivedWord() const override { return word_; }
  mutable std::atomic<int> waits{0};

 private:
  const std::uint32_t* word_;
};

// One sequence of a step.
struct Part {
  int adapter = -1;
  std::vector<TokenId> tokens;
  std::int64_t position = 0;
  bool scored = false;  // all tokens but the first
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<SequenceFailure> failures;
  bool operator==(const Answer& other) const { return tokens == other.tokens && logprobs == other.logprobs; }
};

struct WorldOptions {
  DType dtype = DType::kF32;
  int cores = 2;
  std::int64_t max_batch_tokens = 64;
  TimeNs timeout = 20 * kNsPerSecond;
  std::uint32_t pause_one_in = 0;
  std::int64_t row_ranks_per_core = 0;
};

// An executor on the emulated device, with adapters whose host copies are whole. Device pages that have not arrived
// hold NaNs, so that a read of them shows.
class World {
 public:
  using Hook = std::function<void(int worker, std::int32_t layer)>;

  explicit World(const WorldOptions& options = {})
      : device_(gpu::MakeEmulatedDevice({.memory = std::int64_t{256} << 20, .pause_one_in = options.pause_one_in})),
        counting_(*device_),
        config_(Config()),
        host_model_(config_, RandomModelWeights(config_, options.dtype, 1)),
        model_(DeviceModel::Upload(host_model_, *device_).value()),
        geometry_(ChoosePageGeometry(config_, options.dtype, kPageTokens)),
        stream_(device_->CreateStream().value()),
        words_(*device_) {
    const std::int64_t bytes = kPages * geometry_.page_bytes;
    pages_ = PagePool::Create("device", device_->Allocate("pages", bytes).value(), geometry_.page_bytes).value();
    host_ = PagePool::Create("host", device_->AllocatePinned("host", bytes).value(), geometry_.page_bytes).value();
    EXPECT_TRUE(
        model_
            ->Reserve({.max_tokens = 64, .max_sequences = 8, .max_logit_rows = 8, .max_positions = 128, .max_rank = 40})
            .ok());
    GpuExecutorOptions made{.max_copies = 1, .max_batch_tokens = options.max_batch_tokens};
    made.assist = {
        .cores = options.cores, .row_ranks_per_core = options.row_ranks_per_core, .timeout = options.timeout};
    made.assist.before_answer = [this](int worker, std::uint32_t group) {
      const auto layer = static_cast<std::int32_t>(group / 4);
      if (hook) hook(worker, layer);
    };
    executor_ = GpuExecutor::Create(counting_, *model_, geometry_.kv, *pages_, host_->View(), made, [] {}).value();
  }
  ~World() { executor_.reset(); }

  // Registers an adapter: all of it in the host tier, and NaNs on the device.
  int Add(std::int32_t rank, const std::vector<LoraTarget>& targets, std::uint64_t seed) {
    const auto directory = std::filesystem::path(testing::TempDir()) /
                           ("assist_" + std::to_string(::getpid()) + "_" + std::to_string(seed));
    EXPECT_TRUE(WriteRandomAdapter(directory, config_, rank, targets, seed).ok());
    const auto name = "a" + std::to_string(adapters_.size());
    auto adapter = std::make_unique<Adapter>();
    adapter->residency.version = registry_.Register(name, directory, 0).value();
    std::filesystem::remove_all(directory);
    const AdapterLayout& layout = adapter->residency.version->layout;
    std::vector<PageHandle> on_device(static_cast<std::size_t>(layout.pages)), in_host(on_device);
    EXPECT_TRUE(pages_->Allocate(PageCategory::kAdapter, on_device));
    EXPECT_TRUE(host_->Allocate(PageCategory::kAdapter, in_host));
    std::vector<std::byte*> to;
    for (const PageHandle page : in_host) to.push_back(host_->Data(page));
    EXPECT_TRUE(
        PackAdapter(adapter->residency.version->file, layout, to, static_cast<std::size_t>(geometry_.page_bytes)).ok());
    Scale(layout, to);
    adapter->residency.device_pages = on_device;
    adapter->residency.host_pages = in_host;
    adapter->residency.slot = static_cast<std::uint32_t>(adapters_.size());
    adapters_.push_back(std::move(adapter));
    Begin(static_cast<int>(adapters_.size()) - 1);
    return static_cast<int>(adapters_.size()) - 1;
  }
  // Begins the adapter's load anew: nothing is on the device.
  void Begin(int adapter) {
    Adapter& a = *adapters_[static_cast<std::size_t>(adapter)];
    for (const PageHandle page : a.residency.device_pages)
      stream_->Fill(pages_->Data(page), 0xff, static_cast<std::size_t>(geometry_.page_bytes));
    EXPECT_TRUE(stream_->Synchronize().ok());
    a.residency.load_sequence = ++loads_;
    a.word = words_.Take();
    a.progress = std::make_shared<LayerProgress>(kLayers);
    auto events = std::make_unique<Load>(a.word);
    a.load = events.get();
    a.progress->AttachEvents(std::move(events));
    a.arrived = 0;
  }
  // The load ends with an error.
  void Fail(int adapter) { adapters_[static_cast<std::size_t>(adapter)]->progress->Fail(); }
  // Lets layers arrive until there are so many. On any thread.
  void Arrive(int adapter, std::int32_t layers) {
    const std::lock_guard lock(mutex_);
    Adapter& a = *adapters_[static_cast<std::size_t>(adapter)];
    if (layers <= a.arrived) return;
    const auto& ends = a.residency.version->layout.layer_pages;
    const auto first = a.arrived == 0 ? 0 : ends[static_cast<std::size_t>(a.arrived - 1)];
    for (auto i = static_cast<std::size_t>(first);
         i < static_cast<std::size_t>(ends[static_cast<std::size_t>(layers - 1)]); ++i) {
      stream_->CopyToDevice(pages_->Data(a.residency.device_pages[i]), host_->Data(a.residency.host_pages[i]),
                            static_cast<std::size_t>(geometry_.page_bytes));
    }
    a.arrived = layers;
    gpu::PublishLayers(*stream_, {a.word, static_cast<std::uint32_t>(layers)});
    EXPECT_TRUE(stream_->Synchronize().ok());
  }

  Answer Step(const std::vector<Part>& parts, bool assisted) {
    for (std::size_t i = 0; i < parts.size(); ++i) Add(parts[i], i, assisted);
    counting_.Reset();
    executor_->Submit(builder_.Take());
    StepResult result;
    while (!executor_->Poll(result)) std::this_thread::yield();
    EXPECT_FALSE(result.error.has_value()) << result.error->message;
    Answer answer;
    for (const SampledToken& token : result.tokens) {
      answer.tokens.push_back(token.id);
      for (const TokenLogprob& top : token.top_logprobs) answer.logprobs.push_back(top.logprob);
    }
    for (const ScoredToken& token : result.scores) answer.logprobs.push_back(token.logprob);
    answer.failures = result.failures;
    builder_.Recycle(std::move(result.batch));
    return answer;
  }

  CountingDevice& counting() { return counting_; }
  int WaitsOf(int adapter) { return adapters_[static_cast<std::size_t>(adapter)]->load->waits; }
  // Before a worker's answer; layer kLayers is that of logits. Set between steps.
  Hook hook;

 private:
  static constexpr std::int64_t kPages = 512;
  // Random adapters are small: makes the rows so large that they change every answer.
  static void Scale(const AdapterLayout& layout, const std::vector<std::byte*>& pages) {
    for (const ModulePlace& module : layout.modules) {
      const auto scale = [&](const std::vector<RowPlace>& rows, std::int64_t count) {
        for (const RowPlace row : rows) {
          std::byte* const at = pages[row.page] + row.offset;
          for (std::int64_t i = 0; i < count; ++i)
            StoreFromF32(layout.dtype, at, i, 15 * LoadAsF32(layout.dtype, at, i));
        }
      };
      scale(module.a_rows, module.in);
      scale(module.b_rows, module.out);
    }
  }
  struct Adapter {
    AdapterResidency residency;
    std::shared_ptr<LayerProgress> progress;
    std::uint32_t* word = nullptr;
    const Load* load = nullptr;
    std::int32_t arrived = 0;
  };

  void Add(const Part& part, std::size_t index, bool assisted) {
    std::vector<std::uint32_t> table;  // pages of its own, the same in every step
    for (std::uint32_t i = 0; i < 16; ++i)
      table.push_back(static_cast<std::uint32_t>(kPages) - 1 - i * 8 - static_cast<std::uint32_t>(index));
    StepSequence& to = builder_.batch().Add(RequestId{index + 1}, part.tokens, part.position, table);
    to.prompt_tokens = 100;
    if (part.scored) builder_.batch().Score(to, std::span(part.tokens).subspan(1), 0, 0);
    builder_.batch().Sample(to, {.temperature = 0, .top_logprobs = 5}, {});
    if (part.adapter < 0) return;
    const Adapter& adapter = *adapters_[static_cast<std::size_t>(part.adapter)];
    AdapterSegment& segment = builder_.UseAdapter(to, adapter.residency);
    segment.in_host = assisted;
    if (assisted) segment.to_device = adapter.progress;
  }

  std::unique_ptr<gpu::EmulatedDevice> device_;
  CountingDevice counting_;
  ModelConfig config_;
  Model host_model_;
  std::unique_ptr<DeviceModel> model_;
  PageGeometry geometry_;
  std::unique_ptr<DeviceStream> stream_;
  ArrivedWords words_;
  std::unique_ptr<PagePool> pages_, host_;
  AdapterRegistry registry_{
      config_, {"base"}, {.page_bytes = static_cast<std::size_t>(geometry_.page_bytes), .base_dtype = DType::kF32}};
  std::vector<std::unique_ptr<Adapter>> adapters_;
  std::uint64_t loads_ = 0;
  StepBatchBuilder builder_;
  std::mutex mutex_;
  std::unique_ptr<GpuExecutor> executor_;
};

std::vector<TokenId> Tokens(int count, int seed) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((seed * 41 + i * 29) % 300 + 3);
  return tokens;
}

// A prompt of an adapter beside one of the base model, and then a token of each.
std::vector<Part> Prefill(int adapter) {
  return {{.adapter = -1, .tokens = Tokens(5, 1)}, {.adapter = adapter, .tokens = Tokens(21, 2), .scored = true}};
}
std::vector<Part> Decode(int adapter) {
  return {{.adapter = -1, .tokens = Tokens(1, 3), .position = 5},
          {.adapter = adapter, .tokens = Tokens(1, 4), .position = 21}};
}

// The answers with the adapter on the device.
std::vector<Answer> Resident(World& w, int adapter) {
  w.Begin(adapter);
  w.Arrive(adapter, kLayers);
  return {w.Step(Prefill(adapter), false), w.Step(Decode(adapter), false)};
}

TEST(Assist, TheAnswerIsThatOfAResidentAdapter) {
  World w;
  const int adapter = w.Add(12, kAll, 1);
  const std::vector<Answer> expected = Resident(w, adapter);
  w.Begin(adapter);
  std::atomic<int> answers = 0;
  w.hook = [&](int, std::int32_t) { ++answers; };
  EXPECT_EQ(w.Step(Prefill(adapter), true), expected[0]);
  EXPECT_GT(answers, kLayers * 4);
  std::vector<Part> of_base = Prefill(adapter);
  of_base[1].adapter = -1;
  EXPECT_FALSE(w.Step(of_base, false) == expected[0]);  // the adapter matters
  EXPECT_EQ(w.Step(Prefill(adapter), true), expected[0]);
  EXPECT_EQ(w.Step(Decode(adapter), true), expected[1]);
  EXPECT_EQ(w.WaitsOf(adapter), 0);
  w.Arrive(adapter, kLayers);
  answers = 0;
  EXPECT_EQ(w.Step(Prefill(adapter), true), expected[0]);
  EXPECT_EQ(answers, 0);
}

// The layers arrive while the processor computes layer `at`: the device computes the ones after it.
TEST(Assist, ALayerThatHasArrivedIsTheDevices) {
  World w({.pause_one_in = 7});
  const int adapter = w.Add(12, kAll, 1);
  const std::vector<Answer> expected = Resident(w, adapter);
  for (const bool decode : {false, true}) {
    for (std::int32_t at = 0; at <= kLayers; ++at) {
      for (const std::int32_t arriving : {at + 2, kLayers}) {
        if (arriving > kLayers) continue;
        SCOPED_TRACE(testing::Message() << (decode ? "decode" : "prefill") << ", layer " << at << " of " << arriving);
        w.Begin(adapter);
        w.hook = nullptr;
        if (decode) EXPECT_EQ(w.Step(Prefill(adapter), true), expected[0]);
        std::mutex mutex;
        std::map<std::int32_t, int> seen;
        w.hook = [&](int, std::int32_t layer) {
          {
            const std::lock_guard lock(mutex);
            ++seen[std::min(layer, kLayers)];
          }
          if (layer == at) w.Arrive(adapter, arriving);
        };
        EXPECT_EQ(w.Step(decode ? Decode(adapter) : Prefill(adapter), true), expected[decode ? 1 : 0]);
        for (std::int32_t layer = 0; layer <= kLayers; ++layer) {
          const bool by_device = layer > at && std::min(layer + 1, kLayers) <= arriving;
          EXPECT_EQ(seen[layer] == 0, by_device) << layer;
        }
      }
    }
  }
}

TEST(Assist, SeveralColdAdaptersAtOnce) {
  World w;
  std::vector<Part> parts = {{.adapter = -1, .tokens = Tokens(3, 9)}};
  const int ranks[] = {4, 33, 8};
  for (int i = 0; i < 3; ++i) {
    const int adapter = w.Add(ranks[i], i == 2 ? std::vector{LoraTarget::kV, LoraTarget::kDown} : kAll,
                              10 + static_cast<std::uint64_t>(i));
    parts.push_back({.adapter = adapter, .tokens = Tokens(i == 0 ? 1 : 17, 20 + i), .scored = i == 1});
    if (i == 0) parts.push_back({.adapter = adapter, .tokens = Tokens(2, 30)});
    w.Arrive(adapter, kLayers);
  }
  const Answer expected = w.Step(parts, false);
  for (int i = 0; i < 3; ++i) w.Begin(i);
  w.Arrive(1, 2);  // one of them partly
  EXPECT_EQ(w.Step(parts, true), expected);
}

TEST(Assist, In16BitTypesTheAnswerIsWithinTheBar) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    World w({.dtype = dtype});
    const int adapter = w.Add(12, kAll, 1);
    const std::vector<Answer> expected = Resident(w, adapter);
    w.Begin(adapter);
    w.Arrive(adapter, 1);
    for (std::size_t step = 0; step < 2; ++step) {
      const Answer got = w.Step(step == 0 ? Prefill(adapter) : Decode(adapter), true);
      ASSERT_EQ(got.logprobs.size(), expected[step].logprobs.size());
      for (std::size_t i = 0; i < got.logprobs.size(); ++i)
        EXPECT_NEAR(got.logprobs[i], expected[step].logprobs[i], 0.02) << step << " " << i;
    }
  }
}

// The host waits once, for the results, with and without the processor's part.
TEST(Assist, TheHostWaitsForNothingWithinAStep) {
  World w;
  const int adapter = w.Add(12, kAll, 1);
  w.Arrive(adapter, kLayers);
  w.Step(Prefill(adapter), false);
  const std::int64_t resident = std::int64_t{w.counting().counts().synchronisations};
  w.Begin(adapter);
  w.Step(Prefill(adapter), true);  // places the table
  for (int i = 0; i < 2; ++i) {
    w.Step(Prefill(adapter), true);
    EXPECT_EQ(std::int64_t{w.counting().counts().synchronisations}, resident);
    EXPECT_EQ(std::int64_t{w.counting().counts().waits}, 0);
  }
}

// A worker that never comes back, and one that is late: the sequences of its adapter fail, and no others. What it says
// later harms no later step.
TEST(Assist, ALostWorkerFailsItsSequencesAlone) {
  WorldOptions options;
  options.timeout = 300 * kNsPerMs;
  World w(options);
  const int lost = w.Add(12, kAll, 1), other = w.Add(8, kAll, 2);
  w.Arrive(lost, kLayers);
  w.Arrive(other, kLayers);
  const std::vector<Part> parts = {{.adapter = -1, .tokens = Tokens(3, 9)},
                                   {.adapter = lost, .tokens = Tokens(9, 2)},
                                   {.adapter = other, .tokens = Tokens(9, 3)}};
  const Answer expected = w.Step(parts, false);
  w.Begin(lost);
  std::atomic<int> held = 0;
  std::counting_semaphore<> let_go{0};
  w.hook = [&](int, std::int32_t layer) {
    if (layer != 1 || held++ > 0) return;
    let_go.acquire();
  };
  const Answer failed = w.Step({parts[0], parts[1]}, true);
  ASSERT_EQ(failed.failures.size(), 1u);
  EXPECT_EQ(failed.failures[0].sequence, 1);
  EXPECT_EQ(failed.failures[0].error.code, ErrorCode::kInternal);
  EXPECT_EQ(failed.tokens[0], expected.tokens[0]);
  // The other worker goes on alone.
  w.Begin(other);
  w.Begin(lost);
  const Answer without = w.Step(parts, true);
  EXPECT_TRUE(without.failures.empty());
  EXPECT_EQ(without, expected);
  let_go.release();  // late: its answer is of a step that is over
  for (int i = 0; i < 3; ++i) EXPECT_EQ(w.Step(parts, true), expected);
}

// 21 rows are two pieces: one worker has both if a core was measured to keep up with them, else each has one.
TEST(Assist, AsManyWorkersShareASegmentAsTheProfileSays) {
  for (const std::int64_t rows_of_core : {21, 20}) {
    World w({.cores = 4, .row_ranks_per_core = 12 * rows_of_core});
    const int adapter = w.Add(12, kAll, 1);
    std::mutex mutex;
    std::set<int> workers;
    w.hook = [&](int worker, std::int32_t) {
      const std::lock_guard lock(mutex);
      workers.insert(worker);
    };
    w.Step(Prefill(adapter), true);
    EXPECT_EQ(workers.size(), rows_of_core == 21 ? 1u : 2u);
  }
}

// No slots for a whole prompt: the device waits for the load, as it would without the processor.
TEST(Assist, ASegmentWithoutSlotsWaitsForItsLoad) {
  WorldOptions options;
  options.timeout = 100 * kNsPerMs;
  options.cores = 1;
  World w(options);
  const int adapter = w.Add(12, kAll, 1);
  const std::vector<Answer> expected = Resident(w, adapter);
  w.Begin(adapter);
  std::atomic<bool> hold = true;
  std::counting_semaphore<> let_go{0};
  w.hook = [&](int, std::int32_t) {
    if (hold.exchange(false)) let_go.acquire();
  };
  EXPECT_EQ(w.Step(Prefill(adapter), true).failures.size(), 1u);
  w.Arrive(adapter, kLayers);  // in truth while the stream waits; Load has no events
  EXPECT_EQ(w.Step(Prefill(adapter), true), expected[0]);
  EXPECT_GT(w.WaitsOf(adapter), 0);
  w.Fail(adapter);  // what the device computed with is no adapter
  EXPECT_EQ(w.Step(Prefill(adapter), true).failures.size(), 1u);
  let_go.release();
}

TEST(Assist, WithoutPinnedMemoryTheErrorSaysWhatToDo) {
  const auto device = gpu::MakeEmulatedDevice({});
  const Model host(Config(), RandomModelWeights(Config(), DType::kF32, 1));
  const auto model = DeviceModel::Upload(host, *device).value();
  const PageGeometry geometry = ChoosePageGeometry(Config(), DType::kF32, kPageTokens);
  const auto pages =
      PagePool::Create("device", device->Allocate("pages", geometry.page_bytes).value(), geometry.page_bytes).value();
  device->FailAllocationAfter(2);  // the executor's own
  const auto executor = GpuExecutor::Create(*device, *model, geometry.kv, *pages, {},
                                            {.max_copies = 1, .max_batch_tokens = 64, .assist = {.cores = 1}}, [] {});
  ASSERT_FALSE(executor.ok());
  EXPECT_EQ(executor.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(executor.error().message.find("--cold-start wait"), std::string::npos) << executor.error().message;
}

}  // namespace
}  // namespace loramux::assist_test
