#include "server/adapters/adapter_finder.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxModelNameInError = 256;

class RegisteredOnly final : public AdapterFinder {
 public:
  Result<std::shared_ptr<const AdapterVersion>> Find(std::string_view name) override { return UnknownModel(name); }
  std::vector<OfferedAdapter> Offered() override { return {}; }
};

}  // namespace

std::string WithoutPath(std::string message, std::string_view path, std::string_view name) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  if (path.size() <= 1) return message;
  for (std::size_t at = message.find(path); at != std::string::npos; at = message.find(path, at + name.size())) {
    message.replace(at, path.size(), name);
  }
  return message;
}

AdapterFinder& NoFinder() {
  static RegisteredOnly finder;
  return finder;
}

Result<std::shared_ptr<const AdapterVersion>> AdapterFinder::Compose(const std::vector<WeightedAdapter>&) {
  return Unsupported("This server takes one adapter in a request, with weight 1.");
}

Error UnknownModel(std::string_view name) {
  const bool too_long = name.size() > kMaxModelNameInError;
  const std::string shown = std::string(name.substr(0, kMaxModelNameInError)) + (too_long ? "..." : "");
  return NotFound("The model `" + shown + "` does not exist.", "model");
}

}  // namespace loramux
