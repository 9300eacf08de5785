#include "lab/experiments/chameleon_testbed.h"

#include <algorithm>

#include <fmt/format.h>

namespace loramux {
namespace {

constexpr double kObjectiveFactor = 5;  // 5.1: "5x the average request execution time in a low-load system"
// Figure 2: with rank 128, loading takes 17.5 % of the time to the first token, and loading and computing the adapter
// together about 60 %. So computing the adapter takes 42.5 %, and the base model 40 %. S-LoRA's kernel (MBGMM) works
// with true ranks, so its time is proportional to the rank.
constexpr double kAdapterToBase = 0.425 / 0.40;
constexpr double kAdapterRank = 128;

// The factor by which S-LoRA's kernels are slower than DescribeDevice assumes, on the machine of figure 2. Other
// machines are scaled by their data sheets.
Result<double> KernelFactor() {
  ASSIGN_OR_RETURN(const DeviceShape device, FindDevice("a40"));
  ASSIGN_OR_RETURN(const ModelShape model, FindModel("llama-7b"));
  ASSIGN_OR_RETURN(const SimulatedDevice known, DescribeDevice(device, model));
  return kAdapterToBase * known.model.per_prefill_token / kAdapterRank / known.model.per_adapter_token_rank;
}

// S-LoRA's batch_max_tokens, if the operator gives none (its api_server.py): a sixth of the pool, at least 3,072.
constexpr std::int64_t kLeastPromptsTogether = 3072;

}  // namespace

void LimitPromptsTogether(SimulationJob& job) {
  const SimulatedDevice& device = job.options.device;
  job.options.preset.spec.whole_prompt_tokens =
      std::max(kLeastPromptsTogether, device.device_pages * device.page_tokens / 6);
}

void SetObjective(SimulationJob& job, TimeNs objective) {
  job.options.preset.spec.objective = objective;
  // The paper's quotas are to keep every lane within the SLO, and "no request starves". Here an age limit ensures it.
  if (job.options.preset.spec.queue.starts_with("mlq")) job.options.preset.spec.age_bound = objective / 2;
}

Status SetChameleonObjective(SimulationJob& job) {
  ASSIGN_OR_RETURN(const TimeNs low, LowLoadTime(job.options, job.load, "s-lora"));
  SetObjective(job, static_cast<TimeNs>(kObjectiveFactor * static_cast<double>(low)));
  return Ok{};
}

Result<SimulationJob> MakeChameleonJob(const ExperimentContext& context, const ChameleonSetting& setting) {
  ASSIGN_OR_RETURN(const DeviceShape device, FindDevice(setting.device));
  ASSIGN_OR_RETURN(const ModelShape model, FindModel(setting.model));
  ASSIGN_OR_RETURN(const double kernel_factor, KernelFactor());
  SimulationJob job;
  SimulationOptions& options = job.options;
  ASSIGN_OR_RETURN(options.device, DescribeDevice(device, model, setting.gpus));
  options.device.model.per_adapter_token_rank *= kernel_factor;
  // The parts of an adapter go to each device separately over the host's single path, and are synchronised (3.2).
  options.device.model.host_to_device.bytes_per_second /= static_cast<double>(setting.gpus);
  ASSIGN_OR_RETURN(options.preset, FindPreset(setting.preset));
  LimitPromptsTogether(job);
  options.seed = job.load.seed = context.seed;
  options.samples = 0;
  job.load.trace = context.Trace("AzureLLMInferenceTrace_conv.csv");
  RETURN_IF_ERROR(ReadRecordings(job.load));
  job.load.input_scale = job.load.output_scale = kLengthScale;
  job.load.adapters = setting.adapters;
  job.load.rate = setting.rate;
  job.load.poisson = !setting.trace_arrivals;
  job.load.requests = context.Requests(setting.requests);
  RETURN_IF_ERROR(SetChameleonObjective(job));
  if (setting.change) setting.change(job);
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
