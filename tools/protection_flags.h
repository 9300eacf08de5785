// The flags of `serve` that bound what clients may do: keys, quotas, TLS, sizes and times.
#pragma once

#include <string>

#include "http/options.h"
#include "server/server.h"
#include "tools/command_line/command_line.h"

namespace loramux {

void AddProtectionFlags(CommandLine& line, HttpServerOptions& http, ProtectionOptions& protection);

// The limits of requests and connections, which AddProtectionFlags adds too.
void AddHttpLimitFlags(CommandLine& line, HttpServerOptions& http);

// The bound of one API key's sequences, which AddProtectionFlags adds too.
void AddKeyConcurrencyFlag(CommandLine& line, QuotaLimits& of_each_key, const std::string& group);

// Takes the process's limit of open files as high as it may go, and warns where that is too low for `connections`, each
// of which needs `files_each`. Error: it is too low for a single client.
Status RaiseOpenFileLimit(int connections, int files_each = 1);

}  // namespace loramux
