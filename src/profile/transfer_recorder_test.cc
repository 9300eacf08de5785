#include "profile/transfer_recorder.h"

#include <array>

#include <gtest/gtest.h>

namespace loramux::transfer_recorder_test {
namespace {

// Completes the jobs that the test tells it to.
class ToldTransfer final : public PageTransfer {
 public:
  explicit ToldTransfer(std::vector<TransferCompletion>* told) : told_(told) {}
  void Submit(TransferJob) override {}
  std::optional<TransferCompletion> Poll() override {
    if (told_->empty()) return std::nullopt;
    const TransferCompletion completion = told_->front();
    told_->erase(told_->begin());
    return completion;
  }

 private:
  std::vector<TransferCompletion>* told_;
};

class TransferRecorderTest : public testing::Test {
 protected:
  TransferJob Job(std::uint64_t id, TransferKind kind, std::size_t pages) {
    const bool disk = kind == TransferKind::kDiskToHost;
    return {.id = id,
            .from = {disk ? Tier::kDisk : Tier::kHost, std::vector<std::uint32_t>(disk ? 0 : pages)},
            .to = {disk ? Tier::kHost : Tier::kDevice, std::vector<std::uint32_t>(pages)},
            .page_bytes = 64};
  }
  std::vector<TransferCompletion> told_;
  std::vector<ObservedTransfer> seen_;
  TransferRecorder recorder_{std::make_unique<ToldTransfer>(&told_), &seen_};
};

TEST_F(TransferRecorderTest, WhatCameIsKeptOnce) {
  recorder_.Submit(Job(7, TransferKind::kHostToDevice, 3));
  EXPECT_FALSE(recorder_.Poll().has_value());
  told_ = {{7, std::nullopt}};
  EXPECT_EQ(recorder_.Poll()->id, 7u);
  ASSERT_EQ(seen_.size(), 1u);
  EXPECT_EQ(seen_[0].kind, TransferKind::kHostToDevice);
  EXPECT_TRUE(seen_[0].kv);
  EXPECT_EQ(seen_[0].bytes, 192);
  EXPECT_GT(seen_[0].seconds_ns, 0);
}

TEST_F(TransferRecorderTest, AnAdapterCountsWithoutTheRestOfItsLastPage) {
  auto version = std::make_shared<AdapterVersion>();
  version->layout.payload_bytes = 100;
  TransferJob job = Job(1, TransferKind::kDiskToHost, 2);
  job.adapter = version;
  recorder_.Submit(std::move(job));
  told_ = {{1, std::nullopt}};
  recorder_.Poll();
  ASSERT_EQ(seen_.size(), 1u);
  EXPECT_FALSE(seen_[0].kv);
  EXPECT_EQ(seen_[0].bytes, 100);
}

TEST_F(TransferRecorderTest, WhatFailsOrIsCancelledIsLeftOut) {
  recorder_.Submit(Job(1, TransferKind::kHostToDevice, 1));
  recorder_.Submit(Job(2, TransferKind::kHostToDevice, 1));
  told_ = {{1, IoError("injected")}, {2, std::nullopt, /*cancelled=*/true}};
  EXPECT_TRUE(recorder_.Poll()->error.has_value());
  EXPECT_TRUE(recorder_.Poll()->cancelled);
  EXPECT_TRUE(seen_.empty());
}

// With one worker for each queue, the second job does not begin before the first has ended.
TEST_F(TransferRecorderTest, WaitingForTheJobBeforeIsNotItsTime) {
  const OsClock clock;
  recorder_.Submit(Job(1, TransferKind::kHostToDevice, 1));
  recorder_.Submit(Job(2, TransferKind::kHostToDevice, 1));
  TransferJob read = Job(3, TransferKind::kDiskToHost, 1);
  read.adapter = std::make_shared<AdapterVersion>();
  recorder_.Submit(std::move(read));
  const TimeNs submitted = clock.Now();
  while (clock.Now() < submitted + 5 * kNsPerMs) {
  }
  const TimeNs before = clock.Now();
  told_ = {{1, std::nullopt}};
  recorder_.Poll();
  told_ = {{3, std::nullopt}, {2, std::nullopt}};
  recorder_.Poll();
  recorder_.Poll();
  ASSERT_EQ(seen_.size(), 3u);
  EXPECT_GE(seen_[0].seconds_ns, 5 * kNsPerMs);
  EXPECT_GE(seen_[1].seconds_ns, 5 * kNsPerMs) << "a job of another queue does not wait";
  EXPECT_LE(seen_[2].seconds_ns, clock.Now() - before);
}

}  // namespace
}  // namespace loramux::transfer_recorder_test
