#include "etcd/etcd_client.h"

#include <algorithm>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/text_file.h"
#include "http/client.h"

namespace loramux {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

constexpr std::size_t kMaxReplyBytes = std::size_t{32} << 20;
constexpr std::size_t kMaxEndpoints = 16;
constexpr std::int64_t kPageKeys = 500;
constexpr std::size_t kMaxKeys = 1'000'000;  // below one prefix
constexpr auto kPauseBetweenRounds = 100ms;

// gRPC's codes that say that the call itself is wrong, so that no other member takes it.
bool IsRefusal(std::int64_t code) { return code == 3 || code == 7 || code == 9 || code == 11 || code == 12; }
bool IsUnauthenticated(int status, const EtcdFailure& failure) { return status == 401 || failure.code == 16; }

struct Outcome {
  enum class Kind { kDone, kRefused, kRetry, kAuthenticate };
  Kind kind = Kind::kRetry;
  std::string body;
  Error error;
};

Outcome Retry(std::string message) { return {Outcome::Kind::kRetry, {}, Unavailable(std::move(message))}; }

Outcome Judge(int status, std::string body) {
  if (status == 200) return {Outcome::Kind::kDone, std::move(body), {}};
  const EtcdFailure failure = ParseEtcdFailure(status, body);
  if (IsUnauthenticated(status, failure) || failure.message.find("invalid auth token") != std::string::npos ||
      failure.message.find("revision of auth store is old") != std::string::npos) {
    return {Outcome::Kind::kAuthenticate, {}, InvalidArgument("etcd: " + failure.message)};
  }
  if (failure.code == 5) return {Outcome::Kind::kRefused, {}, NotFound("etcd: " + failure.message)};
  if (IsRefusal(failure.code) || status == 404) {
    return {Outcome::Kind::kRefused, {}, InvalidArgument("etcd refused the call: " + failure.message)};
  }
  return Retry(failure.message);
}

// Reads the values of --etcd.
Result<std::vector<Url>> ParseUrls(const std::vector<std::string>& texts) {
  std::vector<Url> urls;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(Url url, ParseUrl(text, "--etcd"));
    urls.push_back(std::move(url));
  }
  if (!urls.empty() && urls.size() <= kMaxEndpoints) return urls;
  return InvalidArgument(fmt::format("--etcd: expected one to {} URLs, found {}", kMaxEndpoints, urls.size()),
                         "--etcd");
}

Result<std::string> PasswordOf(const std::string& file) {
  if (file.empty()) return std::string();
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file));
  std::string password = text.substr(0, text.find_first_of("\r\n"));
  if (!password.empty()) return password;
  return InvalidArgument("--etcd-password-file: expected a password in the first line of " + file,
                         "--etcd-password-file");
}

}  // namespace

// Lives on the client's thread, apart from Run and the flag.
struct EtcdClient::Impl {
  Impl(EtcdOptions given, std::vector<Url> urls, std::string secret, const Clock& time)
      : options(std::move(given)), endpoints(std::move(urls)), password(std::move(secret)), clock(time) {
    for (const Url& url : endpoints) {
      HttpClientOptions http{.url = url, .timeout = options.timeout, .idle_timeout = 30s, .max_idle = 4};
      http.connect_timeout = std::min<std::chrono::nanoseconds>(options.timeout, 3s);  // also limits a watch
      clients.push_back(std::make_unique<HttpClient>(context.get_executor(), std::move(http), clock));
      names += (names.empty() ? "" : ", ") + std::string(url.tls ? "https://" : "http://") + url.authority();
    }
    resolved.resize(clients.size());
    thread = std::thread([this] { context.run(); });
  }

  // Runs the coroutine on the client's thread and waits for its end. False if the client was stopped before.
  bool Run(asio::awaitable<void> work) {
    const auto ended = std::make_shared<std::promise<void>>();  // shared: the thread may still be leaving it
    std::future<void> end = ended->get_future();
    {
      const std::lock_guard lock(mutex);
      if (stopped) return false;
      asio::co_spawn(context, std::move(work), [ended](const std::exception_ptr& error) {
        if (error) return ended->set_exception(error);
        ended->set_value();
      });
    }
    end.get();
    return true;
  }
  void Stop() {
    {
      const std::lock_guard lock(mutex);
      stopped = true;
    }
    asio::post(context, [this] {
      ending = true;
      for (const auto& client : clients) client->CancelAll();
    });
  }

  TimeNs Left(TimeNs deadline) const { return deadline - clock.Now(); }
  std::string NameOf(std::size_t endpoint) const { return endpoints[endpoint].authority(); }
  // The next call goes elsewhere, unless another call found that out before.
  void Leave(std::size_t endpoint) {
    if (preferred == endpoint) preferred = (endpoint + 1) % clients.size();
    if (clients[endpoint]->idle() == 0) resolved[endpoint] = false;  // its address may have changed
  }
  Status Resolve(std::size_t endpoint) {
    if (resolved[endpoint]) return Ok{};
    RETURN_IF_ERROR(clients[endpoint]->Resolve());
    resolved[endpoint] = true;
    return Ok{};
  }
  HttpCallRequest RequestOf(const std::string& path, const std::string& body, TimeNs time) const {
    HttpCallRequest request{.method = "POST", .path = path, .body = body, .timeout = std::chrono::nanoseconds(time)};
    if (!token.empty()) request.headers.emplace_back("Authorization", token);
    return request;
  }

  asio::awaitable<Outcome> TryOnce(std::size_t endpoint, std::string path, std::string body, TimeNs time);
  asio::awaitable<Outcome> TryWithToken(std::size_t endpoint, std::string path, std::string body, TimeNs time);
  asio::awaitable<Result<std::string>> Call(std::string path, std::string body);
  Result<std::string> CallAndWait(std::string path, std::string body);

  struct WatchState {
    const OnEvents* on_events = nullptr;
    std::int64_t start_revision = 0;
    HttpCall* call = nullptr;  // while it runs
    bool cancelled = false;
    std::string unparsed;
    std::optional<EtcdWatchEnd> end;
  };
  asio::awaitable<void> RunWatch(std::string body, std::shared_ptr<WatchState> state);
  asio::awaitable<void> ReadWatch(HttpCall& call, WatchState& state);
  static void TakeWatchReply(std::string_view line, WatchState& state);
  Error NoAnswer(const std::string& last) const {
    return Unavailable(
        fmt::format("etcd: no answer from {} within {:.0f} s ({}); the members may be down or without a quorum", names,
                    static_cast<double>(options.timeout.count()) / 1e9, last));
  }

  const EtcdOptions options;
  const std::vector<Url> endpoints;  // not empty
  const std::string password;
  const Clock& clock;
  std::string names;
  std::mutex mutex;
  bool stopped = false;  // guarded by mutex
  bool ending = false;   // the same, for the thread
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(context);
  std::vector<std::unique_ptr<HttpClient>> clients;  // by endpoint
  std::vector<bool> resolved;
  std::size_t preferred = 0;
  std::string token;  // token of the user; empty: none yet
  std::thread thread;
};

asio::awaitable<Outcome> EtcdClient::Impl::TryOnce(std::size_t endpoint, std::string path, std::string body,
                                                   TimeNs time) {
  if (const Status found = Resolve(endpoint); !found.ok()) co_return Retry(found.error().message);
  HttpCallRequest request = RequestOf(path, body, time);
  HttpCall call(*clients[endpoint], std::move(request));
  ExchangeEnd end = co_await call.Begin();
  std::string reply, piece;
  while (end.ok()) {
    end = co_await call.ReadPiece(piece);
    if (!end.ok() || piece.empty()) break;
    if (reply.size() + piece.size() > kMaxReplyBytes) {
      co_return Retry(fmt::format("{}: its reply is longer than {} bytes", NameOf(endpoint), kMaxReplyBytes));
    }
    reply += piece;
  }
  if (!end.ok()) co_return Retry(NameOf(endpoint) + ": " + end.detail);
  co_return Judge(call.status(), std::move(reply));
}

asio::awaitable<Outcome> EtcdClient::Impl::TryWithToken(std::size_t endpoint, std::string path, std::string body,
                                                        TimeNs time) {
  if (token.empty() && !options.user.empty()) {
    std::string login_path = "/v3/auth/authenticate";
    std::string login_body = EtcdAuthenticateBody(options.user, password);
    Outcome login = co_await TryOnce(endpoint, std::move(login_path), std::move(login_body), time);
    if (login.kind == Outcome::Kind::kRefused) {
      login.error.message = "--etcd-user: " + login.error.message;
    }
    if (login.kind != Outcome::Kind::kDone) co_return login;
    auto received = ParseEtcdToken(login.body);
    if (!received.ok()) co_return Retry(received.error().message);
    token = *std::move(received);
  }
  Outcome outcome = co_await TryOnce(endpoint, std::move(path), std::move(body), time);
  co_return outcome;
}

asio::awaitable<Result<std::string>> EtcdClient::Impl::Call(std::string path, std::string body) {
  const TimeNs deadline = clock.Now() + options.timeout.count();
  const TimeNs share = std::max<TimeNs>(options.timeout.count() / 3, 1);
  std::string last = "not asked";
  bool renewed = false;  // the token
  for (std::size_t tries = 1; !ending && Left(deadline) > 0; ++tries) {
    const std::size_t endpoint = preferred;
    const TimeNs time = clients.size() == 1 ? Left(deadline) : std::min(share, Left(deadline));
    Outcome outcome = co_await TryWithToken(endpoint, path, body, time);
    if (outcome.kind == Outcome::Kind::kDone) co_return std::move(outcome.body);
    if (outcome.kind == Outcome::Kind::kRefused) co_return std::move(outcome.error);
    last = outcome.error.message;
    if (outcome.kind == Outcome::Kind::kAuthenticate) {
      if (renewed || options.user.empty()) {
        co_return InvalidArgument(last + "; give --etcd-user and --etcd-password-file");
      }
      renewed = true;
      token.clear();
      continue;
    }
    Leave(endpoint);
    if (tries % clients.size() != 0) continue;
    asio::steady_timer pause(context, kPauseBetweenRounds);
    co_await pause.async_wait(asio::use_awaitable);
  }
  if (ending) co_return Unavailable("etcd: this program is shutting down");
  co_return NoAnswer(last);
}

Result<std::string> EtcdClient::Impl::CallAndWait(std::string path, std::string body) {
  Result<std::string> reply = Unavailable("etcd: this program is shutting down");
  const auto call = [&]() -> asio::awaitable<void> { reply = co_await Call(std::move(path), std::move(body)); };
  Run(call());
  return reply;
}

void EtcdClient::Impl::TakeWatchReply(std::string_view line, WatchState& state) {
  using Kind = EtcdWatchEnd::Kind;
  if (line.find_first_not_of(" \r\t") == std::string_view::npos) return;
  auto reply = ParseEtcdWatch(line);
  if (!reply.ok()) {
    state.end = {Kind::kBroken, std::move(reply).error()};
  } else if (reply->compact_revision > 0) {
    state.end = {Kind::kCompacted, {}};
  } else if (reply->canceled) {
    state.end = {Kind::kBroken, Unavailable("etcd ended the watch: " + reply->cancel_reason)};
  } else if (reply->header.revision < state.start_revision - 1) {
    state.end = {Kind::kBehind, {}};
  } else {
    (*state.on_events)(std::move(reply->events), reply->header.revision);
  }
}

asio::awaitable<void> EtcdClient::Impl::ReadWatch(HttpCall& call, WatchState& state) {
  using Kind = EtcdWatchEnd::Kind;
  std::string piece;
  while (!state.end) {
    const ExchangeEnd end = co_await call.ReadPiece(piece);
    if (end.kind == ExchangeEnd::Kind::kTimeout) {
      state.end = {Kind::kTimeUp, {}};
    } else if (!end.ok() || piece.empty()) {
      state.end = {Kind::kBroken, Unavailable("etcd: the watch broke off: " + end.detail)};
    } else if (state.unparsed.size() + piece.size() > kMaxReplyBytes) {
      state.end = {Kind::kBroken, Unavailable("etcd: a message of the watch is too long")};
    } else {
      const std::size_t searched = state.unparsed.size();
      state.unparsed += piece;
      std::size_t begin = 0, line_end = state.unparsed.find('\n', searched);
      for (; line_end != std::string::npos && !state.end; line_end = state.unparsed.find('\n', begin)) {
        TakeWatchReply(std::string_view(state.unparsed).substr(begin, line_end - begin), state);
        begin = line_end + 1;
      }
      state.unparsed.erase(0, begin);
    }
  }
}

asio::awaitable<void> EtcdClient::Impl::RunWatch(std::string body, std::shared_ptr<WatchState> state) {
  using Kind = EtcdWatchEnd::Kind;
  const std::size_t endpoint = preferred;
  const std::string where = NameOf(endpoint);
  const auto broken = [&](const std::string& why) {
    state->end = {Kind::kBroken, Unavailable("etcd: " + where + ": " + why)};
    Leave(endpoint);
  };
  if (state->cancelled || ending) {
    state->end = {Kind::kStopped, {}};
    co_return;
  }
  if (const Status found = Resolve(endpoint); !found.ok()) co_return broken(found.error().message);
  if (token.empty() && !options.user.empty()) {  // any call gets a token
    std::string path = "/v3/kv/range", read = EtcdRangeBody({.key = "/loramux", .limit = 1, .serializable = true});
    Result<std::string> reply = co_await Call(std::move(path), std::move(read));
    if (!reply.ok()) co_return broken(reply.error().message);
  }
  HttpCallRequest request = RequestOf("/v3/watch", body, options.watch_time.count());
  request.headers.emplace_back("Grpc-Metadata-hasleader", "true");  // a member that loses its leader ends the watch
  HttpCall call(*clients[endpoint], std::move(request));
  state->call = &call;
  const ExchangeEnd end = co_await call.Begin();
  if (!end.ok()) {
    broken(end.detail);
  } else if (call.status() != 200) {
    if (call.status() == 401) token.clear();
    broken(fmt::format("status {}", call.status()));
  } else {
    co_await ReadWatch(call, *state);
    if (state->end->kind == Kind::kBroken || state->end->kind == Kind::kBehind) Leave(endpoint);
  }
  state->call = nullptr;
  if (state->cancelled || ending) state->end = {Kind::kStopped, {}};
}

EtcdClient::EtcdClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<EtcdClient>> EtcdClient::Open(EtcdOptions options, const Clock& clock) {
  if (options.urls.empty()) return std::unique_ptr<EtcdClient>();
  ASSIGN_OR_RETURN(std::vector<Url> endpoints, ParseUrls(options.urls));
  ASSIGN_OR_RETURN(std::string password, PasswordOf(options.password_file));
  return std::unique_ptr<EtcdClient>(
      new EtcdClient(std::make_unique<Impl>(std::move(options), std::move(endpoints), std::move(password), clock)));
}

EtcdClient::~EtcdClient() {
  Stop();
  impl_->work.reset();
  impl_->thread.join();
}

void EtcdClient::Stop() { impl_->Stop(); }
const std::string& EtcdClient::names() const { return impl_->names; }

Result<EtcdRangeReply> EtcdClient::Range(const EtcdRangeRequest& request) {
  ASSIGN_OR_RETURN(const std::string reply, impl_->CallAndWait("/v3/kv/range", EtcdRangeBody(request)));
  return ParseEtcdRange(reply);
}

Result<EtcdRangeReply> EtcdClient::ReadPrefix(const std::string& prefix, bool serializable) {
  EtcdRangeRequest request{
      .key = prefix, .range_end = PrefixEnd(prefix), .limit = kPageKeys, .serializable = serializable};
  ASSIGN_OR_RETURN(EtcdRangeReply all, Range(request));
  request.revision = all.header.revision;
  while (all.more) {
    if (all.key_values.empty() || all.key_values.size() > kMaxKeys) {
      return Unavailable(fmt::format("etcd: {} has more than {} keys, or its pages are empty", prefix, kMaxKeys));
    }
    request.key = all.key_values.back().key + '\0';  // the least key after it
    ASSIGN_OR_RETURN(EtcdRangeReply page, Range(request));
    if (page.key_values.empty() && page.more) return Unavailable("etcd: an empty page, and more to come");
    std::move(page.key_values.begin(), page.key_values.end(), std::back_inserter(all.key_values));
    all.more = page.more;
  }
  return all;
}

Status EtcdClient::Put(std::string_view key, std::string_view value, std::int64_t lease) {
  ASSIGN_OR_RETURN(const std::string reply, impl_->CallAndWait("/v3/kv/put", EtcdPutBody(key, value, lease)));
  RETURN_IF_ERROR(ParseEtcdHeader(reply));
  return Ok{};
}

Status EtcdClient::Delete(std::string_view key) {
  ASSIGN_OR_RETURN(const std::string reply, impl_->CallAndWait("/v3/kv/deleterange", EtcdDeleteBody(key, {})));
  RETURN_IF_ERROR(ParseEtcdHeader(reply));
  return Ok{};
}

// A call whose answer was lost may have been carried out, and then its repetition finds its own value.
Result<EtcdSwapReply> EtcdClient::CompareAndSwap(const EtcdSwapRequest& request) {
  ASSIGN_OR_RETURN(const std::string text, impl_->CallAndWait("/v3/kv/txn", EtcdSwapBody(request)));
  ASSIGN_OR_RETURN(EtcdSwapReply reply, ParseEtcdSwap(text));
  if (reply.swapped) return reply;
  const bool same =
      reply.current.has_value() == request.value.has_value() &&
      (!request.value || (reply.current->value == *request.value && reply.current->lease == request.lease));
  reply.swapped = same;
  return reply;
}

Result<EtcdLeaseReply> EtcdClient::Grant(std::int64_t ttl_seconds) {
  ASSIGN_OR_RETURN(const std::string reply, impl_->CallAndWait("/v3/lease/grant", EtcdGrantBody(ttl_seconds)));
  return ParseEtcdGrant(reply);
}

Result<std::int64_t> EtcdClient::KeepAlive(std::int64_t lease) {
  ASSIGN_OR_RETURN(const std::string text, impl_->CallAndWait("/v3/lease/keepalive", EtcdLeaseBody(lease)));
  ASSIGN_OR_RETURN(const EtcdLeaseReply reply, ParseEtcdKeepAlive(text));
  if (reply.ttl_seconds <= 0) return NotFound("etcd: the lease has expired");
  return reply.ttl_seconds;
}

Status EtcdClient::Revoke(std::int64_t lease) {
  const auto reply = impl_->CallAndWait("/v3/lease/revoke", EtcdLeaseBody(lease));
  if (reply.ok() || reply.error().code == ErrorCode::kNotFound) return Ok{};
  return reply.error();
}

EtcdWatchEnd EtcdClient::Watch(const std::string& prefix, std::int64_t start_revision, const OnEvents& on_events,
                               std::stop_token stop) {
  const auto state = std::make_shared<Impl::WatchState>();
  state->on_events = &on_events;
  state->start_revision = start_revision;
  const std::stop_callback on_stop(stop, [this, state] {
    asio::post(impl_->context, [state] {
      state->cancelled = true;
      if (state->call != nullptr) state->call->Cancel();
    });
  });
  const bool ran = impl_->Run(impl_->RunWatch(EtcdWatchBody(prefix, PrefixEnd(prefix), start_revision), state));
  if (!ran || !state->end) return {EtcdWatchEnd::Kind::kStopped, {}};
  return *std::move(state->end);
}

}  // namespace loramux
