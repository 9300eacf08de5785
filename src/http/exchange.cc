#include "http/exchange.h"

#include <algorithm>

#include "http/connection.h"
#include "http/error_status.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxPathInDescription = 200;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsWildcard(std::string_view path) { return path.ends_with("/*"); }

bool Matches(std::string_view route, std::string_view path, std::string& tail) {
  if (!IsWildcard(route)) return route == path;
  const std::string_view prefix = route.substr(0, route.size() - 1);
  if (!path.starts_with(prefix) || path.size() == prefix.size()) return false;
  tail = path.substr(prefix.size());
  return true;
}

}  // namespace

std::optional<std::string_view> QueryParameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (!pair.starts_with(name)) continue;
    if (pair.size() == name.size()) return std::string_view();
    if (pair[name.size()] == '=') return pair.substr(name.size() + 1);
  }
  return std::nullopt;
}

std::string PercentDecode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 && HexDigit(text[i + 2]) >= 0;
    out += escape ? static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return out;
}

std::string NormalPath(std::string_view path) {
  std::vector<std::string_view> segments;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find_first_of("/\\"), path.size());
    const std::string_view segment = path.substr(0, std::min(end, path.find(';')));
    path.remove_prefix(std::min(end + 1, path.size()));
    if (segment == ".." && !segments.empty()) segments.pop_back();
    if (segment.empty() || segment == "." || segment == "..") continue;
    segments.push_back(segment);
  }
  std::string normal;
  for (const std::string_view segment : segments) normal.append("/").append(segment);
  return normal.empty() ? "/" : normal;
}

std::string PathOf(std::string_view target) { return PercentDecode(target.substr(0, target.find('?'))); }

std::string_view HttpRequest::Header(std::string_view name) const {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const auto same = [&](std::string_view a) {
    return std::equal(a.begin(), a.end(), name.begin(), name.end(),
                      [&](char x, char y) { return lower(x) == lower(y); });
  };
  for (const auto& [key, value] : headers) {
    if (same(key)) return value;
  }
  return {};
}

HttpReply ErrorReply(int status, std::string_view message, std::string_view param) {
  HttpReply reply;
  reply.status = status;
  reply.body = message;
  reply.content_type = "text/plain; charset=utf-8";
  reply.error = ErrorText{std::string(message), std::string(param)};
  if (status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

HttpReply ErrorReply(const Error& error) {
  HttpReply reply = ErrorReply(HttpStatus(error), error.message, error.param);
  if (error.retry_after_seconds > 0) {
    reply.headers.clear();
    reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  if (error.code == ErrorCode::kRateLimited) reply.headers.emplace_back(kDroppedReasonHeader, kDroppedSaturated);
  return reply;
}

HttpReply NotStarted(HttpReply reply, const char* dropped_reason) {
  if (reply.status != 503) return reply;
  reply.headers.emplace_back(kNotStartedHeader, "1");
  if (dropped_reason != nullptr) reply.headers.emplace_back(kDroppedReasonHeader, dropped_reason);
  return reply;
}

HttpExchange::HttpExchange(HttpConnection& connection, HttpRequest request)
    : connection_(connection), request_(std::move(request)) {}

boost::asio::any_io_executor HttpExchange::executor() const { return connection_.executor(); }

const RequestTrace& HttpExchange::trace() const { return connection_.trace(); }

boost::asio::awaitable<bool> HttpExchange::Send(HttpReply reply) {
  CHECK_EQ(status_, 0);
  status_ = reply.status;
  for (auto& header : headers_) reply.headers.push_back(std::move(header));
  complete_ = co_await connection_.SendReply(std::move(reply), request_.method == "HEAD");
  co_return complete_;
}

boost::asio::awaitable<bool> HttpExchange::StartStream(std::string content_type) {
  // X-Accel-Buffering makes proxies pass on events at once.
  HttpStreamHead head{.headers = {{"Content-Type", std::move(content_type)},
                                  {"Cache-Control", "no-cache"},
                                  {"X-Accel-Buffering", "no"}}};
  return StartStream(std::move(head));
}

boost::asio::awaitable<bool> HttpExchange::StartStream(HttpStreamHead head) {
  CHECK_EQ(status_, 0);
  status_ = head.status;
  for (auto& header : headers_) head.headers.push_back(std::move(header));
  return connection_.StartStream(std::move(head));
}

boost::asio::awaitable<bool> HttpExchange::Write(std::string_view data) { return connection_.WriteStream(data); }

boost::asio::awaitable<bool> HttpExchange::EndStream() {
  complete_ = co_await connection_.EndStream();
  co_return complete_;
}

void HttpExchange::OnDisconnect(std::function<void()> gone) { connection_.WatchForDisconnect(std::move(gone)); }

bool HttpExchange::disconnected() const { return connection_.gone(); }

const std::atomic<bool>& HttpExchange::WatchClient() {
  connection_.WatchForDisconnect(nullptr);
  return connection_.gone();
}

void HttpExchange::OnCutOff(std::function<void()> cut_off) { connection_.OnCutOff(std::move(cut_off)); }

std::string HttpExchange::description() const {
  return description_.empty() ? request_.method + " " + request_.path.substr(0, kMaxPathInDescription) : description_;
}

void HttpExchange::ReleaseBody() {
  request_.body = std::string();
  connection_.BodyIsGone();
}

void HttpExchange::Abort() { connection_.Abort(); }

void RouteTable::Add(std::string method, std::string path, HttpHandler handler, RouteAccess access,
                     std::size_t max_body_bytes) {
  Add({std::move(method), std::move(path), std::move(handler), access, max_body_bytes});
}

void RouteTable::Add(HttpRoute route) {
  for (const HttpRoute& other : routes_) CHECK(other.method != route.method || other.path != route.path);
  if (route.receiver) largest_received_ = std::max(largest_received_, route.max_body_bytes);
  routes_.push_back(std::move(route));
}

namespace {

boost::asio::awaitable<void> SendSimple(HttpExchange& exchange,
                                        const std::function<HttpReply(const HttpRequest&)>& make) {
  HttpReply reply = make(exchange.request());
  co_await exchange.Send(std::move(reply));
}

}  // namespace

void RouteTable::AddSimple(std::string method, std::string path, std::function<HttpReply(const HttpRequest&)> handler,
                           RouteAccess access) {
  Add(
      std::move(method), std::move(path),
      [handler = std::move(handler)](HttpExchange& exchange) { return SendSimple(exchange, handler); }, access);
}

const HttpRoute* RouteTable::Find(HttpRequest& request, std::vector<std::string>& allowed) const {
  const std::string& wanted = request.method == "HEAD" ? "GET" : request.method;
  for (const HttpRoute& route : routes_) {
    std::string tail;
    if (!Matches(route.path, request.path, tail)) continue;
    if (route.method == wanted) {
      request.tail = std::move(tail);
      return &route;
    }
    allowed.push_back(route.method);
    if (route.method == "GET") allowed.emplace_back("HEAD");
  }
  return nullptr;
}

const ErrorForm& RouteTable::ErrorFormOf(std::string_view path) const {
  const HttpRoute* best = nullptr;
  for (const HttpRoute& route : routes_) {
    const std::size_t size = route.path.size();
    if (!path.starts_with(route.path) || (path.size() > size && (size == 1 || path[size] != '/'))) continue;
    const bool longer = best == nullptr || size > best->path.size();
    if (longer || (size == best->path.size() && !best->error_form)) best = &route;
  }
  return best != nullptr && best->error_form ? best->error_form : error_form_;
}

}  // namespace loramux
