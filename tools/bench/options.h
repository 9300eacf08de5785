// What the flags mean to the parts of a run.
#pragma once

#include "base/result.h"
#include "tools/bench/api_client.h"
#include "tools/bench/flags.h"
#include "tools/bench/report.h"
#include "tools/bench/runner.h"
#include "tools/bench/trace.h"
#include "tools/bench/workload.h"

namespace loramux::load {

Result<ApiClientOptions> MakeClientOptions(const BenchFlags& flags);
RunOptions MakeRunOptions(const BenchFlags& flags);
// Without the names, which may come from the server.
Result<WorkloadOptions> MakeWorkloadOptions(const BenchFlags& flags);
// Of an open loop. REQUIRES: flags.open_loop().
Result<Trace> MakeTrace(const BenchFlags& flags);

// What a report says of how it was made. No key or header is in it.
ReportJson ConfigurationJson(const BenchFlags& flags, const WorkloadOptions& workload);

}  // namespace loramux::load
