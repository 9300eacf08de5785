#include "workload/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/message.h"
#include "base/prng.h"
#include "workload/client_arrivals.h"
#include "workload/distributions.h"

namespace loramux {

// What the files of a workload say.
struct Recordings {
  std::string trace_file, clients_folder;          // as in WorkloadOptions
  Trace trace;                                     // empty without a file
  std::vector<std::vector<ClientWindow>> clients;  // empty without a folder
};

namespace {

constexpr std::int64_t kDefaultRequests = 2000, kMaxRequests = 100'000'000;
constexpr double kLastArrival = 4e18;  // ns, 127 years: times after it still fit TimeNs
// Sequences of tokens differ in where their numbers begin.
constexpr std::uint64_t kBlockSeed = 0x426c6f636b, kPromptSeed = 0x50726f6d7074;

// Appends tokens derived from `seed`. Cheap to make; no two seeds agree on a page.
void AppendTokens(std::uint64_t seed, std::int32_t count, std::vector<TokenId>& tokens) {
  const std::uint64_t start = SplitMix64(seed);
  const std::size_t before = tokens.size();
  tokens.resize(before + static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) {
    const std::uint64_t value = start + static_cast<std::uint64_t>(i) * 0x9e3779b1u;
    tokens[before + static_cast<std::size_t>(i)] =
        static_cast<TokenId>(value & static_cast<std::uint64_t>(kWorkloadVocab - 1));
  }
}

// Chooses an adapter: first a rank, then an adapter with that rank.
class AdapterChoice {
 public:
  explicit AdapterChoice(const WorkloadOptions& options) : options_(options) {
    const auto adapters = static_cast<std::size_t>(options.adapters);
    groups_ = std::min(options.ranks.size(), adapters);
    if (groups_ == 0) return;
    for (std::size_t group = 0; group < groups_; ++group) {
      const std::size_t members = (adapters - group + groups_ - 1) / groups_;
      const double exponent = options.popularity == Popularity::kPowerLaw ? options.exponent : 0;
      within_.emplace_back(PowerLaw(members, exponent));
      weights_.push_back(options.rank_popularity == Popularity::kPowerLaw ? 1.0 / static_cast<double>(group + 1) : 1.0);
    }
    ranks_.emplace_back(weights_);
  }

  std::int32_t Draw(std::size_t nth, Prng& prng) const {
    if (groups_ == 0 || (options_.base_share > 0 && prng.NextDouble() < options_.base_share)) return -1;
    const auto count = static_cast<std::int32_t>(options_.adapters);
    if (options_.popularity == Popularity::kDistinct)
      return static_cast<std::int32_t>(nth % static_cast<std::size_t>(count));
    if (options_.popularity != Popularity::kGaussian) return AtUnits(prng.NextDouble(), prng.NextDouble());
    while (true) {
      const double at = count / 2.0 + options_.deviation * DrawNormal(prng);
      if (at >= 0 && at < count) return static_cast<std::int32_t>(at);
    }
  }
  std::int32_t AtUnits(double rank_unit, double unit) const {
    const std::size_t group = ranks_.front().At(rank_unit);
    return static_cast<std::int32_t>(within_[group].At(unit) * groups_ + group);
  }

 private:
  const WorkloadOptions& options_;
  std::size_t groups_ = 0;  // adapters of the same rank
  std::vector<double> weights_;
  std::vector<WeightedChoice> within_, ranks_;  // within_: one per group; ranks_: a single one
};

// Builds one workload. Independent properties use independent generators: another rate changes no length and, except
// with recorded clients, no adapter.
class Maker {
 public:
  // `named`: the trace says which adapter each request is for.
  Maker(const WorkloadOptions& options, const Recordings& recordings, bool named)
      : options_(options),
        trace_(recordings.trace.arrivals),
        named_(named),
        recorded_lengths_(recordings.trace.has_lengths),
        clients_(recordings.clients),
        choice_(options) {}

  Result<Workload> Make() {
    auto count = static_cast<std::size_t>(options_.requests);
    if (count == 0) count = trace_.empty() ? kDefaultRequests : trace_.size();
    workload_.requests.reserve(count);
    if (!clients_.empty()) {
      const double start = options_.clients_hour * 3600;
      arrivals_ = DrawClientArrivals(clients_, start, options_.rate, count, times_);
      count = std::min(count, arrivals_.size());
    }
    if (count == 0) {
      return InvalidArgument(fmt::format("{}: expected requests in the recording after hour {}, found none",
                                         options_.clients, options_.clients_hour),
                             "--clients-hour");
    }
    for (std::size_t nth = 0; workload_.requests.size() < count; ++nth) AddSession(nth, count);
    if (late_)
      return InvalidArgument(
          "rate: the last request would arrive after more than a century; raise --rate or lower --requests", "--rate");
    for (std::int64_t i = 0; i < options_.adapters; ++i) {
      workload_.adapter_ranks.push_back(options_.ranks[static_cast<std::size_t>(i) % options_.ranks.size()]);
    }
    if (options_.adapter_names.size() == workload_.adapter_ranks.size())
      workload_.adapter_names = options_.adapter_names;
    Describe();
    return std::move(workload_);
  }

 private:
  void AddSession(std::size_t nth, std::size_t count) {
    const TimeNs arrival = NextArrival(nth);
    std::int32_t adapter = -2;
    std::int64_t tokens = 0;
    for (bool follows = false; workload_.requests.size() < count; follows = true) {
      WorkloadRequest request{.arrival = follows ? ThinkTime() : arrival, .follows = follows};
      SetLengths(workload_.requests.size(), request);
      // the session has reached its maximum length
      if (follows && tokens + request.input_tokens > options_.max_input) return;
      if (adapter == -2) adapter = AdapterOf(nth, request);
      request.adapter = adapter;
      tokens += request.input_tokens + request.output_tokens;
      if (follows) workload_.requests.back().next = static_cast<std::int32_t>(workload_.requests.size());
      workload_.requests.push_back(request);
      if (options_.turns <= 1 || turns_.NextDouble() < 1 / options_.turns) return;
    }
  }

  TimeNs NextArrival(std::size_t nth) {
    if (!arrivals_.empty()) return arrivals_[std::min(nth, arrivals_.size() - 1)].at;
    if (options_.poisson) {
      now_ += DrawExponential(times_, options_.turns / options_.rate) * static_cast<double>(kNsPerSecond);
      return ArrivalAt(now_);
    }
    // Recorded times, repeated if there are too few.
    const double period = static_cast<double>(trace_.back().at) * (1 + 1.0 / static_cast<double>(trace_.size()));
    const double recorded =
        static_cast<double>(trace_[nth % trace_.size()].at) + period * static_cast<double>(nth / trace_.size());
    const double own_rate =
        static_cast<double>(trace_.size()) / std::max(1.0, period) * static_cast<double>(kNsPerSecond);
    return ArrivalAt(options_.rate > 0 ? recorded * own_rate * options_.turns / options_.rate : recorded);
  }

  TimeNs ArrivalAt(double ns) {
    if (!(ns <= kLastArrival)) late_ = true;
    return static_cast<TimeNs>(late_ ? kLastArrival : ns);
  }

  TimeNs ThinkTime() {
    return static_cast<TimeNs>(DrawExponential(turns_, options_.think_seconds) * static_cast<double>(kNsPerSecond));
  }

  void SetLengths(std::size_t nth, WorkloadRequest& request) {
    double input = 0, output = 0;
    if (trace_.empty() || !recorded_lengths_) {
      input = DrawLogNormal(lengths_, options_.input_mean, options_.input_cv);
      output = DrawLogNormal(lengths_, options_.output_mean, options_.output_cv);
    } else {
      const Arrival& recorded = trace_[nth % trace_.size()];
      input = static_cast<double>(recorded.input_tokens) * options_.input_scale;
      output = static_cast<double>(recorded.output_tokens) * options_.output_scale;
    }
    request.input_tokens =
        static_cast<std::int32_t>(std::clamp(std::round(input), 1.0, static_cast<double>(options_.max_input)));
    request.output_tokens =
        static_cast<std::int32_t>(std::clamp(std::round(output), 1.0, static_cast<double>(options_.max_output)));
    if (!trace_.empty() && options_.input_scale == 1) TakeBlocks(trace_[nth % trace_.size()], request);
  }

  void TakeBlocks(const Arrival& recorded, WorkloadRequest& request) {
    const std::int32_t blocks = (request.input_tokens + kTraceBlockTokens - 1) / kTraceBlockTokens;
    request.num_blocks =
        static_cast<std::uint32_t>(std::min<std::size_t>(static_cast<std::size_t>(blocks), recorded.blocks.size()));
    request.first_block = static_cast<std::uint32_t>(workload_.blocks.size());
    workload_.blocks.insert(workload_.blocks.end(), recorded.blocks.begin(),
                            recorded.blocks.begin() + request.num_blocks);
  }

  // The turns of a recorded conversation are separate requests that must use the same adapter. So the adapter is drawn
  // from the first block that belongs to the conversation alone (the very first block is often a shared system prompt).
  std::int32_t AdapterOf(std::size_t nth, const WorkloadRequest& request) {
    if (options_.adapters == 0) return -1;
    if (named_) return trace_[workload_.requests.size() % trace_.size()].adapter;
    if (!arrivals_.empty()) {
      return arrivals_[std::min(nth, arrivals_.size() - 1)].client % static_cast<std::int32_t>(options_.adapters);
    }
    if (request.num_blocks == 0) return choice_.Draw(nth, adapters_);
    const std::int32_t own = workload_.blocks[request.first_block + std::min<std::uint32_t>(1, request.num_blocks - 1)];
    Prng prng(SplitMix64(options_.seed) ^ static_cast<std::uint64_t>(own));
    return choice_.Draw(static_cast<std::size_t>(own), prng);
  }

  void Describe() {
    std::string& what = workload_.what;
    what = std::to_string(workload_.requests.size()) + " requests";
    if (!options_.trace.empty())
      what += (recorded_lengths_ ? " with the lengths of " : " for the functions of ") +
              options_.trace.substr(options_.trace.find_last_of('/') + 1);
    if (!arrivals_.empty())
      what += ", " + std::to_string(clients_.size()) + " recorded clients";
    else
      what += options_.poisson ? ", Poisson arrivals" : ", recorded arrivals";
    what += ", " + std::to_string(options_.adapters) + " adapters";
  }

  const WorkloadOptions& options_;
  const std::vector<Arrival>& trace_;
  const bool named_, recorded_lengths_;
  const std::vector<std::vector<ClientWindow>>& clients_;
  const AdapterChoice choice_;
  Prng times_{SplitMix64(options_.seed + 1)}, lengths_{SplitMix64(options_.seed + 2)},
      adapters_{SplitMix64(options_.seed + 3)}, turns_{SplitMix64(options_.seed + 4)};
  std::vector<ClientArrival> arrivals_;
  double now_ = 0;     // ns
  bool late_ = false;  // an arrival was after kLastArrival
  Workload workload_;
};

// A flag's number and its range. The comparison also rejects NaN.
struct NumberCheck {
  const char* flag;
  double value, low, high;
};

Status CheckNumbers(const WorkloadOptions& o) {
  // Draws outside the adapters are repeated. A Gaussian much wider than the range of adapters would therefore
  // practically never end.
  const bool gaussian = o.popularity == Popularity::kGaussian;
  const double widest = gaussian ? 100.0 * static_cast<double>(std::max<std::int64_t>(1, o.adapters)) : 1e9;
  const std::array checks = {NumberCheck{"--input-mean", o.input_mean, 1e-3, 1e9},
                             NumberCheck{"--output-mean", o.output_mean, 1e-3, 1e9},
                             NumberCheck{"--input-scale", o.input_scale, 1e-9, 1e9},
                             NumberCheck{"--output-scale", o.output_scale, 1e-9, 1e9},
                             NumberCheck{"--input-cv", o.input_cv, 0, 100},
                             NumberCheck{"--output-cv", o.output_cv, 0, 100},
                             NumberCheck{"--deviation", o.deviation, 1e-9, widest},
                             NumberCheck{"--exponent", o.exponent, 0, 10},
                             NumberCheck{"--base-share", o.base_share, 0, 1},
                             NumberCheck{"--turns", o.turns, 1, 1000},
                             NumberCheck{"--think-seconds", o.think_seconds, 0, 86400},
                             NumberCheck{"--clients-hour", o.clients_hour, 0, 1e5}};
  for (const NumberCheck& check : checks) {
    if (check.value >= check.low && check.value <= check.high) continue;
    return InvalidArgument(
        fmt::format("{}: expected {} to {}, found {}", check.flag, check.low, check.high, check.value), check.flag);
  }
  return Ok{};
}

Status CheckOptions(const WorkloadOptions& options) {
  const auto refuse = [](const std::string& what, const char* flag) { return InvalidArgument(what, flag); };
  if (options.requests < 0 || options.requests > kMaxRequests)
    return refuse("requests: expected 0 to 100,000,000", "--requests");
  const bool recorded = !options.clients.empty() || (!options.trace.empty() && !options.poisson);
  if (options.rate != 0 && !(options.rate >= kMinRate && options.rate <= kMaxRate)) {
    return refuse("rate: expected 0.000001 to 1,000,000 requests per second", "--rate");
  }
  if (options.rate <= 0 && !recorded) {
    return refuse("rate: expected a number of requests per second; only recorded arrivals have a rate of their own",
                  "--rate");
  }
  if (!options.poisson && !recorded) return refuse("arrivals: 'trace' needs --trace", "--arrivals");
  if (options.adapters < 0 || options.adapters > 1'000'000)
    return refuse("adapters: expected 0 to 1,000,000", "--adapters");
  if (options.ranks.empty()) return refuse("ranks: expected at least one", "--ranks");
  for (const std::int64_t rank : options.ranks) {
    if (rank < 1 || rank > 4096) return refuse("ranks: expected 1 to 4096, found " + std::to_string(rank), "--ranks");
  }
  if (options.rank_popularity != Popularity::kUniform && options.rank_popularity != Popularity::kPowerLaw) {
    return refuse("rank popularity: expected uniform or power-law", "--rank-popularity");
  }
  RETURN_IF_ERROR(CheckNumbers(options));
  if (options.max_input < 1 || options.max_output < 1)
    return refuse("maximum lengths: expected at least 1", "--max-input");
  return Ok{};
}

// The adapters of the workload are those of the trace.
Status TakeAdapters(const std::vector<std::string>& names, WorkloadOptions& options) {
  options.adapters = static_cast<std::int64_t>(names.size());
  const std::vector<std::string> in_directory = std::exchange(options.adapter_names, names);
  if (in_directory.empty()) return Ok{};
  std::map<std::string_view, std::int64_t> known;
  for (std::size_t i = 0; i < in_directory.size(); ++i)
    known.emplace(in_directory[i], options.ranks[i % options.ranks.size()]);
  std::vector<std::int64_t> ranks;
  for (const std::string& name : names) {
    const auto found = known.find(name);
    if (found == known.end()) {
      return InvalidArgument(
          fmt::format("{}: expected the names of adapters in --adapter-dir, found {}; without --adapter-dir they have "
                      "--ranks in turn",
                      options.trace, Quote(name)),
          "--trace");
    }
    ranks.push_back(found->second);
  }
  options.ranks = std::move(ranks);
  return Ok{};
}

// The invocations of the functions that are invoked most, which are the adapters: the first is invoked most.
Result<Recordings> TakeFunctions(const Recordings& all, WorkloadOptions& options) {
  if (options.input_scale != 1 || options.output_scale != 1) {
    const char* flag = options.input_scale != 1 ? "--input-scale" : "--output-scale";
    return InvalidArgument(fmt::format("{}: expected 1 with {}, which has no lengths; --input-mean and --output-mean "
                                       "are those of the requests",
                                       flag, options.trace),
                           flag);
  }
  const std::vector<std::string>& names = all.trace.adapters;
  std::vector<std::size_t> counts(names.size()), order(names.size());
  for (const Arrival& arrival : all.trace.arrivals) ++counts[static_cast<std::size_t>(arrival.adapter)];
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return counts[a] > counts[b]; });
  if (options.adapters > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(options.adapters)));
  std::vector<std::int32_t> place(names.size(), -1);
  const bool has_names = options.adapter_names.size() >= order.size();  // those of --adapter-dir
  if (!has_names) options.adapter_names.clear();
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = static_cast<std::int32_t>(i);
    if (!has_names) options.adapter_names.push_back(names[order[i]]);
  }
  if (options.adapters > 0) options.adapters = std::ssize(order);
  options.adapter_names.resize(static_cast<std::size_t>(options.adapters));
  Recordings taken{.trace_file = all.trace_file, .clients_folder = {}, .trace = {.has_lengths = false}, .clients = {}};
  for (const Arrival& arrival : all.trace.arrivals) {
    const std::int32_t adapter = place[static_cast<std::size_t>(arrival.adapter)];
    if (adapter >= 0) taken.trace.arrivals.push_back({.at = arrival.at, .adapter = adapter});
  }
  ASSIGN_OR_RETURN(taken.trace, FromTheFirst(std::move(taken.trace), options.trace));
  return taken;
}

// The clients' arrivals are drawn window by window.
Status CheckWindows(const std::vector<std::vector<ClientWindow>>& clients, const std::string& folder) {
  for (const auto& windows : clients) {
    if (windows.size() == clients.front().size()) continue;
    return InvalidArgument(fmt::format("{}: expected as many windows for each client, found {} and {}", folder,
                                       windows.size(), clients.front().size()),
                           "--clients");
  }
  return Ok{};
}

}  // namespace

std::int64_t Workload::MaxSequenceTokens() const {
  std::vector<std::int64_t> tokens(requests.size());  // by request: tokens of its session up to and including this turn
  std::int64_t most = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    tokens[i] += requests[i].input_tokens + requests[i].output_tokens;
    most = std::max(most, tokens[i]);
    if (requests[i].next >= 0) tokens[static_cast<std::size_t>(requests[i].next)] = tokens[i];
  }
  return most;
}

std::string Workload::NameOf(std::int32_t adapter) const {
  if (adapter < 0) return "base model";
  const auto at = static_cast<std::size_t>(adapter);
  return at < adapter_names.size() ? adapter_names[at] : "adapter-" + std::to_string(adapter);
}

void Workload::AppendPrompt(std::size_t request, std::vector<TokenId>& prompt) const {
  const WorkloadRequest& asked = requests[request];
  if (!prompts.empty()) {
    prompt.insert(prompt.end(), prompts[request].begin(), prompts[request].end());
    return;
  }
  std::int32_t left = asked.input_tokens;
  for (std::uint32_t i = 0; i < asked.num_blocks && left > 0; ++i) {
    const std::int32_t tokens = std::min(left, kTraceBlockTokens);
    AppendTokens(kBlockSeed << 32 ^ static_cast<std::uint64_t>(blocks[asked.first_block + i]), tokens, prompt);
    left -= tokens;
  }
  AppendTokens(kPromptSeed << 20 ^ request, left, prompt);
}

Result<Popularity> ParsePopularity(const std::string& name) {
  if (name == "uniform") return Popularity::kUniform;
  if (name == "power-law") return Popularity::kPowerLaw;
  if (name == "distinct") return Popularity::kDistinct;
  if (name == "gaussian") return Popularity::kGaussian;
  return InvalidArgument("popularity: expected uniform, power-law, distinct or gaussian, found '" + name + "'",
                         "--popularity");
}

Status ReadRecordings(WorkloadOptions& options) {
  const auto& known = options.recordings;
  if (known != nullptr && known->trace_file == options.trace && known->clients_folder == options.clients) return Ok{};
  auto read = std::make_shared<Recordings>();
  read->trace_file = options.trace;
  read->clients_folder = options.clients;
  if (!options.trace.empty()) {
    ASSIGN_OR_RETURN(read->trace, ReadTrace(options.trace));
  }
  if (!options.clients.empty()) {
    ASSIGN_OR_RETURN(read->clients, ReadClients(options.clients));
    RETURN_IF_ERROR(CheckWindows(read->clients, options.clients));
  }
  options.recordings = std::move(read);
  return Ok{};
}

Result<Workload> MakeWorkload(const WorkloadOptions& asked) {
  RETURN_IF_ERROR(CheckOptions(asked));
  WorkloadOptions options = asked;
  RETURN_IF_ERROR(ReadRecordings(options));
  const Recordings& recordings = *options.recordings;
  const bool named = options.clients.empty() && recordings.trace.names_adapters;
  if (named && !recordings.trace.has_lengths) {
    ASSIGN_OR_RETURN(const Recordings functions, TakeFunctions(recordings, options));
    return Maker(options, functions, named).Make();
  }
  if (named) RETURN_IF_ERROR(TakeAdapters(recordings.trace.adapters, options));
  return Maker(options, recordings, named).Make();
}

}  // namespace loramux
