#include <filesystem>
#include <string>
#include <utility>
#include <dlfcn.h>

#include "collective/mpi_plugin.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMpiPluginFile = "libloramux_mpi.so";

// The file to open. A name without a slash is for the system's search.
std::string PlaceOfMpiPlugin() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    for (const fs::path& place : {program.parent_path() / kMpiPluginFile,
                                  program.parent_path().parent_path() / "lib" / "loramux" / kMpiPluginFile}) {
      if (fs::exists(place, error)) return place.string();
    }
  }
  return kMpiPluginFile;
}

}  // namespace

Result<std::unique_ptr<Collectives>> OpenMpiGroup(TimeNs wait_limit) {
  const std::string place = PlaceOfMpiPlugin();
  // It stays loaded: MPI cannot be started twice. MPI's own plugins look for its symbols among all.
  void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* error = dlerror();
    return Unavailable(std::string("--tensor-parallel-size: the plugin for MPI cannot be loaded (") +
                       (error == nullptr ? "unknown error" : error) +
                       "). Run tools/setup.sh mpi, build loramux again, and put " + kMpiPluginFile +
                       " beside the program.");
  }
  auto* function = reinterpret_cast<MpiPluginFunction>(dlsym(library, kMpiPluginFunction));
  if (function == nullptr) {
    return Unavailable("--tensor-parallel-size: " + place + " is not loramux's plugin for MPI: it has no " +
                       std::string(kMpiPluginFunction) + ". Build loramux again after tools/setup.sh mpi.");
  }
  const MpiPlugin* plugin = function();
  if (std::string(plugin->version) != LORAMUX_MPI_INTERFACE) {
    return Unavailable("--tensor-parallel-size: " + place + " is of another build (" + plugin->version +
                       ") than this program (" + LORAMUX_MPI_INTERFACE + "). Build both from one source.");
  }
  return plugin->open(wait_limit);
}

}  // namespace loramux
