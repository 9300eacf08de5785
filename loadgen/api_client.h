// HTTP/1.1 exchanges with one server over kept-alive connections. The number of connections is not limited, so an open
// loop never waits for a free one. Use it only on the thread that runs the io_context.
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
#include "loadgen/reply_reader.h"
#include "loadgen/url.h"

namespace loramux::load {

// Settings of an ApiClient.
struct ApiClientOptions {
  Url url;
  std::string api_key;                                           // sent as `Authorization: Bearer KEY`; empty: none
  std::vector<std::pair<std::string, std::string>> headers;      // additional headers
  std::chrono::nanoseconds timeout = std::chrono::seconds(300);  // for a whole exchange
  bool insecure = false;                                         // do not check the server's certificate
};

class ServerConnection;

// Sends requests to one server.
class ApiClient {
 public:
  // Passes BodySinks the time of `clock`, counted from the origin (set_origin). `context` and `clock` must outlive the
  // client.
  ApiClient(boost::asio::io_context& context, ApiClientOptions options, const Clock& clock);
  ~ApiClient();

  // Resolves the host name. Blocks. REQUIRES: called once, before Exchange.
  Status Resolve();
  // Sets the time that counts as zero. Default: the clock's own zero.
  void set_origin(TimeNs origin) { origin_ = origin; }
  // The time since the origin.
  TimeNs Now() const { return clock_.Now() - origin_; }

  // Sends one request and feeds the response to `sink`, which must outlive the call. If the server has closed a
  // kept-alive connection meanwhile, the exchange retries once on another connection. `path` is appended to the URL's
  // prefix. With an empty body the method is GET.
  boost::asio::awaitable<ExchangeEnd> Exchange(std::string path, std::string body, BodySink& sink);

  // Ends all running and all later exchanges with kCancelled.
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
