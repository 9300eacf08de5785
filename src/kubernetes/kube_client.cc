#include "kubernetes/kube_client.h"

#include <fstream>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "http/client.h"
#include "http/json_reader.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMaxBodyBytes = std::size_t{64} << 20, kMaxLineBytes = std::size_t{4} << 20;
constexpr std::size_t kMaxTokenBytes = 64 << 10;

Result<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path);
  std::string token;
  if (!(file >> token) || token.size() > kMaxTokenBytes) {
    return IoError(path + ": expected the token of a service account, found none");
  }
  return token;
}

// The `message` of Kubernetes' Status object, or the beginning of the text.
std::string MessageIn(const std::string& body) {
  constexpr std::size_t kShown = 300;
  const auto json = ParseJson(body);
  const bool object = json.ok() && json->is_object() && json->contains("message") && (*json)["message"].is_string();
  return (object ? (*json)["message"].get<std::string>() : body).substr(0, kShown);
}

}  // namespace

// One exchange. A piece that the callback refuses ends it; that is no error.
struct KubeClient::Call {
  HttpCallRequest request;
  OnPiece on_piece;
  int status = 0;
  std::string refusal;  // the body of an answer that is no success
  bool ended = false;   // the callback refused a piece
  ExchangeEnd end;

  asio::awaitable<void> Run(HttpClient& client) {
    HttpCall exchange(client, std::move(request));
    end = co_await exchange.Begin();
    if (!end.ok()) co_return;
    status = exchange.status();
    std::string piece;
    while (true) {
      end = co_await exchange.ReadPiece(piece);
      if (!end.ok() || piece.empty()) co_return;
      if (status >= 200 && status < 300) {
        if (!on_piece(piece)) {
          ended = true;
          co_return;
        }
      } else if (refusal.size() < kMaxTokenBytes) {
        refusal += piece;
      }
    }
  }
};

Status KubeClient::Do(Call& call, std::stop_token stop) const {
  if (!options_.token_file.empty()) {
    ASSIGN_OR_RETURN(const std::string token, ReadToken(options_.token_file));
    call.request.headers.emplace_back("Authorization", "Bearer " + token);
  }
  const std::string what = call.request.path.substr(0, call.request.path.find('?'));
  if (!call.request.timeout) call.request.timeout = options_.timeout;
  asio::io_context io;
  HttpClient client(io.get_executor(), {.url = options_.server, .ca_file = options_.ca_file}, clock_);
  if (auto resolved = client.Resolve(); !resolved.ok()) return Unavailable(resolved.error().message);
  asio::co_spawn(io, call.Run(client), asio::detached);
  {
    const std::stop_callback cancel(stop, [&] { asio::post(io, [&client] { client.CancelAll(); }); });
    io.run();
  }
  const std::string where = options_.server.authority() + what;
  if (call.ended) return Ok{};
  if (call.status == 410) return Error{ErrorCode::kRateLimited, where + ": what the watch asked for is gone", {}};
  if (call.status == 404) return NotFound(fmt::format("{}: {}", where, MessageIn(call.refusal)));
  if (call.status >= 400 && call.status < 500 && call.status != 429) {
    return InvalidArgument(fmt::format("{}: status {}: {}", where, call.status, MessageIn(call.refusal)));
  }
  if (call.status >= 300)
    return Unavailable(fmt::format("{}: status {}: {}", where, call.status, MessageIn(call.refusal)));
  if (!call.end.ok()) return Unavailable(where + ": " + call.end.detail);
  return Ok{};
}

Result<std::string> KubeClient::Get(const std::string& path, std::stop_token stop) const {
  std::string body;
  Call call{.request = {.path = path}, .on_piece = [&](std::string_view piece) {
              body += piece;
              return body.size() <= kMaxBodyBytes;
            }};
  RETURN_IF_ERROR(Do(call, stop));
  if (call.ended) return InvalidArgument(path + ": expected at most 64 MiB, found more");
  return body;
}

Status KubeClient::Patch(const std::string& path, std::string body, std::stop_token stop) const {
  Call call{.request = {.method = "PATCH", .path = path, .body = std::move(body)},
            .on_piece = [](std::string_view) { return true; }};
  call.request.headers.emplace_back("Content-Type", "application/merge-patch+json");
  return Do(call, stop);
}

Status KubeClient::Watch(const std::string& path, const std::function<bool(std::string_view)>& on_line,
                         std::stop_token stop) const {
  std::string text;
  bool too_long = false;
  Call call{.request = {.path = path, .timeout = options_.watch_time}, .on_piece = [&](std::string_view piece) {
              text += piece;
              for (std::size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
                if (end > 0 && !on_line(std::string_view(text).substr(0, end))) return false;
              }
              too_long = text.size() > kMaxLineBytes;
              return !too_long;
            }};
  const Status status = Do(call, stop);
  if (too_long) return InvalidArgument(path + ": expected lines of at most 4 MiB, found a longer one");
  if (call.end.kind == ExchangeEnd::Kind::kTimeout && call.status == 200) return Ok{};  // watch_time is over
  return status;
}

}  // namespace loramux
