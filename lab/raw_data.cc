#include "lab/raw_data.h"

#include <fmt/format.h>

#include "hub/file_digest.h"

namespace loramux {

extern const char* const kCommit;  // written at each build by commit.cmake

std::string RawDataLine(std::string_view raw) {
  return fmt::format("Raw data: SHA-256 `{}`, made at commit `{}`.", Sha256Hex(raw), kCommit);
}

}  // namespace loramux
