#include "server/adapters/adapter_finder.h"

#include <utility>

namespace loramux {
namespace {

constexpr std::size_t kMaxModelNameInError = 256;

}  // namespace

std::string WithoutPath(std::string message, std::string_view path, std::string_view name) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  if (path.size() <= 1) return message;
  for (std::size_t at = message.find(path); at != std::string::npos; at = message.find(path, at + name.size())) {
    message.replace(at, path.size(), name);
  }
  return message;
}

Result<std::shared_ptr<const AdapterVersion>> MissingAdapter::Find(std::string_view name) {
  name_ = name;
  return UnknownModel(name_);
}

std::vector<OfferedAdapter> MissingAdapter::Offered() {
  return names_ == nullptr ? std::vector<OfferedAdapter>() : names_->Offered();
}

Result<std::shared_ptr<const AdapterVersion>> MissingAdapter::Compose(const std::vector<WeightedAdapter>& parts) {
  parts_ = parts;
  return Unavailable("The adapters of the request are not added up yet.");
}

Status MissingAdapter::Fetch(AdapterFinder& finder) {
  const std::string name = std::exchange(name_, {});
  const std::vector<WeightedAdapter> parts = std::exchange(parts_, {});
  const auto found = name.empty() ? finder.Compose(parts) : finder.Find(name);
  return found.ok() ? Status(Ok{}) : Status(found.error());
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
