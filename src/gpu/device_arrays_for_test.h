// Arrays in a device's memory, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "gpu/device.h"

namespace loramux::gpu {

// A stream, and arrays that live as long as this object. Errors of the device abort.
class DeviceArrays {
 public:
  explicit DeviceArrays(Device& device) : device_(device), stream_(device.CreateStream().value()) {}

  DeviceStream& stream() { return *stream_; }

  // A copy of `values` on the device; not null, even if there are none.
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* array = Allocate<T>(values.size());
    if (values.empty()) return array;
    const std::unique_ptr<Arena> pinned = Pinned(values.size() * sizeof(T));
    std::memcpy(pinned->base(), values.data(), values.size() * sizeof(T));
    stream_->CopyToDevice(array, pinned->base(), values.size() * sizeof(T));
    Synchronize();
    return array;
  }
  // Uninitialised.
  template <typename T>
  T* Allocate(std::size_t count) {
    const std::size_t bytes = (count == 0 ? 1 : count) * sizeof(T);
    arenas_.push_back(device_.Allocate("test array", static_cast<std::int64_t>(bytes)).value());
    return reinterpret_cast<T*>(arenas_.back()->base());
  }
  template <typename T>
  std::vector<T> Download(const T* array, std::size_t count) {
    std::vector<T> values(count);
    if (count == 0) {
      Synchronize();  // launches may still read arrays that end with this object
      return values;
    }
    const std::unique_ptr<Arena> pinned = Pinned(count * sizeof(T));
    stream_->CopyToHost(pinned->base(), array, count * sizeof(T));
    Synchronize();
    std::memcpy(values.data(), pinned->base(), count * sizeof(T));
    return values;
  }
  void Synchronize() {
    const Status status = stream_->Synchronize();
    if (!status.ok()) CheckFailed(__FILE__, __LINE__, status.error().message);
  }

 private:
  std::unique_ptr<Arena> Pinned(std::size_t bytes) {
    return device_.AllocatePinned("test copy", static_cast<std::int64_t>(bytes)).value();
  }

  Device& device_;
  std::unique_ptr<DeviceStream> stream_;
  std::vector<std::unique_ptr<Arena>> arenas_;
};

}  // namespace loramux::gpu
