#include "http/connection.h"

#include <algorithm>
#include <sstream>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/write.hpp>
#include <fmt/format.h>

#include "base/log.h"
#include "http/connection_limits.h"
#include "http/cors.h"
#include "http/random_source.h"
#include "http/request_framing.h"

namespace loramux {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::size_t kWatchBytes = 512;               // a client that waits for its response normally sends nothing
constexpr std::size_t kMaxPipelinedBytes = 64 * 1024;  // read ahead while a handler works
constexpr std::size_t kLingerBytes = 16 * 1024;
// The body limit of open routes.
constexpr std::size_t kMaxOpenBodyBytes = 64 * 1024;
constexpr std::size_t kMaxTargetInLog = 200;
constexpr std::size_t kMaxEncodingInError = 40;
// A longer body is sent by itself instead of being copied behind its header.
constexpr std::size_t kMaxJoinedBytes = 64 * 1024;
constexpr std::string_view kShuttingDown = "The server is shutting down; try again elsewhere or later.";
constexpr std::size_t kMaxLingerBytes = std::size_t{64} << 20;

// Returns the request without its body.
HttpRequest TakeHead(const HttpConnection::RequestParser& parser) {
  const auto& message = parser.get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.target = OriginForm(message.target());
  const std::string_view target = request.target;
  const auto question = target.find('?');
  request.path = PathOf(target);
  if (question != std::string_view::npos) request.query = target.substr(question + 1);
  // The host of a target in absolute form is the one that counts.
  const auto authority = AuthorityOf(message.target());
  if (authority) request.headers.emplace_back("Host", *authority);
  for (const auto& field : message) {
    if (authority && field.name() == http::field::host) continue;
    request.headers.emplace_back(field.name_string(), field.value());
  }
  return request;
}

// Returns the path of the route that was probably meant by a path that has none: without "/v1", with something before
// it, or with a slash too many. Empty: there is no such route.
std::string_view NearPath(const RouteTable& routes, std::string_view path) {
  std::string wanted;
  for (const char c : path) {
    if (c != '/' || !wanted.ends_with('/')) wanted += c;
  }
  while (wanted.ends_with('/')) wanted.pop_back();
  if (!wanted.starts_with('/') || wanted.size() < 2) return {};
  std::string_view near;
  for (const HttpRoute& route : routes.routes()) {
    const std::string_view known = route.path;
    if (known.ends_with("/*") || known.size() < 2) continue;
    if (!known.ends_with(wanted) && !wanted.ends_with(known)) continue;
    // The one that shares the most, and of those the shortest.
    const auto shares = [&](std::string_view other) { return std::min(other.size(), wanted.size()); };
    const bool better =
        near.empty() || shares(known) > shares(near) || (shares(known) == shares(near) && known.size() < near.size());
    if (better) near = known;
  }
  return near;
}

// Refuses a body that is compressed: nothing here decompresses it.
std::optional<HttpReply> EncodingRefusal(const HttpRequest& request) {
  const std::string_view encoding = request.Header("Content-Encoding");
  if (encoding.empty() || beast::iequals(encoding, "identity")) return std::nullopt;
  HttpReply reply = ErrorReply(
      415,
      fmt::format("Content-Encoding: expected none, found \"{}\": this server reads no compressed bodies; send the "
                  "body as it is, without this header.",
                  encoding.substr(0, kMaxEncodingInError)));
  reply.headers.emplace_back("Accept-Encoding", "identity");
  return reply;
}

// Returns the reply without its body.
std::string HeadOf(const HttpReply& reply, unsigned version, bool keep_alive) {
  http::response<http::empty_body> response(static_cast<http::status>(reply.status), version);
  response.set(http::field::server, "loramux");
  for (const auto& [name, value] : reply.headers) response.set(name, value);
  if (!reply.body.empty()) response.set(http::field::content_type, reply.content_type);
  if (reply.status != 204) response.content_length(reply.body.size());
  response.keep_alive(keep_alive);
  std::ostringstream head;
  head << response.base();
  return std::move(head).str();
}

// `allowed`: the methods that the path has.
HttpReply NoRouteReply(const RouteTable& routes, const HttpServerOptions& options, const HttpRequest& request,
                       std::string_view origin, std::vector<std::string> allowed) {
  if (allowed.empty() && !(request.method == "OPTIONS" && request.path == "*")) {
    const std::string_view meant = NearPath(routes, request.path);
    return ErrorReply(404, fmt::format("Not Found: this server has no {}{}{}.", request.path.substr(0, kMaxTargetInLog),
                                       meant.empty() ? "" : "; send it to ", meant));
  }
  allowed.emplace_back("OPTIONS");
  std::string list;
  for (const std::string& method : allowed) list += (list.empty() ? "" : ", ") + method;
  HttpReply reply;
  reply.status = 204;
  if (request.method == "OPTIONS") {
    reply.headers =
        PreflightHeaders(options.allowed_origins, origin, list, request.Header("Access-Control-Request-Headers"));
  } else {
    reply =
        ErrorReply(405, "Method Not Allowed: " + request.path + " expects " + list + ", found " + request.method + ".");
  }
  reply.headers.emplace_back("Allow", list);
  return reply;
}

}  // namespace

HttpConnection::HttpConnection(std::unique_ptr<HttpStream> stream, const HttpShared& shared, std::string address)
    : stream_(std::move(stream)),
      options_(shared.options),
      routes_(shared.routes),
      clock_(shared.clock),
      activity_(shared.activity),
      body_lease_(shared.activity, std::move(address)),
      deadline_(stream_->socket().get_executor()),
      waiting_since_(clock_.Now()),
      error_form_(&routes_.error_form()),
      watch_stopped_(stream_->socket().get_executor(), asio::steady_timer::time_point::max()) {
  error_code ignored;
  stream_->socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  address_ = stream_->socket().remote_endpoint(ignored).address().to_string();
}

// ---- The connection's life ----

asio::awaitable<void> HttpConnection::Run() {
  ArmDeadline(options_.header_timeout);
  const error_code error = co_await stream_->Open();
  DisarmDeadline();
  if (error) spdlog::debug("TLS handshake failed: {}", error.message());
  bool more = !error;
  while (more) more = co_await ServeOne();
  co_await Close();
}

void HttpConnection::ContinueTrace(const RequestParser& parser) {
  const auto& header = parser.get();
  AdoptTrace(trace_, header["X-Request-Id"], header.count("traceparent") == 1 ? header["traceparent"] : "",
             header["tracestate"], RandomIdBits);
}

asio::awaitable<void> HttpConnection::RunRefused(std::string why) {
  trace_ = NewTrace(RandomIdBits);
  keep_alive_ = false;
  ArmDeadline(options_.linger_timeout);
  const error_code error = co_await stream_->Open();
  DisarmDeadline();
  if (!error) {
    HttpReply reply = NotStarted(ErrorReply(503, why), kDroppedSaturated);
    co_await SendReply(std::move(reply), false);
  }
  co_await Close();
}

asio::awaitable<bool> HttpConnection::ServeOne() {
  const bool any = co_await WaitForFirstByte();
  if (!any) co_return false;
  const TimeNs start = clock_.Now();
  trace_ = NewTrace(RandomIdBits);  // in advance, so that even the reply to a request that cannot be read has an id
  bytes_sent_ = 0;
  origin_.clear();
  error_form_ = &routes_.error_form();
  HttpRequest request;
  const HttpRoute* route = nullptr;
  std::optional<HttpReply> refusal;
  const bool read = co_await ReadRequest(request, route, refusal);
  if (!read) {
    body_lease_.Release();  // now: the last answer may linger
    co_return false;
  }
  waiting_since_ = OpenConnection::kAnswering;
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  HttpExchange exchange(*this, std::move(request));
  co_await Answer(exchange, route, std::move(refusal));
  co_await StopWatching();
  body_lease_.Release();
  if (!exchange.complete()) MarkGone();  // the response is incomplete and cannot be repaired
  Log(exchange, start);
  waiting_since_ = clock_.Now();
  co_return keep_alive_ && !gone_;
}

// The parser lives only in this function, so that its copy of the header is freed before the handler runs.
asio::awaitable<bool> HttpConnection::ReadRequest(HttpRequest& request, const HttpRoute*& route,
                                                  std::optional<HttpReply>& refusal) {
  RequestParser parser;
  parser.header_limit(static_cast<std::uint32_t>(options_.max_header_bytes + kRouterHeaderBytes));
  parser.body_limit(std::max(options_.max_body_bytes, routes_.largest_received()));
  const bool header = co_await ReadHeader(parser);
  if (!header) co_return false;
  ContinueTrace(parser);
  origin_ = std::string(parser.get()[http::field::origin]);
  request = TakeHead(parser);
  request.address = address_;
  refusal = Screen(request, route);
  keep_alive_ = parser.keep_alive() && (!refusal || parser.is_done());
  if (refusal) co_return true;  // its body is not read
  // Open routes need no key, so they may hold only small bodies.
  const std::size_t most = route->access == RouteAccess::kOpen ? kMaxOpenBodyBytes : options_.max_body_bytes;
  const std::size_t limit = route->receiver ? route->max_body_bytes : std::min(most, route->max_body_bytes);
  const bool body = co_await ReadBody(parser, limit, request.receiver.get());
  request.body = std::move(parser.get().body());
  co_return body;
}

asio::awaitable<void> HttpConnection::Answer(HttpExchange& exchange, const HttpRoute* route,
                                             std::optional<HttpReply> refusal) {
  const InFlight in_flight(activity_, !refusal);
  const auto forget = [this](HttpExchange*) {
    exchange_ = nullptr;
    on_cut_off_ = nullptr;
  };
  exchange_ = &exchange;
  const std::unique_ptr<HttpExchange, decltype(forget)> answering(&exchange, forget);
  if (refusal) {
    co_await exchange.Send(std::move(*refusal));
  } else if (in_flight.begun() || route->access == RouteAccess::kOpen) {
    co_await RunHandler(route->handler, exchange);
  } else {
    HttpReply reply = NotStarted(ErrorReply(503, kShuttingDown), kDroppedShuttingDown);
    co_await exchange.Send(std::move(reply));
  }
}

asio::awaitable<void> HttpConnection::Close() {
  closing_ = true;
  ArmDeadline(options_.linger_timeout);
  error_code error;
  if (!gone_ && linger_) {
    // Closing with unread input would reset the connection, and the client might lose the response.
    co_await stream_->EndWriting();
    buffer_.clear();
    for (std::size_t total = 0; !error && !deadline_passed_ && total < kMaxLingerBytes;) {
      total += co_await stream_->socket().async_read_some(buffer_.prepare(kLingerBytes),
                                                          asio::redirect_error(asio::use_awaitable, error));
    }
  }
  DisarmDeadline();
  stream_->socket().close(error);
}

void HttpConnection::CutOff() {
  if (exchange_ == nullptr) return;
  activity_.AddDropped(exchange_->description());
  if (const auto notify = std::exchange(on_cut_off_, nullptr)) return notify();
  Abort();
}

void HttpConnection::CloseIfIdle() {
  if (exchange_ != nullptr || closing_) return;
  closing_ = true;
  error_code ignored;
  stream_->socket().cancel(ignored);
}

void HttpConnection::CloseSoon() {
  if (exchange_ == nullptr) return CloseIfIdle();
  closing_ = true;
}

void HttpConnection::Abort() {
  MarkGone();
  error_code ignored;
  stream_->socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_->socket().cancel(ignored);
}

void HttpConnection::MarkGone() {
  gone_ = true;
  if (const auto notify = std::exchange(on_gone_, nullptr)) notify();
}

// ---- Handling ----

// Refuses a request by its header alone, so that its body need not be received.
std::optional<HttpReply> HttpConnection::Screen(HttpRequest& request, const HttpRoute*& route) const {
  std::vector<std::string> allowed;
  route = routes_.Find(request, allowed);
  if (route == nullptr) return NoRouteReply(routes_, options_, request, origin_, std::move(allowed));
  request.draining = activity_.draining();
  const bool open = route->access == RouteAccess::kOpen;
  if (request.draining && !open) return NotStarted(ErrorReply(503, kShuttingDown), kDroppedShuttingDown);
  const HttpGate gate = route->gate ? route->gate : open ? HttpGate() : routes_.gate();
  std::optional<HttpReply> refusal = gate ? gate(request) : std::nullopt;
  if (!refusal) refusal = EncodingRefusal(request);
  if (refusal || !route->receiver) return refusal;
  auto receiver = route->receiver(request);
  if (!receiver.ok()) return ErrorReply(receiver.error());
  request.receiver = *std::move(receiver);
  return std::nullopt;
}

// Exceptions of libraries, or for lack of memory, end the request and not the process.
asio::awaitable<void> HttpConnection::RunHandler(const HttpHandler& handler, HttpExchange& exchange) {
  try {
    co_await handler(exchange);
  } catch (const std::exception& exception) {
    LogWith(spdlog::level::err, exception.what(),
            {{"path", exchange.request().path}, {"request_id", trace_.request_id}});
  }
  if (exchange.status() != 0 || gone_) co_return;
  HttpReply reply = ErrorReply(500, "The server failed on this request; its log says why.");
  co_await exchange.Send(std::move(reply));
}

void HttpConnection::Log(const HttpExchange& exchange, TimeNs start) const {
  const std::string_view target = exchange.request().target;
  LogAccess({.method = exchange.request().method,
             .path = std::string(target.substr(0, target.find('?'))),
             .status = exchange.status(),
             .bytes = bytes_sent_,
             .took = clock_.Now() - start,
             .complete = exchange.complete(),
             .trace = trace_,
             .details = exchange.details()});
}

// ---- Writing ----

asio::awaitable<bool> HttpConnection::WriteAll(std::string_view data) {
  while (!data.empty()) {
    if (gone_) co_return false;
    ArmDeadline(options_.write_timeout);
    error_code error;
    const std::size_t n = co_await stream_->Write(asio::buffer(data.data(), data.size()), error);
    DisarmDeadline();
    bytes_sent_ += n;
    data.remove_prefix(n);
    if (error) {
      MarkGone();
      co_return false;
    }
  }
  co_return !gone_;
}

asio::awaitable<bool> HttpConnection::SendReply(HttpReply reply, bool head_only) {
  if (activity_.draining()) keep_alive_ = false;
  linger_ = !keep_alive_;
  if (reply.error && *error_form_) {
    reply.body = (*error_form_)(reply.status, reply.error->message, reply.error->param);
    reply.content_type = "application/json";
  }
  for (auto& header : trace_.Headers()) reply.headers.push_back(std::move(header));
  if (options_.hooks.responded) options_.hooks.responded(reply.status);
  for (auto& header : CorsHeaders(options_.allowed_origins, origin_)) reply.headers.push_back(std::move(header));
  std::string text = HeadOf(reply, http_version_, keep_alive_);
  if (head_only) co_return co_await WriteAll(text);
  const bool at_once = reply.body.size() <= kMaxJoinedBytes;
  if (at_once) text += reply.body;
  const bool written = co_await WriteAll(text);
  if (at_once || !written) co_return written;
  co_return co_await WriteAll(reply.body);
}

asio::awaitable<bool> HttpConnection::StartStream(HttpStreamHead head) {
  // HTTP/1.0 clients do not support chunks: for them the end of the connection ends the body.
  chunked_ = !head.content_length && http_version_ == 11;
  if (activity_.draining() || (!head.content_length && !chunked_)) keep_alive_ = false;
  http::response<http::empty_body> response(static_cast<http::status>(head.status), http_version_);
  response.set(http::field::server, "loramux");
  for (const auto& [name, value] : head.headers) response.set(name, value);
  for (const auto& [name, value] : trace_.Headers()) response.set(name, value);
  if (options_.hooks.responded) options_.hooks.responded(head.status);
  for (const auto& [name, value] : CorsHeaders(options_.allowed_origins, origin_)) response.set(name, value);
  response.keep_alive(keep_alive_);
  if (head.content_length) response.content_length(*head.content_length);
  if (chunked_) response.chunked(true);
  std::ostringstream out;
  out << response.base();  // the message itself would also write the last chunk
  const std::string text = std::move(out).str();
  co_return co_await WriteAll(text);
}

asio::awaitable<bool> HttpConnection::WriteStream(std::string_view data) {
  if (data.empty()) co_return !gone_;
  if (!chunked_) co_return co_await WriteAll(data);
  const std::string chunk = beast::buffers_to_string(http::make_chunk(asio::buffer(data.data(), data.size())));
  co_return co_await WriteAll(chunk);
}

asio::awaitable<bool> HttpConnection::EndStream() {
  linger_ = !keep_alive_;
  if (!chunked_) co_return !gone_;
  co_return co_await WriteAll("0\r\n\r\n");
}

// ---- Watching for the client's disconnect while a handler works ----

void HttpConnection::WatchForDisconnect(std::function<void()> gone) {
  on_gone_ = std::move(gone);
  if (watching_ || gone_) return;
  watching_ = true;
  ContinueWatching();
}

// Input that arrives is the next, pipelined request: it is kept, up to a bound. Beyond it only errors are noticed.
void HttpConnection::ContinueWatching() {
  watch_read_pending_ = true;
  const auto arrived = [self = shared_from_this()](error_code error, std::size_t n) {
    self->watch_read_pending_ = false;
    self->buffer_.commit(n);
    self->input_ended_ = error && error != asio::error::operation_aborted;
    self->watch_stopped_.cancel();
    if (!self->watching_) return;
    if (error) return self->MarkGone();
    self->ContinueWatching();
  };
  const auto slot = stop_watch_.slot();
  if (buffer_.size() < kMaxPipelinedBytes) {
    stream_->StartRead(buffer_.prepare(kWatchBytes), slot, arrived);
  } else {
    stream_->socket().async_wait(asio::ip::tcp::socket::wait_error,
                                 asio::bind_cancellation_slot(slot, [arrived](error_code error) {
                                   arrived(error ? error : make_error_code(asio::error::connection_reset), 0);
                                 }));
  }
}

asio::awaitable<void> HttpConnection::StopWatching() {
  watching_ = false;
  on_gone_ = nullptr;
  while (watch_read_pending_) {
    stop_watch_.emit(asio::cancellation_type::all);
    error_code ignored;
    co_await watch_stopped_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

// ---- Deadlines ----

void HttpConnection::ArmDeadline(std::chrono::milliseconds timeout) {
  deadline_passed_ = false;
  deadline_.expires_after(timeout);
  deadline_.async_wait([self = shared_from_this(), number = ++deadline_number_](error_code error) {
    if (error || number != self->deadline_number_) return;
    self->deadline_passed_ = true;
    error_code ignored;
    self->stream_->socket().cancel(ignored);
  });
}

void HttpConnection::DisarmDeadline() {
  ++deadline_number_;
  deadline_.cancel();
}

}  // namespace loramux
