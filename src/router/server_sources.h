// Where a router's servers come from: addresses on the command line, names in the DNS, files.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/result.h"
#include "router/server_address.h"

namespace loramux {

// A name that stands for servers: each of its addresses is one.
struct DnsSource {
  std::string host, port;
};

// What --servers says.
struct ServerSources {
  std::vector<ServerAddress> fixed;
  std::vector<DnsSource> dns;
  std::vector<std::string> files;  // one entry a line, as in the list; '#' begins a comment

  // Reads a list of ADDRESS, dns:NAME:PORT and file:PATH. Files are not read yet. Error: an entry is none of these.
  static Result<ServerSources> Parse(const std::vector<std::string>& entries);
  // Whether servers may come and go.
  bool changes() const { return !dns.empty() || !files.empty(); }
};

// Looks names up and reads files, on a thread of its own, and says which servers there are.
class ServerWatch {
 public:
  // Called with all servers, ascending by name, from the thread that constructs (once) and from the watch's thread.
  using OnServers = std::function<void(std::vector<ServerAddress>)>;

  // Looks once; blocks. A name that cannot be looked up is a warning. Error: a file cannot be read or has a bad line.
  // `interval`: between two looks at the DNS.
  static Result<std::unique_ptr<ServerWatch>> Start(ServerSources sources, std::chrono::milliseconds interval,
                                                    OnServers on_servers);
  ~ServerWatch();
  ServerWatch(const ServerWatch&) = delete;
  ServerWatch& operator=(const ServerWatch&) = delete;

  // Reads files and looks names up again, now. A file with an error changes nothing; the log gives the reason.
  // Thread-safe.
  void Reload();

 private:
  ServerWatch(ServerSources sources, std::chrono::milliseconds interval, OnServers on_servers);
  Result<std::vector<ServerAddress>> Look();
  void Run();

  const ServerSources sources_;
  const std::chrono::milliseconds interval_;
  const OnServers on_servers_;
  std::map<std::string, std::vector<std::string>> addresses_;  // by host, as last looked up

  std::mutex mutex_;
  std::condition_variable woken_;
  bool stop_ = false, reload_ = false;
  std::thread thread_;
};

}  // namespace loramux
