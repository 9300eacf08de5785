// POST /inference/v1/generate: vLLM's API of tokens to tokens.
#pragma once

#include "server/completion/dialect.h"

namespace loramux {

const Dialect& TokensDialect();

}  // namespace loramux
