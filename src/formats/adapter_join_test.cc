// Sums of adapters. tests/adapters_test.py compares served sums with PEFT.
#include "formats/adapter_join.h"

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "formats/test_files.h"

namespace loramux::adapter_join_test {
namespace {

using testing::HasSubstr;

const std::filesystem::path kModels = std::filesystem::path(LORAMUX_SOURCE_DIR) / "tests/golden/models";

float AsFloat(DType dtype, const std::byte* data, std::size_t i) {
  float value = 0;
  if (dtype == DType::kF32) {
    std::memcpy(&value, data + 4 * i, 4);
    return value;
  }
  EXPECT_EQ(dtype, DType::kBF16);
  std::memcpy(reinterpret_cast<std::byte*>(&value) + 2, data + 2 * i, 2);
  return value;
}

// scale * B A of each module, by its place.
using Changes = std::map<std::pair<std::int32_t, LoraTarget>, std::vector<double>>;
Changes ChangesOf(const AdapterFile& file, double weight = 1) {
  Changes changes;
  std::vector<std::byte> a, b;
  for (const LoraModule& module : file.modules) {
    EXPECT_TRUE(file.tensors->Read(*module.a, a).ok() && file.tensors->Read(*module.b, b).ok());
    const auto in = static_cast<std::size_t>(module.in()), out = static_cast<std::size_t>(module.out());
    const auto rank = static_cast<std::size_t>(module.rank);
    std::vector<double>& change = changes[{module.layer, module.target}];
    change.resize(in * out);
    for (std::size_t o = 0; o < out; ++o)
      for (std::size_t r = 0; r < rank; ++r)
        for (std::size_t i = 0; i < in; ++i)
          change[o * in + i] += weight * module.scale * double{AsFloat(module.b->dtype, b.data(), o * rank + r)} *
                                double{AsFloat(module.a->dtype, a.data(), r * in + i)};
  }
  return changes;
}

class AdapterJoin : public testing::Test {
 protected:
  AdapterFile Open(const std::string& name, const std::string& model = "llama2") {
    const auto config = LoadModelConfig(kModels / model / "model");
    auto adapter = OpenAdapter(kModels / model / "adapters" / name, *config);
    EXPECT_TRUE(adapter.ok()) << adapter.error().message;
    return std::move(adapter).value();
  }
  static void ExpectNear(const Changes& found, const Changes& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [place, change] : found) {
      const std::vector<double>& sum = expected.at(place);
      ASSERT_EQ(change.size(), sum.size());
      for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(change[i], sum[i], 1e-6);
    }
  }
  static std::string ErrorOf(const std::vector<AdapterShare>& shares) {
    const auto joined = JoinAdapters(shares, "sum");
    return joined.ok() ? "accepted" : joined.error().message;
  }
};

TEST_F(AdapterJoin, AddsTheProductsTimesTheirWeights) {
  const AdapterFile first = Open("attention_r8"), second = Open("qv_r1"), third = Open("all_r4_bf16");
  const auto joined =
      JoinAdapters(std::vector<AdapterShare>{{&first, "x", 0.5}, {&second, "y", -2}, {&third, "z", 1}}, "x*0.5+y*-2+z");
  ASSERT_TRUE(joined.ok()) << joined.error().message;
  EXPECT_EQ(joined->modules.size(), third.modules.size());
  EXPECT_EQ(joined->max_rank, 13);
  Changes expected = ChangesOf(first, 0.5);
  for (const auto& [file, weight] : std::vector<std::pair<const AdapterFile*, double>>{{&second, -2}, {&third, 1}}) {
    for (const auto& [place, change] : ChangesOf(*file, weight)) {
      std::vector<double>& sum = expected[place];
      sum.resize(change.size());
      for (std::size_t i = 0; i < change.size(); ++i) sum[i] += change[i];
    }
  }
  ExpectNear(ChangesOf(*joined), expected);
}

TEST_F(AdapterJoin, AddsLoraOfTheEmbedding) {
  const AdapterFile first = Open("embedding", "kinds_qwen2"), second = Open("embedding_tied_lora", "kinds_qwen2");
  const auto joined = JoinAdapters(std::vector<AdapterShare>{{&first, "x", 0.5}, {&second, "y", 3}}, "x*0.5+y*3");
  ASSERT_TRUE(joined.ok()) << joined.error().message;
  Changes expected = ChangesOf(first, 0.5);
  for (const auto& [place, change] : ChangesOf(second, 3)) {
    std::vector<double>& sum = expected[place];
    sum.resize(change.size());
    for (std::size_t i = 0; i < change.size(); ++i) sum[i] += change[i];
  }
  EXPECT_TRUE(expected.contains({0, LoraTarget::kEmbedding}));
  ExpectNear(ChangesOf(*joined), expected);
}

TEST_F(AdapterJoin, KeepsTheTypeWhereNothingIsScaled) {
  const AdapterFile adapter = Open("all_r4_bf16");
  const auto twice = JoinAdapters(std::vector<AdapterShare>{{&adapter, "x", 0.25}, {&adapter, "y", 0.25}}, "sum");
  ASSERT_TRUE(twice.ok()) << twice.error().message;
  EXPECT_EQ(twice->modules[0].b->dtype, DType::kBF16);
  EXPECT_EQ(twice->modules[0].scale, adapter.modules[0].scale / 4);
  EXPECT_EQ(twice->modules[0].rank, 2 * adapter.modules[0].rank);
  const auto uneven = JoinAdapters(std::vector<AdapterShare>{{&adapter, "x", 0.25}, {&adapter, "y", 0.5}}, "sum");
  EXPECT_EQ(uneven->modules[0].a->dtype, DType::kBF16);
  EXPECT_EQ(uneven->modules[0].b->dtype, DType::kF32);
  const auto alone = JoinAdapters(std::vector<AdapterShare>{{&adapter, "x", 0.3}}, "sum");
  EXPECT_EQ(alone->modules[0].b->dtype, DType::kBF16);
  EXPECT_EQ(alone->modules[0].rank, adapter.modules[0].rank);
  EXPECT_EQ(std::set<std::string>({twice->digest, uneven->digest, alone->digest, adapter.digest}).size(), 4u);
  EXPECT_EQ(alone->layer_digests.size(), adapter.layer_digests.size());
}

TEST_F(AdapterJoin, OutlivesTheAdaptersAndReadsPieces) {
  std::optional<AdapterFile> joined;
  std::string digest;
  {
    const AdapterFile first = Open("attention_r8"), second = Open("all_r4_bf16");
    joined = std::move(JoinAdapters(std::vector<AdapterShare>{{&first, "x", 1}, {&second, "y", 3}}, "sum").value());
    digest = joined->digest;
  }
  EXPECT_EQ(*ScanAdapterTensors(*joined, {}), digest);
  const LoraModule& module = joined->modules[0];
  std::vector<std::byte> whole, piece(12);
  ASSERT_TRUE(joined->tensors->Read(*module.b, whole).ok());
  ASSERT_TRUE(joined->tensors->Read(*module.b, 20, piece).ok());
  EXPECT_EQ(std::memcmp(whole.data() + 20, piece.data(), piece.size()), 0);
}

TEST_F(AdapterJoin, RefusesByNameWhatIsNoSum) {
  const AdapterFile plain = Open("plain_r4", "kinds_llama"), dora = Open("dora_r4", "kinds_llama");
  const AdapterFile biased = Open("bias_all", "kinds_llama");
  EXPECT_EQ(ErrorOf({{&plain, "p", 1}}), "accepted");
  EXPECT_THAT(ErrorOf({{&plain, "p", 1}, {&dora, "d", 1}}), HasSubstr("adapter 'd' has DoRA"));
  EXPECT_THAT(ErrorOf({{&plain, "p", 1}, {&biased, "b", 1}}), HasSubstr("adapter 'b' has trained biases"));
  const AdapterFile own = Open("tokens", "kinds_llama");
  EXPECT_THAT(ErrorOf({{&plain, "p", 1}, {&own, "o", 1}}), HasSubstr("adapter 'o' brings rows of embed_tokens"));
  AdapterFile activated = Open("plain_r4", "kinds_llama");
  activated.config.invocation_tokens = {1};
  EXPECT_THAT(ErrorOf({{&activated, "a", 1}}), HasSubstr("adapter 'a' is an activated LoRA"));
  EXPECT_THAT(ErrorOf({{&plain, "p", 1e300}}), HasSubstr("does not fit a float"));
  EXPECT_THAT(ErrorOf({{&plain, "p", 1e-300}, {&plain, "q", 1}}), HasSubstr("adapter 'p'"));
  AdapterFile changed = Open("plain_r4", "kinds_llama");
  changed.digest[0] = changed.digest[0] == '0' ? '1' : '0';
  EXPECT_THAT(ErrorOf({{&changed, "c", 1}}), HasSubstr("adapter 'c': its weights were changed in place"));
}

}  // namespace
}  // namespace loramux::adapter_join_test
