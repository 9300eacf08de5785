// Models in the formats in which quantised models are published, beside transformers and PEFT on their values as floats
// (tests/golden/README.md).
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/thread_pool.h"
#include "model/step_for_test.h"
#include "tests/golden_case.h"

namespace loramux::golden_quantised_test {
namespace {

using namespace golden;

fs::path ModelsDirectory() { return fs::path(LORAMUX_SOURCE_DIR) / "tests" / "golden" / "quantised" / "models"; }

class QuantisedModel : public testing::TestWithParam<std::string> {
 protected:
  static GoldenCase Load(std::optional<WeightFormat> layers) {
    return LoadCase(ModelsDirectory() / GetParam(), {.layers = layers, .embeddings = layers});
  }

  // The logits of the prompt's last rows.
  std::span<const float> Logits(GoldenCase& golden, const GoldenRun& run, Backend backend) {
    constexpr std::int64_t kPages = 64;
    const ModelConfig& config = golden.model->config();
    const KvLayout layout{config.num_layers, config.num_kv_heads, config.head_dim, /*page_tokens=*/8, DType::kF32};
    AlignedBuffer<std::byte> memory(kPages * static_cast<std::int64_t>(layout.PageBytes()));
    std::vector<std::uint32_t> pages(kPages);
    for (std::uint32_t i = 0; i < kPages; ++i) pages[i] = i;
    StepForTest<LoraView> step;
    step.Add(run.prompt, 0, pages, run.adapter, run.num_logit_rows, static_cast<std::int64_t>(run.prompt.size()));
    StepResult result;
    golden.model->Forward({{backend, &threads_}, layout, {memory.data(), layout.PageBytes()}}, step.batch,
                          step.adapters, result);
    return golden.model->logits();
  }

  ThreadPool threads_{2};
};

TEST_P(QuantisedModel, InFloatsTheLogitsAreThoseOfTransformers) {
  GoldenCase golden = Load(WeightFormat::kF32);
  for (const GoldenRun& run : golden.runs) {
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      EXPECT_LT(LargestDifference(Logits(golden, run, backend), run.logits), 1e-4f) << run.name;
    }
  }
}

// Inputs are rounded to 8 bits, which costs these small models of random weights about 3 % of their logits. What is
// rounded to 8 bits itself costs a little more.
TEST_P(QuantisedModel, AsPublishedTheLogitsAreNear) {
  GoldenCase golden = Load(std::nullopt);
  const bool four = GetParam() == "gptq" || GetParam() == "awq";
  const bool mx4 = GetParam() == "compressed_mxfp4";
  EXPECT_EQ(golden.model->weights().layers[0].down.format(), mx4    ? WeightFormat::kMx4
                                                             : four ? WeightFormat::kQ4
                                                                    : WeightFormat::kQ8);
  const bool floats = GetParam() == "nf4_nested" || GetParam() == "fp8_block" || GetParam() == "compressed_nvfp4";
  const double most = floats ? 0.045 : GetParam() == "awq" || mx4 ? 0.035 : 0.03;
  int adapters = 0;
  for (const GoldenRun& run : golden.runs) {
    adapters += run.adapter != nullptr;
    for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
      const double error = RelativeError(Logits(golden, run, backend), run.logits);
      EXPECT_LT(error, most) << run.name;
    }
  }
  EXPECT_GT(adapters, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, QuantisedModel, testing::ValuesIn(CaseNames(ModelsDirectory())),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace loramux::golden_quantised_test
