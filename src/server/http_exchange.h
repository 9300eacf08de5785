// One HTTP request and the way to answer it: what handlers see of the server. Needs coroutines.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include "base/result.h"
#include "server/access_line.h"

namespace loramux {

struct ApiKey;

struct HttpRequest {
  std::string method;  // "GET"
  std::string target;  // as sent
  std::string path;    // percent-decoded, without the query
  std::string query;   // as sent, without '?'
  std::string tail;    // what the route's '*' stands for
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  bool draining = false;                 // the server is shutting down (only open routes see that)
  std::shared_ptr<const ApiKey> caller;  // null: no API keys are configured, or the route is open

  // The first header of that name, whatever its case; empty if there is none.
  std::string_view Header(std::string_view name) const;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";  // not sent with an empty body
  std::vector<std::pair<std::string, std::string>> headers;
};

// {"error":{...}} with the status that belongs to the error's code.
HttpReply ErrorReply(const Error& error);
HttpReply ErrorReply(int status, std::string_view message, std::string_view param = {});

class HttpConnection;

// Lives on its connection's strand: every method is called there, and handlers resume there. A handler either sends one
// reply or starts a stream, writes and ends it. Calls return false once the client is gone.
class HttpExchange {
 public:
  HttpExchange(HttpConnection& connection, HttpRequest request);
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  const HttpRequest& request() const { return request_; }
  boost::asio::any_io_executor executor() const;

  boost::asio::awaitable<bool> Send(HttpReply reply);

  // Status 200 and a body of unknown length: chunked, or up to the connection's end for HTTP/1.0 clients.
  boost::asio::awaitable<bool> StartStream(std::string content_type);
  boost::asio::awaitable<bool> Write(std::string_view data);
  boost::asio::awaitable<bool> EndStream();

  // Begins to watch the connection while the handler works; `gone` is called (once, on the strand) when the client
  // closes it or it fails. Null: nobody is called any more.
  void OnDisconnect(std::function<void()> gone);
  bool disconnected() const;
  // At the end of a shutdown's patience `cut_off` is called (once, on the strand): the handler should tell its client
  // and end within moments. Without it the connection is closed.
  void OnCutOff(std::function<void()> cut_off);
  // What a report of dropped requests calls this one: "cmpl-... of sql"; method and path if nothing was set.
  void Describe(std::string description) { description_ = std::move(description); }
  std::string description() const;
  // The handler has read the body and needs it no more: frees it.
  void ReleaseBody();
  // Gives up: the connection is closed without a proper end.
  void Abort();

  // The request's id and trace, which are in its response's headers too.
  const RequestTrace& trace() const;
  // For the log's line.
  void Describe(CompletionSummary completion) { completion_ = std::move(completion); }
  const CompletionSummary& completion() const { return completion_; }

  // For the log and the connection's fate.
  int status() const { return status_; }
  bool complete() const { return complete_; }

 private:
  HttpConnection& connection_;
  HttpRequest request_;
  CompletionSummary completion_;
  std::string description_;
  int status_ = 0;         // 0: nothing sent
  bool complete_ = false;  // the reply or the stream was sent to its end
};

// Must not outlive the exchange.
using HttpHandler = std::function<boost::asio::awaitable<void>(HttpExchange&)>;

// Who may use a route.
enum class RouteAccess {
  kGated,  // whom the gate lets through, while the server is not shutting down
  kOpen,   // everybody, always (or the handler looks for itself): probes, metrics, routes with a key of their own
};

struct HttpRoute {
  std::string method;
  std::string path;
  HttpHandler handler;
  RouteAccess access = RouteAccess::kGated;
};

// Looks at a request's header before its body is received: sets `caller`, or answers with a refusal. Thread-safe.
using HttpGate = std::function<std::optional<HttpReply>(HttpRequest&)>;

// Which handler serves what. Filled before the server starts, read-only afterwards.
class RouteTable {
 public:
  // Without one, nobody is refused.
  void SetGate(HttpGate gate) { gate_ = std::move(gate); }
  const HttpGate& gate() const { return gate_; }

  // `path` is exact ("/health"), or ends in "/*", which matches any non-empty rest, slashes included.
  // HEAD goes to GET's handler. REQUIRES: the pair is new.
  void Add(std::string method, std::string path, HttpHandler handler, RouteAccess access = RouteAccess::kGated);
  // For what is known at once.
  void AddSimple(std::string method, std::string path, std::function<HttpReply(const HttpRequest&)> handler,
                 RouteAccess access = RouteAccess::kGated);

  // The route, setting request.tail; null if there is none, with the methods that the path has (none: unknown path).
  const HttpRoute* Find(HttpRequest& request, std::vector<std::string>& allowed) const;

 private:
  std::vector<HttpRoute> routes_;
  HttpGate gate_;
};

// "%2F" -> "/"; malformed escapes stay as they are.
std::string PercentDecode(std::string_view text);

}  // namespace loramux
