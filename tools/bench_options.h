// Converts the flags of `loramux bench` into the options of each part of a run.
#pragma once

#include "base/result.h"
#include "loadgen/api_client.h"
#include "loadgen/report.h"
#include "loadgen/runner.h"
#include "loadgen/session_maker.h"
#include "tools/bench_flags.h"
#include "workload/client_arrivals.h"

namespace loramux::load {

// Options of the HTTP client. Errors: a URL or header that is malformed, a key file that cannot be read.
Result<HttpClientOptions> MakeClientOptions(const BenchFlags& flags);
// Options of the runner.
RunOptions MakeRunOptions(const BenchFlags& flags);
// Options of the workload, without the names of models, which may come from the server.
Result<SessionOptions> MakeWorkloadOptions(const BenchFlags& flags);
// Returns the arrivals of an open loop. REQUIRES: flags.open_loop().
Result<Trace> MakeTrace(const BenchFlags& flags);

// Returns the configuration that a report shows. It contains no key and no header.
ReportJson ConfigurationJson(const BenchFlags& flags, const SessionOptions& workload);

}  // namespace loramux::load
