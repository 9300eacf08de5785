// What a GPU reaches on each operation of loramux, compared with what its memory reaches, measured in the same run.
//   gpu_bench [--device cuda|emulated] [--index N] [--only memory,launches,...] [--json FILE] [--check]
// With --check it takes tiny sizes and one repetition, and so also runs on the emulated device.
#include "lab/bench/gpu/gpu_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/prng.h"
#include "base/text_file.h"
#include "gpu/open_device.h"
#include "tensor/half_float.h"
#include "tools/command_line/command_line.h"

namespace loramux {
namespace {

constexpr int kRepetitions = 9;
constexpr std::int64_t kRandomElements = std::int64_t{1} << 22;
constexpr std::int64_t kRandomElementsOfCheck = std::int64_t{1} << 16;

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "gpu_bench: %s\n", message.c_str());
  std::exit(1);
}

template <typename T>
T OrFail(Result<T> result) {
  if (!result.ok()) Fail(result.error().message);
  return std::move(result).value();
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

GpuBench::GpuBench(std::unique_ptr<Device> device, bool check)
    : check_(check), device_(std::move(device)), stream_(OrFail(device_->CreateStream())) {
  const std::int64_t elements = Size(kRandomElements, kRandomElementsOfCheck);
  random_ = OrFail(device_->AllocatePinned("random numbers", elements * 2));
  auto* numbers = reinterpret_cast<std::uint16_t*>(random_->base());
  Prng prng(7);
  for (std::int64_t i = 0; i < elements; ++i) numbers[i] = F32ToBF16(static_cast<float>(2 * prng.NextDouble() - 1));
}

std::byte* GpuBench::Allocate(std::int64_t bytes) {
  arenas_.push_back(OrFail(device_->Allocate("a benchmark", bytes)));
  return arenas_.back()->base();
}

std::byte* GpuBench::AllocateRandom(std::int64_t elements) {
  std::byte* memory = Allocate(elements * 2);
  for (std::int64_t at = 0; at < elements * 2; at += random_->size()) {
    const auto bytes = static_cast<std::size_t>(std::min(random_->size(), elements * 2 - at));
    stream_->CopyToDevice(memory + at, random_->base(), bytes);
  }
  return memory;
}

float GpuBench::Random(std::int64_t element) const {
  return BF16ToF32(reinterpret_cast<const std::uint16_t*>(random_->base())[element % (random_->size() / 2)]);
}

const std::byte* GpuBench::UploadBytes(const void* from, std::size_t bytes) {
  std::byte* to = AllocateSmall(static_cast<std::int64_t>(bytes));
  std::byte* staging = Staging(static_cast<std::int64_t>(bytes));
  std::memcpy(staging, from, bytes);
  stream_->CopyToDevice(to, staging, bytes);
  Finish();
  return to;
}

std::byte* GpuBench::AllocateSmall(std::int64_t bytes) {
  bytes = std::max<std::int64_t>(bytes + 255, 256) / 256 * 256;
  if (small_end_ - small_ < bytes) {
    const std::int64_t piece = std::max(bytes, Size(std::int64_t{32} << 20, std::int64_t{1} << 18));
    small_ = Allocate(piece);
    small_end_ = small_ + piece;
  }
  return std::exchange(small_, small_ + bytes);
}

std::byte* GpuBench::Staging(std::int64_t bytes) {
  if (staging_ == nullptr || staging_->size() < bytes) {
    staging_.reset();
    staging_ = OrFail(device_->AllocatePinned("staging", std::max<std::int64_t>(bytes, std::int64_t{1} << 20)));
  }
  return staging_->base();
}

void GpuBench::DownloadBytes(void* to, const void* device, std::size_t bytes) {
  std::byte* staging = Staging(static_cast<std::int64_t>(bytes));
  stream_->CopyToHost(staging, device, bytes);
  Finish();
  std::memcpy(to, staging, bytes);
}

void GpuBench::Free() {
  Finish();
  arenas_.clear();
  small_ = small_end_ = nullptr;
}

void GpuBench::Finish() {
  const Status status = stream_->Synchronize();
  if (!status.ok()) Fail(status.error().message);
}

double GpuBench::Median(int launches, const std::function<void()>& run) {
  run();  // warm
  Finish();
  std::vector<double> seconds;
  for (int i = 0; i < (check_ ? 1 : kRepetitions); ++i) {
    const double start = Now();
    run();
    Finish();
    seconds.push_back(Now() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2] / launches;
}

double GpuBench::Seconds(int launches, const std::function<void(int)>& enqueue) {
  if (check_) launches = std::min(launches, 2);
  enqueue(0);  // what is prepared at the first use is not part of a graph
  Finish();
  const auto graph = OrFail(stream_->Capture([&] {
    for (int i = 0; i < launches; ++i) enqueue(i);
  }));
  const double seconds = Median(launches, [&] { stream_->Replay(*graph); });
  Finish();
  return seconds;
}

double GpuBench::SecondsEager(int launches, const std::function<void(int)>& enqueue) {
  if (check_) launches = std::min(launches, 2);
  return Median(launches, [&] {
    for (int i = 0; i < launches; ++i) enqueue(i);
  });
}

void CheckClose(const std::string& what, double found, double expected, double scale, double tolerance) {
  // Tensor cores truncate where they sum, so a large sum is off by a share of itself.
  if (std::abs(found - expected) <= tolerance * std::max(scale, std::abs(expected))) return;
  Fail(fmt::format("{}: {} instead of {}, more than {} of {} off: nothing is timed", what, found, expected, tolerance,
                   scale));
}

void AddRow(GpuResults& results, const std::string& part, GpuResults row) {
  std::printf("%s %s\n", part.c_str(), row.dump().c_str());
  std::fflush(stdout);
  results[part].push_back(std::move(row));
}

namespace {

struct Flags {
  std::string device = "cuda";
  int index = 0;
  bool check = false;
  std::vector<std::string> only;
  std::string json;
};

GpuResults Describe(const Device& device, bool check) {
  const DeviceProperties& properties = device.properties();
  return {{"name", properties.name},
          {"memory_bytes", properties.memory},
          {"multiprocessors", properties.multiprocessors},
          {"compute_capability", fmt::format("{}.{}", properties.major, properties.minor)},
          {"l2_bytes", properties.l2_bytes},
          {"memory_bytes_per_second", properties.memory_bytes_per_second},
          {"driver_cuda", properties.driver},
          {"check_only", check}};
}

std::unique_ptr<Device> Open(const Flags& flags, bool batch_invariant) {
  gpu::OpenDeviceOptions options;
  options.index = flags.index;
  options.batch_invariant = batch_invariant;
  return OrFail(gpu::OpenDevice(flags.device, options));
}

// The file is written after each part: a part that fails leaves what the others found.
class Run {
 public:
  explicit Run(const Flags& flags) : flags_(flags), bench_(Open(flags, false), flags.check) {
    results_["device"] = Describe(bench_.device(), flags.check);
    std::printf("%s\n", results_["device"].dump().c_str());
  }

  void All() {
    double read_ceiling = 0;
    Part("memory", [&] { read_ceiling = BenchMemory(bench_, results_); });
    Part("launches", [&] { BenchLaunches(bench_, results_); });
    Part("transfers", [&] { BenchTransfers(bench_, results_); });
    Part("lora", [&] { BenchLora(bench_, read_ceiling, results_); });
    Part("quantised", [&] { BenchQuantised(bench_, read_ceiling, results_); });
    Part("attention", [&] { BenchAttention(bench_, read_ceiling, results_); });
    Part("dense", [&] { BenchDense(bench_, "fast", results_); });
    Part("invariant", [&] {
      GpuBench invariant(Open(flags_, true), bench_.check());
      BenchDense(invariant, "batch-invariant", results_);
    });
    Part("model", [&] { BenchModel(bench_, read_ceiling, results_); });
  }

 private:
  void Part(const std::string& name, const std::function<void()>& run) {
    // The ceiling is measured in every run: the others are compared with it.
    const bool wanted = flags_.only.empty() || name == "memory" ||
                        std::find(flags_.only.begin(), flags_.only.end(), name) != flags_.only.end();
    if (!wanted) return;
    const double start = Now();
    run();
    bench_.Free();
    results_["seconds"][name] = Now() - start;
    if (flags_.json.empty()) return;
    const Status written = WriteTextFile(flags_.json, results_.dump(1) + "\n");
    if (!written.ok()) Fail(written.error().message);
  }

  const Flags flags_;
  GpuBench bench_;
  GpuResults results_;
};

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  loramux::Flags flags;
  loramux::Command command{.name = "gpu_bench", .summary = "What a GPU reaches on each operation of loramux"};
  command.line.Add({.names = "--device",
                    .target = &flags.device,
                    .unit = "NAME",
                    .help = "Device to measure",
                    .choices = {"cuda", "emulated"}});
  command.line.Add({.names = "--index", .target = &flags.index, .unit = "N", .help = "Index of the GPU"});
  command.line.Add(
      {.names = "--only",
       .target = &flags.only,
       .unit = "PART",
       .help = "Parts to measure: memory, launches, transfers, lora, attention, dense, invariant, model; default: all",
       .comma_list = true});
  command.line.Add({.names = "--json", .target = &flags.json, .unit = "FILE", .help = "File for the results"});
  command.line.Add({.names = "--check", .target = &flags.check, .help = "Tiny sizes, one repetition"});
  command.run = [&flags] {
    loramux::Run(flags).All();
    return 0;
  };
  return loramux::RunCommand(command, argc, argv);
}
