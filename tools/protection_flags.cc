#include "tools/protection_flags.h"

#include <algorithm>
#include <cstring>
#include <sys/resource.h>

#include "base/log.h"

namespace loramux {
namespace {

constexpr int kOtherOpenFiles = 64;  // besides connections; each registered adapter keeps one more

void AddKeyFlags(CLI::App& command, ProtectionOptions& protection) {
  const std::string group = "Access (docs/guide/tenants.md; files are read again at SIGHUP)";
  command.add_option("--api-key-file", protection.api_key_file, "JSON file of API keys; without it everybody may call")
      ->group(group)
      ->check(CLI::ExistingFile);
  command.add_option("--tls-cert", protection.tls.certificate, "PEM file with the certificate chain: serve HTTPS")
      ->group(group);
  command.add_option("--tls-key", protection.tls.key, "PEM file with the certificate's private key")->group(group);
}

void AddQuotaFlags(CLI::App& command, ProtectionOptions& protection) {
  const std::string group = "Quotas (what is exceeded gets 429 and Retry-After; 0: no limit)";
  const auto count = CLI::Range(std::int64_t{0}, std::int64_t{1} << 40);
  QuotaLimits& each = protection.adapter_limits;
  command.add_option("--limits-file", protection.limits_file, "JSON file of limits by adapter, over the flags below")
      ->group(group)
      ->check(CLI::ExistingFile);
  command
      .add_option("--max-queued-requests", protection.admission.max_queued, "Sequences that wait for their first token")
      ->group(group)
      ->capture_default_str()
      ->check(count);
  command.add_option("--adapter-rate", each.requests_per_second, "Requests a second, each adapter")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e9));
  command.add_option("--adapter-burst", each.burst, "Requests at once within that rate (0: one second's worth)")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e9));
  command.add_option("--adapter-token-rate", each.tokens_per_second, "Tokens a second, each adapter")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e9));
  command.add_option("--adapter-concurrency", each.concurrency, "Sequences at a time, each adapter")
      ->group(group)
      ->capture_default_str()
      ->check(count);
  command.add_option("--adapter-queue", each.queued, "Sequences that wait for their first token, each adapter")
      ->group(group)
      ->capture_default_str()
      ->check(count);
}

// A number of seconds with a fraction, for a member in milliseconds.
void AddSeconds(CLI::App& command, const std::string& group, const std::string& flag, std::chrono::milliseconds& value,
                const std::string& help) {
  command
      .add_option_function<double>(
          flag,
          [&value](const double& seconds) {
            value = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
          },
          help)
      ->group(group)
      ->check(CLI::Range(0.001, 86400.0))
      ->default_str(std::to_string(value.count() / 1000));
}

void AddHttpFlags(CLI::App& command, HttpServerOptions& http) {
  const std::string group = "HTTP limits";
  const auto bytes = CLI::Range(std::size_t{256}, std::size_t{64} << 20);
  command.add_option("--max-header-bytes", http.max_header_bytes, "Largest request header")
      ->group(group)
      ->capture_default_str()
      ->check(bytes);
  command.add_option("--max-header-fields", http.max_header_fields, "Most fields of a request header")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, std::size_t{10'000}));
  command.add_option("--max-target-bytes", http.max_target_bytes, "Longest request target")
      ->group(group)
      ->capture_default_str()
      ->check(bytes);
  command
      .add_option("--max-connections-per-address", http.max_connections_per_address,
                  "Further ones get 503; 0: no limit")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  AddSeconds(command, group, "--idle-timeout", http.idle_timeout, "Seconds a connection may be without a request");
  AddSeconds(command, group, "--header-timeout", http.header_timeout,
             "Seconds for a request's header, and for the TLS handshake");
  AddSeconds(command, group, "--body-timeout", http.body_timeout,
             "Seconds for a body, plus what --min-body-rate earns it");
  command.add_option("--min-body-rate", http.min_body_bytes_per_second, "Bytes a second at which a body earns time")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  AddSeconds(command, group, "--write-timeout", http.write_timeout, "Seconds a client may go without reading");
}

}  // namespace

void AddProtectionFlags(CLI::App& command, HttpServerOptions& http, ProtectionOptions& protection) {
  AddKeyFlags(command, protection);
  AddQuotaFlags(command, protection);
  AddHttpFlags(command, http);
}

void RaiseOpenFileLimit(int connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
    spdlog::warn("cannot raise the limit of open files: {}", std::strerror(errno));
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= static_cast<rlim_t>(connections) + kOtherOpenFiles) return;
  spdlog::warn("this process may open {} files: too few for --max-connections {}; raise it (ulimit -n)", limit.rlim_cur,
               connections);
}

}  // namespace loramux
