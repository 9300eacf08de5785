// One client connection: reads requests, runs their handlers, writes the responses. Internal to the HTTP server.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/clock.h"
#include "http/activity.h"
#include "http/exchange.h"
#include "http/options.h"
#include "http/stream.h"

namespace loramux {

// Bytes of a header that the fields of a router may take, beyond HttpServerOptions::max_header_bytes.
inline constexpr std::size_t kRouterHeaderBytes = 8192;

// What all connections of a server share. Everything in it must outlive the connections.
struct HttpShared {
  const HttpServerOptions& options;
  const RouteTable& routes;
  const Clock& clock;
  HttpActivity& activity;
};

// Runs on the strand that the stream's socket was made with. Serves requests one after the other, in order; pipelined
// requests wait in the buffer. The memory of a connection is bounded (docs/guide/memory.md).
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  // `address`: the client's, as limits count it.
  HttpConnection(std::unique_ptr<HttpStream> stream, const HttpShared& shared, std::string address = {});

  // Serves requests until the connection ends. The caller keeps the connection object alive. Libraries may throw.
  boost::asio::awaitable<void> Run();
  // Tells the client why the server refuses the connection (status 503), and closes it.
  boost::asio::awaitable<void> RunRefused(std::string why);

  boost::asio::any_io_executor executor() { return stream_->socket().get_executor(); }
  // Since when the server waits for the next request, until that has arrived as a whole; OpenConnection::kAnswering
  // otherwise. May be called on any thread.
  TimeNs waiting_since() const { return waiting_since_; }

  // The methods below may only be called on the strand. CutOff, CloseIfIdle and Abort are the steps of a shutdown.
  // CutOff: asks the running handler to end, and adds its request to the report of dropped requests.
  void CutOff();
  // Closes the connection unless a request is being answered.
  void CloseIfIdle();
  // The same; if a request is being answered, closes the connection after the answer.
  void CloseSoon();
  // Closes the connection at once.
  void Abort();
  // True if the client is gone, or the server has given up on it.
  const std::atomic<bool>& gone() const { return gone_; }
  const RequestTrace& trace() const { return trace_; }  // the request being served

  // The following methods implement HttpExchange.
  boost::asio::awaitable<bool> SendReply(HttpReply reply, bool head_only);
  boost::asio::awaitable<bool> StartStream(HttpStreamHead head);
  boost::asio::awaitable<bool> WriteStream(std::string_view data);
  boost::asio::awaitable<bool> EndStream();
  void WatchForDisconnect(std::function<void()> gone);
  void OnCutOff(std::function<void()> cut_off) { on_cut_off_ = std::move(cut_off); }
  void BodyIsGone() { body_lease_.Release(); }

 private:
  // Reading (connection_read.cc). Where these return false, the connection is over; they have sent a reply where a
  // client can still receive one.
  boost::asio::awaitable<bool> WaitForFirstByte();
  void ContinueTrace(const RequestParser& parser);
  boost::asio::awaitable<bool> ReadHeader(RequestParser& parser);
  boost::asio::awaitable<bool> ReadBody(RequestParser& parser, std::size_t limit, BodyReceiver* receiver);
  boost::asio::awaitable<bool> PassOn(RequestParser& parser, BodyReceiver& receiver, std::size_t& passed_on);
  boost::asio::awaitable<bool> ParseMore(RequestParser& parser, boost::system::error_code& error);
  boost::asio::awaitable<bool> FailRead(boost::system::error_code error, bool in_header);
  boost::asio::awaitable<bool> FailRead(int status, std::string message);
  std::optional<HttpReply> HeaderRefusal(const RequestParser& parser) const;

  // Handling.
  boost::asio::awaitable<bool> ServeOne();
  boost::asio::awaitable<bool> ReadRequest(HttpRequest& request, const HttpRoute*& route,
                                           std::optional<HttpReply>& refusal);
  boost::asio::awaitable<void> Answer(HttpExchange& exchange, const HttpRoute* route, std::optional<HttpReply> refusal);
  boost::asio::awaitable<void> RunHandler(const HttpHandler& handler, HttpExchange& exchange);
  std::optional<HttpReply> Screen(HttpRequest& request, const HttpRoute*& route) const;
  boost::asio::awaitable<void> Close();
  void Log(const HttpExchange& exchange, TimeNs start) const;

  boost::asio::awaitable<bool> WriteAll(std::string_view data);

  void ContinueWatching();
  boost::asio::awaitable<void> StopWatching();
  void MarkGone();

  void ArmDeadline(std::chrono::milliseconds timeout);
  void DisarmDeadline();

  const std::unique_ptr<HttpStream> stream_;
  const HttpServerOptions& options_;
  const RouteTable& routes_;
  const Clock& clock_;
  HttpActivity& activity_;
  boost::beast::flat_buffer buffer_;
  BodyLease body_lease_;

  boost::asio::steady_timer deadline_;
  std::uint64_t deadline_number_ = 0;  // a timer callback with an older number does nothing
  bool deadline_passed_ = false;

  RequestTrace trace_;  // the request being served
  unsigned http_version_ = 11;
  bool keep_alive_ = true;
  bool chunked_ = false;              // the stream's body
  std::atomic<bool> gone_{false};     // the client is gone, or the server has given up on it
  bool linger_ = false;               // a last response has been sent that the client may still have to read
  bool closing_ = false;              // no further request will be served
  HttpExchange* exchange_ = nullptr;  // the exchange being answered
  std::atomic<TimeNs> waiting_since_;
  std::uint64_t bytes_sent_ = 0;
  std::string origin_;           // Origin header of the request
  const ErrorForm* error_form_;  // that of the path, or of the table while no path is known
  std::string address_;          // address of the client

  bool watching_ = false;
  bool watch_read_pending_ = false;
  bool input_ended_ = false;  // the watch has read the end of the input; later reads need not repeat that
  std::function<void()> on_gone_;
  std::function<void()> on_cut_off_;
  boost::asio::cancellation_signal stop_watch_;
  boost::asio::steady_timer watch_stopped_;
};

}  // namespace loramux
