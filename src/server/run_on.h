// Work that takes long, away from the threads of the connections. Needs coroutines.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace loramux {

// Runs `function` on the pool while the calling coroutine sleeps, and resumes it where it was.
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

}  // namespace loramux
