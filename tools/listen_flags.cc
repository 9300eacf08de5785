#include "tools/listen_flags.h"

#include <algorithm>
#include <cstring>
#include <sys/resource.h>

#include "base/log.h"

namespace loramux {
namespace {

constexpr std::pair<double, double> kSequences{0, 1e12}, kBytes{256, 64 << 20}, kSeconds{0.001, 86400};
constexpr int kOtherOpenFiles = 64;  // besides connections; each registered adapter keeps one more

}  // namespace

void AddKeyConcurrencyFlag(CommandLine& line, QuotaLimits& of_each_key, const std::string& group) {
  line.Add({.names = "--key-concurrency",
            .target = &of_each_key.concurrency,
            .unit = "N",
            .group = group,
            .help = "Sequences in progress, per API key; `concurrency` in the file of keys wins over it",
            .range = kSequences});
}

void AddHttpLimitFlags(CommandLine& line, HttpServerOptions& http) {
  const std::string group = "HTTP limits";
  line.Add({.names = "--max-header-bytes",
            .target = &http.max_header_bytes,
            .unit = "BYTES",
            .group = group,
            .help = "Largest request header",
            .range = kBytes});
  line.Add({.names = "--max-header-fields",
            .target = &http.max_header_fields,
            .unit = "N",
            .group = group,
            .help = "Largest number of fields in a request header",
            .range = {{1, 10'000}}});
  line.Add({.names = "--max-target-bytes",
            .target = &http.max_target_bytes,
            .unit = "BYTES",
            .group = group,
            .help = "Longest request target",
            .range = kBytes});
  line.Add({.names = "--max-connections-per-address",
            .target = &http.max_connections_per_address,
            .unit = "N",
            .group = group,
            .help = "Open connections of one client address, or of one IPv6 network of 64 bits; further ones get 503; "
                    "0: no limit, as behind a proxy that opens all of them",
            .default_text = "a quarter of --max-connections, at least 16",
            .range = {{0, 1 << 20}}});
  line.Add({.names = "--max-body-bytes-per-address",
            .target = &http.max_held_body_bytes_per_address,
            .unit = "BYTES",
            .group = group,
            .help = "Bytes of unfinished request bodies of one client address; a body beyond it gets 503; 0: no limit",
            .default_text = "a quarter of what all may hold: 128 MiB",
            .range = {{0, 1e12}}});
  line.Add({.names = "--idle-timeout",
            .target = &http.idle_timeout,
            .unit = "SECONDS",
            .group = group,
            .help = "Time that a connection may stay open without a request",
            .range = kSeconds});
  line.Add({.names = "--header-timeout",
            .target = &http.header_timeout,
            .unit = "SECONDS",
            .group = group,
            .help = "Time for a request header, and for the TLS handshake",
            .range = kSeconds});
  line.Add({.names = "--body-timeout",
            .target = &http.body_timeout,
            .unit = "SECONDS",
            .group = group,
            .help = "Time for a request body, plus what --min-body-rate adds for the bytes received",
            .range = kSeconds});
  line.Add({.names = "--min-body-rate",
            .target = &http.min_body_bytes_per_second,
            .unit = "BYTES/S",
            .group = group,
            .help = "Rate at which received body bytes extend --body-timeout",
            .range = {{1, 1e12}}});
  line.Add({.names = "--write-timeout",
            .target = &http.write_timeout,
            .unit = "SECONDS",
            .group = group,
            .help = "Time that a client may go without reading",
            .range = kSeconds});
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.rfind("127.", 0) == 0;
}

Status RaiseOpenFileLimit(int connections, int files_each) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return Ok{};
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
    spdlog::warn("cannot raise the limit of open files: {}", std::strerror(errno));
  getrlimit(RLIMIT_NOFILE, &limit);
  const int least = std::min(connections, kLeastConnectionsPerAddress) * files_each + kOtherOpenFiles;
  if (limit.rlim_cur < static_cast<rlim_t>(least)) {
    return ResourceExhausted(fmt::format(
        "this process may open {} files: expected at least {}; raise the limit (ulimit -n, or LimitNOFILE of "
        "the unit)",
        limit.rlim_cur, least));
  }
  if (limit.rlim_cur >= static_cast<rlim_t>(connections) * static_cast<rlim_t>(files_each) + kOtherOpenFiles) {
    return Ok{};
  }
  spdlog::warn("this process may open {} files: too few for --max-connections {}, which need {}; raise it (ulimit -n)",
               limit.rlim_cur, connections, connections * files_each + kOtherOpenFiles);
  return Ok{};
}

}  // namespace loramux
