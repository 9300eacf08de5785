// OpenAI's POST /v1/chat/completions and /v1/completions.
#pragma once

#include "server/completion/dialect.h"

namespace loramux {

const Dialect& OpenAiDialect(Endpoint endpoint);

}  // namespace loramux
