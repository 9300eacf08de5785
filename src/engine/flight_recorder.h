// Writes what an engine is told, and what it plans, to a file (recording.h) from which `loramux simulate --replay`
// makes the same plans again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "adapter/transfer.h"
#include "base/file_system.h"
#include "engine/engine_observer.h"
#include "engine/recording.h"

namespace loramux {

struct FlightRecorderOptions {
  std::int64_t max_file_bytes = std::int64_t{1} << 30;   // then the recording ends
  std::size_t max_queued_bytes = std::size_t{64} << 20;  // that wait for the disk; beyond, the recording ends
  // of tenants' names, which clients may make up; beyond, it ends
  std::size_t max_tenant_bytes = std::size_t{64} << 20;
  std::string program;  // version, for who reads the recording
};

// Nothing here harms the engine: it never waits for the disk, and what cannot be written ends the recording with one
// warning in the log. The engine's thread only copies; pseudonyms and bytes are made on a thread of the recorder's own.
// Watch, Begin and Close are called while no step is under way; the observer's calls are the engine thread's.
class FlightRecorder final : public EngineObserver {
 public:
  // Makes the file, for its owner only; one that is there is kept as FILE.old. `files` must outlive it. Error: the
  // system's.
  static Result<std::unique_ptr<FlightRecorder>> Create(FileSystem* files, const std::filesystem::path& path,
                                                        FlightRecorderOptions options = {});
  ~FlightRecorder() override;  // Close

  // The transfer, with what it completes recorded: of keys and values (`kv`), or of adapters. The recorder must outlive
  // it.
  std::unique_ptr<AdapterTransfer> Watch(std::unique_ptr<AdapterTransfer> transfer, bool kv);
  // Before the engine's first step; without it, nothing is recorded.
  void Begin(RecordedSetup setup);
  // Writes what waits, and the end. Idempotent.
  void Close();

  std::uint64_t steps() const { return steps_; }                           // recorded; after Close
  std::int64_t bytes() const { return bytes_; }                            // written; after Close
  bool failed() const { return failed_.load(std::memory_order_relaxed); }  // something was lost

  void StepBegan(TimeNs now) override;
  void Arrived(const Request& request, const AdapterVersion* version) override;
  void Pinned(const AdapterVersion& version, bool pinned) override;
  void CancelAsked(RequestId id) override;
  void CancelAllAsked() override;
  void Ending() override;
  void Retired(AdapterGeneration generation) override;
  void SawLayers(bool kv, std::uint64_t transfer, std::int32_t layers) override;
  void Computed(TimeNs waited) override;
  void Collected() override;
  void Sampled(RequestId id, TokenId token, bool stops) override;
  void Ended(RequestId id) override;
  void Planned(const PlannedStep& step) override;
  void StepEnded() override;

 private:
  class WatchedTransfer;
  // A step with what the writer needs besides. Tokens are not pseudonyms yet.
  struct Queued {
    RecordedStep step;
    std::vector<std::string> digests;  // of the arrivals' adapters
    std::vector<RequestId> ended;
    std::size_t bytes = 0;  // about
  };

  FlightRecorder(std::filesystem::path path, std::unique_ptr<WritableFile> file, FlightRecorderOptions options);
  void TransferEnded(bool kv, const TransferCompletion& completion);
  void Know(const AdapterVersion& version);
  std::uint32_t TenantOf(const std::string& name);
  void Fail(const std::string& why);

  // On the recorder's own thread.
  void Run();
  void Write(std::vector<Queued> steps);
  void Disguise(Queued& queued);
  void Append(std::string_view bytes);

  const std::filesystem::path path_;
  const FlightRecorderOptions options_;
  std::atomic<bool> failed_{false}, full_{false};

  // The engine thread's.
  bool recording_ = false, in_step_ = false;
  bool cancelled_all_ = false, ending_ = false;  // as recorded
  Queued current_;
  std::unordered_set<std::uint32_t> known_;  // generations; looked up, never iterated, like the others
  std::unordered_map<std::string, std::uint32_t> tenants_;
  std::uint32_t next_tenant_ = 0;
  std::size_t tenant_bytes_ = 0;                                   // of their names, about
  std::map<std::pair<bool, std::uint64_t>, std::int32_t> layers_;  // by transfer, as recorded last
  std::uint64_t steps_ = 0;

  // The writer's.
  std::unique_ptr<WritableFile> file_;
  RecordingEncoder encoder_;
  Pseudonyms pseudonyms_;
  std::unordered_map<std::uint64_t, std::uint64_t> sequences_;  // by request: of Pseudonyms
  std::int64_t bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Queued> queue_;
  std::size_t queued_bytes_ = 0;
  bool closing_ = false;
  std::thread writer_;
};

}  // namespace loramux
