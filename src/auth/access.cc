#include "auth/access.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "auth/bearer_key.h"
#include "formats/file.h"
#include "http/exchange.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxKeyFileBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxKeys = 10'000;  // each request compares its key with all of them
constexpr std::size_t kMaxKeyBytes = 1024;

std::optional<unsigned char> HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

std::optional<Sha256> ParseHexDigest(std::string_view text) {
  Sha256 digest;
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const auto high = HexValue(text[2 * i]), low = HexValue(text[2 * i + 1]);
    if (!high || !low) return std::nullopt;
    digest[i] = static_cast<unsigned char>(*high << 4 | *low);
  }
  return digest;
}

// Reads the key or its digest. Error messages never show any part of a key.
Status ReadSecret(FieldReader& fields, ApiKey& key) {
  std::string secret, hex;
  const bool plain = fields.String("key", secret);
  const bool hashed = fields.String("key_sha256", hex);
  if (plain == hashed) {
    return InvalidArgument(fmt::format("`{}`: expected either `key` or `key_sha256`, found {}", fields.FullName("key"),
                                       plain ? "both" : "neither as a string"));
  }
  if (plain && (secret.size() < kMinKeyBytes || secret.size() > kMaxKeyBytes)) {
    return InvalidArgument(fmt::format("`{}`: expected {} to {} bytes, found {}", fields.FullName("key"), kMinKeyBytes,
                                       kMaxKeyBytes, secret.size()));
  }
  const auto digest = plain ? std::optional(Sha256Of(secret)) : ParseHexDigest(hex);
  if (!digest) {
    return InvalidArgument(fmt::format("`{}`: expected 64 hexadecimal digits", fields.FullName("key_sha256")));
  }
  key.digest = *digest;
  return Ok{};
}

Status ReadModels(FieldReader& fields, ApiKey& key) {
  const Json* models = fields.Array("models");
  const std::string expected = "a list of model names or prefixes that end in '*' ([\"*\"]: all)";
  if (models == nullptr || models->empty()) fields.Expect("models", expected, fields.Find("models"));
  if (!fields.ok()) return fields.error();
  for (const Json& model : *models) {
    if (!model.is_string() || model.get_ref<const std::string&>().empty()) {
      fields.Expect("models", expected, &model);
      return fields.error();
    }
    key.models.push_back(model.get<std::string>());
  }
  return Ok{};
}

Result<ApiKey> ReadKey(const Json& object, const std::string& where, const QuotaLimits& defaults) {
  if (!object.is_object()) return InvalidArgument("`" + where + "`: expected an object, found something else");
  RETURN_IF_ERROR(CheckKnownFields(object, where + ".", {"name", "key", "key_sha256", "models", "limits"}));
  FieldReader fields(object, where + ".");
  ApiKey key;
  key.limits = defaults;
  const bool named = fields.String("name", key.name) && !key.name.empty() && key.name.size() <= 256;
  if (!named || std::any_of(key.name.begin(), key.name.end(), IsControl)) {
    fields.Expect("name", "a string of 1 to 256 bytes without control characters", fields.Find("name"));
    return fields.error();
  }
  RETURN_IF_ERROR(ReadSecret(fields, key));
  RETURN_IF_ERROR(ReadModels(fields, key));
  if (const Json* limits = fields.Find("limits")) {
    ASSIGN_OR_RETURN(key.limits, ReadQuota(*limits, where + ".limits", defaults));
  }
  return key;
}

}  // namespace

Sha256 Sha256Of(std::string_view text) {
  Sha256 digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

bool ApiKey::Allows(std::string_view model) const {
  return std::any_of(models.begin(), models.end(),
                     [model](const std::string& pattern) { return MatchesName(pattern, model); });
}

bool ApiKey::AllowsAll() const { return std::ranges::find(models, "*") != models.end(); }

Result<ApiKeyTable> ApiKeyTable::Parse(std::string_view text, const QuotaLimits& defaults) {
  JsonLimits limits;
  limits.subject = "The file of keys";
  limits.quote = false;
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, limits));
  if (!json.is_object()) return InvalidArgument("expected an object {\"keys\": [...]}, found something else");
  RETURN_IF_ERROR(CheckKnownFields(json, "", {"keys"}));
  FieldReader fields(json, "");
  const Json* list = fields.Array("keys");
  if (list == nullptr || list->size() > kMaxKeys) {
    return InvalidArgument("`keys`: expected a list of at most " + std::to_string(kMaxKeys) + " keys, found " +
                           (list == nullptr ? "none" : std::to_string(list->size())));
  }
  ApiKeyTable table;
  std::set<std::string> names;
  std::set<Sha256> digests;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = "keys[" + std::to_string(i) + "]";
    ASSIGN_OR_RETURN(ApiKey key, ReadKey((*list)[i], where, defaults));
    if (!names.insert(key.name).second)
      return InvalidArgument("`" + where + ".name`: expected a unique name, found `" + key.name + "` twice");
    if (!digests.insert(key.digest).second) return InvalidArgument("`" + where + "`: another entry has the same key");
    table.keys_.push_back(std::make_shared<const ApiKey>(std::move(key)));
  }
  return table;
}

Result<ApiKeyTable> ApiKeyTable::OfKeys(std::span<const std::string> keys, const QuotaLimits& limits) {
  if (keys.size() > kMaxKeys) return InvalidArgument(fmt::format("expected at most {} keys", kMaxKeys), "--api-key");
  ApiKeyTable table;
  std::set<Sha256> digests;
  for (const std::string& text : keys) {
    const std::string name = fmt::format("api-key-{}", table.size() + 1);
    const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
    if (text.empty() || text.size() > kMaxKeyBytes || !plain) {
      return InvalidArgument(
          fmt::format("--api-key: expected 1 to {} printable characters without blanks in key {}, found {} bytes",
                      kMaxKeyBytes, table.size() + 1, text.size()),
          "--api-key");
    }
    if (!digests.insert(Sha256Of(text)).second) return InvalidArgument("--api-key: a key is given twice", "--api-key");
    table.keys_.push_back(std::make_shared<const ApiKey>(
        ApiKey{.name = name, .digest = Sha256Of(text), .models = {"*"}, .limits = limits}));
  }
  return table;
}

std::shared_ptr<const ApiKey> ApiKeyTable::Find(std::string_view key) const {
  const Sha256 digest = Sha256Of(key);
  const std::shared_ptr<const ApiKey>* found = nullptr;
  for (const auto& candidate : keys_) {
    if (CRYPTO_memcmp(digest.data(), candidate->digest.data(), digest.size()) == 0) found = &candidate;
  }
  return found == nullptr ? nullptr : *found;
}

Result<ApiKeyTable> AccessControl::Read(const std::string& path, const QuotaLimits& defaults) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxKeyFileBytes));
  auto table = ApiKeyTable::Parse(text, defaults);
  if (!table.ok()) return InvalidArgument("the API keys in '" + path + "': " + table.error().message, path);
  return table;
}

Result<std::unique_ptr<AccessControl>> AccessControl::Load(std::string path, const QuotaLimits& defaults) {
  ASSIGN_OR_RETURN(ApiKeyTable table, Read(path, defaults));
  return std::unique_ptr<AccessControl>(new AccessControl(std::move(path), defaults, std::move(table)));
}

Result<std::unique_ptr<AccessControl>> AccessControl::OfKeys(std::span<const std::string> keys,
                                                             const QuotaLimits& limits) {
  ASSIGN_OR_RETURN(ApiKeyTable table, ApiKeyTable::OfKeys(keys, limits));
  return std::unique_ptr<AccessControl>(new AccessControl(std::string(), limits, std::move(table)));
}

Status AccessControl::Reload() {
  if (path_.empty()) return Ok{};
  ASSIGN_OR_RETURN(ApiKeyTable table, Read(path_, defaults_));
  auto current = std::make_shared<const ApiKeyTable>(std::move(table));
  const std::lock_guard lock(mutex_);
  table_ = std::move(current);
  return Ok{};
}

std::shared_ptr<const ApiKeyTable> AccessControl::Current() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

std::size_t AccessControl::size() const { return Current()->size(); }

std::shared_ptr<const ApiKey> AccessControl::Authenticate(std::string_view authorization) const {
  return AuthenticateKey(BearerToken(authorization));
}

std::shared_ptr<const ApiKey> AccessControl::AuthenticateKey(std::string_view key) const {
  return key.empty() || key.size() > kMaxKeyBytes ? nullptr : Current()->Find(key);
}

const ApiKey& NoKey() {
  static const ApiKey key{.models = {"*"}};
  return key;
}

const ApiKey& CallerOf(const HttpRequest& request) {
  return request.caller == nullptr ? NoKey() : *static_cast<const ApiKey*>(request.caller.get());
}

std::string WorkTenant(const HttpRequest& request) {
  const ApiKey& caller = CallerOf(request);
  if (caller.nameless()) return request.tenant.empty() ? "address " + request.address : "tenant " + request.tenant;
  return request.tenant.empty() ? "key " + caller.name : "key " + caller.name + "\n" + request.tenant;
}

}  // namespace loramux
