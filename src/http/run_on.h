// Runs long work away from the connections' threads. Needs coroutines.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "http/fair_work_queue.h"

namespace loramux {

// Runs `function` on the pool while the calling coroutine is suspended, and resumes the coroutine on its own executor.
template <typename Function>
boost::asio::awaitable<void> RunOn(boost::asio::thread_pool& pool, Function function) {
  co_await boost::asio::co_spawn(
      pool,
      [&function]() -> boost::asio::awaitable<void> {
        function();
        co_return;
      },
      boost::asio::use_awaitable);
}

// Runs `function` on the queue as work of `tenant`, as above. Rethrows what `function` throws.
template <typename Function>
boost::asio::awaitable<void> RunOn(FairWorkQueue& queue, const std::string& tenant, Function function) {
  const auto start = [&](auto handler) {
    auto executor = boost::asio::get_associated_executor(handler);
    const auto resume = std::make_shared<decltype(handler)>(std::move(handler));
    queue.Post(tenant, [&function, resume, busy = boost::asio::make_work_guard(executor)] {
      std::exception_ptr failure;
      try {
        function();
      } catch (...) {
        failure = std::current_exception();
      }
      boost::asio::post(busy.get_executor(), [resume, failure] {
        auto handler = std::move(*resume);
        handler(failure);
      });
    });
  };
  co_await boost::asio::async_initiate<const boost::asio::use_awaitable_t<>, void(std::exception_ptr)>(
      start, boost::asio::use_awaitable);
}

}  // namespace loramux
