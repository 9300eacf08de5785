// Strong identifiers. A StrongId never converts to another kind of id or to a bare integer by accident.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>

namespace loramux {

template <typename Tag, typename Rep>
struct StrongId {
  Rep value{};
  constexpr auto operator<=>(const StrongId&) const = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << +id.value; }
};

// A token of the model's vocabulary. Plain integer on purpose: arrays of it are handed to kernels and to the tokenizer.
using TokenId = std::int32_t;

// One sequence that the engine generates. Assigned in arrival order, never reused.
using RequestId = StrongId<struct RequestIdTag, std::uint64_t>;

// One immutable version of an adapter's weights, in the order of registration; 0 is the base model without an adapter.
// A reload makes a new generation, so a running request never sees weights change under it.
using AdapterGeneration = StrongId<struct AdapterGenerationTag, std::uint32_t>;
inline constexpr AdapterGeneration kBaseModel{0};

}  // namespace loramux

template <typename Tag, typename Rep>
struct std::hash<loramux::StrongId<Tag, Rep>> {
  std::size_t operator()(loramux::StrongId<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value); }
};
