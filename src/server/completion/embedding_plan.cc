#include "server/completion/embedding_plan.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "adapter/class_numbers.h"

namespace loramux {
namespace {

Result<EmbeddingConfig> ConfigOf(const EmbeddingOptions& options, const AdapterVersion* adapter) {
  const Result<std::optional<EmbeddingConfig>>* config = &options.model;
  const bool own = adapter != nullptr && (!adapter->file.embedding.ok() || adapter->file.embedding->has_value());
  if (own) config = &adapter->file.embedding;
  if (config->ok()) {
    EmbeddingConfig result = (*config)->value_or(EmbeddingConfig());
    result.pooling = options.pooling.value_or(result.pooling);
    return result;
  }
  if (options.pooling) return EmbeddingConfig{.pooling = *options.pooling};
  return Unsupported("`model`: this server cannot make embeddings as the files of this " +
                         std::string(own ? "adapter" : "model") + " say (" + config->error().message +
                         "); the operator chooses another pooling by --pooling",
                     "model");
}

std::string LengthsOf(const ModelConfig& model) {
  const std::string all = std::to_string(model.EmbeddingSize());
  if (!model.matryoshka) return all + ", because this model is not trained for shorter embeddings";
  if (model.matryoshka->empty()) return "1 to " + all;
  std::string lengths;
  for (const std::int64_t length : *model.matryoshka) lengths += std::to_string(length) + ", ";
  return lengths + "or " + all;
}

bool HasLength(const ModelConfig& model, std::int64_t length) {
  if (length == model.EmbeddingSize()) return true;
  if (!model.matryoshka || length > model.EmbeddingSize()) return false;
  return model.matryoshka->empty() ||
         std::find(model.matryoshka->begin(), model.matryoshka->end(), length) != model.matryoshka->end();
}

// The head that a request for classes or scores goes by; null: none.
Result<const ClassHead*> HeadFor(PooledUse use, const AdapterVersion* adapter) {
  const ClassHead* head = adapter == nullptr || !adapter->file.head ? nullptr : &*adapter->file.head;
  if (use == PooledUse::kClasses && head == nullptr) {
    return InvalidArgument(
        "`model`: expected an adapter with a classification head (PEFT's task_type SEQ_CLS), found " +
            (adapter == nullptr ? "the base model" : "the adapter '" + adapter->name + "' without one") +
            "; for vectors, ask /v1/embeddings",
        "model");
  }
  if (use == PooledUse::kScores && head != nullptr && head->classes() != 1) {
    return InvalidArgument(
        "`model`: expected an adapter with a head of one class, which is the score, or without a head "
        "(then scores are cosines of embeddings); found the adapter '" +
            adapter->name + "' with a head of " + std::to_string(head->classes()) + " classes: ask /classify",
        "model");
  }
  return use == PooledUse::kVectors ? nullptr : head;
}

double Cosine(std::span<const float> a, std::span<const float> b) {
  double product = 0, of_a = 0, of_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    product += x * y;
    of_a += x * x;
    of_b += y * y;
  }
  return of_a == 0 || of_b == 0 ? 0 : product / std::sqrt(of_a * of_b);
}

// The output of each second text receives the cosine of the angle to its first text.
void CompareTexts(std::size_t first, std::vector<ChoiceOutput>& outputs) {
  for (std::size_t i = first; i < outputs.size(); ++i) {
    const ChoiceOutput& other = outputs[first == 1 ? 0 : i - first];
    outputs[i].embedding = {static_cast<float>(Cosine(other.embedding, outputs[i].embedding))};
    outputs[i].index = static_cast<std::int32_t>(i - first);
  }
  outputs.erase(outputs.begin(), outputs.begin() + static_cast<std::ptrdiff_t>(first));
}

}  // namespace

Result<EmbeddingPlan> PlanEmbedding(const EmbeddingOptions& options, const ModelConfig& model,
                                    const AdapterVersion* adapter, const EmbeddingFields& fields) {
  EmbeddingPlan plan{.use = fields.use, .activate = fields.activate, .first = fields.first};
  ASSIGN_OR_RETURN(plan.head, HeadFor(fields.use, adapter));
  if (plan.head != nullptr) return plan;  // which reads the last token
  ASSIGN_OR_RETURN(const EmbeddingConfig config, ConfigOf(options, adapter));
  if (fields.dimensions > 0 && !HasLength(model, fields.dimensions)) {
    return InvalidArgument(
        "`dimensions`: expected " + LengthsOf(model) + ", found " + std::to_string(fields.dimensions), "dimensions");
  }
  plan.pooling = config.pooling;
  plan.normalize = fields.normalize.value_or(config.normalize);
  plan.dimensions = fields.dimensions;
  return plan;
}

void FinishEmbedding(const EmbeddingPlan& plan, std::vector<float>& embedding) {
  const auto dimensions = static_cast<std::size_t>(plan.dimensions);
  if (dimensions > 0 && dimensions < embedding.size()) embedding.resize(dimensions);
  if (!plan.normalize) return;
  double squares = 0;
  for (const float value : embedding) squares += static_cast<double>(value) * value;
  const double length = std::sqrt(squares);
  if (length == 0) return;
  for (float& value : embedding) value = static_cast<float>(value / length);
}

void FinishPooled(const EmbeddingPlan& plan, std::vector<ChoiceOutput>& outputs) {
  if (plan.use == PooledUse::kScores && plan.head == nullptr) return CompareTexts(plan.first, outputs);
  for (ChoiceOutput& output : outputs) {
    if (plan.head == nullptr) {
      FinishEmbedding(plan, output.embedding);
      continue;
    }
    output.embedding = ClassNumbers(*plan.head, output.embedding);
    const auto likeliest = std::ranges::max_element(output.embedding) - output.embedding.begin();
    output.text = plan.head->LabelOf(static_cast<std::size_t>(likeliest));
    if (plan.activate) ActivateClasses(plan.head->task, output.embedding);
  }
}

Status CheckGenerates(const AdapterVersion* adapter) {
  if (adapter == nullptr || !adapter->file.head) return Ok{};
  const AdapterFile& file = adapter->file;
  const auto of_output = [](const auto& part) {
    if constexpr (requires { part.kind; })
      return part.kind == OwnKind::kOutput;
    else
      return part.target == LoraTarget::kLmHead;
  };
  if (std::ranges::any_of(file.modules, of_output) || std::ranges::any_of(file.own, of_output)) return Ok{};
  return InvalidArgument("`model`: the adapter '" + adapter->name + "' has a classification head ('" +
                             file.head->module + "') in the place of an output layer, so it generates no text; ask " +
                             (file.head->classes() == 1 ? "/classify, /score or /v1/rerank" : "/classify"),
                         "model");
}

}  // namespace loramux
