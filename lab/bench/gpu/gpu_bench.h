// What the parts of gpu_bench share: a device with its memory and clock, and the results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "gpu/device.h"
#include "memory/arena.h"

namespace loramux {

// A device, a stream, and what is needed to fill memory and to take times. Ends the process, with a message, when the
// device fails. Not thread-safe.
class GpuBench {
 public:
  // `check`: tiny sizes, one repetition: shows that everything works, also on the emulated device.
  GpuBench(std::unique_ptr<Device> device, bool check);

  Device& device() { return *device_; }
  DeviceStream& stream() { return *stream_; }
  bool check() const { return check_; }
  // `real`, or `tiny` in a run that only checks.
  std::int64_t Size(std::int64_t real, std::int64_t tiny) const { return check_ ? tiny : real; }

  // Device memory that stays until the next Free.
  std::byte* Allocate(std::int64_t bytes);
  // Device memory filled with bf16 numbers in (-1, 1): element i is Random(i).
  std::byte* AllocateRandom(std::int64_t elements);
  float Random(std::int64_t element) const;
  // Device memory with a copy of these values.
  template <typename T>
  const T* Upload(const std::vector<T>& values) {
    return reinterpret_cast<const T*>(UploadBytes(values.data(), values.size() * sizeof(T)));
  }
  // Values that are on the device once earlier work is done.
  template <typename T>
  std::vector<T> Download(const T* device, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    DownloadBytes(values.data(), device, values.size() * sizeof(T));
    return values;
  }
  // Frees all memory that was allocated here.
  void Free();

  // Seconds of one call of `enqueue`: the median over repetitions of a graph of `launches` calls with i = 0, 1, ...
  double Seconds(int launches, const std::function<void(int)>& enqueue);
  // The same without a graph.
  double SecondsEager(int launches, const std::function<void(int)>& enqueue);
  // Waits for all work.
  void Finish();

 private:
  double Median(int launches, const std::function<void()>& run);
  // Part of a larger piece of device memory, aligned to 256 bytes.
  std::byte* AllocateSmall(std::int64_t bytes);
  // Pinned memory that the next call uses again.
  std::byte* Staging(std::int64_t bytes);
  const std::byte* UploadBytes(const void* from, std::size_t bytes);
  void DownloadBytes(void* to, const void* device, std::size_t bytes);

  const bool check_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<Arena> random_;  // pinned: the block of numbers that AllocateRandom repeats
  std::unique_ptr<Arena> staging_;
  std::byte *small_ = nullptr, *small_end_ = nullptr;  // what is left of the last larger piece
  std::vector<std::unique_ptr<Arena>> arenas_;
};

// Ends the process unless the values agree within `tolerance`, relative to `scale`.
void CheckClose(const std::string& what, double found, double expected, double scale, double tolerance);

// The parts. Each checks results before it takes times, adds its rows to `results`, and prints them.
using GpuResults = nlohmann::ordered_json;
// Bytes per second at which the device reads its memory, and copies it; then launches, and copies from the host.
// Returns the first, which the other parts are compared with.
double BenchMemory(GpuBench& bench, GpuResults& results);
void BenchLaunches(GpuBench& bench, GpuResults& results);
void BenchTransfers(GpuBench& bench, GpuResults& results);
// Shrink and expand, with adapters of mixed ranks; for few rows, the shrink with the base product, as one launch and
// two.
void BenchLora(GpuBench& bench, double read_ceiling, GpuResults& results);
// Products of quantised weights: of few rows, and of widened weights.
void BenchQuantised(GpuBench& bench, double read_ceiling, GpuResults& results);
// Dense products; `name` tells the devices with and without batch-invariant products apart.
void BenchDense(GpuBench& bench, const std::string& name, GpuResults& results);
// Attention over paged keys and values.
void BenchAttention(GpuBench& bench, double read_ceiling, GpuResults& results);
// Steps of a whole model of 7B with random weights, with and without adapters.
void BenchModel(GpuBench& bench, double read_ceiling, GpuResults& results);

// Adds a row to results[part], and prints it.
void AddRow(GpuResults& results, const std::string& part, GpuResults row);

}  // namespace loramux
