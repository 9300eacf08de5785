// POST /v1/responses: OpenAI's Responses API, without its stored state.
#pragma once

#include "server/completion/dialect.h"

namespace loramux {

const Dialect& ResponsesDialect();

}  // namespace loramux
