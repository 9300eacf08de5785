#include "kernels/thread_pool.h"

#include <atomic>
#include <chrono>
#include <thread>

namespace loramux::thread_pool_test {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8));

TEST_P(ThreadPoolTest, RunsEveryTaskOnce) {
  ThreadPool pool(GetParam());
  for (std::int64_t tasks : {0, 1, 2, 3, 7, 100, 1000}) {
    std::vector<int> runs(static_cast<std::size_t>(tasks), 0);  // plain ints: the end of Run must order the writes
    pool.Run(tasks, [&](std::int64_t task, int thread) {
      EXPECT_GE(thread, 0);
      EXPECT_LT(thread, pool.size());
      ++runs[static_cast<std::size_t>(task)];
    });
    for (int count : runs) EXPECT_EQ(count, 1);
  }
}

TEST_P(ThreadPoolTest, ManyShortLoopsSeeEachOthersWrites) {
  ThreadPool pool(GetParam());
  std::vector<std::int64_t> values(64, 0);
  for (std::int64_t loop = 0; loop < 5000; ++loop) {
    pool.Run(64, [&](std::int64_t task, int) {
      // In the last loop, any thread may have written a neighbour's value.
      if (values[static_cast<std::size_t>(task)] == loop) values[static_cast<std::size_t>(task)] = loop + 1;
    });
  }
  for (std::int64_t value : values) EXPECT_EQ(value, 5000);
}

TEST_P(ThreadPoolTest, NoThreadRunsTwoTasksAtOnce) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> inside(static_cast<std::size_t>(pool.size()));
  pool.Run(500, [&](std::int64_t, int thread) {
    EXPECT_EQ(inside[static_cast<std::size_t>(thread)].fetch_add(1), 0);
    inside[static_cast<std::size_t>(thread)].fetch_sub(1);
  });
}

TEST_P(ThreadPoolTest, WakesWorkersThatSleep) {
  ThreadPool pool(GetParam());
  for (int loop = 0; loop < 5; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // much longer than the spin
    std::atomic<int> arrived{0};
    // Each task waits for the others, so they end only if every thread of the pool wakes up.
    pool.Run(pool.size(), [&](std::int64_t, int) {
      arrived.fetch_add(1);
      while (arrived.load() < pool.size()) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), pool.size());
  }
}

// Workers end long after the caller has run out of tasks, as if the system had taken a worker's processor away. The
// caller sleeps and must be woken.
TEST_P(ThreadPoolTest, TheCallerWaitsForWorkersThatTakeTheirTime) {
  ThreadPool pool(GetParam());
  for (int loop = 0; loop < 20; ++loop) {
    std::vector<int> runs(static_cast<std::size_t>(pool.size()), 0);
    std::atomic<int> arrived{0};
    pool.Run(pool.size(), [&](std::int64_t task, int thread) {
      arrived.fetch_add(1);
      while (arrived.load() < pool.size()) std::this_thread::yield();  // so that each thread has one task
      std::this_thread::sleep_for(std::chrono::milliseconds(thread));
      ++runs[static_cast<std::size_t>(task)];
    });
    for (const int count : runs) ASSERT_EQ(count, 1);
  }
}

TEST(ThreadPool, IsUsableFromDifferentThreadsInTurn) {
  ThreadPool pool(2);
  std::atomic<int> sum{0};
  for (int i = 0; i < 4; ++i) {
    std::thread caller([&] { pool.Run(10, [&](std::int64_t, int) { sum.fetch_add(1); }); });
    caller.join();
  }
  EXPECT_EQ(sum.load(), 40);
}

TEST(ThreadPool, DestructionOfAnIdlePoolReturns) {
  for (int i = 0; i < 20; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace loramux::thread_pool_test
