#include "formats/adapter_folder.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/adapter_files.h"
#include "base/message.h"
#include "formats/gguf_file.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

constexpr int kMostNames = 4096;          // entries of a folder that are looked at
constexpr std::size_t kNamedFolders = 3;  // names of folders that a message lists

struct Names {
  std::vector<std::string> adapters;  // sub-folders that hold one
  std::int64_t last_step = -1;        // the largest N of a folder checkpoint-N; -1: there is none
  bool only_checkpoints = true;       // all `adapters` are named checkpoint-N
  bool shards = false, mlx = false, mlx_npz = false, model = false;
  std::vector<fs::path> gguf;
};

// The N of "checkpoint-N"; -1: another name.
std::int64_t StepOf(std::string_view name) {
  constexpr std::string_view kPrefix = "checkpoint-";
  if (!name.starts_with(kPrefix)) return -1;
  const std::string_view digits = name.substr(kPrefix.size());
  constexpr std::size_t kMostDigits = 15;
  const bool number = !digits.empty() && digits.size() <= kMostDigits &&
                      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  return number ? std::stoll(std::string(digits)) : -1;
}

void Look(const fs::path& path, Names& names) {
  std::error_code ignored;
  const std::string name = path.filename().string();
  if (fs::is_directory(path, ignored)) {
    if (!fs::exists(path / "adapter_config.json", ignored)) return;
    const std::int64_t step = StepOf(name);
    names.only_checkpoints = names.only_checkpoints && step >= 0;
    names.last_step = std::max(names.last_step, step);
    names.adapters.push_back(name);
    return;
  }
  names.shards |=
      name.starts_with("adapter_model") && (name.ends_with(".index.json") || name.find("-of-") != name.npos);
  names.mlx_npz |= name == "adapters.npz";
  names.mlx |= name == "adapters.safetensors";
  if (IsGgufPath(path)) names.gguf.push_back(path);
  names.model |= name == "config.json";
}

Names LookAt(const fs::path& directory) {
  Names names;
  std::error_code error;
  int looked = 0;
  for (fs::directory_iterator it(directory, error), end; !error && it != end && looked < kMostNames; ++looked) {
    Look(it->path(), names);
    it.increment(error);
  }
  return names;
}

std::string HintOfSubFolders(Names names) {
  if (names.only_checkpoints) {
    return "it holds the checkpoints of a training: give one of them, such as checkpoint-" +
           std::to_string(names.last_step) + ", the last";
  }
  std::sort(names.adapters.begin(), names.adapters.end());
  std::string list;
  for (std::size_t i = 0; i < std::min(names.adapters.size(), kNamedFolders); ++i) {
    list += (i == 0 ? "" : ", ") + Quote(names.adapters[i]);
  }
  if (names.adapters.size() > kNamedFolders) list += ", ...";
  return "its sub-folders hold adapters (" + list + "): give one of them, or all by --adapter-dir";
}

}  // namespace

std::optional<fs::path> GgufFileOfAdapter(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return IsGgufPath(path) ? std::optional(path) : std::nullopt;
  if (fs::exists(path / kAdapterConfigFile, error) || fs::exists(path / "config.json", error)) return std::nullopt;
  Names names = LookAt(path);
  return names.gguf.size() == 1 ? std::optional(std::move(names.gguf.front())) : std::nullopt;
}

bool HoldsAdapter(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path / kAdapterConfigFile, ignored)) return true;
  if (!fs::is_directory(path, ignored) || fs::exists(path / "config.json", ignored)) return false;
  return !WhatAdapterFolderHolds(path).empty();
}

std::string WhatAdapterFolderHolds(const fs::path& directory) {
  Names names = LookAt(directory);
  if (names.shards) {
    return "the adapter is saved in several files, and their index is missing: copy "
           "adapter_model.safetensors.index.json "
           "too";
  }
  if (names.mlx) {
    return "adapters.safetensors is of mlx-lm, which writes its settings beside it as adapter_config.json: copy that "
           "file "
           "too";
  }
  if (names.mlx_npz) {
    return "adapters.npz is of an early mlx-lm: write it again by `mx.save_safetensors(\"adapters.safetensors\", "
           "dict(mx.load(\"adapters.npz\")))`";
  }
  if (!names.adapters.empty()) return HintOfSubFolders(std::move(names));
  if (!names.gguf.empty()) {
    return "it holds " + std::to_string(names.gguf.size()) +
           " GGUF files: name one of them, as FOLDER/FILE.gguf, or give each adapter a folder";
  }
  if (names.model)
    return "it holds a whole model (config.json), not an adapter: serve it as the base model of a server";
  return {};
}

}  // namespace loramux
