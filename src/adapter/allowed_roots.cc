#include "adapter/allowed_roots.h"

#include <algorithm>
#include <climits>
#include <utility>

namespace loramux {
namespace {

namespace fs = std::filesystem;

Error Outside(const std::string& path) {
  return InvalidArgument("lora_path '" + path +
                             "' is not under an allowed root; start the server with "
                             "--allowed-adapter-root DIR for each directory that adapters may be loaded from",
                         "lora_path");
}

}  // namespace

Result<AllowedRoots> AllowedRoots::Create(const std::vector<fs::path>& roots) {
  AllowedRoots allowed;
  for (const fs::path& root : roots) {
    std::error_code error;
    fs::path canonical = fs::canonical(root, error);
    if (error || !fs::is_directory(canonical, error)) {
      return NotFound("--allowed-adapter-root: '" + root.string() + "' is not a directory", "--allowed-adapter-root");
    }
    allowed.roots_.push_back(std::move(canonical));
  }
  return allowed;
}

bool AllowedRoots::Contains(const fs::path& canonical) const {
  return std::any_of(roots_.begin(), roots_.end(), [&](const fs::path& root) {
    return std::mismatch(root.begin(), root.end(), canonical.begin(), canonical.end()).first == root.end();
  });
}

Result<fs::path> AllowedRoots::Resolve(const std::string& path) const {
  if (path.empty() || path.size() >= PATH_MAX || path.find('\0') != std::string::npos) {
    return InvalidArgument("lora_path: expected a path of 1 to " + std::to_string(PATH_MAX - 1) +
                               " bytes without NUL, found " + std::to_string(path.size()) + " bytes",
                           "lora_path");
  }
  std::error_code error;
  const fs::path known = fs::weakly_canonical(path, error);  // the existing part is resolved, the rest is kept
  if (error || !Contains(known)) return Outside(path);       // the same error whether it exists or not
  fs::path canonical = fs::canonical(path, error);
  if (error) return NotFound("lora_path '" + path + "': no such adapter directory", "lora_path");
  if (!Contains(canonical)) return Outside(path);
  return canonical;
}

Status AllowedRoots::CheckOpened(const fs::path& real_path) const {
  if (Contains(real_path)) return Ok{};
  return InvalidArgument(
      "a file of the adapter is a link to a place that is not under an allowed root; copy the file, or "
      "allow its directory with --allowed-adapter-root",
      "lora_path");
}

}  // namespace loramux
