// POST /generate, /generate_stream and /: the API of Text Generation Inference.
#pragma once

#include <cstdint>
#include <string>

#include "server/api/tgi/tgi_request.h"
#include "server/completion/dialect.h"

namespace loramux {

const Dialect& TgiDialect(TgiPath path);

// What GET /info says.
struct TgiInfo {
  std::string model_id;
  std::int64_t max_model_len = 0;  // tokens of prompt and answer together
  std::string version;             // version of this program
};
std::string TgiInfoBody(const TgiInfo& info);

}  // namespace loramux
