// How the admin routes change adapters: this server's, or those of its whole fleet.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/result.h"
#include "server/adapters/adapter_admin.h"

namespace loramux {

// Each may block, but `loaded`.
struct AdapterChanges {
  std::function<Result<AdapterAdmin::LoadResult>(const AdapterAdmin::LoadRequest& request)> load;
  std::function<Status(const std::string& name)> unload;
  std::function<std::map<std::string, std::string>()> loaded;  // AdapterAdmin::Loaded
  UploadStore* uploads = nullptr;                              // AdapterAdmin::uploads; null: uploads are refused
};

// For this server alone. The admin must outlive it.
inline AdapterChanges ChangesOf(AdapterAdmin& admin) {
  return {.load = [&admin](const AdapterAdmin::LoadRequest& request) { return admin.Load(request); },
          .unload = [&admin](const std::string& name) { return admin.Unload(name); },
          .loaded = [&admin] { return admin.Loaded(); },
          .uploads = admin.uploads()};
}

}  // namespace loramux
