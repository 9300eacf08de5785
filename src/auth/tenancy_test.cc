// Names of tenants, and who they are by a gate: none can be forged. And whose prefixes are shared.
#include "auth/tenancy.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "auth/caller_gate.h"
#include "auth/vouched_caller.h"
#include "base/must.h"

namespace loramux::tenancy_test {
namespace {

using testing::HasSubstr;

TEST(TenantName, IsTheKeysOrTheTrustedIds) {
  const ApiKey acme{.name = "acme"};
  EXPECT_EQ(*TenantName(NoKey(), ""), "");  // the engine charges the adapter
  EXPECT_EQ(*TenantName(NoKey(), "team"), "team");
  EXPECT_EQ(*TenantName(acme, ""), "acme");
}

// Whatever a client sends as an id, it stays within its key.
TEST(TenantName, ASubTenantIsNoOtherKeyAndNoOtherKeysSubTenant) {
  const ApiKey acme{.name = "acme"}, slash{.name = "acme/team"}, other{.name = "other"};
  const std::string team = *TenantName(acme, "team");
  for (const ApiKey* key : {&acme, &slash, &other}) EXPECT_NE(team, *TenantName(*key, ""));
  for (const ApiKey* key : {&slash, &other}) EXPECT_NE(team, *TenantName(*key, "team"));
  EXPECT_NE(*TenantName(other, "acme"), "acme");
  EXPECT_NE(*TenantName(acme, "/team"), *TenantName(slash, ""));
}

// A salt divides what a tenant shares. Whatever it is, it stays within the tenant.
TEST(PrefixDomain, IsThatOfTheTenantAndTheSalt) {
  const ApiKey acme{.name = "acme"};
  const std::string team = *TenantName(acme, "team");
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
  EXPECT_THAT(TenantName(acme, "a\nb").error().message, HasSubstr("no control characters"));
  EXPECT_THAT(TenantName(NoKey(), std::string_view("\0", 1)).error().message, HasSubstr("no control characters"));
  EXPECT_TRUE(TenantName(acme, std::string(kMaxTenantBytes, 'x')).ok());
  const auto refused = TenantName(acme, std::string(kMaxTenantBytes + 1, 'x'));
  EXPECT_THAT(refused.error().message, HasSubstr("expected at most 256 bytes, found 257"));
  EXPECT_EQ(refused.error().param, kFairnessHeader);
}

TEST(PrefixSharing, HasThreeForms) {
  EXPECT_EQ(*ReadPrefixSharing(""), PrefixSharing::kKeys);
  EXPECT_EQ(*ReadPrefixSharing("tenant"), PrefixSharing::kTenant);
  EXPECT_EQ(*ReadPrefixSharing("all"), PrefixSharing::kAll);
  EXPECT_THAT(ReadPrefixSharing("key").error().message, HasSubstr("expected tenant or all, found 'key'"));
}

constexpr std::string_view kFleetKey = "the fleet's key 0123456789";

TEST(VouchedCaller, ArrivesAsItWasSigned) {
  for (const VouchedCaller& caller :
       {VouchedCaller{"acme", "team;signature=1", "192.0.2.7"}, VouchedCaller{"", "", "2001:db8::1"},
        VouchedCaller{"k;id=x\n%41", std::string("\0\xff", 2), ""}, VouchedCaller{}}) {
    const std::string value = Vouch(caller, kFleetKey, "req-1", 1'000'000);
    EXPECT_EQ(value.find_first_of(" \r\n,"), std::string::npos) << value;
    const auto read = ReadVouchedCaller(value, kFleetKey, "req-1", 1'000'000 + kVouchedForSeconds);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(*read, caller);
  }
}

TEST(VouchedCaller, IsWorthNothingForAnotherKeyRequestTimeOrText) {
  const std::string value = Vouch({.key = "acme", .address = "192.0.2.7"}, kFleetKey, "req-1", 1'000'000);
  const auto refused = [](std::string_view text, std::string_view key, std::string_view id, std::int64_t now) {
    const auto read = ReadVouchedCaller(text, key, id, now);
    return read.ok() ? std::string("believed") : read.error().message;
  };
  EXPECT_THAT(refused(value, "another key 0123456789", "req-1", 1'000'000), HasSubstr("--fleet-key-file"));
  EXPECT_THAT(refused(value, kFleetKey, "req-2", 1'000'000), HasSubstr("signature does not fit"));
  for (const std::int64_t away : {-kVouchedForSeconds - 1, kVouchedForSeconds + 1}) {
    EXPECT_THAT(refused(value, kFleetKey, "req-1", 1'000'000 + away), HasSubstr("compare the clocks"));
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    std::string other = value;
    other[i] = other[i] == 'b' ? 'a' : 'b';
    EXPECT_NE(refused(other, kFleetKey, "req-1", 1'000'000), "believed") << other;
    EXPECT_NE(refused(std::string_view(value).substr(0, i), kFleetKey, "req-1", 1'000'000), "believed");
  }
  for (const char* text : {"", "acme", ";signature=", "key=acme;signature=00"}) {
    EXPECT_NE(refused(text, kFleetKey, "req-1", 1'000'000), "believed") << text;
  }
}

class CallerGateTest : public testing::Test {
 protected:
  // What the gate makes of a request with these headers from 10.0.0.9; the status if it is refused.
  std::string Ask(const CallerGate& gate, std::vector<std::pair<std::string, std::string>> headers) {
    HttpRequest request{.headers = std::move(headers), .address = "10.0.0.9"};
    request.headers.emplace_back("X-Request-Id", "req-1");
    const auto refusal = gate(request);
    return refusal ? std::to_string(refusal->status) : WorkTenant(request);
  }
  std::pair<std::string, std::string> Signed(const VouchedCaller& caller, std::string_view key = kFleetKey) {
    return {std::string(kVouchedCallerHeader), Vouch(caller, key, "req-1", clock_.UnixSeconds())};
  }

  const OsClock clock_;
  const std::pair<std::string, std::string> id_{kFairnessHeader, "gold"}, own_key_{"Authorization", "Bearer sk-own"};
  const std::vector<std::string> keys_{"sk-own"};
  const std::unique_ptr<AccessControl> access_ = Must(AccessControl::OfKeys(keys_, {}));
};

TEST_F(CallerGateTest, BelievesWhatTheFleetsKeySignsAndNothingElse) {
  const CallerGate keyless(nullptr, std::string(kFleetKey), false, clock_);
  EXPECT_EQ(Ask(keyless, {}), "address 10.0.0.9");
  EXPECT_EQ(Ask(keyless, {id_}), "address 10.0.0.9");
  EXPECT_EQ(Ask(keyless, {Signed({.key = "acme", .address = "192.0.2.7"})}), "key acme");
  EXPECT_EQ(Ask(keyless, {Signed({.address = "192.0.2.7"})}), "address 192.0.2.7");
  EXPECT_EQ(Ask(keyless, {Signed({.id = "gold", .address = "192.0.2.7"})}), "tenant gold");
  EXPECT_EQ(Ask(keyless, {Signed({.key = "acme"}, "a key that a client made up")}), "401");
  EXPECT_EQ(Ask(keyless, {{std::string(kVouchedCallerHeader), "key=acme"}}), "401");
  // a server that has no fleet's key
  EXPECT_EQ(Ask(CallerGate(nullptr, "", false, clock_), {Signed({.key = "acme"})}), "address 10.0.0.9");
}

TEST_F(CallerGateTest, AServersOwnKeysComeFirst) {
  const CallerGate keyed(access_.get(), std::string(kFleetKey), false, clock_);
  EXPECT_EQ(Ask(keyed, {Signed({.key = "acme"})}), "401");  // a router's word is no key
  EXPECT_EQ(Ask(keyed, {own_key_}), "key api-key-1");
  EXPECT_EQ(Ask(keyed, {own_key_, Signed({.key = "acme", .address = "192.0.2.7"})}), "key api-key-1");
  EXPECT_EQ(Ask(keyed, {own_key_, Signed({.key = "acme", .id = "gold"})}), "key api-key-1\ngold");
  EXPECT_EQ(Ask(keyed, {{"x-api-key", "sk-own"}}), "key api-key-1");
  EXPECT_EQ(Ask(keyed, {{"x-api-key", "sk-other"}}), "401");
}

TEST_F(CallerGateTest, ATrustedHeaderNamesTheTenantOfTextWorkToo) {
  const CallerGate trusting(nullptr, std::string(kFleetKey), true, clock_);
  EXPECT_EQ(Ask(trusting, {id_}), "tenant gold");
  EXPECT_EQ(Ask(trusting, {id_, {"x-llm-d-inference-fairness-id", "new"}}), "tenant new");
  EXPECT_EQ(Ask(trusting, {id_, Signed({.key = "acme", .address = "192.0.2.7"})}), "key acme");
  EXPECT_EQ(Ask(trusting, {id_, Signed({.address = "192.0.2.7"})}), "tenant gold");
  EXPECT_EQ(Ask(trusting, {{std::string(kFairnessHeader), std::string(kMaxTenantBytes + 1, 'x')}}), "400");
}

}  // namespace
}  // namespace loramux::tenancy_test
