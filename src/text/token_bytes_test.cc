#include "text/token_bytes.h"

#include <string>

#include <gtest/gtest.h>

namespace loramux::token_bytes_test {
namespace {

const std::string kReplacement = "\xEF\xBF\xBD";

TEST(TokenBytes, OfWholeCharactersAreThoseOfTheText) {
  EXPECT_EQ(BytesOfPiece("Ġthe", " the"), " the");
  EXPECT_EQ(BytesOfPiece("<0x41>", "A"), "A");
  EXPECT_EQ(BytesOfPiece("", ""), "");
}

TEST(TokenBytes, OfByteTokens) {
  EXPECT_EQ(BytesOfPiece("<0xE9>", kReplacement), "\xE9");
  EXPECT_EQ(BytesOfPiece("<0xff>", kReplacement), "\xFF");
}

TEST(TokenBytes, OfByteLevelPieces) {
  EXPECT_EQ(BytesOfPiece("Ã", kReplacement), "\xC3");
  EXPECT_EQ(BytesOfPiece("ĠðŁ", " " + kReplacement), " \xF0\x9F");
  EXPECT_EQ(BytesOfPiece("ï¿½", kReplacement), kReplacement);  // the character itself
}

// Every byte has a form of its own: those that are not visible in Latin-1 follow each other from U+0100 on.
TEST(TokenBytes, EveryByteHasAForm) {
  int stand_in = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    const int character = visible ? byte : stand_in++;
    std::string piece(1, static_cast<char>(character));
    if (character >= 0x80) {
      piece = {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
    }
    EXPECT_EQ(BytesOfPiece(piece, kReplacement), std::string(1, static_cast<char>(byte))) << byte;
  }
  EXPECT_EQ(stand_in, 256 + 68);
}

TEST(TokenBytes, OfOtherPiecesAreThoseOfTheText) {
  EXPECT_EQ(BytesOfPiece(kReplacement, kReplacement), kReplacement);
  EXPECT_EQ(BytesOfPiece("\xC3", kReplacement), kReplacement);
  EXPECT_EQ(BytesOfPiece("日", kReplacement), kReplacement);
}

}  // namespace
}  // namespace loramux::token_bytes_test
