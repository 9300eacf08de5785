// Exchanges with the server under test, fed to sinks with the times of their bytes. Use it only on the thread that runs
// the io_context.
#pragma once

#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "base/clock.h"
#include "base/result.h"
#include "http/client.h"
#include "loadgen/reply_reader.h"

namespace loramux::load {

// Sends requests to one server.
class ApiClient {
 public:
  // Passes each BodySink the time of `clock`, counted from the origin (set_origin). `context` and `clock` must outlive
  // the client.
  ApiClient(boost::asio::io_context& context, HttpClientOptions options, const Clock& clock);

  // Resolves the host name. Blocks. REQUIRES: called once, before Exchange.
  Status Resolve();
  // Sets the time that counts as zero. Default: the clock's own zero.
  void set_origin(TimeNs origin) { origin_ = origin; }
  // The time since the origin.
  TimeNs Now() const { return clock_.Now() - origin_; }

  // Sends one request and feeds the response to `sink`, which must outlive the call. `path` is appended to the URL's
  // prefix. With an empty body the method is GET.
  boost::asio::awaitable<ExchangeEnd> Exchange(std::string path, std::string body, BodySink& sink);

  // Ends all running and all later exchanges with kCancelled.
  void CancelAll() { http_.CancelAll(); }

  const Url& url() const { return http_.options().url; }

 private:
  boost::asio::awaitable<ExchangeEnd> Feed(HttpCall& call, BodySink& sink);

  HttpClient http_;
  const Clock& clock_;
  TimeNs origin_ = 0;
};

}  // namespace loramux::load
