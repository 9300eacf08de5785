// API keys: who may call the server, with which models, and within which limits.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/quota.h"

namespace loramux {

using Sha256 = std::array<unsigned char, 32>;
Sha256 Sha256Of(std::string_view text);

// One entry of the file of keys. The key itself is not kept.
struct ApiKey {
  std::string name;                 // for logs and limits
  Sha256 digest{};                  // of the key
  std::vector<std::string> models;  // base models and adapters: names, or prefixes that end in '*'
  QuotaLimits limits;

  bool Allows(std::string_view model) const;
};

// The keys of one file. Immutable.
class ApiKeyTable {
 public:
  // {"keys": [{"name", "key" or "key_sha256", "models": [...], "limits": {...}}]}: docs/reference/files.md describes
  // it.
  static Result<ApiKeyTable> Parse(std::string_view text);

  // Null if there is no such key. Takes the same time wherever it is in the table, and whichever of its bytes differ.
  std::shared_ptr<const ApiKey> Find(std::string_view key) const;
  std::size_t size() const { return keys_.size(); }

 private:
  std::vector<std::shared_ptr<const ApiKey>> keys_;
};

// The file of keys while the server runs. Thread-safe.
class AccessControl {
 public:
  static Result<std::unique_ptr<AccessControl>> Load(std::string path);

  // Reads the file again. On error the old keys stay in use.
  Status Reload();
  std::size_t size() const;
  // Of a request's Authorization header, "Bearer KEY". Null: refuse it.
  std::shared_ptr<const ApiKey> Authenticate(std::string_view authorization) const;

 private:
  AccessControl(std::string path, ApiKeyTable table)
      : path_(std::move(path)), table_(std::make_shared<const ApiKeyTable>(std::move(table))) {}
  static Result<ApiKeyTable> Read(const std::string& path);
  std::shared_ptr<const ApiKeyTable> Current() const;

  const std::string path_;
  mutable std::mutex mutex_;
  std::shared_ptr<const ApiKeyTable> table_;
};

}  // namespace loramux
