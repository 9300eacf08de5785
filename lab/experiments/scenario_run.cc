#include "lab/experiments/scenario_run.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace loramux {
namespace {

constexpr std::size_t kSessionsAtOnce = 16;  // sessions of the reference that run at once
constexpr std::int64_t kAmple = std::int64_t{1} << 30;
constexpr auto kSamplePeriod = std::chrono::milliseconds(50);

double Seconds(TimeNs time) { return static_cast<double>(time) / kNsPerSecond; }

struct World {
  std::unique_ptr<Runtime> runtime;
  std::vector<AdapterGeneration> adapters;
  Engine& engine() { return runtime->engine(); }
  EngineStats Stats() { return runtime->engine().Stats(); }
};

Result<World> MakeWorld(const ScenarioHouse& house, RuntimeOptions options) {
  options.threads = house.threads;
  options.base_names = {"base"};
  options.spec.max_running = 64;
  options.spec.load_on_arrival = true;  // as `serve` with any of these regimes
  World world;
  ASSIGN_OR_RETURN(world.runtime, Runtime::Load(house.model, std::move(options), {}));
  for (const auto& path : house.adapters) {
    ASSIGN_OR_RETURN(const auto version, world.runtime->registry().Register(path.filename().string(), path, 0));
    world.adapters.push_back(version->generation);
  }
  world.runtime->Start();
  return world;
}

GenerationRequest MakeRequest(const World& world, std::size_t adapter, const std::vector<TokenId>& prompt,
                              std::size_t answer_tokens) {
  GenerationRequest request;
  request.prompt = prompt;
  request.adapter = world.adapters[adapter];
  request.sampling.temperature = 0;
  request.max_tokens = static_cast<std::int32_t>(answer_tokens);
  request.ignore_eos = true;
  return request;
}

// Passes messages from callbacks on the engine thread to the waiting thread.
class Mailbox {
 public:
  void Post(std::size_t what) {
    const std::lock_guard lock(mutex_);
    posted_.push_back(what);
    condition_.notify_one();
  }
  std::size_t Take() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return !posted_.empty(); });
    const std::size_t what = posted_.front();
    posted_.pop_front();
    return what;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::deque<std::size_t> posted_;
};

// Runs all sessions, sixteen at a time, each turn after the one before. Answers by session and turn.
class ClosedLoop {
 public:
  ClosedLoop(World& world, const std::vector<Session>& sessions)
      : world_(world), sessions_(sessions), states_(sessions.size()) {}

  Status Run() {
    std::size_t begun = 0, ended = 0, answered = 0;
    const TimeNs begin = world_.runtime->clock().Now();
    while (begun < std::min(kSessionsAtOnce, sessions_.size())) RETURN_IF_ERROR(Ask(begun++));
    while (ended < sessions_.size()) {
      const std::size_t i = mailbox_.Take();
      if (!states_[i].error.empty()) return Internal(states_[i].error);
      ++answered;
      // Once the last session has begun, fewer and fewer run at once; the machine's capacity is measured before.
      if (begun < sessions_.size() || rate_ == 0) {
        rate_ = static_cast<double>(answered) / std::max(1e-9, Seconds(world_.runtime->clock().Now() - begin));
      }
      if (++states_[i].turn < sessions_[i].turns.size()) {
        RETURN_IF_ERROR(Ask(i));
      } else {
        ++ended;
        if (begun < sessions_.size()) RETURN_IF_ERROR(Ask(begun++));
      }
    }
    return Ok{};
  }

  // Answers per second while sixteen sessions ran.
  double rate() const { return rate_; }

  // In order of due.
  std::vector<PlannedRequest> TakeRequests() {
    std::vector<PlannedRequest> all;
    for (State& state : states_) std::move(state.requests.begin(), state.requests.end(), std::back_inserter(all));
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.due < b.due; });
    return all;
  }

 private:
  struct State {
    std::size_t turn = 0;
    std::vector<PlannedRequest> requests;  // requests of the turns so far
    std::string error;
  };

  Status Ask(std::size_t i) {
    State& state = states_[i];
    const SessionTurn& turn = sessions_[i].turns[state.turn];
    PlannedRequest planned{.due = turn.at, .adapter = sessions_[i].adapter};
    if (state.turn > 0) {
      planned.prompt = state.requests.back().prompt;
      const auto& said = state.requests.back().answer;
      planned.prompt.insert(planned.prompt.end(), said.begin(), said.end());
    }
    planned.prompt.insert(planned.prompt.end(), turn.said.begin(), turn.said.end());
    GenerationRequest request =
        MakeRequest(world_, planned.adapter, planned.prompt, static_cast<std::size_t>(turn.answer_tokens));
    state.requests.push_back(std::move(planned));
    request.on_event = [this, i, &state, &answer = state.requests.back().answer](const GenerationEvent& event) {
      if (event.token.has_value()) answer.push_back(event.token->id);
      if (event.finish == FinishReason::kNone) return;
      if (event.finish != FinishReason::kLength)
        state.error = event.error.has_value() ? event.error->message : "an answer ended early";
      mailbox_.Post(i);
    };
    ASSIGN_OR_RETURN([[maybe_unused]] const RequestId id, world_.engine().Submit(std::move(request)));
    return Ok{};
  }

  World& world_;
  const std::vector<Session>& sessions_;
  std::vector<State> states_;
  double rate_ = 0;
  Mailbox mailbox_;
};

RuntimeOptions Ample(bool cache) {
  RuntimeOptions options;
  options.device_memory = kAmple;
  options.host_memory = 0;
  options.spec.keep_history = cache;
  return options;
}

bool SameAnswers(const std::vector<PlannedRequest>& a, const std::vector<PlannedRequest>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.answer == y.answer; });
}

struct ClosedRun {
  std::vector<PlannedRequest> requests;
  EngineStats stats;  // at the end, nothing running
  double requests_per_second = 0;
  HouseSizes sizes;
};

Result<ClosedRun> RunClosed(const ScenarioHouse& house, const std::vector<Session>& sessions, bool cache) {
  ASSIGN_OR_RETURN(World world, MakeWorld(house, Ample(cache)));
  ClosedLoop loop(world, sessions);
  const Status done = loop.Run();
  world.runtime->Stop();  // before the loop is destroyed: after an error, its requests may still run
  RETURN_IF_ERROR(done);
  ClosedRun run{.requests = loop.TakeRequests(),
                .stats = world.Stats(),
                .requests_per_second = loop.rate(),
                .sizes = {.geometry = world.runtime->geometry(), .ranks = {}, .pages = {}, .bytes = {}}};
  for (const AdapterGeneration generation : world.adapters) {
    const AdapterLayout& layout = world.runtime->registry().Find(generation)->layout;
    run.sizes.ranks.push_back(layout.max_rank);
    run.sizes.pages.push_back(layout.pages);
    run.sizes.bytes.push_back(layout.payload_bytes);
  }
  return run;
}

// The requests of a cell with their answers.
struct Answered {
  TimeNs first = 0, end = 0;  // the engine's clock
  std::vector<TokenId> answer;
  bool failed = false;
};

// Samples the engine's memory during the run.
class MemorySampler {
 public:
  MemorySampler(World& world, TimeNs start)
      : thread_([this, &world, start](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            samples_.push_back(Sample(world, start));
            std::this_thread::sleep_for(kSamplePeriod);
          }
        }) {}
  std::vector<MemorySample> Stop() {
    thread_.request_stop();
    thread_.join();
    return std::move(samples_);
  }

 private:
  static MemorySample Sample(World& world, TimeNs start) {
    const EngineStats stats = world.Stats();
    const std::int64_t page = stats.device.page_bytes;
    return {.seconds = Seconds(world.runtime->clock().Now() - start),
            .running_kv = (stats.device.used(PageCategory::kKv) - stats.history_pages) * page,
            .history = stats.history_pages * page,
            .invalid_history = stats.invalid_history_pages * page,
            .adapters = stats.device.used(PageCategory::kAdapter) * page,
            .free = stats.device.free_pages * page};
  }

  std::vector<MemorySample> samples_;
  std::jthread thread_;
};

// Mean of the samples from `begin` (seconds) on; all 0 if there are none.
MemorySample MeanMemory(const std::vector<MemorySample>& samples, double begin) {
  MemorySample sum;
  std::int64_t count = 0;
  constexpr std::array kUses = {&MemorySample::running_kv, &MemorySample::history, &MemorySample::invalid_history,
                                &MemorySample::adapters, &MemorySample::free};
  for (const MemorySample& sample : samples) {
    if (sample.seconds < begin) continue;
    ++count;
    for (const auto use : kUses) sum.*use += sample.*use;
  }
  for (const auto use : kUses) sum.*use /= std::max<std::int64_t>(1, count);
  return sum;
}

// Sends every request when it is due, regardless of earlier ones.
class OpenLoop {
 public:
  OpenLoop(World& world, const std::vector<PlannedRequest>& requests)
      : world_(world), requests_(requests), answered_(requests.size()) {}

  Status Run(const CellOptions& options) {
    const Clock& clock = world_.runtime->clock();
    start_ = clock.Now();
    before_ = world_.Stats();
    MemorySampler sampler(world_, start_);
    const auto warm = static_cast<TimeNs>(options.warm_up_seconds * kNsPerSecond);
    while (first_measured_ < requests_.size() && requests_[first_measured_].due < warm) ++first_measured_;
    std::size_t sent = 0;
    Status status = Ok{};
    for (; sent < requests_.size() && status.ok(); ++sent) {
      const TimeNs due = start_ + requests_[sent].due;
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::max<TimeNs>(0, due - clock.Now())));
      if (sent == first_measured_) before_ = world_.Stats();
      worst_lag_ = std::max(worst_lag_, clock.Now() - due);
      status = Send(sent);
    }
    if (!status.ok()) --sent;  // the last one was refused
    for (std::size_t i = 0; i < sent; ++i) mailbox_.Take();
    memory_ = sampler.Stop();
    return status;
  }

  CellResult Result();

 private:
  Status Send(std::size_t i) {
    const PlannedRequest& planned = requests_[i];
    GenerationRequest request = MakeRequest(world_, planned.adapter, planned.prompt, planned.answer.size());
    request.on_event = [this, i, &answered = answered_[i]](const GenerationEvent& event) {
      if (event.token.has_value()) {
        if (answered.first == 0) answered.first = event.now;
        answered.answer.push_back(event.token->id);
      }
      if (event.finish == FinishReason::kNone) return;
      answered.end = event.now;
      answered.failed = event.finish != FinishReason::kLength;
      mailbox_.Post(i);
    };
    ASSIGN_OR_RETURN([[maybe_unused]] const RequestId id, world_.engine().Submit(std::move(request)));
    return Ok{};
  }
  void CountAnswers(CellResult& result) const;
  void CountMoves(CellResult& result) const;

  World& world_;
  const std::vector<PlannedRequest>& requests_;
  std::vector<Answered> answered_;
  TimeNs start_ = 0, worst_lag_ = 0;
  std::size_t first_measured_ = 0;
  EngineStats before_;  // at the end of the warm-up
  std::vector<MemorySample> memory_;
  Mailbox mailbox_;
};

void OpenLoop::CountAnswers(CellResult& result) const {
  std::vector<double> ttft, tpot;
  TimeNs last_end = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Answered& a = answered_[i];
    result.failed += a.failed;
    result.wrong_answers += !a.failed && a.answer != requests_[i].answer;
    last_end = std::max(last_end, a.end);
    if (i < first_measured_ || a.failed) continue;
    ++result.requests;
    ttft.push_back(Seconds(a.first - start_ - requests_[i].due) * 1e3);
    const auto more = static_cast<double>(a.answer.size()) - 1;
    if (more > 0) tpot.push_back(Seconds(a.end - a.first) * 1e3 / more);
  }
  result.ttft_geometric_ms = GeometricMean(ttft);
  result.tpot_geometric_ms = GeometricMean(tpot);
  result.ttft_ms = Summarise(std::move(ttft));
  result.tpot_ms = Summarise(std::move(tpot));
  if (!requests_.empty()) result.drain_seconds = Seconds(last_end - start_ - requests_.back().due);
}

void OpenLoop::CountMoves(CellResult& result) const {
  const EngineStats after = world_.Stats();
  const std::int64_t page = after.device.page_bytes, page_tokens = world_.runtime->geometry().kv.page_tokens;
  const auto share = [](std::int64_t part, std::int64_t of) {
    return of > 0 ? static_cast<double>(part) / static_cast<double>(of) : 0.0;
  };
  const std::int64_t looked_up = after.prefix.looked_up_tokens - before_.prefix.looked_up_tokens;
  const std::int64_t found = after.prefix.found_tokens - before_.prefix.found_tokens;
  const std::int64_t fetched_pages = after.kv_tiers.pages_fetched - before_.kv_tiers.pages_fetched;
  // Fetched pages were found by the request that they were fetched for.
  const std::int64_t from_host = std::min(found, fetched_pages * page_tokens);
  result.hit_host = share(from_host, looked_up);
  result.hit_device = share(found - from_host, looked_up);
  const AdapterStats &a = after.adapters, &b = before_.adapters;
  result.adapter_hit_device = share(a.asked_on_device - b.asked_on_device, a.asked - b.asked);
  result.adapter_hit_host = share(a.asked_in_host - b.asked_in_host, a.asked - b.asked);
  result.adapters_disk_to_host = a.disk_to_host_bytes - b.disk_to_host_bytes;
  result.adapters_disk_to_device = a.disk_to_device_bytes - b.disk_to_device_bytes;
  result.adapters_host_to_device = a.host_to_device_bytes - b.host_to_device_bytes;
  const std::int64_t loads = a.device_loads - b.device_loads;
  result.adapter_load_ms =
      Seconds(a.load_time_total - b.load_time_total) * 1e3 / static_cast<double>(std::max<std::int64_t>(1, loads));
  result.kv_host_to_device = fetched_pages * page;
  result.kv_device_to_host = (after.kv_tiers.pages_backed_up - before_.kv_tiers.pages_backed_up) * page;
  result.preemptions = after.preemptions - before_.preemptions;
}

CellResult OpenLoop::Result() {
  CellResult result;
  CountAnswers(result);
  CountMoves(result);
  const double warm = first_measured_ < requests_.size() ? Seconds(requests_[first_measured_].due) : 0;
  result.mean_memory = MeanMemory(memory_, warm);
  const auto history = static_cast<double>(result.mean_memory.history);
  result.invalid_history = history > 0 ? static_cast<double>(result.mean_memory.invalid_history) / history : 0;
  result.worst_lag_ms = Seconds(worst_lag_) * 1e3;
  result.memory = std::move(memory_);
  return result;
}

}  // namespace

double GeometricMean(const std::vector<double>& values) {
  double logs = 0;
  for (const double value : values) logs += std::log(value);
  return values.empty() ? 0 : std::exp(logs / static_cast<double>(values.size()));
}

Result<double> MeasureCapacity(const ScenarioHouse& house, const std::vector<Session>& sessions) {
  ASSIGN_OR_RETURN(const ClosedRun run, RunClosed(house, sessions, /*cache=*/true));
  return run.requests_per_second;
}

Result<Reference> RunReference(const ScenarioHouse& house, const std::vector<Session>& sessions) {
  ASSIGN_OR_RETURN(ClosedRun plain, RunClosed(house, sessions, /*cache=*/false));
  ASSIGN_OR_RETURN(const ClosedRun cached, RunClosed(house, sessions, /*cache=*/true));
  if (!SameAnswers(plain.requests, cached.requests)) return Internal("with ample memory, the cache changed an answer");
  const EngineStats& stats = cached.stats;
  if (stats.history_evictions > 0)
    return ResourceExhausted("the working set is larger than 1 GiB: lower --seconds, --rate or --adapters");
  const std::int64_t page = stats.device.page_bytes;
  return Reference{.requests = std::move(plain.requests),
                   .working_set_bytes = (stats.device.capacity_pages - stats.device.free_pages) * page,
                   .adapter_bytes = stats.device.used(PageCategory::kAdapter) * page,
                   .capacity = cached.requests_per_second,
                   .sizes = std::move(plain.sizes)};
}

Result<CellResult> RunCell(const ScenarioHouse& house, const std::vector<PlannedRequest>& requests,
                           const CellOptions& options) {
  RuntimeOptions runtime;
  runtime.spec.cache = options.regime;
  runtime.device_memory = options.device_bytes;
  runtime.host_memory = options.host_bytes;
  ASSIGN_OR_RETURN(World world, MakeWorld(house, std::move(runtime)));
  OpenLoop loop(world, requests);
  const Status done = loop.Run(options);
  world.runtime->Stop();
  RETURN_IF_ERROR(done);
  return loop.Result();
}

}  // namespace loramux
