#include "auth/bearer_key.h"

#include <algorithm>

#include <openssl/crypto.h>

#include "formats/file.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxFileBytes = 4096;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

Result<std::string> ReadKeyFile(const std::filesystem::path& path, const std::string& flag) {
  auto text = ReadTextFile(path, kMaxFileBytes);
  if (!text.ok()) return Error{text.error().code, flag + ": " + text.error().message, flag};
  const std::string_view key = Trim(*text);
  if (key.size() < kMinKeyBytes) {
    return InvalidArgument(flag + ": " + path.string() + ": expected a key of at least " +
                               std::to_string(kMinKeyBytes) + " characters, found " + std::to_string(key.size()),
                           flag);
  }
  if (!std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7f; })) {
    return InvalidArgument(flag + ": " + path.string() + ": expected one key of printable ASCII characters", flag);
  }
  return std::string(key);
}

std::string_view BearerToken(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return {};
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != kScheme[i]) return {};
  }
  return Trim(authorization.substr(kScheme.size()));
}

bool SameKey(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace loramux
