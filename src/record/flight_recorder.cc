#include "record/flight_recorder.h"

#include <algorithm>
#include <chrono>

#include <sys/random.h>

#include "base/check.h"
#include "base/log.h"

namespace loramux {
namespace {

constexpr std::size_t kWriteAt = std::size_t{256} << 10;  // write when this many bytes are queued, or
constexpr std::chrono::milliseconds kWriteAfter{200};     // after this time: the most that a crash may lose
constexpr std::size_t kStepBytes = 256, kItemBytes = 48;  // approximate sizes in memory

std::array<std::uint64_t, 2> RandomKey() {
  std::array<std::uint64_t, 2> key{};
  CHECK_EQ(getrandom(key.data(), sizeof(key), 0), static_cast<ssize_t>(sizeof(key)));
  return key;
}

TransferOutcome OutcomeOf(const TransferCompletion& completion) {
  if (completion.cancelled) return TransferOutcome::kCancelled;
  return completion.error.has_value() ? TransferOutcome::kFailed : TransferOutcome::kGood;
}

}  // namespace

// Used on the engine thread only, as the wrapped transfer is.
class FlightRecorder::WatchedTransfer final : public PageTransfer {
 public:
  WatchedTransfer(FlightRecorder* recorder, std::unique_ptr<PageTransfer> transfer)
      : recorder_(recorder), transfer_(std::move(transfer)) {}
  void Submit(TransferJob job) override { transfer_->Submit(std::move(job)); }
  std::optional<TransferCompletion> Poll() override {
    auto completion = transfer_->Poll();
    if (completion) recorder_->TransferEnded(*completion);
    return completion;
  }

 private:
  FlightRecorder* const recorder_;
  const std::unique_ptr<PageTransfer> transfer_;
};

Result<std::unique_ptr<FlightRecorder>> FlightRecorder::Create(FileSystem* files, const std::filesystem::path& path,
                                                               FlightRecorderOptions options) {
  std::error_code none;  // then there is no file to keep
  // an empty file is left by a failed start
  if (std::filesystem::is_regular_file(path, none) && std::filesystem::file_size(path, none) > 0) {
    std::filesystem::path old = path;
    RETURN_IF_ERROR(files->Rename(path, old += ".old"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files->Create(path));
  return std::unique_ptr<FlightRecorder>(new FlightRecorder(path, std::move(file), options));
}

FlightRecorder::FlightRecorder(std::filesystem::path path, std::unique_ptr<WritableFile> file,
                               FlightRecorderOptions options)
    : path_(std::move(path)), options_(options), file_(std::move(file)), pseudonyms_(RandomKey()) {}

FlightRecorder::~FlightRecorder() { Close(); }

std::unique_ptr<PageTransfer> FlightRecorder::Watch(std::unique_ptr<PageTransfer> transfer) {
  return std::make_unique<WatchedTransfer>(this, std::move(transfer));
}

void FlightRecorder::Begin(RecordedSetup setup) {
  CHECK(!writer_.joinable());
  // in this order: the first tenants are those with weights
  for (std::size_t i = 0; i < setup.spec.fairness.weights.size(); ++i) {
    std::string& name = setup.spec.fairness.weights[i].first;
    tenants_.insert_or_assign(name, static_cast<std::uint32_t>(i));  // if names are equal, the last counts
    name = std::to_string(i);
  }
  next_tenant_ = static_cast<std::uint32_t>(setup.spec.fairness.weights.size());
  setup.program = options_.program;
  recording_ = true;
  Append(encoder_.Head(setup));
  writer_ = std::thread([this] { Run(); });
}

void FlightRecorder::Close() {
  if (!writer_.joinable()) return;
  recording_ = false;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  writer_.join();
  writer_ = {};
}

void FlightRecorder::Fail(const std::string& why) {
  if (failed_.exchange(true)) return;
  spdlog::warn("{}: the recording stopped early, and the server continues without it: {}", path_.string(), why);
}

// ---------------------------------------------------------------- The engine's thread

void FlightRecorder::StepBegan(TimeNs now) {
  in_step_ = recording_ && !failed_.load(std::memory_order_relaxed) && !full_.load(std::memory_order_relaxed);
  if (in_step_) current_.step.now = now;
}

void FlightRecorder::Know(const AdapterVersion& version) {
  if (!known_.insert(version.generation.value).second) return;
  current_.step.adapters.push_back({version.generation, version.file.digest, version.layout.pages,
                                    static_cast<std::int32_t>(version.layout.layer_pages.size()),
                                    version.layout.max_rank});
}

std::uint32_t FlightRecorder::NumberOf(const std::string& name) {
  const auto [entry, is_new] = tenants_.emplace(name, next_tenant_);
  next_tenant_ += is_new;
  tenant_bytes_ += is_new ? name.size() + kItemBytes : 0;
  if (tenant_bytes_ > options_.max_tenant_bytes) Fail("too many tenants to record: " + std::to_string(tenants_.size()));
  return entry->second;
}

std::string FlightRecorder::ContentOf(const Request& request, const AdapterVersion* version) {
  const bool by_base = version == nullptr || request.base_tokens > 0;  // what may be shared of it
  const std::string content = by_base ? std::string() : version->file.digest;
  return request.prefix_domain.empty() ? content : content + "\n" + request.prefix_domain;
}

void FlightRecorder::Arrived(const Request& request, const AdapterVersion* version) {
  if (!in_step_) return;
  if (version != nullptr) Know(*version);
  current_.contents.push_back(ContentOf(request, version));
  const std::string& domain = request.prefix_domain;
  current_.step.arrivals.push_back(
      {request.id, request.adapter, NumberOf(request.tenant_name), domain.empty() ? 0 : NumberOf(domain) + 1,
       request.priority, std::max(0, request.length_hint), request.max_total_tokens, request.deadline,
       request.reusable_tokens != Request::kAllTokens, request.base_tokens, request.keeps_version, request.tokens});
  current_.bytes += kItemBytes * 4 + request.tokens.size() * sizeof(TokenId);
}

void FlightRecorder::Registered(const AdapterVersion& version) {
  if (!in_step_) return;
  Know(version);
  current_.step.registered.push_back(version.generation.value);
  current_.bytes += kItemBytes;
}

void FlightRecorder::Pinned(const AdapterVersion& version, bool pinned) {
  if (!in_step_) return;
  Know(version);
  current_.step.pins.push_back({version.generation, pinned});
}

void FlightRecorder::RetargetAsked(AdapterGeneration old, const AdapterVersion* next) {
  if (!in_step_ || !known_.contains(old.value)) return;  // then no recorded request is on it
  if (next != nullptr) Know(*next);
  current_.step.retargets.push_back({old, next == nullptr ? kBaseModel : next->generation});
}

void FlightRecorder::CancelAsked(RequestId id) {
  if (in_step_) current_.step.cancellations.push_back(id.value);
}

void FlightRecorder::CancelAllAsked() {
  if (in_step_) current_.step.cancel_all = true;
}

void FlightRecorder::Holding(Hold hold) {
  if (in_step_ && std::exchange(hold_, hold) != hold) current_.step.hold = hold;
}

void FlightRecorder::Ending() {
  if (in_step_ && !std::exchange(ending_, true)) current_.step.ending = true;
}

void FlightRecorder::DropHistoryAsked() {
  if (in_step_) current_.step.drop_history = true;
}

void FlightRecorder::Retired(AdapterGeneration generation) {
  if (in_step_) current_.step.retired.push_back(generation.value);
}

void FlightRecorder::TransferEnded(const TransferCompletion& completion) {
  if (!in_step_) return;
  current_.step.completions.push_back({completion.id, OutcomeOf(completion)});
  layers_.erase(completion.id);  // the name may be reused by another transfer
}

void FlightRecorder::SawLayers(std::uint64_t transfer, std::int32_t layers) {
  if (!in_step_) return;
  if (std::int32_t& last = layers_[transfer]; last != layers) {
    last = layers;
    current_.step.layers.push_back({transfer, layers});
  }
}

void FlightRecorder::Computed(TimeNs waited) {
  if (in_step_) current_.step.computed = waited;
}

void FlightRecorder::Collected() {
  if (in_step_) current_.step.collected = true;
}

void FlightRecorder::Sampled(RequestId id, TokenId token, bool stops) {
  if (in_step_) current_.step.tokens.push_back({id, stops ? kStopToken : token});
}

void FlightRecorder::Drafted(RequestId id, std::vector<TokenId>& draft) {
  if (in_step_ && !draft.empty()) current_.step.drafts.push_back({id, draft.size()});
}

void FlightRecorder::Retargeted(const Request& request, const AdapterVersion& version, std::span<TokenId> tokens) {
  if (!in_step_) return;
  current_.new_contents.push_back(ContentOf(request, &version));
  current_.step.renamings.push_back({request.id, {tokens.begin(), tokens.end()}});
  current_.bytes += kItemBytes * 2 + tokens.size() * sizeof(TokenId);
}

void FlightRecorder::Ended(RequestId id) {
  if (in_step_) current_.ended.push_back(id);
}

void FlightRecorder::Planned(const PlannedStep& step) {
  if (!in_step_) return;
  current_.step.plan = DescribePlan(step.plan, step.device.free_pages(), step.host.free_pages());
}

void FlightRecorder::Moving(const MovePlan& moves) {
  if (in_step_) current_.step.moves.push_back(DescribeMoves(moves));
}

void FlightRecorder::StepEnded() {
  if (!std::exchange(in_step_, false)) return;
  RecordedStep& step = current_.step;
  if (step.empty()) return;
  step.number = steps_++;
  current_.bytes += kStepBytes + kItemBytes * (step.tokens.size() + step.drafts.size() + step.completions.size() +
                                               step.layers.size());
  const std::size_t bytes = current_.bytes;
  std::size_t waiting = 0;
  {
    const std::lock_guard lock(mutex_);
    waiting = queued_bytes_;
    if (waiting + bytes <= options_.max_queued_bytes) {
      queued_bytes_ += bytes;
      queue_.push_back(std::move(current_));
    }
  }
  current_ = {};
  if (waiting + bytes > options_.max_queued_bytes) return Fail("the disk writes more slowly than steps arrive");
  if (waiting == 0 || (waiting < kWriteAt && waiting + bytes >= kWriteAt)) wake_.notify_one();
}

// ---------------------------------------------------------------- The recorder's thread

void FlightRecorder::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    wake_.wait_for(lock, kWriteAfter, [this] { return closing_ || queued_bytes_ >= kWriteAt; });
    const bool last = closing_;
    std::vector<Queued> steps;
    steps.swap(queue_);
    queued_bytes_ = 0;
    lock.unlock();
    Write(std::move(steps));
    if (last) break;
    lock.lock();
  }
  if (!full_) Append(encoder_.End(RecordingEnd::kStopped));
}

void FlightRecorder::Write(std::vector<Queued> queued) {
  if (queued.empty() || failed_ || full_) return;
  std::vector<RecordedStep> steps;
  steps.reserve(queued.size());
  for (Queued& one : queued) {
    Disguise(one);
    steps.push_back(std::move(one.step));
  }
  const std::string block = encoder_.Steps(steps);
  Append(block);
  if (bytes_ < options_.max_file_bytes || failed_) return;
  Append(encoder_.End(RecordingEnd::kLimit));
  full_ = true;
  spdlog::warn("{}: the recording reached its size limit after {} bytes, and the server continues without it",
               path_.string(), bytes_);
}

// Replaces tokens by pseudonyms. The token that stops a request has the same name everywhere.
void FlightRecorder::Disguise(Queued& queued) {
  for (std::size_t i = 0; i < queued.step.arrivals.size(); ++i) {
    RecordedArrival& arrival = queued.step.arrivals[i];
    std::uint64_t sequence = pseudonyms_.Begin(queued.contents[i]);
    for (TokenId& token : arrival.prompt) token = pseudonyms_.Name(sequence, token);
    sequences_[arrival.id.value] = sequence;
  }
  for (RecordedToken& token : queued.step.tokens) {
    const auto sequence = sequences_.find(token.id.value);
    if (sequence != sequences_.end() && token.token != kStopToken)
      token.token = pseudonyms_.Name(sequence->second, token.token);
  }
  for (std::size_t i = 0; i < queued.step.renamings.size(); ++i) {
    RecordedRenaming& renaming = queued.step.renamings[i];
    std::uint64_t sequence = pseudonyms_.Begin(queued.new_contents[i]);
    for (TokenId& token : renaming.tokens) token = pseudonyms_.Name(sequence, token);
    sequences_[renaming.id.value] = sequence;
  }
  for (const RequestId id : queued.ended) sequences_.erase(id.value);
}

void FlightRecorder::Append(std::string_view bytes) {
  while (!bytes.empty() && !failed_) {
    const auto written = file_->Append(bytes);
    if (!written.ok()) return Fail(written.error().message);
    bytes_ += static_cast<std::int64_t>(*written);
    bytes.remove_prefix(*written);
  }
}

}  // namespace loramux
