#include "cluster/pinned_name.h"

namespace loramux {

std::optional<std::string_view> AdapterAfter(std::string_view base, std::string_view model) {
  if (base.empty() || model.size() < base.size() + 2 || !model.starts_with(base)) return std::nullopt;
  if (model[base.size()] != ':' && model[base.size()] != '|') return std::nullopt;
  return model.substr(base.size() + 1);
}

PinnedName SplitPinnedName(std::string_view model) {
  constexpr std::size_t kDigits = 64;
  if (model.size() <= kDigits + 1 || model[model.size() - kDigits - 1] != '@') return {model, {}};
  const std::string_view digest = model.substr(model.size() - kDigits);
  if (digest.find_first_not_of("0123456789abcdef") != std::string_view::npos) return {model, {}};
  return {model.substr(0, model.size() - kDigits - 1), digest};
}

}  // namespace loramux
