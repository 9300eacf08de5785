// Which adapters of a directory are broken, and which have a head for classes, before a request asks for them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace loramux {

// Remembers the outcome of a check until the adapter's files change. Thread-safe; may block on the disk.
class AdapterChecks {
 public:
  // Returns how many classes the adapter's head has, 0 without one, or the reason why the adapter is broken.
  using Check = std::function<Result<std::int64_t>(const std::string& name, const std::filesystem::path& path)>;
  explicit AdapterChecks(Check check) : check_(std::move(check)) {}

  // Returns what the check says of the adapter in `path`.
  Result<std::int64_t> ClassesOf(const std::string& name, const std::filesystem::path& path);
  // Returns the reason why the adapter in `path` is broken; nullopt: it passes the check.
  std::optional<std::string> WhyBroken(const std::string& name, const std::filesystem::path& path);
  // Forgets all adapters but those of `names`, which must be sorted.
  void KeepOnly(const std::vector<std::string>& names);
  // Returns how many outcomes are remembered.
  std::size_t size() const;

 private:
  // Device, inode, size and time of the files of an adapter.
  using Stamp = std::array<std::int64_t, 25>;
  struct Outcome {
    Stamp stamp{};
    Result<std::int64_t> classes;
  };
  static Stamp StampOf(const std::filesystem::path& path);

  const Check check_;
  mutable std::mutex mutex_;
  std::map<std::string, Outcome> outcomes_;
};

}  // namespace loramux
