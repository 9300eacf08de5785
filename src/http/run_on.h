// Runs long work away from the connections' threads. Needs coroutines.
#pragma once

#include <exception>
#include <memory>
#include <utility>

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace loramux {

// Runs `function` while the calling coroutine is suspended: `post` is called with a callable and runs it on another
// thread. The coroutine resumes on its own executor. Rethrows what `function` throws.
//
// The other thread may still be leaving the callable when the coroutine has resumed and ended. So the only executor
// that it holds is one that counts as outstanding work: the execution context runs until that executor is gone, and may
// then be destroyed. (An executor_work_guard keeps a second executor, which it gives up after the work.)
template <typename Post, typename Function>
boost::asio::awaitable<void> RunElsewhere(Post post, Function function) {
  const auto start = [&](auto handler) {
    const auto executor = boost::asio::get_associated_executor(handler);
    const auto resume = std::make_shared<decltype(handler)>(std::move(handler));
    post([&function, resume, busy = boost::asio::prefer(executor, boost::asio::execution::outstanding_work.tracked)] {
      std::exception_ptr failure;
      try {
        function();
      } catch (...) {
        failure = std::current_exception();
      }
      boost::asio::post(busy, [resume, failure] {
        auto handler = std::move(*resume);
        handler(failure);
      });
    });
  };
  co_await boost::asio::async_initiate<const boost::asio::use_awaitable_t<>, void(std::exception_ptr)>(
      start, boost::asio::use_awaitable);
}

// Runs `function` on the pool, as RunElsewhere does.
template <typename Function>
boost::asio::awaitable<void> RunOn(boost::asio::thread_pool& pool, Function function) {
  return RunElsewhere([&pool](auto work) { boost::asio::post(pool, std::move(work)); }, std::move(function));
}

}  // namespace loramux
