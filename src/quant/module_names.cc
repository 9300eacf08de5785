#include "quant/module_names.h"

#include <cstddef>
#include <cstdint>

#include <re2/re2.h>

#include "base/message.h"

namespace loramux {
namespace {

// A model of 1,024 layers has 7,168 linear layers.
constexpr std::size_t kMostNames = 16384;
constexpr std::size_t kMostNameBytes = 1024;
constexpr std::size_t kMostExpressions = 64;
constexpr std::int64_t kExpressionMemory = std::int64_t{64} << 10;

}  // namespace

ModuleNames::~ModuleNames() = default;

Result<std::shared_ptr<const ModuleNames>> ModuleNames::Compile(const std::vector<std::string>& names,
                                                                const std::string& label) {
  if (names.size() > kMostNames) {
    return InvalidArgument(label + ": expected at most " + std::to_string(kMostNames) + " names, found " +
                           std::to_string(names.size()));
  }
  std::shared_ptr<ModuleNames> list(new ModuleNames);
  for (const std::string& name : names) {
    if (name.size() > kMostNameBytes) {
      return InvalidArgument(label + ": expected names of at most " + std::to_string(kMostNameBytes) +
                             " bytes, found " + Quote(name));
    }
    if (name == "Linear") list->all_linear_ = true;
    if (!name.starts_with("re:")) {
      list->exact_.insert(name);
      continue;
    }
    RE2::Options options;
    options.set_log_errors(false);
    options.set_max_mem(kExpressionMemory);
    auto pattern = std::make_unique<const RE2>(std::string_view(name).substr(3), options);
    if (!pattern->ok()) {
      return Unsupported(label + ": the pattern " + Quote(name) + " cannot be matched in bounded time (" +
                         Printable(pattern->error()) + "); name the modules instead");
    }
    list->patterns_.push_back(std::move(pattern));
    if (list->patterns_.size() > kMostExpressions) {
      return InvalidArgument(label + ": expected at most " + std::to_string(kMostExpressions) +
                             " patterns (re:...); name the modules instead");
    }
  }
  return std::shared_ptr<const ModuleNames>(std::move(list));
}

bool ModuleNames::Names(std::string_view module) const {
  if (exact_.contains(std::string(module))) return true;
  for (const auto& pattern : patterns_) {
    if (pattern->Match({module.data(), module.size()}, 0, module.size(), RE2::ANCHOR_START, nullptr, 0)) return true;
  }
  return false;
}

}  // namespace loramux
