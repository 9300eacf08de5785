// The sums that a choice reads, against sums written out here.
#include "cluster/server_load.h"

#include <tuple>

#include "base/prng.h"
#include "cluster/own_dispatches.h"
#include "cluster/route_world_for_test.h"

namespace loramux::server_load_test {
namespace {

ServerSnapshot TwoAdapters() {
  ServerSnapshot snapshot{.instance = "i", .version = 1, .running = 5, .waiting = 2};
  snapshot.waiting_prompt_tokens = 200;
  snapshot.running_context = 1000;
  snapshot.page_tokens = 16;
  snapshot.adapters = {
      {.name = "a", .place = AdapterPlace::kDevice, .rank = 8, .bytes = 100, .running = 3},
      {.name = "b", .place = AdapterPlace::kHost, .rank = 64, .bytes = 800, .running = 0, .waiting = 1}};
  return snapshot;
}

OwnDispatch Sent(std::string adapter, std::int32_t rank, TimeNs at = 0) {
  OwnDispatch dispatch{.at = at, .request = RequestFor(adapter, rank)};
  dispatch.request.adapter_bytes = 50;
  return dispatch;
}

TEST(ServerLoad, OfASnapshot) {
  const ServerSnapshot snapshot = TwoAdapters();
  const ServerLoad load = ServerLoad::Of(snapshot);
  EXPECT_EQ(load.requests(), 7);
  EXPECT_EQ(load.queue.prefill_tokens, 200);
  EXPECT_EQ(load.queue.prefill_attention, 2 * (100 * 101 / 2));
  EXPECT_EQ(load.queue.adapter_tokens, 100);  // the tokens of `b`; the other prompt is for the base model
  EXPECT_EQ(load.queue.max_rank, 64);
  EXPECT_EQ(load.exists.decode_sequences, 7);
  EXPECT_EQ(load.exists.decode_context, 1200);
  EXPECT_EQ(load.exists.adapter_tokens, 4);
  EXPECT_EQ(load.exists.token_ranks, 3 * 8 + 64);
  EXPECT_EQ(load.exists.rank_sum, 72);
  EXPECT_EQ(load.exists.distinct_adapters, 2);
  EXPECT_EQ(load.arriving_bytes, 800);
  EXPECT_EQ(load.claimed_pages, 13);
}

TEST(ServerLoad, WithRequestsSentAndEndedSince) {
  const ServerSnapshot snapshot = TwoAdapters();
  ServerLoad load = ServerLoad::Of(snapshot);
  load.AddSent(Sent("c", 128, 5), &snapshot);
  load.AddSent(Sent("c", 128, 6), &snapshot);
  load.AddSent(Sent("a", 8), &snapshot);
  OwnDispatch answered = Sent("", 0);
  answered.answered = true;
  load.AddSent(answered, &snapshot);
  EXPECT_EQ(load.running, 6);
  EXPECT_EQ(load.waiting, 5);
  EXPECT_EQ(load.queue.prefill_tokens, 200 + 900);
  EXPECT_EQ(load.exists.rank_sum, 72 + 128);
  EXPECT_EQ(load.exists.distinct_adapters, 3);
  EXPECT_EQ(load.exists.token_ranks, 88 + 2 * 128 + 8);
  EXPECT_EQ(load.exists.max_rank, 128);
  EXPECT_EQ(load.arriving_bytes, 850);  // `c` is fetched once
  const ServerView view{.snapshot = &snapshot, .load = &load};
  EXPECT_EQ(StateOf(view, "c").sent_at, 5);
  EXPECT_EQ(StateOf(view, "c").queued, 2);
  EXPECT_EQ(StateOf(view, "a").requests, 4);
  for (int i = 0; i < 3; ++i) load.AddEnded(RequestFor("a", 8), &snapshot);
  EXPECT_EQ(load.running, 3);
  EXPECT_EQ(StateOf(view, "a").requests, 1);  // the one sent since
  EXPECT_EQ(load.exists.rank_sum, 72 + 128);
  ServerLoad ended = ServerLoad::Of(snapshot);
  for (int i = 0; i < 3; ++i) ended.AddEnded(RequestFor("a", 8), &snapshot);
  EXPECT_EQ(ended.exists.rank_sum, 64);
  EXPECT_EQ(ended.exists.distinct_adapters, 1);
  EXPECT_EQ(ended.exists.decode_sequences, 4);
}

TEST(ServerLoad, ARequestStandsForThoseOfOtherRouters) {
  ServerLoad load;
  load.AddSent(Sent("c", 16), nullptr, 3);
  EXPECT_EQ(load.waiting, 3);
  EXPECT_EQ(load.queue.prefill_tokens, 900);
  EXPECT_EQ(load.queue.token_ranks, 900 * 16);
  EXPECT_EQ(load.queue.rank_sum, 16);  // one adapter
  EXPECT_EQ(load.exists.decode_sequences, 3);
}

// All but the largest rank.
auto SumsOf(const StepLoad& step) {
  return std::tuple(step.prefill_tokens, step.decode_sequences, step.prefill_attention, step.decode_context,
                    step.adapter_tokens, step.rank_sum, step.distinct_adapters, step.token_ranks,
                    step.prefill_sequences, step.prefill_context);
}

// Requests come, are answered and end in any order: the sums are those of the requests that are left.
TEST(ServerLoad, WhatWasAddedCanBeTakenAway) {
  const ServerSnapshot snapshot = TwoAdapters();
  for (const ServerSnapshot* known : {static_cast<const ServerSnapshot*>(nullptr), &snapshot}) {
    Prng prng(7);
    const ServerLoad empty = known == nullptr ? ServerLoad() : ServerLoad::Of(*known);
    ServerLoad load = empty;
    std::vector<OwnDispatch> sent;
    for (int i = 0; i < 3000; ++i) {
      const std::uint64_t what = sent.size() < 5 ? 0 : prng.NextBelow(sent.size() > 60 ? 4 : 3);
      const std::size_t which = sent.empty() ? 0 : prng.NextBelow(sent.size());
      if (what == 0) {
        const auto adapter = static_cast<std::int32_t>(prng.NextBelow(5));  // 0: the base model; "a" and "b" are listed
        sent.push_back(Sent(adapter == 0 ? "" : std::string(1, static_cast<char>('a' + adapter - 1)), 8 * adapter, i));
        load.AddSent(sent.back(), known, 3);
      } else {
        load.RemoveSent(sent[which], known, 3);
        if (what == 1 && !sent[which].answered) {
          sent[which].answered = true;
          load.AddSent(sent[which], known, 3);
        } else {
          sent.erase(sent.begin() + static_cast<std::ptrdiff_t>(which));
        }
      }
      ServerLoad whole = empty;
      for (const OwnDispatch& dispatch : sent) whole.AddSent(dispatch, known, 3);
      ASSERT_EQ(load.running, whole.running) << i;
      ASSERT_EQ(load.waiting, whole.waiting) << i;
      ASSERT_EQ(load.arriving_bytes, whole.arriving_bytes) << i;
      ASSERT_EQ(load.claimed_pages, whole.claimed_pages) << i;
      ASSERT_EQ(load.changes.size(), whole.changes.size()) << i;
      ASSERT_EQ(SumsOf(load.queue), SumsOf(whole.queue)) << i;
      ASSERT_EQ(SumsOf(load.exists), SumsOf(whole.exists)) << i;
      for (const ServerLoad::Change& change : whole.changes) {
        ASSERT_EQ(load.Find(change.adapter)->sent, change.sent) << i;
        ASSERT_EQ(load.Find(change.adapter)->queued, change.queued) << i;
      }
    }
  }
}

TEST(OwnDispatches, ASnapshotCountsWhatWasSentBefore) {
  OwnDispatches own;
  for (std::uint64_t a = 1; a <= 4; ++a) own.Send(a, RequestFor("x"), static_cast<TimeNs>(a));
  own.CountedAt(2);
  EXPECT_EQ(own.sent().size(), 2u);
  EXPECT_EQ(own.counted(), 2);
  EXPECT_TRUE(own.Answered(3));
  EXPECT_FALSE(own.Answered(1));
  EXPECT_TRUE(own.sent()[0].answered);
  EXPECT_EQ(own.End(1, true, 10), 1);  // the snapshot still counts it
  EXPECT_EQ(own.End(4, true, 11), 4);  // and never counted this one
  EXPECT_EQ(own.ended().size(), 1u);
  EXPECT_EQ(own.in_flight(), 2);
  own.CountedAt(10);
  EXPECT_TRUE(own.ended().empty());
  EXPECT_TRUE(own.sent().empty());
  EXPECT_EQ(own.in_flight(), 2);
  own.CountAll();
  EXPECT_EQ(own.sent().size(), 2u);
  EXPECT_EQ(own.sent()[0].attempt, 2u);
  own.End(2, false, 12);
  own.End(3, false, 12);
  EXPECT_TRUE(own.ended().empty());
  EXPECT_EQ(own.in_flight(), 0);
}

}  // namespace
}  // namespace loramux::server_load_test
