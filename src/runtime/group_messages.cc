#include "runtime/group_messages.h"

#include <utility>

namespace loramux {
namespace {

Error Damaged(const char* what) {
  return Internal(std::string("a message between ranks is damaged: ") + what + " is not as rank 0 writes it");
}

void PutPages(const PageSet& pages, MessageWriter& to) {
  to.Put(pages.tier);
  to.PutAll(pages.pages);
}

PageSet TakePages(MessageReader& from) {
  const Tier tier = from.Take<Tier>();
  return {tier, from.TakeAll<std::uint32_t>()};
}

std::shared_ptr<const AdapterVersion> Find(const AdapterByGeneration& adapters, AdapterGeneration generation) {
  const auto found = adapters.find(generation);
  return found == adapters.end() ? nullptr : found->second;
}

// 0: none. Numbers begin with 1.
std::shared_ptr<const LayerProgress> Find(const ProgressByNumber& progress, std::uint64_t number, bool& known) {
  if (number == 0) return nullptr;
  const auto found = progress.find(number);
  known &= found != progress.end();
  return found == progress.end() ? nullptr : found->second;
}

// What of a segment is not a pointer.
struct SegmentOnTheWay {
  AdapterRef adapter;
  AdapterGeneration generation;
  std::int32_t rank = 0, first_token = 0, num_tokens = 0;
  bool in_host = false;
};

}  // namespace

void MessageWriter::PutText(const std::string& text) { PutAll(std::vector<char>(text.begin(), text.end())); }

void MessageWriter::PutError(const std::optional<Error>& error) {
  Put(error.has_value());
  if (!error) return;
  Put(error->code);
  PutText(error->message);
  PutText(error->param);
}

std::string MessageReader::TakeText() {
  const std::vector<char> text = TakeAll<char>();
  return {text.begin(), text.end()};
}

std::optional<Error> MessageReader::TakeError() {
  if (!Take<bool>()) return std::nullopt;
  Error error;
  error.code = Take<ErrorCode>();
  error.message = TakeText();
  error.param = TakeText();
  return error;
}

void MessageReader::TakeBytes(std::span<std::byte> to) {
  if (to.size() > rest_.size()) ok_ = false;
  if (!ok_ || to.empty()) return;
  std::memcpy(to.data(), rest_.data(), to.size());
  rest_ = rest_.subspan(to.size());
}

void PutStep(const StepBatch& batch, const NumberOfProgress& number_of, MessageWriter& to) {
  to.PutAll(batch.copies);
  to.Put(static_cast<std::uint64_t>(batch.placements.size()));
  for (const AdapterPlacement& placement : batch.placements) {
    to.Put(placement.adapter);
    to.Put(placement.version->generation);
    PutPages(placement.pages, to);
    PutPages(placement.host_pages, to);
  }
  to.PutAll(batch.tokens);
  to.PutAll(batch.pages);
  to.PutAll(batch.sequences);
  to.PutAll(batch.scores);
  to.Put(static_cast<std::uint64_t>(batch.segments.size()));
  for (const AdapterSegment& segment : batch.segments) {
    to.Put(SegmentOnTheWay{segment.adapter, segment.generation, segment.rank, segment.first_token, segment.num_tokens,
                           segment.in_host});
  }
  std::vector<std::uint64_t> arrivals;
  for (const auto& arrival : batch.arrivals) arrivals.push_back(number_of(arrival.get()));
  to.PutAll(arrivals);
}

Result<StepBatch> TakeStep(MessageReader& from, const ProgressByNumber& progress, const AdapterByGeneration& adapters) {
  StepBatch batch;
  bool known = true;
  batch.copies = from.TakeAll<PageCopy>();
  for (auto left = from.Take<std::uint64_t>(); left > 0 && from.ok(); --left) {
    AdapterPlacement& placement = batch.placements.emplace_back();
    placement.adapter = from.Take<AdapterRef>();
    placement.version = Find(adapters, from.Take<AdapterGeneration>());
    known &= placement.version != nullptr;
    placement.pages = TakePages(from);
    placement.host_pages = TakePages(from);
  }
  batch.tokens = from.TakeAll<TokenId>();
  batch.pages = from.TakeAll<std::uint32_t>();
  batch.sequences = from.TakeAll<StepSequence>();
  batch.scores = from.TakeAll<ScoreRow>();
  for (auto left = from.Take<std::uint64_t>(); left > 0 && from.ok(); --left) {
    const auto segment = from.Take<SegmentOnTheWay>();
    batch.segments.push_back({segment.adapter, segment.generation, segment.rank, segment.first_token,
                              segment.num_tokens, segment.in_host, nullptr});
  }
  for (const std::uint64_t number : from.TakeAll<std::uint64_t>()) {
    batch.arrivals.push_back(Find(progress, number, known));
    known &= batch.arrivals.back() != nullptr;
  }
  if (!from.AtEnd() || !known) return Damaged("a step");
  return batch;
}

void PutTransfer(const TransferJob& job, MessageWriter& to) {
  PutPages(job.from, to);
  PutPages(job.to, to);
  to.Put(job.adapter == nullptr ? kBaseModel : job.adapter->generation);
  to.Put(job.page_bytes);
  to.Put(job.progress == nullptr ? std::int32_t{0} : job.progress->layers());
  to.Put(job.layer_bytes);
  to.Put(job.by_layer);
}

Result<ReceivedTransfer> TakeTransfer(MessageReader& from, std::uint64_t number, const AdapterByGeneration& adapters) {
  TransferJob job{.id = number};
  job.from = TakePages(from);
  job.to = TakePages(from);
  const auto generation = from.Take<AdapterGeneration>();
  job.adapter = Find(adapters, generation);
  job.page_bytes = from.Take<std::size_t>();
  const auto layers = from.Take<std::int32_t>();
  if (layers > 0) job.progress = std::make_shared<LayerProgress>(layers);
  job.layer_bytes = from.Take<std::size_t>();
  job.by_layer = from.Take<bool>();
  if (!from.AtEnd()) return Damaged("a transfer");
  return ReceivedTransfer{std::move(job), generation};
}

void PutAdapter(const AdapterVersion& version, MessageWriter& to) {
  to.Put(version.generation);
  to.PutText(version.name);
  std::error_code error;
  const auto absolute = std::filesystem::absolute(version.file.directory, error);
  to.PutText((error ? version.file.directory : absolute).string());
  to.PutText(version.file.digest);
  to.PutAll(version.file.layer_digests);
  to.Put(version.layout.dtype);
  to.Put(version.layout.pages);
}

Result<std::shared_ptr<const AdapterVersion>> TakeAdapter(MessageReader& from, const ModelConfig& model,
                                                          const ModelPart& part, std::size_t page_bytes,
                                                          AdapterGeneration& generation) {
  auto version = std::make_shared<AdapterVersion>();
  version->generation = generation = from.Take<AdapterGeneration>();
  version->name = from.TakeText();
  version->path = from.TakeText();
  const std::string digest = from.TakeText();
  auto layer_digests = from.TakeAll<Sha256Digest>();
  const auto dtype = from.Take<DType>();
  const auto pages = from.Take<std::int64_t>();
  if (!from.AtEnd()) return Damaged("an adapter");
  ASSIGN_OR_RETURN(version->file, OpenAdapterHeaders(version->path, model));
  version->file.digest = digest;
  version->file.layer_digests = std::move(layer_digests);
  ASSIGN_OR_RETURN(version->layout, LayoutAdapter(version->file, dtype, page_bytes, model, part));
  if (version->layout.pages != pages) {
    return InvalidArgument("the adapter '" + version->name + "' takes " + std::to_string(version->layout.pages) +
                           " pages on rank " + std::to_string(part.rank) + " and " + std::to_string(pages) +
                           " on rank 0: " + version->path.string() + " differs between ranks");
  }
  return std::shared_ptr<const AdapterVersion>(std::move(version));
}

}  // namespace loramux
