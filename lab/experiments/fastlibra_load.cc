#include "lab/experiments/fastlibra_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "base/prng.h"
#include "lab/experiments/workloads.h"
#include "workload/distributions.h"

namespace loramux {
namespace {

// Section 6.2 names the data sets and gives no lengths; these are the data sets' own.
// - LMSYS-33k, the conversations of Chatbot Arena: 52.3 tokens per prompt, 189.5 per answer, 1.2 turns (table 1 of the
//   paper on LMSYS-Chat-1M, arXiv 2309.11998).
// - OPUS-100 has sentences. Its paper gives no lengths: 20 to 30 words in two languages, and the instruction.
// - Taskmaster: 22 utterances per dialogue (Taskmaster-1, arXiv 1909.05358), which are 11 turns. Tokens of a turn are
//   those of the 500 dialogues of Taskmaster-4 in shared/data: 33 characters of the user and 328 of what the tools
//   answer; 60 characters of the assistant and 133 of its calls of tools; 4 characters to a token.
// Pauses between turns and the exponents are this project's assumptions.
constexpr std::array kScenarios = std::to_array<FastLibraScenario>({
    {"chatbot", 52, 190, 1.2, 20, 1, false},
    {"translation", 50, 40, 1, 0, 0.8, true},
    {"agent", 90, 48, 11, 3, 0.8, true},
});
constexpr std::array kModels =
    std::to_array<FastLibraModel>({{"llama-7b", "7B", 1}, {"llama-13b", "13B", 2}, {"llama-34b", "34B", 4}});

// Requests. With the most of them, 100 are beyond the 99th percentile; and a run asks for many times what the memory
// holds, so that something has to leave it.
constexpr std::int64_t kFewest = 2000, kMost = 10'000;
// When the paper's baseline runs out of memory (6.5), running requests hold the memory, so memory and not seats must be
// the limit. vLLM's default of 256 seats would be too few.
constexpr std::int64_t kSeats = 1024;

// Section 6.5: low load from 0 to 400 s, rising until 900 s, highest until 1,300 s, then lower. The paper does not give
// the ratios; these are this project's assumption.
struct Knot {
  double seconds, rate;
};
constexpr std::array kProfile = std::to_array<Knot>({{0, 0.5}, {400, 0.5}, {900, 1.8}, {1300, 1.8}, {1800, 0.7}});
// Section 2.3.2: until 1,100 s of the half hour requests use 41 adapters, then 75; of 100, by this project's reading.
constexpr double kShiftAt = 1100 / kFastLibraSeconds, kBefore = 0.41, kAfter = 0.75;

// Returns the second of the half hour by which a share of its requests has arrived.
double ArrivalOf(double share) {
  double total = 0;
  for (std::size_t i = 1; i < kProfile.size(); ++i) {
    total += (kProfile[i].seconds - kProfile[i - 1].seconds) * (kProfile[i].rate + kProfile[i - 1].rate) / 2;
  }
  double left = share * total;
  for (std::size_t i = 1; i < kProfile.size(); ++i) {
    const auto [begin, from] = kProfile[i - 1];
    const double width = kProfile[i].seconds - begin, slope = (kProfile[i].rate - from) / width;
    const double part = width * (from + kProfile[i].rate) / 2;
    if (left > part && i + 1 < kProfile.size()) {
      left -= part;
      continue;
    }
    // Solves from x + slope x^2 / 2 = left.
    return begin +
           (slope == 0 ? left / from : (std::sqrt(std::max(0.0, from * from + 2 * slope * left)) - from) / slope);
  }
  return kProfile.back().seconds;
}

Result<Preset> SystemOf(std::string_view name) {
  if (name == "vllm-waits") {
    ASSIGN_OR_RETURN(Preset preset, FindPreset("vllm"));
    preset.spec.cold_start = ColdStart::kStall;
    preset.spec.max_loads_in_flight = 256;
    return preset;
  }
  if (name == "s-lora-same-loop") {
    ASSIGN_OR_RETURN(Preset preset, FindPreset("fifo"));
    preset.spec.cache = "s-lora";
    preset.spec.keep_history = false;
    return preset;
  }
  return FindPreset(name);
}

// Returns the adapters in use, the most popular first.
std::vector<std::int32_t> InUse(std::int64_t adapters, double share, bool last, Prng& prng,
                                const std::vector<std::int32_t>& order) {
  const auto count =
      static_cast<std::ptrdiff_t>(std::max<std::int64_t>(1, std::llround(share * static_cast<double>(adapters))));
  std::vector<std::int32_t> used(last ? order.end() - count : order.begin(),
                                 last ? order.end() : order.begin() + count);
  for (std::size_t i = used.size(); i > 1; --i) std::swap(used[i - 1], used[prng.NextBelow(i)]);
  return used;
}

}  // namespace

std::span<const FastLibraScenario> FastLibraScenarios() { return kScenarios; }
std::span<const FastLibraModel> FastLibraModels() { return kModels; }

std::string FastLibraCell::Name() const {
  const std::string part = memory == 1 ? "" : fmt::format(", {:.0f} % of the memory", 100 * memory);
  return fmt::format("{} {}-{}{}", kScenarios[scenario].name, kModels[model].name, adapters, part);
}

std::int64_t FastLibraRequests(const ExperimentContext& context, double rate, const FastLibraScenario& scenario) {
  constexpr double kTokenSeconds = 0.05;  // time of an answer's token, at high load
  constexpr double kLeastConversations = 2;
  const double takes = (scenario.turns - 1) * scenario.think_seconds + scenario.turns * scenario.output * kTokenSeconds;
  const auto requests_in = [&](double seconds) { return static_cast<std::int64_t>(rate * scenario.turns * seconds); };
  return std::max(context.Requests(std::clamp(requests_in(kFastLibraSeconds), kFewest, kMost)),
                  requests_in(kLeastConversations * takes));
}

Result<SimulationJob> MakeFastLibraCellJob(const ExperimentContext& context, const FastLibraCell& cell,
                                           std::string_view system, double rate) {
  const FastLibraScenario& scenario = kScenarios[cell.scenario];
  const FastLibraModel& model_case = kModels[cell.model];
  ASSIGN_OR_RETURN(const DeviceShape npu, FindDevice("npu-64"));
  ASSIGN_OR_RETURN(const ModelShape model, FindModel(model_case.model));
  SimulationJob job;
  SimulatedDevice& device = job.options.device;
  ASSIGN_OR_RETURN(device, DescribeDevice(npu, model, model_case.gpus));
  ASSIGN_OR_RETURN(job.options.preset, SystemOf(system));
  job.options.preset.spec.max_batch_tokens = 2048;
  job.options.preset.spec.max_running = kSeats;
  job.options.seed = job.load.seed = context.seed;
  device.device_pages = device.PagesOf(cell.memory * static_cast<double>(device.device_pages * device.page_bytes));
  device = device.WithPageTokens(kFastLibraBlockTokens);
  for (PerformanceModel::Link* link : {&device.model.host_to_device, &device.model.device_to_host}) {
    link->piece_bytes = static_cast<double>(kFastLibraBlockTokens * 2 * model.KvWidth());
    link->per_piece = kFastLibraCopySeconds;
  }
  job.options.preset.spec.host_copies =
      HostCopies::kRegistered;  // 3.2 and 6.1: adapters are swapped in from the main memory
  job.load = {.requests = FastLibraRequests(context, rate, scenario),
              .rate = rate,
              .input_mean = cell.lengths * scenario.input,
              .output_mean = cell.lengths * scenario.output,
              .max_input = 8192,
              .max_output = 4096,
              .adapters = cell.adapters,
              .ranks = {32, 64},
              .exponent = scenario.exponent,
              .turns = scenario.turns,
              .think_seconds = scenario.think_seconds,
              .seed = context.seed};
  return job;
}

void ShapeFastLibraLoad(const SimulationJob& job, const FastLibraCell& cell, std::string_view system,
                        Workload& workload) {
  const FastLibraScenario& scenario = kScenarios[cell.scenario];
  TimeNs last = 1;
  for (const WorkloadRequest& request : workload.requests) {
    if (!request.follows) last = std::max(last, request.arrival);
  }
  Prng prng(SplitMix64(job.load.seed + 17));
  std::vector<std::int32_t> order(static_cast<std::size_t>(cell.adapters));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng.NextBelow(i)]);
  const std::array used = {InUse(cell.adapters, kBefore, false, prng, order),
                           InUse(cell.adapters, kAfter, true, prng, order)};
  const std::array choices = {WeightedChoice(PowerLaw(used[0].size(), scenario.exponent)),
                              WeightedChoice(PowerLaw(used[1].size(), scenario.exponent))};
  for (WorkloadRequest& request : workload.requests) {
    if (request.follows) continue;
    const double at = ArrivalOf(static_cast<double>(request.arrival) / static_cast<double>(last)) / kFastLibraSeconds;
    request.arrival = static_cast<TimeNs>(at * static_cast<double>(last));
    if (!scenario.shifts) continue;
    const std::size_t phase = at < kShiftAt ? 0 : 1;
    request.adapter = used[phase][choices[phase].At(prng.NextDouble())];
  }
  for (WorkloadRequest& request : workload.requests) {  // all turns of a conversation use one adapter
    if (request.next >= 0) workload.requests[static_cast<std::size_t>(request.next)].adapter = request.adapter;
  }
  // 6.1: the ranks are "32 and 64 randomly".
  for (std::int64_t& rank : workload.adapter_ranks) rank = job.load.ranks[prng.NextBelow(job.load.ranks.size())];
  // vLLM's slots have the size of the largest rank (max_lora_rank). Figure 4: 41 adapters occupy 58.9 % of a fifth of
  // the memory that 7B leaves, so about 70 fill it. Here 72 slots of rank 64 fill it; with slots of the adapters' own
  // ranks it would be 96.
  if (system != "vllm-waits") return;
  const std::int64_t largest = *std::max_element(job.load.ranks.begin(), job.load.ranks.end());
  workload.adapter_pages.assign(workload.adapter_ranks.size(), job.options.device.AdapterPages(largest));
}

// For the comparison of any presets (workloads.h): the arithmetic of table 1, a steady load, longer conversations.
Result<SimulationJob> MakeFastLibraJob(const ExperimentContext& context, FastLibraLoad load, std::string_view preset) {
  const FastLibraCell cell{.scenario = static_cast<std::size_t>(load)};
  ASSIGN_OR_RETURN(SimulationJob job, MakeFastLibraCellJob(context, cell, preset, 16));
  job.options.preset.spec.max_running = SystemSpec().max_running;
  job.load.max_output = 1024;
  job.options.preset.spec.host_copies = HostCopies::kLoaded;  // as with the presets that it is compared with
  for (PerformanceModel::Link* link :
       {&job.options.device.model.host_to_device, &job.options.device.model.device_to_host})
    link->per_piece = 0;
  if (load == FastLibraLoad::kAgent) {  // longer results of tools
    job.load.input_mean = 120;
    job.load.output_mean = 50;
  }
  if (load == FastLibraLoad::kChatbot) {  // LMSYS-Chat-1M: 69.5 tokens per prompt, 214.5 per answer, 2 turns
    job.load.input_mean = 70;
    job.load.output_mean = 215;
    job.load.turns = 2;
  }
  if (load == FastLibraLoad::kTranslation) {  // arrivals and adapters of recorded clients
    job.load.clients = context.Trace("servegen_m-small");
    job.load.clients_hour = 12;
    RETURN_IF_ERROR(ReadRecordings(job.load));
    job.load.exponent = 0;
  }
  return job;
}

}  // namespace loramux
