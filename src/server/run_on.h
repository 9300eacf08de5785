// Runs long work away from the connections' threads. Needs coroutines.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

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

}  // namespace loramux
