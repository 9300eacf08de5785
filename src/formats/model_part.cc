#include "formats/model_part.h"

#include <algorithm>
#include <string>

#include "base/ceil_divide.h"
#include "base/check.h"
#include "formats/adapter_config.h"

namespace loramux {
namespace {

OutputRange Times(OutputRange heads, std::int64_t head_dim) {
  return {heads.first * head_dim, heads.count * head_dim, heads.room * head_dim};
}

bool Divides(std::int64_t ranks, std::int64_t kv_heads) { return kv_heads % ranks == 0 || ranks % kv_heads == 0; }

// What keeps the ranks from sharing the model; empty: nothing does.
std::string Obstacle(const ModelConfig& whole, std::int64_t ranks) {
  const auto with = [](const char* what, std::int64_t found) { return what + (" " + std::to_string(found)); };
  if (whole.num_heads % ranks != 0) return with("its attention heads (num_attention_heads) are", whole.num_heads);
  if (!Divides(ranks, whole.num_kv_heads)) {
    return with("its heads of keys and values (num_key_value_heads) are", whole.num_kv_heads);
  }
  if (whole.other_heads && !Divides(ranks, whole.other_heads->num_kv_heads)) {
    return with("the heads of keys and values of some layers are", whole.other_heads->num_kv_heads);
  }
  // A page has room for the other ones, whose keys are no longer. Copies of a head take more than a share.
  if (whole.other_heads) {
    const ModelPart first{0, ranks};
    const HeadShape& other = *whole.other_heads;
    const std::int64_t room = KvHeadsOf(first, whole.num_kv_heads).count * whole.head_dim;
    if (KvHeadsOf(first, other.num_kv_heads).count * other.head_dim > room) {
      return with("a page would have no room for the longer keys of some layers, whose heads are", other.num_kv_heads);
    }
  }
  const auto too_few = [&](std::int64_t total) { return RangeOf({ranks - 1, ranks}, total).count == 0; };
  if (too_few(whole.hidden_size)) return with("its hidden size is", whole.hidden_size);
  if (too_few(whole.BaseTokens())) return with("its vocabulary has", whole.BaseTokens());
  const bool uneven = whole.shared_are_wide && whole.intermediate_size % ranks != 0;
  if (too_few(whole.intermediate_size) || uneven) {
    return with("the columns of its feed-forward blocks (intermediate_size) are", whole.intermediate_size);
  }
  if (!whole.experts) return {};
  if (too_few(whole.experts->intermediate_size)) {
    return with("the columns of an expert are", whole.experts->intermediate_size);
  }
  const bool no_share = whole.experts->shared_size > 0 && too_few(whole.experts->shared_size);
  return no_share ? with("the columns of its shared expert are", whole.experts->shared_size) : std::string();
}

}  // namespace

OutputRange RangeOf(const ModelPart& part, std::int64_t total) {
  const std::int64_t room = CeilDivide(total, part.ranks);
  const std::int64_t first = std::min(part.rank * room, total);
  return {first, std::min(room, total - first), room};
}

OutputRange HeadsOf(const ModelPart& part, const ModelConfig& whole) { return RangeOf(part, whole.num_heads); }

OutputRange KvHeadsOf(const ModelPart& part, std::int64_t num_kv_heads) {
  const std::int64_t count = std::max<std::int64_t>(1, num_kv_heads / part.ranks);
  return {part.rank * num_kv_heads / part.ranks, count, count};
}

OutputRange OutputsOf(const ModelPart& part, const ModelConfig& whole, LoraTarget target, std::int64_t layer,
                      std::int32_t expert) {
  const std::int64_t out = TargetShape(whole, target, layer, expert).out;
  if (part.whole()) return {0, out, out};
  switch (target) {
    case LoraTarget::kQ:
      return Times(HeadsOf(part, whole), whole.HeadsOf(layer).head_dim);
    case LoraTarget::kK:
    case LoraTarget::kV:
      return Times(KvHeadsOf(part, whole.HeadsOf(layer).num_kv_heads), whole.HeadsOf(layer).head_dim);
    case LoraTarget::kO:
    case LoraTarget::kDown:
    case LoraTarget::kGate:
    case LoraTarget::kUp:
    case LoraTarget::kLmHead:
      return RangeOf(part, out);
    default:
      return {0, out, out};
  }
}

Status CheckParts(const ModelConfig& whole, std::int64_t ranks) {
  if (ranks == 1) return Ok{};
  if (ranks < 1) {
    return InvalidArgument("--tensor-parallel-size: expected at least 1, found " + std::to_string(ranks),
                           "--tensor-parallel-size");
  }
  const std::string model = ModelFamilyName(whole.family);
  if (whole.recurrent || !whole.layer_parts.empty()) {
    return Unsupported("--tensor-parallel-size: a " + model + " model has " +
                           (whole.recurrent ? "recurrent layers" : "layers of one part each") +
                           ", which ranks cannot share; expected 1, found " + std::to_string(ranks),
                       "--tensor-parallel-size");
  }
  const std::string obstacle = Obstacle(whole, ranks);
  if (obstacle.empty()) return Ok{};
  std::string possible = "1";
  for (std::int64_t other = 2; other <= std::min<std::int64_t>(whole.num_heads, 64); ++other) {
    if (Obstacle(whole, other).empty()) possible += ", " + std::to_string(other);
  }
  return Unsupported("--tensor-parallel-size: " + std::to_string(ranks) + " ranks cannot share this " + model +
                         " model: " + obstacle + "; expected one of " + possible,
                     "--tensor-parallel-size");
}

ModelConfig ConfigOfPart(const ModelPart& part, const ModelConfig& whole) {
  ModelConfig own = whole;
  if (part.whole()) return own;
  own.num_heads = HeadsOf(part, whole).count;
  own.num_kv_heads = KvHeadsOf(part, whole.num_kv_heads).count;
  if (own.other_heads) own.other_heads->num_kv_heads = KvHeadsOf(part, whole.other_heads->num_kv_heads).count;
  own.intermediate_size = RangeOf(part, whole.intermediate_size).count;
  if (!own.experts) return own;
  own.experts->intermediate_size = RangeOf(part, whole.experts->intermediate_size).count;
  if (whole.experts->shared_size > 0) own.experts->shared_size = RangeOf(part, whole.experts->shared_size).count;
  return own;
}

}  // namespace loramux
