#include "auth/fair_work_queue.h"

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/wait_until_for_test.h"
#include "http/exchange.h"
#include "http/raw_client_for_test.h"
#include "http/run_in_context_for_test.h"
#include "http/server.h"

namespace loramux::fair_work_queue_test {
namespace {

namespace asio = boost::asio;

const OsClock clock;

// A latch that a piece of work waits for, as if it took long.
class Gate {
 public:
  void Open() { promise_.set_value(); }
  std::function<void()> Work() {
    return [passed = passed_] { passed.wait(); };
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> passed_ = promise_.get_future().share();
};

// Records who was served, in order.
class Served {
 public:
  std::function<void()> Note(std::string name) {
    return [this, name = std::move(name)] {
      const std::lock_guard lock(mutex_);
      names_.push_back(name);
    };
  }
  std::vector<std::string> names() const {
    const std::lock_guard lock(mutex_);
    return names_;
  }
  bool WaitFor(std::size_t count) const {
    return WaitUntil([&] { return names().size() >= count; });
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> names_;
};

TEST(FairWorkQueue, RunsEverythingInTheOrderOfATenant) {
  Served served;
  {
    FairWorkQueue queue(clock, {.threads = 1, .spare_threads = 0});
    for (const char* name : {"1", "2", "3"}) queue.Post("a", served.Note(name));
  }
  EXPECT_EQ(served.names(), (std::vector<std::string>{"1", "2", "3"}));
}

TEST(FairWorkQueue, AnotherTenantDoesNotStandBehindAQueue) {
  Gate gate;
  Served served;
  {
    FairWorkQueue queue(clock, {.threads = 1, .spare_threads = 0});
    queue.Post("flood", gate.Work());
    ASSERT_TRUE(WaitUntil([&] { return queue.tenants() == 1; }));
    for (int i = 0; i < 50; ++i) queue.Post("flood", served.Note("flood"));
    queue.Post("other", served.Note("other"));
    gate.Open();
  }
  ASSERT_EQ(served.names().size(), 51u);
  EXPECT_EQ(served.names().front(), "other");  // the other tenant has used less time
}

TEST(FairWorkQueue, AnotherTenantDoesNotWaitForWorkThatTakesLong) {
  Gate gate;
  Served served;
  FairWorkQueue queue(clock, {.threads = 1, .spare_threads = 1, .turn = kNsPerMs});
  queue.Post("slow", gate.Work());
  queue.Post("slow", served.Note("slow"));
  queue.Post("other", served.Note("other"));
  EXPECT_TRUE(served.WaitFor(1));
  EXPECT_EQ(served.names(), std::vector<std::string>{"other"});  // though "slow" came before, and has not ended
  gate.Open();
  EXPECT_TRUE(served.WaitFor(2));
}

TEST(FairWorkQueue, SpareThreadsAreForWorkThatIsOverdue) {
  Gate gate;
  Served served;
  FairWorkQueue queue(clock, {.threads = 1, .spare_threads = 3, .turn = 3600 * kNsPerSecond});
  std::atomic<int> started = 0;
  queue.Post("a", [&, wait = gate.Work()] {
    ++started;
    wait();
  });
  ASSERT_TRUE(WaitUntil([&] { return started == 1; }));
  queue.Post("b", served.Note("b"));
  std::this_thread::sleep_for(
      std::chrono::milliseconds(20));  // time for a mistake to show; a late thread cannot fail the test
  EXPECT_TRUE(served.names().empty());
  gate.Open();
  EXPECT_TRUE(served.WaitFor(1));
}

TEST(FairWorkQueue, ATenantTakesOneSpareThreadAtMost) {
  Gate first, second;
  Served served;
  FairWorkQueue queue(clock, {.threads = 1, .spare_threads = 1, .turn = kNsPerMs});
  queue.Post("a", first.Work());
  queue.Post("a", second.Work());
  queue.Post("b", served.Note("b"));
  queue.Post("c", served.Note("c"));
  EXPECT_TRUE(served.WaitFor(2));
  first.Open();
  second.Open();
}

TEST(FairWorkQueue, UsesEveryThreadForOneTenantIfNoOtherWaits) {
  std::atomic<int> together = 0, met = 0;
  {
    FairWorkQueue queue(clock, {.threads = 2, .spare_threads = 0});
    for (int i = 0; i < 2; ++i) {
      queue.Post("a", [&] {
        ++together;
        met += WaitUntil([&] { return together == 2; });  // each waits for the other
      });
    }
  }
  EXPECT_EQ(met, 2);
}

TEST(FairWorkQueue, ATenantHasNoMoreThreadsThanItMay) {
  Gate gate;
  Served served;
  FairWorkQueue queue(clock, {.threads = 2, .spare_threads = 0, .threads_per_tenant = 1, .niceness = 1});
  queue.Post("a", gate.Work());
  queue.Post("a", served.Note("a"));
  queue.Post("b", served.Note("b"));
  EXPECT_TRUE(served.WaitFor(1));
  EXPECT_EQ(served.names(), std::vector<std::string>{"b"});  // though the second thread was free for "a" before
  gate.Open();
  EXPECT_TRUE(served.WaitFor(2));
}

TEST(FairWorkQueue, ForgetsTenantsWithoutWork) {
  FairWorkQueue queue(clock, {.threads = 2, .spare_threads = 1});
  for (int i = 0; i < 100; ++i) queue.Post("tenant " + std::to_string(i), [] {});
  EXPECT_TRUE(WaitUntil([&] { return queue.tenants() == 0; }));
}

TEST(FairWorkQueue, ManyThreadsPostAtOnce) {
  std::atomic<int> count = 0;
  {
    FairWorkQueue queue(clock, {.threads = 2, .spare_threads = 2, .turn = kNsPerMs});
    std::vector<std::thread> posters;
    for (int i = 0; i < 4; ++i) {
      posters.emplace_back([&, tenant = std::to_string(i % 3)] {
        for (int j = 0; j < 500; ++j) queue.Post(tenant, [&] { ++count; });
      });
    }
    for (std::thread& poster : posters) poster.join();
  }
  EXPECT_EQ(count, 2000);
}

// A context that ends while the other thread leaves its work. ThreadSanitizer sees a thread that comes too late.
TEST(FairWorkQueueRunOn, ContextMayEndAtOnce) {
  FairWorkQueue queue(clock, {});
  int runs = 0;
  for (int i = 0; i < 500; ++i) {
    RunInContext([&]() -> asio::awaitable<void> { co_await RunOn(queue, "tenant", [&runs] { ++runs; }); });
  }
  EXPECT_EQ(runs, 500);
}

TEST(FairWorkQueueRunOn, ExceptionsReachTheCaller) {
  FairWorkQueue queue(clock, {});
  bool caught = false;
  RunInContext([&]() -> asio::awaitable<void> {
    try {
      co_await RunOn(queue, "tenant", [] { throw std::runtime_error("work"); });
    } catch (const std::runtime_error&) {
      caught = true;
    }
  });
  EXPECT_TRUE(caught);
}

TEST(FairWorkQueueRunOn, WorkOfAClientThatIsGoneIsNotDone) {
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

TEST(FairWorkQueueRunOn, QueuedWorkOfClientsThatAreGoneIsNotDone) {
  RouteTable routes;
  FairWorkQueue queue(clock, {.threads = 1, .spare_threads = 0});
  std::atomic<int> asked = 0, done = 0;
  routes.Add("POST", "/work", [&](HttpExchange& exchange) -> boost::asio::awaitable<void> {
    const std::atomic<bool>& gone = exchange.WatchClient();
    ++asked;
    co_await RunOn(queue, "all", gone, [&done] { ++done; });
    HttpReply reply{200, "done", "text/plain", {}};
    co_await exchange.Send(std::move(reply));
  });
  HttpServerOptions options;
  options.port = 0;
  HttpServer server(options, routes, clock);
  ASSERT_TRUE(server.Start().ok());
  std::promise<void> go;
  queue.Post("all", [passed = go.get_future().share()] { passed.wait(); });
  std::vector<std::unique_ptr<RawHttpClient>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<RawHttpClient>(server.port()));
    clients.back()->Send(RawHttpClient::Format("POST", "/work", "body"));
  }
  ASSERT_TRUE(WaitUntil([&] { return asked == 20; }));
  RawHttpClient stays(server.port());
  stays.Send(RawHttpClient::Format("POST", "/work", "body"));
  for (const auto& client : clients) client->Close();
  EXPECT_TRUE(WaitUntil([&] { return asked == 21; }));
  std::this_thread::sleep_for(
      std::chrono::milliseconds(50));  // for the server to see the ends; a slow one fails nothing but the count
  go.set_value();
  EXPECT_EQ(stays.Read().body, "done");
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(WaitUntil([&] { return queue.tenants() == 0; }));
}

}  // namespace
}  // namespace loramux::fair_work_queue_test
