// Fairness among tenants with the real engine and the real forward pass of the demo model, on a virtual clock. A step
// takes modelled time, so the figures are the same on every machine.
//
// Tenant B uses its equal share of the server. In the baseline tenant A does the same. In the flood A sends 20 times as
// many requests, and heavier ones. The flood may raise B's P99 TTFT to 1.5 times the baseline at most.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/must.h"
#include "base/prng.h"
#include "engine/control_plane.h"
#include "engine/modeled_executor.h"
#include "residency/transfer.h"
#include "tests/demo_world.h"

namespace loramux::demo::peers_fairness_test {
namespace {

// Computes on the CPU. The virtual clock decides when a step ends.
class TimedExecutor final : public Executor {
 public:
  TimedExecutor(const VirtualClock* clock, CpuExecutorOptions options, Model* model, const KvLayout& layout,
                PagePool* device)
      : clock_(clock),
        inner_(options, model, layout, TierMemory{.device = device->View()}, [this] { done_.Signal(); }) {}
  void Submit(StepBatch batch) override {
    ends_at_ = clock_->Now() + 2 * kNsPerMs + static_cast<TimeNs>(batch.tokens.size()) * 100 * kNsPerUs;
    inner_.Submit(std::move(batch));
  }
  bool Poll(StepResult& result) override {
    if (ends_at_ < 0 || clock_->Now() < ends_at_) return false;
    while (!inner_.Poll(result)) done_.Wait();
    ends_at_ = -1;
    return true;
  }
  TimeNs ends_at() const { return ends_at_; }  // -1: no step in flight

 private:
  const VirtualClock* clock_;
  Wakeup done_;
  CpuExecutor inner_;
  TimeNs ends_at_ = -1;
};

// Runs each job inside Submit.
class InlineTransfer final : public PageTransfer {
 public:
  explicit InlineTransfer(const TierMemory& memory) : memory_(memory) {}
  void Submit(TransferJob job) override { done_.push_back(RunTransfer(job, memory_)); }
  std::optional<TransferCompletion> Poll() override {
    if (done_.empty()) return std::nullopt;
    TransferCompletion completion = std::move(done_.front());
    done_.erase(done_.begin());
    return completion;
  }

 private:
  const TierMemory memory_;
  std::vector<TransferCompletion> done_;
};

constexpr std::int64_t kMaxBatchTokens = 64, kSeats = 16;

// One engine over the demo model and its adapters.
struct Engines {
  VirtualClock clock;
  Wakeup wakeup;
  PageGeometry geometry;
  std::unique_ptr<ControlPlane> plane;
  std::unique_ptr<AdapterRegistry> registry;
  std::optional<InlineTransfer> transfer;
  std::unique_ptr<TimedExecutor> executor;
  std::unique_ptr<Engine> engine;

  Engines(Model* model, FairnessPolicy fairness, std::int64_t kv_tokens) {
    const ModelConfig& config = model->config();
    const DType dtype = model->weights().lm_head.dtype();
    geometry = ChoosePageGeometry(config, dtype, 16);
    registry = std::make_unique<AdapterRegistry>(
        config, std::vector<std::string>{"base"},
        AdapterRegistry::Options{.page_bytes = static_cast<std::size_t>(geometry.page_bytes), .base_dtype = dtype});
    std::int64_t pages = kv_tokens / 16;
    for (const std::string& name : AdapterNames()) {
      pages +=
          Must(registry->Register(name, std::string(LORAMUX_SOURCE_DIR) + "/demo/adapters/" + name, 0))->layout.pages;
    }
    ControlPlaneOptions options;
    options.device = Must(PagePool::Create("device", pages * geometry.page_bytes, geometry.page_bytes));
    options.host = Must(PagePool::Create("host", std::int64_t{64} << 20, geometry.page_bytes));
    options.engine = {.spec = {.cache = "lru",
                               .keep_history = false,
                               .page_tokens = 16,
                               .max_running = kSeats,
                               .max_batch_tokens = kMaxBatchTokens,
                               .prefill_chunk = kMaxBatchTokens,
                               .fairness = {.policy = fairness}},
                      .max_model_len = 512,
                      .eos_token_ids = {},
                      .vocab_size = config.vocab_size};
    plane = Must(ControlPlane::Create(std::move(options)));
    transfer.emplace(plane->tiers());
    CpuExecutorOptions cpu{
        .threads = 1, .max_batch_tokens = kMaxBatchTokens, .max_running = kSeats, .max_positions = 512};
    executor = std::make_unique<TimedExecutor>(&clock, cpu, model, geometry.kv, &plane->device());
    engine = plane->Connect(
        {.clock = clock, .executor = *executor, .transfer = *transfer, .registry = *registry, .wakeup = wakeup});
  }
};

// The load of a tenant: Poisson arrivals of equal requests, spread over `adapters` adapters (0: the base model).
struct Load {
  double requests_per_second;
  std::int32_t prompt, output;
  std::uint32_t adapters = 0;
};

struct Arrival {
  TimeNs time;
  bool of_b;
  Load load;
  std::uint32_t adapter;
};

void AddArrivals(const Load& load, bool of_b, TimeNs until, std::uint64_t seed, std::vector<Arrival>& arrivals) {
  Prng prng(seed);
  double at = 0;
  while (true) {
    const double uniform = (static_cast<double>(prng.NextBelow(1 << 30)) + 1) / (1 << 30);
    at += -std::log(uniform) / load.requests_per_second * static_cast<double>(kNsPerSecond);
    if (at > static_cast<double>(until)) return;
    const auto adapter = load.adapters == 0 ? 0 : 1 + static_cast<std::uint32_t>(prng.NextBelow(load.adapters));
    arrivals.push_back({static_cast<TimeNs>(at), of_b, load, adapter});
  }
}

// The ends of the arrivals and of the measurement. A request without a token at the horizon counts with its wait so
// far.
constexpr TimeNs kUntil = 2 * kNsPerSecond, kHorizon = kUntil + kNsPerSecond / 2;

// B's times to first token in milliseconds, ascending.
std::vector<double> TimesOfB(Model* model, FairnessPolicy fairness, std::int64_t kv_tokens, const Load& a,
                             const Load& b) {
  Engines w(model, fairness, kv_tokens);
  std::vector<Arrival> arrivals;
  AddArrivals(a, false, kUntil, 1, arrivals);
  AddArrivals(b, true, kUntil, 2, arrivals);
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const Arrival& x, const Arrival& y) { return x.time < y.time; });
  std::vector<double> times;
  std::map<TimeNs, std::size_t> silent;  // requests of B without a token yet, by time of arrival
  Prng prng(3);
  const auto submit = [&](const Arrival& arrival) {
    GenerationRequest request;
    request.tenant = arrival.of_b ? "b" : "a";
    request.adapter = AdapterGeneration{arrival.adapter};
    request.max_tokens = arrival.load.output;
    request.sampling.temperature = 0;
    for (std::int32_t i = 0; i < arrival.load.prompt; ++i)
      request.prompt.push_back(static_cast<TokenId>(10 + prng.NextBelow(200)));
    if (arrival.of_b) ++silent[arrival.time];
    request.on_event = [&, of_b = arrival.of_b, time = arrival.time](const GenerationEvent& event) {
      EXPECT_NE(event.finish, FinishReason::kError);
      if (!of_b || !event.token.has_value() || event.generated_tokens != 1) return;
      times.push_back(static_cast<double>(event.now - time) / kNsPerMs);
      if (--silent[time] == 0) silent.erase(time);
    };
    Must(w.engine->Submit(std::move(request)));
  };
  for (std::size_t next = 0; w.clock.Now() < kHorizon && (next < arrivals.size() || !silent.empty());) {
    for (; next < arrivals.size() && arrivals[next].time <= w.clock.Now(); ++next) submit(arrivals[next]);
    while (w.engine->Step()) {
    }
    TimeNs until = w.executor->ends_at();
    if (next < arrivals.size() && (until < 0 || arrivals[next].time < until)) until = arrivals[next].time;
    if (until >= 0) w.clock.AdvanceTo(std::max(until, w.clock.Now()));
  }
  for (const auto& [time, count] : silent)
    times.insert(times.end(), count, static_cast<double>(kHorizon - time) / kNsPerMs);
  w.engine->CancelAll();
  while (!w.engine->Idle()) {
    if (w.executor->ends_at() >= 0) w.clock.AdvanceTo(std::max(w.clock.Now(), w.executor->ends_at()));
    w.engine->Step();
  }
  w.engine->CheckIntegrity();
  EXPECT_EQ(w.plane->device().Stats().used(PageCategory::kKv), 0);
  std::sort(times.begin(), times.end());
  return times;
}

double Percentile(const std::vector<double>& sorted, double q) {
  return sorted.at(static_cast<std::size_t>(std::ceil(q * static_cast<double>(sorted.size()))) - 1);
}

// The server can serve about 238 requests of B's kind a second. In the baseline both tenants use two thirds of that.
constexpr Load kShare{80, 24, 8};

class Peers : public testing::Test {
 protected:
  std::unique_ptr<Model> model_ = Must(Model::Load(ModelDirectory(), {}, {}));

  // B's P99 in the flood divided by B's P99 in the baseline.
  double Ratio(const char* name, FairnessPolicy fairness, std::int64_t kv_tokens, const Load& flood) {
    const Load share{kShare.requests_per_second, kShare.prompt, kShare.output, flood.adapters};
    const std::vector<double> equal = TimesOfB(model_.get(), fairness, kv_tokens, share, kShare);
    const std::vector<double> flooded = TimesOfB(model_.get(), fairness, kv_tokens, flood, kShare);
    EXPECT_EQ(equal.size(), flooded.size());
    EXPECT_GT(equal.size(), 140u);
    const double ratio = Percentile(flooded, 0.99) / Percentile(equal, 0.99);
    std::printf("%-14s %-4s B's TTFT, %zu requests: P50 %.1f -> %.1f ms, P99 %.1f -> %.1f ms: %.2f times\n", name,
                fairness == FairnessPolicy::kVtc ? "vtc" : "none", equal.size(), Percentile(equal, 0.5),
                Percentile(flooded, 0.5), Percentile(equal, 0.99), Percentile(flooded, 0.99), ratio);
    return ratio;
  }
  void ExpectFair(const char* name, std::int64_t kv_tokens, const Load& flood) {
    EXPECT_LE(Ratio(name, FairnessPolicy::kVtc, kv_tokens, flood), 1.5);
    // Shows the effect of vtc, and that the test can fail.
    EXPECT_GE(Ratio(name, FairnessPolicy::kNone, kv_tokens, flood), 5.0);
  }
};

constexpr double kFlood = 20 * kShare.requests_per_second;

TEST_F(Peers, Point8_AFloodOfLongPrompts) { ExpectFair("long prompts", 16000, {kFlood, 300, 8}); }
TEST_F(Peers, Point8_AFloodOfLongOutputs) { ExpectFair("long outputs", 16000, {kFlood, 24, 200}); }
TEST_F(Peers, Point8_AFloodOverManyAdapters) { ExpectFair("many adapters", 16000, {kFlood, 100, 100, 12}); }
TEST_F(Peers, Point8_AFloodThatFillsTheMemory) { ExpectFair("full memory", 1600, {kFlood, 150, 150}); }

}  // namespace
}  // namespace loramux::demo::peers_fairness_test
