#include "gpu/cuda_plugin.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>
#include <dlfcn.h>

#include "gpu/cuda/plugin.h"

namespace loramux::gpu {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPluginFile = "libloramux_cuda.so";
// What the plugin's CUDA runtime needs, as cuDriverGetVersion gives it, and the driver that first has it.
constexpr int kMinDriverCuda = 13000;
constexpr const char* kMinDriver = "580";

// Closes the library unless it is kept.
struct LibraryCloser {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, LibraryCloser>;

std::string LoaderError() {
  const char* error = dlerror();
  return error == nullptr ? "unknown error" : error;
}

// Whether the bus has a display controller of NVIDIA's. True where the system does not say.
bool HasNvidiaGpu() {
  std::error_code error;
  fs::directory_iterator device("/sys/bus/pci/devices", error);
  if (error) return true;
  for (; device != fs::directory_iterator(); device.increment(error)) {
    std::string vendor, type;
    std::ifstream(device->path() / "vendor") >> vendor;
    std::ifstream(device->path() / "class") >> type;
    if (vendor == "0x10de" && type.starts_with("0x03")) return true;
  }
  return false;
}

// NVIDIA's driver library, by the functions of its C interface that are needed.
class Driver {
 public:
  static Result<Driver> Start(const std::string& name) {
    Driver driver;
    driver.library_.reset(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL));
    if (driver.library_ == nullptr) {
      const std::string why = LoaderError();
      if (!HasNvidiaGpu()) return Unavailable("this machine has no NVIDIA GPU.");
      return Unavailable("there is no driver for the NVIDIA GPU (" + why + "). Install NVIDIA's driver " + kMinDriver +
                         " or later; in a container, start it with the GPUs (docker run --gpus all).");
    }
    int version = 0;
    if (driver.Call<int(int*)>("cuDriverGetVersion", &version) == 0 && version < kMinDriverCuda) {
      return Unavailable("the NVIDIA driver is too old: it supports CUDA " + std::to_string(version / 1000) + "." +
                         std::to_string(version % 1000 / 10) + ", and 13.0 is needed. Install driver " + kMinDriver +
                         " or later.");
    }
    if (const int error = driver.Call<int(unsigned)>("cuInit", 0u); error != 0) {
      if (error == kNoDevice) return NoGpu();
      return Unavailable("the NVIDIA driver does not start (cuInit gives " + std::to_string(error) +
                         driver.Name(error) +
                         "). nvidia-smi may say more; after an update of the driver, restart the machine.");
    }
    return driver;
  }

  Result<std::vector<CudaGpu>> Gpus() const {
    int count = 0;
    if (Call<int(int*)>("cuDeviceGetCount", &count) != 0 || count == 0) return NoGpu();
    std::vector<CudaGpu> gpus;
    for (int index = 0; index < count; ++index) {
      int device = 0;
      char name[256] = "";
      std::size_t bytes = 0;
      CudaGpu gpu;
      Call<int(int*, int)>("cuDeviceGet", &device, index);
      Call<int(char*, int, int)>("cuDeviceGetName", name, static_cast<int>(sizeof(name)) - 1, device);
      Call<int(std::size_t*, int)>("cuDeviceTotalMem_v2", &bytes, device);
      Call<int(int*, int, int)>("cuDeviceGetAttribute", &gpu.major, kMajor, device);
      Call<int(int*, int, int)>("cuDeviceGetAttribute", &gpu.minor, kMinor, device);
      gpu.name = name;
      gpu.memory = static_cast<std::int64_t>(bytes);
      gpus.push_back(std::move(gpu));
    }
    return gpus;
  }

 private:
  static constexpr int kNoDevice = 100;           // CUDA_ERROR_NO_DEVICE
  static constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
  static constexpr int kMissing = -1;

  static Error NoGpu() {
    return Unavailable(
        "the NVIDIA driver shows no GPU. CUDA_VISIBLE_DEVICES may hide it; in a container, start it with "
        "the GPUs (docker run --gpus all).");
  }

  // What the function of this name returns; kMissing if the library has none.
  template <typename Function, typename... Arguments>
  int Call(const char* name, Arguments... arguments) const {
    auto* function = reinterpret_cast<Function*>(dlsym(library_.get(), name));
    return function == nullptr ? kMissing : function(arguments...);
  }

  // ", CUDA_ERROR_..."; empty if the driver does not know it.
  std::string Name(int error) const {
    const char* name = nullptr;
    Call<int(int, const char**)>("cuGetErrorName", error, &name);
    return name == nullptr ? "" : std::string(", ") + name;
  }

  Library library_;
};

// The file to open. A name without a slash is for the system's search.
std::string PluginPlace(const CudaLibraries& libraries) {
  if (!libraries.plugin.empty()) return libraries.plugin;
  if (const char* chosen = std::getenv("LORAMUX_CUDA_PLUGIN"); chosen != nullptr && *chosen != '\0') return chosen;
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

// The loaded plugin, of the program's own build.
Result<const CudaPlugin*> LoadPlugin(const std::string& place) {
  Library library(dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) {
    const std::string why = LoaderError();
    if (why.find("libcublasLt") != std::string::npos) {
      return Unavailable("the CUDA plugin does not find cuBLAS 13 (" + why + "). Install it (the Debian package " +
                         "libcublas-13-0 of NVIDIA, or pip install nvidia-cublas), or name its folder in "
                         "LD_LIBRARY_PATH.");
    }
    return Unavailable("there is no CUDA plugin (" + why + "). Build it with make cuda, and put " + kPluginFile +
                       " beside the program or name it in LORAMUX_CUDA_PLUGIN.");
  }
  auto* function = reinterpret_cast<CudaPluginFunction>(dlsym(library.get(), kCudaPluginFunction));
  if (function == nullptr) {
    return Unavailable(place + " is not the CUDA plugin of loramux: it has no " + std::string(kCudaPluginFunction) +
                       ". Build it with make cuda.");
  }
  const CudaPlugin* plugin = function();
  if (std::string(plugin->version) != kCudaPluginVersion) {
    return Unavailable("the CUDA plugin " + place + " is of another build (" + plugin->version +
                       ") than this program (" + kCudaPluginVersion +
                       "). Build both from one source: make build cuda.");
  }
  (void)library.release();  // its code is in use for as long as the process runs
  return plugin;
}

}  // namespace

Result<std::vector<CudaGpu>> FindCudaGpus(const CudaLibraries& libraries) {
  ASSIGN_OR_RETURN(const Driver driver, Driver::Start(libraries.driver));
  return driver.Gpus();
}

Result<std::string> FindCudaPlugin(const CudaLibraries& libraries) {
  std::string place = PluginPlace(libraries);
  RETURN_IF_ERROR(LoadPlugin(place));
  return place;
}

Result<std::unique_ptr<Device>> OpenCudaPlugin(const OpenDeviceOptions& options, const CudaLibraries& libraries) {
  ASSIGN_OR_RETURN(const std::vector<CudaGpu> gpus, FindCudaGpus(libraries));
  if (options.index < 0 || static_cast<std::size_t>(options.index) >= gpus.size()) {
    return InvalidArgument("there is no GPU " + std::to_string(options.index) + ": this machine has " +
                           std::to_string(gpus.size()) + ", counted from 0");
  }
  ASSIGN_OR_RETURN(const CudaPlugin* plugin, LoadPlugin(PluginPlace(libraries)));
  return plugin->open(options);
}

}  // namespace loramux::gpu
