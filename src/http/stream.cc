#include "http/stream.h"

#include <optional>
#include <utility>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace loramux {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
using asio::ip::tcp;
using boost::system::error_code;

class PlainLayer {
 public:
  explicit PlainLayer(tcp::socket socket) : stream(std::move(socket)) {}
  tcp::socket& socket() { return stream; }
  asio::awaitable<error_code> Open() { co_return error_code(); }
  asio::awaitable<void> SayEnd() { co_return; }
  tcp::socket stream;
};

class TlsLayer {
 public:
  TlsLayer(tcp::socket socket, std::shared_ptr<ssl::context> context)
      : context_(std::move(context)), stream(std::move(socket), *context_) {}
  tcp::socket& socket() { return stream.next_layer(); }
  asio::awaitable<error_code> Open() {
    error_code error;
    co_await stream.async_handshake(ssl::stream_base::server, asio::redirect_error(asio::use_awaitable, error));
    open_ = !error;
    co_return error;
  }
  asio::awaitable<void> SayEnd() {
    if (!open_) co_return;
    error_code ignored;
    co_await stream.async_shutdown(asio::redirect_error(asio::use_awaitable, ignored));
  }

 private:
  std::shared_ptr<ssl::context> context_;  // the context with which the connection began; a reload does not affect it
  bool open_ = false;

 public:
  ssl::stream<tcp::socket> stream;
};

template <typename Layer>
class LayeredStream final : public HttpStream {
 public:
  template <typename... Arguments>
  explicit LayeredStream(Arguments... arguments) : layer_(std::move(arguments)...) {}

  tcp::socket& socket() override { return layer_.socket(); }
  asio::awaitable<error_code> Open() override { return layer_.Open(); }
  asio::awaitable<std::size_t> Read(asio::mutable_buffer into, error_code& error) override {
    return layer_.stream.async_read_some(into, asio::redirect_error(asio::use_awaitable, error));
  }
  asio::awaitable<std::size_t> Write(asio::const_buffer from, error_code& error) override {
    return layer_.stream.async_write_some(from, asio::redirect_error(asio::use_awaitable, error));
  }
  void StartRead(asio::mutable_buffer into, asio::cancellation_slot slot, ReadHandler done) override {
    layer_.stream.async_read_some(into, asio::bind_cancellation_slot(slot, std::move(done)));
  }
  asio::awaitable<void> EndWriting() override {
    co_await layer_.SayEnd();
    error_code ignored;
    layer_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

 private:
  Layer layer_;
};

}  // namespace

std::unique_ptr<HttpStream> MakePlainStream(tcp::socket socket) {
  return std::make_unique<LayeredStream<PlainLayer>>(std::move(socket));
}

std::unique_ptr<HttpStream> MakeTlsStream(tcp::socket socket, std::shared_ptr<ssl::context> context) {
  return std::make_unique<LayeredStream<TlsLayer>>(std::move(socket), std::move(context));
}

}  // namespace loramux
