// Request ids and trace contexts: which values are adopted from clients, and which are ignored.
#include "http/request_trace.h"

#include <gmock/gmock.h>

#include "base/prng.h"

namespace loramux::request_trace_test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Pair;

const std::string kTraceId = "0af7651916cd43dd8448eb211c80319c";
const std::string kParent = "00-" + kTraceId + "-b7ad6b7169203331-01";

RandomBits Bits() {
  return [prng = Prng(3)]() mutable { return prng.Next(); };
}

RequestTrace Adopted(std::string_view id, std::string_view traceparent = "", std::string_view tracestate = "") {
  const RandomBits bits = Bits();
  RequestTrace trace = NewTrace(bits);
  AdoptTrace(trace, id, traceparent, tracestate, bits);
  return trace;
}

TEST(RequestTrace, TakesASaneId) {
  for (const std::string& id : {std::string("a"), std::string("Req_1.2-3"), std::string(128, 'z')}) {
    EXPECT_EQ(Adopted(id).request_id, id);
  }
}

TEST(RequestTrace, MakesAnIdOtherwise) {
  for (const std::string& id : {std::string(), std::string(129, 'z'), std::string("a b"), std::string("a\r\nX: y"),
                                std::string("\xc3\xa9"), std::string("a,b"), std::string(1, '\0')}) {
    const RequestTrace trace = Adopted(id);
    EXPECT_NE(trace.request_id, id);
    EXPECT_EQ(trace.request_id.size(), 32u);
  }
  const RandomBits bits = Bits();
  EXPECT_NE(NewTrace(bits).request_id, NewTrace(bits).request_id);
}

TEST(RequestTrace, ContinuesATrace) {
  const RequestTrace trace = Adopted("x", kParent, "vendor=a b, other@x=1");
  EXPECT_EQ(trace.trace_id, kTraceId);
  EXPECT_EQ(trace.span_id.size(), 16u);
  EXPECT_NE(trace.span_id, "b7ad6b7169203331");
  EXPECT_THAT(trace.Headers(), ElementsAre(Pair("X-Request-Id", "x"),
                                           Pair("traceparent", "00-" + kTraceId + "-" + trace.span_id + "-01"),
                                           Pair("tracestate", "vendor=a b, other@x=1")));
}

TEST(RequestTrace, KeepsOnlyTheSampledFlag) {
  const std::string base = kParent.substr(0, 53);
  EXPECT_TRUE(Adopted("", base + "ff").sampled);
  EXPECT_FALSE(Adopted("", base + "fe").sampled);
  EXPECT_THAT(Adopted("", base + "02").Headers().back().second, testing::EndsWith("-00"));
}

TEST(RequestTrace, TakesLaterVersionsThatBeginLikeTheFirst) {
  EXPECT_EQ(Adopted("", "cc" + kParent.substr(2)).trace_id, kTraceId);
  EXPECT_EQ(Adopted("", "cc" + kParent.substr(2) + "-what-the-future-brings").trace_id, kTraceId);
}

TEST(RequestTrace, IgnoresMalformedTraceParents) {
  std::string upper = kParent, dash = kParent, letter = kParent;
  upper[4] = 'A';
  dash[35] = '_';
  letter[50] = 'g';
  const std::string zeros(32, '0');
  for (const std::string& bad :
       {std::string(), std::string("00"), kParent.substr(1), kParent + "-", kParent + "0", upper, dash, letter,
        "ff" + kParent.substr(2), "cc" + kParent.substr(2) + "x", "00-" + zeros + kParent.substr(35),
        kParent.substr(0, 36) + zeros.substr(0, 16) + "-01", kParent.substr(0, 53) + "0G", std::string(55, '-')}) {
    const RequestTrace trace = Adopted("", bad, "a=b");
    EXPECT_TRUE(trace.trace_id.empty()) << bad;
    EXPECT_TRUE(trace.tracestate.empty()) << bad;
    EXPECT_EQ(trace.Headers().size(), 1u) << bad;
  }
}

TEST(RequestTrace, IgnoresMalformedTraceStates) {
  std::string many = "a=b";
  for (int i = 0; i < 32; ++i) many += ",a=b";
  for (const std::string& bad : {std::string("a"), std::string("=b"), std::string("A=b"), std::string("a=b\x01"), many,
                                 std::string("a=b=c"), "a=" + std::string(511, 'x'), std::string(",")}) {
    const RequestTrace trace = Adopted("", kParent, bad);
    EXPECT_EQ(trace.trace_id, kTraceId);
    EXPECT_TRUE(trace.tracestate.empty()) << bad;
  }
}

}  // namespace
}  // namespace loramux::request_trace_test
