#include "assist/assist_pool.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "assist/assist_worker.h"
#include "base/check.h"

namespace loramux {
namespace {

// How long Begin waits for a worker that has nothing left to do but to notice it.
constexpr TimeNs kWorkerGrace = kNsPerSecond;
// Blocks of logits that there is room for at first.
constexpr std::int32_t kInitialBlocks = 4;
// Tickets have 31 bits, and 0 is none.
constexpr std::uint32_t kTickets = 0x8000'0000u;

void ClearWords(gpu::AssistWords& words) {
  for (std::uint32_t* word : {&words.request, &words.answered, &words.failed}) {
    std::atomic_ref(*word).store(0, std::memory_order_relaxed);
  }
}

// One worker thread, and what it has in hand.
struct AssistWorker {
  std::vector<AssistJob> jobs;  // the worker's from `open` to `done`, else the pool's
  // Numbers of steps: the last one that the worker was given, and the last one that it has left.
  std::atomic<std::uint32_t> open{0}, done{0};
  std::atomic<std::int64_t> answers{0}, answered_rows{0}, busy_ns{0};
  bool free = true;   // in this step: it has left all earlier ones
  bool late = false;  // an answer of the last step that it had failed to come
  std::thread thread;
};

struct SlotInPool {
  AssistSlot slot;
  AssistWorker* worker = nullptr;  // null: free
  std::int32_t segment = -1;       // index of the step's segment; -1: none
  std::int32_t first_row = 0, rows = 0;
};

struct SegmentInPool {
  std::int32_t first_slot = 0, slots = 0;  // range of slots in `used`
  const std::uint32_t* arrived = nullptr;
};

// What the launches of a step read: one image, copied as a whole.
struct StepImage {
  std::unique_ptr<Arena> device, pinned;
  std::int32_t slots = 0, blocks = 0;
  std::int64_t layers = 0;

  std::int64_t CountsAt() const { return 0; }  // segments, first ticket, pieces of layers, pieces of blocks
  std::int64_t SegmentsAt() const { return CeilDivide((3 + blocks) * 4, 64) * 64; }
  std::int64_t PiecesAt() const { return SegmentsAt() + slots * static_cast<std::int64_t>(sizeof(gpu::AssistSegment)); }
  std::int64_t TargetsAt() const {
    return PiecesAt() + std::int64_t{slots} * (1 + blocks) * static_cast<std::int64_t>(sizeof(gpu::AssistPiece));
  }
  std::int64_t Bytes() const { return TargetsAt() + slots * (layers + 1); }

  Status Allocate(Device& of) {
    ASSIGN_OR_RETURN(device, of.Allocate("assisted segments", Bytes()));
    ASSIGN_OR_RETURN(pinned, of.AllocatePinned("image of assisted segments", Bytes()));
    std::memset(pinned->base(), 0, static_cast<std::size_t>(Bytes()));
    return Ok{};
  }
  template <typename T>
  T* Host(std::int64_t at) const {
    return reinterpret_cast<T*>(pinned->base() + at);
  }
  template <typename T>
  T* OnDevice(std::int64_t at) const {
    return reinterpret_cast<T*>(device->base() + at);
  }
  // Where the pieces of the layers (block -1) or of a block of logits begin.
  std::int64_t PiecesOf(std::int32_t block) const {
    return PiecesAt() + std::int64_t{block + 1} * slots * static_cast<std::int64_t>(sizeof(gpu::AssistPiece));
  }
  std::int64_t CountOf(std::int32_t block) const { return CountsAt() + (3 + block) * 4; }
};

}  // namespace

struct AssistPool::State {
  explicit State(Device& device, const AssistOptions& options) : device(device), options(options) {}

  Device& device;
  const AssistOptions options;
  std::unique_ptr<Arena> slot_memory, gates;
  std::vector<SlotInPool> slots;
  std::vector<std::int32_t> free_slots;
  std::vector<std::unique_ptr<AssistWorker>> workers;
  std::atomic<bool> stopping{false};
  // The last step that was closed.
  std::atomic<std::uint32_t> closed{0};
  const OsClock clock;
  std::atomic<std::int64_t> failures{0};

  // The open step.
  bool open = false, uploaded = false;
  std::uint32_t step = 0, first_ticket = 1;
  std::vector<std::int32_t> used;  // slots, segment after segment
  std::vector<SegmentInPool> segments;
  std::vector<std::uint8_t> targets;  // [segment][layers + 1]
  std::vector<std::uint8_t> changes;  // [layers + 1]: by some segment
  std::vector<AssistWorker*> free_workers;
  std::size_t next_worker = 0;
  std::vector<std::vector<gpu::AssistPiece>> head_pieces;  // by block
  std::int32_t blocks = 0;
  StepImage image;

  const AssistLayout& layout() const { return options.layout; }

  Status Allocate();
  void Work(AssistWorker& worker, int index);
  bool AwaitStep(AssistWorker& worker, std::uint32_t seen);
  // Whether the step of this number is not closed yet.
  bool IsOpen(std::uint32_t of) const;
  bool Look(AssistWorker& worker, int index, std::uint32_t in_hand, AlignedBuffer<float>& scratch);
  bool HasLeft(AssistWorker& worker) const;
  void WriteImage();
  // Into how many pieces a segment is cut that so many workers share. REQUIRES: there is room for it.
  std::int32_t PiecesFor(std::int32_t rows, std::int32_t workers_of_segment) const;
  void AddTargets(std::span<const LoraWeights> modules);
  bool Changes(std::int64_t layer, std::uint32_t mask) const;
  bool ChangesBlock(std::int32_t block) const;
  void SendHeadPart(DeviceStream& stream, std::int32_t block, std::int64_t part, const void* x, std::int64_t x_stride);
  Status MakeRoom();
  // The work on the layers (block -1) or on a block of logits.
  gpu::AssistWork WorkOf(std::int32_t block) const;
  AssistJob& JobOf(const SlotInPool& slot) const;
};

// --- workers ---

// False: the pool ends.
bool AssistPool::State::AwaitStep(AssistWorker& worker, std::uint32_t seen) {
  worker.open.wait(seen, std::memory_order_acquire);
  return !stopping.load(std::memory_order_acquire);
}

bool AssistPool::State::IsOpen(std::uint32_t of) const {
  return static_cast<std::int32_t>(closed.load(std::memory_order_acquire) - of) < 0 &&
         !stopping.load(std::memory_order_acquire);
}

bool AssistPool::State::Look(AssistWorker& worker, int index, std::uint32_t in_hand, AlignedBuffer<float>& scratch) {
  bool found = false;
  for (AssistJob& job : worker.jobs) {
    const std::uint32_t ticket = FindRequest(job);
    if (ticket == 0) continue;
    found = true;
    if (!IsOpen(in_hand)) return found;
    if (options.before_answer) options.before_answer(index, ticket - job.first_ticket);
    const TimeNs begin = clock.Now();
    AnswerRequest(layout(), ticket, job, scratch);
    worker.busy_ns.fetch_add(clock.Now() - begin, std::memory_order_relaxed);
    worker.answers.fetch_add(1, std::memory_order_relaxed);
    worker.answered_rows.fetch_add(RowsOfRequest(layout(), ticket, job), std::memory_order_relaxed);
  }
  return found;
}

void AssistPool::State::Work(AssistWorker& worker, int index) {
  AlignedBuffer<float> scratch;
  std::uint32_t step_in_hand = 0;
  while (AwaitStep(worker, step_in_hand)) {
    step_in_hand = worker.open.load(std::memory_order_acquire);
    std::int64_t idle = 0;
    while (IsOpen(step_in_hand)) {
      idle = Look(worker, index, step_in_hand, scratch) ? 0 : idle + 1;
      if (idle > 0) PauseBetweenLooks(idle);
    }
    worker.jobs.clear();  // and what they own
    worker.done.store(step_in_hand, std::memory_order_release);
  }
}

bool AssistPool::State::HasLeft(AssistWorker& worker) const {
  return worker.done.load(std::memory_order_acquire) == worker.open.load(std::memory_order_relaxed);
}

// --- life ---

Status AssistPool::State::Allocate() {
  const std::int64_t bytes = layout().SlotBytes();
  ASSIGN_OR_RETURN(slot_memory, device.AllocatePinned("slots of assisted segments", bytes * options.slots));
  ASSIGN_OR_RETURN(gates, device.Allocate("gates of assisted segments", std::int64_t{options.slots} * 4));
  for (std::int32_t i = 0; i < options.slots; ++i) {
    slots.push_back({AssistSlot::At(layout(), slot_memory->base() + i * bytes)});
    free_slots.push_back(options.slots - 1 - i);
  }
  image.slots = options.slots;
  image.blocks = kInitialBlocks;
  image.layers = layout().layers;
  return image.Allocate(device);
}

AssistPool::AssistPool(std::unique_ptr<State> state) : state_(std::move(state)) {
  for (int i = 0; i < state_->options.workers; ++i) {
    state_->workers.push_back(std::make_unique<AssistWorker>());
    AssistWorker& worker = *state_->workers.back();
    worker.thread = std::thread([state = state_.get(), &worker, i] { state->Work(worker, i); });
  }
}

Result<std::unique_ptr<AssistPool>> AssistPool::Create(Device& device, const AssistOptions& options) {
  CHECK_GE(options.workers, 1);
  CHECK_GE(options.slots, 1);
  CHECK_GE(options.layout.layers, 1);
  AssistOptions used = options;
  used.layout.fused = device.properties().major > 0;  // the emulated device rounds twice
  auto state = std::make_unique<State>(device, used);
  RETURN_IF_ERROR(state->Allocate());
  return std::unique_ptr<AssistPool>(new AssistPool(std::move(state)));
}

AssistPool::~AssistPool() {
  CHECK(!state_->open);
  state_->stopping.store(true, std::memory_order_release);
  for (const auto& worker : state_->workers) {
    worker->open.fetch_add(1, std::memory_order_release);
    worker->open.notify_one();
  }
  for (const auto& worker : state_->workers) worker->thread.join();
}

AssistCounts AssistPool::counts() const {
  AssistCounts counts;
  for (const auto& worker : state_->workers) {
    counts.answers += worker->answers.load(std::memory_order_relaxed);
    counts.answered_rows += worker->answered_rows.load(std::memory_order_relaxed);
    counts.busy_ns += worker->busy_ns.load(std::memory_order_relaxed);
  }
  counts.failures = state_->failures.load(std::memory_order_relaxed);
  return counts;
}

// --- a step ---

void AssistPool::Begin() {
  State& s = *state_;
  CHECK(!s.open);
  s.open = true;
  s.uploaded = false;
  s.step = s.step + 1 == 0 ? 1 : s.step + 1;
  s.used.clear();
  s.segments.clear();
  s.targets.clear();
  s.changes.assign(static_cast<std::size_t>(s.layout().layers + 1), 0);
  s.free_workers.clear();
  for (auto& pieces : s.head_pieces) pieces.clear();
  s.blocks = 0;
  const TimeNs begin = s.clock.Now();
  for (const auto& worker : s.workers) {
    // One that was late may still be: it is not waited for again.
    while (worker->free && !worker->late && !s.HasLeft(*worker) && s.clock.Now() - begin < kWorkerGrace)
      std::this_thread::yield();
    worker->free = s.HasLeft(*worker);
    worker->late = false;
    if (!worker->free) continue;
    s.free_workers.push_back(worker.get());
  }
  for (std::size_t i = 0; i < s.slots.size(); ++i) {
    SlotInPool& slot = s.slots[i];
    if (slot.worker == nullptr || !slot.worker->free) continue;
    slot.worker = nullptr;
    s.free_slots.push_back(static_cast<std::int32_t>(i));
  }
}

std::int32_t AssistPool::RoomForRows() const {
  if (state_->free_workers.empty()) return 0;
  return static_cast<std::int32_t>(state_->free_slots.size()) * gpu::kAssistPieceRows;
}

const std::uint32_t* AssistPool::AddSegment(const AssistedSegment& segment) {
  State& s = *state_;
  CHECK(s.open && !s.uploaded);
  CHECK_GT(segment.rows, 0);
  CHECK_EQ(segment.modules.size(), static_cast<std::size_t>(s.layout().layers * 7 + 1));
  if (segment.rows > RoomForRows()) return nullptr;
  const std::size_t workers =
      std::clamp<std::size_t>(static_cast<std::size_t>(std::max(segment.workers, 1)), 1, s.free_workers.size());
  const auto index = static_cast<std::int32_t>(s.segments.size());
  SegmentInPool added = {static_cast<std::int32_t>(s.used.size()), 0, segment.arrived};
  const std::int32_t pieces = s.PiecesFor(segment.rows, static_cast<std::int32_t>(workers));
  std::int32_t row = 0;
  for (std::int32_t i = 0; i < pieces; ++i) {
    const std::int32_t number = s.free_slots.back();
    s.free_slots.pop_back();
    SlotInPool& slot = s.slots[static_cast<std::size_t>(number)];
    slot.segment = index;
    slot.first_row = segment.first_row + row;
    slot.rows = segment.rows / pieces + (i < segment.rows % pieces ? 1 : 0);
    row += slot.rows;
    slot.worker =
        s.free_workers[(s.next_worker + static_cast<std::size_t>(added.slots) % workers) % s.free_workers.size()];
    ClearWords(*slot.slot.words);
    slot.worker->jobs.push_back(
        {slot.slot, s.first_ticket, slot.rows, {}, segment.modules, segment.owner, segment.host, 0});
    s.used.push_back(number);
    ++added.slots;
  }
  s.next_worker += workers;
  s.AddTargets(segment.modules);
  s.segments.push_back(added);
  return reinterpret_cast<const std::uint32_t*>(s.gates->base()) + index;
}

// A piece for each worker of the segment, while the step leaves workers idle: more pieces read the adapter more often.
std::int32_t AssistPool::State::PiecesFor(std::int32_t rows, std::int32_t workers_of_segment) const {
  const auto least = static_cast<std::int32_t>(CeilDivide(rows, gpu::kAssistPieceRows));
  const auto idle = std::ssize(free_workers) - std::ssize(used);
  const auto most = static_cast<std::int32_t>(std::min(idle, std::ssize(free_slots)));
  return std::max(least, std::min({workers_of_segment, rows, most}));
}

void AssistPool::State::AddTargets(std::span<const LoraWeights> modules) {
  for (std::int64_t layer = 0; layer <= layout().layers; ++layer) {
    std::uint8_t changed = 0;
    const std::size_t first = static_cast<std::size_t>(layer * 7), count = layer < layout().layers ? 7 : 1;
    for (std::size_t t = 0; t < count; ++t) {
      if (modules[first + t].changes()) changed |= static_cast<std::uint8_t>(1u << t);
    }
    targets.push_back(changed);
    changes[static_cast<std::size_t>(layer)] |= changed;
  }
}

AssistJob& AssistPool::State::JobOf(const SlotInPool& slot) const {
  for (AssistJob& job : slot.worker->jobs) {
    if (job.slot.words == slot.slot.words) return job;
  }
  CHECK(false);
  __builtin_unreachable();
}

void AssistPool::AddLogitRows(std::int32_t segment, std::int32_t block, std::int32_t first_row, std::int32_t rows) {
  State& s = *state_;
  CHECK(s.open && !s.uploaded);
  CHECK_LT(static_cast<std::size_t>(segment), s.segments.size());
  const SegmentInPool& of = s.segments[static_cast<std::size_t>(segment)];
  CHECK_LE(CeilDivide(rows, gpu::kAssistPieceRows), of.slots);
  s.blocks = std::max(s.blocks, block + 1);
  if (s.head_pieces.size() < static_cast<std::size_t>(s.blocks)) {
    s.head_pieces.resize(static_cast<std::size_t>(s.blocks));
  }
  for (std::int32_t row = 0, i = 0; row < rows; row += gpu::kAssistPieceRows, ++i) {
    const SlotInPool& slot = s.slots[static_cast<std::size_t>(s.used[static_cast<std::size_t>(of.first_slot + i)])];
    const std::int32_t piece_rows = std::min(rows - row, gpu::kAssistPieceRows);
    AssistJob& job = s.JobOf(slot);
    job.head_rows.resize(static_cast<std::size_t>(block + 1));
    job.head_rows[static_cast<std::size_t>(block)] = piece_rows;
    s.head_pieces[static_cast<std::size_t>(block)].push_back(
        {slot.slot.x, slot.slot.answer, slot.slot.words, first_row + row, piece_rows, segment, 0});
  }
}

bool AssistPool::active() const { return state_->open && !state_->segments.empty(); }

void AssistPool::State::WriteImage() {
  image.Host<std::int32_t>(image.CountsAt())[0] = static_cast<std::int32_t>(segments.size());
  image.Host<std::uint32_t>(image.CountsAt())[1] = first_ticket;
  *image.Host<std::int32_t>(image.CountOf(-1)) = static_cast<std::int32_t>(used.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::int64_t at = image.TargetsAt() + static_cast<std::int64_t>(i) * (layout().layers + 1);
    image.Host<gpu::AssistSegment>(image.SegmentsAt())[i] = {segments[i].arrived, image.OnDevice<std::uint8_t>(at)};
  }
  std::copy(targets.begin(), targets.end(), image.Host<std::uint8_t>(image.TargetsAt()));
  auto* pieces = image.Host<gpu::AssistPiece>(image.PiecesOf(-1));
  for (const std::int32_t number : used) {
    const SlotInPool& slot = slots[static_cast<std::size_t>(number)];
    *pieces++ = {slot.slot.x, slot.slot.answer, slot.slot.words, slot.first_row, slot.rows, slot.segment, 0};
  }
  for (std::int32_t block = 0; block < blocks; ++block) {
    const auto& of_block = head_pieces[static_cast<std::size_t>(block)];
    *image.Host<std::int32_t>(image.CountOf(block)) = static_cast<std::int32_t>(of_block.size());
    std::copy(of_block.begin(), of_block.end(), image.Host<gpu::AssistPiece>(image.PiecesOf(block)));
  }
}

Status AssistPool::State::MakeRoom() {
  if (blocks <= image.blocks) return Ok{};
  StepImage larger;
  larger.slots = image.slots;
  larger.layers = image.layers;
  larger.blocks = blocks * 2;
  RETURN_IF_ERROR(larger.Allocate(device));
  image = std::move(larger);
  return Ok{};
}

Status AssistPool::Upload(DeviceStream& stream) {
  State& s = *state_;
  CHECK(s.open && !s.uploaded);
  if (s.segments.empty()) return Ok{};
  RETURN_IF_ERROR(s.MakeRoom());
  s.uploaded = true;
  s.WriteImage();
  stream.CopyToDevice(s.image.device->base(), s.image.pinned->base(), static_cast<std::size_t>(s.image.Bytes()));
  for (AssistWorker* worker : s.free_workers) {
    if (worker->jobs.empty()) continue;
    worker->open.store(s.step, std::memory_order_release);
    worker->open.notify_one();
  }
  return Ok{};
}

void AssistPool::End(std::vector<AssistFailure>& failures) {
  State& s = *state_;
  CHECK(s.open);
  s.open = false;
  s.closed.store(s.step, std::memory_order_release);
  for (const std::int32_t number : s.used) {
    SlotInPool& slot = s.slots[static_cast<std::size_t>(number)];
    if (!s.uploaded) slot.worker->jobs.clear();  // no worker has seen them
    if (std::atomic_ref(slot.slot.words->failed).load(std::memory_order_acquire) != s.first_ticket) continue;
    failures.push_back({slot.segment, slot.first_row, slot.rows});
    s.failures.fetch_add(1, std::memory_order_relaxed);
    slot.worker->late = true;
  }
  s.first_ticket += s.layout().GroupOfHead(s.blocks, 0);
  if (s.first_ticket > kTickets / 2) s.first_ticket = 1;
}

// --- launches ---

gpu::AssistWork AssistPool::State::WorkOf(std::int32_t block) const {
  CHECK(open && uploaded);
  const std::size_t pieces = block < 0 ? used.size() : head_pieces[static_cast<std::size_t>(block)].size();
  return {.pieces = image.OnDevice<gpu::AssistPiece>(image.PiecesOf(block)),
          .segments = image.OnDevice<gpu::AssistSegment>(image.SegmentsAt()),
          .gates = reinterpret_cast<std::uint32_t*>(gates->base()),
          .piece_count = image.OnDevice<std::int32_t>(image.CountOf(block)),
          .segment_count = image.OnDevice<std::int32_t>(image.CountsAt()),
          .first_ticket = image.OnDevice<std::uint32_t>(image.CountsAt() + 4),
          .timeout_ns = options.timeout,
          .max_pieces = static_cast<std::int32_t>(pieces),
          .max_segments = static_cast<std::int32_t>(segments.size())};
}

bool AssistPool::State::Changes(std::int64_t layer, std::uint32_t mask) const {
  return open && !segments.empty() && (changes[static_cast<std::size_t>(layer)] & mask) != 0;
}

void AssistPool::BeginLayer(DeviceStream& stream, std::int64_t layer) {
  if (!state_->Changes(layer, 0xff)) return;
  gpu::DecideLayer(stream, {state_->WorkOf(-1), static_cast<std::uint32_t>(layer + 1)});
}

void AssistPool::BeginHead(DeviceStream& stream) {
  const std::int64_t layers = state_->layout().layers;
  if (!state_->Changes(layers, 1)) return;
  gpu::DecideLayer(stream, {state_->WorkOf(-1), static_cast<std::uint32_t>(layers)});
}

void AssistPool::Send(DeviceStream& stream, AssistGroup group, std::int64_t layer, const void* x,
                      std::int64_t x_stride) {
  const AssistLayout& layout = state_->layout();
  const std::uint32_t mask = AssistLayout::MaskOf(group);
  if (!state_->Changes(layer, mask)) return;
  gpu::SendActivations(stream, layout.dtype,
                       {.work = state_->WorkOf(-1),
                        .group = layout.GroupOf(layer, group),
                        .layer = static_cast<std::int32_t>(layer),
                        .mask = mask,
                        .x = x,
                        .x_stride = x_stride,
                        .in = layout.Shape(AssistLayout::FirstOf(group)).in});
}

void AssistPool::Add(DeviceStream& stream, AssistGroup group, std::int64_t layer,
                     std::span<const AssistOutput> outputs) {
  const AssistLayout& layout = state_->layout();
  const std::uint32_t mask = AssistLayout::MaskOf(group);
  if (!state_->Changes(layer, mask) || outputs.empty()) return;
  CHECK_LE(outputs.size(), static_cast<std::size_t>(gpu::kMaxAssistSlices));
  gpu::AddAnswersArguments add = {.work = state_->WorkOf(-1),
                                  .group = layout.GroupOf(layer, group),
                                  .layer = static_cast<std::int32_t>(layer),
                                  .mask = mask,
                                  .slices = static_cast<std::int32_t>(outputs.size()),
                                  .width = layout.Width(group)};
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const AssistOutput& output = outputs[i];
    CHECK(AssistGroupOf(output.target) == group);
    const int index = static_cast<int>(output.target) - static_cast<int>(AssistLayout::FirstOf(group));
    add.scale[i] = index;
    add.first[i] = layout.ColumnOf(group, index);
    add.y[i] = output.y;
    add.y_stride[i] = output.y_stride;
    add.out[i] = layout.Shape(output.target).out;
  }
  gpu::AddAnswers(stream, add);
}

void AssistPool::State::SendHeadPart(DeviceStream& stream, std::int32_t block, std::int64_t part, const void* x,
                                     std::int64_t x_stride) {
  gpu::SendActivations(stream, layout().dtype,
                       {.work = WorkOf(block),
                        .group = layout().GroupOfHead(block, part),
                        .layer = static_cast<std::int32_t>(layout().layers),
                        .mask = 1,
                        .x = x,
                        .x_stride = x_stride,
                        .in = layout().Shape(LoraTarget::kLmHead).in});
}

void AssistPool::SendHead(DeviceStream& stream, std::int32_t block, const void* x, std::int64_t x_stride) {
  if (!state_->ChangesBlock(block)) return;
  state_->SendHeadPart(stream, block, 0, x, x_stride);
}

void AssistPool::AddHead(DeviceStream& stream, std::int32_t block, float* y, std::int64_t y_stride) {
  if (!state_->ChangesBlock(block)) return;
  const AssistLayout& layout = state_->layout();
  for (std::int64_t part = 0; part < layout.HeadParts(); ++part) {
    if (part > 0) state_->SendHeadPart(stream, block, part, nullptr, 0);
    const std::int64_t out = layout.HeadPartOut(part);
    gpu::AddAnswersArguments add = {.work = state_->WorkOf(block),
                                    .group = layout.GroupOfHead(block, part),
                                    .layer = static_cast<std::int32_t>(layout.layers),
                                    .mask = 1,
                                    .slices = 1,
                                    .width = AssistLayout::SliceWidth(out)};
    add.y[0] = y + part * layout.MostWidth();
    add.y_stride[0] = y_stride;
    add.out[0] = out;
    gpu::AddAnswers(stream, add);
  }
}

bool AssistPool::State::ChangesBlock(std::int32_t block) const {
  return Changes(layout().layers, 1) && block < blocks && !head_pieces[static_cast<std::size_t>(block)].empty();
}

}  // namespace loramux
