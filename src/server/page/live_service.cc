#include "server/page/live_service.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "auth/access.h"
#include "http/run_on.h"
#include "server/page/live_event.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

constexpr const char* kEventStream = "text/event-stream; charset=utf-8";
constexpr std::chrono::milliseconds kBetweenEvents(1000);
constexpr std::chrono::milliseconds kPatience(1000);      // time that the engine has for its answer
constexpr std::chrono::milliseconds kFirstEventIn(3000);  // time until a viewer that finds no event gets one
constexpr std::chrono::milliseconds kEndsWithin(2000);    // time until streams end, once they are told to

HttpReply NoState() { return ErrorReply(503, "The engine has not told its state yet; ask again."); }

std::optional<HttpReply> Refusal(const HttpRequest& request) {
  const ApiKey& caller = CallerOf(request);
  if (caller.AllowsAll()) return std::nullopt;
  return ErrorReply(403, "This API key permits some models only, and the live state shows all: use a key with \"*\".");
}

}  // namespace

// Lives on the strand of `executor`; only Wake may be called elsewhere.
struct LiveService::Sleeper : std::enable_shared_from_this<Sleeper> {
  Sleeper(HttpExchange& of_viewer, const asio::any_io_executor& strand)
      : exchange(&of_viewer), executor(strand), timer(strand) {}

  // A Wake before the sleep is lost, so check the condition immediately before.
  asio::awaitable<void> Sleep(std::chrono::milliseconds longest) {
    timer.expires_after(longest);
    boost::system::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  // Also drops a viewer that has been writing since before `late`.
  void Wake(TimeNs late) {
    asio::post(executor, [self = shared_from_this(), late] {
      const bool slow = self->writing_since != 0 && self->writing_since < late;
      if (slow && self->exchange != nullptr) self->exchange->Abort();
      self->timer.cancel();
    });
  }

  HttpExchange* exchange;  // null: its handler has ended
  asio::any_io_executor executor;
  asio::steady_timer timer;
  TimeNs writing_since = 0;  // 0: it waits for an event
};

// Counts a connection that watches, and removes the callbacks into its handler's frame.
class LiveService::Viewer {
 public:
  Viewer(LiveService& service, HttpExchange& exchange)
      : service_(service), sleeper_(std::make_shared<Sleeper>(exchange, exchange.executor())) {
    const std::lock_guard lock(service_.mutex_);
    admitted_ = !service_.stopping_ && service_.viewers_ < kMaxLiveViewers;
    if (!admitted_) return;
    if (service_.viewers_++ == 0) {
      service_.event_ = nullptr;
      service_.metrics_.ends().Watch(true);
    }
    std::erase_if(service_.sleepers_, [](const auto& weak) { return weak.expired(); });
    service_.sleepers_.push_back(sleeper_);
    service_.changed_.notify_all();
  }
  ~Viewer() {
    sleeper_->exchange->OnDisconnect(nullptr);
    sleeper_->exchange->OnCutOff(nullptr);
    sleeper_->exchange = nullptr;
    if (!admitted_) return;
    const std::lock_guard lock(service_.mutex_);
    if (--service_.viewers_ == 0) service_.metrics_.ends().Watch(false);
    service_.changed_.notify_all();
  }
  Viewer(const Viewer&) = delete;
  Viewer& operator=(const Viewer&) = delete;
  bool admitted() const { return admitted_; }
  Sleeper& sleeper() const { return *sleeper_; }

 private:
  LiveService& service_;
  const std::shared_ptr<Sleeper> sleeper_;
  bool admitted_ = false;
};

LiveService::LiveService(ServerMetrics& metrics, SnapshotSource engine, const AdapterRegistry& registry,
                         AdapterFinder& finder, const Clock& clock, std::string changes,
                         std::chrono::milliseconds slowest_write)
    : metrics_(metrics),
      engine_(std::move(engine)),
      registry_(registry),
      finder_(finder),
      clock_(clock),
      changes_(std::move(changes)),
      slowest_write_(slowest_write),
      thread_([this] { Run(); }) {}

LiveService::~LiveService() {
  Stop();
  listers_.join();
}

void LiveService::AddRoutes(RouteTable& routes) {
  routes.Add("GET", "/internal/live", [this](HttpExchange& exchange) { return Watch(exchange); });
  routes.Add("GET", "/internal/adapters", [this](HttpExchange& exchange) { return Adapters(exchange); });
}

int LiveService::viewers() const {
  const std::lock_guard lock(mutex_);
  return viewers_;
}

asio::awaitable<void> LiveService::Watch(HttpExchange& exchange) {
  if (auto refusal = Refusal(exchange.request())) {
    co_await exchange.Send(std::move(*refusal));
    co_return;
  }
  if (exchange.request().method == "HEAD") {  // a stream's events would be taken for the next response
    HttpReply head;
    head.headers.emplace_back("Content-Type", kEventStream);  // content_type is for bodies
    co_await exchange.Send(std::move(head));
    co_return;
  }
  const Viewer viewer(*this, exchange);
  if (!viewer.admitted()) {
    co_await exchange.Send(ErrorReply(503, "Too many connections watch the server, or it is shutting down."));
    co_return;
  }
  exchange.OnDisconnect([sleeper = &viewer.sleeper()] { sleeper->timer.cancel(); });
  exchange.OnCutOff([sleeper = &viewer.sleeper()] { sleeper->timer.cancel(); });
  co_await Stream(exchange, viewer);
}

// Sends the newest event whenever there is a newer one than the last that this viewer got: a slow one skips some.
asio::awaitable<void> LiveService::Stream(HttpExchange& exchange, const Viewer& viewer) {
  Sleeper& sleeper = viewer.sleeper();
  const TimeNs came = clock_.Now();
  std::uint64_t sent = 0;
  bool started = false;
  while (!exchange.disconnected()) {
    std::shared_ptr<const Event> event;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
      event = event_;
    }
    if (event != nullptr && event->number != sent) {
      sleeper.writing_since = clock_.Now();
      if (!std::exchange(started, true)) {
        exchange.AddHeader("Cache-Control", "no-store");
        co_await exchange.StartStream(kEventStream);
      }
      co_await exchange.Write(event->text);
      sleeper.writing_since = 0;
      sent = event->number;
      continue;
    }
    if (!started && clock_.Now() - came >= std::chrono::nanoseconds(kFirstEventIn).count()) break;
    co_await sleeper.Sleep(kFirstEventIn);
  }
  if (started) {
    co_await exchange.EndStream();
  } else {
    co_await exchange.Send(NoState());
  }
}

asio::awaitable<void> LiveService::Adapters(HttpExchange& exchange) {
  HttpReply reply;
  co_await RunOn(listers_, [&] { reply.body = AdaptersBody(exchange.request()); });
  if (reply.body.empty()) reply = NoState();
  reply.headers.emplace_back("Cache-Control", "no-store");
  co_await exchange.Send(std::move(reply));
}

std::string LiveService::AdaptersBody(const HttpRequest& request) const {
  const auto state = engine_ ? engine_(kPatience) : nullptr;
  if (state == nullptr) return {};
  const ApiKey& caller = CallerOf(request);
  Json list = AdapterList(*state, registry_, finder_, [&](std::string_view name) { return caller.Allows(name); });
  return DumpJson({{"changes", changes_}, {"adapters", std::move(list)}});
}

// The thread: an event a second while a connection watches.
void LiveService::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait(lock, [this] { return stopping_ || viewers_ > 0; });
    if (stopping_) return;
    const int viewers = viewers_;
    lock.unlock();
    auto event = MakeEvent(viewers);
    lock.lock();
    if (event != nullptr && viewers_ > 0) event_ = std::move(event);
    lock.unlock();
    WakeAll(slowest_write_);
    lock.lock();
    changed_.wait_for(lock, kBetweenEvents, [this] { return stopping_; });
  }
}

std::shared_ptr<const LiveService::Event> LiveService::MakeEvent(int viewers) {
  const auto state = engine_ ? engine_(kPatience) : nullptr;
  if (state == nullptr) return nullptr;
  auto event = std::make_shared<Event>();
  event->number = ++last_number_;
  event->text = "data: " +
                LiveEvent({.engine = state.get(),
                           .registry = &registry_,
                           .ends = metrics_.ends().Take(),
                           .unix_seconds = clock_.UnixSeconds(),
                           .viewers = viewers}) +
                "\n\n";
  return event;
}

// Also drops viewers that take longer than `slowest` for an event.
void LiveService::WakeAll(std::chrono::milliseconds slowest) {
  std::vector<std::shared_ptr<Sleeper>> awake;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : sleepers_) {
      if (auto sleeper = weak.lock()) awake.push_back(std::move(sleeper));
    }
  }
  const TimeNs late = clock_.Now() - std::chrono::nanoseconds(slowest).count();
  for (const auto& sleeper : awake) sleeper->Wake(late);
}

void LiveService::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  WakeAll(slowest_write_);
  const auto wait = [this] {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kEndsWithin, [this] { return viewers_ == 0; });
  };
  if (wait()) return;
  WakeAll(std::chrono::milliseconds(0));  // who does not read must not hold up the shutdown
  wait();
}

}  // namespace loramux
