#include "lab/experiments/chameleon_testbed.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>

namespace loramux {
namespace {

constexpr double kObjectiveFactor = 5;  // 5.1: "5x the average request execution time in a low-load system"
// Figure 2: with rank 128, loading takes 17.5 % of the time to the first token, and loading and computing the adapter
// together about 60 %. So computing the adapter takes 42.5 %, and the base model 40 %. S-LoRA's kernel (MBGMM) works
// with true ranks, so its time is proportional to the rank.
constexpr double kAdapterToBase = 0.425 / 0.40;
constexpr double kAdapterRank = 128;

// S-LoRA's running_max_req_size (its api_server.py): memory binds before seats do ("admissions are eventually limited
// by available GPU memory", 5.2.1).
constexpr std::int64_t kSeats = 1000;

// S-LoRA's batch_max_tokens, if the operator gives none (its api_server.py): a sixth of the pool, at least 3,072.
constexpr std::int64_t kLeastPromptsTogether = 3072;

// Experiments run at shares of the load that S-LoRA sustains, which may be none.
constexpr double kLeastLoad = 0.1;

// The jobs of a process share the trace, and its time at low load by machine: neither depends on the preset.
class SharedParts {
 public:
  Status Read(WorkloadOptions& load) {
    const std::lock_guard lock(mutex_);
    load.recordings = trace_ == load.trace ? recordings_ : nullptr;
    RETURN_IF_ERROR(ReadRecordings(load));
    trace_ = load.trace;
    recordings_ = load.recordings;
    return Ok{};
  }
  Status SetObjective(const ChameleonSetting& setting, SimulationJob& job) {
    const std::lock_guard lock(mutex_);
    const auto key = fmt::format("{} {} {} {} {} {} {}", setting.device, setting.model, setting.gpus, setting.adapters,
                                 job.load.trace, job.load.seed, std::min<std::int64_t>(job.load.requests, 1000));
    const auto known = objectives_.find(key);
    if (known != objectives_.end()) {
      loramux::SetObjective(job, known->second);
      return Ok{};
    }
    RETURN_IF_ERROR(SetChameleonObjective(job));
    objectives_.emplace(key, job.options.preset.spec.objective);
    return Ok{};
  }

 private:
  std::mutex mutex_;
  std::string trace_;
  std::shared_ptr<const Recordings> recordings_;
  std::map<std::string, TimeNs> objectives_;
};

SharedParts& Shared() {
  static SharedParts shared;
  return shared;
}

}  // namespace

// Other machines than figure 2's are scaled by their data sheets.
double ChameleonKernelFactor() {
  const SimulatedDevice known = DescribeDevice(FindDevice("a40").value(), FindModel("llama-7b").value()).value();
  return kAdapterToBase * known.model.per_prefill_token / kAdapterRank / known.model.per_adapter_token_rank;
}

void LimitPromptsTogether(SimulationJob& job) {
  const SimulatedDevice& device = job.options.device;
  job.options.preset.spec.whole_prompt_tokens =
      std::max(kLeastPromptsTogether, device.device_pages * device.page_tokens / 6);
}

void SetObjective(SimulationJob& job, TimeNs objective) {
  job.options.preset.spec.objective = objective;
  // Chameleon's own lanes have no age limit (SystemSpec::overdue_first).
  if (job.options.preset.spec.queue.starts_with("mlq")) job.options.preset.spec.age_bound = objective / 2;
}

Status SetChameleonObjective(SimulationJob& job, std::optional<ProgramCosts> program) {
  ASSIGN_OR_RETURN(Preset s_lora, FindPreset("s-lora"));
  if (program.has_value()) s_lora.program = *program;
  ASSIGN_OR_RETURN(const TimeNs low, LowLoadTime(job.options, job.load, std::move(s_lora)));
  SetObjective(job, static_cast<TimeNs>(kObjectiveFactor * static_cast<double>(low)));
  return Ok{};
}

Result<SimulationJob> MakeChameleonJob(const ExperimentContext& context, const ChameleonSetting& setting) {
  ASSIGN_OR_RETURN(const DeviceShape device, FindDevice(setting.device));
  ASSIGN_OR_RETURN(const ModelShape model, FindModel(setting.model));
  SimulationJob job;
  SimulationOptions& options = job.options;
  ASSIGN_OR_RETURN(options.device, DescribeDevice(device, model, setting.gpus));
  options.device.model.per_adapter_token_rank *= ChameleonKernelFactor();
  // The parts of an adapter go to each device separately over the host's single path, and are synchronised (3.2).
  options.device.model.host_to_device.bytes_per_second /= static_cast<double>(setting.gpus);
  ASSIGN_OR_RETURN(options.preset, FindPreset(setting.preset));
  LimitPromptsTogether(job);
  options.preset.spec.max_running = kSeats;
  options.seed = job.load.seed = context.seed;
  options.samples = 0;
  job.load.trace = context.Trace("AzureLLMInferenceTrace_conv.csv");
  RETURN_IF_ERROR(Shared().Read(job.load));
  job.load.input_scale = job.load.output_scale = kLengthScale;
  job.load.adapters = setting.adapters;
  job.load.rate = setting.trace_arrivals ? setting.rate : std::max(kLeastLoad, setting.rate);
  job.load.poisson = !setting.trace_arrivals;
  job.load.requests = context.Requests(setting.requests);
  RETURN_IF_ERROR(Shared().SetObjective(setting, job));
  if (setting.change) setting.change(job);
  if (context.assume) context.assume(job);
  return job;
}

Result<std::vector<SimulationJob>> MakeChameleonJobs(const ExperimentContext& context,
                                                     std::span<const ChameleonSetting> settings) {
  std::vector<SimulationJob> jobs;
  for (const ChameleonSetting& setting : settings) {
    ASSIGN_OR_RETURN(jobs.emplace_back(), MakeChameleonJob(context, setting));
  }
  return jobs;
}

Result<double> SLoraLoad(ExperimentContext& context, ChameleonSetting setting) {
  setting.preset = "s-lora";
  ASSIGN_OR_RETURN(const SimulationJob job, MakeChameleonJob(context, setting));
  ASSIGN_OR_RETURN(const auto loads, FindLoads(context, {&job, 1}));
  return loads.front().rate;
}

std::string DescribeChameleonTestbed(const SimulationJob& job) {
  return fmt::format(
      "{}; {} adapters of ranks 8 to 128; Azure's conversation trace with {:g} of its lengths (the paper's rule of "
      "section 3.2: peak memory equals capacity), {}, {} requests; objective: P99 TTFT of {:.2f} s, five times the "
      "mean time of a request on S-LoRA at low load. Adapters cross a link of {:.1f} GB/s twice (S-LoRA's source), "
      "adapter kernels are as slow as in figure 2. `loramux simulate --input-scale {:g} --output-scale {:g} --trace "
      "TRACE --rate R --preset P` gives an approximation of a line (with faster adapter kernels).",
      job.options.device.name, job.load.adapters, job.load.input_scale,
      job.load.poisson ? "Poisson arrivals" : "the trace's own arrivals", job.load.requests,
      static_cast<double>(job.options.preset.spec.objective) / kNsPerSecond,
      job.options.device.model.host_to_device.bytes_per_second / 1e9, job.load.input_scale, job.load.output_scale);
}

}  // namespace loramux
