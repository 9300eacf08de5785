// The bytes of single tokens, which may be a part of a character.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace loramux {

// Returns the bytes that the token adds to a text, where `text` is what it decodes to by itself, with U+FFFD for parts
// of characters. Knows the forms of byte-level vocabularies ("Ã©") and of byte tokens ("<0xE9>"). Any other token
// stands for `text`.
std::string TokenBytes(const Tokenizer& tokenizer, TokenId id, std::string_view text);

// The same for the stored form of a token (Tokenizer::IdToToken).
std::string BytesOfPiece(std::string_view piece, std::string_view text);

}  // namespace loramux
