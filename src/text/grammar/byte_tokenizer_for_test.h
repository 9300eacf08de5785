// A tokenizer whose tokens are single bytes: id 2 is the byte 0; 0 and 1 begin and end a text.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace loramux {

inline constexpr TokenId kByteEos = 1;
inline constexpr TokenId TokenOfByte(char byte) { return static_cast<unsigned char>(byte) + 2; }

inline Tokenizer MakeByteTokenizer() {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string vocabulary = R"("<s>":0,"</s>":1)";
  for (std::size_t byte = 0; byte < 256; ++byte) {
    vocabulary += ",\"<0x" + std::string{kDigits[byte / 16], kDigits[byte % 16]} + ">\":" + std::to_string(byte + 2);
  }
  const std::string flags = R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";
  const std::string json = R"({"model":{"type":"BPE","byte_fallback":true,"merges":[],"vocab":{)" + vocabulary +
                           R"(}},"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"}]},)"
                           R"("added_tokens":[{"id":0,"content":"<s>",)" +
                           flags + R"(,{"id":1,"content":"</s>",)" + flags + "]}";
  auto tokenizer = Tokenizer::Parse(json, "byte tokenizer");
  return std::move(tokenizer).value();
}

}  // namespace loramux
