#include "tools/remote_flags.h"

#include <filesystem>

#include "base/log.h"
#include "tools/command_line/environment.h"
#include "tools/model_flags.h"
#include "tools/runtime_flags.h"

namespace loramux {
namespace {

std::filesystem::path UserCache() {
  if (const auto caches = EnvironmentValue("XDG_CACHE_HOME")) return std::filesystem::path(*caches) / "loramux";
  return std::filesystem::path(EnvironmentValue("HOME").value_or(".")) / ".cache" / "loramux";
}

S3Options S3OptionsOfEnvironment() {
  S3Options options;
  options.access_key = EnvironmentValue("AWS_ACCESS_KEY_ID").value_or("");
  options.secret_key = EnvironmentValue("AWS_SECRET_ACCESS_KEY").value_or("");
  options.session_token = EnvironmentValue("AWS_SESSION_TOKEN").value_or("");
  for (const char* name : {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}) {  // the more specific one wins
    if (const auto url = EnvironmentValue(name)) options.endpoint = *url;
  }
  for (const char* name : {"AWS_DEFAULT_REGION", "AWS_REGION"}) {
    if (const auto region = EnvironmentValue(name)) options.region = *region;
  }
  return options;
}

}  // namespace

void AddRemoteFlags(CommandLine& line, RemoteAdapterOptions& remote) {
  const std::string adapters = "Adapters";
  line.Add({.names = "--adapter-cache-dir",
            .target = &remote.cache_directory,
            .unit = "DIR",
            .group = adapters,
            .help =
                "Keeps adapters of s3:// and hf:// sources, by their content, and what DoRA needs of the base model; "
                "several servers may share it",
            .default_text = "XDG_CACHE_HOME/loramux/adapters, or ~/.cache/loramux/adapters"});
  line.Add({.names = "--adapter-cache-bytes",
            .target = &remote.cache_bytes,
            .form = FlagForm::kBytes,
            .unit = "BYTES",
            .group = adapters,
            .help = "Most bytes of that directory; adapters that no server uses go first, the longest unused before"});
}

std::filesystem::path AdapterCacheDirectory(const RemoteAdapterOptions& remote) {
  return remote.cache_directory.empty() ? UserCache() / "adapters" : std::filesystem::path(remote.cache_directory);
}

Status OpenRemoteAdapters(RuntimeFlags& flags) {
  if (flags.remote_adapters != nullptr) return Ok{};
  RemoteAdapterOptions options = flags.remote;
  options.offline = flags.hub.offline;
  options.s3 = S3OptionsOfEnvironment();
  options.hub = WithToken(flags.hub.hub);
  options.cache_directory = AdapterCacheDirectory(options).string();
  RETURN_IF_ERROR(S3Client::Create(options.s3, nullptr));  // what is wrong with the environment shows now
  ASSIGN_OR_RETURN(flags.remote_adapters, RemoteAdapters::Open(std::move(options)));
  return Ok{};
}

Result<std::shared_ptr<const AdapterVersion>> PrepareFromSource(const RuntimeFlags& flags, AdapterRegistry& registry,
                                                                const std::string& name, const std::string& source,
                                                                std::int64_t now_unix_seconds) {
  CHECK(flags.remote_adapters != nullptr);
  ASSIGN_OR_RETURN(const AdapterSource parsed, ParseAdapterSource(source));
  std::shared_ptr<const AdapterVersion> version;
  const auto discard = [&] {
    if (version != nullptr) registry.Discard(*version);
    version = nullptr;
  };
  const auto open = [&](const std::filesystem::path& folder,
                        const std::shared_ptr<const void>& lease) -> Result<std::string> {
    discard();
    ASSIGN_OR_RETURN(version,
                     registry.Prepare(name, folder, now_unix_seconds, {}, {.source = parsed.text, .held = lease}));
    return version->file.digest;
  };
  const auto warning = flags.remote_adapters->Use(parsed, "", AskSource::kOrTake, open);
  if (!warning.ok()) {
    discard();
    return warning.error();
  }
  if (!warning->empty()) spdlog::warn("adapter '{}': {}", name, *warning);
  return version;
}

}  // namespace loramux
