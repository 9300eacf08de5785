#include "server/fleet/snapshot_service.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "auth/bearer_key.h"
#include "http/random_source.h"
#include "server/fleet/fleet_headers.h"
#include "server/fleet/snapshot_maker.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kBetweenVersions(100);
constexpr std::chrono::milliseconds kEnginePatience(1000);
constexpr TimeNs kFreshFor = 100 * kNsPerMs;                // a state this old answers a new poll
constexpr TimeNs kRouterListensFor = 10 * kNsPerSecond;     // after its last poll
constexpr int kMaxWaitingPolls = 256;                       // a further one is answered without waiting
constexpr std::chrono::milliseconds kPollsEndWithin(2000);  // once they are released

Result<std::int64_t> NumberIn(std::string_view name, std::string_view text, std::int64_t most) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 || number > most) {
    return InvalidArgument(fmt::format("`{}`: expected a whole number from 0 to {}, found '{}'", name, most,
                                       PercentDecode(text.substr(0, 40))),
                           std::string(name));
  }
  return number;
}

}  // namespace

Result<SnapshotQuery> ParseSnapshotQuery(std::string_view query) {
  SnapshotQuery parsed;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view name = pair.substr(0, equals);
    const std::string_view value = equals < pair.size() ? pair.substr(equals + 1) : std::string_view();
    if (name == "after") {
      ASSIGN_OR_RETURN(const std::int64_t after, NumberIn(name, value, std::numeric_limits<std::int64_t>::max()));
      parsed.after = static_cast<std::uint64_t>(after);
    } else if (name == "offered") {
      ASSIGN_OR_RETURN(const std::int64_t offered, NumberIn(name, value, std::numeric_limits<std::int64_t>::max()));
      parsed.offered = static_cast<std::uint64_t>(offered);
    } else if (name == "wait_ms") {
      ASSIGN_OR_RETURN(parsed.wait_ms, NumberIn(name, value, kMaxSnapshotWaitMs));
    } else if (name == "instance") {
      parsed.instance = PercentDecode(value);
    }
  }
  return parsed;
}

// Lives on the strand of `executor`; only Wake may be called elsewhere.
struct SnapshotService::Sleeper : std::enable_shared_from_this<Sleeper> {
  explicit Sleeper(const asio::any_io_executor& strand) : executor(strand), timer(strand) {}

  // A Wake before the sleep is lost, so check the condition immediately before.
  asio::awaitable<void> Sleep(TimeNs longest) {
    timer.expires_after(std::chrono::nanoseconds(longest));
    boost::system::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  void Wake() {
    asio::post(executor, [self = shared_from_this()] { self->timer.cancel(); });
  }

  asio::any_io_executor executor;
  asio::steady_timer timer;
};

// Counts a poll in progress, and removes the callbacks into its handler's frame.
class SnapshotService::Poller {
 public:
  Poller(SnapshotService& service, HttpExchange& exchange)
      : service_(service), exchange_(exchange), sleeper_(std::make_shared<Sleeper>(exchange.executor())) {
    const std::lock_guard lock(service_.mutex_);
    waits_ = service_.polls_ < kMaxWaitingPolls;
    ++service_.polls_;
    std::erase_if(service_.sleepers_, [](const auto& weak) { return weak.expired(); });
    service_.sleepers_.push_back(sleeper_);
    service_.changed_.notify_all();
  }
  ~Poller() {
    exchange_.OnDisconnect(nullptr);
    exchange_.OnCutOff(nullptr);
    const std::lock_guard lock(service_.mutex_);
    --service_.polls_;
    service_.changed_.notify_all();
  }
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;
  const std::shared_ptr<Sleeper>& sleeper() const { return sleeper_; }
  bool waits() const { return waits_; }

 private:
  SnapshotService& service_;
  HttpExchange& exchange_;
  const std::shared_ptr<Sleeper> sleeper_;
  bool waits_ = false;
};

SnapshotService::SnapshotService(SnapshotServiceOptions options, SnapshotSource engine, const AdapterRegistry& registry,
                                 AdapterFinder& finder, PrefixMemory& prefixes, const Clock& clock)
    : options_(std::move(options)),
      engine_(std::move(engine)),
      registry_(registry),
      finder_(finder),
      prefixes_(prefixes),
      clock_(clock),
      instance_(fmt::format("{:016x}{:016x}", RandomIdBits(), RandomIdBits())),
      thread_([this] { Run(); }) {}

SnapshotService::~SnapshotService() { Stop(); }

void SnapshotService::AddRoutes(RouteTable& routes) {
  // Open: the handlers check a key of their own, and routers must still hear of the drain.
  routes.Add(
      "GET", "/internal/snapshot", [this](HttpExchange& exchange) { return Poll(exchange); }, RouteAccess::kOpen);
  routes.AddSimple(
      "GET", "/internal/profile", [this](const HttpRequest& request) { return Profile(request); }, RouteAccess::kOpen);
}

std::optional<HttpReply> SnapshotService::Refusal(const HttpRequest& request) const {
  if (options_.key.empty()) {
    if (!options_.key_required) return std::nullopt;
    return ErrorReply(403,
                      "This server has API keys, so routers need a key of their own: start it with --fleet-key-file "
                      "FILE, and send the key in FILE as `Authorization: Bearer KEY`.");
  }
  if (SameKey(BearerToken(request.Header("Authorization")), options_.key)) return std::nullopt;
  HttpReply reply = ErrorReply(401, "This needs the key of --fleet-key-file: send it as `Authorization: Bearer KEY`.");
  reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

HttpReply SnapshotService::Profile(const HttpRequest& request) const {
  if (auto refusal = Refusal(request)) return std::move(*refusal);
  if (options_.profile.empty()) {
    return ErrorReply(404, "This server has no performance profile; --profile FILE gives it one.");
  }
  HttpReply reply;
  reply.body = options_.profile;
  return reply;
}

asio::awaitable<void> SnapshotService::Poll(HttpExchange& exchange) {
  HttpReply reply;
  const auto query = ParseSnapshotQuery(exchange.request().query);
  if (auto refusal = Refusal(exchange.request())) {
    reply = std::move(*refusal);
  } else if (!query.ok()) {
    reply = ErrorReply(query.error());
  } else {
    co_await WaitForNews(exchange, *query);
    reply = Reply(*query);
  }
  co_await exchange.Send(std::move(reply));
}

// Returns when the poll is to be answered, or its client is gone.
asio::awaitable<void> SnapshotService::WaitForNews(HttpExchange& exchange, const SnapshotQuery& query) {
  const TimeNs arrived = clock_.Now(), until = arrived + query.wait_ms * kNsPerMs;
  prefixes_.Want(arrived);
  {
    const std::lock_guard lock(mutex_);
    polled_at_ = arrived;
  }
  const Poller poller(*this, exchange);
  bool cut_off = exchange.request().draining;
  exchange.OnDisconnect([sleeper = poller.sleeper()] { sleeper->timer.cancel(); });
  exchange.OnCutOff([&cut_off, sleeper = poller.sleeper()] {
    cut_off = true;
    sleeper->timer.cancel();
  });
  const SnapshotQuery wanted = poller.waits() ? query : SnapshotQuery();
  while (!cut_off && !exchange.disconnected() && !Answers(wanted, arrived)) {
    // A state of now is waited for in any case: an old one would be of no use.
    const TimeNs least = IsFresh(arrived) ? until : arrived + std::chrono::nanoseconds(kEnginePatience).count();
    const TimeNs left = std::max(until, least) - clock_.Now();
    if (left <= 0) break;
    co_await poller.sleeper()->Sleep(left);
  }
}

bool SnapshotService::IsFresh(TimeNs arrived) const {
  const std::lock_guard lock(mutex_);
  return asked_at_ != 0 && asked_at_ >= arrived - kFreshFor;
}

bool SnapshotService::Answers(const SnapshotQuery& query, TimeNs arrived) const {
  const bool fresh = IsFresh(arrived);
  const std::lock_guard lock(mutex_);
  if (released_ || !fresh) return released_;
  if (!query.after || published_ == nullptr) return true;
  if (!query.instance.empty() && query.instance != instance_) return true;
  return published_->snapshot.version > *query.after;
}

HttpReply SnapshotService::Reply(const SnapshotQuery& query) const {
  std::shared_ptr<const Published> published;
  TimeNs made_at = 0;
  {
    const std::lock_guard lock(mutex_);
    published = published_;
    if (of_engine_ != nullptr) made_at = of_engine_->made_at;
  }
  if (published == nullptr) return ErrorReply(503, "The engine has not told its state yet; ask again.");
  HttpReply reply;
  const bool lacks_list = query.offered && *query.offered != published->snapshot.offered_version;
  reply.body = lacks_list ? ServerSnapshotAsJson(published->snapshot) : published->json;
  reply.headers.emplace_back(kSnapshotAgeHeader,
                             std::to_string(std::max<TimeNs>(0, clock_.Now() - made_at) / kNsPerMs));
  reply.headers.emplace_back("Cache-Control", "no-store");
  return reply;
}

// The thread: a new state at most every kBetweenVersions, while a router polls.
void SnapshotService::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait(lock, [this] { return stopping_ || urgent_ || polls_ > 0; });
    if (stopping_) return;
    urgent_ = false;
    lock.unlock();
    Refresh();
    lock.lock();
    changed_.wait_for(lock, kBetweenVersions, [this] { return stopping_ || urgent_; });
  }
}

void SnapshotService::Refresh() {
  const auto state = engine_ ? engine_(kEnginePatience) : nullptr;
  std::optional<ServerSnapshot> snapshot;
  if (state != nullptr) {
    snapshot = MakeServerSnapshot(*state, registry_);
    snapshot->prefixes = *prefixes_.All(CachedTokens(*state));
    snapshot->profile = options_.profile_id;
    snapshot->instance = instance_;
    AddOffered(registry_, finder_, *snapshot);
  }
  {
    const std::lock_guard lock(mutex_);
    if (snapshot) {
      of_engine_ = state;
      snapshot->draining = draining_;
      Publish(std::move(*snapshot));
    }
    asked_at_ = clock_.Now();
    changed_.notify_all();
  }
  WakeAll();
}

// Makes a version of the snapshot if it says anything new. REQUIRES: the mutex is held.
void SnapshotService::Publish(ServerSnapshot snapshot) {
  snapshot.version = published_ == nullptr ? 1 : published_->snapshot.version;
  if (published_ != nullptr) {
    if (snapshot == published_->snapshot) return;
    ++snapshot.version;
  }
  std::vector<std::uint64_t> offered = std::exchange(snapshot.offered, {});
  std::string json = ServerSnapshotAsJson(snapshot);
  snapshot.offered = std::move(offered);
  published_ = std::make_shared<const Published>(Published{std::move(snapshot), std::move(json)});
}

void SnapshotService::WakeAll() {
  std::vector<std::shared_ptr<Sleeper>> awake;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : sleepers_) {
      if (auto sleeper = weak.lock()) awake.push_back(std::move(sleeper));
    }
  }
  for (const auto& sleeper : awake) sleeper->Wake();
}

void SnapshotService::Drain() {
  {
    std::unique_lock lock(mutex_);
    if (std::exchange(draining_, true)) return;
    urgent_ = true;
    changed_.notify_all();
    if (polled_at_ != 0 && clock_.Now() - polled_at_ < kRouterListensFor) {
      const TimeNs began = clock_.Now();
      changed_.wait_for(lock, 2 * kEnginePatience, [&] { return asked_at_ >= began; });
      changed_.wait_for(lock, options_.drain_notice, [this] { return stopping_; });
    }
    released_ = true;
  }
  WakeAll();
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPollsEndWithin, [this] { return polls_ == 0; });
  }
  Stop();
}

// Ends the thread, which wakes handlers: it must not outlive the HTTP server.
void SnapshotService::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace loramux
