// The flags of `serve` that bound what clients may do: keys, quotas, TLS, sizes and times.
#pragma once

#include "http/options.h"
#include "server/server.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// Besides those of listen_flags.h about HTTP, which it adds too.
void AddProtectionFlags(CommandLine& line, HttpServerOptions& http, ProtectionOptions& protection);

}  // namespace loramux
