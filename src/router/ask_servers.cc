#include "router/ask_servers.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/string.hpp>

#include "base/json_text.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

// What the questions share. The last to end wakes the caller.
struct Round {
  explicit Round(const asio::any_io_executor& executor) : all_ended(executor, asio::steady_timer::time_point::max()) {}
  std::vector<ServerAnswer> answers;
  std::size_t open = 0;
  asio::steady_timer all_ended;
};

asio::awaitable<void> AskOne(std::shared_ptr<RoutedServer> server, HttpCallRequest request, std::size_t max_bytes,
                             RunningQuestions* running, ServerAnswer& answer) {
  HttpCall call(server->client, std::move(request));
  const auto forget = [running](HttpCall* ended) { running->Remove(ended); };
  const std::unique_ptr<HttpCall, decltype(forget)> listed(running == nullptr ? nullptr : &call, forget);
  if (running != nullptr) running->Add(&call);
  ExchangeEnd end = co_await call.Begin();
  std::string piece;
  while (end.ok()) {
    end = co_await call.ReadPiece(piece);
    if (piece.empty()) break;
    answer.body += piece;
    if (answer.body.size() > max_bytes) end = {ExchangeEnd::Kind::kRefused, "its answer is too long"};
  }
  answer.fault = end.detail;
  if (!end.ok()) co_return;
  answer.status = call.status();
  for (const auto& [name, value] : call.headers()) {
    if (boost::beast::iequals(name, "Content-Type")) answer.content_type = value;
  }
}

}  // namespace

void RunningQuestions::Cancel() {
  cancelled_ = true;
  for (HttpCall* const call : calls_) call->Cancel();
}

void RunningQuestions::Add(HttpCall* call) {
  calls_.push_back(call);
  if (cancelled_) call->Cancel();
}

asio::awaitable<std::vector<ServerAnswer>> AskServers(std::span<const std::shared_ptr<RoutedServer>> servers,
                                                      HttpCallRequest request, std::size_t max_bytes,
                                                      RunningQuestions* running) {
  const auto executor = co_await asio::this_coro::executor;
  request.repeatable = false;
  const auto round = std::make_shared<Round>(executor);
  round->answers.resize(servers.size());
  round->open = servers.size();
  for (std::size_t i = 0; i < servers.size(); ++i) {
    round->answers[i].server = servers[i]->address.name;
    asio::co_spawn(executor, AskOne(servers[i], request, max_bytes, running, round->answers[i]),
                   [round](const std::exception_ptr&) {
                     if (--round->open == 0) round->all_ended.cancel();
                   });
  }
  boost::system::error_code ignored;
  while (round->open > 0) co_await round->all_ended.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  co_return std::move(round->answers);
}

Json ParseAnswer(const std::string& body) {
  if (JsonTextProblem(body)) return Json(Json::value_t::discarded);
  return Json::parse(body, nullptr, false);
}

}  // namespace loramux
