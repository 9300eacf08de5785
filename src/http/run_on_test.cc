#include "http/run_on.h"

#include <stdexcept>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <gtest/gtest.h>

namespace loramux::run_on_test {
namespace {

namespace asio = boost::asio;

// Runs one coroutine in a context of its own, which is destroyed as soon as the coroutine has ended.
template <typename Coroutine>
void RunInContext(Coroutine coroutine) {
  asio::io_context context(1);
  asio::co_spawn(asio::make_strand(context), std::move(coroutine), asio::detached);
  context.run();
}

// A context that ends while the other thread leaves its work. ThreadSanitizer sees a thread that comes too late.
TEST(RunOnTest, ContextMayEndAtOnce) {
  const OsClock clock;
  FairWorkQueue queue(clock, {});
  asio::thread_pool pool(1);
  int runs = 0;
  for (int i = 0; i < 500; ++i) {
    RunInContext([&]() -> asio::awaitable<void> { co_await RunOn(queue, "tenant", [&runs] { ++runs; }); });
    RunInContext([&]() -> asio::awaitable<void> { co_await RunOn(pool, [&runs] { ++runs; }); });
  }
  EXPECT_EQ(runs, 1000);
}

TEST(RunOnTest, WorkOfAClientThatIsGoneIsNotDone) {
  const OsClock clock;
  FairWorkQueue queue(clock, {});
  std::atomic<bool> gone = false;
  int runs = 0, resumed = 0;
  for (int i = 0; i < 3; ++i) {
    RunInContext([&]() -> asio::awaitable<void> {
      co_await RunOn(queue, "tenant", gone, [&runs] { ++runs; });
      ++resumed;
    });
    gone = true;
  }
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(resumed, 3);
}

TEST(RunOnTest, ExceptionsReachTheCaller) {
  const OsClock clock;
  FairWorkQueue queue(clock, {});
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
  RunInContext([&]() -> asio::awaitable<void> { co_await count(RunOn(queue, "tenant", fail)); });
  RunInContext([&]() -> asio::awaitable<void> { co_await count(RunOn(pool, fail)); });
  EXPECT_EQ(caught, 2);
}

}  // namespace
}  // namespace loramux::run_on_test
