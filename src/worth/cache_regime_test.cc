#include "worth/cache_regime.h"

#include <set>
#include <string>

#include "worth/eviction_policy.h"

namespace loramux::cache_regime_test {
namespace {

TEST(CacheRegime, EachHasAPolicyAndANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const CacheRegime& regime : CacheRegimes()) {
    SCOPED_TRACE(std::string(regime.name));
    EXPECT_TRUE(names.insert(regime.name).second);
    EXPECT_TRUE(MakeEvictionPolicy(regime.policy).ok());
    EXPECT_GE(regime.adapter_share, 0);
    EXPECT_LT(regime.adapter_share, 1);
    // Separate partitions cannot maintain the dependency of KV on adapters.
    EXPECT_FALSE(regime.adapter_share > 0 && regime.maintain_dependency);
    ASSERT_TRUE(FindCacheRegime(regime.name).ok());
    EXPECT_EQ(FindCacheRegime(regime.name)->policy, regime.policy);
  }
  EXPECT_EQ(CacheRegimes().front().name, "loramux");
  EXPECT_FALSE(CacheRegimes().front().maintain_dependency);  // each is worth what it saves by itself
  for (const std::string& policy : EvictionPolicyNames())
    EXPECT_TRUE(names.contains(policy)) << policy << " cannot be chosen";
}

TEST(CacheRegime, TheBaselinesAreWhatTheirDocumentsSay) {
  const CacheRegime slora = *FindCacheRegime("s-lora");
  EXPECT_FALSE(slora.keep_history);
  EXPECT_FALSE(slora.keep_idle_adapters);
  EXPECT_EQ(slora.adapter_share, 0);
  const CacheRegime vllm = *FindCacheRegime("vllm");
  EXPECT_EQ(vllm.policy, "lru");
  EXPECT_EQ(vllm.adapter_share, 0.2);
  EXPECT_TRUE(vllm.keep_history && vllm.keep_idle_adapters);
  const CacheRegime wom = *FindCacheRegime("fastlibra-wom");
  EXPECT_EQ(wom.policy, "fastlibra");
  EXPECT_FALSE(wom.maintain_dependency);
  EXPECT_EQ(FindCacheRegime("fastlibra-wos")->policy, "lru");
  for (const CacheRegime& regime : CacheRegimes())
    EXPECT_EQ(regime.proactive_swapping, regime.name.starts_with("fastlibra"));
}

TEST(CacheRegime, UnknownNameListsTheValidOnes) {
  const auto regime = FindCacheRegime("magic");
  ASSERT_FALSE(regime.ok());
  EXPECT_EQ(regime.error().message,
            "cache: expected one of loramux, lru, gdsf, fairshare, chameleon, fastlibra, fastlibra-wom, fastlibra-wos, "
            "fastlibra-wol, "
            "s-lora, vllm, found 'magic'");
  EXPECT_EQ(regime.error().param, "--cache");
}

}  // namespace
}  // namespace loramux::cache_regime_test
