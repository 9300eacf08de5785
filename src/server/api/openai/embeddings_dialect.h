// POST /v1/embeddings in OpenAI's form, and /classify, /score and /rerank in vLLM's: completions of no token that want
// what is made of hidden states.
#pragma once

#include <span>
#include <string>

#include "server/completion/dialect.h"

namespace loramux {

const Dialect& EmbeddingsDialect();
const Dialect& ClassifyDialect();
const Dialect& ScoreDialect();
const Dialect& RerankDialect();

// Returns an embedding as JSON: an array of numbers, or a string with base64 of little-endian float32. REQUIRES: all
// numbers are finite.
std::string EmbeddingNumbers(std::span<const float> embedding);
std::string EmbeddingBase64(std::span<const float> embedding);

}  // namespace loramux
