// `loramux bench`: sends load to an OpenAI-compatible server and measures the responses.
#pragma once

#include "tools/bench_flags.h"

namespace loramux::load {

// Runs the command and returns its exit status. 0: every request was answered (correctly, where the answer was
// checked), or a comparison was printed. 1: the run could not be made. 2: some requests failed. 130: the user stopped
// the run.
int RunBench(BenchFlags flags);

Command BenchCommand();

}  // namespace loramux::load
