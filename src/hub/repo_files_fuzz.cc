// Fuzzes ParseRepoFiles and ParseRepoName: what they accept names no other folder.
#include <string_view>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "hub/repo_files.h"
#include "hub/repo_name.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto repo = loramux::ParseRepoName(text)) {
    CHECK(repo->full().find("..") == std::string::npos || repo->full().find("/.") == std::string::npos);
    CHECK(repo->revision.find('/') == std::string::npos);
  }
  const auto files = loramux::ParseRepoFiles(text);
  if (!files.ok()) return 0;
  CHECK(loramux::IsCommit(files->commit));
  for (const loramux::RepoFile& file : files->files) {
    CHECK(file.name.front() != '.');
    CHECK(file.name.find('/') == std::string::npos || file.name.substr(1) == "_Pooling/config.json");
    CHECK(file.digest.find_first_not_of("0123456789abcdef") == std::string::npos);
    CHECK(file.bytes >= 0);
  }
  for (const loramux::RepoFile& file : files->gguf) {
    CHECK(file.name.front() != '.' && file.name.find('/') == std::string::npos);
    CHECK(file.digest.find_first_not_of("0123456789abcdef") == std::string::npos);
    CHECK(file.bytes >= 0);
  }
  return 0;
}
