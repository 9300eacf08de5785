// The byte stream of one connection, plain or TLS. It hides the difference from the connection's code.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "http/tls_context.h"

namespace loramux {

// Use it on its socket's strand only. At most one read and one write may be pending. Cancelling socket() ends both.
class HttpStream {
 public:
  using ReadHandler = std::function<void(boost::system::error_code, std::size_t)>;

  virtual ~HttpStream() = default;
  virtual boost::asio::ip::tcp::socket& socket() = 0;

  // Performs the TLS handshake; does nothing on a plain stream.
  virtual boost::asio::awaitable<boost::system::error_code> Open() = 0;
  // Reads at least one byte, or sets `error`.
  virtual boost::asio::awaitable<std::size_t> Read(boost::asio::mutable_buffer into,
                                                   boost::system::error_code& error) = 0;
  // Writes at least one byte and returns how many, or sets `error`.
  virtual boost::asio::awaitable<std::size_t> Write(boost::asio::const_buffer from,
                                                    boost::system::error_code& error) = 0;
  // Starts a read that does not suspend the caller and that `slot` can cancel alone. Bytes that had arrived are not
  // lost.
  virtual void StartRead(boost::asio::mutable_buffer into, boost::asio::cancellation_slot slot, ReadHandler done) = 0;
  // Tells the client that no more data follows. TLS: waits for the client's close notification.
  virtual boost::asio::awaitable<void> EndWriting() = 0;
};

// Makes a stream without encryption.
std::unique_ptr<HttpStream> MakePlainStream(boost::asio::ip::tcp::socket socket);
// Makes a TLS stream. It keeps `context` alive.
std::unique_ptr<HttpStream> MakeTlsStream(boost::asio::ip::tcp::socket socket,
                                          std::shared_ptr<boost::asio::ssl::context> context);

}  // namespace loramux
