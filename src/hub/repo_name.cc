#include "hub/repo_name.h"

#include <algorithm>

namespace loramux {
namespace {

bool IsAlphanumeric(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool IsPart(std::string_view text) {
  constexpr std::size_t kMaxBytes = 96;
  if (text.empty() || text.size() > kMaxBytes || !IsAlphanumeric(text.front())) return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return IsAlphanumeric(c) || c == '-' || c == '_' || c == '.'; });
}

}  // namespace

std::optional<RepoName> ParseRepoName(std::string_view text) {
  RepoName repo;
  if (const std::size_t at = text.find('@'); at != std::string_view::npos) {
    repo.revision = text.substr(at + 1);
    text = text.substr(0, at);
  }
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  repo.organisation = text.substr(0, slash);
  repo.name = text.substr(slash + 1);
  if (!IsPart(repo.organisation) || !IsPart(repo.name) || !IsPart(repo.revision)) return std::nullopt;
  return repo;
}

bool IsCommit(std::string_view text) {
  constexpr std::size_t kDigits = 40;
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace loramux
