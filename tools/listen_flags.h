// The flags of every command that listens, `serve` and `route`, about the clients that connect.
#pragma once

#include <string>

#include "auth/quota.h"
#include "base/result.h"
#include "http/options.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// The limits of requests and connections.
void AddHttpLimitFlags(CommandLine& line, HttpServerOptions& http);

// The bound of one API key's sequences.
void AddKeyConcurrencyFlag(CommandLine& line, QuotaLimits& of_each_key, const std::string& group);

// Whether only this machine can reach the address.
bool IsLoopback(const std::string& host);

// Takes the process's limit of open files as high as it may go, and warns where that is too low for `connections`, each
// of which needs `files_each`. Error: it is too low for a single client.
Status RaiseOpenFileLimit(int connections, int files_each = 1);

}  // namespace loramux
