// Steps that the executor cannot compute: one that fails by itself, and a device that is lost.
#include "engine/engine_world_for_test.h"

namespace loramux::executor_failure_test {
namespace {

using World = AdapterWorld;

const std::vector<TokenId> kPrompt(9, 5);

// Runs until requests are computed.
void Begin(World& w) {
  while (w.engine->Stats().tokens_generated == 0) ASSERT_TRUE(w.Advance());
}

TEST(ExecutorFailure, AFailedStepEndsItsSequencesAndNoOthers) {
  World w(40, 20, {.max_running = 2}, {3, 3});
  const RequestId first = *w.Submit(kPrompt, 1, 20), second = *w.Submit(kPrompt, 2, 20),
                  waiting = *w.Submit(kPrompt, 1, 4);
  Begin(w);
  w.executor->set_fault(ResourceExhausted("no memory for the step"));
  while (w.outcomes[first].ends == 0) ASSERT_TRUE(w.Advance());
  w.executor->set_fault(std::nullopt);
  w.Drain();
  for (const RequestId id : {first, second}) {
    EXPECT_EQ(w.outcomes[id].finish, FinishReason::kError);
    EXPECT_EQ(w.outcomes[id].error, "no memory for the step");
    EXPECT_EQ(w.outcomes[id].ends, 1);
  }
  EXPECT_EQ(w.outcomes[waiting].tokens, ExpectedTokens(AdapterGeneration{1}, kPrompt, 4));
  EXPECT_TRUE(w.engine->Health().ok());
  const RequestId later = *w.Submit(kPrompt, 2, 4);  // what the failed step wrote is not history
  w.Drain();
  EXPECT_EQ(w.outcomes[later].tokens, ExpectedTokens(AdapterGeneration{2}, kPrompt, 4));
}

// One sequence of three fails, in prefill or in decode.
TEST(ExecutorFailure, ASequenceThatFailsAloneHarmsNoOther) {
  for (const bool decoding : {false, true}) {
    SCOPED_TRACE(decoding);
    World w(40, 20, {}, {3, 3});
    const RequestId first = *w.Submit(kPrompt, 1, 12), second = *w.Submit(kPrompt, 2, 12),
                    third = *w.Submit(kPrompt, 2, 12);
    if (decoding) {
      while (w.outcomes[second].tokens.size() < 3) ASSERT_TRUE(w.Advance());
    }
    w.executor->set_failing(second);
    w.Drain();  // checks that all pages are accounted for
    EXPECT_EQ(w.outcomes[second].finish, FinishReason::kError);
    EXPECT_EQ(w.outcomes[second].error, "no answer in time");
    EXPECT_EQ(w.outcomes[first].tokens, ExpectedTokens(AdapterGeneration{1}, kPrompt, 12));
    EXPECT_EQ(w.outcomes[third].tokens, ExpectedTokens(AdapterGeneration{2}, kPrompt, 12));
    w.executor->set_failing({});
    const RequestId later = *w.Submit(kPrompt, 2, 4);  // what failed is not history
    w.Drain();
    EXPECT_EQ(w.outcomes[later].tokens, ExpectedTokens(AdapterGeneration{2}, kPrompt, 4));
  }
}

TEST(ExecutorFailure, ALostDeviceEndsAllRequestsAndRefusesLaterOnes) {
  for (const bool early : {false, true}) {  // early: while adapters and pins are still loading
    SCOPED_TRACE(early);
    World w(40, 20, {.max_running = 2}, {3, 3, 3}, /*prefix_cache=*/true, "lru", early ? 3 * 64 / 1e-1 : 10e9);
    std::vector<RequestId> ids;
    for (int i = 0; i < 5; ++i) ids.push_back(*w.Submit(kPrompt, static_cast<std::uint32_t>(1 + i % 2), 20));
    const RequestId base = *w.Submit({1, 2, 3}, 0, 20);
    ids.push_back(base);
    if (!early) Begin(w);
    Status pinned = Ok{}, unpinned = Ok{};
    w.engine->SetPinned(w.registry.Find(AdapterGeneration{3}), true, [&](Status status) { pinned = status; });
    if (early) {
      while (w.engine->Step()) {
      }
    }
    w.executor->set_fault(Unavailable("the device is lost"));
    w.Drain();  // checks that all pages are accounted for
    for (const RequestId id : ids) {
      EXPECT_EQ(w.outcomes[id].finish, FinishReason::kError);
      EXPECT_EQ(w.outcomes[id].error, "the device is lost");
      EXPECT_EQ(w.outcomes[id].ends, 1);
    }
    if (early) {
      ASSERT_FALSE(pinned.ok());
      EXPECT_EQ(pinned.error().message, "the device is lost");
    }
    ASSERT_FALSE(w.engine->Health().ok());
    EXPECT_EQ(w.engine->Health().error().message, "the device is lost");
    EXPECT_EQ(w.Submit(kPrompt, 1, 4).error().message, "the device is lost");
    w.engine->SetPinned(w.registry.Find(AdapterGeneration{2}), true, [&](Status status) { unpinned = status; });
    EXPECT_FALSE(unpinned.ok());
    EXPECT_EQ(w.engine->Stats().running + w.engine->Stats().waiting, 0);
    EXPECT_FALSE(w.engine->Step());  // nothing is planned any more
    w.engine->CheckIntegrity();
  }
}

// The step that fails uses an adapter or a history that is still arriving, and whose transfer may fail too.
TEST(ExecutorFailure, WhileTransfersArrive) {
  for (const bool transfer_fails : {false, true}) {
    for (const bool lost : {false, true}) {
      World w(40, 20, {}, {8}, /*prefix_cache=*/true, "lru", /*host_bytes_per_second=*/8 * 64 / 20e-3);
      if (transfer_fails) {
        w.transfer.set_fault([](const TransferJob& job) {
          return job.kind() == TransferKind::kHostToDevice ? std::optional<Error>(IoError("injected")) : std::nullopt;
        });
      }
      const RequestId id = *w.Submit(kPrompt, 1, 4);
      for (int i = 0; i < 1000 && w.engine->Stats().early_admissions == 0; ++i) ASSERT_TRUE(w.Advance());
      w.executor->set_fault(lost ? Unavailable("lost") : ResourceExhausted("full"));
      w.Drain();
      EXPECT_EQ(w.outcomes[id].error, lost ? "lost" : "full");
      EXPECT_EQ(w.outcomes[id].ends, 1);
      EXPECT_EQ(w.engine->Health().ok(), !lost);
    }
  }
}

}  // namespace
}  // namespace loramux::executor_failure_test
