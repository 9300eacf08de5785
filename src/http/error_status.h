// How errors become responses: their status, and who writes their bodies.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// Returns the HTTP status for an error: 400, 404, 429, 500 or 503.
int HttpStatus(const Error& error);

// Writes the body of an error as JSON, in the form of an API. `param`: the field concerned; empty: none. Thread-safe.
using ErrorForm = std::function<std::string(int status, std::string_view message, std::string_view param)>;

}  // namespace loramux
