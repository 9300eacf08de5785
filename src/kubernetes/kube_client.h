// A client of the API server of Kubernetes: JSON over the house's HTTP client, with the token of a service account.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "http/url.h"

namespace loramux {

struct KubeOptions {
  Url server;
  std::string token_file;  // read for each call, because tokens are renewed; empty: none
  std::string ca_file;     // PEM: whom to trust besides the system's authorities; empty: only those
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);      // longest time of a call
  std::chrono::nanoseconds watch_time = std::chrono::seconds(290);  // time after which a watch ends
};

// Thread-safe: each call has a connection of its own. Errors: kUnavailable, no answer; kNotFound and kInvalidArgument,
// the server refused, with its message; kRateLimited, HTTP's 410: what a watch asked for is gone, list again.
class KubeClient {
 public:
  // `clock` must outlive the client.
  KubeClient(KubeOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}

  // The body of an answer, of at most 64 MiB.
  Result<std::string> Get(const std::string& path, std::stop_token stop) const;
  // Sends a merge patch.
  Status Patch(const std::string& path, std::string body, std::stop_token stop) const;
  // Calls `on_line` with each line of a watch, on this thread, until the server ends it, watch_time is over (both ok),
  // `on_line` returns false (ok) or `stop`. Lines have at most 4 MiB.
  Status Watch(const std::string& path, const std::function<bool(std::string_view line)>& on_line,
               std::stop_token stop) const;

 private:
  using OnPiece = std::function<bool(std::string_view piece)>;
  struct Call;
  Status Do(Call& call, std::stop_token stop) const;

  const KubeOptions options_;
  const Clock& clock_;
};

}  // namespace loramux
