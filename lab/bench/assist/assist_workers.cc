// The processor's side of CPU-assisted LoRA, without a device.
//   speed    tokens per second and core of the product that sums as the device does, once with multiply-adds that round
//            twice (the emulated device) and once with fused ones (a GPU), beside the processor's own LoRA kernel: q,
//            k, v and o of one layer
//   handoff  from the request to the answer, by a thread and by a process of its own over POSIX shared memory: when the
//            worker is looking, and after it was idle; with what a worker costs: start and memory
//
//   assist_workers [--only speed|handoff] [--hidden 4096] [--ranks 8,16,32,64,128] [--rows 1,4,16] [--repeat 2000]
//                  [--json FILE]
#include <sys/mman.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "assist/assist_worker.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/prng.h"
#include "base/text_file.h"
#include "kernels/lora_sums.h"
#include "tensor/half_float.h"
#include "tools/command_line/command_line.h"

extern char** environ;

namespace loramux {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string only, json, worker;
  std::int64_t hidden = 4096;
  std::vector<std::int32_t> ranks = {8, 16, 32, 64, 128}, rows = {1, 4, 16};
  int repeat = 2000;
};

void Print(Json& results, const char* part, Json row) {
  std::printf("%s %s\n", part, row.dump().c_str());
  std::fflush(stdout);
  results[part].push_back(std::move(row));
}

void FillRandom(std::uint16_t* to, std::int64_t count, Prng& prng) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = F32ToBF16(static_cast<float>(prng.NextDouble() - 0.5));
}

// --- speed ---

// Four linear layers [hidden, hidden] of several layers, so that one does not stay in the nearest cache.
class SpeedCase {
 public:
  static constexpr std::size_t kLayers = 4, kTargets = 4;

  SpeedCase(std::int64_t hidden, std::int32_t rank, std::int32_t rows) : hidden_(hidden), rank_(rank), rows_(rows) {
    Prng prng(5);
    memory_.Reserve(static_cast<std::int64_t>(kLayers * kTargets) * 2 * rank * hidden);
    FillRandom(memory_.data(), memory_.capacity(), prng);
    for (std::size_t i = 0; i < kLayers * kTargets * 2; ++i) {
      addresses_.emplace_back();
      for (std::int32_t j = 0; j < rank; ++j) {
        addresses_.back().push_back(
            reinterpret_cast<const std::byte*>(memory_.data() + (static_cast<std::int64_t>(i) * rank + j) * hidden));
      }
    }
    x_.Reserve(rows * hidden);
    FillRandom(x_.data(), rows * hidden, prng);
    wide_x_.Reserve(rows * hidden);
    for (std::int64_t i = 0; i < rows * hidden; ++i) wide_x_[i] = BF16ToF32(x_[i]);
    y_.Reserve(static_cast<std::int64_t>(kTargets) * rows * hidden);
    std::fill_n(y_.data(), y_.capacity(), 0.0f);
    scratch_.Reserve(
        std::max<std::int64_t>(LoraSumsFloats(rows, hidden, rank), static_cast<std::int64_t>(kTargets) * rows * rank));
  }

  void Sums(std::size_t layer, bool fused) {
    std::array<LoraSumsOutput, kTargets> outputs;
    for (std::size_t t = 0; t < kTargets; ++t) outputs[t] = {Weights(layer, t), 0, hidden_, Y(t), hidden_};
    LoraSums({Backend::kCpu, &alone_},
             {DType::kBF16, x_.data(), hidden_, rows_, hidden_, outputs, fused, scratch_.data()});
  }

  // The processor's own kernel takes x as f32.
  void Plain(const KernelContext& context, std::size_t layer) {
    std::array<LoraSegment, kTargets> segments;
    std::array<LoraProjection, kTargets> projections;
    for (std::size_t t = 0; t < kTargets; ++t) {
      segments[t] = {0, rows_, Weights(layer, t)};
      projections[t] = {std::span(&segments[t], 1), {Y(t), hidden_}, hidden_};
    }
    LoraMatMul(
        context,
        {.projections = projections, .x = {wide_x_.data(), hidden_}, .in = hidden_, .workspace = scratch_.data()});
  }

  const float* y() const { return y_.data(); }
  void Clear() { std::fill_n(y_.data(), y_.capacity(), 0.0f); }
  std::int64_t size() const { return y_.capacity(); }

 private:
  LoraWeights Weights(std::size_t layer, std::size_t target) const {
    const std::size_t first = (layer * kTargets + target) * 2;
    return {rank_, 1, DType::kBF16, addresses_[first].data(), addresses_[first + 1].data()};
  }
  float* Y(std::size_t target) { return y_.data() + static_cast<std::int64_t>(target) * rows_ * hidden_; }

  const std::int64_t hidden_;
  const std::int32_t rank_, rows_;
  AlignedBuffer<std::uint16_t> memory_, x_;
  AlignedBuffer<float> wide_x_, y_, scratch_;
  std::vector<std::vector<const std::byte*>> addresses_;
  ThreadPool alone_{1};
};

// The least seconds of a call: other programs share the machine.
double BestSeconds(const std::function<void(std::size_t)>& run) {
  const OsClock clock;
  double best = 1e30;
  const TimeNs begin = clock.Now();
  for (std::size_t i = 0; i < 12 || clock.Now() - begin < 150 * kNsPerMs; ++i) {
    const TimeNs start = clock.Now();
    run(i % SpeedCase::kLayers);
    best = std::min(best, 1e-9 * static_cast<double>(clock.Now() - start));
  }
  return best;
}

void MeasureSpeed(const Flags& flags, Json& results) {
  ThreadPool one_thread(1);
  const KernelContext context{Backend::kCpu, &one_thread};
  for (const std::int32_t rank : flags.ranks) {
    for (const std::int32_t rows : flags.rows) {
      SpeedCase of(flags.hidden, rank, rows);
      of.Plain(context, 0);
      const std::vector<float> plain(of.y(), of.y() + of.size());
      of.Clear();
      of.Sums(0, true);
      const double magnitude = static_cast<double>(flags.hidden) * rank;
      for (std::int64_t i = 0; i < of.size(); ++i) {
        CHECK(std::abs(plain[static_cast<std::size_t>(i)] - of.y()[i]) < 1e-6 * magnitude + 1e-4);
      }
      const auto tokens = [&](double seconds) { return rows / seconds; };
      const double own = tokens(BestSeconds([&](std::size_t layer) { of.Plain(context, layer); }));
      const double twice = tokens(BestSeconds([&](std::size_t layer) { of.Sums(layer, false); }));
      const double fused = tokens(BestSeconds([&](std::size_t layer) { of.Sums(layer, true); }));
      Print(results, "speed",
            {{"hidden", flags.hidden},
             {"rank", rank},
             {"rows", rows},
             {"own_kernel_tokens_per_s", own},
             {"device_order_tokens_per_s", twice},
             {"device_order_fused_tokens_per_s", fused},
             {"fused_of_own", fused / own}});
    }
  }
}

// --- handoff ---

// What stands at the begin of the shared memory: a process maps it at an address of its own.
struct SharedHeader {
  AssistLayout layout;
  std::int32_t rows = 0, rank = 0;
  std::int64_t slot_at = 0, weights_at = 0, stride = 0, bytes = 0;
  std::uint32_t stop = 0, ready = 0;
};

std::int64_t Lines(std::int64_t bytes) { return CeilDivide(bytes, 64) * 64; }

// A worker's view of the memory: rows of q, k and v, each A and then B.
struct HandoffWorker {
  explicit HandoffWorker(std::byte* base) : header(*reinterpret_cast<SharedHeader*>(base)) {
    job.slot = AssistSlot::At(header.layout, base + header.slot_at);
    job.rows = header.rows;
    modules.resize(8);
    for (std::size_t i = 0; i < 6; ++i) {
      addresses.emplace_back();
      for (std::int32_t j = 0; j < header.rank; ++j) {
        addresses.back().push_back(base + header.weights_at +
                                   (static_cast<std::int64_t>(i) * header.rank + j) * header.stride);
      }
    }
    for (std::size_t t = 0; t < 3; ++t) {
      modules[t] = {header.rank, 1, DType::kBF16, addresses[2 * t].data(), addresses[2 * t + 1].data()};
    }
    job.modules = modules;
  }

  void Serve() {
    std::atomic_ref(header.ready).store(1);
    std::int64_t idle = 0;
    while (std::atomic_ref(header.stop).load(std::memory_order_acquire) == 0) {
      const std::uint32_t ticket = FindRequest(job);
      if (ticket == 0) {
        PauseBetweenLooks(++idle);
        continue;
      }
      idle = 0;
      job.first_ticket = ticket;  // every request is the first group's
      AnswerRequest(header.layout, ticket, job, scratch);
    }
  }

  SharedHeader& header;
  AssistJob job;
  std::vector<LoraWeights> modules;
  std::vector<std::vector<const std::byte*>> addresses;
  AlignedBuffer<float> scratch;
};

// Memory that a process can open by its name.
class NamedMemory {
 public:
  NamedMemory(const AssistLayout& layout, std::int32_t rows, std::int32_t rank)
      : name_("/loramux-assist-" + std::to_string(getpid())) {
    SharedHeader header;
    header.layout = layout;
    header.rows = rows;
    header.rank = rank;
    header.stride = Lines(layout.MostIn() * 2);
    header.slot_at = Lines(sizeof(SharedHeader));
    header.weights_at = header.slot_at + Lines(layout.SlotBytes());
    header.bytes = header.weights_at + 6 * rank * header.stride;
    const int file = shm_open(name_.c_str(), O_CREAT | O_RDWR | O_EXCL, 0600);
    CHECK(file >= 0);
    CHECK(ftruncate(file, header.bytes) == 0);
    base_ = Map(file, header.bytes);
    bytes_ = header.bytes;
    *reinterpret_cast<SharedHeader*>(base_) = header;
    Prng prng(9);
    FillRandom(reinterpret_cast<std::uint16_t*>(base_ + header.weights_at), 6 * rank * header.stride / 2, prng);
    FillRandom(reinterpret_cast<std::uint16_t*>(base_ + header.slot_at), rows * layout.MostIn(), prng);
  }
  ~NamedMemory() {
    munmap(base_, static_cast<std::size_t>(bytes_));
    shm_unlink(name_.c_str());
  }
  NamedMemory(const NamedMemory&) = delete;
  NamedMemory& operator=(const NamedMemory&) = delete;

  static std::byte* Map(int file, std::int64_t bytes) {
    void* base = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(base != MAP_FAILED);
    close(file);
    return static_cast<std::byte*>(base);
  }
  // In the worker process.
  static std::byte* Open(const std::string& name) {
    const int file = shm_open(name.c_str(), O_RDWR, 0600);
    CHECK(file >= 0);
    const off_t bytes = lseek(file, 0, SEEK_END);
    return Map(file, bytes);
  }

  std::byte* base() const { return base_; }
  const std::string& name() const { return name_; }
  SharedHeader& header() const { return *reinterpret_cast<SharedHeader*>(base_); }

 private:
  const std::string name_;
  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0;
};

// kB of a line of /proc/PID/smaps_rollup.
std::int64_t Rollup(pid_t process, const std::string& key) {
  std::ifstream file("/proc/" + std::to_string(process) + "/smaps_rollup");
  std::int64_t total = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) == 0) total += std::stoll(line.substr(line.find(':') + 1));
  }
  return total;
}

// Asks, and waits for the answer with the core: what a device does.
class Asker {
 public:
  explicit Asker(const NamedMemory& memory) : header_(memory.header()) {
    slot_ = AssistSlot::At(header_.layout, memory.base() + header_.slot_at);
    x_.assign(static_cast<std::byte*>(slot_.x),
              static_cast<std::byte*>(slot_.x) + header_.rows * header_.layout.Shape(LoraTarget::kQ).in * 2);
  }
  // Nanoseconds.
  double Ask() {
    const TimeNs begin = clock_.Now();
    std::memcpy(slot_.x, x_.data(), x_.size());
    std::atomic_ref(slot_.words->request).store(++ticket_, std::memory_order_release);
    while (std::atomic_ref(slot_.words->answered).load(std::memory_order_acquire) != ticket_) PauseBetweenLooks(0);
    return static_cast<double>(clock_.Now() - begin);
  }

 private:
  const OsClock clock_;
  SharedHeader& header_;
  AssistSlot slot_;
  std::vector<std::byte> x_;
  std::uint32_t ticket_ = 0;
};

struct Latency {
  double least_us = 0, median_us = 0, p99_us = 0, after_idle_us = 0;
};

Latency MeasureLatency(Asker& asker, int repeat) {
  std::vector<double> looking, idle;
  for (int i = 0; i < repeat; ++i) looking.push_back(asker.Ask());
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    idle.push_back(asker.Ask());
  }
  std::sort(looking.begin(), looking.end());
  std::sort(idle.begin(), idle.end());
  return {1e-3 * looking[0], 1e-3 * looking[looking.size() / 2], 1e-3 * looking[looking.size() * 99 / 100],
          1e-3 * idle[idle.size() / 2]};
}

void PrintHandoff(Json& results, const char* worker, const SharedHeader& header, const Latency& latency,
                  double start_us, double computation_us, std::int64_t private_kib) {
  Print(results, "handoff",
        {{"worker", worker},
         {"hidden", header.layout.Shape(LoraTarget::kQ).in},
         {"rows", header.rows},
         {"rank", header.rank},
         {"least_us", latency.least_us},
         {"median_us", latency.median_us},
         {"p99_us", latency.p99_us},
         {"after_20ms_idle_us", latency.after_idle_us},
         {"computation_us", computation_us},
         {"start_us", start_us},
         {"private_kib", private_kib}});
}

// A thread's memory: its stack and scratch, as the process's private memory grows. Returns the microseconds of the
// computation alone.
double MeasureThread(const AssistLayout& layout, std::int32_t rows, std::int32_t rank, int repeat, Json& results) {
  const NamedMemory memory(layout, rows, rank);
  const OsClock clock;
  Asker asker(memory);
  const std::int64_t before = Rollup(getpid(), "Private_Dirty");
  const TimeNs begin = clock.Now();
  HandoffWorker worker(memory.base());
  std::thread thread([&] { worker.Serve(); });
  asker.Ask();
  const double start_us = 1e-3 * static_cast<double>(clock.Now() - begin);
  const Latency latency = MeasureLatency(asker, repeat);
  const std::int64_t grown = Rollup(getpid(), "Private_Dirty") - before;
  std::atomic_ref(memory.header().stop).store(1);
  thread.join();
  // The same computation without a hand-off.
  std::vector<double> alone;
  for (int i = 0; i < std::min(repeat, 200); ++i) {
    const TimeNs start = clock.Now();
    AnswerRequest(layout, worker.job.first_ticket, worker.job, worker.scratch);
    alone.push_back(1e-3 * static_cast<double>(clock.Now() - start));
  }
  std::sort(alone.begin(), alone.end());
  const double computation_us = alone[alone.size() / 2];
  PrintHandoff(results, "thread", memory.header(), latency, start_us, computation_us, std::max<std::int64_t>(grown, 0));
  return computation_us;
}

void MeasureProcess(const AssistLayout& layout, std::int32_t rows, std::int32_t rank, int repeat, double computation_us,
                    Json& results) {
  const NamedMemory memory(layout, rows, rank);
  const OsClock clock;
  Asker asker(memory);
  std::string program = "/proc/self/exe", flag = "--worker", name = memory.name();
  char* arguments[] = {program.data(), flag.data(), name.data(), nullptr};
  pid_t process = 0;
  const TimeNs begin = clock.Now();
  CHECK(posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments, environ) == 0);
  asker.Ask();
  const double start_us = 1e-3 * static_cast<double>(clock.Now() - begin);
  const Latency latency = MeasureLatency(asker, repeat);
  const std::int64_t private_kib = Rollup(process, "Private_");
  std::atomic_ref(memory.header().stop).store(1);
  int status = 0;
  CHECK(waitpid(process, &status, 0) == process && status == 0);
  PrintHandoff(results, "process", memory.header(), latency, start_us, computation_us, private_kib);
}

void MeasureHandoff(const Flags& flags, Json& results) {
  struct Case {
    std::int64_t hidden;
    std::int32_t rows, rank;
  };
  for (const Case& c : {Case{64, 1, 1}, Case{flags.hidden, 1, 16}, Case{flags.hidden, 16, 64}}) {
    AssistLayout layout;
    layout.layers = 1;
    layout.fused = true;
    for (LinearShape& shape : layout.shapes) shape = {c.hidden, c.hidden};
    const int repeat = c.rows == 1 ? flags.repeat : std::max(flags.repeat / 10, 1);
    const double computation_us = MeasureThread(layout, c.rows, c.rank, repeat, results);
    MeasureProcess(layout, c.rows, c.rank, repeat, computation_us, results);
  }
}

void Run(const Flags& flags) {
  Json results;
  if (flags.only.empty() || flags.only == "speed") MeasureSpeed(flags, results);
  if (flags.only.empty() || flags.only == "handoff") MeasureHandoff(flags, results);
  if (flags.json.empty()) return;
  const Status written = WriteTextFile(flags.json, results.dump(1) + "\n");
  if (!written.ok()) CheckFailed(__FILE__, __LINE__, written.error().message);
}

}  // namespace
}  // namespace loramux

int main(int argc, char** argv) {
  loramux::Flags flags;
  loramux::Command command{.name = "assist_workers", .summary = "The processor's side of CPU-assisted LoRA"};
  command.line.Add({.names = "--only",
                    .target = &flags.only,
                    .unit = "PART",
                    .help = "Part to measure: speed or handoff; default: both"});
  command.line.Add({.names = "--hidden", .target = &flags.hidden, .unit = "N", .help = "Width of the model"});
  command.line.Add(
      {.names = "--ranks", .target = &flags.ranks, .unit = "N", .help = "Ranks of the adapters", .comma_list = true});
  command.line.Add({.names = "--rows",
                    .target = &flags.rows,
                    .unit = "N",
                    .help = "Tokens of a piece",
                    .range = {{1, 16}},
                    .comma_list = true});
  command.line.Add({.names = "--repeat", .target = &flags.repeat, .unit = "N", .help = "Hand-offs that are timed"});
  command.line.Add({.names = "--json", .target = &flags.json, .unit = "FILE", .help = "File for the results"});
  command.line.Add({.names = "--worker",
                    .target = &flags.worker,
                    .unit = "NAME",
                    .help = "For itself: be a worker over this shared memory"});
  command.run = [&flags] {
    if (flags.worker.empty()) {
      loramux::Run(flags);
    } else {
      loramux::HandoffWorker(loramux::NamedMemory::Open(flags.worker)).Serve();
    }
    return 0;
  };
  return loramux::RunCommand(command, argc, argv);
}
