#include <filesystem>
#include <string>
#include <utility>
#include <dlfcn.h>

#include "envoy/picker_server.h"
#include "envoy/plugin.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPluginFile = "libloramux_envoy.so";

// The file to open. A name without a slash is for the system's search.
std::string PluginPlace() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    for (const fs::path& place :
         {program.parent_path() / kPluginFile, program.parent_path().parent_path() / "lib" / "loramux" / kPluginFile}) {
      if (fs::exists(place, error)) return place.string();
    }
  }
  return kPluginFile;
}

}  // namespace

Result<std::unique_ptr<PickerServer>> StartPickerServer(const PickerServerOptions& options, ProxyExchanges& exchanges) {
  const std::string place = PluginPlace();
  // It stays loaded: its threads and code are in use for as long as the process runs.
  void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    return Unavailable(std::string("--ext-proc: the picker's plugin cannot be loaded (") +
                       (error == nullptr ? "unknown error" : error) +
                       "). Run tools/setup.sh envoy, build loramux again, and put " + kPluginFile +
                       " beside the program.");
  }
  auto* function = reinterpret_cast<EnvoyPluginFunction>(dlsym(library, kEnvoyPluginFunction));
  if (function == nullptr) {
    return Unavailable("--ext-proc: " + place + " is not the picker's plugin of loramux: it has no " +
                       std::string(kEnvoyPluginFunction) + ". Build loramux again after tools/setup.sh envoy.");
  }
  const EnvoyPlugin* plugin = function();
  if (std::string(plugin->version) != kEnvoyPluginVersion) {
    return Unavailable("--ext-proc: " + place + " is of another build (" + plugin->version + ") than this program (" +
                       kEnvoyPluginVersion + "). Build both from one source.");
  }
  return plugin->start(options, exchanges);
}

}  // namespace loramux
