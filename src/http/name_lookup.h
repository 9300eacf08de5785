// A look-up of a name that is waited for no longer than a limit. The system's resolver cannot be interrupted: a look-up
// that nothing waits for any longer ends by itself, on the resolver's thread. Needs coroutines.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/system/error_code.hpp>

namespace loramux {

// One look-up. Use it on the thread, or strand, that runs the executor. Destroy it once Wait has returned.
class NameLookup {
 public:
  using Addresses = boost::asio::ip::tcp::resolver::results_type;

  explicit NameLookup(const boost::asio::any_io_executor& executor) : state_(std::make_shared<State>(executor)) {}

  // Calls start(handler), which must call handler(error, addresses) once, later, on the executor. Returns the error, or
  // beast::error::timeout if that was not within `longest`, or operation_aborted after Cancel. REQUIRES: called once.
  template <typename Start>
  boost::asio::awaitable<boost::system::error_code> Wait(Start start, std::chrono::nanoseconds longest,
                                                         Addresses& found) {
    const std::shared_ptr<State> state = state_;
    state->timer.expires_after(longest);
    start([state](const boost::system::error_code& error, Addresses addresses) {
      state->done = true;
      state->error = error;
      state->found = std::move(addresses);
      state->timer.cancel();
    });
    boost::system::error_code waited;
    if (!state->cancelled) {
      co_await state->timer.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, waited));
    }
    if (state->cancelled) co_return boost::asio::error::operation_aborted;
    if (!state->done) co_return boost::beast::error::timeout;
    found = std::move(state->found);
    co_return state->error;
  }
  // Ends the wait, or the one that begins later.
  void Cancel() {
    state_->cancelled = true;
    state_->timer.cancel();
  }

 private:
  struct State {
    explicit State(const boost::asio::any_io_executor& executor) : timer(executor) {}
    boost::asio::steady_timer timer;
    bool done = false, cancelled = false;
    boost::system::error_code error;
    Addresses found;
  };
  const std::shared_ptr<State> state_;
};

}  // namespace loramux
