// The forward pass on the emulated device against transformers + PEFT: the cases of golden_test.cc, all runs of a case
// in one batch.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <gmock/gmock.h>

#include "adapter/class_numbers.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/open_device.h"
#include "memory/page_geometry.h"
#include "model/device_adapters_for_test.h"
#include "model/device_model.h"
#include "model/step_for_test.h"
#include "tests/golden_case.h"

namespace loramux::golden_device_test {
namespace {

using golden::ArgMax;
using golden::GoldenRun;
using golden::RelativeError;

// A run being computed.
struct Request {
  const GoldenRun* run = nullptr;
  const DeviceLoraView* adapter = nullptr;
  std::vector<TokenId> tokens;
  std::vector<std::uint32_t> pages;
  std::int64_t position = 0;
};

class GoldenDeviceTest : public ::testing::TestWithParam<std::string> {
 protected:
  virtual golden::GoldenCase Golden() const { return golden::LoadCase(GetParam()); }

  void SetUp() override {
    golden_ = Golden();
    device_ =
        gpu::OpenDevice("emulated", {.memory = std::int64_t{512} << 20, .batch_invariant = batch_invariant_}).value();
    stream_ = device_->CreateStream().value();
    auto loaded = DeviceModel::Load(golden_.model_directory, *device_,
                                    {.added_tokens = golden_.model->config().added_tokens}, nullptr);
    const ModelConfig& config = golden_.model->config();
    if (const std::string refusal = RefusalOf(config); !refusal.empty()) {
      ASSERT_FALSE(loaded.ok());
      ASSERT_THAT(loaded.error().message, testing::HasSubstr(refusal));
      GTEST_SKIP() << "refused by name";
    }
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    model_ = std::move(loaded).value();
    const ModelConfig& c = model_->config();
    layout_ = KvLayoutOf(c, /*page_tokens=*/8, DType::kF32);
    adapters_ = std::make_unique<DeviceAdaptersForTest>(*device_, *stream_, c);
    std::map<const LoraView*, const DeviceLoraView*> copies = {{nullptr, nullptr}};
    for (const GoldenRun& run : golden_.runs) {
      if (!copies.contains(run.adapter)) copies[run.adapter] = adapters_->Copy(*run.adapter);
      Add(run, copies[run.adapter], requests_);
    }
    for (const golden::HeadRun& run : golden_.head_runs) {
      Add(run.run, adapters_->Copy(*run.run.adapter), with_heads_);
    }
    arena_ = device_->Allocate("pages", static_cast<std::int64_t>(layout_.PageBytes()) * pages_).value();
    stream_->Fill(arena_->base(), 0xff, static_cast<std::size_t>(arena_->size()));
  }

  // What the refusal of a model that a device does not compute says; empty: it computes the model.
  static std::string RefusalOf(const ModelConfig& config) {
    const bool beside = config.recurrent && config.recurrent->beside_attention;
    if (config.other_heads || beside || !config.layer_parts.empty())
      return std::string("does not compute models of family ") + ModelFamilyName(config.family);
    if (!config.experts || config.experts->intermediate_size % 8 == 0) return {};
    return "an intermediate size that is a multiple of 8, but the model has " +
           std::to_string(config.experts->intermediate_size);
  }

  void Add(const GoldenRun& run, const DeviceLoraView* adapter, std::vector<Request>& to) {
    to.push_back({&run, adapter, run.prompt});
    const auto length = static_cast<std::int64_t>(run.prompt.size() + run.greedy.size());
    for (std::int64_t page = 0; page < layout_.PagesFor(length); ++page) to.back().pages.push_back(pages_++);
  }

  // The next step of all requests. Returns the logits of the last rows of each, `rows_of` a request.
  template <typename RowsOf>
  std::vector<float> Step(const RowsOf& rows_of) {
    StepForTest<DeviceLoraView> step;
    for (Request& request : requests_) {
      step.Add(std::span(request.tokens).subspan(static_cast<std::size_t>(request.position)), request.position,
               request.pages, request.adapter, rows_of(request), static_cast<std::int64_t>(request.run->prompt.size()));
      request.position = static_cast<std::int64_t>(request.tokens.size());
    }
    Compute(step);
    std::vector<float> logits;
    EXPECT_TRUE(model_->CopyLogits(*stream_, logits).ok());
    return logits;
  }

  // The errors of the rows of the first step, in ascending order.
  std::vector<double> ErrorsOf(std::span<const float> logits) const {
    std::vector<double> errors;
    for (const Request& request : requests_) {
      for (std::span<const float> expected = request.run->logits; !expected.empty();) {
        errors.push_back(RelativeError(logits.first(Vocabulary()), expected.first(Vocabulary())));
        expected = expected.subspan(Vocabulary());
        logits = logits.subspan(Vocabulary());
      }
    }
    EXPECT_TRUE(logits.empty());
    std::ranges::sort(errors);
    return errors;
  }

  StepResult Compute(const StepForTest<DeviceLoraView>& step) {
    StepResult result;
    const Status done =
        model_->Forward({*stream_, layout_, {arena_->base(), layout_.PageBytes()}}, step.batch, step.adapters, result);
    EXPECT_TRUE(done.ok()) << done.error().message;
    return result;
  }

  std::size_t Vocabulary() const { return static_cast<std::size_t>(model_->config().vocab_size); }

  bool batch_invariant_ = false;
  golden::GoldenCase golden_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceModel> model_;
  std::unique_ptr<DeviceAdaptersForTest> adapters_;
  std::unique_ptr<Arena> arena_;
  KvLayout layout_;
  std::uint32_t pages_ = 0;
  std::vector<Request> requests_, with_heads_;
};

TEST_P(GoldenDeviceTest, MatchesTransformers) {
  std::vector<float> logits = Step([](const Request& request) { return request.run->num_logit_rows; });
  const std::vector<double> errors = ErrorsOf(logits);
  const double median = errors[errors.size() / 2], largest = errors.back();
  SCOPED_TRACE("median " + std::to_string(median) + ", largest " + std::to_string(largest));
  if (model_->dtype() != DType::kF32) {  // what goes into products is rounded; random weights make the most of it
    EXPECT_LE(median, 6e-3);
    EXPECT_LE(largest, 3e-2);
    return;
  }
  EXPECT_LE(largest, 2e-5);
  for (Request& request : requests_) request.tokens.push_back(request.run->greedy[0]);
  for (std::size_t step = 1; step < requests_[0].run->greedy.size(); ++step) {
    logits = Step([](const Request&) { return 1; });
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const TokenId expected = requests_[i].run->greedy[step];
      ASSERT_EQ(ArgMax(std::span(logits).subspan(i * Vocabulary(), Vocabulary())), expected)
          << requests_[i].run->name << ", generated token " << step;
      requests_[i].tokens.push_back(expected);
    }
  }
}

class GoldenDeviceTestOfHeads : public GoldenDeviceTest {};

// The prompts of adapters with heads in one batch with those of all other adapters.
TEST_P(GoldenDeviceTestOfHeads, MatchesTransformers) {
  StepForTest<DeviceLoraView> step;
  for (std::size_t i = 0; i < requests_.size() || i < with_heads_.size(); ++i) {
    for (const auto* of : {&requests_, &with_heads_}) {
      if (i >= of->size()) continue;
      const Request& request = (*of)[i];
      step.Add(request.tokens, 0, request.pages, request.adapter, 0,
               static_cast<std::int64_t>(request.run->prompt.size()));
      if (of == &with_heads_) step.batch.pools.Add(static_cast<std::int64_t>(step.batch.tokens.size()) - 1, 1, {});
    }
  }
  const std::vector<double> pooled = Compute(step).pooled;
  const std::size_t hidden = pooled.size() / with_heads_.size();
  for (std::size_t i = 0; i < with_heads_.size(); ++i) {
    const golden::HeadRun& run = golden_.head_runs[i];
    const auto first = pooled.begin() + static_cast<std::ptrdiff_t>(i * hidden);
    const std::vector<float> state(first, first + static_cast<std::ptrdiff_t>(hidden));
    const std::vector<float> numbers = ClassNumbers(*run.head, state);
    if (model_->dtype() == DType::kF32) {
      EXPECT_LE(golden::LargestDifference(numbers, run.numbers), 2e-5) << run.run.name;
    } else {
      EXPECT_LE(RelativeError(numbers, run.numbers), 3e-2) << run.run.name;
    }
  }
}

// Models with recurrent layers, on a device whose products do not depend on the batch.
class GoldenDeviceTestOfStates : public GoldenDeviceTest {
 protected:
  GoldenDeviceTestOfStates() { batch_invariant_ = true; }

  // Computes prompts in steps of all requests, `chunk` tokens of each at most, or whole ones one by one. `after`:
  // called after each step. Returns the logits of each prompt's last token.
  template <typename After>
  std::vector<std::vector<float>> Prompts(std::size_t chunk, bool together, const After& after) {
    std::vector<std::vector<float>> logits(requests_.size());
    for (std::size_t first = 0; first < requests_.size(); first += together ? requests_.size() : 1) {
      const std::size_t end = together ? requests_.size() : first + 1;
      for (Request& request : requests_) request.position = 0;
      for (bool more = true; more;) {
        more = false;
        StepForTest<DeviceLoraView> step;
        std::vector<std::size_t> ended;
        for (std::size_t i = first; i < end; ++i) {
          Request& request = requests_[i];
          const auto done = static_cast<std::size_t>(request.position);
          const std::size_t count = std::min(chunk, request.tokens.size() - done);
          if (count == 0) continue;
          const bool ends = done + count == request.tokens.size();
          step.Add(std::span(request.tokens).subspan(done, count), request.position, request.pages, request.adapter,
                   ends, static_cast<std::int64_t>(request.run->prompt.size()));
          request.position += static_cast<std::int64_t>(count);
          if (ends) ended.push_back(i);
          more |= !ends;
        }
        Compute(step);
        std::vector<float> of_step;
        EXPECT_TRUE(model_->CopyLogits(*stream_, of_step).ok());
        for (std::size_t i = 0; i < ended.size(); ++i) {
          const auto from = of_step.begin() + static_cast<std::ptrdiff_t>(i * Vocabulary());
          logits[ended[i]].assign(from, from + static_cast<std::ptrdiff_t>(Vocabulary()));
        }
        after();
      }
    }
    return logits;
  }

  // Copies the states of all requests to the pages of another place, where they go on: as from a snapshot.
  void MoveStates(std::uint32_t by) {
    std::vector<std::uint32_t> pairs;
    for (Request& request : requests_) {
      for (std::int64_t page = 0; page < layout_.state_pages; ++page) {
        std::uint32_t& index = request.pages[static_cast<std::size_t>(page)];
        pairs.insert(pairs.end(), {index, (index + by) % (2 * by)});
        index = pairs.back();
      }
    }
    const auto bytes = static_cast<std::int64_t>(pairs.size() * sizeof(pairs[0]));
    const auto pinned = device_->AllocatePinned("pairs", bytes).value(), to = device_->Allocate("pairs", bytes).value();
    std::memcpy(pinned->base(), pairs.data(), static_cast<std::size_t>(bytes));
    stream_->CopyToDevice(to->base(), pinned->base(), static_cast<std::size_t>(bytes));
    gpu::CopyPages(*stream_, static_cast<std::int64_t>(pairs.size() / 2),
                   {.base = arena_->base(),
                    .page_stride = static_cast<std::int64_t>(layout_.PageBytes()),
                    .page_bytes = static_cast<std::int64_t>(layout_.PageBytes()),
                    .pairs = reinterpret_cast<const std::uint32_t*>(to->base())});
    ASSERT_TRUE(stream_->Synchronize().ok());
  }
};

TEST_P(GoldenDeviceTestOfStates, NeitherCutsNorTheBatchNorSnapshotsChangeABit) {
  ASSERT_GT(layout_.state_pages, 0);
  const std::uint32_t pages = pages_;
  ASSERT_TRUE(stream_->Synchronize().ok());  // the pages of the other tests are filled
  arena_ = device_->Allocate("pages", static_cast<std::int64_t>(layout_.PageBytes()) * 2 * pages).value();
  stream_->Fill(arena_->base(), 0xff, static_cast<std::size_t>(arena_->size()));
  std::int64_t tokens = 0, longest = 0;
  for (const Request& request : requests_) {
    tokens += static_cast<std::int64_t>(request.tokens.size());
    longest = std::max(longest, static_cast<std::int64_t>(request.pages.size()) * layout_.page_tokens);
  }
  const auto count = static_cast<std::int64_t>(requests_.size());
  ASSERT_TRUE(model_
                  ->Reserve({.max_tokens = tokens,
                             .max_sequences = count,
                             .max_logit_rows = count,
                             .max_positions = longest,
                             .max_rank = 16,
                             .page_tokens = layout_.page_tokens,
                             .state_pages = layout_.state_pages})
                  .ok());
  const std::int64_t free = device_->FreeMemory();
  const auto alone = Prompts(1000, /*together=*/false, [] {});
  for (const std::vector<float>& logits : alone) ASSERT_EQ(logits.size(), Vocabulary());
  EXPECT_EQ(Prompts(1000, true, [] {}), alone);
  EXPECT_EQ(Prompts(3, true, [] {}), alone);
  EXPECT_EQ(Prompts(7, true, [&] { MoveStates(pages); }), alone);
  EXPECT_EQ(device_->FreeMemory(), free);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenDeviceTestOfStates,
                         ::testing::Values("qwen3_5", "granite_hybrid", "granite_hybrid_moe"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Models, GoldenDeviceTest, ::testing::ValuesIn(golden::CaseNames()),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Models, GoldenDeviceTestOfHeads, ::testing::ValuesIn(golden::NamesOfCasesWithHeads()),
                         [](const auto& info) { return info.param; });

// ---- quantised models

std::filesystem::path QuantisedModels() {
  return std::filesystem::path(LORAMUX_SOURCE_DIR) / "tests" / "golden" / "quantised" / "models";
}

class GoldenDeviceTestOfQuantised : public GoldenDeviceTest {
 protected:
  golden::GoldenCase Golden() const override {
    return golden::LoadCase(QuantisedModels() / GetParam(), {.layers = WeightFormat::kF32});
  }
};

// The device keeps their codes. Scales of 16 bits round what is not stored so.
TEST_P(GoldenDeviceTestOfQuantised, MatchesTransformers) {
  const std::map<std::string, WeightFormat> formats = {{"awq", WeightFormat::kQ4},
                                                       {"compressed_int8", WeightFormat::kQ8},
                                                       {"compressed_mxfp4", WeightFormat::kMx4},
                                                       {"compressed_nvfp4", WeightFormat::kF32},
                                                       {"fp8_block", WeightFormat::kF8},
                                                       {"gptq", WeightFormat::kQ4},
                                                       {"nf4_nested", WeightFormat::kF32}};
  const DeviceWeights& weights = model_->weights();
  for (const DeviceWeights::Layer& layer : weights.layers)
    for (const DeviceMatrix* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      EXPECT_EQ(matrix->format(), formats.at(GetParam()));
  const bool widened = formats.at(GetParam()) == WeightFormat::kF32;
  EXPECT_EQ(weights.widened.size(), widened ? 7 * weights.layers.size() : 0u);
  ASSERT_EQ(model_->dtype(), DType::kF32);  // as lm_head
  const std::vector<float> logits = Step([](const Request& request) { return request.run->num_logit_rows; });
  const bool rounds = GetParam() == "awq" || GetParam() == "compressed_int8";
  EXPECT_LE(ErrorsOf(logits).back(), rounds ? 4e-3 : 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenDeviceTestOfQuantised, ::testing::ValuesIn(golden::CaseNames(QuantisedModels())),
                         [](const auto& info) { return info.param; });

// ---- the demo model

const std::filesystem::path kDemo = std::filesystem::path(LORAMUX_SOURCE_DIR) / "demo";

// The first questions that an adapter was tested with, with their answers, as the model's template writes them.
std::vector<std::vector<TokenId>> Conversations(const std::string& adapter, std::size_t count) {
  std::vector<std::vector<TokenId>> conversations;
  std::ifstream lines(kDemo / "eval" / (adapter + ".jsonl"));
  for (std::string line; conversations.size() < count && std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    std::vector<TokenId>& tokens = conversations.emplace_back(std::vector<TokenId>{1, 4});  // <|bos|><|user|>
    const auto add_bytes = [&](const std::string& text) {
      for (const char byte : text) tokens.push_back(static_cast<TokenId>(static_cast<unsigned char>(byte)) + 8);
    };
    add_bytes(json["prompt"]);
    tokens.insert(tokens.end(), {2, 5});  // <|end|><|assistant|>
    add_bytes(json["answer"]);
  }
  return conversations;
}

// The logits of all rows of a batch.
struct DemoLogits {
  std::vector<float> host, device;
  std::size_t vocab = 0;
};

// Twenty conversations, four of each adapter and of the base model, in one batch on the CPU and on the device.
class DemoModelOnDevice : public ::testing::Test {
 protected:
  DemoModelOnDevice() {
    for (const char* const name : {"upper", "reverse", "sort", "rot13"}) {
      const AdapterFile file = golden::Value(OpenAdapter(kDemo / "adapters" / name, host_->config()));
      adapters_.push_back(std::make_unique<golden::ResidentAdapter>(file, host_->config()));
      const LoraView* const view = &adapters_.back()->view();
      AddConversations(name, view, on_device_.Copy(*view));
    }
    AddConversations("base", nullptr, nullptr);
  }

  void AddConversations(const std::string& name, const LoraView* view, const DeviceLoraView* copy) {
    for (auto& tokens : Conversations(name, 4)) {
      tokens_.push_back(std::move(tokens));
      const auto size = static_cast<std::int32_t>(tokens_.back().size());
      std::vector<std::uint32_t>& pages = pages_.emplace_back();
      for (std::int64_t page = 0; page < layout_.PagesFor(size); ++page) pages.push_back(num_pages_++);
      step_.Add(tokens_.back(), 0, pages, view, size);
      device_step_.Add(tokens_.back(), 0, pages, copy, size);
    }
  }

  // The logits of another model on the device.
  std::vector<float> LogitsOf(std::unique_ptr<DeviceModel> model) {
    model_ = std::move(model);
    return Compute().device;
  }

  DemoLogits Compute() {
    const auto bytes = static_cast<std::int64_t>(layout_.PageBytes()) * num_pages_;
    AlignedBuffer<std::byte> pages(bytes);
    const auto device_pages = device_->Allocate("pages", bytes).value();
    ThreadPool threads(2);
    StepResult result;
    host_->Forward({{Backend::kCpu, &threads}, layout_, {pages.data(), layout_.PageBytes()}}, step_.batch,
                   step_.adapters, result);
    DemoLogits logits = {{host_->logits().begin(), host_->logits().end()}, {}, 0};
    const PageArena arena = {device_pages->base(), layout_.PageBytes()};
    EXPECT_TRUE(model_->Forward({*stream_, layout_, arena}, device_step_.batch, device_step_.adapters, result).ok());
    EXPECT_TRUE(model_->CopyLogits(*stream_, logits.device).ok());
    logits.vocab = static_cast<std::size_t>(host_->config().vocab_size);
    return logits;
  }

  std::unique_ptr<Model> host_ = golden::Value(Model::Load(kDemo / "model", {}, nullptr));
  std::unique_ptr<Device> device_ = gpu::OpenDevice("emulated", {}).value();
  std::unique_ptr<DeviceStream> stream_ = device_->CreateStream().value();
  std::unique_ptr<DeviceModel> model_ = DeviceModel::Load(kDemo / "model", *device_, {}, nullptr).value();
  KvLayout layout_ = {host_->config().num_layers, host_->config().num_kv_heads, host_->config().head_dim, 16,
                      DType::kBF16};
  DeviceAdaptersForTest on_device_{*device_, *stream_, host_->config()};
  std::vector<std::unique_ptr<golden::ResidentAdapter>> adapters_;
  std::vector<std::vector<TokenId>> tokens_;  // moved, but their elements stay where they are
  std::vector<std::vector<std::uint32_t>> pages_;
  std::uint32_t num_pages_ = 0;
  StepForTest<LoraView> step_;
  StepForTest<DeviceLoraView> device_step_;
};

// A trained model in bfloat16 with adapters of several ranks, against the CPU, which computes in float32.
TEST_F(DemoModelOnDevice, IsNearTheCpus) {
  ASSERT_EQ(model_->dtype(), DType::kBF16);
  ASSERT_EQ(step_.batch.sequences.size(), 20u);
  const DemoLogits logits = Compute();
  ASSERT_EQ(logits.device.size(), logits.host.size());
  std::vector<double> errors;
  std::size_t other = 0;
  for (std::size_t first = 0; first < logits.host.size(); first += logits.vocab) {
    const auto expected = std::span(logits.host).subspan(first, logits.vocab);
    const auto found = std::span(logits.device).subspan(first, logits.vocab);
    errors.push_back(RelativeError(found, expected));
    const auto best = static_cast<std::size_t>(ArgMax(expected)), chosen = static_cast<std::size_t>(ArgMax(found));
    if (best == chosen) continue;
    ++other;
    EXPECT_LE(expected[best] - expected[chosen], 2 * golden::LargestDifference(found, expected));
  }
  std::ranges::sort(errors);
  EXPECT_LE(errors[errors.size() / 2], 5e-3);
  EXPECT_LE(errors.back(), 3e-2);
  EXPECT_LE(other * 50, errors.size());
}

TEST(DemoModelThatDoesNotFit, SaysWhatWould) {
  const auto device = gpu::OpenDevice("emulated", {.memory = std::int64_t{1} << 20}).value();
  const auto model = DeviceModel::Load(kDemo / "model", *device, {}, nullptr);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(model.error().message, testing::HasSubstr("; --weights q8 takes "));
}

// While they are read, weights are rounded as on the CPU: what the device reads from files has the bits of what is
// copied to it.
TEST_F(DemoModelOnDevice, RoundsWeightsAsTheCpu) {
  const DemoLogits exact = Compute();
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    SCOPED_TRACE(WeightFormatName(format));
    const WeightOptions options = {.layers = format};
    const auto host = golden::Value(Model::Load(kDemo / "model", options, nullptr));
    const std::vector<float> copied = LogitsOf(DeviceModel::Upload(*host, *device_).value());
    EXPECT_EQ(model_->weights().lm_head.format(), WeightFormat::kQ8);
    const std::vector<float> read = LogitsOf(DeviceModel::Load(kDemo / "model", *device_, options, nullptr).value());
    EXPECT_EQ(model_->weights().layers[0].qkv.format(), format);
    EXPECT_EQ(read, copied);
    std::vector<double> errors;
    for (std::size_t first = 0; first < read.size(); first += exact.vocab) {
      errors.push_back(RelativeError(std::span(read).subspan(first, exact.vocab),
                                     std::span(exact.host).subspan(first, exact.vocab)));
    }
    std::ranges::sort(errors);
    EXPECT_LE(errors[errors.size() / 2], format == WeightFormat::kQ8 ? 2e-2 : 2e-1);
  }
}

}  // namespace
}  // namespace loramux::golden_device_test
