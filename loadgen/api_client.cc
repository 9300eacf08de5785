#include "loadgen/api_client.h"

#include <algorithm>
#include <optional>

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

namespace loramux::load {

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
constexpr std::size_t kMaxBuffer = 256 * 1024;

auto Into(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

Request MakeRequest(const ApiClientOptions& options, const std::string& path, std::string body) {
  Request request(body.empty() ? http::verb::get : http::verb::post, options.url.prefix + path, 11);
  request.set(http::field::host, options.url.authority());
  request.set(http::field::user_agent, "loramux-bench");
  request.set(http::field::accept, "*/*");
  if (!options.api_key.empty()) request.set(http::field::authorization, "Bearer " + options.api_key);
  for (const auto& [name, value] : options.headers) request.set(name, value);
  if (!body.empty()) {
    request.set(http::field::content_type, "application/json");
    request.body() = std::move(body);
    request.prepare_payload();
  }
  return request;
}

}  // namespace

// One connection, plain or TLS.
class ServerConnection {
 public:
  explicit ServerConnection(ApiClient& client) : client_(client), tcp_(client.context_), buffer_(kMaxBuffer) {
    if (client.options_.url.tls) tls_.emplace(tcp_, client.tls_);
  }

  asio::awaitable<error_code> Open() {
    error_code error;
    co_await tcp_.async_connect(client_.endpoints_, Into(error));
    if (error) co_return error;
    error_code ignored;
    tcp_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    if (!tls_) co_return error;
    const std::string& host = client_.options_.url.host;
    SSL_set_tlsext_host_name(tls_->native_handle(), host.c_str());
    if (!client_.options_.insecure) tls_->set_verify_callback(asio::ssl::host_name_verification(host));
    co_await tls_->async_handshake(asio::ssl::stream_base::client, Into(error));
    co_return error;
  }

  // Sets the time left for everything that follows on this connection.
  void SetTimeout(std::chrono::nanoseconds left) { tcp_.expires_after(left); }
  void Close() { tcp_.close(); }
  bool reused = false;     // it has carried a request before
  bool got_bytes = false;  // bytes of the response to the current request have arrived
  bool refused = false;    // the BodySink wanted no more of the response

  asio::awaitable<error_code> Write(const Request& request) {
    error_code error;
    if (tls_) {
      co_await http::async_write(*tls_, request, Into(error));
    } else {
      co_await http::async_write(tcp_, request, Into(error));
    }
    co_return error;
  }

  // Reads the response into `sink`. Sets `keep` if the connection can be used again.
  asio::awaitable<error_code> Read(BodySink& sink, bool& keep) {
    Parser parser;
    parser.body_limit(boost::none);
    // An eager parser would hold back a chunk until the header of the next chunk arrives.
    parser.eager(false);
    bool header_seen = false;
    error_code error;
    while (!error && !parser.is_done()) {
      error = co_await ReadSome(parser);
      if (!parser.is_header_done()) continue;
      got_bytes = true;
      if (!header_seen) sink.OnStatus(static_cast<int>(parser.get().result_int()));
      header_seen = true;
      std::string& body = parser.get().body();
      refused = !body.empty() && !sink.OnBody(body, client_.Now());
      if (refused) co_return error;
      body.clear();
    }
    keep = !error && parser.keep_alive();
    co_return error;
  }

 private:
  asio::awaitable<error_code> ReadSome(Parser& parser) {
    error_code error;
    if (tls_) {
      co_await http::async_read_some(*tls_, buffer_, parser, Into(error));
    } else {
      co_await http::async_read_some(tcp_, buffer_, parser, Into(error));
    }
    co_return error;
  }

  ApiClient& client_;
  beast::tcp_stream tcp_;
  std::optional<beast::ssl_stream<beast::tcp_stream&>> tls_;
  beast::flat_buffer buffer_;
};

ApiClient::ApiClient(asio::io_context& context, ApiClientOptions options, const Clock& clock)
    : context_(context), options_(std::move(options)), clock_(clock), tls_(asio::ssl::context::tls_client) {
  error_code ignored;
  tls_.set_default_verify_paths(ignored);
  tls_.set_verify_mode(options_.insecure ? asio::ssl::verify_none : asio::ssl::verify_peer, ignored);
}

ApiClient::~ApiClient() = default;

Status ApiClient::Resolve() {
  error_code error;
  asio::ip::tcp::resolver resolver(context_);
  endpoints_ = resolver.resolve(options_.url.host, options_.url.port, error);
  if (error) return IoError(fmt::format("--url: cannot look up {}: {}", options_.url.host, error.message()));
  return Ok{};
}

std::unique_ptr<ServerConnection> ApiClient::TakeIdle() {
  if (idle_.empty()) return std::make_unique<ServerConnection>(*this);
  auto connection = std::move(idle_.back());  // the connection used last is the least likely to be closed by the server
  idle_.pop_back();
  connection->reused = true;
  connection->got_bytes = false;
  return connection;
}

ExchangeEnd ApiClient::Describe(const error_code& error, bool opened) const {
  using Kind = ExchangeEnd::Kind;
  if (!error) return {};
  if (cancelled_) return {Kind::kCancelled, "the run was stopped"};
  if (error == beast::error::timeout) {
    return {Kind::kTimeout,
            fmt::format("not finished within {} s", static_cast<double>(options_.timeout.count()) / 1e9)};
  }
  if (!opened) return {Kind::kConnect, error.message()};
  const bool ended = error == http::error::end_of_stream || error == http::error::partial_message;
  const bool is_http = error.category() == http::make_error_code(http::error::bad_version).category();
  return {is_http && !ended ? Kind::kGarbled : Kind::kBroken, error.message()};
}

asio::awaitable<ExchangeEnd> ApiClient::Exchange(std::string path, std::string body, BodySink& sink) {
  using Kind = ExchangeEnd::Kind;
  const TimeNs deadline = clock_.Now() + options_.timeout.count();
  const Request request = MakeRequest(options_, path, std::move(body));
  while (true) {
    if (cancelled_) co_return ExchangeEnd{Kind::kCancelled, "the run was stopped"};
    auto connection = TakeIdle();
    busy_.push_back(connection.get());
    connection->SetTimeout(std::chrono::nanoseconds(std::max<TimeNs>(deadline - clock_.Now(), 1)));
    error_code error;
    if (!connection->reused) error = co_await connection->Open();
    const bool opened = !error;
    bool keep = false;
    if (opened) error = co_await connection->Write(request);
    // A server may reply (413, 429) and close before it has read the whole request; its reply counts.
    if (opened && error != beast::error::timeout) {
      const error_code read_error = co_await connection->Read(sink, keep);
      if (!error || connection->got_bytes) error = read_error;
    }
    std::erase(busy_, connection.get());
    if (connection->refused) co_return ExchangeEnd{Kind::kRefused, "the answer is too large"};
    if (keep) {
      idle_.push_back(std::move(connection));
      co_return ExchangeEnd{};
    }
    const bool stale = connection->reused && !connection->got_bytes && error != beast::error::timeout;
    if (error && stale && !cancelled_) continue;  // retry on another connection
    co_return Describe(error, opened);
  }
}

void ApiClient::CancelAll() {
  cancelled_ = true;
  for (ServerConnection* connection : busy_) connection->Close();
}

}  // namespace loramux::load
