// The bytes of one connection, plain or by TLS: all that the connection's code knows of the difference.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "server/tls_context.h"

namespace loramux {

// Used on its socket's strand only. At most one read and one write at a time. Canceling socket() ends both.
class HttpStream {
 public:
  using ReadHandler = std::function<void(boost::system::error_code, std::size_t)>;

  virtual ~HttpStream() = default;
  virtual boost::asio::ip::tcp::socket& socket() = 0;

  // The TLS handshake, if there is one to do.
  virtual boost::asio::awaitable<boost::system::error_code> Open() = 0;
  // At least one byte, or an error.
  virtual boost::asio::awaitable<std::size_t> Read(boost::asio::mutable_buffer into,
                                                   boost::system::error_code& error) = 0;
  virtual boost::asio::awaitable<std::size_t> Write(boost::asio::const_buffer from,
                                                    boost::system::error_code& error) = 0;
  // A read that does not hold up the caller and can be cancelled alone; what had arrived is not lost.
  virtual void StartRead(boost::asio::mutable_buffer into, boost::asio::cancellation_slot slot, ReadHandler done) = 0;
  // Tells the client that nothing more will come (TLS: and waits for its word).
  virtual boost::asio::awaitable<void> EndWriting() = 0;
};

std::unique_ptr<HttpStream> MakePlainStream(boost::asio::ip::tcp::socket socket);
std::unique_ptr<HttpStream> MakeTlsStream(boost::asio::ip::tcp::socket socket,
                                          std::shared_ptr<boost::asio::ssl::context> context);

}  // namespace loramux
