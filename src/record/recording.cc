#include "record/recording.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <xxhash.h>

#include "base/check.h"
#include "record/recording_setup.h"

namespace loramux {
namespace {

constexpr std::string_view kMagic = "LORAMUXR";
// Version 9 lacks drafts, version 8 also names some settings twice (recording_setup.cc) and lacks the moves from and to
// the host tier alone, version 7 also RecordedArrival::base_tokens, version 6 also scores_prompt, version 5 all moves;
// all are read. Fields that older versions lack. Version 4: prefix_domain. Version 3: also after_prefill_per_sequence.
// Version 2: also after_prefill_decay, spread_prompts, ridge_tokens, load_on_arrival.
constexpr std::uint32_t kVersion = 10, kVersionWithoutHostMoves = 8, kVersionWithoutBaseTokens = 7,
                        kVersionWithoutScores = 6, kVersionWithoutMoves = 5;
constexpr std::uint8_t kSetupBlock = 1, kHistoryBlock = 2, kStepsBlock = 3, kEndBlock = 4;
constexpr std::size_t kBlockHead = 1 + 4 + 8;
constexpr std::size_t kMaxDigest = 256;
constexpr std::uint64_t kMaxTime = std::uint64_t{1} << 61;  // so that no sum of two overflows

// Sections of a step, in the order in which they are written.
enum Section : std::uint64_t {
  kAdapters = 1,
  kArrivals = 2,
  kPins = 4,
  kCancellations = 8,
  kCancelAll = 16,
  kEnding = 32,
  kRetired = 64,
  kCompletions = 128,
  kLayers = 256,
  kComputed = 512,
  kCollected = 1024,
  kTokens = 2048,
  kPlan = 4096,
  kMoves = 8192,
  kHold = 16384,
  kRetargets = 32768,
  kRenamings = 65536,
  kDropHistory = 131072,
  kRegistrations = 262144,
  kDrafts = 524288,
  kAllSections = 1048575
};

template <typename T>
void PutFixed(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void Put(std::string& out, std::uint64_t value) {
  for (; value >= 128; value >>= 7) out.push_back(static_cast<char>(value | 128));
  out.push_back(static_cast<char>(value));
}

// Zigzag coding: small numbers of either sign stay small.
void PutSigned(std::string& out, std::int64_t value) {
  Put(out, (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
}

// Reads coded values. After a failure it returns zeros.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}
  bool failed() const { return failed_; }
  bool at_end() const { return position_ == bytes_.size(); }
  void Fail() { failed_ = true; }

  template <typename T>
  T Fixed() {
    T value{};
    if (bytes_.size() - position_ < sizeof(T)) {
      failed_ = true;
      position_ = bytes_.size();
      return value;
    }
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  // Reads a variable-length integer. Fails above `most`.
  std::uint64_t Get(std::uint64_t most = UINT64_MAX) {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = Fixed<std::uint8_t>();
      value |= static_cast<std::uint64_t>(byte & 127u) << shift;
      if (byte < 128) break;
      if (shift == 63) failed_ = true;
    }
    if (value > most) failed_ = true;
    return failed_ ? 0 : value;
  }
  std::int64_t GetSigned(std::int64_t low, std::int64_t high) {
    const std::uint64_t value = Get();
    const auto number = static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
    if (number < low || number > high) failed_ = true;
    return failed_ ? 0 : number;
  }
  // A count of items with at least `bytes_each` bytes each. Fails if the rest of the input is too short for them.
  std::size_t Count(std::size_t bytes_each = 1) {
    return static_cast<std::size_t>(Get((bytes_.size() - position_) / bytes_each));
  }
  std::string Bytes(std::size_t size) {
    if (bytes_.size() - position_ < size) failed_ = true;
    if (failed_) return {};
    const std::string text(bytes_.substr(position_, size));
    position_ += size;
    return text;
  }

 private:
  std::string_view bytes_;
  std::size_t position_ = 0;
  bool failed_ = false;
};

std::uint64_t ChecksumOf(std::uint8_t kind, std::string_view payload, std::uint64_t block) {
  return XXH3_64bits_withSeed(payload.data(), payload.size(), block * 256 + kind);
}

// ---------------------------------------------------------------- Steps

void PutList(std::string& out, const std::vector<std::uint64_t>& list) {
  Put(out, list.size());
  for (const std::uint64_t item : list) Put(out, item);
}
std::vector<std::uint64_t> GetList(Cursor& in) {
  std::vector<std::uint64_t> list(in.Count());
  for (std::uint64_t& item : list) item = in.Get();
  return list;
}

void PutAdapter(std::string& out, const RecordedAdapter& adapter) {
  Put(out, adapter.generation.value);
  Put(out, adapter.digest.size());
  out += adapter.digest;
  Put(out, static_cast<std::uint64_t>(adapter.pages));
  Put(out, static_cast<std::uint64_t>(adapter.layers));
  Put(out, static_cast<std::uint64_t>(adapter.max_rank));
}
RecordedAdapter GetAdapter(Cursor& in) {
  RecordedAdapter adapter;
  adapter.generation = AdapterGeneration{static_cast<std::uint32_t>(in.Get(UINT32_MAX))};
  adapter.digest = in.Bytes(in.Get(kMaxDigest));
  adapter.pages = static_cast<std::int64_t>(in.Get(UINT32_MAX));
  adapter.layers = static_cast<std::int32_t>(in.Get(65536));
  adapter.max_rank = static_cast<std::int32_t>(in.Get(65536));
  if (adapter.generation == kBaseModel || adapter.pages == 0) in.Fail();
  return adapter;
}

void PutTokens(std::string& out, const std::vector<TokenId>& tokens) {
  Put(out, tokens.size());
  for (const TokenId token : tokens) PutFixed(out, token);
}
std::vector<TokenId> GetTokens(Cursor& in) {
  std::vector<TokenId> tokens(in.Count(sizeof(TokenId)));
  for (TokenId& token : tokens) {
    token = in.Fixed<TokenId>();
    if (token < 0 || token >= kStopToken) in.Fail();
  }
  return tokens;
}

void PutArrival(std::string& out, const RecordedArrival& arrival) {
  Put(out, arrival.id.value);
  Put(out, arrival.adapter.value);
  Put(out, arrival.tenant);
  Put(out, arrival.prefix_domain);
  PutSigned(out, arrival.priority);
  Put(out, static_cast<std::uint64_t>(arrival.length_hint));
  Put(out, static_cast<std::uint64_t>(arrival.max_total_tokens));
  PutSigned(out, arrival.deadline);
  Put(out, std::uint64_t{arrival.scores_prompt} + 2 * std::uint64_t{arrival.keeps_version});
  Put(out, static_cast<std::uint64_t>(arrival.base_tokens));
  PutTokens(out, arrival.prompt);
}
RecordedArrival GetArrival(Cursor& in, std::uint32_t version) {
  RecordedArrival arrival;
  arrival.id = RequestId{in.Get()};
  arrival.adapter = AdapterGeneration{static_cast<std::uint32_t>(in.Get(UINT32_MAX))};
  arrival.tenant = static_cast<std::uint32_t>(in.Get(UINT32_MAX));
  arrival.prefix_domain = static_cast<std::uint32_t>(in.Get(UINT32_MAX));
  arrival.priority = static_cast<std::int32_t>(in.GetSigned(INT32_MIN, INT32_MAX));
  arrival.length_hint = static_cast<std::int32_t>(in.Get(INT32_MAX));
  arrival.max_total_tokens = static_cast<std::int32_t>(in.Get(INT32_MAX));
  const auto latest = static_cast<std::int64_t>(kMaxTime);
  arrival.deadline = in.GetSigned(-latest, latest);
  const std::uint64_t flags = version > kVersionWithoutScores ? in.Get(3) : 0;
  arrival.scores_prompt = flags % 2 == 1;
  arrival.keeps_version = flags / 2 == 1;
  if (version > kVersionWithoutBaseTokens) arrival.base_tokens = static_cast<std::int32_t>(in.Get(INT32_MAX));
  arrival.prompt = GetTokens(in);
  const auto size = static_cast<std::int64_t>(arrival.prompt.size());
  if (size == 0 || arrival.max_total_tokens < size || arrival.base_tokens >= size) in.Fail();
  return arrival;
}

void PutPlan(std::string& out, const RecordedPlan& plan) {
  PutFixed(out, plan.digest);
  for (const std::uint64_t value :
       {plan.chunks, plan.tokens, plan.prefill_tokens, plan.history_evictions, plan.free_device, plan.free_host}) {
    Put(out, value);
  }
  for (const auto* list : {&plan.admissions, &plan.preemptions, &plan.fetches, &plan.loads, &plan.device_evictions,
                           &plan.host_evictions}) {
    PutList(out, *list);
  }
}
RecordedPlan GetPlan(Cursor& in) {
  RecordedPlan plan;
  plan.digest = in.Fixed<std::uint64_t>();
  for (std::uint64_t* value : {&plan.chunks, &plan.tokens, &plan.prefill_tokens, &plan.history_evictions,
                               &plan.free_device, &plan.free_host}) {
    *value = in.Get();
  }
  for (auto* list : {&plan.admissions, &plan.preemptions, &plan.fetches, &plan.loads, &plan.device_evictions,
                     &plan.host_evictions}) {
    *list = GetList(in);
  }
  return plan;
}

void PutMoves(std::string& out, const RecordedMoves& moves) {
  Put(out, static_cast<std::uint64_t>(moves.reason));
  PutFixed(out, moves.digest);
  for (const std::uint64_t pages :
       {moves.history_evictions, moves.fetched_pages, moves.dropped_pages, moves.backed_up_pages}) {
    Put(out, pages);
  }
  for (const auto* list : {&moves.loads, &moves.device_evictions, &moves.host_evictions}) PutList(out, *list);
}
RecordedMoves GetMoves(Cursor& in, std::uint32_t version) {
  RecordedMoves moves;
  moves.reason = static_cast<MoveReason>(in.Get(static_cast<std::uint64_t>(MoveReason::kRegistered)));
  moves.digest = in.Fixed<std::uint64_t>();
  moves.history_evictions = in.Get();
  moves.fetched_pages = in.Get();
  if (version > kVersionWithoutHostMoves) moves.dropped_pages = in.Get();
  if (version > kVersionWithoutHostMoves) moves.backed_up_pages = in.Get();
  for (auto* list : {&moves.loads, &moves.device_evictions, &moves.host_evictions}) *list = GetList(in);
  return moves;
}

std::uint64_t SectionsOf(const RecordedStep& step) {
  const auto bit = [](bool present, Section section) { return present ? std::uint64_t{section} : 0; };
  return bit(!step.adapters.empty(), kAdapters) | bit(!step.arrivals.empty(), kArrivals) |
         bit(!step.pins.empty(), kPins) | bit(!step.cancellations.empty(), kCancellations) |
         bit(step.cancel_all, kCancelAll) | bit(step.ending, kEnding) | bit(!step.retired.empty(), kRetired) |
         bit(!step.completions.empty(), kCompletions) | bit(!step.layers.empty(), kLayers) |
         bit(step.computed.has_value(), kComputed) | bit(step.collected, kCollected) |
         bit(!step.tokens.empty(), kTokens) | bit(step.plan.has_value(), kPlan) | bit(!step.moves.empty(), kMoves) |
         bit(step.hold.has_value(), kHold) | bit(!step.retargets.empty(), kRetargets) |
         bit(!step.renamings.empty(), kRenamings) | bit(step.drop_history, kDropHistory) |
         bit(!step.registered.empty(), kRegistrations) | bit(!step.drafts.empty(), kDrafts);
}

template <typename Item, typename PutItem>
void PutSection(std::string& out, const std::vector<Item>& items, PutItem put) {
  if (items.empty()) return;
  Put(out, items.size());
  for (const Item& item : items) put(item);
}

// What is said of a transfer, and in its last bit whether the transfer is of history.
void PutTransfer(std::string& out, std::uint64_t transfer, std::uint64_t value) {
  Put(out, transfer & ~kHistoryBit);
  Put(out, value * 2 + (IsOfHistory(transfer) ? 1 : 0));
}

void PutStep(std::string& out, const RecordedStep& step) {
  Put(out, SectionsOf(step));
  PutSection(out, step.adapters, [&](const RecordedAdapter& adapter) { PutAdapter(out, adapter); });
  PutSection(out, step.arrivals, [&](const RecordedArrival& arrival) { PutArrival(out, arrival); });
  PutSection(out, step.pins,
             [&](const RecordedPin& pin) { Put(out, std::uint64_t{pin.adapter.value} * 2 + pin.pinned); });
  PutSection(out, step.cancellations, [&](std::uint64_t id) { Put(out, id); });
  PutSection(out, step.retired, [&](std::uint32_t generation) { Put(out, generation); });
  PutSection(out, step.completions, [&](const RecordedCompletion& completion) {
    PutTransfer(out, completion.transfer, static_cast<std::uint64_t>(completion.outcome));
  });
  PutSection(out, step.layers, [&](const RecordedLayers& layers) {
    PutTransfer(out, layers.transfer, static_cast<std::uint64_t>(layers.layers));
  });
  if (step.computed) Put(out, static_cast<std::uint64_t>(*step.computed));
  PutSection(out, step.tokens, [&](const RecordedToken& token) {
    Put(out, token.id.value);
    PutFixed(out, token.token);
  });
  if (step.plan) PutPlan(out, *step.plan);
  PutSection(out, step.moves, [&](const RecordedMoves& moves) { PutMoves(out, moves); });
  if (step.hold) Put(out, static_cast<std::uint64_t>(*step.hold));
  PutSection(out, step.retargets, [&](const RecordedRetarget& retarget) {
    Put(out, retarget.old.value);
    Put(out, retarget.next.value);
  });
  PutSection(out, step.renamings, [&](const RecordedRenaming& renaming) {
    Put(out, renaming.id.value);
    PutTokens(out, renaming.tokens);
  });
  PutSection(out, step.registered, [&](std::uint32_t generation) { Put(out, generation); });
  PutSection(out, step.drafts, [&](const RecordedDraft& draft) {
    Put(out, draft.id.value);
    Put(out, draft.tokens);
  });
}

template <typename Item, typename GetItem>
void GetSection(Cursor& in, bool present, std::vector<Item>& items, GetItem get) {
  if (!present) return;
  const std::size_t count = in.Count();
  if (count == 0) in.Fail();
  for (std::size_t i = 0; i < count && !in.failed(); ++i) items.push_back(get());
}

// The transfer, and what is said of it: at most `most`.
std::pair<std::uint64_t, std::uint64_t> GetTransfer(Cursor& in, std::uint64_t most) {
  const std::uint64_t number = in.Get(), value = in.Get(most * 2 + 1);
  if (IsOfHistory(number)) in.Fail();
  return {number | (value % 2 == 1 ? kHistoryBit : 0), value / 2};
}

void GetStep(Cursor& in, std::uint32_t version, RecordedStep& step) {
  const std::uint64_t sections = in.Get(kAllSections);
  const auto has = [sections](Section section) { return (sections & section) != 0; };
  GetSection(in, has(kAdapters), step.adapters, [&] { return GetAdapter(in); });
  GetSection(in, has(kArrivals), step.arrivals, [&] { return GetArrival(in, version); });
  GetSection(in, has(kPins), step.pins, [&] {
    const std::uint64_t value = in.Get(std::uint64_t{UINT32_MAX} * 2 + 1);
    return RecordedPin{AdapterGeneration{static_cast<std::uint32_t>(value / 2)}, value % 2 == 1};
  });
  GetSection(in, has(kCancellations), step.cancellations, [&] { return in.Get(); });
  step.cancel_all = has(kCancelAll);
  step.ending = has(kEnding);
  step.drop_history = has(kDropHistory);
  GetSection(in, has(kRetired), step.retired, [&] { return static_cast<std::uint32_t>(in.Get(UINT32_MAX)); });
  GetSection(in, has(kCompletions), step.completions, [&] {
    const auto [transfer, outcome] = GetTransfer(in, static_cast<std::uint64_t>(TransferOutcome::kCancelled));
    return RecordedCompletion{transfer, static_cast<TransferOutcome>(outcome)};
  });
  GetSection(in, has(kLayers), step.layers, [&] {
    const auto [transfer, layers] = GetTransfer(in, 65536);
    return RecordedLayers{transfer, static_cast<std::int32_t>(layers)};
  });
  if (has(kComputed)) step.computed = static_cast<TimeNs>(in.Get(kMaxTime));
  step.collected = has(kCollected);
  GetSection(in, has(kTokens), step.tokens, [&] {
    const RequestId id{in.Get()};
    const auto token = in.Fixed<TokenId>();
    if (token < 0 || token > kStopToken) in.Fail();
    return RecordedToken{id, token};
  });
  if (has(kPlan)) step.plan = GetPlan(in);
  GetSection(in, has(kMoves), step.moves, [&] { return GetMoves(in, version); });
  if (version <= kVersionWithoutHostMoves) step.moves.clear();  // they are not all
  if (has(kHold)) step.hold = static_cast<Hold>(in.Get(static_cast<std::uint64_t>(Hold::kAll)));
  GetSection(in, has(kRetargets), step.retargets, [&] {
    const AdapterGeneration old{static_cast<std::uint32_t>(in.Get(UINT32_MAX))};
    const AdapterGeneration next{static_cast<std::uint32_t>(in.Get(UINT32_MAX))};
    if (old == kBaseModel || old == next) in.Fail();
    return RecordedRetarget{old, next};
  });
  GetSection(in, has(kRenamings), step.renamings, [&] {
    const RequestId id{in.Get()};
    return RecordedRenaming{id, GetTokens(in)};
  });
  GetSection(in, has(kRegistrations), step.registered, [&] { return static_cast<std::uint32_t>(in.Get(UINT32_MAX)); });
  GetSection(in, has(kDrafts), step.drafts, [&] {
    const RequestId id{in.Get()};
    const std::uint64_t tokens = in.Get(SpeculationOptions::kMostStepTokens);
    if (tokens == 0) in.Fail();
    return RecordedDraft{id, tokens};
  });
}

// ---------------------------------------------------------------- SipHash-2-4 (Aumasson, Bernstein 2012), of 16 bytes

struct SipState {
  std::uint64_t v0, v1, v2, v3;
  void Round() {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }
  void Take(std::uint64_t word) {
    v3 ^= word;
    Round();
    Round();
    v0 ^= word;
  }
};

std::uint64_t SipHash(const std::array<std::uint64_t, 2>& key, std::uint64_t a, std::uint64_t b) {
  SipState s{key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
             key[1] ^ 0x7465646279746573u};
  s.Take(a);
  s.Take(b);
  s.Take(std::uint64_t{16} << 56);
  s.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) s.Round();
  return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

}  // namespace

std::uint64_t Pseudonyms::Begin(std::string_view content) const {
  return SipHash(key_, content.size(), XXH3_64bits(content.data(), content.size()));
}

TokenId Pseudonyms::Name(std::uint64_t& sequence, TokenId token) const {
  sequence = SipHash(key_, sequence, static_cast<std::uint64_t>(token));
  return static_cast<TokenId>(sequence & static_cast<std::uint64_t>(kStopToken - 1));
}

// ---------------------------------------------------------------- Plans

namespace {

class PlanDescriber {
 public:
  explicit PlanDescriber(std::span<const std::uint32_t> original) : original_(original) {}

  RecordedPlan Describe(const StepPlan& plan) {
    RecordedPlan out;
    out.chunks = plan.chunks.size();
    out.tokens = static_cast<std::uint64_t>(plan.num_tokens);
    out.prefill_tokens = static_cast<std::uint64_t>(plan.prefill_tokens);
    Add(static_cast<std::uint64_t>(plan.discarded_tokens));
    for (const Request* request : plan.preemptions) out.preemptions.push_back(request->id.value);
    AddEvictions(plan.moves, out);
    for (const PlannedAdmission& admission : plan.admissions) AddAdmission(admission, out);
    for (const Request* request : plan.exhausted) Add(request->id.value);
    for (const PlannedChunk& chunk : plan.chunks) AddChunk(chunk);
    for (const Move& move : plan.moves) {
      if (!move.is_fetch()) continue;
      out.fetches.push_back(move.requester.value);
      AddNode(move.item.node);
      Add(static_cast<std::uint64_t>(move.pages) * 2 + (move.why == MoveReason::kAhead));
    }
    AddLoads(plan.moves, out.loads);
    for (const auto* list :
         {&out.admissions, &out.preemptions, &out.fetches, &out.loads, &out.device_evictions, &out.host_evictions}) {
      AddList(*list);
    }
    return out;
  }
  RecordedMoves Describe(const MovePlan& plan) {
    RecordedMoves out;
    out.reason = plan.reason;
    AddEvictions(plan.moves, out);
    for (const Move& move : plan.moves) {
      const bool copied = move.to == Tier::kHost && !move.item.is_adapter(),
                 dropped = move.leaves(Tier::kHost) && !move.item.is_adapter();
      out.backed_up_pages += copied;
      out.dropped_pages += dropped;
      if (move.is_fetch()) out.fetched_pages += static_cast<std::uint64_t>(move.pages);
      if (copied || dropped || move.is_fetch()) AddNode(move.item.node);
      const bool read = plan.reason == MoveReason::kRegistered && move.item.is_adapter() && move.to == Tier::kHost;
      if (read) out.loads.push_back(Original(move.item.adapter));
    }
    AddLoads(plan.moves, out.loads);
    for (const auto* list : {&out.loads, &out.device_evictions, &out.host_evictions}) AddList(*list);
    return out;
  }
  std::uint64_t Digest() const { return XXH3_64bits(words_.data(), words_.size() * sizeof(std::uint64_t)); }

 private:
  void Add(std::uint64_t word) { words_.push_back(word); }
  void AddList(const std::vector<std::uint64_t>& list) {
    Add(list.size());
    words_.insert(words_.end(), list.begin(), list.end());
  }
  // What leaves a tier. `out`: RecordedPlan or RecordedMoves.
  template <typename Recorded>
  void AddEvictions(const Moves& moves, Recorded& out) {
    for (const Move& move : moves) {
      if (move.to != Tier::kDisk) continue;
      if (!move.item.is_adapter()) {
        if (move.from != Tier::kDevice) continue;
        ++out.history_evictions;
        AddNode(move.item.node);
      } else {
        (move.from == Tier::kDevice ? out.device_evictions : out.host_evictions).push_back(Original(move.item.adapter));
      }
    }
  }
  void AddLoads(const Moves& moves, std::vector<std::uint64_t>& loads) {
    for (const Move& move : moves) {
      if (!move.is_load()) continue;
      loads.push_back(Original(move.item.adapter));
      Add(move.from == Tier::kHost);
    }
  }
  void AddNode(NodeId node) { Add(std::uint64_t{node.generation} << 32 | node.index); }
  std::uint64_t Original(AdapterGeneration generation) const {
    return original_.empty() ? generation.value : original_[generation.value];
  }
  void AddAdmission(const PlannedAdmission& admission, RecordedPlan& out) {
    out.admissions.push_back(admission.request->id.value);
    AddNode(admission.tail);
    Add(static_cast<std::uint64_t>(admission.in_page.tokens));
    if (admission.copies()) AddNode(admission.in_page.node);
    Add(admission.overtakes.value);
  }
  // Includes the request's progress: computed positions and known tokens.
  void AddChunk(const PlannedChunk& chunk) {
    Add(chunk.request->id.value);
    Add(static_cast<std::uint64_t>(chunk.request->computed) << 32 |
        static_cast<std::uint64_t>(chunk.request->tokens.size()));
    Add(static_cast<std::uint64_t>(chunk.num_tokens) << 32 | static_cast<std::uint64_t>(chunk.new_pages));
    Add(static_cast<std::uint64_t>(chunk.drafted) * 8 + std::uint64_t{chunk.takes_snapshot} * 4 +
        std::uint64_t{chunk.admits} * 2 + chunk.samples);
  }

  std::span<const std::uint32_t> original_;
  std::vector<std::uint64_t> words_;
};

void ShowList(std::string& text, const char* what, const std::vector<std::uint64_t>& list) {
  if (list.empty()) return;
  text.append(", ").append(what);
  constexpr std::size_t kMost = 12;
  for (std::size_t i = 0; i < std::min(list.size(), kMost); ++i) text.append(" ").append(std::to_string(list[i]));
  if (list.size() > kMost) text.append(" ... (").append(std::to_string(list.size())).append(")");
}

}  // namespace

RecordedPlan DescribePlan(const StepPlan& plan, std::int64_t free_device, std::int64_t free_host,
                          std::span<const std::uint32_t> original) {
  PlanDescriber describer(original);
  RecordedPlan described = describer.Describe(plan);
  described.digest = describer.Digest();
  described.free_device = static_cast<std::uint64_t>(free_device);
  described.free_host = static_cast<std::uint64_t>(free_host);
  return described;
}

RecordedMoves DescribeMoves(const MovePlan& plan, std::span<const std::uint32_t> original) {
  PlanDescriber describer(original);
  RecordedMoves described = describer.Describe(plan);
  described.digest = describer.Digest();
  return described;
}

std::string ShowMoves(const RecordedMoves& moves) {
  constexpr std::array kReasons = {"for a new request",      "for an expected adapter", "to keep pages free",
                                   "because memory is busy", "because memory is idle",  "to make room in the host tier",
                                   "to copy history ahead",  "to drop all history",     "into the host tier"};
  std::string text = std::string("moves ") + kReasons[static_cast<std::size_t>(moves.reason)];
  ShowList(text, "loads adapters", moves.loads);
  ShowList(text, "evicts from the device adapters", moves.device_evictions);
  ShowList(text, "evicts from the host tier adapters", moves.host_evictions);
  if (moves.history_evictions > 0) text += ", evicts " + std::to_string(moves.history_evictions) + " pages of history";
  if (moves.dropped_pages > 0) text += ", drops " + std::to_string(moves.dropped_pages) + " pages of the host tier";
  if (moves.backed_up_pages > 0) text += ", copies " + std::to_string(moves.backed_up_pages) + " pages of history";
  if (moves.fetched_pages > 0) text += ", fetches " + std::to_string(moves.fetched_pages) + " pages of history";
  return text;
}

std::string ShowPlan(const RecordedPlan& plan) {
  std::string text = std::to_string(plan.chunks) + " requests compute " + std::to_string(plan.tokens) + " tokens (" +
                     std::to_string(plan.prefill_tokens) + " of prompts)";
  ShowList(text, "admits requests", plan.admissions);
  ShowList(text, "preempts requests", plan.preemptions);
  ShowList(text, "fetches history of requests", plan.fetches);
  ShowList(text, "loads adapters", plan.loads);
  ShowList(text, "evicts from the device adapters", plan.device_evictions);
  ShowList(text, "evicts from the host tier adapters", plan.host_evictions);
  if (plan.history_evictions > 0) text += ", evicts " + std::to_string(plan.history_evictions) + " pages of history";
  return text + "; free before: " + std::to_string(plan.free_device) + " device pages, " +
         std::to_string(plan.free_host) + " host pages";
}

// ---------------------------------------------------------------- Blocks

std::string RecordingEncoder::Block(std::uint8_t kind, std::string_view payload) {
  CHECK_LE(payload.size(), std::size_t{UINT32_MAX});
  std::string block;
  block.reserve(kBlockHead + payload.size());
  PutFixed(block, kind);
  PutFixed(block, static_cast<std::uint32_t>(payload.size()));
  PutFixed(block, ChecksumOf(kind, payload, blocks_++));
  block += payload;
  return block;
}

std::string RecordingEncoder::Head(const RecordedSetup& setup) {
  std::string head(kMagic);
  PutFixed(head, kVersion);
  head += Block(kSetupBlock, SetupAsJson(setup));
  return head + Block(kHistoryBlock, setup.history);
}

// The first step's number and time are absolute, those of the others relative to the step before.
std::string RecordingEncoder::Steps(std::span<const RecordedStep> steps) {
  std::string payload;
  Put(payload, steps.size());
  std::uint64_t number = 0;
  TimeNs now = 0;
  for (const RecordedStep& step : steps) {
    Put(payload, step.number - std::exchange(number, step.number));
    Put(payload, static_cast<std::uint64_t>(step.now - std::exchange(now, step.now)));
    PutStep(payload, step);
  }
  return Block(kStepsBlock, payload);
}

std::string RecordingEncoder::End(RecordingEnd end) {
  std::string payload;
  PutFixed(payload, static_cast<std::uint8_t>(end));
  return Block(kEndBlock, payload);
}

Result<RecordingReader::Block> RecordingReader::NextBlock() {
  const std::string_view rest = std::string_view(bytes_).substr(position_);
  Cursor head(rest);
  const auto kind = head.Fixed<std::uint8_t>();
  const auto size = head.Fixed<std::uint32_t>();
  const auto checksum = head.Fixed<std::uint64_t>();
  if (head.failed() || rest.size() - kBlockHead < size) {
    truncated_ = true;
    return InvalidArgument("recording: truncated at byte " + std::to_string(bytes_.size()));
  }
  const std::string_view payload = rest.substr(kBlockHead, size);
  if (checksum != ChecksumOf(kind, payload, blocks_)) {
    return InvalidArgument("recording: damaged at byte " + std::to_string(position_) + ": the checksum does not match");
  }
  ++blocks_;
  position_ += kBlockHead + size;
  return Block{kind, payload};
}

Result<RecordingReader::Block> RecordingReader::BlockOf(std::uint8_t kind, const char* what) {
  ASSIGN_OR_RETURN(const Block block, NextBlock());
  if (block.kind == kind) return block;
  return InvalidArgument(std::string("recording: expected ") + what + ", found a block of kind " +
                         std::to_string(block.kind));
}

Result<RecordingReader> RecordingReader::Open(std::string bytes) {
  if (bytes.size() < kMagic.size() + sizeof(kVersion) || std::string_view(bytes).substr(0, kMagic.size()) != kMagic) {
    return InvalidArgument("expected a recording of `loramux serve --record`, found another file");
  }
  RecordingReader reader(std::move(bytes));
  std::uint32_t& version = reader.version_;
  std::memcpy(&version, reader.bytes_.data() + kMagic.size(), sizeof(version));
  if (version < kVersionWithoutMoves || version > kVersion) {
    return InvalidArgument("recording: expected a version from " + std::to_string(kVersionWithoutMoves) + " to " +
                           std::to_string(kVersion) + ", found " + std::to_string(version));
  }
  reader.position_ = kMagic.size() + sizeof(kVersion);
  ASSIGN_OR_RETURN(const Block setup, reader.BlockOf(kSetupBlock, "its setup"));
  ASSIGN_OR_RETURN(reader.setup_, SetupFromJson(setup.payload));
  ASSIGN_OR_RETURN(const Block history, reader.BlockOf(kHistoryBlock, "the history of output lengths"));
  reader.setup_.history = history.payload;
  reader.steps_begin_ = reader.position_;
  return reader;
}

bool RecordingReader::has_moves() const { return version_ > kVersionWithoutHostMoves; }

void RecordingReader::Rewind() {
  position_ = steps_begin_;
  blocks_ = 2;
  steps_.clear();
  next_step_ = 0;
  next_number_ = 0;
  last_now_ = 0;
  truncated_ = false;
  end_.reset();
}

Status RecordingReader::Check(const RecordedStep& step) {
  if (step.number != next_number_) {
    return InvalidArgument("recording: expected step " + std::to_string(next_number_) + ", found step " +
                           std::to_string(step.number));
  }
  if (step.now < last_now_ || step.now > static_cast<TimeNs>(kMaxTime)) {
    return InvalidArgument("recording: step " + std::to_string(step.number) +
                           ": its time is before the previous step's or too large");
  }
  ++next_number_;
  last_now_ = step.now;
  return Ok{};
}

Status RecordingReader::ReadSteps(std::string_view payload) {
  Cursor in(payload);
  steps_.clear();
  next_step_ = 0;
  const std::size_t count = in.Count(3);
  std::uint64_t number = 0, now = 0;
  for (std::size_t i = 0; i < count; ++i) {
    RecordedStep& step = steps_.emplace_back();
    step.number = number += in.Get();
    step.now = static_cast<TimeNs>(now += in.Get(kMaxTime));
    GetStep(in, version_, step);
    if (in.failed()) break;
    RETURN_IF_ERROR(Check(step));
  }
  if (!in.failed() && in.at_end()) return Ok{};
  return InvalidArgument("recording: step " + std::to_string(next_number_) + " holds values that no server writes");
}

Result<std::optional<RecordedStep>> RecordingReader::Next() {
  while (next_step_ == steps_.size() && !end_) {
    ASSIGN_OR_RETURN(const Block block, NextBlock());
    if (block.kind == kStepsBlock) {
      RETURN_IF_ERROR(ReadSteps(block.payload));
      continue;
    }
    if (block.kind != kEndBlock || block.payload.size() != 1 || position_ != bytes_.size() ||
        static_cast<std::uint8_t>(block.payload[0]) > static_cast<std::uint8_t>(RecordingEnd::kLimit)) {
      return InvalidArgument("recording: expected a block of steps or the end, found another block at byte " +
                             std::to_string(position_));
    }
    end_ = static_cast<RecordingEnd>(block.payload[0]);
  }
  if (next_step_ == steps_.size()) return std::optional<RecordedStep>();
  return std::optional<RecordedStep>(std::move(steps_[next_step_++]));
}

}  // namespace loramux
