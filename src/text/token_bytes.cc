#include "text/token_bytes.h"

#include <charconv>
#include <cstdint>
#include <optional>

namespace loramux {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
// Byte-level vocabularies write a byte that is no visible character of Latin-1 as one of the characters from here on.
constexpr std::uint32_t kFirstStandIn = 256;

bool StandsForItself(std::uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// The byte that a character of a byte-level vocabulary stands for.
std::optional<char> ByteOf(std::uint32_t character) {
  if (character < kFirstStandIn) {
    if (!StandsForItself(character)) return std::nullopt;
    return static_cast<char>(character);
  }
  std::uint32_t rest = character - kFirstStandIn;
  for (std::uint32_t byte = 0; byte < kFirstStandIn; ++byte) {
    if (!StandsForItself(byte) && rest-- == 0) return static_cast<char>(byte);
  }
  return std::nullopt;
}

// Takes one character of at most two bytes off the text. Characters of byte-level vocabularies have no more.
std::optional<std::uint32_t> TakeCharacter(std::string_view& text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t size = first < 0x80 ? 1 : 2;
  if (size == 2 && ((first & 0xE0) != 0xC0 || text.size() < 2)) return std::nullopt;
  const std::uint32_t character =
      size == 1 ? first : ((first & 0x1Fu) << 6 | (static_cast<unsigned char>(text[1]) & 0x3Fu));
  text.remove_prefix(size);
  return character;
}

// "Ã©" -> the two bytes of "é". nullopt: not the form of a byte-level vocabulary.
std::optional<std::string> FromByteLevel(std::string_view piece) {
  std::string bytes;
  while (!piece.empty()) {
    const auto character = TakeCharacter(piece);
    const auto byte = character ? ByteOf(*character) : std::nullopt;
    if (!byte) return std::nullopt;
    bytes += *byte;
  }
  return bytes;
}

// "<0xE9>" -> the byte.
std::optional<char> FromByteToken(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
  if (error != std::errc() || end != piece.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

}  // namespace

std::string BytesOfPiece(std::string_view piece, std::string_view text) {
  if (text.find(kReplacement) == std::string_view::npos) return std::string(text);
  if (const auto byte = FromByteToken(piece)) return std::string(1, *byte);
  return FromByteLevel(piece).value_or(std::string(text));
}

std::string TokenBytes(const Tokenizer& tokenizer, TokenId id, std::string_view text) {
  if (text.find(kReplacement) == std::string_view::npos) return std::string(text);
  return BytesOfPiece(tokenizer.IdToToken(id), text);
}

}  // namespace loramux
