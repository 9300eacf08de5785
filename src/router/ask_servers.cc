#include "router/ask_servers.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
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

constexpr std::chrono::milliseconds kBetweenLooks(50);

// Cancels the call of a server that does not answer polls or probes for so long, while `alive` exists. The servers'
// links notice a server that hangs within seconds, and say so in its fault.
asio::awaitable<void> WatchSilence(std::shared_ptr<RoutedServer> server, HttpCall& call,
                                   std::chrono::milliseconds patience, std::weak_ptr<std::string> alive) {
  asio::steady_timer pause(co_await asio::this_coro::executor);
  auto silent = std::chrono::milliseconds(0);
  while (silent < patience) {
    pause.expires_after(kBetweenLooks);
    boost::system::error_code ignored;
    co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    if (alive.expired()) co_return;
    silent = server->fault.empty() ? std::chrono::milliseconds(0) : silent + kBetweenLooks;
  }
  if (const auto why = alive.lock()) *why = server->fault;
  call.Cancel();
}

asio::awaitable<void> AskOne(std::shared_ptr<RoutedServer> server, HttpCallRequest request, std::size_t max_bytes,
                             RunningQuestions* running, std::optional<std::chrono::milliseconds> silence_patience,
                             ServerAnswer& answer) {
  HttpCall call(server->client, std::move(request));
  const auto silence = std::make_shared<std::string>();  // dies before the call, and the watch with it
  if (silence_patience) {
    const auto executor = co_await asio::this_coro::executor;
    asio::co_spawn(executor, WatchSilence(server, call, *silence_patience, silence), asio::detached);
  }
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
  answer.fault =
      silence->empty() ? end.detail : "it answers no probes (" + *silence + "); it may do this once it goes on";
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
                                                      RunningQuestions* running,
                                                      std::optional<std::chrono::milliseconds> silence_patience) {
  const auto executor = co_await asio::this_coro::executor;
  request.repeatable = false;
  const auto round = std::make_shared<Round>(executor);
  round->answers.resize(servers.size());
  round->open = servers.size();
  for (std::size_t i = 0; i < servers.size(); ++i) {
    round->answers[i].server = servers[i]->address.name;
    asio::co_spawn(executor, AskOne(servers[i], request, max_bytes, running, silence_patience, round->answers[i]),
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
