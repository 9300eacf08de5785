#include "etcd/etcd_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace loramux::etcd_messages_test {
namespace {

using testing::HasSubstr;

TEST(EtcdMessages, Base64) {
  const std::pair<std::string, std::string> known[] = {
      {"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
      {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {std::string("\0\xff\xfe", 3), "AP/+"}};
  for (const auto& [bytes, text] : known) {
    EXPECT_EQ(ToBase64(bytes), text);
    EXPECT_EQ(*FromBase64(text), bytes);
  }
  for (const char* bad : {"A", "AA", "AAA", "A===", "====", "AA=A", "AAA-", "AAA ", "AAAA\n"}) {
    EXPECT_FALSE(FromBase64(bad).ok()) << bad;
  }
}

TEST(EtcdMessages, TheEndOfAPrefixIsTheLeastKeyBehindIt) {
  EXPECT_EQ(PrefixEnd("/a/"), "/a0");
  EXPECT_EQ(PrefixEnd("a\xff"), "b");
  EXPECT_EQ(PrefixEnd("\xff\xff"), std::string(1, '\0'));
}

TEST(EtcdMessages, BodiesHave64BitNumbersAsStrings) {
  EXPECT_EQ(
      EtcdRangeBody({.key = "k", .range_end = "l", .limit = 5, .revision = 9007199254740993, .serializable = true}),
      R"({"key":"aw==","range_end":"bA==","limit":"5","revision":"9007199254740993","serializable":true})");
  EXPECT_EQ(EtcdPutBody("k", "v", 7), R"({"key":"aw==","value":"dg==","lease":"7"})");
  EXPECT_EQ(EtcdSwapBody({.key = "k", .mod_revision = 3, .value = "v", .lease = 4}),
            R"({"compare":[{"key":"aw==","target":"MOD","result":"EQUAL","mod_revision":"3"}],)"
            R"("success":[{"request_put":{"key":"aw==","value":"dg==","lease":"4"}}],)"
            R"("failure":[{"request_range":{"key":"aw=="}}]})");
  EXPECT_THAT(EtcdSwapBody({.key = "k"}), HasSubstr(R"("success":[{"request_delete_range":{"key":"aw=="}}])"));
}

TEST(EtcdMessages, RepliesAsEtcdWritesThem) {
  const auto range = ParseEtcdRange(
      R"({"header":{"cluster_id":"14841639068965178418","member_id":"1","revision":"9007199254740993"},)"
      R"("kvs":[{"key":"aw==","create_revision":"2","mod_revision":"3","version":"1","value":"dg==","lease":"77"}],)"
      R"("more":true,"count":"9"})");
  ASSERT_TRUE(range.ok()) << range.error().message;
  EXPECT_EQ(range->header, (EtcdHeader{14841639068965178418u, 9007199254740993}));
  EXPECT_EQ(range->key_values, (std::vector<EtcdKeyValue>{{"k", "v", 3, 77}}));
  EXPECT_TRUE(range->more);

  const auto lost = ParseEtcdSwap(
      R"({"header":{"revision":"8"},"responses":[{"response_range":{"header":{"revision":"8"},"kvs":[{"key":"aw=="}]}}]})");
  ASSERT_TRUE(lost.ok());
  EXPECT_FALSE(lost->swapped);
  EXPECT_EQ(lost->current->key, "k");
  EXPECT_EQ(ParseEtcdKeepAlive(R"({"result":{"header":{"revision":"1"},"ID":"5"}})")->ttl_seconds, 0);

  const auto watch = ParseEtcdWatch(
      R"({"result":{"header":{"revision":"9"},"events":[{"kv":{"key":"aw==","mod_revision":"8","value":"dg=="}},)"
      R"({"type":"DELETE","kv":{"key":"aw==","mod_revision":"9"}}]}})");
  ASSERT_TRUE(watch.ok());
  ASSERT_EQ(watch->events.size(), 2u);
  EXPECT_FALSE(watch->events[0].deleted);
  EXPECT_TRUE(watch->events[1].deleted);
  const auto compacted = ParseEtcdWatch(R"({"result":{"header":{},"canceled":true,"compact_revision":"12"}})");
  EXPECT_EQ(compacted->compact_revision, 12);

  const EtcdFailure failure = ParseEtcdFailure(503, R"({"error":"etcdserver: no leader","message":"x","code":14})");
  EXPECT_EQ(failure.code, 14);
  EXPECT_EQ(ParseEtcdFailure(500, R"({"error":{"grpc_code":3,"message":"bad"}})").message, "bad");
  EXPECT_EQ(ParseEtcdFailure(502, "<html>").message, "status 502");
}

// Every cut of a good reply, and replies of another kind, are errors and nothing else.
TEST(EtcdMessages, ForeignAndBrokenRepliesAreErrors) {
  const std::string good =
      R"({"header":{"cluster_id":"1","revision":"2"},"kvs":[{"key":"aw==","mod_revision":"3","value":"dg=="}]})";
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(ParseEtcdRange(good.substr(0, size)).ok());
  for (const char* bad :
       {"[]", "7", "{}", R"({"header":7})", R"({"header":{"revision":"x"}})", R"({"header":{"revision":"-1"}})",
        R"({"header":{"revision":"99999999999999999999"}})", R"({"header":{"revision":1.5}})",
        R"({"header":{"revision":"1"},"kvs":{}})", R"({"header":{"revision":"1"},"kvs":[7]})",
        R"({"header":{"revision":"1"},"kvs":[{"key":"&"}]})", R"({"header":{"revision":"1"},"kvs":[{"key":7}]})"}) {
    const auto parsed = ParseEtcdRange(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnavailable);
  }
  for (const char* bad : {"{}", R"({"result":7})", R"({"error":{"message":"no"}})",
                          R"({"result":{"header":{"revision":"1"},"events":7}})",
                          R"({"result":{"header":{"revision":"1"},"events":[{}]}})"}) {
    EXPECT_FALSE(ParseEtcdWatch(bad).ok()) << bad;
  }
  EXPECT_FALSE(ParseEtcdGrant(R"({"ID":"1","TTL":"0"})").ok());
  EXPECT_FALSE(ParseEtcdSwap(R"({"header":{"revision":"1"}})").ok());
  EXPECT_FALSE(ParseEtcdSwap(R"({"header":{"revision":"1"},"responses":[7]})").ok());
  EXPECT_FALSE(ParseEtcdToken("{\"token\":\"a\\r\\nX: y\"}").ok());
}

}  // namespace
}  // namespace loramux::etcd_messages_test
