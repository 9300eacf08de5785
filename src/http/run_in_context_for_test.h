// A context that lives as long as one coroutine.
#pragma once

#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>

namespace loramux {

// Runs one coroutine in a context of its own, which is destroyed as soon as the coroutine has ended.
template <typename Coroutine>
void RunInContext(Coroutine coroutine) {
  boost::asio::io_context context(1);
  boost::asio::co_spawn(boost::asio::make_strand(context), std::move(coroutine), boost::asio::detached);
  context.run();
}

}  // namespace loramux
