// POST /tokenize and /detokenize (vLLM's formats): convert text to token ids and back, as the completion endpoints do.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/completion/text_answers.h"

namespace loramux {

// Parse the bodies of the two (TextParser).
Result<TextQuestion> Tokenize(const ServingContext& context, const TextLimits& limits, std::string_view body);
Result<TextQuestion> Detokenize(const ServingContext& context, const TextLimits& limits, std::string_view body);

// The most characters of a token id in JSON, with white space.
inline constexpr std::size_t kJsonCharactersPerId = 12;

}  // namespace loramux
