// Predicts the output length of a request from the adapter's name and the prompt's text: the length proxy and its
// tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "model/length_proxy.h"
#include "text/tokenizer.h"

namespace loramux {

// Thread-safe. Guess takes a millisecond or more: do not call it on the engine's thread or on I/O threads.
class LengthGuesser {
 public:
  // Predicts nothing.
  LengthGuesser() = default;
  // Reads config.json, model.safetensors and tokenizer.json from `directory`. Errors name the file. A tokenizer with
  // more tokens than the proxy's vocabulary is an error.
  static Result<LengthGuesser> Load(const std::filesystem::path& directory);

  // False: there is never a prediction.
  bool guesses() const { return reader_.has_value(); }
  // Returns the predicted length in tokens, at least 1; 0 if there is no prediction (the text is not UTF-8). `adapter`
  // is the adapter's name, empty for the base model. Reads only the beginning of a long prompt, up to the proxy's
  // number of positions. REQUIRES: guesses().
  std::int32_t Guess(std::string_view adapter, std::string_view prompt) const;
  // The most bytes of a prompt that Guess reads. As every token of the base model has at least one byte,
  // a prefix of that many tokens contains them. REQUIRES: guesses().
  std::size_t MaxPromptBytes() const;

 private:
  struct Reader {
    LengthProxy proxy;
    Tokenizer tokenizer;
  };
  std::optional<Reader> reader_;
};

}  // namespace loramux
