// What a model's name says beside the name: the base model in front of it, and the content that it must have.
#pragma once

#include <optional>
#include <string_view>

namespace loramux {

// The parts of "NAME@DIGEST".
struct PinnedName {
  std::string_view name;
  std::string_view digest;  // 64 hexadecimal digits in lower case (AdapterFile::digest); empty: none is pinned
};

// Returns the adapter of "BASE:ADAPTER" (SGLang) or "BASE|ADAPTER" (Dynamo), as a part of `model`; nullopt: it is
// neither.
std::optional<std::string_view> AdapterAfter(std::string_view base, std::string_view model);

// Returns the parts, which point into `model`. A text without a digest is a name as a whole.
PinnedName SplitPinnedName(std::string_view model);

}  // namespace loramux
