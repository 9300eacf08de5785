// Whether texts match a grammar over the tokenizer of single bytes, whatever their tokens are.
#pragma once

#include <span>
#include <string_view>

#include "text/grammar/byte_tokenizer_for_test.h"
#include "text/grammar/grammar.h"

namespace loramux {

// Whether the mask allows the token.
inline bool Allows(std::span<const std::uint32_t> allowed, TokenId token) {
  const auto id = static_cast<std::size_t>(token);
  return id / 32 < allowed.size() && (allowed[id / 32] >> (id % 32) & 1) != 0;
}

// Whether the grammar allows the text from end to end.
inline bool Matches(const Grammar& grammar, std::string_view text) {
  const auto matcher = *grammar.Begin();
  for (const char byte : text) {
    if (!Allows(matcher->Allowed(), TokenOfByte(byte))) return false;
    matcher->Advance(TokenOfByte(byte));
  }
  return Allows(matcher->Allowed(), kByteEos);
}

}  // namespace loramux
