// The flags that say how a system serves. `serve` and `simulate` have them from here, so that a name, a unit, a range,
// a default and an explanation is the same in both, and in all that is made from the flags: help, configuration file,
// environment and reference.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "costs/performance_model.h"
#include "schedule/plan/step_shape_options.h"
#include "schedule/queue/size_lanes.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// The defaults of both commands.
inline constexpr std::int64_t kDefaultMaxNumSeqs = 256, kDefaultMaxNumBatchedTokens = 512;
inline constexpr double kDefaultAgeBoundSeconds = 30;

// The flag for this target, which must outlive the parse. The caller sets the group, and default_text where the default
// depends on the preset. Cache and queue order: empty means the preset's.
Flag CacheFlag(std::string& target);
Flag ScheduleFlag(std::string& target);
Flag AgeBoundFlag(double& target);
Flag CountCachedFlag(std::string& target);
Flag MaxDecodeStepFlag(double& target);
Flag ColdStartFlag(std::string& target);
Flag AdapterPrefetchFlag(std::string& target);
Flag MaxNumSeqsFlag(std::int64_t& target);
Flag MaxNumBatchedTokensFlag(FlagTarget target);

// The value of CountCachedFlag. Error: another one.
Result<CountCached> ParseCountCached(const std::string& text);
// The value of ColdStartFlag. Error: another one.
Result<ColdStartPolicy> ParseColdStartPolicy(const std::string& text);

// Error: the bound (of MaxDecodeStepFlag) has no model to predict by, or a request alone takes longer. 0: fine.
Status CheckMaxDecodeStep(TimeNs most, const PerformanceModel* model);

// The flag in a group, with the text for its default where that is not a value.
Flag InGroup(Flag flag, const std::string& group);
Flag InGroup(Flag flag, const std::string& group, const std::string& default_text);

}  // namespace loramux
