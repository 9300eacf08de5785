#include "engine/successors.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace loramux {
namespace {

// What was decided when a request began, and stays: where its adapter begins to act, how its text becomes tokens, and
// whether it gets tokens at all.
std::optional<Error> WhyNotAfter(const AdapterVersion& old, const AdapterVersion& next) {
  std::string what;
  if (old.file.config.invocation_tokens != next.file.config.invocation_tokens)
    what = "it begins to act at other tokens (alora_invocation_tokens)";
  else if (old.text_digest != next.text_digest)
    what = "its tokenizer, chat template or generation config is another one";
  else if (old.file.head.has_value() != next.file.head.has_value())
    what = "only one of the two generates text";
  if (what.empty()) return std::nullopt;
  return Unavailable("The adapter `" + old.name +
                     "` was loaded anew, and a request that has begun cannot go on with it: " + what +
                     ". Send the request again.");
}

}  // namespace

void Successors::Set(const AdapterVersion& old, const std::shared_ptr<const AdapterVersion>& next,
                     const AdapterRegistry& registry) {
  CHECK(next == nullptr || next->generation != old.generation);
  std::erase_if(by_old_, [&](const auto& entry) { return registry.Find(entry.first) == nullptr; });
  Successor successor{.next = next, .ends = next == nullptr, .why = std::nullopt};
  if (next != nullptr) successor.why = WhyNotAfter(old, *next);
  successor.ends |= successor.why.has_value();
  for (auto& [before, known] : by_old_) {
    const auto version = known.next.lock();
    if (!known.ends && version != nullptr && version->generation == old.generation) known = successor;
  }
  by_old_.insert_or_assign(old.generation, std::move(successor));
}

const Successor* Successors::Of(AdapterGeneration generation) const {
  const auto found = by_old_.find(generation);
  return found == by_old_.end() ? nullptr : &found->second;
}

const Successor* Successors::Of(const AdapterVersion& version) const {
  if (by_old_.empty()) return nullptr;
  if (const Successor* const own = Of(version.generation)) return own;
  for (const auto& part : version.parts) {
    const Successor* const of_part = Of(part->generation);
    if (of_part != nullptr && of_part->ends && !of_part->why) return of_part;
  }
  return nullptr;
}

}  // namespace loramux
