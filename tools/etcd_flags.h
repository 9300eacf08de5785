// The flags of etcd, for servers and routers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "etcd/etcd_client.h"
#include "tools/command_line/command_line.h"

namespace loramux {

struct EtcdFlags {
  std::vector<std::string> urls;  // empty: no etcd
  std::string user, password_file;
};

// `help` says what the command does with --etcd.
void AddEtcdFlags(CommandLine& line, EtcdFlags& flags, const std::string& help);

// Null without --etcd. Asks etcd nothing yet, so that a program starts while etcd is down. Errors name the flag.
// `clock` must outlive the client.
Result<std::unique_ptr<EtcdClient>> OpenEtcd(const EtcdFlags& flags, const Clock& clock);

}  // namespace loramux
