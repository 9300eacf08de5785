#include "hub/adapter_source.h"

#include <algorithm>

namespace loramux {
namespace {

constexpr std::string_view kS3Scheme = "s3://", kHubScheme = "hf://", kFileScheme = "file://";
constexpr std::size_t kMaxBucketBytes = 63, kMaxPrefixBytes = 900;

bool IsLetterOrDigit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool IsBucket(std::string_view text) {
  return !text.empty() && text.size() <= kMaxBucketBytes && IsLetterOrDigit(text.front()) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return IsLetterOrDigit(c) || c == '.' || c == '_' || c == '-'; });
}

// Whether it is a list of parts between slashes, each of which names something. An empty text has no part.
bool IsObjectPrefix(std::string_view text) {
  if (text.empty()) return true;
  if (text.size() > kMaxPrefixBytes) return false;
  const auto printable = [](char c) { return c > ' ' && c != 0x7f; };
  if (!std::all_of(text.begin(), text.end(), [&](char c) { return (c & 0x80) != 0 || printable(c); })) return false;
  while (true) {
    const std::size_t slash = text.find('/');
    const std::string_view part = text.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    text.remove_prefix(slash + 1);
  }
}

Error NoSource(std::string_view text, const std::string& param) {
  constexpr std::size_t kShown = 200;
  const std::string shown(text.substr(0, kShown));
  return InvalidArgument("adapter source '" + shown + (text.size() > kShown ? "..." : "") +
                             "': expected s3://BUCKET/PREFIX or hf://ORG/NAME[@REVISION], with no empty part, '.' or "
                             "'..', found something else",
                         param);
}

std::string_view WithoutSlashAtEnd(std::string_view text) {
  while (text.ends_with('/')) text.remove_suffix(1);
  return text;
}

}  // namespace

bool IsRemoteSource(std::string_view text) {
  const std::size_t end = text.find("://");
  if (end == std::string_view::npos || end == 0 || text.starts_with(kFileScheme)) return false;
  return std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), IsLetterOrDigit);
}

const std::string& OriginOf(const AdapterSource& source) {
  return source.kind == AdapterSource::Kind::kHub ? source.repo.organisation : source.bucket;
}

std::string_view LocalPathOf(std::string_view text) {
  return text.starts_with(kFileScheme) ? text.substr(kFileScheme.size()) : text;
}

Result<AdapterSource> ParseAdapterSource(std::string_view text) {
  AdapterSource source{.text = std::string(text)};
  if (text.starts_with(kHubScheme)) {
    const auto repo = ParseRepoName(text.substr(kHubScheme.size()));
    if (!repo) return NoSource(text, "lora_path");
    source.kind = AdapterSource::Kind::kHub;
    source.repo = *repo;
    return source;
  }
  if (!text.starts_with(kS3Scheme)) return NoSource(text, "lora_path");
  std::string_view rest = text.substr(kS3Scheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  source.text = std::string(kS3Scheme) + std::string(rest);
  const std::size_t slash = rest.find('/');
  source.bucket = rest.substr(0, slash);
  if (slash != std::string_view::npos) source.prefix = rest.substr(slash + 1);
  if (slash != std::string_view::npos && source.prefix.empty()) return NoSource(text, "lora_path");
  if (!IsBucket(source.bucket) || !IsObjectPrefix(source.prefix)) return NoSource(text, "lora_path");
  return source;
}

Result<AllowedSources> AllowedSources::Create(const std::vector<std::string>& prefixes) {
  AllowedSources allowed;
  for (const std::string& text : prefixes) {
    const std::string_view prefix = WithoutSlashAtEnd(text);
    const bool organisation = prefix.starts_with(kHubScheme) && prefix.find('/', kHubScheme.size()) == prefix.npos &&
                              ParseRepoName(std::string(prefix.substr(kHubScheme.size())) + "/x").has_value();
    if (!organisation && !ParseAdapterSource(prefix).ok()) {
      return InvalidArgument(
          "--allowed-adapter-sources: expected prefixes as s3://BUCKET[/PREFIX] or hf://ORG[/NAME], "
          "found '" +
              text + "'",
          "--allowed-adapter-sources");
    }
    allowed.prefixes_.emplace_back(prefix);
  }
  return allowed;
}

Status AllowedSources::Check(const AdapterSource& source) const {
  const std::string& text = source.text;
  const bool allowed = std::any_of(prefixes_.begin(), prefixes_.end(), [&](const std::string& prefix) {
    if (!text.starts_with(prefix)) return false;
    if (text.size() == prefix.size()) return true;
    const char next = text[prefix.size()];
    return next == '/' || (next == '@' && source.kind == AdapterSource::Kind::kHub);
  });
  if (allowed) return Ok{};
  return InvalidArgument("adapter source '" + text +
                             "' is not allowed; start the server with --allowed-adapter-sources PREFIX for each place "
                             "that adapters may be loaded from",
                         "lora_path");
}

}  // namespace loramux
