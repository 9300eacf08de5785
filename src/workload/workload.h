// The workload of a simulated server: arrival times, lengths and adapters of requests. It is recorded, or drawn from
// distributions with a seed, so that every preset sees the same requests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"

namespace loramux {

// The ids of a workload's tokens are in [0, kWorkloadVocab).
inline constexpr std::int64_t kWorkloadVocab = std::int64_t{1} << 30;

// One request of a workload.
struct WorkloadRequest {
  TimeNs arrival = 0;             // for a session's later turns: the pause after the previous answer
  std::int32_t adapter = -1;      // index; -1: the base model
  std::int32_t input_tokens = 0;  // new tokens; a later turn's prompt begins with its whole session so far
  std::int32_t output_tokens = 0;
  std::int32_t next = -1;                         // index of the next turn; -1: the session ends
  bool follows = false;                           // it is such a later turn
  std::uint32_t first_block = 0, num_blocks = 0;  // in Workload::blocks; 0 blocks: the prompt is unlike any other
  std::int32_t tenant = -1;                       // the tenant that is charged; -1: the adapter
  std::int32_t prefix_domain = -1;                // the domain that shares its cached prefixes; -1: all requests
  std::int32_t priority = 0;                      // GenerationRequest::priority
  TimeNs deadline = 0;                            // relative to the arrival; 0: none
  TimeNs cancel_after = 0;  // time after arrival when the client cancels and asks no later turn; 0: never
};

// All requests of a simulation, and their adapters.
struct Workload {
  std::string what;                       // human-readable
  std::vector<WorkloadRequest> requests;  // those that do not follow another one ascend by arrival
  std::vector<std::int32_t> blocks;       // contents of prompts, 512 tokens each (Arrival::blocks)
  // by request: its input_tokens token ids, if known; empty: made from blocks, or unlike any other
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::int64_t> adapter_ranks;  // by adapter
  std::vector<std::string> adapter_names;   // by adapter, of the trace or the options; empty: they have none
  // By adapter: pages on the device and bytes moved, if known. Empty: the device computes them from the rank.
  std::vector<std::int64_t> adapter_pages, adapter_bytes;

  // Tokens of the longest sequence, prompt and output together; of a session with all its turns.
  std::int64_t MaxSequenceTokens() const;
  // How people know an adapter: its name, or "adapter-7" if it has none; "base model" for -1.
  std::string NameOf(std::int32_t adapter) const;
  // Appends the new tokens of a request's prompt.
  void AppendPrompt(std::size_t request, std::vector<TokenId>& prompt) const;
};

// How requests are distributed over adapters.
enum class Popularity : std::uint8_t {
  kUniform,
  kPowerLaw,  // Zipf's law with `exponent`; within each rank, as Chameleon's
  kDistinct,  // round robin (FastLibra 6.9)
  kGaussian,  // around the middle adapter with standard deviation `deviation` (FastLibra's "skewed")
};
// "uniform", "power-law", "distinct" or "gaussian". Error: another name.
Result<Popularity> ParsePopularity(const std::string& name);

inline constexpr double kMinRate = 1e-6, kMaxRate = 1e6;  // requests per second

struct Recordings;

// Options of MakeWorkload.
struct WorkloadOptions {
  std::string trace;  // file for ReadTrace; empty: lengths from the distributions below
  // directory for ReadClients: its arrivals are used, and a client stands for an adapter
  std::string clients;
  // What these files say, where it was read before (ReadRecordings). Null: MakeWorkload reads them.
  std::shared_ptr<const Recordings> recordings;
  double clients_hour = 0;    // where to start in the recording, in hours
  std::int64_t requests = 0;  // 0: as many as the trace has, or 2,000
  // Requests per second. If a trace's own times are kept, they are stretched to this rate; 0: as recorded (REQUIRES: a
  // trace or clients).
  double rate = 0;
  bool poisson = true;                         // Poisson arrivals; false: the trace's own times
  double input_mean = 512, output_mean = 128;  // without a trace: log-normal lengths, in tokens
  double input_cv = 1, output_cv = 1;
  double input_scale = 1, output_scale = 1;           // factors on recorded lengths
  std::int32_t max_input = 16384, max_output = 4096;  // longer ones are cut
  // 0: only the base model. Of no account if the trace says which adapter each request is for. If it records
  // invocations of functions, those of the so many functions that are invoked most are used, and each of these has an
  // adapter.
  std::int64_t adapters = 100;
  std::vector<std::int64_t> ranks = {8, 16, 32, 64, 128};  // adapter i has ranks[i % size]
  // Names of the adapters with these ranks, each with its own; empty: they have none.
  std::vector<std::string> adapter_names;
  // rank_popularity: uniform or power law
  Popularity popularity = Popularity::kPowerLaw, rank_popularity = Popularity::kUniform;
  double exponent = 1, deviation = 20;
  double base_share = 0;                 // share of requests without an adapter
  double turns = 1, think_seconds = 10;  // means; geometric and exponential distribution
  std::uint64_t seed = 1;
};

// Reads the files that the options name, unless they have the recordings of these files already. MakeWorkload then
// reads none. Errors: as MakeWorkload's of files.
Status ReadRecordings(WorkloadOptions& options);

// Builds a workload. If the trace names adapters, adapter i is the i-th of them; it has the rank of its name in
// adapter_names, or without those ranks[i % size]. If it records functions, adapter i is that of the function which is
// invoked the i-th most, and lengths are drawn. Errors: an option out of range, unreadable files, no request in the
// recording from clients_hour on, an adapter of the trace that is not in adapter_names.
Result<Workload> MakeWorkload(const WorkloadOptions& options);

}  // namespace loramux
