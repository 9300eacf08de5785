#include "http/client.h"

#include <algorithm>
#include <cerrno>
#include <sys/socket.h>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/buffer_traits.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <fmt/format.h>

#include "http/name_lookup.h"

namespace loramux {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using Request = http::request<http::string_body>;

namespace {

// The bytes of a body that have arrived. Unlike http::string_body it takes no memory for the length that a response
// only announces.
struct PieceBody {
  using value_type = std::string;

  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(http::header<kIsRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      for (const auto buffer : beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      return beast::buffer_bytes(buffers);
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};
using Parser = http::response_parser<PieceBody>;

// Bytes that are read before they are parsed: a header (8 KiB at most), the line of a chunk, a piece of a body.
constexpr std::size_t kMaxReadBytes = 256 * 1024;
// Bytes of one read: few for streams of events, of which there are many; more where a read filled them all.
constexpr std::size_t kFirstReadBytes = 2 * 1024, kMostReadBytes = 64 * 1024;

auto Into(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

Request MakeRequest(const HttpClientOptions& options, HttpCallRequest call) {
  if (call.method.empty()) call.method = call.body.empty() ? "GET" : "POST";
  Request request;
  request.method_string(call.method);
  request.target(options.url.prefix + call.path);
  request.version(11);
  request.set(http::field::host, options.url.authority());
  if (call.as_given) {
    for (const auto& [name, value] : call.headers) request.insert(name, value);
  } else {
    request.set(http::field::user_agent, options.user_agent);
    request.set(http::field::accept, "*/*");
    if (!call.body.empty()) request.set(http::field::content_type, "application/json");
    for (const auto& [name, value] : options.headers) request.set(name, value);
    for (const auto& [name, value] : call.headers) request.set(name, value);
  }
  if (call.body.empty() && (call.method == "GET" || call.method == "HEAD")) return request;
  request.body() = std::move(call.body);
  request.prepare_payload();
  return request;
}

}  // namespace

// One connection, plain or TLS.
class ClientConnection {
 public:
  explicit ClientConnection(HttpClient& client) : client_(client), tcp_(client.executor_), buffer_(kMaxReadBytes) {
    if (client.options_.url.tls) tls_.emplace(tcp_, client.tls_);
  }

  asio::awaitable<error_code> Open() {
    error_code error;
    if (client_.endpoints_.empty()) error = co_await LookUp();
    if (error) co_return error;
    const auto endpoints = client_.endpoints_;
    co_await tcp_.async_connect(endpoints, Into(error));
    if (error) client_.endpoints_ = {};
    if (error) co_return error;
    error_code ignored;
    tcp_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    if (!tls_) co_return error;
    const std::string& host = client_.options_.tls_name.empty() ? client_.options_.url.host : client_.options_.tls_name;
    SSL_set_tlsext_host_name(tls_->native_handle(), host.c_str());
    if (!client_.options_.insecure) tls_->set_verify_callback(asio::ssl::host_name_verification(host));
    co_await tls_->async_handshake(asio::ssl::stream_base::client, Into(error));
    co_return error;
  }
  // Sets the time left for everything that follows on this connection.
  void SetTimeout(std::chrono::nanoseconds left) {
    limit_ = left;
    tcp_.expires_after(left);
  }
  void Close() {
    if (lookup_ != nullptr) lookup_->Cancel();
    tcp_.close();
  }

  asio::awaitable<error_code> Write(const Request& request) {
    error_code error;
    if (tls_) {
      co_await http::async_write(*tls_, request, Into(error));
    } else {
      co_await http::async_write(tcp_, request, Into(error));
    }
    co_return error;
  }
  // Parses what has arrived, or reads more.
  asio::awaitable<error_code> ReadSome(Parser& parser) {
    error_code error;
    if (buffer_.size() > 0) {
      buffer_.consume(parser.put(buffer_.data(), error));
      if (error != http::error::need_more) co_return error;
      if (buffer_.size() + kMostReadBytes > kMaxReadBytes) co_return http::error::buffer_overflow;
      error = {};
    }
    const auto into = buffer_.prepare(read_bytes_);
    std::size_t n = 0;
    if (tls_) {
      n = co_await tls_->async_read_some(into, Into(error));
    } else {
      n = co_await tcp_.async_read_some(into, Into(error));
    }
    buffer_.commit(n);
    if (n == read_bytes_) read_bytes_ = std::min(2 * read_bytes_, kMostReadBytes);
    if (error != asio::error::eof) co_return error;
    error = http::error::end_of_stream;
    if (parser.got_some()) parser.put_eof(error = {});
    co_return error;
  }
  // Frees what a large body needed. REQUIRES: between two exchanges.
  void Shrink() {
    if (read_bytes_ == kFirstReadBytes) return;
    read_bytes_ = kFirstReadBytes;
    buffer_.shrink_to_fit();
  }
  // The server has closed the connection, or sent what belongs to no request.
  bool Stale() {
    char byte = 0;
    const ssize_t n = ::recv(tcp_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return buffer_.size() > 0 || n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }

  bool reused = false;     // it has carried a request before
  bool got_bytes = false;  // bytes of the response to the current request have come
  TimeNs idle_since = 0;

 private:
  // Looks the host up within the time that SetTimeout gave just now.
  asio::awaitable<error_code> LookUp() {
    NameLookup lookup(client_.executor_);
    lookup_ = &lookup;
    const auto resolver = std::make_shared<asio::ip::tcp::resolver>(client_.executor_);
    const Url& url = client_.options_.url;
    const auto start = [&](auto handler) {
      resolver->async_resolve(
          url.host, url.port,
          [resolver, handler = std::move(handler)](const error_code& error, NameLookup::Addresses addresses) mutable {
            handler(error, std::move(addresses));
          });
    };
    NameLookup::Addresses found;
    const error_code error = co_await lookup.Wait(start, limit_, found);
    lookup_ = nullptr;
    if (!error) client_.endpoints_ = std::move(found);
    co_return error;
  }

  HttpClient& client_;
  std::chrono::nanoseconds limit_ = std::chrono::hours(1);
  NameLookup* lookup_ = nullptr;  // the look-up that runs; null: none
  beast::tcp_stream tcp_;
  std::optional<beast::ssl_stream<beast::tcp_stream&>> tls_;
  beast::flat_buffer buffer_;
  std::size_t read_bytes_ = kFirstReadBytes;
};

struct HttpCall::Message {
  explicit Message(Request asked) : request(std::move(asked)) {}

  Request request;
  std::optional<Parser> parser;  // one for each try

  void Renew() {
    parser.emplace();
    parser->body_limit(boost::none);
    parser->skip(request.method() == http::verb::head);
    // An eager parser would hold back a chunk until the header of the next chunk arrives.
    parser->eager(false);
  }
};

HttpCall::HttpCall(HttpClient& client, HttpCallRequest request)
    : client_(client),
      timeout_(request.timeout.value_or(client.options_.timeout)),
      idle_timeout_(request.idle_timeout),
      repeatable_(request.repeatable),
      deadline_(client.clock_.Now() + timeout_.count()),
      message_(std::make_unique<Message>(MakeRequest(client.options_, std::move(request)))),
      place_(client.running_.size()),
      cancelled_(client.cancelled_) {
  client_.running_.push_back(this);
}

HttpCall::~HttpCall() {
  HttpCall* const last = client_.running_.back();
  client_.running_[place_] = last;
  last->place_ = place_;
  client_.running_.pop_back();
}

std::string HttpCall::TakeBody() { return std::exchange(message_->request.body(), {}); }

void HttpCall::Cancel() {
  cancelled_ = true;
  if (connection_ != nullptr) connection_->Close();
}

void HttpCall::Limit() {
  if (idle_timeout_) return connection_->SetTimeout(*idle_timeout_);
  connection_->SetTimeout(std::chrono::nanoseconds(std::max<TimeNs>(deadline_ - client_.clock_.Now(), 1)));
}

ExchangeEnd HttpCall::Describe(const error_code& error) {
  using Kind = ExchangeEnd::Kind;
  if (!error && !cancelled_) return {};
  connection_.reset();
  if (cancelled_) return {Kind::kCancelled, "cancelled"};
  if (error == beast::error::timeout) {
    const auto seconds = [](std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e9; };
    if (!opened_ && client_.options_.connect_timeout) {
      return {Kind::kTimeout, fmt::format("no connection within {} s", seconds(*client_.options_.connect_timeout))};
    }
    if (idle_timeout_) return {Kind::kTimeout, fmt::format("nothing arrived within {} s", seconds(*idle_timeout_))};
    return {Kind::kTimeout, fmt::format("not finished within {} s", seconds(timeout_))};
  }
  if (!opened_) return {Kind::kConnect, error.message()};
  const bool ended = error == http::error::end_of_stream || error == http::error::partial_message;
  const bool is_http = error.category() == http::make_error_code(http::error::bad_version).category();
  return {is_http && !ended ? Kind::kGarbled : Kind::kBroken, error.message()};
}

asio::awaitable<ExchangeEnd> HttpCall::Begin() {
  while (!cancelled_) {
    connection_ = client_.Take();
    const error_code error = co_await TryOnce();
    const bool stale = error && repeatable_ && connection_->reused && !connection_->got_bytes &&
                       error != beast::error::timeout && !cancelled_;
    const bool lost = error && !repeatable_ && connection_->reused && !connection_->got_bytes &&
                      error != beast::error::timeout && !cancelled_;
    if (lost) client_.MistrustKept();
    if (!error && connection_->reused) client_.single_for_ = 0;
    if (!stale) co_return Describe(error);
  }
  co_return Describe({});
}

asio::awaitable<error_code> HttpCall::TryOnce() {
  Limit();
  error_code error;
  if (!connection_->reused) {
    if (client_.options_.connect_timeout) connection_->SetTimeout(*client_.options_.connect_timeout);
    error = co_await connection_->Open();
    if (!error) Limit();
  }
  opened_ = !error;
  if (error || cancelled_) co_return error;
  sent_ = true;
  error = co_await connection_->Write(message_->request);
  if (error == beast::error::timeout) co_return error;
  // A server may reply (413, 429) and close before it has read the whole request; its reply counts.
  const error_code read_error = co_await ReadHead();
  co_return !error || connection_->got_bytes ? read_error : error;
}

asio::awaitable<error_code> HttpCall::ReadHead() {
  error_code error;
  do {  // the answer comes behind the interim ones
    message_->Renew();
    Parser& parser = *message_->parser;
    while (!error && !parser.is_header_done()) error = co_await connection_->ReadSome(parser);
    connection_->got_bytes = parser.is_header_done();
    if (error) co_return error;
    status_ = static_cast<int>(parser.get().result_int());
    if (status_ == 101) co_return http::error::bad_status;  // nothing asked for another protocol
  } while (status_ < 200);
  for (const auto& field : message_->parser->get()) headers_.emplace_back(field.name_string(), field.value());
  co_return error;
}

asio::awaitable<ExchangeEnd> HttpCall::ReadPiece(std::string& piece) {
  piece.clear();
  if (connection_ == nullptr || cancelled_) co_return Describe({});
  Parser& parser = *message_->parser;
  std::string& body = parser.get().body();
  error_code error = pending_;
  Limit();
  while (!error && body.empty() && !parser.is_done()) error = co_await connection_->ReadSome(parser);
  piece.swap(body);
  pending_ = error;
  if (!piece.empty()) co_return ExchangeEnd{};
  if (error || cancelled_) co_return Describe(error);
  if (parser.keep_alive()) client_.GiveBack(std::move(connection_));
  connection_.reset();
  co_return ExchangeEnd{};
}

HttpClient::HttpClient(asio::any_io_executor executor, HttpClientOptions options, const Clock& clock)
    : executor_(std::move(executor)),
      options_(std::move(options)),
      clock_(clock),
      tls_(asio::ssl::context::tls_client) {
  error_code ignored;
  tls_.set_default_verify_paths(ignored);
  if (!options_.ca_file.empty()) tls_.load_verify_file(options_.ca_file, ignored);
  tls_.set_verify_mode(options_.insecure ? asio::ssl::verify_none : asio::ssl::verify_peer, ignored);
}

HttpClient::~HttpClient() = default;

Status HttpClient::Resolve() {
  error_code error;
  asio::ip::tcp::resolver resolver(executor_);
  endpoints_ = resolver.resolve(options_.url.host, options_.url.port, error);
  if (error) return IoError(fmt::format("cannot look up {}: {}", options_.url.host, error.message()));
  return Ok{};
}

std::unique_ptr<ClientConnection> HttpClient::Take() {
  const TimeNs oldest = clock_.Now() - options_.idle_timeout.count();
  while (!idle_.empty() && idle_.front()->idle_since < oldest) idle_.pop_front();
  while (!idle_.empty() && idle_.back()->Stale()) idle_.pop_back();
  if (clock_.Now() < single_until_) idle_.clear();
  if (idle_.empty()) {
    ++opened_;
    return std::make_unique<ClientConnection>(*this);
  }
  auto connection = std::move(idle_.back());  // the connection used last is the least likely to be closed by the server
  idle_.pop_back();
  connection->reused = true;
  connection->got_bytes = false;
  return connection;
}

void HttpClient::GiveBack(std::unique_ptr<ClientConnection> connection) {
  if (idle_.size() >= options_.max_idle || clock_.Now() < single_until_) return;
  connection->idle_since = clock_.Now();
  connection->Shrink();
  idle_.push_back(std::move(connection));
}

void HttpClient::MistrustKept() {
  constexpr TimeNs kFirst = 60 * kNsPerSecond, kMost = 3600 * kNsPerSecond;
  single_for_ = std::clamp(2 * single_for_, kFirst, kMost);
  single_until_ = clock_.Now() + single_for_;
}

void HttpClient::CancelAll() {
  cancelled_ = true;
  for (HttpCall* call : running_) call->Cancel();
}

}  // namespace loramux
