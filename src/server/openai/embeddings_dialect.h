// POST /v1/embeddings: OpenAI's form with vLLM's additions, as a completion of no token that wants embeddings.
#pragma once

#include <span>
#include <string>

#include "server/openai/dialect.h"

namespace loramux {

const Dialect& EmbeddingsDialect();

// Returns an embedding as JSON: an array of numbers, or a string with base64 of little-endian float32. REQUIRES: all
// numbers are finite.
std::string EmbeddingNumbers(std::span<const float> embedding);
std::string EmbeddingBase64(std::span<const float> embedding);

}  // namespace loramux
