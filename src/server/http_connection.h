// One client connection: reads requests, runs their handlers, writes what they answer. Internal to the HTTP server.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/clock.h"
#include "server/http_exchange.h"
#include "server/http_options.h"

namespace loramux {

// Everything runs on the strand that the socket was made with; requests are served one after the other, in order
// (pipelined ones wait in the buffer).
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  // Options, routes and clock must outlive it.
  HttpConnection(boost::asio::ip::tcp::socket socket, const HttpServerOptions& options, const RouteTable& routes,
                 const Clock& clock);

  // Serves until the connection ends. The caller keeps the connection alive. May throw what libraries throw.
  boost::asio::awaitable<void> Run();
  // Tells the client that there are too many connections, and closes.
  boost::asio::awaitable<void> RunRefused();

  boost::asio::any_io_executor executor() { return socket_.get_executor(); }

  // The rest on the strand only.
  // No further request: closes at once if none is being served.
  void Drain();
  // Closes now; a running handler is told.
  void Abort();
  bool gone() const { return gone_; }
  const RequestTrace& trace() const { return trace_; }   // of the request being served

  // For HttpExchange.
  boost::asio::awaitable<bool> SendReply(HttpReply reply, bool head_only);
  boost::asio::awaitable<bool> StartStream(std::string content_type);
  boost::asio::awaitable<bool> WriteStream(std::string_view data);
  boost::asio::awaitable<bool> EndStream();
  void WatchForDisconnect(std::function<void()> gone);

 private:
  boost::asio::awaitable<bool> ServeOne();
  boost::asio::awaitable<bool> WaitForFirstByte();
  void BeginTrace();
  void ContinueTrace(const RequestParser& parser);
  // True if the request was read; otherwise an error reply was sent where that makes sense.
  boost::asio::awaitable<bool> ReadRequest(RequestParser& parser);
  boost::asio::awaitable<bool> ReadHeader(RequestParser& parser);
  boost::asio::awaitable<bool> ContinueExpected(RequestParser& parser);
  boost::asio::awaitable<bool> FailRead(boost::system::error_code error, bool in_header);
  boost::asio::awaitable<void> RunHandler(const HttpHandler& handler, HttpExchange& exchange);
  HttpReply NoRouteReply(const HttpRequest& request, std::vector<std::string> allowed) const;
  boost::asio::awaitable<bool> WriteAll(std::string_view data);
  boost::asio::awaitable<void> Close();

  void ContinueWatching();
  boost::asio::awaitable<void> StopWatching();
  void MarkGone();

  void ArmDeadline(std::chrono::milliseconds timeout);
  void DisarmDeadline();
  void Log(const HttpExchange& exchange, TimeNs start) const;

  boost::asio::ip::tcp::socket socket_;
  const HttpServerOptions& options_;
  const RouteTable& routes_;
  const Clock& clock_;
  boost::beast::flat_buffer buffer_;

  boost::asio::steady_timer deadline_;
  std::uint64_t deadline_number_ = 0;    // an expired handler of an older deadline does nothing
  bool deadline_passed_ = false;

  RequestTrace trace_;                   // of the request being served
  unsigned http_version_ = 11;
  bool keep_alive_ = true;
  bool draining_ = false;
  bool idle_ = false;                    // waiting for a request's first byte
  bool gone_ = false;                    // the client is, or we gave up on it
  bool linger_ = false;                  // a last response is on its way
  std::uint64_t bytes_sent_ = 0;
  std::string origin_;                   // the request's Origin header

  bool watching_ = false;
  bool watch_read_pending_ = false;
  std::function<void()> on_gone_;
  boost::asio::cancellation_signal stop_watch_;
  boost::asio::steady_timer watch_stopped_;
};

}  // namespace loramux
