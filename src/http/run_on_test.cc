#include "http/run_on.h"

#include <stdexcept>

#include <gtest/gtest.h>

#include "http/run_in_context_for_test.h"

namespace loramux::run_on_test {
namespace {

namespace asio = boost::asio;

// A context that ends while the other thread leaves its work. ThreadSanitizer sees a thread that comes too late.
TEST(RunOnTest, ContextMayEndAtOnce) {
  asio::thread_pool pool(1);
  int runs = 0;
  for (int i = 0; i < 500; ++i) {
    RunInContext([&]() -> asio::awaitable<void> { co_await RunOn(pool, [&runs] { ++runs; }); });
  }
  EXPECT_EQ(runs, 500);
}

TEST(RunOnTest, ExceptionsReachTheCaller) {
  asio::thread_pool pool(1);
  int caught = 0;
  const auto fail = [] { throw std::runtime_error("work"); };
  const auto count = [&caught](asio::awaitable<void> work) -> asio::awaitable<void> {
    try {
      co_await std::move(work);
    } catch (const std::runtime_error&) {
      ++caught;
    }
  };
  RunInContext([&]() -> asio::awaitable<void> { co_await count(RunOn(pool, fail)); });
  EXPECT_EQ(caught, 1);
}

}  // namespace
}  // namespace loramux::run_on_test
