#include "http/server.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/log.h"
#include "http/bound_port.h"
#include "http/connection.h"
#include "http/connection_limits.h"
#include "http/stream.h"

namespace loramux {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kMaxRefusedConnections = 64;                    // refused connections at a time that are still told why
constexpr int kMaxLeavingConnections = 64;                    // connections at a time that are closed for others
constexpr auto kAcceptPause = std::chrono::milliseconds(50);  // after a failure such as "too many open files"

// An open connection's place in the count.
struct Place {
  // kLeaving: it is being closed to make room for another, which has its place already.
  enum class State { kServed, kRefused, kLeaving } state;
  std::string address;  // as AddressGroup names it
};
using Places = std::map<std::shared_ptr<HttpConnection>, Place>;

}  // namespace

struct HttpServer::Impl {
  Impl(HttpServerOptions server_options, const RouteTable& routes, const Clock& clock, const TlsContext* tls_context)
      : options(std::move(server_options)),
        activity(options.max_held_body_bytes, options.HeldBodyBytesPerAddress()),
        shared{options, routes, clock, activity},
        tls(tls_context),
        context(options.threads),
        work(context.get_executor()),
        acceptor(asio::make_strand(context)) {}

  Status Listen();
  asio::awaitable<void> Accept();
  bool Admit(tcp::socket socket);
  void Serve(tcp::socket socket);
  std::unique_ptr<HttpStream> MakeStream(tcp::socket socket) const;
  bool MakeRoom(const std::string& newcomer);
  std::string WhyRefused(const std::string& address);
  void Enter(const std::shared_ptr<HttpConnection>& connection, Place place);
  void Leave(Places::iterator entry);
  void Remove(const std::shared_ptr<HttpConnection>& connection, std::exception_ptr failure);
  void RunThread();
  void OnEach(void (HttpConnection::*action)());
  void StopAccepting();
  bool WaitUntilEmpty(std::chrono::milliseconds timeout);

  const HttpServerOptions options;
  HttpActivity activity;
  const HttpShared shared;
  const TlsContext* const tls;
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  tcp::acceptor acceptor;
  std::uint16_t port = 0;
  std::vector<std::thread> threads;

  std::mutex mutex;
  std::condition_variable emptied;
  Places connections;                      // all of them, including refused ones
  std::map<std::string, int> per_address;  // served connections by client address
  std::map<Place::State, int> counts;
  bool stopping = false;
};

Status HttpServer::Impl::Listen() {
  std::shared_ptr<BoundPort> bound = options.bound_port;
  if (bound == nullptr) {
    ASSIGN_OR_RETURN(bound, BoundPort::Bind(options.host, options.port));
  }
  port = bound->port();
  return bound->ListenAs(acceptor);
}

asio::awaitable<void> HttpServer::Impl::Accept() {
  asio::steady_timer pause(acceptor.get_executor());
  while (acceptor.is_open()) {
    error_code error;
    tcp::socket socket =
        co_await acceptor.async_accept(asio::make_strand(context), asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted) break;
    if (!error && Admit(std::move(socket))) continue;
    if (error) spdlog::warn("cannot accept a connection: {}", error.message());
    pause.expires_after(kAcceptPause);
    co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
}

// Serves the connection. False on a failure such as lack of memory.
bool HttpServer::Impl::Admit(tcp::socket socket) {
  try {
    Serve(std::move(socket));
    return true;
  } catch (const std::exception& exception) {
    spdlog::warn("cannot serve a connection: {}", exception.what());
    return false;
  }
}

std::unique_ptr<HttpStream> HttpServer::Impl::MakeStream(tcp::socket socket) const {
  return tls == nullptr ? MakePlainStream(std::move(socket)) : MakeTlsStream(std::move(socket), tls->Current());
}

// Counts a connection. REQUIRES: the mutex is held.
void HttpServer::Impl::Enter(const std::shared_ptr<HttpConnection>& connection, Place place) {
  ++counts[place.state];
  if (place.state == Place::State::kServed) ++per_address[place.address];
  connections.emplace(connection, std::move(place));
}

// Counts a connection no longer. REQUIRES: the mutex is held.
void HttpServer::Impl::Leave(Places::iterator entry) {
  const Place& place = entry->second;
  --counts[place.state];
  if (place.state == Place::State::kServed && --per_address[place.address] == 0) per_address.erase(place.address);
  connections.erase(entry);
}

// Closes a connection that waits, and returns true if one may be closed. REQUIRES: the mutex is held.
bool HttpServer::Impl::MakeRoom(const std::string& newcomer) {
  if (counts[Place::State::kLeaving] >= kMaxLeavingConnections) return false;
  std::vector<OpenConnection> views;
  std::vector<Places::iterator> entries;
  for (auto entry = connections.begin(); entry != connections.end(); ++entry) {
    if (entry->second.state != Place::State::kServed) continue;
    views.push_back({entry->second.address, entry->first->waiting_since()});
    entries.push_back(entry);
  }
  const auto chosen = ConnectionToClose(views, newcomer);
  if (!chosen) return false;
  const auto [connection, place] = *entries[*chosen];
  spdlog::debug("a connection of {} makes room for one of {}", place.address, newcomer);
  Leave(entries[*chosen]);
  Enter(connection, {Place::State::kLeaving, place.address});
  asio::post(connection->executor(), [connection = connection] { connection->CloseSoon(); });
  return true;
}

// Returns the reason to refuse a connection, or an empty string. REQUIRES: the mutex is held.
std::string HttpServer::Impl::WhyRefused(const std::string& address) {
  const auto found = per_address.find(address);
  const std::int64_t limit = options.ConnectionsPerAddress();
  if (limit > 0 && found != per_address.end() && found->second >= limit) {
    return "Too many connections from " + address + ": this server accepts at most " + std::to_string(limit) +
           " from one address.";
  }
  if (counts[Place::State::kServed] < options.max_connections || MakeRoom(address)) return {};
  return "Too many connections: this server accepts at most " + std::to_string(options.max_connections) + ".";
}

void HttpServer::Impl::Serve(tcp::socket socket) {
  error_code ignored;
  const std::string address = AddressGroup(socket.remote_endpoint(ignored).address());
  const auto connection = std::make_shared<HttpConnection>(MakeStream(std::move(socket)), shared, address);
  std::string refusal;
  {
    const std::lock_guard lock(mutex);
    if (stopping) return;
    refusal = WhyRefused(address);
    if (!refusal.empty() && counts[Place::State::kRefused] >= kMaxRefusedConnections) return;
    Enter(connection, {refusal.empty() ? Place::State::kServed : Place::State::kRefused, address});
  }
  asio::co_spawn(connection->executor(),
                 refusal.empty() ? connection->Run() : connection->RunRefused(std::move(refusal)),
                 [this, connection](std::exception_ptr failure) { Remove(connection, failure); });
}

// Removes a connection that has ended.
void HttpServer::Impl::Remove(const std::shared_ptr<HttpConnection>& connection, std::exception_ptr failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& exception) {
    spdlog::error("connection ended: {}", exception.what());
    connection->Abort();
  }
  const std::lock_guard lock(mutex);
  Leave(connections.find(connection));
  if (connections.empty()) emptied.notify_all();
}

void HttpServer::Impl::RunThread() {
  while (true) {
    try {
      context.run();
      return;
    } catch (const std::exception& exception) {
      spdlog::error("server thread: {}", exception.what());
    }
  }
}

void HttpServer::Impl::OnEach(void (HttpConnection::*action)()) {
  const std::lock_guard lock(mutex);
  for (const auto& [entry, place] : connections) {
    asio::post(entry->executor(), [connection = entry, action] { (connection.get()->*action)(); });
  }
}

void HttpServer::Impl::StopAccepting() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  asio::post(acceptor.get_executor(), [this] {
    error_code ignored;
    acceptor.close(ignored);
  });
}

bool HttpServer::Impl::WaitUntilEmpty(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex);
  return emptied.wait_for(lock, timeout, [this] { return connections.empty(); });
}

HttpServer::HttpServer(HttpServerOptions options, const RouteTable& routes, const Clock& clock, const TlsContext* tls)
    : impl_(std::make_unique<Impl>(std::move(options), routes, clock, tls)) {}

HttpServer::~HttpServer() { Shutdown(); }

Status HttpServer::Start() {
  CHECK(impl_->threads.empty());
  RETURN_IF_ERROR(impl_->Listen());
  asio::co_spawn(impl_->acceptor.get_executor(), impl_->Accept(), asio::detached);
  for (int i = 0; i < std::max(1, impl_->options.threads); ++i) {
    impl_->threads.emplace_back([impl = impl_.get()] { impl->RunThread(); });
  }
  return Ok{};
}

asio::any_io_executor HttpServer::executor() const { return impl_->context.get_executor(); }

std::uint16_t HttpServer::port() const { return impl_->port; }

int HttpServer::connections() const {
  const std::lock_guard lock(impl_->mutex);
  return static_cast<int>(impl_->connections.size());
}

bool HttpServer::draining() const { return impl_->activity.draining(); }

DrainReport HttpServer::Shutdown() {
  if (impl_->threads.empty()) return impl_->activity.Report();
  impl_->StopAccepting();
  impl_->activity.StartDraining();
  if (!impl_->activity.WaitUntilIdle(impl_->options.drain_timeout)) {
    impl_->OnEach(&HttpConnection::CutOff);
    impl_->activity.WaitUntilIdle(impl_->options.cut_off_timeout);
  }
  impl_->OnEach(&HttpConnection::CloseIfIdle);
  if (!impl_->WaitUntilEmpty(impl_->activity.WaitUntilIdle({}) ? impl_->options.linger_timeout * 2
                                                               : std::chrono::milliseconds(0))) {
    impl_->OnEach(&HttpConnection::Abort);
    while (!impl_->WaitUntilEmpty(std::chrono::seconds(5))) {
      spdlog::warn("still waiting for {} connections to end", connections());
    }
  }
  impl_->work.reset();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
  return impl_->activity.Report();
}

}  // namespace loramux
