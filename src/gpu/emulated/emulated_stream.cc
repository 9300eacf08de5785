#include "gpu/emulated/emulated_stream.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace loramux::gpu {
namespace {

constexpr std::chrono::microseconds kPause{200};

std::uintptr_t AddressOf(const void* device) { return reinterpret_cast<std::uintptr_t>(device); }

EnqueuedLaunch Enqueued(const EmulatedKernel& kernel, const KernelLaunch& launch) {
  EnqueuedLaunch enqueued{kernel, launch.grid, launch.threads, launch.shared_bytes, {}, launch.argument_bytes};
  enqueued.arguments.resize(launch.argument_bytes / sizeof(std::max_align_t) + 1);
  if (launch.argument_bytes > 0) std::memcpy(enqueued.arguments.data(), launch.arguments, launch.argument_bytes);
  return enqueued;
}

}  // namespace

std::shared_ptr<EmulatedEvent::Mark> EmulatedEvent::mark() const {
  const std::lock_guard lock(mutex_);
  return mark_;
}

std::shared_ptr<EmulatedEvent::Mark> EmulatedEvent::Renew() {
  const std::lock_guard lock(mutex_);
  mark_ = std::make_shared<Mark>();
  return mark_;
}

bool EmulatedEvent::IsDone() const {
  const std::shared_ptr<Mark> mark = this->mark();
  if (mark == nullptr) return true;
  const std::lock_guard lock(mark->mutex);
  return mark->done;
}

class EmulatedStream::Graph final : public DeviceGraph {
 public:
  std::vector<std::shared_ptr<const Operation>> operations;
};

EmulatedStream::EmulatedStream(DeviceWork& work, std::uint64_t seed, std::uint32_t pause_one_in)
    : work_(work), random_(seed), pause_one_in_(pause_one_in), thread_([this] { Work(); }) {}

EmulatedStream::~EmulatedStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EmulatedStream::Add(Operation operation) {
  auto shared = std::make_shared<const Operation>(std::move(operation));
  if (capture_ != nullptr) {
    capture_->operations.push_back(std::move(shared));
  } else {
    Enqueue(std::move(shared));
  }
}

void EmulatedStream::Enqueue(std::shared_ptr<const Operation> operation) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(operation));
  }
  changed_.notify_all();
}

void EmulatedStream::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::shared_ptr<const Operation> operation = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    if (pause_one_in_ != 0 && random_.NextBelow(pause_one_in_) == 0) std::this_thread::sleep_for(kPause);
    (*operation)(work_);
    lock.lock();
    busy_ = false;
    if (queue_.empty()) changed_.notify_all();
  }
}

void EmulatedStream::CopyToDevice(void* device, const void* host, std::size_t bytes) {
  Add([=](DeviceWork& work) { work.CopyToDevice(AddressOf(device), host, bytes); });
}

void EmulatedStream::CopyToHost(void* host, const void* device, std::size_t bytes) {
  Add([=](DeviceWork& work) { work.CopyToHost(host, AddressOf(device), bytes); });
}

void EmulatedStream::Fill(void* device, std::uint8_t byte, std::size_t bytes) {
  Add([=](DeviceWork& work) { work.Fill(AddressOf(device), byte, bytes); });
}

void EmulatedStream::Launch(const KernelLaunch& launch) {
  LaunchKernel(FindEmulatedKernel(launch.kernel, launch.dtype), launch);
}

void EmulatedStream::LaunchKernel(const EmulatedKernel& kernel, const KernelLaunch& launch) {
  Add([enqueued = Enqueued(kernel, launch)](DeviceWork& work) { work.Launch(enqueued); });
}

void EmulatedStream::Multiply(const DenseProduct& product) {
  Add([product](DeviceWork& work) { work.Multiply(product); });
}

// Marks are set on a lost device too: nothing waits for them in vain.
void EmulatedStream::Record(DeviceEvent& event) {
  CHECK(capture_ == nullptr);
  Add([mark = static_cast<EmulatedEvent&>(event).Renew()](DeviceWork&) {
    {
      const std::lock_guard lock(mark->mutex);
      mark->done = true;
    }
    mark->changed.notify_all();
  });
}

void EmulatedStream::Wait(const DeviceEvent& event) {
  CHECK(capture_ == nullptr);
  std::shared_ptr<EmulatedEvent::Mark> mark = static_cast<const EmulatedEvent&>(event).mark();
  if (mark == nullptr) return;
  Add([mark = std::move(mark)](DeviceWork&) {
    std::unique_lock lock(mark->mutex);
    mark->changed.wait(lock, [&] { return mark->done; });
  });
}

Status EmulatedStream::Synchronize() {
  CHECK(capture_ == nullptr);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
  }
  return work_.status();
}

Result<std::unique_ptr<DeviceGraph>> EmulatedStream::Capture(const std::function<void()>& enqueue) {
  CHECK(capture_ == nullptr);
  RETURN_IF_ERROR(work_.status());
  auto graph = std::make_unique<Graph>();
  capture_ = graph.get();
  enqueue();
  capture_ = nullptr;
  return std::unique_ptr<DeviceGraph>(std::move(graph));
}

void EmulatedStream::Replay(const DeviceGraph& graph) {
  CHECK(capture_ == nullptr);
  for (const auto& operation : static_cast<const Graph&>(graph).operations) Enqueue(operation);
}

}  // namespace loramux::gpu
