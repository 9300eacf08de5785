// Names of tenants: none can be forged. And whose prefixes are shared.
#include "server/guard/tenancy.h"

#include <set>
#include <string>

#include <gmock/gmock.h>

namespace loramux::tenancy_test {
namespace {

using testing::HasSubstr;

TEST(TenantName, IsTheKeysOrTheTrustedIds) {
  const ApiKey acme{.name = "acme"};
  EXPECT_EQ(*TenantName(nullptr, ""), "");  // the engine charges the adapter
  EXPECT_EQ(*TenantName(nullptr, "team"), "team");
  EXPECT_EQ(*TenantName(&acme, ""), "acme");
}

// Whatever a client sends as an id, it stays within its key.
TEST(TenantName, ASubTenantIsNoOtherKeyAndNoOtherKeysSubTenant) {
  const ApiKey acme{.name = "acme"}, slash{.name = "acme/team"}, other{.name = "other"};
  const std::string team = *TenantName(&acme, "team");
  for (const ApiKey* key : {&acme, &slash, &other}) EXPECT_NE(team, *TenantName(key, ""));
  for (const ApiKey* key : {&slash, &other}) EXPECT_NE(team, *TenantName(key, "team"));
  EXPECT_NE(*TenantName(&other, "acme"), "acme");
  EXPECT_NE(*TenantName(&acme, "/team"), *TenantName(&slash, ""));
}

// A salt divides what a tenant shares. Whatever it is, it stays within the tenant.
TEST(PrefixDomain, IsThatOfTheTenantAndTheSalt) {
  const ApiKey acme{.name = "acme"};
  const std::string team = *TenantName(&acme, "team");
  EXPECT_EQ(PrefixDomain("", ""), "");
  EXPECT_EQ(PrefixDomain("acme", ""), "acme");
  std::set<std::string> domains;
  for (const std::string& tenant : {std::string(), acme.name, team, std::string("acmex")}) {
    for (const std::string& salt : {std::string(), std::string("x"), std::string("acme"), "acme\x1f" + std::string("x"),
                                    std::string("\x1fx"), std::string("\nteam"), std::string("\nteam\x1fx")}) {
      EXPECT_TRUE(domains.insert(PrefixDomain(tenant, salt)).second) << tenant << " " << salt;
    }
  }
}

TEST(TenantName, RefusesIdsThatCouldForgeAName) {
  const ApiKey acme{.name = "acme"};
  EXPECT_THAT(TenantName(&acme, "a\nb").error().message, HasSubstr("no control characters"));
  EXPECT_THAT(TenantName(nullptr, std::string_view("\0", 1)).error().message, HasSubstr("no control characters"));
  EXPECT_TRUE(TenantName(&acme, std::string(kMaxTenantBytes, 'x')).ok());
  const auto refused = TenantName(&acme, std::string(kMaxTenantBytes + 1, 'x'));
  EXPECT_THAT(refused.error().message, HasSubstr("expected at most 256 bytes, found 257"));
  EXPECT_EQ(refused.error().param, kFairnessHeader);
}

TEST(SeparatesPrefixes, WithKeysUnlessTheOperatorSharesThem) {
  EXPECT_TRUE(*SeparatesPrefixes("", /*has_keys=*/true));
  EXPECT_FALSE(*SeparatesPrefixes("", /*has_keys=*/false));
  EXPECT_TRUE(*SeparatesPrefixes("tenant", /*has_keys=*/false));
  EXPECT_FALSE(*SeparatesPrefixes("all", /*has_keys=*/true));
  EXPECT_THAT(SeparatesPrefixes("key", true).error().message, HasSubstr("expected tenant or all, found 'key'"));
}

}  // namespace
}  // namespace loramux::tenancy_test
