#include "server/adapters/adapter_finder.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxModelNameInError = 256;

}  // namespace

Error UnknownModel(std::string_view name) {
  const bool too_long = name.size() > kMaxModelNameInError;
  const std::string shown = std::string(name.substr(0, kMaxModelNameInError)) + (too_long ? "..." : "");
  return NotFound("The model `" + shown + "` does not exist.", "model");
}

}  // namespace loramux
