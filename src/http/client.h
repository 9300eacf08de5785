// An asynchronous HTTP/1.1 client of one server, for the load generator, tests and whatever passes requests on. It
// keeps connections alive and has no limit on their number, so an exchange never waits for a free one. The caller reads
// an answer piece by piece: what it does not read stays in the sockets, so a slow reader slows the server down.
//
// Use client and calls only on the thread, or strand, that runs the executor.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>

#include "base/clock.h"
#include "base/result.h"
#include "http/exchange_end.h"
#include "http/url.h"

namespace loramux {

using HttpFields = std::vector<std::pair<std::string, std::string>>;

// Settings of an HttpClient.
struct HttpClientOptions {
  Url url;  // the server; its prefix begins every path
  std::string user_agent = "loramux";
  HttpFields headers;                                            // header fields of every request
  std::chrono::nanoseconds timeout = std::chrono::seconds(300);  // for a whole exchange
  std::optional<std::chrono::nanoseconds> connect_timeout;       // with look-up and TLS handshake; absent: as `timeout`
  std::chrono::nanoseconds idle_timeout = std::chrono::hours(1);  // a connection that was idle for longer is not used
  std::size_t max_idle = 1 << 20;                                 // connections that are kept for later exchanges
  bool insecure = false;                                          // do not check the server's certificate
  std::string ca_file;   // PEM: whom to trust besides the system's authorities; empty: only those
  std::string tls_name;  // the name in the server's certificate; empty: the URL's host
};

// A request. With an empty method it is GET, or POST if there is a body. GCC 12 destroys braced temporaries of a
// co_await expression twice: give a request a name before such an expression.
struct HttpCallRequest {
  std::string method, path, body;  // a body is sent as JSON, unless `headers` has a Content-Type
  HttpFields headers;
  // True: it is passed on for another client, with `headers` as they are and nothing besides Host and the length.
  bool as_given = false;
  std::optional<std::chrono::nanoseconds> timeout;  // for the whole exchange; absent: the client's
  // If set, there is no time for the whole exchange, but this one for each wait for the response's next byte.
  std::optional<std::chrono::nanoseconds> idle_timeout;
  // False: the request is sent once only. If it was sent on a kept-alive connection that the server closed meanwhile,
  // the exchange fails, because the server may have begun. For a minute, then for longer, up to an hour, no connection
  // to that server carries a second request.
  bool repeatable = true;
};

class HttpClient;
class ClientConnection;

// One exchange. Destruction in the middle closes its connection. The client must outlive it.
class HttpCall {
 public:
  HttpCall(HttpClient& client, HttpCallRequest request);
  ~HttpCall();
  HttpCall(const HttpCall&) = delete;
  HttpCall& operator=(const HttpCall&) = delete;

  // Sends the request and reads the head of the response. If the server has closed a kept-alive connection meanwhile,
  // it sends a repeatable request once more on another one. REQUIRES: called once, first.
  boost::asio::awaitable<ExchangeEnd> Begin();
  // Whether the server may have received some of the request. False after Begin failed: it did not begin.
  bool sent() const { return sent_; }
  // Takes the request's body back. REQUIRES: no operation runs, and none follows but ReadPiece.
  std::string TakeBody();
  // What the response says. REQUIRES: Begin succeeded.
  int status() const { return status_; }
  const HttpFields& headers() const { return headers_; }
  // Reads the next piece of the body, as it arrived; an empty piece is its end, and returns the connection to the
  // client. REQUIRES: Begin and all reads before succeeded.
  boost::asio::awaitable<ExchangeEnd> ReadPiece(std::string& piece);

  // Ends the exchange: the operation that runs, and every later one, returns kCancelled.
  void Cancel();

 private:
  boost::asio::awaitable<boost::system::error_code> TryOnce();
  boost::asio::awaitable<boost::system::error_code> ReadHead();
  boost::asio::awaitable<boost::system::error_code> ReadSome();
  void Limit();
  ExchangeEnd Describe(const boost::system::error_code& error);

  struct Message;  // the request and the parser of its response
  HttpClient& client_;
  const std::chrono::nanoseconds timeout_;
  const std::optional<std::chrono::nanoseconds> idle_timeout_;
  const bool repeatable_;
  const TimeNs deadline_;
  std::size_t place_ = 0;  // in the client's list of running calls
  std::unique_ptr<Message> message_;
  std::unique_ptr<ClientConnection> connection_;
  int status_ = 0;
  HttpFields headers_;
  boost::system::error_code pending_;  // error of a read that brought a piece too: the next read returns it
  bool opened_ = false, cancelled_ = false, sent_ = false;
};

// Connections to one server.
class HttpClient {
 public:
  // `clock` must outlive the client.
  HttpClient(boost::asio::any_io_executor executor, HttpClientOptions options, const Clock& clock);
  ~HttpClient();

  // Looks the host up, so that an error is known before the first exchange. Blocks, without a limit. Without it the
  // first connection looks the host up; each one after a failed connection looks it up again, because a server may
  // move.
  Status Resolve();
  // Cancels all running and all later exchanges.
  void CancelAll();
  // Connections that are kept for later exchanges.
  std::size_t idle() const { return idle_.size(); }
  // Connections that were opened, or tried, so far.
  std::int64_t opened() const { return opened_; }
  const HttpClientOptions& options() const { return options_; }

 private:
  friend class HttpCall;
  friend class ClientConnection;
  std::unique_ptr<ClientConnection> Take();
  void GiveBack(std::unique_ptr<ClientConnection> connection);
  void MistrustKept();

  boost::asio::any_io_executor executor_;
  HttpClientOptions options_;
  const Clock& clock_;
  boost::asio::ssl::context tls_;
  boost::asio::ip::tcp::resolver::results_type endpoints_;
  std::deque<std::unique_ptr<ClientConnection>> idle_;  // the one used last is the last
  // Until then each connection carries one request, because the server closed one that it had kept open.
  TimeNs single_until_ = 0, single_for_ = 0;
  std::vector<HttpCall*> running_;
  std::int64_t opened_ = 0;
  bool cancelled_ = false;
};

}  // namespace loramux
