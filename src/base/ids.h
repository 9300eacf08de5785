// Strong identifiers: a StrongId does not convert by accident to another kind of id or to an integer.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>

namespace loramux {

template <typename Tag, typename Rep>
// An id with the representation `Rep`; each `Tag` makes a distinct type.
struct StrongId {
  Rep value{};
  constexpr auto operator<=>(const StrongId&) const = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << +id.value; }
};

// A token of the model's vocabulary. A plain integer on purpose: kernels and the tokenizer take arrays of it.
using TokenId = std::int32_t;

// One sequence that the engine generates. Ids are assigned in order of arrival and never reused.
using RequestId = StrongId<struct RequestIdTag, std::uint64_t>;

// One immutable version of an adapter's weights, numbered in order of registration; 0 is the base model without an
// adapter. A reload creates a new generation, so the weights of a running request never change.
using AdapterGeneration = StrongId<struct AdapterGenerationTag, std::uint32_t>;
inline constexpr AdapterGeneration kBaseModel{0};

}  // namespace loramux

template <typename Tag, typename Rep>
struct std::hash<loramux::StrongId<Tag, Rep>> {
  std::size_t operator()(loramux::StrongId<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value); }
};
