#include "loadgen/api_client.h"

#include <utility>

namespace loramux::load {

namespace asio = boost::asio;

ApiClient::ApiClient(asio::io_context& context, HttpClientOptions options, const Clock& clock)
    : http_(context.get_executor(), std::move(options), clock), clock_(clock) {}

Status ApiClient::Resolve() {
  const Status status = http_.Resolve();
  if (status.ok()) return status;
  return Error{status.error().code, "--url: " + status.error().message, {}};
}

asio::awaitable<ExchangeEnd> ApiClient::Exchange(std::string path, std::string body, BodySink& sink) {
  HttpCall call(http_, {.path = std::move(path), .body = std::move(body)});
  ExchangeEnd end = co_await Feed(call, sink);
  if (end.kind == ExchangeEnd::Kind::kCancelled) end.detail = "the run was stopped";
  co_return end;
}

asio::awaitable<ExchangeEnd> ApiClient::Feed(HttpCall& call, BodySink& sink) {
  ExchangeEnd end = co_await call.Begin();
  if (!end.ok()) co_return end;
  sink.OnStatus(call.status());
  std::string piece;
  while (true) {
    end = co_await call.ReadPiece(piece);
    if (!end.ok() || piece.empty()) co_return end;
    if (!sink.OnBody(piece, Now())) co_return ExchangeEnd{ExchangeEnd::Kind::kRefused, "the answer is too large"};
  }
}

}  // namespace loramux::load
