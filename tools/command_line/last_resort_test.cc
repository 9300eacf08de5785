#include "tools/command_line/last_resort.h"

#include <csignal>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace loramux::last_resort_test {
namespace {

using testing::ExitedWithCode;

TEST(LastResort, TheExitCodeIsThatOfTheProgram) {
  EXPECT_EXIT(std::_Exit(RunToTheEnd([] { return 7; })), ExitedWithCode(7), "^$");
}

TEST(LastResort, AnExceptionIsAMessageAndAnExitCode) {
  EXPECT_EXIT(std::_Exit(RunToTheEnd([]() -> int { throw std::length_error("too long"); })), ExitedWithCode(1),
              "^loramux: an unexpected error ended the command: too long. Please report it");
  EXPECT_EXIT(std::_Exit(RunToTheEnd([]() -> int { throw std::bad_alloc(); })), ExitedWithCode(1),
              "^loramux: not enough memory");
  EXPECT_EXIT(std::_Exit(RunToTheEnd([]() -> int { throw 7; })), ExitedWithCode(1), "^loramux: an unexpected error");
}

TEST(LastResort, SoIsOneThatLeavesAThread) {
  const auto run = [] {
    std::thread([] { throw std::out_of_range("far out"); }).join();
    return 0;
  };
  EXPECT_EXIT(std::_Exit(RunToTheEnd(run)), ExitedWithCode(1), "^loramux: an unexpected error .*: far out");
}

TEST(LastResort, AFailedCheckStillAborts) {
  EXPECT_EXIT(RunToTheEnd([]() -> int { std::terminate(); }), testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace loramux::last_resort_test
