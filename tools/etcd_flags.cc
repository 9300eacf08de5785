#include "tools/etcd_flags.h"

namespace loramux {

void AddEtcdFlags(CommandLine& line, EtcdOptions& etcd, const std::string& help) {
  const std::string group = "Many servers";
  line.Add({.names = "--etcd", .target = &etcd.urls, .unit = "URL", .group = group, .help = help, .comma_list = true});
  line.Add({.names = "--etcd-user",
            .target = &etcd.user,
            .unit = "NAME",
            .group = group,
            .help = "User of etcd, where it demands one",
            .needs = "--etcd-password-file"});
  line.Add({.names = "--etcd-password-file",
            .target = &etcd.password_file,
            .unit = "FILE",
            .group = group,
            .help = "File whose first line is the password of --etcd-user",
            .needs = "--etcd-user"});
}

}  // namespace loramux
