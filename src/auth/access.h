// API keys: which callers may use the server, with which models, and within which limits.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "auth/quota.h"
#include "base/result.h"

namespace loramux {

struct HttpRequest;

// A SHA-256 digest, 32 bytes.
using Sha256 = std::array<unsigned char, 32>;
// Returns the SHA-256 digest of `text`.
Sha256 Sha256Of(std::string_view text);

// True for the characters that names of keys and tenants may not have.
inline bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// One entry of the file of API keys. It holds the digest of the key, not the key.
struct ApiKey {
  std::string name;                 // names the key in logs, in error messages and in the accounts of its limits
  Sha256 digest{};                  // digest of the key's text
  std::vector<std::string> models;  // permitted base models and adapters: exact names, or prefixes that end in '*'
  // Limits on all requests with this key together.
  QuotaLimits limits;

  // True if one of `models` matches the name `model`.
  bool Allows(std::string_view model) const;
  // Whether every model is permitted.
  bool AllowsAll() const;
  // Whether it stands for callers without a key.
  bool nameless() const { return name.empty(); }
};

// What stands for the key of callers that have none, where neither this server nor a router checks keys: it has no name
// and no limits, and permits every model.
const ApiKey& NoKey();

// The API keys of one file. Immutable.
class ApiKeyTable {
 public:
  // Parses {"keys": [{"name", "key" or "key_sha256", "models": [...], "limits": {...}}]}; docs/reference/files.md
  // describes the format. Errors name the field and never show a key. Names and keys must be unique. Limits that an
  // entry leaves out are as in `defaults`.
  static Result<ApiKeyTable> Parse(std::string_view text, const QuotaLimits& defaults = {});

  // A table of these keys, named api-key-1, api-key-2 and so on, each with all models and `limits`. Errors never show a
  // key: one is empty, too long, has blanks or control characters, or stands there twice.
  static Result<ApiKeyTable> OfKeys(std::span<const std::string> keys, const QuotaLimits& limits = {});

  // Returns the entry for `key`, or null if the table has none. Takes constant time: the time does not depend on the
  // position of the entry in the table, nor on which bytes of the key differ.
  std::shared_ptr<const ApiKey> Find(std::string_view key) const;
  // The number of keys.
  std::size_t size() const { return keys_.size(); }

 private:
  std::vector<std::shared_ptr<const ApiKey>> keys_;
};

// The file of API keys, which can be reloaded while the server runs. Thread-safe.
class AccessControl {
 public:
  // Reads and parses the file at `path`. Limits that an entry leaves out are as in `defaults`. Errors name the file.
  static Result<std::unique_ptr<AccessControl>> Load(std::string path, const QuotaLimits& defaults = {});

  // Takes keys that are given, not read.
  static Result<std::unique_ptr<AccessControl>> OfKeys(std::span<const std::string> keys, const QuotaLimits& limits);

  // Reads the file again. On error the previous keys stay in use. Keys that were given stay.
  Status Reload();
  // The number of keys in use.
  std::size_t size() const;
  // Returns the key for the value of an Authorization header, "Bearer KEY". Null: refuse the request.
  std::shared_ptr<const ApiKey> Authenticate(std::string_view authorization) const;
  // Returns the key for the key's text itself, as the header x-api-key holds it. Null: refuse the request.
  std::shared_ptr<const ApiKey> AuthenticateKey(std::string_view key) const;

 private:
  AccessControl(std::string path, const QuotaLimits& defaults, ApiKeyTable table)
      : path_(std::move(path)), defaults_(defaults), table_(std::make_shared<const ApiKeyTable>(std::move(table))) {}
  static Result<ApiKeyTable> Read(const std::string& path, const QuotaLimits& defaults);
  std::shared_ptr<const ApiKeyTable> Current() const;

  const std::string path_;  // empty: the keys were given
  const QuotaLimits defaults_;
  mutable std::mutex mutex_;
  std::shared_ptr<const ApiKeyTable> table_;
};

// Returns the API key that the gate (CallerGate) found for a request; NoKey: neither this server nor a router checks
// keys, or the route is open.
const ApiKey& CallerOf(const HttpRequest& request);
// Returns the tenant that the work on the request's texts belongs to: the API key and the tenant within it, or else the
// trusted tenant, or else the client's address.
std::string WorkTenant(const HttpRequest& request);

}  // namespace loramux
