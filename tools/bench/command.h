// `loramux bench`: sends load to an OpenAI-compatible server and measures what comes back.
#pragma once

#include "tools/bench/flags.h"

namespace loramux::load {

// 0: everything was answered (rightly, where that was checked), or a comparison was shown; 1: the run could not be
// made; 2: some requests failed; 130: stopped by the user.
int RunBench(BenchFlags flags);

Command BenchCommand();

}  // namespace loramux::load
