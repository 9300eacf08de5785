#include "runtime/history_keeper.h"

#include <chrono>
#include <fstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/wait_until_for_test.h"

namespace loramux::history_keeper_test {
namespace {

namespace fs = std::filesystem;

class HistoryKeeperTest : public testing::Test {
 protected:
  HistoryKeeperTest() {
    std::string pattern = (fs::temp_directory_path() / "loramux_history_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~HistoryKeeperTest() override { fs::remove_all(folder_); }
  fs::path file() const { return folder_ / "output_lengths"; }
  std::string Content() const {
    const auto bytes = OsFileSystem().Read(file());
    return bytes.ok() ? *bytes : "";
  }
  static void Learn(HistoryPredictor& history) {
    for (int i = 0; i < 100; ++i)
      history.Observe({.adapter_digest = "a", .prompt_tokens = 9, .max_output_tokens = 1000}, 40);
  }
  static std::int32_t Guess(HistoryPredictor& history) {
    return history.Predict({.adapter_digest = "a", .prompt_tokens = 9, .max_output_tokens = 1000});
  }
  fs::path folder_;
};

TEST_F(HistoryKeeperTest, WhatWasLearnedIsThereAfterARestart) {
  HistoryPredictor first, second;
  {
    const HistoryKeeper keeper(&OsFileSystem(), file(), &first);
    Learn(first);
  }
  const HistoryKeeper keeper(&OsFileSystem(), file(), &second);
  EXPECT_EQ(Guess(second), Guess(first));
  EXPECT_NEAR(Guess(second), 40, 4);
}

TEST_F(HistoryKeeperTest, IsWrittenNowAndThen) {
  HistoryPredictor history;
  const HistoryKeeper keeper(&OsFileSystem(), file(), &history, std::chrono::milliseconds(5));
  Learn(history);
  const std::string expected = history.Serialise();
  EXPECT_TRUE(WaitUntil([&] { return Content() == expected; }));
}

TEST_F(HistoryKeeperTest, ADamagedFileIsIgnoredAndReplaced) {
  std::ofstream(file()) << "LORAMUXH but then something else entirely, of some length";
  HistoryPredictor history, after;
  {
    const HistoryKeeper keeper(&OsFileSystem(), file(), &history);
    EXPECT_EQ(history.adapters(), 0u);
    Learn(history);
  }
  EXPECT_TRUE(after.Restore(Content()).ok());
  EXPECT_FALSE(fs::exists(folder_ / "output_lengths.new"));
}

TEST_F(HistoryKeeperTest, AFolderThatIsGoneFailsNothing) {
  HistoryPredictor history;
  fs::remove_all(folder_);
  {
    const HistoryKeeper keeper(&OsFileSystem(), file(), &history);
    Learn(history);
  }
  EXPECT_NEAR(Guess(history), 40, 4);
}

}  // namespace
}  // namespace loramux::history_keeper_test
