// What rank 0 of a group tells the others to do, and what they report. All ranks run the same program on machines of
// one kind, which the start of a group checks, so structures travel as they lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "adapter/registry.h"
#include "base/result.h"
#include "formats/adapter_config.h"
#include "residency/transfer.h"
#include "step/step_batch.h"

namespace loramux {

// Appends to a message.
class MessageWriter {
 public:
  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    PutBytes(std::as_bytes(std::span(&value, 1)));
  }
  template <typename T>
  void PutAll(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    Put(static_cast<std::uint64_t>(values.size()));
    PutBytes(std::as_bytes(std::span(values)));
  }
  void PutText(const std::string& text);
  void PutError(const std::optional<Error>& error);
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void PutBytes(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  std::vector<std::byte> bytes_;
};

// Reads what a MessageWriter wrote. What a message does not hold reads as zeros, and then it is not `ok`.
class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <typename T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    TakeBytes(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  template <typename T>
  std::vector<T> TakeAll() {
    const auto size = Take<std::uint64_t>();
    if (size > rest_.size() / sizeof(T)) ok_ = false;
    std::vector<T> values(ok_ ? size : 0);
    TakeBytes(std::as_writable_bytes(std::span(values)));
    return values;
  }
  std::string TakeText();
  std::optional<Error> TakeError();
  // Whether all was there that was read, and whether nothing is left.
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && rest_.empty(); }

 private:
  void TakeBytes(std::span<std::byte> to);
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

// A message begins with its kind. kStep: a number and the step. kTransfer: a number and the job; kCancel: the number of
// one. kForget: the number of a transfer that no later step awaits. kAdapter: an adapter, before anything names it;
// kForgetAdapter: its generation, which nothing names any more. kAlive: nothing, so that the receiver need not worry.
// kEnd: the group's work is done.
enum class GroupOrder : std::uint8_t { kStep, kTransfer, kCancel, kForget, kAdapter, kForgetAdapter, kAlive, kEnd };
// kReady: the rank can begin, or an error. kStep, kTransfer: the number of one that has ended, and its error.
enum class GroupReport : std::uint8_t { kReady, kStep, kTransfer, kAlive };

// Progress of transfers by their numbers, as both sides of a message know them.
using ProgressByNumber = std::map<std::uint64_t, std::shared_ptr<LayerProgress>>;
using AdapterByGeneration = std::map<AdapterGeneration, std::shared_ptr<const AdapterVersion>>;
// The number of a transfer's progress. REQUIRES: it is known.
using NumberOfProgress = std::function<std::uint64_t(const LayerProgress*)>;

// A step without what rank 0 does alone: sampling and sums of hidden states.
void PutStep(const StepBatch& batch, const NumberOfProgress& number_of, MessageWriter& to);
// Error (kInternal): the message is damaged, or names what is not known.
Result<StepBatch> TakeStep(MessageReader& from, const ProgressByNumber& progress, const AdapterByGeneration& adapters);

// A transfer, whose id is `number` for the receiver; taking it makes its progress. kBaseModel: it moves keys and
// values. Otherwise the job's adapter is that of the generation, or null if it is not known.
struct ReceivedTransfer {
  TransferJob job;
  AdapterGeneration generation = kBaseModel;
};
void PutTransfer(const TransferJob& job, MessageWriter& to);
Result<ReceivedTransfer> TakeTransfer(MessageReader& from, std::uint64_t number, const AdapterByGeneration& adapters);

// Where an adapter is, and the digests of what its file holds: a load by another rank reads the same bytes, or fails.
void PutAdapter(const AdapterVersion& version, MessageWriter& to);
// Opens the adapter's file and lays out the rank's part of it. `generation` is set in any case. Errors: those of the
// file, which name its path.
Result<std::shared_ptr<const AdapterVersion>> TakeAdapter(MessageReader& from, const ModelConfig& model,
                                                          const ModelPart& part, std::size_t page_bytes,
                                                          AdapterGeneration& generation);

}  // namespace loramux
