// The flags of `serve` that bound what clients may do: keys, quotas, TLS, sizes and times.
#pragma once

#include <CLI/CLI.hpp>

#include "server/http_options.h"
#include "server/server.h"

namespace loramux {

void AddProtectionFlags(CLI::App& command, HttpServerOptions& http, ProtectionOptions& protection);

// Takes the process's limit of open files as high as it may go, and warns where that is too low for `connections`.
void RaiseOpenFileLimit(int connections);

}  // namespace loramux
