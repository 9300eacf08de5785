// What the plugin libloramux_envoy.so offers to the program: one C function, kEnvoyPluginFunction. Both are built from
// the same headers, which the version proves.
#pragma once

#include <memory>

#include "base/result.h"
#include "envoy/picker_server.h"
#include "envoy/proxy_message.h"

namespace loramux {

// The version of the project and a digest of the headers that program and plugin share.
inline constexpr const char* kEnvoyPluginVersion = LORAMUX_ENVOY_INTERFACE;
inline constexpr const char* kEnvoyPluginFunction = "loramux_envoy_plugin";

// `version` comes first in every version, so that a reader of any version can compare it.
struct EnvoyPlugin {
  const char* version;  // kEnvoyPluginVersion; if it differs, nothing else may be used
  // As StartPickerServer.
  Result<std::unique_ptr<PickerServer>> (*start)(const PickerServerOptions& options, ProxyExchanges& exchanges);
};
using EnvoyPluginFunction = const EnvoyPlugin* (*)();

}  // namespace loramux
