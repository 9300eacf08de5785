// The rules of the source papers' systems, by the options that presets set (schedule/presets.h).
#pragma once

#include "schedule/plan/step_rules.h"
#include "schedule/queue/queue_order.h"
#include "schedule/system_spec.h"

namespace loramux {

// The rules that the options and the order ask for; none for `--preset loramux`. Both must outlive the rules.
StepRules MakeStepRules(const SystemSpec& options, const QueueOrder& order);

}  // namespace loramux
