// The files of API keys and limits: which callers are admitted and which refused, and that secrets stay secret.
#include "auth/access.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

namespace loramux::access_test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kAcmeKey = "sk-acme-0123456789";
// The digest of an unknown key.
constexpr const char* kOpsDigest = "b8d7b1ac10ed4a46bf3b6c6d5ecbb3ac2ae0e1b53b3f3f2c2e2e6a3b0c6ed1f0";

std::string Table() {
  return std::string(R"({"keys": [
    {"name": "acme", "key": ")") +
         kAcmeKey + R"(", "models": ["acme-*", "shared"], "limits": {"requests_per_second": 2}},
    {"name": "ops", "key_sha256": ")" +
         kOpsDigest + R"(", "models": ["*"]}]})";
}

TEST(ApiKeyTable, FindsKeysAndTheirModels) {
  const auto table = ApiKeyTable::Parse(Table());
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->size(), 2u);
  const auto acme = table->Find(kAcmeKey);
  ASSERT_NE(acme, nullptr);
  EXPECT_EQ(acme->name, "acme");
  EXPECT_EQ(acme->limits.requests_per_second, 2);
  EXPECT_TRUE(acme->Allows("acme-sql"));
  EXPECT_TRUE(acme->Allows("shared"));
  for (const char* other : {"acme", "shared2", "base", "", "xacme-sql"}) EXPECT_FALSE(acme->Allows(other)) << other;
  for (const char* wrong : {"", "sk-acme-012345678", "sk-acme-01234567890", kOpsDigest}) {
    EXPECT_EQ(table->Find(wrong), nullptr) << wrong;
  }
}

TEST(ApiKeyTable, ADigestStandsForItsKey) {
  // printf '%s' abc | sha256sum
  const Sha256 digest = Sha256Of("abc");
  EXPECT_EQ(digest[0], 0xba);
  EXPECT_EQ(digest[31], 0xad);
  const auto table = ApiKeyTable::Parse(
      R"({"keys": [{"name": "a", "models": ["x"],
          "key_sha256": "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD"}]})");
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_NE(table->Find("abc"), nullptr);
}

TEST(ApiKeyTable, ErrorsNameTheFieldAndShowNoKey) {
  const auto entry = [](const std::string& fields) { return "{\"keys\": [{" + fields + "}]}"; };
  const std::string good = R"("name": "a", "key": "0123456789abcdef-secret")";
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
           {"", "not valid JSON"},
           {"[]", "expected an object"},
           {"{}", "`keys`: expected a list"},
           {R"({"key": []})", "`key`: unknown field"},
           {R"({"keys": {"a": 1}})", "`keys`: expected a list"},
           {entry(good), "`keys[0].models`"},
           {entry(good + R"(, "models": [])"), "`keys[0].models`"},
           {entry(good + R"(, "models": "*")"), "`keys[0].models`"},
           {entry(good + R"(, "models": [""])"), "`keys[0].models`"},
           {entry(good + R"(, "models": ["*"], "model": "x")"), "`keys[0].model`: unknown field"},
           {entry(good + R"(, "models": ["*"], "limits": {"rate": 1})"), "`keys[0].limits.rate`: unknown field"},
           {entry(good + R"(, "models": ["*"], "limits": {"concurrency": -1})"), "`keys[0].limits.concurrency`"},
           {entry(R"("name": "", "key": "0123456789abcdef", "models": ["*"])"), "`keys[0].name`"},
           {entry(R"("name": "a\nb", "key": "0123456789abcdef", "models": ["*"])"), "without control characters"},
           {entry(R"("name": "a", "models": ["*"])"), "either `key` or `key_sha256`"},
           {entry(good + R"(, "key_sha256": "00", "models": ["*"])"), "either `key` or `key_sha256`"},
           {entry(R"("name": "a", "key": "secret", "models": ["*"])"), "expected 16 to 1024 bytes, found 6"},
           {entry(R"("name": "a", "key_sha256": "secret", "models": ["*"])"), "64 hexadecimal digits"},
           {R"({"keys": [{"name": "a", "key": "0123456789abcdef-secret)", "error at byte"}}) {
    const auto table = ApiKeyTable::Parse(text);
    ASSERT_FALSE(table.ok()) << text;
    EXPECT_THAT(table.error().message, HasSubstr(expected)) << text;
    EXPECT_THAT(table.error().message, Not(HasSubstr("secret"))) << text;
  }
  const std::string twice = "{" + good + R"(, "models": ["*"]})";
  EXPECT_THAT(ApiKeyTable::Parse("{\"keys\": [" + twice + "," + twice + "]}").error().message,
              HasSubstr("expected a unique name"));
}

// A key without limits of its own has the defaults; 0 lifts one.
TEST(ApiKeyTable, DefaultsHoldForWhatAnEntryLeavesOut) {
  const auto table = ApiKeyTable::Parse(R"({"keys": [
      {"name": "plain", "key": "plain-0123456789abcdef", "models": ["*"]},
      {"name": "fast", "key": "fast-0123456789abcdef", "models": ["*"], "limits": {"requests_per_second": 9}},
      {"name": "free", "key": "free-0123456789abcdef", "models": ["*"], "limits": {"concurrency": 0}}]})",
                                        {.concurrency = 7});
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->Find("plain-0123456789abcdef")->limits.concurrency, 7);
  EXPECT_EQ(table->Find("fast-0123456789abcdef")->limits.concurrency, 7);
  EXPECT_EQ(table->Find("free-0123456789abcdef")->limits.concurrency, 0);
}

class AccessControlTest : public testing::Test {
 protected:
  ~AccessControlTest() override { std::filesystem::remove(path_); }
  void Write(const std::string& text) { std::ofstream(path_) << text; }
  const std::string path_ = testing::TempDir() + "loramux_access_test_" + std::to_string(getpid()) + ".json";
};

TEST_F(AccessControlTest, ReloadsAndKeepsTheOldKeysOnError) {
  EXPECT_THAT(AccessControl::Load(path_).error().message, HasSubstr(path_));
  Write(Table());
  const auto access = AccessControl::Load(path_, {.concurrency = 7});
  ASSERT_TRUE(access.ok()) << access.error().message;
  const std::string header = std::string("Bearer ") + kAcmeKey;
  EXPECT_NE((*access)->Authenticate(header), nullptr);
  EXPECT_NE((*access)->Authenticate(std::string("bearer  ") + kAcmeKey), nullptr);
  for (const std::string& wrong : {std::string(), std::string(kAcmeKey), std::string("Basic ") + kAcmeKey, header + "x",
                                   std::string("Bearer "), "Bearer " + std::string(100'000, 'x')}) {
    EXPECT_EQ((*access)->Authenticate(wrong), nullptr);
  }
  Write("{");
  const Status broken = (*access)->Reload();
  ASSERT_FALSE(broken.ok());
  EXPECT_THAT(broken.error().message, HasSubstr(path_));
  EXPECT_NE((*access)->Authenticate(header), nullptr);
  EXPECT_EQ((*access)->Authenticate(header)->limits.concurrency, 7);
  Write(Table());
  EXPECT_TRUE((*access)->Reload().ok());
  EXPECT_EQ((*access)->Authenticate(header)->limits.concurrency, 7);
  Write(R"({"keys": []})");
  EXPECT_TRUE((*access)->Reload().ok());
  EXPECT_EQ((*access)->Authenticate(header), nullptr);
}

TEST(QuotaTable, TheMostSpecificEntryCounts) {
  QuotaLimits defaults;
  defaults.concurrency = 9;
  const auto table = QuotaTable::Parse(
      R"({"adapters": {"a*": {"queued": 1}, "ab*": {"queued": 2}, "abc": {"queued": 3, "concurrency": 0}}})", defaults);
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->For("b").queued, 0);
  EXPECT_EQ(table->For("b").concurrency, 9);
  EXPECT_EQ(table->For("a").queued, 1);
  EXPECT_EQ(table->For("abd").queued, 2);
  EXPECT_EQ(table->For("abd").concurrency, 9);
  EXPECT_EQ(table->For("abc").queued, 3);
  EXPECT_EQ(table->For("abc").concurrency, 0);
  const auto all = QuotaTable::Parse(R"({"adapters": {"*": {"burst": 2.5}}})", defaults);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->For("").burst, 2.5);
  for (const char* wrong : {"[]", R"({"adapter": {}})", R"({"adapters": []})", R"({"adapters": {"a": 1}})",
                            R"({"adapters": {"a": {"burst": "x"}}})", R"({"adapters": {"a": {"burst": 1e300}}})"}) {
    EXPECT_FALSE(QuotaTable::Parse(wrong, {}).ok()) << wrong;
  }
}

TEST(ApiKeyTable, KeysWithoutAFileMayUseEveryModelWithinTheLimits) {
  const std::vector<std::string> keys{"first-key", "second-key"};
  const auto table = ApiKeyTable::OfKeys(keys, QuotaLimits{.concurrency = 3});
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->Find("second-key")->name, "api-key-2");
  EXPECT_TRUE(table->Find("first-key")->Allows("any"));
  EXPECT_EQ(table->Find("first-key")->limits.concurrency, 3);
  EXPECT_EQ(table->Find("third-key"), nullptr);
}

TEST(ApiKeyTable, ErrorsOfGivenKeysNeverShowThem) {
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{
           {""}, {"with blank"}, {std::string(2000, 'x')}, {"same-key", "same-key"}, {"tab\t"}}) {
    const auto table = ApiKeyTable::OfKeys(keys);
    ASSERT_FALSE(table.ok());
    EXPECT_EQ(table.error().param, "--api-key");
    if (!keys[0].empty()) EXPECT_EQ(table.error().message.find(keys[0]), std::string::npos);
  }
}

}  // namespace
}  // namespace loramux::access_test
