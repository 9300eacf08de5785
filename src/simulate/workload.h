// What is asked of a simulated server: when requests come, how long they are, which adapters they want. Recorded, or
// drawn from distributions; seeded, so that every preset is asked the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"

namespace loramux {

struct WorkloadRequest {
  TimeNs arrival = 0;             // of a session's later turns: the pause after the answer before
  std::int32_t adapter = -1;      // index; -1: the base model
  std::int32_t input_tokens = 0;  // new ones: a later turn's prompt begins with all of its session so far
  std::int32_t output_tokens = 0;
  std::int32_t next = -1;                         // the turn that follows; -1: the session ends
  bool follows = false;                           // it is such a turn
  std::uint32_t first_block = 0, num_blocks = 0;  // of Workload::blocks; none: its prompt is like no other's
  std::int32_t tenant = -1;                       // who pays for it; -1: its adapter
  std::int32_t priority = 0;                      // GenerationRequest::priority
  TimeNs deadline = 0;                            // after its arrival; 0: no wish
  TimeNs cancel_after = 0;  // its arrival the client goes away, and asks no later turn; 0: it stays
};

struct Workload {
  std::string what;                       // in words
  std::vector<WorkloadRequest> requests;  // those that do not follow another one ascend by arrival
  std::vector<std::int32_t> blocks;       // what prompts hold, 512 tokens each (TraceRequest::blocks)
  // by request, its input_tokens, where they are known; empty: of blocks, or like no other's
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::int64_t> adapter_ranks;  // by adapter
  // Of the device, and of what is moved, by adapter, where they are known; empty: as the device computes them of the
  // rank.
  std::vector<std::int64_t> adapter_pages, adapter_bytes;

  // Prompt and output together, of the longest: of a session, with all turns.
  std::int64_t MaxSequenceTokens() const;
  // The new tokens of a request's prompt, appended.
  void AppendPrompt(std::size_t request, std::vector<TokenId>& prompt) const;
};

enum class Popularity : std::uint8_t {
  kUniform,
  kPowerLaw,  // Zipf's law with `exponent`; Chameleon's: within each rank
  kDistinct,  // one after the other (FastLibra 6.9)
  kGaussian,  // around the middle one with standard deviation `deviation` (FastLibra's "skewed")
};
Result<Popularity> ParsePopularity(const std::string& name);

inline constexpr double kMinRate = 1e-6, kMaxRate = 1e6;  // requests per second

struct WorkloadOptions {
  std::string trace;  // ReadTrace's; empty: lengths from the distributions below
  // directory of ReadClients: arrivals are theirs, and a client stands for an adapter
  std::string clients;
  double clients_hour = 0;    // of the recording, from which on
  std::int64_t requests = 0;  // 0: as many as the trace has, or 2,000
  // Per second. With a trace whose own times are kept, these are stretched to it; 0: as they are (REQUIRES: a trace or
  // clients).
  double rate = 0;
  bool poisson = true;                         // false: the trace's own times
  double input_mean = 512, output_mean = 128;  // without a trace: log-normal
  double input_cv = 1, output_cv = 1;
  double input_scale = 1, output_scale = 1;                // of recorded lengths
  std::int32_t max_input = 16384, max_output = 4096;       // longer ones are cut
  std::int64_t adapters = 100;                             // 0: the base model alone
  std::vector<std::int64_t> ranks = {8, 16, 32, 64, 128};  // adapter i has ranks[i % size]
  // of ranks: uniform or power law
  Popularity popularity = Popularity::kPowerLaw, rank_popularity = Popularity::kUniform;
  double exponent = 1, deviation = 20;
  double base_share = 0;                 // of the requests want no adapter
  double turns = 1, think_seconds = 10;  // mean; geometric and exponential
  std::uint64_t seed = 1;
};

// Errors: an option out of range, files that cannot be read, no request in the recording from clients_hour on.
Result<Workload> MakeWorkload(const WorkloadOptions& options);

}  // namespace loramux
