// One HTTP request and its response: the interface between handlers and the server. Needs coroutines.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include "base/result.h"
#include "http/access_line.h"
#include "http/error_status.h"

namespace loramux {

// Takes a request's body as it arrives, so that a large one needs no memory. Belongs to one request.
class BodyReceiver {
 public:
  virtual ~BodyReceiver() = default;
  // Takes the next bytes; called on the connection's strand, which does not wait for a disk: see RunElsewhere. An error
  // ends the request with its status.
  virtual boost::asio::awaitable<Status> Take(std::string bytes) = 0;
};

// A request; its header has been read, and usually its body too.
struct HttpRequest {
  std::string method;  // "GET"
  std::string target;  // as the client sent it
  std::string path;    // percent-decoded, without the query
  std::string query;   // as the client sent it, without '?'
  std::string tail;    // the part of the path that matches the '*' of the route
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::shared_ptr<BodyReceiver> receiver;  // has the body instead (HttpRoute::receiver); null: there is none
  std::string address;    // the client's address, such as "192.0.2.7"; a gate may know it better than the connection
  bool draining = false;  // the server is shutting down (only open routes see this)
  // What the gate found out about the client; only the owner of the gate knows the type. Null: there is no gate, or the
  // route is open.
  std::shared_ptr<const void> caller;
  // The tenant, within the caller, by a source that the gate trusts; empty: none.
  std::string tenant;

  // Returns the value of the first header with that name, ignoring case; empty if there is none.
  std::string_view Header(std::string_view name) const;
};

// What an error reply says.
struct ErrorText {
  std::string message;
  std::string param;  // the field concerned; empty: none
};

// A whole response.
struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";  // not sent if the body is empty
  std::vector<std::pair<std::string, std::string>> headers;
  std::optional<ErrorText> error = {};  // if set, the path's form of errors writes the body
};

// Returns an error with the HTTP status for its code, or with `status`, whose body the path's form writes: without one
// it is the message. A kRateLimited error sheds the request (kDroppedReasonHeader).
HttpReply ErrorReply(const Error& error);
HttpReply ErrorReply(int status, std::string_view message, std::string_view param = {});

// The header of responses to requests of which nothing was begun, so that a router may send them to another server.
inline constexpr const char* kNotStartedHeader = "x-loramux-not-started";
// The header of responses to requests for content that this server has not got: another may, whatever the load is.
inline constexpr const char* kOtherContentHeader = "x-loramux-other-content";
// The header of responses to requests that were shed, with the reason in llm-d's words.
inline constexpr const char* kDroppedReasonHeader = "x-llm-d-request-dropped-reason";
inline constexpr const char* kDroppedSaturated = "rejected-saturated";  // a limit or a full queue
inline constexpr const char* kDroppedNoEndpoints = "rejected-no-endpoints";
inline constexpr const char* kDroppedShuttingDown = "rejected-shutting-down";
// Returns the reply with kNotStartedHeader, and with kDroppedReasonHeader if there is a reason, if its status is 503.
// Only a 503 says that another server may do better.
HttpReply NotStarted(HttpReply reply, const char* dropped_reason = nullptr);

// The head of a response whose body is sent piece by piece.
struct HttpStreamHead {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;  // sent as they are, besides those of every response
  std::optional<std::uint64_t> content_length;               // bytes of the body; absent: unknown, sent in chunks
};

class HttpConnection;

// Belongs to its connection's strand: call every method there; handlers resume there. A handler either sends one reply,
// or starts a stream, writes to it and ends it. Calls return false once the client is gone.
class HttpExchange {
 public:
  HttpExchange(HttpConnection& connection, HttpRequest request);
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  const HttpRequest& request() const { return request_; }
  boost::asio::any_io_executor executor() const;

  // Sends the whole response. REQUIRES: no other response was begun.
  boost::asio::awaitable<bool> Send(HttpReply reply);

  // Begins a response with status 200 and a body of unknown length. The body is chunked; for HTTP/1.0 clients it
  // extends to the end of the connection. REQUIRES: no other response was begun.
  boost::asio::awaitable<bool> StartStream(std::string content_type);
  // Begins a response with any status and headers, as when another server's response is passed on. REQUIRES: no other
  // response was begun; headers have no line breaks and none of Content-Length, Transfer-Encoding and Connection; if a
  // content length is given, the pieces have that many bytes together.
  boost::asio::awaitable<bool> StartStream(HttpStreamHead head);
  // Sends a piece of the stream.
  boost::asio::awaitable<bool> Write(std::string_view data);
  // Ends the stream.
  boost::asio::awaitable<bool> EndStream();

  // Starts to watch the connection while the handler works. `gone` is called once, on the strand, when the client
  // closes the connection or it fails. Null removes the callback.
  void OnDisconnect(std::function<void()> gone);
  // True once the client is gone.
  bool disconnected() const;
  // Starts to watch the connection, for work on other threads: they may read what is returned as long as the exchange
  // lives. It turns true once the client is gone.
  const std::atomic<bool>& WatchClient();
  // `cut_off` is called once, on the strand, when a shutdown has waited long enough: the handler should tell its client
  // and end within moments. Without a callback the connection is closed. Null removes the callback.
  void OnCutOff(std::function<void()> cut_off);
  // Sets the text that names this request in a report of dropped requests, such as "cmpl-... of sql". Default: method
  // and path.
  void Describe(std::string description) { description_ = std::move(description); }
  std::string description() const;
  // Frees the request's body, once the handler does not need it any longer.
  void ReleaseBody();
  // Moves the request's body out. It still counts as held until ReleaseBody, or the end of the request.
  std::string TakeBody() { return std::exchange(request_.body, {}); }
  // Closes the connection in the middle of the response.
  void Abort();

  // The request's id and trace; the response's headers carry them too.
  const RequestTrace& trace() const;
  // Adds a header to the response. REQUIRES: no response was begun; name and value have no line breaks.
  void AddHeader(std::string name, std::string value) { headers_.emplace_back(std::move(name), std::move(value)); }
  // Sets further fields of the access log.
  void AddDetails(std::vector<AccessDetail> details) { details_ = std::move(details); }
  const std::vector<AccessDetail>& details() const { return details_; }

  // The status that was sent, and whether the response was sent to its end.
  int status() const { return status_; }
  bool complete() const { return complete_; }

 private:
  HttpConnection& connection_;
  HttpRequest request_;
  std::vector<AccessDetail> details_;
  std::vector<std::pair<std::string, std::string>> headers_;  // fields of the response's header, besides those of all
  std::string description_;
  int status_ = 0;         // 0: nothing was sent
  bool complete_ = false;  // the whole reply or stream was sent
};

// Answers one request. Must not keep the exchange after it ends.
using HttpHandler = std::function<boost::asio::awaitable<void>(HttpExchange&)>;

// Access control of a route.
enum class RouteAccess {
  kGated,  // requests must pass the gate; refused during shutdown
  kOpen,   // no gate, also served during shutdown: probes, metrics, routes that check a key of their own
};

// Checks a request's header before its body is received. Returns nullopt and may set `caller`, or returns the reply
// that refuses the request. Thread-safe.
using HttpGate = std::function<std::optional<HttpReply>(HttpRequest&)>;

// One entry of the route table.
struct HttpRoute {
  std::string method;
  std::string path;
  HttpHandler handler;
  RouteAccess access = RouteAccess::kGated;
  std::size_t max_body_bytes = std::numeric_limits<std::size_t>::max();  // besides the server's own limit; beyond: 413
  ErrorForm error_form = nullptr;  // writes the bodies of all errors of this route; null: the table's
  HttpGate gate = nullptr;         // asked in place of the table's, also where `access` is kOpen
  // Returns what takes the body of a request that the gate let through, up to `max_body_bytes`, whatever the server's
  // own limit is. Null: HttpRequest::body does. Thread-safe.
  std::function<Result<std::shared_ptr<BodyReceiver>>(const HttpRequest&)> receiver = nullptr;
};

// Maps methods and paths to handlers. Filled before the server starts, read-only afterwards.
class RouteTable {
 public:
  // Sets the gate of gated routes. Default: none, which admits every request.
  void SetGate(HttpGate gate) { gate_ = std::move(gate); }
  const HttpGate& gate() const { return gate_; }

  // Sets how errors are written on paths whose routes have no form of their own. Default: their messages alone.
  void SetErrorForm(ErrorForm form) { error_form_ = std::move(form); }
  const ErrorForm& error_form() const { return error_form_; }

  // Adds a route. `path` is exact ("/health"), or ends in "/*", which matches any non-empty rest, slashes included. The
  // handler for GET also serves HEAD. REQUIRES: no route with the same method and path.
  void Add(std::string method, std::string path, HttpHandler handler, RouteAccess access = RouteAccess::kGated,
           std::size_t max_body_bytes = std::numeric_limits<std::size_t>::max());
  void Add(HttpRoute route);
  // Adds a route with a handler that returns the reply without waiting.
  void AddSimple(std::string method, std::string path, std::function<HttpReply(const HttpRequest&)> handler,
                 RouteAccess access = RouteAccess::kGated);

  // The most bytes that a receiver of a route takes; 0: there is none.
  std::size_t largest_received() const { return largest_received_; }
  // Returns all routes, in the order in which they were added.
  std::span<const HttpRoute> routes() const { return routes_; }
  // Returns the route of a request and sets request.tail. Null if there is none; then `allowed` receives the methods
  // that the path has, and stays empty for an unknown path.
  const HttpRoute* Find(HttpRequest& request, std::vector<std::string>& allowed) const;
  // Returns how errors about a path are written, whether or not it has a route: as those of the route with the longest
  // path that is the path or its beginning; else as error_form() says.
  const ErrorForm& ErrorFormOf(std::string_view path) const;

 private:
  std::vector<HttpRoute> routes_;
  HttpGate gate_;
  ErrorForm error_form_;
  std::size_t largest_received_ = 0;
};

// The value of a parameter of a query, as the client sent it; nullopt: it has none of this name.
std::optional<std::string_view> QueryParameter(std::string_view query, std::string_view name);
// Decodes percent escapes: "%2F" -> "/". Malformed escapes stay as they are.
std::string PercentDecode(std::string_view text);
// The path as most servers understand it: without empty segments, "." and "..", parameters behind ';', backslashes and
// a slash at the end.
std::string NormalPath(std::string_view path);
// The path of a request's target.
std::string PathOf(std::string_view target);

}  // namespace loramux
