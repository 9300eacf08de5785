#include "tools/protection_flags.h"

#include "tools/listen_flags.h"

namespace loramux {
namespace {

constexpr std::pair<double, double> kCount{0, 1e12};

void AddKeyFlags(CommandLine& line, ProtectionOptions& protection) {
  const std::string group = "Access (files are read again at SIGHUP)";
  line.Add({.names = "--api-key",
            .target = &protection.api_keys,
            .unit = "KEY",
            .group = group,
            .help = "Key that clients must send (Authorization: Bearer KEY). Several may be given. On the command line "
                    "other users of the machine may see it; LORAMUX_API_KEY in the environment they cannot see",
            .common = true,
            .secret = true});
  line.Add({.names = "--api-key-file",
            .target = &protection.api_key_file,
            .unit = "FILE",
            .group = group,
            .help = "JSON file of API keys, with the models and limits of each; without keys every client may call",
            .path = FlagPath::kExistingFile,
            .excludes = "--api-key"});
  line.Add({.names = "--tls-cert",
            .target = &protection.tls.certificate,
            .unit = "FILE",
            .group = group,
            .help = "PEM file with the certificate chain; serves HTTPS",
            .common = true});
  line.Add({.names = "--tls-key",
            .target = &protection.tls.key,
            .unit = "FILE",
            .group = group,
            .help = "PEM file with the certificate's private key",
            .common = true});
  line.Add({.names = "--prefix-sharing",
            .target = &protection.prefix_sharing,
            .unit = "MODE",
            .group = group,
            .help = "Who shares cached prefixes: tenant keeps them apart by API key, so that neither times nor "
                    "cached_tokens tell one key about another; all shares them",
            .default_text = "tenant with API keys, else all"});
}

void AddQuotaFlags(CommandLine& line, ProtectionOptions& protection) {
  const std::string group = "Quotas (a request beyond one gets 429 and Retry-After; 0: no limit)";
  QuotaLimits& each = protection.adapter_limits;
  line.Add({.names = "--limits-file",
            .target = &protection.limits_file,
            .unit = "FILE",
            .group = group,
            .help = "JSON file of limits per adapter, which win over the flags below",
            .path = FlagPath::kExistingFile});
  line.Add({.names = "--max-queued-requests",
            .target = &protection.max_queued,
            .unit = "N",
            .group = group,
            .help = "Sequences of all adapters that may wait for their first token",
            .range = kCount});
  AddKeyConcurrencyFlag(line, protection.key_limits, group);
  line.Add({.names = "--adapter-rate",
            .target = &each.requests_per_second,
            .unit = "REQUESTS/S",
            .group = group,
            .help = "Requests per second, per adapter",
            .range = {{0.0, 1e9}}});
  line.Add({.names = "--adapter-burst",
            .target = &each.burst,
            .unit = "REQUESTS",
            .group = group,
            .help = "Requests at once within --adapter-rate, per adapter; 0: as many as one second allows",
            .range = {{0.0, 1e9}}});
  line.Add({.names = "--adapter-token-rate",
            .target = &each.tokens_per_second,
            .unit = "TOKENS/S",
            .group = group,
            .help = "Prompt and output tokens per second, per adapter",
            .range = {{0.0, 1e9}}});
  line.Add({.names = "--adapter-concurrency",
            .target = &each.concurrency,
            .unit = "N",
            .group = group,
            .help = "Sequences in progress, per adapter",
            .range = kCount});
  line.Add({.names = "--adapter-queue",
            .target = &each.queued,
            .unit = "N",
            .group = group,
            .help = "Sequences that may wait for their first token, per adapter",
            .range = kCount});
}

void AddRequestFlags(CommandLine& line, ProtectionOptions& protection) {
  line.Add({.names = "--max-sequences-per-request",
            .target = &protection.max_sequences_per_request,
            .unit = "N",
            .group = "Limits of a request (a larger one gets 400)",
            .help = "Sequences that one request may start: its prompts times `n`",
            .range = {{1, 1 << 20}}});
}

}  // namespace

void AddProtectionFlags(CommandLine& line, HttpServerOptions& http, ProtectionOptions& protection) {
  AddKeyFlags(line, protection);
  AddQuotaFlags(line, protection);
  AddRequestFlags(line, protection);
  AddHttpLimitFlags(line, http);
}

}  // namespace loramux
