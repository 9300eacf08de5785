#include "router/server_link.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/string.hpp>
#include <fmt/format.h>

#include "base/log.h"
#include "http/client.h"
#include "http/run_on.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kLeastInterval{50};  // between two polls
constexpr const char* kHealthPath = "/health";           // what probes ask
constexpr std::size_t kSmallSnapshot = 16 * 1024;        // it is parsed at once
constexpr std::size_t kMostProbeBytes = 64 * 1024;
constexpr std::int64_t kOldestSnapshotMs = 3'600'000;
constexpr int kProbesBetweenPolls = 60;  // probes of a foreign server, which may have become another

// A whole answer.
struct Answer {
  int status = 0;  // 0: there was none
  std::string body;
  std::string fault;
  std::chrono::milliseconds age{0};
};

std::chrono::milliseconds AgeIn(const HttpFields& headers) {
  std::int64_t age = 0;
  for (const auto& [name, value] : headers) {
    if (!boost::beast::iequals(name, "x-loramux-snapshot-age-ms")) continue;
    std::from_chars(value.data(), value.data() + value.size(), age);
  }
  return std::chrono::milliseconds(std::clamp<std::int64_t>(age, 0, kOldestSnapshotMs));
}

}  // namespace

HttpClientOptions ClientOptionsOf(const ServerAddress& address, const ServerAccess& access) {
  HttpClientOptions options{.url = address.url, .user_agent = "loramux-route"};
  options.connect_timeout = access.connect_timeout;
  options.idle_timeout = access.idle_timeout;
  options.max_idle = access.max_idle;
  options.insecure = access.insecure;
  options.ca_file = access.ca_file;
  options.tls_name = address.tls_name;
  return options;
}

class ServerLink::Session : public std::enable_shared_from_this<ServerLink::Session> {
 public:
  Session(asio::any_io_executor executor, ServerAddress address, ServerAccess access, asio::thread_pool* workers,
          ServerLinkCallbacks callbacks, const Clock& clock)
      : executor_(executor),
        address_(std::move(address)),
        access_(std::move(access)),
        workers_(workers),
        callbacks_(std::move(callbacks)),
        clock_(clock),
        client_(executor, PollOptions(), clock),
        pause_(executor) {}

  void Start() { asio::co_spawn(executor_, Run(shared_from_this()), asio::detached); }
  void Stop() {
    stopped_ = true;
    callbacks_ = {};
    pause_.cancel();
    client_.CancelAll();
  }
  bool foreign() const { return foreign_; }

 private:
  // Polls have a connection of their own, and as long for it as for an answer.
  HttpClientOptions PollOptions() const {
    HttpClientOptions options = ClientOptionsOf(address_, access_);
    options.timeout = access_.poll_patience;
    options.connect_timeout = access_.poll_patience;
    options.max_idle = 1;
    return options;
  }
  asio::awaitable<void> Run(std::shared_ptr<Session> self) {
    while (!stopped_) {
      bool well = false;
      if (foreign_ && probes_ < kProbesBetweenPolls) {
        well = co_await Probe();
      } else {
        well = co_await Poll();
      }
      if (!stopped_) co_await Pause(well && !foreign_ ? kLeastInterval : access_.probe_interval);
    }
  }

  asio::awaitable<void> Pause(std::chrono::milliseconds time) {
    pause_.expires_after(time);
    boost::system::error_code ignored;
    co_await pause_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }

  void Report(bool healthy, const std::string& why) {
    if (stopped_) return;
    if (healthy != healthy_) {
      if (healthy) {
        spdlog::info("server {} answers", address_.name);
      } else {
        spdlog::warn("server {} does not answer: {}", address_.name, why);
      }
    }
    healthy_ = healthy;
    if (callbacks_.probe) callbacks_.probe(healthy, why);
  }

  asio::awaitable<Answer> Get(std::string path, std::chrono::milliseconds timeout, std::size_t most_bytes) {
    HttpCallRequest request{.path = std::move(path), .timeout = timeout};
    if (!access_.fleet_key.empty()) request.headers.emplace_back("Authorization", "Bearer " + access_.fleet_key);
    HttpCall call(client_, std::move(request));
    Answer answer;
    ExchangeEnd end = co_await call.Begin();
    std::string piece;
    while (end.ok()) {
      end = co_await call.ReadPiece(piece);
      if (piece.empty()) break;
      answer.body += piece;
      if (answer.body.size() > most_bytes) end = {ExchangeEnd::Kind::kRefused, "its answer is too long"};
    }
    answer.fault = end.detail;
    if (!end.ok()) co_return answer;
    answer.status = call.status();
    answer.age = AgeIn(call.headers());
    co_return answer;
  }

  // A server without snapshots.
  asio::awaitable<bool> Probe() {
    ++probes_;
    const Answer answer = co_await Get(kHealthPath, access_.poll_patience, kMostProbeBytes);
    const bool well = answer.status >= 200 && answer.status < 300;
    Report(well,
           answer.status == 0 ? answer.fault : fmt::format("{} answers with status {}", kHealthPath, answer.status));
    co_return well;
  }

  asio::awaitable<bool> Poll() {
    probes_ = 0;
    std::string path = fmt::format("/internal/snapshot?offered={}", version_ > 0 ? offered_version_ : 0);
    std::chrono::milliseconds timeout = access_.poll_patience;  // without `after` a server answers at once
    if (version_ > 0) {
      timeout += access_.poll_wait;
      path += fmt::format("&after={}&instance={}&wait_ms={}", version_, instance_, access_.poll_wait.count());
    }
    Answer answer = co_await Get(std::move(path), timeout, kMaxSnapshotBytes);
    const TimeNs as_of = clock_.Now() - answer.age.count() * kNsPerMs;
    if (stopped_) co_return false;
    if (answer.status == 200) co_return co_await Accept(std::move(answer.body), as_of);
    version_ = 0;
    if (answer.status != 404 && answer.status != 401 && answer.status != 403) {
      Report(false, answer.status == 0 ? answer.fault : fmt::format("status {}", answer.status));
      co_return false;
    }
    BecomeForeign(answer.status);
    co_return co_await Probe();
  }

  void BecomeForeign(int status) {
    if (foreign_) return;
    foreign_ = true;
    if (callbacks_.foreign) callbacks_.foreign();
    if (status == 404) {
      spdlog::info("server {} has no /internal/snapshot; its {} is probed", address_.name, kHealthPath);
    } else {
      spdlog::warn(
          "server {} refuses /internal/snapshot ({}): give both sides the same --fleet-key-file. Until then "
          "its {} is probed",
          address_.name, status, kHealthPath);
    }
  }

  asio::awaitable<bool> Accept(std::string body, TimeNs as_of) {
    std::optional<Result<ServerSnapshot>> snapshot;
    if (workers_ != nullptr && body.size() > kSmallSnapshot) {
      co_await RunOn(*workers_, [&] { snapshot = ParseServerSnapshot(body); });
    } else {
      snapshot = ParseServerSnapshot(body);
    }
    if (stopped_) co_return false;
    if (!snapshot->ok()) {
      version_ = 0;
      Report(false, "its snapshot cannot be read: " + snapshot->error().message);
      co_return false;
    }
    foreign_ = false;
    version_ = (*snapshot)->version;
    instance_ = (*snapshot)->instance;
    offered_version_ = (*snapshot)->offered_version;
    if (callbacks_.snapshot) callbacks_.snapshot(std::move(**snapshot), as_of);
    Report(true, {});
    co_return true;
  }

  const asio::any_io_executor executor_;
  const ServerAddress address_;
  const ServerAccess access_;
  asio::thread_pool* const workers_;  // null: the executor's thread parses
  ServerLinkCallbacks callbacks_;
  const Clock& clock_;
  HttpClient client_;
  asio::steady_timer pause_;
  bool stopped_ = false, foreign_ = false;
  std::optional<bool> healthy_;
  int probes_ = 0;
  std::uint64_t version_ = 0;  // version of the last snapshot; 0: none
  std::string instance_;
  std::uint64_t offered_version_ = 0;  // version of its list of models
};

ServerLink::ServerLink(asio::any_io_executor executor, ServerAddress address, ServerAccess access,
                       asio::thread_pool* workers, ServerLinkCallbacks callbacks, const Clock& clock)
    : session_(std::make_shared<Session>(std::move(executor), std::move(address), std::move(access), workers,
                                         std::move(callbacks), clock)) {}

ServerLink::~ServerLink() { Stop(); }
void ServerLink::Start() { session_->Start(); }
void ServerLink::Stop() { session_->Stop(); }
bool ServerLink::foreign() const { return session_->foreign(); }

}  // namespace loramux
