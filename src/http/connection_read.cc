// Reads requests from clients that may be slow, wrong or hostile.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <fmt/format.h>

#include "base/log.h"
#include "http/connection.h"
#include "http/request_framing.h"

namespace loramux {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::size_t kFirstReadBytes = 1024;  // the buffer of an idle connection
constexpr std::size_t kReadBytes = 16 * 1024;
constexpr std::size_t kPassedOnAtOnce = 1024 * 1024;  // bytes of a body that wait for its receiver

// What a router adds to a request, or replaces, once each. They have a room of their own.
constexpr std::array<std::string_view, 8> kRouterFields = {"X-Request-Id",
                                                           "traceparent",
                                                           "tracestate",
                                                           "X-Forwarded-For",
                                                           "x-gateway-inference-fairness-id",
                                                           "Content-Length",
                                                           "x-loramux-caller",
                                                           "x-loramux-require-digest"};

// The fields of a header that count, and their bytes with those of the request line.
struct HeaderSize {
  std::size_t fields = 0, bytes = 0;
};

template <typename Message>
HeaderSize SizeOf(const Message& message) {
  constexpr std::string_view kLine = "  HTTP/1.1\r\n\r\n", kField = ": \r\n";
  HeaderSize size{.bytes = message.method_string().size() + message.target().size() + kLine.size()};
  std::array<bool, kRouterFields.size()> seen{};
  for (const auto& field : message) {
    const auto own = std::find_if(kRouterFields.begin(), kRouterFields.end(),
                                  [&](std::string_view name) { return beast::iequals(field.name_string(), name); });
    const auto at = static_cast<std::size_t>(own - kRouterFields.begin());
    if (own != kRouterFields.end() && !std::exchange(seen[at], true)) continue;
    ++size.fields;
    size.bytes += field.name_string().size() + field.value().size() + kField.size();
  }
  return size;
}

std::string HeaderTooLarge(std::size_t limit) {
  return fmt::format("The request's header is too large: expected at most {} bytes.", limit);
}

std::string BodyTooLarge(std::size_t limit) {
  return fmt::format("The request's body is too large: expected at most {} bytes.", limit);
}

// The time left for a body, `since_start` of its beginning. Received bytes extend it, so large bodies get more time; a
// client that only drips does not.
std::chrono::milliseconds BodyTimeLeft(const HttpServerOptions& options, TimeNs since_start, std::size_t received) {
  const auto elapsed = std::chrono::milliseconds(since_start / kNsPerMs);
  const auto earned = std::chrono::milliseconds(static_cast<std::int64_t>(received) * 1000 /
                                                std::max<std::int64_t>(1, options.min_body_bytes_per_second));
  return std::max(std::chrono::milliseconds(0), options.body_timeout + earned - elapsed);
}

}  // namespace

asio::awaitable<bool> HttpConnection::WaitForFirstByte() {
  if (closing_ || gone_) co_return false;
  if (buffer_.size() > 0) co_return true;
  if (input_ended_) co_return false;
  buffer_.shrink_to_fit();
  ArmDeadline(options_.idle_timeout);
  error_code error;
  const std::size_t n = co_await stream_->Read(buffer_.prepare(kFirstReadBytes), error);
  DisarmDeadline();
  buffer_.commit(n);
  co_return !error;
}

// Passes the buffer to the parser, and reads more if the parser needs it. False on error, or if the deadline has
// passed. The end of the connection is an error for the parser, because every request has a length.
asio::awaitable<bool> HttpConnection::ParseMore(RequestParser& parser, error_code& error) {
  if (deadline_passed_) co_return false;
  if (closing_) {
    error = asio::error::operation_aborted;
    co_return false;
  }
  if (buffer_.size() > 0) {
    buffer_.consume(parser.put(buffer_.data(), error));
    if (error != http::error::need_more) co_return !error;
    // the parser limits headers, but not chunk extensions
    if (buffer_.size() > options_.max_header_bytes + kRouterHeaderBytes + kReadBytes) {
      error = http::error::bad_chunk_extension;
      co_return false;
    }
  }
  if (input_ended_) {
    error = asio::error::eof;
  } else {
    const std::size_t n = co_await stream_->Read(buffer_.prepare(kReadBytes), error);
    buffer_.commit(n);
  }
  if (error == asio::error::eof && parser.got_some()) error = http::error::partial_message;
  co_return !error;
}

asio::awaitable<bool> HttpConnection::ReadHeader(RequestParser& parser) {
  parser.eager(false);
  ArmDeadline(options_.header_timeout);
  error_code error;
  bool more = true;
  while (more && !parser.is_header_done()) more = co_await ParseMore(parser, error);
  DisarmDeadline();
  error_form_ = &routes_.ErrorFormOf(PathOf(OriginForm(parser.get().target())));
  if (!more) co_return co_await FailRead(error, true);
  http_version_ = parser.get().version() == 10 ? 10 : 11;
  std::optional<HttpReply> refusal = HeaderRefusal(parser);
  if (!refusal) co_return true;
  keep_alive_ = false;
  HttpReply reply = std::move(*refusal);
  co_await SendReply(std::move(reply), false);
  co_return false;
}

std::optional<HttpReply> HttpConnection::HeaderRefusal(const RequestParser& parser) const {
  const auto& message = parser.get();
  const HeaderSize size = SizeOf(message);
  if (size.fields > options_.max_header_fields) {
    return ErrorReply(431, fmt::format("The request's header has too many fields: expected at most {}, found {}.",
                                       options_.max_header_fields, size.fields));
  }
  if (size.bytes > options_.max_header_bytes) return ErrorReply(431, HeaderTooLarge(options_.max_header_bytes));
  if (message.target().size() > options_.max_target_bytes) {
    return ErrorReply(414, fmt::format("The request's target is too long: expected at most {} bytes, found {}.",
                                       options_.max_target_bytes, message.target().size()));
  }
  const auto authority = AuthorityOf(message.target());
  if (authority && !IsHost(*authority)) {
    return ErrorReply(400, "Malformed HTTP request (target: expected a path, or http://HOST/PATH with a host's name).");
  }
  const std::string fault = FramingFault(message, http_version_);
  if (!fault.empty()) return ErrorReply(400, fmt::format("Malformed HTTP request ({}).", fault));
  return std::nullopt;
}

// `receiver`: takes the body; null: the parser keeps it.
asio::awaitable<bool> HttpConnection::ReadBody(RequestParser& parser, std::size_t limit, BodyReceiver* receiver) {
  if (parser.is_done()) co_return true;
  const auto announced = parser.content_length();
  if (announced && *announced > limit) co_return co_await FailRead(413, BodyTooLarge(limit));
  if (http_version_ == 11 && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    const bool told = co_await WriteAll("HTTP/1.1 100 Continue\r\n\r\n");
    if (!told) co_return false;
  }
  parser.eager(true);
  const TimeNs start = clock_.Now();
  error_code error;
  bool more = true;
  std::size_t passed_on = 0;
  while (more && !parser.is_done()) {
    const std::size_t held = parser.get().body().size();
    if (passed_on + held > limit) co_return co_await FailRead(413, BodyTooLarge(limit));
    if (receiver != nullptr && held >= kPassedOnAtOnce) {
      const bool taken = co_await PassOn(parser, *receiver, passed_on);
      if (!taken) co_return false;
      body_lease_.Release();
      continue;
    }
    if (!body_lease_.Grow(held))
      co_return co_await FailRead(503, "The server receives too much at once, or from this address; try again.");
    const auto left = BodyTimeLeft(options_, clock_.Now() - start, passed_on + held);
    ArmDeadline(left);
    deadline_passed_ = left.count() == 0;
    more = co_await ParseMore(parser, error);
    DisarmDeadline();
  }
  if (!more) co_return co_await FailRead(error, false);
  if (passed_on + parser.get().body().size() > limit) co_return co_await FailRead(413, BodyTooLarge(limit));
  if (receiver == nullptr) co_return true;
  co_return co_await PassOn(parser, *receiver, passed_on);
}

asio::awaitable<bool> HttpConnection::PassOn(RequestParser& parser, BodyReceiver& receiver, std::size_t& passed_on) {
  std::string bytes = std::exchange(parser.get().body(), {});
  passed_on += bytes.size();
  const Status taken = co_await receiver.Take(std::move(bytes));
  if (taken.ok()) co_return true;
  co_return co_await FailRead(HttpStatus(taken.error()), taken.error().message);
}

// Both always return false. They send the reason, if the client is still there.
asio::awaitable<bool> HttpConnection::FailRead(error_code error, bool in_header) {
  int status = 0;
  std::string message;
  if (deadline_passed_) {
    status = 408;
    const auto timeout = in_header ? options_.header_timeout : options_.body_timeout;
    message = fmt::format(
        "The request's {} did not arrive in time: expected it within {} ms{}.", in_header ? "header" : "body",
        timeout.count(),
        in_header ? "" : fmt::format(" plus one second per {} received bytes", options_.min_body_bytes_per_second));
  } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    status = 431;
    message = HeaderTooLarge(options_.max_header_bytes);
  } else if (error == http::error::body_limit) {
    status = 413;
    message = BodyTooLarge(options_.max_body_bytes);
  } else if (error.category() == make_error_code(http::error::bad_method).category()) {
    status = 400;
    message = fmt::format("Malformed HTTP request ({}).", error.message());
  }
  if (status == 0) {
    spdlog::debug("request not read: {}", error.message());
    co_return false;
  }
  co_return co_await FailRead(status, std::move(message));
}

asio::awaitable<bool> HttpConnection::FailRead(int status, std::string message) {
  keep_alive_ = false;
  spdlog::debug("request not read: {}", message);
  HttpReply reply = NotStarted(ErrorReply(status, message), kDroppedSaturated);
  co_await SendReply(std::move(reply), false);
  co_return false;
}

}  // namespace loramux
