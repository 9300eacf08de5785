// The cases of tests/golden/models, as the tests of the forward pass read them (tests/golden/README.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "formats/adapter_config.h"
#include "formats/safetensors.h"
#include "model/base_copy.h"
#include "model/model.h"
#include "model/output_vectors.h"
#include "tensor/aligned_buffer.h"
#include "tensor/half_float.h"

namespace loramux::golden {

namespace fs = std::filesystem;

// An adapter's weights in the layout of the forward pass: rows of A as stored, columns of B as rows, each aligned.
class ResidentAdapter {
 public:
  // REQUIRES: the vectors of `file` were computed, if it has any.
  ResidentAdapter(const AdapterFile& file, const ModelConfig& config) : vectors_(file.vectors) {
    for (const OwnPart& part : file.own) {
      if (IsNorm(part.kind)) {
        AddNorm(file, part, config.num_layers);
        continue;
      }
      OwnOf& own = own_.emplace_back();
      for (const OwnRow& row : part.rows) {
        own.tokens.push_back(row.token);
        const std::int64_t width = config.EmbeddingSize();
        own.rows.push_back(Copy(file, *part.tensor, row.row * width, 1, width));
      }
      (part.kind == OwnKind::kEmbedding ? view_.embedding : view_.output) = {
          static_cast<std::int64_t>(own.rows.size()), part.tensor->dtype, own.tokens.data(), own.rows.data()};
    }
    std::int32_t experts = 0;
    bool routers = false, rare = false;
    for (const LoraModule& module : file.modules) {
      experts = std::max(experts, module.expert + 1);
      routers |= IsOfRouting(module.target);
      rare |= LoraView::IsRare(module.target);
    }
    view_.Clear(config.num_layers, experts, routers, rare);
    for (std::size_t m = 0; m < file.modules.size(); ++m) {
      const LoraModule& module = file.modules[m];
      const bool of_embedding = module.target == LoraTarget::kEmbedding;
      LinearShape shape = TargetShape(config, module.target, module.layer, module.expert);
      if (of_embedding) shape.in = view_.embedding_lora.tokens = module.in();
      Rows& rows = rows_.emplace_back();
      for (std::int64_t j = 0; j < module.rank; ++j) {
        rows.a.push_back(Copy(file, *module.a, j * shape.in, 1, shape.in));
        rows.b.push_back(Copy(file, *module.b, j, module.rank, shape.out));
      }
      LoraWeights& weights = of_embedding
                                 ? view_.embedding_lora.weights
                                 : view_.PlaceOf(module.layer, module.target, module.expert, config.num_layers);
      weights = {module.rank, module.scale, DType::kF32, rows.a.data(), rows.b.data(), nullptr, nullptr};
      if (module.a != nullptr) {
        CHECK(module.a->dtype == module.b->dtype);  // true of all fixtures
        weights.dtype = module.a->dtype;
      }
      if (!module.has_vectors()) continue;
      weights.gains = vectors_.at(m).gains.data();
      weights.shifts = vectors_.at(m).shifts.data();
    }
  }

  const LoraView& view() const { return view_; }

 private:
  struct Rows {
    std::vector<const std::byte*> a, b;
  };
  struct OwnOf {
    std::vector<TokenId> tokens;
    std::vector<const std::byte*> rows;
  };

  void AddNorm(const AdapterFile& file, const OwnPart& part, std::int64_t num_layers) {
    std::vector<std::byte> data;
    CHECK(file.tensors->Read(*part.tensor, data).ok());
    AlignedBuffer<float>& weights = norms_.emplace_back(part.width());
    for (std::int64_t t = 0; t < part.width(); ++t) weights[t] = LoadAsF32(part.tensor->dtype, data.data(), t);
    view_.norms.resize(LoraView::NormIndex(0, OwnKind::kFinalNorm, num_layers) + 1, nullptr);
    view_.norms[LoraView::NormIndex(part.layer, part.kind, num_layers)] = weights.data();
  }

  // Copies the elements first, first + step, ... to an aligned row.
  const std::byte* Copy(const AdapterFile& file, const TensorEntry& tensor, std::int64_t first, std::int64_t step,
                        std::int64_t count) {
    std::vector<std::byte> data;
    CHECK(file.tensors->Read(tensor, data).ok());
    const auto size = static_cast<std::int64_t>(DTypeSize(tensor.dtype));
    AlignedBuffer<std::byte>& row = memory_.emplace_back(count * size);
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(&row[i * size], data.data() + (first + i * step) * size, static_cast<std::size_t>(size));
    }
    return row.data();
  }

  std::vector<ModuleVectors> vectors_;
  LoraView view_;
  std::deque<Rows> rows_;
  std::deque<OwnOf> own_;
  std::deque<AlignedBuffer<float>> norms_;
  std::vector<AlignedBuffer<std::byte>> memory_;
};

// One prompt, with what transformers and PEFT make of it.
struct GoldenRun {
  const LoraView* adapter = nullptr;
  std::string name;
  std::vector<TokenId> prompt;
  std::vector<TokenId> greedy;
  std::int32_t num_logit_rows = 0;  // the last rows of the prompt
  std::vector<float> logits;        // [num_logit_rows, vocab]
  std::vector<float> last, mean;    // embeddings of the prompt, [hidden_size]
};

// A prompt for an adapter with a head for classes, with the head's numbers.
struct HeadRun {
  GoldenRun run;  // without other results
  const ClassHead* head = nullptr;
  std::vector<float> numbers;
};

// A model with its adapters and runs.
struct GoldenCase {
  fs::path model_directory;
  std::unique_ptr<Model> model;
  std::map<std::string, std::unique_ptr<ResidentAdapter>> adapters;
  std::vector<GoldenRun> runs;
  std::map<std::string, AdapterFile> heads;  // adapters with one
  std::vector<HeadRun> head_runs;
};

inline fs::path CasesDirectory() { return fs::path(LORAMUX_SOURCE_DIR) / "tests" / "golden" / "models"; }

template <typename T>
T Value(Result<T> result) {
  if (!result.ok()) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}

template <typename T>
std::vector<T> Elements(const TensorFile& file, const std::string& name) {
  const StoredTensor* tensor = file.Find(name);
  CHECK(tensor != nullptr);
  std::vector<T> out(tensor->data.size() / sizeof(T));
  std::memcpy(out.data(), tensor->data.data(), tensor->data.size());
  return out;
}

// Tokens of other adapters, which the model of transformers does not have, are never generated.
inline std::vector<float> WithAllTokens(const std::vector<float>& logits, std::int64_t rows, std::int64_t vocab) {
  const std::int64_t known = static_cast<std::int64_t>(logits.size()) / rows;
  std::vector<float> out(static_cast<std::size_t>(rows * vocab), -std::numeric_limits<float>::infinity());
  for (std::int64_t i = 0; i < rows; ++i) std::copy_n(logits.begin() + i * known, known, out.begin() + i * vocab);
  return out;
}

inline std::unique_ptr<ResidentAdapter> Resident(AdapterFile& file, const Model& model) {
  CHECK(CheckBaseCopies(BaseMatricesOf(model), file).ok());
  CHECK(SelectOwnRows(BaseMatricesOf(model), file).ok());
  CHECK(ComputeVectors(BaseMatricesOf(model), file).ok());
  return std::make_unique<ResidentAdapter>(file, model.config());
}

// Reads the runs of adapters with heads, if the case has any.
inline void LoadHeads(const fs::path& directory, GoldenCase& out) {
  if (!fs::exists(directory / "heads.json")) return;
  const auto json = nlohmann::json::parse(std::ifstream(directory / "heads.json"));
  for (const auto& item : json["runs"]) {
    const std::string name = item["adapter"];
    const auto [file, is_new] = out.heads.try_emplace(name);
    if (is_new) {
      file->second = Value(OpenAdapter(directory / "heads" / name, out.model->config()));
      out.adapters["heads/" + name] = Resident(file->second, *out.model);
    }
    HeadRun& run = out.head_runs.emplace_back();
    run.run = {.adapter = &out.adapters.at("heads/" + name)->view(),
               .name = name,
               .prompt = std::vector<TokenId>(item["prompt_ids"])};
    run.head = &file->second.head.value();
    run.numbers = std::vector<float>(item["logits"]);
  }
}

// Reads the case in a directory. Embeddings may be missing.
inline GoldenCase LoadCase(const fs::path& directory, const WeightOptions& weights) {
  const auto json = nlohmann::json::parse(std::ifstream(directory / "case.json"));
  const TensorFile expected = Value(TensorFile::Open(directory / "expected.safetensors"));
  const auto embeddings = TensorFile::Open(directory / "embeddings.safetensors");
  GoldenCase out;
  out.model_directory = directory / std::string(json["model"]["dir"]);
  WeightOptions options = weights;
  options.added_tokens = json["model"].value("added_tokens", std::int64_t{0});
  out.model = Value(Model::Load(out.model_directory, options, nullptr));
  for (const auto& adapter : json["adapters"]) {
    AdapterFile file = Value(OpenAdapter(directory / std::string(adapter["dir"]), out.model->config()));
    out.adapters[adapter["name"]] = Resident(file, *out.model);
  }
  for (const auto& item : json["runs"]) {
    GoldenRun& run = out.runs.emplace_back();
    const std::string adapter = item["adapter"].is_null() ? "" : std::string(item["adapter"]);
    if (!adapter.empty()) run.adapter = &out.adapters.at(adapter)->view();
    run.prompt = std::vector<TokenId>(item["prompt_ids"]);
    run.name = (adapter.empty() ? "base" : adapter) + ", prompt of " + std::to_string(run.prompt.size());
    run.num_logit_rows = static_cast<std::int32_t>(run.prompt.size()) - std::int32_t{item["logit_rows"]};
    run.logits = WithAllTokens(Elements<float>(expected, std::string(item["key"]) + ".logits"), run.num_logit_rows,
                               out.model->config().vocab_size);
    if (embeddings.ok()) {
      run.last = Elements<float>(*embeddings, std::string(item["key"]) + ".last");
      run.mean = Elements<float>(*embeddings, std::string(item["key"]) + ".mean");
    }
    for (std::int64_t id : Elements<std::int64_t>(expected, std::string(item["key"]) + ".greedy")) {
      run.greedy.push_back(static_cast<TokenId>(id));
    }
  }
  LoadHeads(directory, out);
  return out;
}

// The case of this name. Its logits are those of the values that quantised weights stand for; products with integers
// round what they multiply.
inline GoldenCase LoadCase(const std::string& name) {
  const fs::path directory = CasesDirectory() / name;
  WeightOptions options;
  if (!Value(LoadModelConfig(directory / "model")).quantization.empty()) options.layers = WeightFormat::kF32;
  return LoadCase(directory, options);
}

// The names of all cases in a directory, sorted.
inline std::vector<std::string> CaseNames(const fs::path& directory = CasesDirectory()) {
  std::vector<std::string> names;
  std::error_code missing;  // then there are no parameters, which GoogleTest reports
  for (const auto& entry : fs::directory_iterator(directory, missing)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

// The names of the cases with heads.
inline std::vector<std::string> NamesOfCasesWithHeads() {
  std::vector<std::string> names = CaseNames();
  std::erase_if(names, [](const std::string& name) { return !fs::exists(CasesDirectory() / name / "heads.json"); });
  return names;
}

inline TokenId ArgMax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

inline float LargestDifference(std::span<const float> a, std::span<const float> b) {
  CHECK_EQ(a.size(), b.size());
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = a[i] == b[i] ? 0 : std::abs(a[i] - b[i]);  // infinities are equal
    if (!(difference <= largest)) largest = difference;                 // so that a NaN is the largest
  }
  return largest;
}

// The length of the difference, in that of `expected`. Tokens that neither has (minus infinity) do not count.
inline double RelativeError(std::span<const float> found, std::span<const float> expected) {
  CHECK_EQ(found.size(), expected.size());
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (found[i] == -std::numeric_limits<float>::infinity() && found[i] == expected[i]) continue;
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    size += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / size);
}

}  // namespace loramux::golden
