// GGUF files of model families, as llama.cpp's converter writes them, against transformers' logits of the model that
// was converted (tests/golden/make_gguf_families.py).
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/safetensors.h"
#include "memory/page_geometry.h"
#include "model/model.h"
#include "quant/stored_matrix.h"
#include "tensor/aligned_buffer.h"
#include "tests/golden_case.h"

namespace loramux::golden_gguf_test {
namespace {

namespace fs = std::filesystem;

const fs::path& Folder() {
  static const fs::path folder = fs::path(LORAMUX_SOURCE_DIR) / "tests/golden/gguf/families";
  return folder;
}

std::set<std::string> Families() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(Folder())) {
    if (entry.path().extension() == ".gguf") names.insert(entry.path().stem());
  }
  return names;
}

std::vector<TokenId> TokensOf(const StoredTensor& tensor) {
  CHECK(tensor.dtype == DType::kI64);
  std::vector<std::int64_t> stored(tensor.data.size() / sizeof(std::int64_t));
  std::memcpy(stored.data(), tensor.data.data(), tensor.data.size());
  return {stored.begin(), stored.end()};
}

// The logits of all tokens of a prompt, in one pass.
std::vector<float> LogitsOf(Model& model, const std::vector<TokenId>& prompt) {
  const KvLayout layout = KvLayoutOf(model.config(), /*page_tokens=*/8, DType::kF32);
  const std::size_t stride = (layout.PageBytes() + 63) / 64 * 64;
  const auto size = static_cast<std::int64_t>(prompt.size());
  std::vector<std::uint32_t> pages(static_cast<std::size_t>(layout.PagesFor(size)));
  std::iota(pages.begin(), pages.end(), 0);
  AlignedBuffer<std::byte> memory(static_cast<std::int64_t>(stride * pages.size()));
  ThreadPool threads(1);
  StepBatch step;
  StepSequence& sequence = step.Add({}, prompt, 0, pages);
  sequence.logit_rows = static_cast<std::int32_t>(size);
  sequence.prompt_tokens = size;
  StepResult result;
  model.Forward({{Backend::kCpu, &threads}, layout, {memory.data(), stride}}, step, {}, result);
  return {model.logits().begin(), model.logits().end()};
}

class GoldenGgufTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, GoldenGgufTest, ::testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param; });

TEST_P(GoldenGgufTest, MatchesTransformers) {
  // For matrices in 4 and 8 bits, the logits of what they stand for: products with integers round what they multiply.
  WeightOptions options;
  if (GetParam().ends_with("_mxfp4") || GetParam().ends_with("_q8_0")) {
    options.layers = options.embeddings = WeightFormat::kF32;
  }
  auto loaded = Model::Load(Folder() / (GetParam() + ".gguf"), options, {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const TensorFile expected = TensorFile::Open(Folder() / (GetParam() + ".safetensors")).value();
  int prompts = 0;
  for (; expected.Find("prompt_" + std::to_string(prompts)) != nullptr; ++prompts) {
    const std::vector<TokenId> prompt = TokensOf(*expected.Find("prompt_" + std::to_string(prompts)));
    const std::vector<float> logits = ToFloats(*expected.Find("logits_" + std::to_string(prompts)));
    const std::vector<float> found = LogitsOf(**loaded, prompt);
    const float largest = golden::LargestDifference(logits, std::vector<float>(logits.size()));
    EXPECT_LE(golden::LargestDifference(found, logits), 2e-5f * std::max(1.0f, largest)) << "prompt " << prompts;
    const std::size_t vocabulary = logits.size() / prompt.size();
    for (std::size_t row = 0; row < prompt.size(); ++row) {
      const auto of = [&](const std::vector<float>& all) {
        return std::span(all).subspan(row * vocabulary, vocabulary);
      };
      EXPECT_EQ(golden::ArgMax(of(found)), golden::ArgMax(of(logits))) << "prompt " << prompts << ", token " << row;
    }
  }
  EXPECT_GE(prompts, 2);
}

}  // namespace
}  // namespace loramux::golden_gguf_test
