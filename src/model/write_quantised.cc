#include "model/write_quantised.h"

#include <cstring>
#include <deque>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "formats/file.h"
#include "formats/json_fields.h"
#include "formats/model_config.h"
#include "formats/model_family.h"
#include "formats/model_files.h"
#include "model/model_tensors.h"
#include "model/packer.h"
#include "quant/panel_matrix.h"
#include "tensor/group_panel.h"
#include "tensor/half_float.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

// A tensor to write: a matrix, or a vector of floats.
struct OutputTensor {
  std::string name;
  std::shared_ptr<const StoredMatrix> matrix;
  WeightFormat format = WeightFormat::kF32;
  const std::vector<float>* vector = nullptr;
  std::vector<std::int64_t> extents = {};  // the shape of a vector that has more than one; else empty

  bool panels() const { return matrix != nullptr && IsQuantised(format); }
  std::string dtype() const { return panels() ? "U8" : DTypeName(DTypeOf(format)); }
  std::vector<std::int64_t> shape() const {
    if (!extents.empty()) return extents;
    if (vector != nullptr) return {static_cast<std::int64_t>(vector->size())};
    if (!panels()) return {matrix->rows(), matrix->columns()};
    return {PanelsOf(matrix->rows()), PanelBytes(format, matrix->columns())};
  }
  std::int64_t bytes() const {
    std::int64_t elements = 1;
    for (const std::int64_t extent : shape()) elements *= extent;
    return panels() ? elements : elements * static_cast<std::int64_t>(DTypeSize(DTypeOf(format)));
  }
};

// The tensors in the order of the file. Panels come first, so that all of them are aligned.
class OutputList {
 public:
  OutputList(const ModelConfig& config, const ModelTensors& tensors, const WeightOptions& options)
      : config_(config),
        norms_(InfoOf(config.family).norms),
        layers_(options.layers),
        embeddings_(EmbeddingFormat(options)) {
    // A model without an output layer keeps the names that say so; lm_head is its embedding.
    const std::string root = tensors.generates ? "model." : "";
    Matrix(root + "embed_tokens", tensors.embedding, embeddings_);
    for (std::size_t i = 0; i < tensors.layers.size(); ++i) {
      Layer(static_cast<std::int64_t>(i), root + "layers." + std::to_string(i) + ".", tensors.layers[i]);
    }
    Matrix(tensors.generates ? "lm_head" : "embed_tokens", tensors.lm_head, embeddings_);
    Norm(root, "norm", tensors.final_norm);
    Norm(root, "embed_norm", tensors.embedding_norm);
    Matrix(root + "embed_tokens_per_layer", tensors.layer_embedding, embeddings_);
    Matrix(root + "per_layer_model_projection", tensors.layer_context, layers_);
    Norm(root, "per_layer_projection_norm", tensors.layer_context_norm);
    Matrix(root + "project_in", tensors.project_in, layers_);
    Matrix(root + "project_out", tensors.project_out, layers_);
    Matrix(root + "embed_positions", tensors.positions, std::nullopt);
    std::stable_partition(tensors_.begin(), tensors_.end(), [](const OutputTensor& t) { return t.panels(); });
  }

  const std::vector<OutputTensor>& tensors() const { return tensors_; }

 private:
  void Layer(std::int64_t index, const std::string& prefix, const LayerTensors& t) {
    const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    Matrix(attention + "q_proj", t.q, layers_);
    Matrix(attention + "k_proj", t.k, layers_);
    if (!config_.ValuesAreKeys(index)) Matrix(attention + "v_proj", t.v, layers_);
    const bool of_states = config_.IsRecurrent(index) && !config_.HasAttention(index);
    if (!of_states) Matrix(attention + "o_proj", t.o, layers_);
    if (config_.IsRecurrent(index)) Recurrent(prefix, t, of_states ? t.o : t.state_out);
    Block(t.router.weight == nullptr ? mlp : prefix + InfoOf(config_.family).experts.shared_block, t);
    const std::string experts = mlp + "experts.";
    Matrix(mlp + "gate", t.router, std::nullopt);
    Vector(mlp + "gate.e_score_correction_bias", t.route_bias);
    Matrix(mlp + "shared_expert_gate", t.shared_gate, std::nullopt);
    for (std::size_t e = 0; e < t.experts.size(); ++e) Block(experts + std::to_string(e) + ".", t.experts[e]);
    Vector(attention + "sinks", t.sinks);
    if (config_.qk_norm == QkNorm::kLayerOfHeads) {
      NormsOfHeads(attention + "q_layernorm.norms.", t.q_norm);
      NormsOfHeads(attention + "k_layernorm.norms.", t.k_norm);
    } else {
      Norm(attention, "q_norm", t.q_norm);
      Norm(attention, "k_norm", t.k_norm);
    }
    // A norm of the sum has the name of one of the input.
    const bool of_sum = config_.norm_places == NormPlaces::kOfSum;
    Norm(prefix, norms_.attention, of_sum ? t.attention_output_norm : t.input_norm);
    Norm(prefix, norms_.attention_output, t.attention_output_norm);
    Norm(prefix, norms_.mlp, of_sum ? t.mlp_output_norm : t.mlp_norm);
    Norm(prefix, norms_.mlp_output, t.mlp_output_norm);
    Vector(prefix + "layer_scalar", t.scale);
    Vector(prefix + "router.scale", t.router_norm.weight);
    Vector(prefix + "router.per_expert_scale", t.expert_scales);
    Norm(prefix, "post_feedforward_layernorm_1", t.block_output_norm);
    Norm(prefix, "pre_feedforward_layernorm_2", t.experts_norm);
    Norm(prefix, "post_feedforward_layernorm_2", t.experts_output_norm);
    Matrix(prefix + "per_layer_input_gate", t.input_gate, layers_);
    Matrix(prefix + "per_layer_projection", t.input_projection, layers_);
    Norm(prefix, "post_per_layer_input_norm", t.layer_input_norm);
  }

  // The small gates of DeltaNet stay in floats.
  void Recurrent(const std::string& layer, const LayerTensors& t, const LinearTensors& out) {
    const RecurrentConfig& r = *config_.recurrent;
    const std::string prefix = layer + (r.mamba ? "mamba." : "linear_attn.");
    Matrix(prefix + "in_proj", t.in_all, layers_);
    Matrix(prefix + "in_proj_qkv", t.in_qkv, layers_);
    Matrix(prefix + "in_proj_z", t.in_z, layers_);
    Matrix(prefix + "in_proj_b", t.in_b, std::nullopt);
    Matrix(prefix + "in_proj_a", t.in_a, std::nullopt);
    Matrix(prefix + "out_proj", out, layers_);
    const std::int64_t channels = r.Channels();
    std::vector<float>& conv = parts_.emplace_back();  // by channel
    for (std::int64_t i = 0; i < channels * r.conv_width; ++i) {
      conv.push_back(t.conv[static_cast<std::size_t>(i % r.conv_width * channels + i / r.conv_width)]);
    }
    Vector(prefix + "conv1d.weight", conv);
    tensors_.back().extents = {channels, 1, r.conv_width};
    Vector(prefix + "conv1d.bias", t.conv_bias);
    Vector(prefix + "A_log", t.a_log);
    Vector(prefix + "dt_bias", t.dt_bias);
    Vector(prefix + "D", t.skip);
    Vector(prefix + "norm.weight", t.state_norm);
  }

  void NormsOfHeads(const std::string& prefix, const NormTensors& norm) {
    const auto size = static_cast<std::ptrdiff_t>(config_.head_dim);
    std::int64_t head = 0;
    for (auto from = norm.weight.begin(); from != norm.weight.end(); from += size, ++head) {
      Vector(prefix + std::to_string(head) + ".weight", parts_.emplace_back(from, from + size));
    }
  }

  void Block(const std::string& prefix, const BlockTensors& t) {
    Matrix(prefix + "gate_proj", t.gate, layers_);
    Matrix(prefix + "up_proj", t.up, layers_);
    Matrix(prefix + "down_proj", t.down, layers_);
  }

  void Matrix(const std::string& name, const LinearTensors& linear, std::optional<WeightFormat> format) {
    if (linear.weight == nullptr) return;
    tensors_.push_back({name + ".weight", linear.weight, format.value_or(linear.weight->format())});
    Vector(name + ".bias", linear.bias);
  }

  void Norm(const std::string& prefix, const char* name, const NormTensors& norm) {
    if (name == nullptr) return;
    Vector(prefix + name + ".weight", norm.weight);
    Vector(prefix + name + ".bias", norm.bias);
  }

  void Vector(const std::string& name, const std::vector<float>& values) {
    if (!values.empty()) tensors_.push_back({.name = name, .vector = &values});
  }

  const ModelConfig& config_;
  const NormNames& norms_;
  std::deque<std::vector<float>> parts_;  // values that vectors refer to
  std::optional<WeightFormat> layers_, embeddings_;
  std::vector<OutputTensor> tensors_;
};

// The length, the JSON object, and spaces up to a multiple of the alignment of panels.
std::string Header(const std::vector<OutputTensor>& tensors) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  std::int64_t offset = 0;
  for (const OutputTensor& tensor : tensors) {
    const std::int64_t end = offset + tensor.bytes();
    header[tensor.name] = {{"dtype", tensor.dtype()}, {"shape", tensor.shape()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  constexpr std::size_t kLength = sizeof(std::uint64_t);
  while ((kLength + text.size()) % kCacheLineBytes != 0) text += ' ';
  const std::uint64_t length = text.size();
  std::string out(kLength, '\0');
  std::memcpy(out.data(), &length, kLength);
  return out + text;
}

void WriteFloats(const OutputTensor& tensor, std::ofstream& out) {
  const DType dtype = DTypeOf(tensor.format);
  const std::int64_t columns = tensor.matrix->columns();
  std::vector<float> row(static_cast<std::size_t>(columns));
  std::vector<std::byte> elements(row.size() * DTypeSize(dtype));
  for (std::int64_t r = 0; r < tensor.matrix->rows(); ++r) {
    tensor.matrix->ReadFloats(r, 1, row.data());
    for (std::int64_t t = 0; t < columns; ++t) {
      StoreFromF32(dtype, elements.data(), t, row[static_cast<std::size_t>(t)]);
    }
    out.write(reinterpret_cast<const char*>(elements.data()), static_cast<std::streamsize>(elements.size()));
  }
}

Status WriteWeights(const fs::path& path, const ModelConfig& config, const ModelTensors& tensors,
                    const WeightOptions& options, const Progress& progress) {
  const OutputList list(config, tensors, options);
  std::ofstream out(path, std::ios::binary);
  const std::string header = Header(list.tensors());
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  Packer packer(progress, MatrixBytes(tensors));
  for (const OutputTensor& tensor : list.tensors()) {
    if (tensor.panels()) {
      const PackedMatrix packed = packer.Matrix({{tensor.matrix}}, tensor.format);
      out.write(reinterpret_cast<const char*>(packed.data()), static_cast<std::streamsize>(packed.bytes()));
    } else if (tensor.vector != nullptr) {
      out.write(reinterpret_cast<const char*>(tensor.vector->data()), static_cast<std::streamsize>(tensor.bytes()));
    } else {
      WriteFloats(tensor, out);
      packer.Report(tensor.matrix->bytes());
    }
    if (!out) break;
  }
  out.close();
  if (!out) return IoError("cannot write " + path.string() + ": the disk may be full");
  return Ok{};
}

Status WriteConfig(const fs::path& from, const fs::path& to) {
  const fs::path source = from / "config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadModelFile(source, kMaxJsonFileBytes));
  ASSIGN_OR_RETURN(nlohmann::json config, ParseJsonObject(text, source.string()));
  // Adapters name the model that they were trained on.
  if (!config.contains("_name_or_path")) config["_name_or_path"] = from.string();
  config["quantization_config"] = {{"quant_method", kPanelMethod}, {"layout", kPanelLayout}};
  std::ofstream out(to / "config.json");
  out << config.dump(2) << "\n";
  out.close();
  if (!out) return IoError("cannot write " + (to / "config.json").string() + ": the disk may be full");
  return Ok{};
}

// Weights in any format are left out; of the rest, all files of the folder itself.
bool IsCopied(const fs::path& path) {
  const std::string name = path.filename().string(), extension = path.extension().string();
  for (const char* weights : {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}) {
    if (extension == weights) return false;
  }
  return name.front() != '.' && name != "config.json" && !name.ends_with(".index.json");
}

// The files that a GGUF file has beside its configuration.
Status WriteOthersOfGguf(const fs::path& from, const fs::path& to) {
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    ASSIGN_OR_RETURN(const std::string text, ReadModelFile(from / name, kMaxJsonFileBytes));
    std::ofstream out(to / name, std::ios::binary);
    out << text;
    out.close();
    if (!out) return IoError("cannot write " + (to / name).string() + ": the disk may be full");
  }
  return Ok{};
}

Status CopyOthers(const fs::path& from, const fs::path& to) {
  if (IsGgufModel(from)) return WriteOthersOfGguf(from, to);
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(from, error)) {
    if (!entry.is_regular_file() || !IsCopied(entry.path())) continue;
    fs::copy_file(entry.path(), to / entry.path().filename(), error);
    if (error) return IoError("cannot copy " + entry.path().string() + " to " + to.string() + ": " + error.message());
  }
  if (error) return IoError("cannot read " + from.string() + ": " + error.message());
  return Ok{};
}

Status WriteAll(const fs::path& from, const fs::path& to, const WeightOptions& options, const Progress& progress) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(from));
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelSource> source, OpenModelSource(from));
  ASSIGN_OR_RETURN(const ModelTensors tensors, FindModelTensors(config, *source));
  std::error_code error;
  fs::create_directories(to, error);
  if (error) return IoError("cannot make " + to.string() + ": " + error.message());
  RETURN_IF_ERROR(CopyOthers(from, to));
  RETURN_IF_ERROR(WriteWeights(to / "model.safetensors", config, tensors, options, progress));
  return WriteConfig(from, to);
}

fs::path WithoutSlash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

// Where the folder grows until it is complete.
fs::path Partial(const fs::path& to) {
  fs::path partial = WithoutSlash(to);
  partial += ".partial";
  return partial;
}

}  // namespace

Status CheckQuantisedDirectory(const fs::path& to) {
  std::error_code error;
  for (const fs::path& path : {to, Partial(to)}) {
    if (!fs::exists(path, error) || (fs::is_directory(path, error) && fs::is_empty(path, error))) continue;
    return InvalidArgument("expected a new or an empty folder for the quantised model, found " + path.string() +
                               " with content; choose another, or remove it",
                           "--output");
  }
  return Ok{};
}

Status WriteQuantisedModel(const fs::path& from, const fs::path& out, const WeightOptions& options,
                           const Progress& progress) {
  RETURN_IF_ERROR(CheckQuantisedDirectory(out));
  // Complete or not there at all.
  const fs::path to = WithoutSlash(out), partial = Partial(out);
  std::error_code error;
  const Status written = WriteAll(from, partial, options, progress);
  if (!written.ok()) {
    fs::remove_all(partial, error);
    return written;
  }
  fs::remove(to, error);  // an empty folder
  fs::rename(partial, to, error);
  if (error) return IoError("cannot rename " + partial.string() + " to " + to.string() + ": " + error.message());
  return Ok{};
}

}  // namespace loramux
