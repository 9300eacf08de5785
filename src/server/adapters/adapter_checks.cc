#include "server/adapters/adapter_checks.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>
#include <sys/stat.h>

#include "base/adapter_files.h"
#include "formats/adapter_folder.h"

namespace loramux {

namespace {

// A head's labels lie in config.json.
constexpr std::array kStampedFiles = {kAdapterConfigFile, kAdapterTensorFiles[0], kAdapterTensorFiles[1],
                                      "config.json"};

}  // namespace

AdapterChecks::Stamp AdapterChecks::StampOf(const std::filesystem::path& path) {
  Stamp stamp{};
  std::size_t at = 0;
  std::vector<std::filesystem::path> files = {GgufFileOfAdapter(path).value_or(path)};
  for (const char* file : kStampedFiles) files.push_back(path / file);
  for (const std::filesystem::path& file : files) {
    struct stat found {};
    if (::stat(file.c_str(), &found) != 0) found = {};
    for (const auto value : {static_cast<std::int64_t>(found.st_dev), static_cast<std::int64_t>(found.st_ino),
                             static_cast<std::int64_t>(found.st_size), static_cast<std::int64_t>(found.st_mtim.tv_sec),
                             static_cast<std::int64_t>(found.st_mtim.tv_nsec)}) {
      stamp[at++] = value;
    }
  }
  return stamp;
}

// Two threads may check the same adapter at one time; both outcomes are right.
Result<std::int64_t> AdapterChecks::ClassesOf(const std::string& name, const std::filesystem::path& path) {
  const Stamp stamp = StampOf(path);
  {
    const std::lock_guard lock(mutex_);
    const auto found = outcomes_.find(name);
    if (found != outcomes_.end() && found->second.stamp == stamp) return found->second.classes;
  }
  Result<std::int64_t> classes = check_(name, path);
  const std::lock_guard lock(mutex_);
  outcomes_.insert_or_assign(name, Outcome{stamp, classes});
  return classes;
}

std::optional<std::string> AdapterChecks::WhyBroken(const std::string& name, const std::filesystem::path& path) {
  auto classes = ClassesOf(name, path);
  return classes.ok() ? std::nullopt : std::optional(std::move(classes).error().message);
}

void AdapterChecks::KeepOnly(const std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  std::erase_if(outcomes_,
                [&](const auto& entry) { return !std::binary_search(names.begin(), names.end(), entry.first); });
}

std::size_t AdapterChecks::size() const {
  const std::lock_guard lock(mutex_);
  return outcomes_.size();
}

}  // namespace loramux
