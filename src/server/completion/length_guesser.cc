#include "server/completion/length_guesser.h"

#include <algorithm>
#include <string>
#include <utility>

namespace loramux {
namespace {

// Upper estimate of a token's bytes: this many bytes per position fill all positions in nearly all texts.
constexpr std::size_t kBytesPerPosition = 16;

// Returns at most `bytes` from the beginning, in whole characters.
std::string_view Beginning(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

}  // namespace

Result<LengthGuesser> LengthGuesser::Load(const std::filesystem::path& directory) {
  ASSIGN_OR_RETURN(LengthProxy proxy, LengthProxy::Load(directory));
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(directory));
  if (tokenizer.VocabSize() > proxy.config().vocab_size) {
    return InvalidArgument((directory / "tokenizer.json").string() + " has token ids up to " +
                           std::to_string(tokenizer.VocabSize() - 1) + ", but config.json says vocab_size " +
                           std::to_string(proxy.config().vocab_size));
  }
  LengthGuesser guesser;
  guesser.reader_.emplace(std::move(proxy), std::move(tokenizer));
  return guesser;
}

std::size_t LengthGuesser::MaxPromptBytes() const {
  return kBytesPerPosition * static_cast<std::size_t>(reader_->proxy.config().max_position);
}

std::int32_t LengthGuesser::Guess(std::string_view adapter, std::string_view prompt) const {
  std::string text(adapter);
  text += '\n';
  text += Beginning(prompt, MaxPromptBytes());
  const auto ids = reader_->tokenizer.Encode(text, /*add_special_tokens=*/true);
  return ids.ok() && !ids->empty() ? reader_->proxy.Guess(*ids) : 0;
}

}  // namespace loramux
