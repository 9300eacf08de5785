// Which spans a request has, and where they belong.
#include "server/completion/request_spans.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/prng.h"

namespace loramux::request_spans_test {
namespace {

using testing::ElementsAre;

const std::string kTraceId = "0af7651916cd43dd8448eb211c80319c";
const std::string kParent = "00-" + kTraceId + "-b7ad6b7169203331-01";

RandomBits Bits() {
  return [prng = Prng(7)]() mutable { return prng.Next(); };
}

TracePlace Place(const std::string& traceparent, double share, const RandomBits& bits) {
  RequestTrace trace = NewTrace(bits);
  AdoptTrace(trace, "", traceparent, "vendor=1", bits);
  return PlaceInTrace(trace, traceparent, share, bits);
}

SequenceEnd Whole() {
  return {.reason = FinishReason::kStop,
          .adapter = "sql",
          .prompt_tokens = 5,
          .generated_tokens = 3,
          .received = 90,
          .arrival = 100,
          .first_scheduled = 200,
          .adapter_wait = 60,
          .first_token = 300,
          .last_token = 500,
          .now = 500};
}

const RequestFacts kFacts{.method = "POST",
                          .path = "/v1/completions",
                          .model = "sql",
                          .request_id = "r",
                          .received = 90,
                          .ended = 600,
                          .status = 200};

std::vector<std::string> NamesOf(const std::vector<Span>& spans) {
  std::vector<std::string> names;
  for (const Span& span : spans) names.push_back(span.name);
  return names;
}

template <typename T>
T AttributeOf(const Span& span, const std::string& key) {
  for (const auto& [name, value] : span.attributes) {
    if (name == key) return std::get<T>(value);
  }
  ADD_FAILURE() << "no attribute " << key;
  return {};
}

TEST(PlaceInTrace, FollowsTheCaller) {
  const RandomBits bits = Bits();
  const TracePlace place = Place(kParent, 0, bits);
  EXPECT_TRUE(place.sampled);
  EXPECT_EQ(place.trace_id, kTraceId);
  EXPECT_EQ(place.parent_id, "b7ad6b7169203331");
  EXPECT_EQ(place.span_id.size(), 16u);
  EXPECT_EQ(place.tracestate, "vendor=1");
  EXPECT_FALSE(Place(kParent.substr(0, 53) + "00", 1, bits).sampled);
}

TEST(PlaceInTrace, RequestsWithoutATraceHaveTheirShare) {
  const RandomBits bits = Bits();
  EXPECT_FALSE(Place("", 0, bits).sampled);
  EXPECT_FALSE(Place("not a trace", 0, bits).sampled);
  const TracePlace all = Place("", 1, bits);
  EXPECT_TRUE(all.sampled);
  EXPECT_EQ(all.trace_id.size(), 32u);
  EXPECT_EQ(all.parent_id, "");
  int sampled = 0;
  for (int i = 0; i < 1000; ++i) sampled += Place("", 0.25, bits).sampled ? 1 : 0;
  EXPECT_NEAR(sampled, 250, 60);
}

TEST(SpansOf, AWholeSequence) {
  const RandomBits bits = Bits();
  const TracePlace place = Place(kParent, 0, bits);
  const std::vector<SequenceEnd> sequences{Whole()};
  const std::vector<Span> spans = SpansOf(place, kFacts, sequences, bits);
  ASSERT_THAT(NamesOf(spans), ElementsAre("POST /v1/completions", "queue", "load", "prefill", "decode"));
  std::map<std::string, std::pair<TimeNs, TimeNs>> times;
  std::map<std::string, int> ids;
  for (const Span& span : spans) {
    times[span.name] = {span.start, span.end};
    ++ids[span.span_id];
    EXPECT_EQ(span.trace_id, kTraceId);
    EXPECT_EQ(span.parent_id, &span == &spans[0] ? place.parent_id : place.span_id);
  }
  EXPECT_EQ(ids.size(), spans.size());
  EXPECT_EQ(spans[0].span_id, place.span_id);
  EXPECT_EQ(spans[0].kind, SpanKind::kServer);
  EXPECT_EQ(times["POST /v1/completions"], std::pair(TimeNs{90}, TimeNs{600}));
  EXPECT_EQ(times["queue"], std::pair(TimeNs{100}, TimeNs{200}));
  EXPECT_EQ(times["load"], std::pair(TimeNs{100}, TimeNs{160}));
  EXPECT_EQ(times["prefill"], std::pair(TimeNs{200}, TimeNs{300}));
  EXPECT_EQ(times["decode"], std::pair(TimeNs{300}, TimeNs{500}));
  EXPECT_EQ(AttributeOf<std::string>(spans[0], "loramux.adapter"), "sql");
  EXPECT_EQ(AttributeOf<std::int64_t>(spans[0], "gen_ai.usage.output_tokens"), 3);
  EXPECT_DOUBLE_EQ(AttributeOf<double>(spans[0], "gen_ai.server.time_to_first_token"), 210e-9);
}

TEST(SpansOf, WhatDidNotHappenHasNoSpan) {
  const RandomBits bits = Bits();
  const TracePlace place = Place(kParent, 0, bits);
  SequenceEnd queued = Whole();
  queued.first_scheduled = queued.first_token = queued.last_token = queued.adapter_wait = 0;
  EXPECT_THAT(NamesOf(SpansOf(place, kFacts, {&queued, 1}, bits)), ElementsAre("POST /v1/completions", "queue"));
  SequenceEnd unanswered = Whole();
  unanswered.first_token = unanswered.last_token = unanswered.adapter_wait = 0;
  EXPECT_THAT(NamesOf(SpansOf(place, kFacts, {&unanswered, 1}, bits)),
              ElementsAre("POST /v1/completions", "queue", "prefill"));
  RequestFacts refused = kFacts;
  refused.status = 503;
  const std::vector<Span> spans = SpansOf(place, refused, {}, bits);
  EXPECT_THAT(NamesOf(spans), ElementsAre("POST /v1/completions"));
  EXPECT_TRUE(spans[0].failed);
}

TEST(SpansOf, ManySequencesAreBounded) {
  const RandomBits bits = Bits();
  const std::vector<SequenceEnd> sequences(200, Whole());
  const std::vector<Span> spans = SpansOf(Place(kParent, 0, bits), kFacts, sequences, bits);
  EXPECT_EQ(spans.size(), 1 + 4 * kMaxTracedSequences);
  EXPECT_EQ(AttributeOf<std::int64_t>(spans[0], "loramux.sequences"), 200);
}

}  // namespace
}  // namespace loramux::request_spans_test
