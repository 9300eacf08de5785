// Runs an offline batch: the requests of a file through the jobs of the server, without HTTP.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>

#include "base/result.h"
#include "server/batch/batch_output.h"
#include "server/completion/completion_job.h"
#include "server/completion/text_answers.h"

namespace loramux {

// How far a run is.
struct BatchProgress {
  std::int64_t lines = 0;    // lines of the input, with those of earlier runs
  std::int64_t skipped = 0;  // lines that earlier runs have answered
  std::int64_t failed = 0;   // lines of this run that failed
  std::int64_t tokens = 0;   // tokens that this run generated
};

struct BatchRunOptions {
  TextLimits text;             // limits of lines that ask about a text
  std::int64_t max_jobs = 64;  // most jobs at a time
  // Called on the calling thread after each line.
  std::function<void(const BatchProgress&)> progress;
};

// Answers every line of `input` that `output` does not have. The engine of `context` must run. A line that fails has
// its error in `output` and never ends the run. Errors: one of the files cannot be used. On error, running requests are
// cancelled.
Result<BatchProgress> RunBatch(const ServingContext& context, const BatchRunOptions& options, std::FILE* input,
                               BatchOutput& output);

}  // namespace loramux
