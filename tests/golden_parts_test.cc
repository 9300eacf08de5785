// The parts of a model on several ranks against the model in one process: the same logits and embeddings, bit for bit,
// of every family, with adapters laid out and packed as servers do.
#include <cstring>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "adapter/layout.h"
#include "collective/thread_group.h"
#include "formats/model_part.h"
#include "memory/page_geometry.h"
#include "model/model.h"
#include "model/step_for_test.h"
#include "runtime/lora_view_builder.h"
#include "tensor/aligned_buffer.h"
#include "tests/golden_case.h"

namespace loramux::golden_parts_test {
namespace {

using golden::CasesDirectory;
using golden::Value;

constexpr TimeNs kWaitLimit = 120 * kNsPerSecond;

WeightOptions OptionsOf(const std::string& name, const ModelPart& part, std::optional<WeightFormat> layers) {
  const std::filesystem::path directory = CasesDirectory() / name;
  const auto json = nlohmann::json::parse(std::ifstream(directory / "case.json"));
  WeightOptions options;
  if (!Value(LoadModelConfig(directory / "model")).quantization.empty()) options.layers = WeightFormat::kF32;
  if (layers) options.layers = layers;
  options.added_tokens = json["model"].value("added_tokens", std::int64_t{0});
  options.part = part;
  return options;
}

// An adapter in pages of its own.
struct PagedAdapter {
  AdapterFile file;
  AdapterLayout layout;
  AlignedBuffer<std::byte> memory;
  LoraViewBuilder::Built built;
};

// One rank with its part of the model, of adapters and of keys and values; or the whole.
class Rank {
 public:
  Rank(const std::string& name, const ModelPart& part, Collectives* group, std::optional<WeightFormat> layers = {})
      : directory_(CasesDirectory() / name),
        group_(group),
        model_(Value(Model::Load(directory_ / "model", OptionsOf(name, part, layers), nullptr))),
        layout_(KvLayoutOf(model_->own_config(), 8, DType::kBF16)),
        stride_((layout_.PageBytes() + 63) / 64 * 64),
        memory_(static_cast<std::int64_t>(stride_) * kPages) {
    const auto json = nlohmann::json::parse(std::ifstream(directory_ / "case.json"));
    for (const auto& adapter : json["adapters"]) Load(adapter["name"], adapter["dir"]);
    for (const auto& item : json["runs"]) {
      const std::string adapter = item["adapter"].is_null() ? "" : std::string(item["adapter"]);
      if (!adapter.empty() && !adapters_.contains(adapter)) continue;  // refused
      runs_.emplace_back(adapter, std::vector<TokenId>(item["prompt_ids"]));
    }
    std::ranges::stable_sort(runs_, {}, [](const auto& run) { return run.first; });
  }

  const Model& model() const { return *model_; }
  const std::map<std::string, std::unique_ptr<PagedAdapter>>& adapters() const { return adapters_; }
  // Leaves out the runs of adapters that `other` does not have.
  void KeepRunsOf(const Rank& other) {
    std::erase_if(runs_, [&](const auto& run) { return !run.first.empty() && !other.adapters_.contains(run.first); });
  }

  // All runs in one batch, their prompts in two steps; the logits of the second, and the sums of its hidden states.
  std::vector<float> Compute(StepResult& result, bool with_adapters = true) {
    for (const bool rest : {false, true}) {
      StepForTest<LoraView> step;
      std::uint32_t next_page = 0;
      for (const auto& [adapter, prompt] : runs_) {
        const auto size = static_cast<std::int64_t>(prompt.size()), half = size / 2;
        std::vector<std::uint32_t> pages;
        for (std::int64_t i = 0; i < layout_.PagesFor(size); ++i) pages.push_back(next_page++);
        CHECK_LE(next_page, kPages);
        const std::int64_t begin = rest ? half : 0, count = rest ? size - half : half;
        if (count == 0) continue;
        const bool adapts = with_adapters && !adapter.empty();
        const LoraView* const view = adapts ? &adapters_.at(adapter)->built.view : nullptr;
        if (rest) step.batch.pools.Add(static_cast<std::int64_t>(step.batch.tokens.size()), count, {});
        step.Add({prompt.data() + begin, static_cast<std::size_t>(count)}, begin, pages, view, rest ? count : 0, size);
      }
      result = {};
      model_->Forward({{Backend::kCpu, &threads_}, layout_, {memory_.data(), stride_}, LoraVariant::kMbgmv, group_},
                      step.batch, step.adapters, result);
      CHECK(!result.error);
    }
    if (!model_->part().whole() && model_->part().rank > 0) return {};
    const auto logits = model_->logits();
    return {logits.begin(), logits.end()};
  }

 private:
  static constexpr std::uint32_t kPages = 1200;
  static constexpr std::size_t kPageBytes = 8192;

  void Load(const std::string& name, const std::string& dir) {
    auto adapter = std::make_unique<PagedAdapter>();
    adapter->file = Value(OpenAdapter(directory_ / dir, model_->config()));
    const DType dtype = ChooseAdapterDType(adapter->file, DType::kF32);
    auto layout = LayoutAdapter(adapter->file, dtype, kPageBytes, model_->config(), model_->part());
    if (!layout.ok()) {
      EXPECT_EQ(layout.error().code, ErrorCode::kUnsupported) << layout.error().message;
      return;
    }
    if (model_->part().whole()) {  // of what parts refuse
      const BaseMatrices base = BaseMatricesOf(*model_);
      CHECK(SelectOwnRows(base, adapter->file).ok() && ComputeVectors(base, adapter->file).ok());
      layout = LayoutAdapter(adapter->file, dtype, kPageBytes);
    }
    adapter->layout = Value(std::move(layout));
    adapter->memory = AlignedBuffer<std::byte>(adapter->layout.pages * static_cast<std::int64_t>(kPageBytes));
    PageSet pages;
    std::vector<std::byte*> addresses;
    for (std::int64_t page = 0; page < adapter->layout.pages; ++page) {
      pages.pages.push_back(static_cast<std::uint32_t>(page));
      addresses.push_back(adapter->memory.data() + static_cast<std::size_t>(page) * kPageBytes);
    }
    const Status packed = PackAdapter(adapter->file, adapter->layout, addresses, kPageBytes);
    CHECK(packed.ok());
    LoraViewBuilder({adapter->memory.data(), kPageBytes}, model_->config().num_layers)
        .Build(adapter->layout, pages, adapter->built);
    adapters_[name] = std::move(adapter);
  }

  const std::filesystem::path directory_;
  Collectives* const group_;
  std::unique_ptr<Model> model_;
  KvLayout layout_;
  std::size_t stride_;
  AlignedBuffer<std::byte> memory_;
  ThreadPool threads_{1};
  std::map<std::string, std::unique_ptr<PagedAdapter>> adapters_;
  std::vector<std::pair<std::string, std::vector<TokenId>>> runs_;
};

class GoldenPartsTest : public ::testing::TestWithParam<std::string> {};

void ExpectSameAsWhole(const std::string& name, Rank& whole, std::int64_t ranks,
                       std::optional<WeightFormat> layers = {}) {
  auto ends = MakeThreadGroup(ranks, kWaitLimit);
  std::vector<std::unique_ptr<Rank>> parts;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    parts.push_back(
        std::make_unique<Rank>(name, ModelPart{rank, ranks}, ends[static_cast<std::size_t>(rank)].get(), layers));
    ASSERT_LT(WeightBytes(parts.back()->model().weights()), WeightBytes(whole.model().weights()));
  }
  whole.KeepRunsOf(*parts.front());
  StepResult of_whole;
  const std::vector<float> expected = whole.Compute(of_whole);
  std::vector<std::thread> threads;
  for (std::size_t rank = 1; rank < parts.size(); ++rank) {
    threads.emplace_back([&, rank] {
      StepResult ignored;
      parts[rank]->Compute(ignored);
    });
  }
  StepResult result;
  const std::vector<float> found = parts.front()->Compute(result);
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_GT(found.size(), 0u);
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0)
      << golden::LargestDifference(found, expected);
  EXPECT_EQ(result.pooled, of_whole.pooled);
  for (const auto& [adapter, of_first] : parts.front()->adapters()) {
    for (const auto& part : parts) {
      ASSERT_EQ(part->adapters().at(adapter)->layout.pages, of_first->layout.pages);
      ASSERT_EQ(part->adapters().at(adapter)->layout.layer_pages, of_first->layout.layer_pages);
    }
  }
}

TEST_P(GoldenPartsTest, AreBitwiseTheWhole) {
  Rank whole(GetParam(), {}, nullptr);
  bool shared = false;
  for (const std::int64_t ranks : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const Status possible = CheckParts(whole.model().config(), ranks);
    if (!possible.ok()) {
      EXPECT_EQ(possible.error().code, ErrorCode::kUnsupported);
      EXPECT_NE(possible.error().message.find("expected"), std::string::npos) << possible.error().message;
      const auto refused =
          Model::Load(CasesDirectory() / GetParam() / "model", OptionsOf(GetParam(), {0, ranks}, {}), {});
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().message, possible.error().message);
      continue;
    }
    shared = true;
    ASSERT_NO_FATAL_FAILURE(ExpectSameAsWhole(GetParam(), whole, ranks));
  }
  if (!shared) GTEST_SKIP() << "its ranks cannot share it: recurrent layers, or too few heads";
}

// The ranks exchange as many bytes with adapters as without.
TEST(GoldenPartsTestOfBytes, AdaptersAddNoExchange) {
  auto ends = MakeThreadGroup(2, kWaitLimit);
  Rank first("llama2", {0, 2}, ends[0].get()), second("llama2", {1, 2}, ends[1].get());
  ASSERT_FALSE(first.adapters().empty());
  std::vector<std::int64_t> bytes;
  for (const bool with_adapters : {false, true}) {
    std::thread other([&] {
      StepResult ignored;
      second.Compute(ignored, with_adapters);
    });
    StepResult result;
    first.Compute(result, with_adapters);
    other.join();
    bytes.push_back(ends[0]->step_bytes());
  }
  EXPECT_GT(bytes[0], 0);
  EXPECT_EQ(bytes[1], 2 * bytes[0]);
}

// Products with integers, of rows that begin within a panel of the whole matrix too.
TEST(GoldenQuantisedPartsTest, AreBitwiseTheWhole) {
  for (const WeightFormat layers : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    for (const std::string name : {"llama2", "llama_bf16", "gpt_oss_mxfp4"}) {
      SCOPED_TRACE(name);
      Rank whole(name, {}, nullptr, layers);
      for (const std::int64_t ranks : {2, 4}) ExpectSameAsWhole(name, whole, ranks, layers);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenPartsTest, ::testing::ValuesIn(golden::CaseNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace loramux::golden_parts_test
