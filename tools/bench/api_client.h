// HTTP/1.1 exchanges with one server over kept-alive connections: as many at once as there are calls, so that an open
// loop never waits for a free one. For one thread, the one that runs the io_context.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>

#include "base/clock.h"
#include "base/result.h"
#include "tools/bench/reply_reader.h"
#include "tools/bench/url.h"

namespace loramux::load {

struct ApiClientOptions {
  Url url;
  std::string api_key;                                           // empty: none
  std::vector<std::pair<std::string, std::string>> headers;      // more of them
  std::chrono::nanoseconds timeout = std::chrono::seconds(300);  // of a whole exchange
  bool insecure = false;                                         // do not check the server's certificate
};

class ServerConnection;

class ApiClient {
 public:
  // `clock` tells body sinks the time, minus set_origin's. Both outlive the client.
  ApiClient(boost::asio::io_context& context, ApiClientOptions options, const Clock& clock);
  ~ApiClient();

  // Looks the host up, once. Blocks.
  Status Resolve();
  void set_origin(TimeNs origin) { origin_ = origin; }
  TimeNs Now() const { return clock_.Now() - origin_; }

  // Sends one request and feeds the response to `sink`, which outlives the call. A kept-alive connection that the
  // server has closed meanwhile is replaced once, unseen. `path` follows the URL's prefix. An empty body makes it a
  // GET.
  boost::asio::awaitable<ExchangeEnd> Exchange(std::string path, std::string body, BodySink& sink);

  // Ends every running exchange with kCancelled, now and from now on.
  void CancelAll();

  const ApiClientOptions& options() const { return options_; }

 private:
  friend class ServerConnection;
  std::unique_ptr<ServerConnection> TakeIdle();
  ExchangeEnd Describe(const boost::system::error_code& error, bool opened) const;

  boost::asio::io_context& context_;
  ApiClientOptions options_;
  const Clock& clock_;
  TimeNs origin_ = 0;
  boost::asio::ssl::context tls_;
  boost::asio::ip::tcp::resolver::results_type endpoints_;
  std::vector<std::unique_ptr<ServerConnection>> idle_;
  std::vector<ServerConnection*> busy_;
  bool cancelled_ = false;
};

}  // namespace loramux::load
