#include "schedule/system_spec.h"

#include "schedule/system_settings.h"

namespace loramux {
namespace {

// Without chunked prefill: the most tokens of several prompts in a step.
constexpr std::int64_t kWholePromptTokens = 4096;

}  // namespace

Status Complete(SystemSpec& spec, std::int64_t max_model_len) {
  ASSIGN_OR_RETURN(const CacheRegime regime, FindCacheRegime(spec.cache));
  if (!spec.partitioned()) spec.adapter_share = regime.adapter_share;
  if (spec.adapter_bytes > 0) spec.adapter_share = 0;
  spec.keep_history = spec.keep_history && regime.keep_history;
  spec.keep_idle_adapters = regime.keep_idle_adapters;
  spec.maintain_dependency = regime.maintain_dependency;
  spec.host_bonus = regime.host_bonus;
  spec.proactive_swapping = regime.proactive_swapping;
  if (spec.reserve_output) spec.discard_share = 0;
  spec.prefill_chunk = spec.Chunk();
  if (spec.chunked_prefill) return Ok{};
  spec.state_snapshot_tokens = 0;  // a snapshot stands where a step of its request ends
  if (spec.whole_prompt_tokens == 0) spec.whole_prompt_tokens = kWholePromptTokens;
  spec.prefill_chunk = max_model_len;
  spec.max_batch_tokens = std::max(max_model_len, spec.whole_prompt_tokens) + spec.max_running;
  return Ok{};
}

void TakeOperatorsSettings(const SystemSpec& from, SystemSpec& to) {
  for (const Setting& setting : kSettings) {
    if (setting.group != SettingGroup::kNoFlag && !setting.in_presets) setting.set(to, setting.get(from));
  }
}

}  // namespace loramux
