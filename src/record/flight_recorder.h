// Records everything an engine is told, and every plan it makes, in a file (recording.h) from which `loramux simulate
// --replay` makes the same plans again.
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

#include "base/file_system.h"
#include "engine/engine_observer.h"
#include "record/recording.h"
#include "residency/transfer.h"

namespace loramux {

// Options of FlightRecorder. Reaching a limit ends the recording.
struct FlightRecorderOptions {
  std::int64_t max_file_bytes = std::int64_t{1} << 30;   // most bytes of the recording
  std::size_t max_queued_bytes = std::size_t{64} << 20;  // most bytes of steps that are not yet written to disk
  // most bytes of tenant names, which clients may invent
  std::size_t max_tenant_bytes = std::size_t{64} << 20;
  std::string program;  // program version, for the reader of the recording
};

// Never harms the engine: it never waits for the disk, and a write failure ends the recording with one warning in the
// log. The engine thread only copies; the recorder's own thread makes pseudonyms and bytes. Watch, Begin and Close may
// be called only while no step runs; the observer's calls come from the engine thread.
class FlightRecorder final : public EngineObserver {
 public:
  // Creates the file, readable by its owner only. An existing non-empty file is kept as FILE.old. `files` must outlive
  // the recorder. Errors: those of the file system.
  static Result<std::unique_ptr<FlightRecorder>> Create(FileSystem* files, const std::filesystem::path& path,
                                                        FlightRecorderOptions options = {});
  ~FlightRecorder() override;  // calls Close

  // Wraps `transfer` so that its completions are recorded. The recorder must outlive the returned transfer.
  std::unique_ptr<PageTransfer> Watch(std::unique_ptr<PageTransfer> transfer);
  // Starts recording. Call before the engine's first step; without this call, nothing is recorded.
  void Begin(RecordedSetup setup);
  // Writes all queued steps and the end mark. Idempotent.
  void Close();

  std::uint64_t steps() const { return steps_; }                           // recorded; valid after Close
  std::int64_t bytes() const { return bytes_; }                            // written; valid after Close
  bool failed() const { return failed_.load(std::memory_order_relaxed); }  // something could not be recorded

  // EngineObserver, on the engine thread.
  void StepBegan(TimeNs now) override;
  void Registered(const AdapterVersion& version) override;
  void Arrived(const Request& request, const AdapterVersion* version) override;
  void Pinned(const AdapterVersion& version, bool pinned) override;
  void RetargetAsked(AdapterGeneration old, const AdapterVersion* next) override;
  void CancelAsked(RequestId id) override;
  void CancelAllAsked() override;
  void Holding(Hold hold) override;
  void DropHistoryAsked() override;
  void Ending() override;
  void Retired(AdapterGeneration generation) override;
  void SawLayers(std::uint64_t transfer, std::int32_t layers) override;
  void Computed(TimeNs waited) override;
  void Collected() override;
  void Sampled(RequestId id, TokenId token, bool stops) override;
  void Drafted(RequestId id, std::vector<TokenId>& draft) override;
  void Retargeted(const Request& request, const AdapterVersion& version, std::span<TokenId> tokens) override;
  void Ended(RequestId id) override;
  void Planned(const PlannedStep& step) override;
  void Moving(const MovePlan& moves) override;
  void StepEnded() override;

 private:
  class WatchedTransfer;
  // A step with the additional data that the writer needs. Its tokens are not pseudonyms yet.
  struct Queued {
    RecordedStep step;
    // Contents of `step.arrivals` and of `step.renamings`, each in order, for Pseudonyms::Begin.
    std::vector<std::string> contents, new_contents;
    std::vector<RequestId> ended;
    std::size_t bytes = 0;  // approximate size in memory
  };

  FlightRecorder(std::filesystem::path path, std::unique_ptr<WritableFile> file, FlightRecorderOptions options);
  // Records a completion of a watched transfer.
  void TransferEnded(const TransferCompletion& completion);
  // What names the tokens of a request with this version (Pseudonyms::Begin). Null: the base model.
  static std::string ContentOf(const Request& request, const AdapterVersion* version);
  // Records the adapter's version at its first appearance.
  void Know(const AdapterVersion& version);
  // The number that stands for the name of a tenant or of a sharing domain.
  std::uint32_t NumberOf(const std::string& name);
  // Ends the recording with a warning that gives the reason.
  void Fail(const std::string& why);

  // On the recorder's own thread.
  void Run();
  void Write(std::vector<Queued> steps);
  // Replaces the tokens of `queued` by pseudonyms.
  void Disguise(Queued& queued);
  void Append(std::string_view bytes);

  const std::filesystem::path path_;
  const FlightRecorderOptions options_;
  std::atomic<bool> failed_{false}, full_{false};

  // State of the engine thread.
  bool recording_ = false, in_step_ = false;
  bool ending_ = false;  // what has been recorded
  Hold hold_ = Hold::kNone;
  Queued current_;
  std::unordered_set<std::uint32_t> known_;  // generations; looked up, never iterated, as are the other hash tables
  std::unordered_map<std::string, std::uint32_t> tenants_;
  std::uint32_t next_tenant_ = 0;
  std::size_t tenant_bytes_ = 0;                  // approximate size of the tenants' names
  std::map<std::uint64_t, std::int32_t> layers_;  // last recorded count, by transfer
  std::uint64_t steps_ = 0;

  // State of the writer.
  std::unique_ptr<WritableFile> file_;
  RecordingEncoder encoder_;
  Pseudonyms pseudonyms_;
  std::unordered_map<std::uint64_t, std::uint64_t> sequences_;  // by request: the state of its Pseudonyms sequence
  std::int64_t bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Queued> queue_;
  std::size_t queued_bytes_ = 0;
  bool closing_ = false;
  std::thread writer_;
};

}  // namespace loramux
