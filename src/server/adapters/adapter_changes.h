// How the admin routes change adapters, where that concerns more than this server.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "server/adapters/adapter_admin.h"

namespace loramux {

// Each may block. Null: AdapterAdmin's own ways, for this server alone.
struct AdapterChanges {
  std::function<Result<AdapterAdmin::LoadOutcome>(const AdapterAdmin::LoadRequest& request)> load;
  std::function<Status(const std::string& name)> unload;
};

}  // namespace loramux
