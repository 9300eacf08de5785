#include "tools/etcd_flags.h"

#include <fmt/format.h>

#include "base/text_file.h"

namespace loramux {

void AddEtcdFlags(CommandLine& line, EtcdFlags& flags, const std::string& help) {
  const std::string group = "Many servers";
  line.Add({.names = "--etcd", .target = &flags.urls, .unit = "URL", .group = group, .help = help, .comma_list = true});
  line.Add({.names = "--etcd-user",
            .target = &flags.user,
            .unit = "NAME",
            .group = group,
            .help = "User of etcd, where it demands one",
            .needs = "--etcd-password-file"});
  line.Add({.names = "--etcd-password-file",
            .target = &flags.password_file,
            .unit = "FILE",
            .group = group,
            .help = "File whose first line is the password of --etcd-user",
            .needs = "--etcd-user"});
}

Result<std::unique_ptr<EtcdClient>> OpenEtcd(const EtcdFlags& flags, const Clock& clock) {
  if (flags.urls.empty()) return std::unique_ptr<EtcdClient>();
  EtcdOptions options{.user = flags.user};
  ASSIGN_OR_RETURN(options.endpoints, ParseEtcdUrls(flags.urls));
  if (!flags.password_file.empty()) {
    ASSIGN_OR_RETURN(options.password, ReadTextFile(flags.password_file));
    options.password.resize(std::min(options.password.find_first_of("\r\n"), options.password.size()));
    if (options.password.empty()) {
      return InvalidArgument("--etcd-password-file: expected a password in the first line of " + flags.password_file,
                             "--etcd-password-file");
    }
  }
  return std::make_unique<EtcdClient>(std::move(options), clock);
}

}  // namespace loramux
