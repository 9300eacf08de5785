#include "router/server_sources.h"

#include <algorithm>
#include <memory>
#include <set>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <netdb.h>

#include <fmt/format.h>

#include "base/log.h"
#include "base/text_file.h"

namespace loramux {
namespace {

constexpr std::string_view kFlag = "--servers";

std::string_view Trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

Status AddEntry(std::string_view entry, std::string_view where, ServerSources& sources) {
  if (entry.starts_with("file:")) {
    sources.files.emplace_back(entry.substr(5));
    return Ok{};
  }
  if (entry.starts_with("dns:")) {
    const std::string_view rest = entry.substr(4);
    ASSIGN_OR_RETURN(const ServerAddress address, ParseServerAddress(rest, where));
    if (address.url.tls || rest.find("://") != std::string_view::npos) {
      return InvalidArgument(fmt::format("{}: expected dns:NAME:PORT, found '{}'", where, entry));
    }
    sources.dns.push_back({address.url.host, address.url.port});
    return Ok{};
  }
  ASSIGN_OR_RETURN(ServerAddress address, ParseServerAddress(entry, where));
  sources.fixed.push_back(std::move(address));
  return Ok{};
}

// The entries of a file.
Result<ServerSources> ReadServersFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  ServerSources sources;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number;
    line = Trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    RETURN_IF_ERROR(AddEntry(line, fmt::format("{}:{}", path, number), sources));
  }
  if (!sources.files.empty()) {
    return InvalidArgument(fmt::format("{}: a file of servers may not name further files", path), path);
  }
  return sources;
}

// The addresses of a name, as texts. Error: the name has none, or the DNS does not answer.
Result<std::vector<std::string>> AddressesOf(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failure != 0) return IoError(fmt::format("cannot look up {}: {}", host, gai_strerror(failure)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::set<std::string> texts;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      texts.insert(text);
    }
  }
  return std::vector<std::string>(texts.begin(), texts.end());
}

}  // namespace

Result<ServerSources> ServerSources::Parse(const std::vector<std::string>& entries) {
  ServerSources sources;
  for (const std::string& entry : entries) RETURN_IF_ERROR(AddEntry(Trim(entry), kFlag, sources));
  return sources;
}

ServerWatch::ServerWatch(ServerSources sources, std::chrono::milliseconds interval, OnServers on_servers)
    : sources_(std::move(sources)), interval_(interval), on_servers_(std::move(on_servers)) {}

Result<std::unique_ptr<ServerWatch>> ServerWatch::Start(ServerSources sources, std::chrono::milliseconds interval,
                                                        OnServers on_servers) {
  std::unique_ptr<ServerWatch> watch(new ServerWatch(std::move(sources), interval, std::move(on_servers)));
  ASSIGN_OR_RETURN(std::vector<ServerAddress> servers, watch->Look());
  watch->on_servers_(std::move(servers));
  if (watch->sources_.changes()) watch->thread_ = std::thread([watch = watch.get()] { watch->Run(); });
  return watch;
}

ServerWatch::~ServerWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  woken_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ServerWatch::Reload() {
  {
    const std::lock_guard lock(mutex_);
    reload_ = true;
  }
  woken_.notify_all();
}

Result<std::vector<ServerAddress>> ServerWatch::Look() {
  ServerSources all = sources_;
  for (const std::string& path : sources_.files) {
    ASSIGN_OR_RETURN(const ServerSources more, ReadServersFile(path));
    all.fixed.insert(all.fixed.end(), more.fixed.begin(), more.fixed.end());
    all.dns.insert(all.dns.end(), more.dns.begin(), more.dns.end());
  }
  std::map<std::string, ServerAddress> servers;
  for (const ServerAddress& address : all.fixed) servers.emplace(address.name, address);
  for (const DnsSource& source : all.dns) {
    auto found = AddressesOf(source.host);
    if (found.ok()) {
      addresses_[source.host] = std::move(*found);
    } else {
      spdlog::warn("{}; its last known addresses stay in use", found.error().message);
    }
    for (const std::string& host : addresses_[source.host]) {
      Url url{.tls = false, .host = host, .port = source.port, .prefix = {}};
      std::string name = url.authority();
      servers.emplace(name, ServerAddress{name, std::move(url), source.host});
    }
  }
  std::vector<ServerAddress> list;
  for (auto& [name, address] : servers) list.push_back(std::move(address));
  return list;
}

void ServerWatch::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const auto asked = [this] { return stop_ || reload_; };
    if (addresses_.empty()) {
      woken_.wait(lock, asked);
    } else {
      woken_.wait_for(lock, interval_, asked);
    }
    if (stop_) return;
    reload_ = false;
    lock.unlock();
    auto servers = Look();
    if (servers.ok()) {
      on_servers_(std::move(*servers));
    } else {
      spdlog::error("the servers stay as they are: {}", servers.error().message);
    }
    lock.lock();
  }
}

}  // namespace loramux
