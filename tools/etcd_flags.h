// The flags of etcd, for servers and routers.
#pragma once

#include <string>

#include "etcd/etcd_client.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// `help` says what the command does with --etcd.
void AddEtcdFlags(CommandLine& line, EtcdOptions& etcd, const std::string& help);

}  // namespace loramux
