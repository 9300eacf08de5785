// Arrivals of requests: drawn (Poisson), or recorded in a CSV file, such as the Azure trace, or in the Mooncake trace.
// The only reader of these formats: load generator, simulator and benchmarks see the same requests. client_arrivals.h
// has those of ServeGen's clients.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace loramux {

// One arrival.
struct Arrival {
  TimeNs at = 0;                   // relative to the start of the run
  std::int64_t input_tokens = 0;   // 0: not in the trace
  std::int64_t output_tokens = 0;  // 0: not in the trace
  int client = -1;                 // the client that sent it, 0 is the busiest; -1: not in the trace
  std::int32_t adapter = -1;       // index in Trace::adapters; -1: the base model, or not in the trace
  // ids of the contents of the prompt's blocks; an id also identifies all blocks before it. Empty: not known
  std::vector<std::int32_t> blocks;
};

// The arrivals of a run.
struct Trace {
  std::vector<Arrival> arrivals;      // ascending by `at`
  int clients = 0;                    // 0: unknown
  bool names_adapters = false;        // it says of each request which adapter it is for
  bool has_lengths = true;            // false: it records invocations of functions, which have no tokens
  std::vector<std::string> adapters;  // names, in the order in which they appear
  std::int64_t block_tokens = 0;      // tokens of each block of Arrival::blocks except the last
};

// Which part of a trace a run takes, and how fast. It ends at whichever limit is reached first; 0: no limit.
struct TraceOptions {
  double start_s = 0;         // where in the recording it begins
  double rate = 0;            // mean requests per second; 0: as recorded
  double duration_s = 0;      // limit, in the trace's own time
  std::int64_t requests = 0;  // limit
  std::uint64_t seed = 0;
};

// The most arrivals that are drawn.
inline constexpr std::size_t kMaxTraceArrivals = 20'000'000;

// Draws Poisson arrivals. REQUIRES: rate > 0, one of the limits is set.
Trace PoissonTrace(const TraceOptions& options);

// Tokens of a block of Mooncake's trace.
inline constexpr std::int32_t kTraceBlockTokens = 512;
// The most tokens of a prompt or an answer; the readers refuse more.
inline constexpr std::int64_t kMaxTraceTokens = 1 << 24;

// Times are at most this many seconds from 1970, or from the recording's begin, so that differences fit TimeNs.
inline constexpr double kMaxTraceSeconds = 4e9;

// Parses a CSV trace, such as the Azure LLM inference trace: a header line, then lines with a time ("2023-11-16
// 18:15:46.6805900", also with T, Z or an offset, or seconds), the tokens of the prompt and of the answer, and maybe
// the name of an adapter (empty, "base" or "-": the base model). The header's names say which column is which (the
// manual lists them); other columns are ignored. Also invocations of Azure Functions as published in 2021 (app,func,
// end_timestamp,duration, in seconds): each arrives where it began, and its function stands for an adapter, "app/func";
// they have no lengths. Without a header, or with one that has none of these names, there are three columns: time,
// prompt, answer. Fields may be in double quotes, without commas in them. The result ascends from time 0, with at least
// one token each way where there are lengths. Errors name line and column.
Result<Trace> ParseCsvTrace(std::string_view text, const std::string& name);

// Parses the Mooncake trace: JSON lines {"timestamp" in ms, "input_length", "output_length", "hash_ids"}. hash_ids may
// be absent; otherwise there is one for every block of 512 input tokens.
Result<Trace> ParseMooncakeTrace(std::string_view text, const std::string& name);

// Reads the file of one of these kinds: *.jsonl is Mooncake's, anything else is CSV. Errors name file and line, or
// say that the file cannot be read.
Result<Trace> ReadTrace(const std::string& path);

// Sorts the trace and moves its first arrival to time 0. Error: it has no requests; the message begins with `name`.
Result<Trace> FromTheFirst(Trace trace, const std::string& name);

// Multiplies times (0.1: ten times as fast) and token counts, then cuts the trace at the limits of
// `options`; the rest of them has no effect.
void ScaleTrace(Trace& trace, double time_scale, double length_scale, const TraceOptions& options);

}  // namespace loramux
