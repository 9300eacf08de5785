// The name of a model with the content that it must have.
#pragma once

#include <string_view>

namespace loramux {

// The parts of "NAME@DIGEST".
struct PinnedName {
  std::string_view name;
  std::string_view digest;  // 64 hexadecimal digits in lower case (AdapterFile::digest); empty: none is pinned
};

// Returns the parts, which point into `model`. A text without a digest is a name as a whole.
PinnedName SplitPinnedName(std::string_view model);

}  // namespace loramux
