// Guesses how long an answer gets from the adapter's name and the prompt's text: the length proxy with its tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/result.h"
#include "model/length_proxy.h"
#include "text/tokenizer.h"

namespace loramux {

// Thread-safe. Takes a millisecond or more of the caller's thread: not for the engine's or one that serves connections.
class LengthGuesser {
 public:
  // Reads config.json, model.safetensors and tokenizer.json. Errors name the file; a tokenizer with more tokens than
  // the model has is one.
  static Result<LengthGuesser> Load(const std::filesystem::path& directory);

  // In tokens, at least 1; 0: it cannot tell (text that is not UTF-8). `adapter`: its name, empty for the base model.
  // Of a long prompt only the beginning is read, as much as the proxy has positions.
  std::int32_t Guess(std::string_view adapter, std::string_view prompt) const;
  // So much of a prompt's beginning is read at most; a prefix of so many tokens of the base model has it.
  std::size_t MaxPromptBytes() const;

 private:
  LengthGuesser(LengthProxy proxy, Tokenizer tokenizer) : proxy_(std::move(proxy)), tokenizer_(std::move(tokenizer)) {}
  LengthProxy proxy_;
  Tokenizer tokenizer_;
};

}  // namespace loramux
