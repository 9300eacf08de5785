#include "simulate/simulated_server.h"

#include <algorithm>
#include <numeric>

#include "cluster/prefix_blocks.h"
#include "costs/service_times.h"
#include "schedule/plan_by_model.h"

namespace loramux {

Result<std::shared_ptr<SimulatedAdapters>> SimulatedAdapters::Create(const SimulatedDevice& device,
                                                                     const Workload& workload) {
  auto adapters = std::make_shared<SimulatedAdapters>();
  for (std::size_t i = 0; i < workload.adapter_ranks.size(); ++i) {
    auto version = std::make_shared<AdapterVersion>();
    version->name = "adapter-" + std::to_string(i);
    version->file.digest = version->name;  // each has distinct content
    version->layout.max_rank = static_cast<std::int32_t>(workload.adapter_ranks[i]);
    version->layout.pages =
        workload.adapter_pages.empty() ? device.AdapterPages(workload.adapter_ranks[i]) : workload.adapter_pages.at(i);
    version->layout.payload_bytes = workload.adapter_bytes.empty()
                                        ? workload.adapter_ranks[i] * device.adapter_bytes_per_rank
                                        : workload.adapter_bytes.at(i);
    ASSIGN_OR_RETURN(const auto published, adapters->registry_.Commit(std::move(version)));
    adapters->versions_.push_back(published);
  }
  std::vector<std::size_t> sorted(adapters->size());
  std::iota(sorted.begin(), sorted.end(), std::size_t{0});
  std::sort(sorted.begin(), sorted.end(),
            [&](std::size_t a, std::size_t b) { return adapters->Of(a).name < adapters->Of(b).name; });
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::uint32_t generation = adapters->Of(sorted[i]).generation.value;
    if (generation >= adapters->order_.size()) adapters->order_.resize(generation + 1);
    adapters->order_[generation] = static_cast<std::uint32_t>(i);
  }
  adapters->max_model_len_ = std::max<std::int64_t>(2, workload.MaxSequenceTokens());
  for (const WorkloadRequest& request : workload.requests)
    adapters->longest_output_ = std::max(adapters->longest_output_, request.output_tokens);
  return adapters;
}

void SimulatedAdapters::Replace(std::size_t adapter, const std::string& digest) {
  const AdapterVersion& old = Of(adapter);
  auto version = std::make_shared<AdapterVersion>();
  version->name = old.name;
  version->file.digest = digest;
  version->layout.max_rank = old.layout.max_rank;
  version->layout.pages = old.layout.pages;
  version->layout.payload_bytes = old.layout.payload_bytes;
  const std::uint32_t order = OrderOf(old.generation);
  versions_[adapter] = registry_.Commit(std::move(version), /*replace=*/true).value();
  order_.resize(std::max<std::size_t>(order_.size(), versions_[adapter]->generation.value + 1));
  order_[versions_[adapter]->generation.value] = order;
}

// Keeps what a snapshot needs of the engine's parts, and remembers which prompts were computed.
class SimulatedServer::Watcher final : public EngineObserver {
 public:
  void Planned(const PlannedStep& step) override {
    scheduler = &step.scheduler;  // both live as long as the engine
    residency = &step.residency;
    for (const PlannedAdmission& admission : step.plan.admissions) {
      const Request& request = *admission.request;
      const std::string& name =
          request.adapter == kBaseModel ? kBase : step.residency.Get(request.adapter).version->name;
      prompt_.assign(request.prompt().begin(), request.prompt().end());
      ledger.Use(PrefixBlocksOfTokens(name, prompt_), step.now);
    }
  }

  const Scheduler* scheduler = nullptr;         // null: no step was planned yet
  const ResidencyManager* residency = nullptr;  // null: no step was planned yet
  PrefixLedger ledger;

 private:
  inline static const std::string kBase = "base";
  std::vector<TokenId> prompt_;
};

SimulatedServer::SimulatedServer(const SimulationOptions& options, SimulatedPlace place,
                                 std::shared_ptr<SimulatedAdapters> adapters)
    : options_(options),
      place_(std::move(place)),
      adapters_(std::move(adapters)),
      transfer_(place_.clock, place_.events, options.device.model, options.adapters_in_host_memory, place_.server,
                options.preset.program),
      executor_(place_.clock, place_.events, options.device, &options.pace, &transfer_, place_.server,
                {options.preset.program.layer_seconds * static_cast<double>(options.device.layers),
                 options.preset.program.request_seconds}),
      predictor_(options.predictor_accuracy, options.seed, adapters_->longest_output()),
      watcher_(place_.instance.empty() ? nullptr : std::make_unique<Watcher>()) {}

SimulatedServer::~SimulatedServer() = default;

Result<std::unique_ptr<SimulatedServer>> SimulatedServer::Create(const SimulationOptions& options, SimulatedPlace place,
                                                                 std::shared_ptr<SimulatedAdapters> adapters) {
  std::unique_ptr<SimulatedServer> server(new SimulatedServer(options, std::move(place), std::move(adapters)));
  RETURN_IF_ERROR(server->Build());
  return server;
}

Result<SystemSpec> SpecOf(const SimulationOptions& options, std::int64_t max_model_len) {
  SystemSpec spec = options.preset.spec;
  spec.page_tokens = options.device.page_tokens;
  spec.state_pages = options.device.StatePages();
  spec.swapping.draw = static_cast<std::int64_t>(SplitMix64(options.seed) >> 16);
  spec.total_tokens = static_cast<double>(options.device.device_pages * options.device.page_tokens);
  RETURN_IF_ERROR(Complete(spec, max_model_len));
  const bool by_device = options.costs == nullptr && spec.max_decode_step > 0;
  PlanByModel(by_device ? std::make_shared<const PerformanceModel>(options.device.model) : options.costs, spec);
  if (options.costs == nullptr) spec.ridge_tokens = RidgeTokens(options.device.model);  // from the data sheet
  return spec;
}

Status SimulatedServer::Build() {
  const std::int64_t page_bytes = options_.device.page_bytes;
  ControlPlaneOptions plane;
  const std::int64_t device_bytes = options_.device.device_pages * page_bytes,
                     host_bytes = static_cast<std::int64_t>(options_.host_bytes);
  ASSIGN_OR_RETURN(plane.device, PagePool::Create("device", ArenaWithoutBytes(device_bytes), page_bytes));
  if (options_.host_bytes > 0) {
    ASSIGN_OR_RETURN(plane.host, PagePool::Create("host", ArenaWithoutBytes(host_bytes), page_bytes));
  }
  plane.engine = {
      .max_model_len = adapters_->max_model_len(), .eos_token_ids = {}, .vocab_size = SimulatedExecutor::kVocab};
  ASSIGN_OR_RETURN(plane.engine.spec, SpecOf(options_, adapters_->max_model_len()));
  plane.hash_seed = options_.seed;
  ASSIGN_OR_RETURN(plane_, ControlPlane::Create(std::move(plane)));
  engine_ = plane_->Connect({.clock = *place_.clock,
                             .executor = executor_,
                             .transfer = transfer_,
                             .registry = adapters_->registry(),
                             .wakeup = wakeup_,
                             .predictor = &predictor_,
                             .observer = watcher_ != nullptr ? watcher_.get() : options_.observer,
                             .eviction = options_.eviction});
  if (options_.preset.spec.host_copies != HostCopies::kLoaded && options_.host_bytes > 0) RegisterAdapters();
  return Ok{};
}

void SimulatedServer::RegisterAdapters() {
  for (std::size_t i = 0; i < adapters_->size(); ++i) {
    auto version = adapters_->registry().Find(adapters_->Of(i).generation);
    options_.adapters_in_host_memory ? static_cast<void>(engine_->PlaceInHost(std::move(version)))
                                     : engine_->Register(std::move(version));
  }
}

void SimulatedServer::ReplaceAdapter(std::size_t adapter, const std::string& digest) {
  adapters_->Replace(adapter, digest);
  engine_->Register(adapters_->registry().Find(adapters_->Of(adapter).generation));
}

void SimulatedServer::DescribeAdapters(ServerSnapshot& snapshot) const {
  const ResidencyManager& residency = *watcher_->residency;
  std::vector<std::int64_t> waiting(residency.All().size(), 0);
  for (const Request* request : watcher_->scheduler->waiting()) {
    if (request->adapter != kBaseModel) ++waiting[residency.SlotOf(request->adapter)];
  }
  std::vector<std::pair<std::uint32_t, const AdapterResidency*>> known;
  for (const AdapterResidency& adapter : residency.All()) {
    if (adapter.version == nullptr || adapter.retired) continue;
    if (adapter.device == TierState::kAbsent && adapter.host == TierState::kAbsent && waiting[adapter.slot] == 0)
      continue;
    known.emplace_back(adapters_->OrderOf(adapter.version->generation), &adapter);
  }
  std::sort(known.begin(), known.end());
  snapshot.adapters.reserve(known.size());
  for (const auto& [order, adapter] : known) {
    const bool loading = adapter->device == TierState::kLoading || adapter->host == TierState::kLoading;
    snapshot.adapters.push_back({.name = adapter->version->name,
                                 .digest = adapter->version->file.digest,
                                 .place = adapter->device == TierState::kResident ? AdapterPlace::kDevice
                                          : loading                               ? AdapterPlace::kArriving
                                          : adapter->host == TierState::kResident ? AdapterPlace::kHost
                                                                                  : AdapterPlace::kDisk,
                                 .rank = adapter->version->layout.max_rank,
                                 .bytes = adapter->version->layout.pages * options_.device.page_bytes,
                                 .running = adapter->users,
                                 .waiting = waiting[adapter->slot]});
  }
}

bool SimulatedServer::HasOnDevice(AdapterGeneration generation) const {
  CHECK(watcher_ != nullptr);
  const ResidencyManager* residency = watcher_->residency;
  return generation == kBaseModel || (residency != nullptr && residency->Knows(generation) &&
                                      residency->Get(generation).device == TierState::kResident);
}

ServerSnapshot SimulatedServer::Snapshot(bool draining) {
  CHECK(watcher_ != nullptr);
  ServerSnapshot snapshot{.instance = place_.instance,
                          .version = ++version_,
                          .draining = draining,
                          .base_model = "base",
                          .max_running = options_.preset.spec.Seats(),
                          .max_batch_tokens = options_.preset.spec.max_batch_tokens,
                          .page_tokens = options_.device.page_tokens,
                          .page_bytes = options_.device.page_bytes,
                          .device_pages = plane_->device().capacity_pages(),
                          .free_pages = plane_->device().free_pages()};
  if (watcher_->scheduler == nullptr) return snapshot;
  const Scheduler& scheduler = *watcher_->scheduler;
  snapshot.running = static_cast<std::int64_t>(scheduler.running().size());
  snapshot.waiting = static_cast<std::int64_t>(scheduler.waiting().size());
  snapshot.lane_waiting.assign(static_cast<std::size_t>(scheduler.queue().lanes()), 0);
  for (const Request* request : scheduler.waiting()) {
    snapshot.waiting_prompt_tokens += request->uncomputed();
    ++snapshot.lane_waiting[static_cast<std::size_t>(request->lane)];
  }
  for (const Request* request : scheduler.running()) {
    snapshot.running_prompt_tokens += std::max<std::int64_t>(0, request->prompt_tokens - request->computed);
    snapshot.running_context += request->computed;
  }
  snapshot.history_pages = scheduler.history_pages();
  snapshot.idle_adapter_pages = watcher_->residency->idle_pages();
  DescribeAdapters(snapshot);
  const PoolStats pool = plane_->device().Stats();
  watcher_->ledger.Shrink(plane_->tree().keeps_history() ? pool.used(PageCategory::kKv) * options_.device.page_tokens
                                                         : 0);
  snapshot.prefixes = watcher_->ledger.All();
  return snapshot;
}

}  // namespace loramux
