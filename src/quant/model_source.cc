#include "quant/model_source.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/message.h"
#include "formats/json_fields.h"
#include "formats/model_config.h"
#include "formats/model_files.h"
#include "formats/safetensors.h"
#include "quant/float_source.h"
#include "quant/gguf_source.h"
#include "quant/panel_matrix.h"
#include "quant/published_source.h"
#include "quant/quantization_config.h"
#include "quant/tensor_finder.h"

namespace loramux {
namespace {

Error Missing(const std::string& name, const TensorFinder::Shape& shape) {
  return InvalidArgument("tensor " + Quote(name) + " of shape " + ShapeToString(shape) + " is missing from the weights",
                         name);
}

// The same with the files that it reads. They stay mapped as long as a matrix refers to them.
class DirectorySource : public FloatSource {
 public:
  explicit DirectorySource(std::shared_ptr<const TensorFile> file) : FloatSource(*file), file_(std::move(file)) {}

 protected:
  const std::shared_ptr<const TensorFile>& file() const { return file_; }

 private:
  std::shared_ptr<const TensorFile> file_;
};

// A directory of `loramux quantize`.
class PanelSource : public DirectorySource {
 public:
  using DirectorySource::DirectorySource;

  Result<std::shared_ptr<const StoredMatrix>> FindMatrix(const std::string& name, std::int64_t rows,
                                                         std::int64_t columns) override {
    const StoredTensor* tensor = finder().FindAny(name + ".weight");
    if (tensor == nullptr || tensor->dtype != DType::kU8) return FloatSource::FindMatrix(name, rows, columns);
    ASSIGN_OR_RETURN(std::shared_ptr<const StoredMatrix> matrix, MakePanelMatrix(*tensor, rows, columns, file()));
    return matrix;
  }

  std::string Description() const override { return "loramux, 8 or 4 bits in groups of 32"; }
};

// Error: the layout is of another version.
Status CheckPanelLayout(const nlohmann::json& config) {
  const auto layout = config.find("layout");
  if (layout != config.end() && *layout == kPanelLayout) return Ok{};
  return Unsupported("quantization_config of config.json: expected the layout \"" + std::string(kPanelLayout) +
                         "\", found " + (layout == config.end() ? "none" : layout->dump()) +
                         "; run `loramux quantize` of this version again",
                     "quantization_config");
}

// Error: the weights are packed, and only a file that GPTQ programs or ModelOpt write beside them says how.
Status CheckSaysHow(const std::filesystem::path& directory, const TensorFile& file) {
  std::filesystem::path other = directory / "quantize_config.json";
  std::error_code ignored;
  const bool of_modelopt = !std::filesystem::exists(other, ignored);
  if (of_modelopt) other = directory / "hf_quant_config.json";
  if (of_modelopt && !std::filesystem::exists(other, ignored)) return Ok{};
  const auto packed =
      std::ranges::find_if(file.tensors(), [](const StoredTensor& t) { return !IsWeightDType(t.dtype); });
  if (packed == file.tensors().end()) return Ok{};
  return Unsupported((directory / "config.json").string() + ": expected quantization_config, because tensor " +
                         Quote(packed->name) + " has type " + DTypeName(packed->dtype) + "; found it in " +
                         other.string() + " alone: " +
                         (of_modelopt ? "give config.json the object quantization_config with quant_method "
                                        "(\"modelopt\") and the quant_algo of that file"
                                      : "copy that object into config.json as quantization_config, and give it "
                                        "quant_method (\"gptq\" or \"awq\")"),
                     "quantization_config");
}

}  // namespace

Result<std::shared_ptr<const StoredMatrix>> ModelSource::RequireMatrix(const std::string& name, std::int64_t rows,
                                                                       std::int64_t columns) {
  ASSIGN_OR_RETURN(auto matrix, FindMatrix(name, rows, columns));
  if (matrix == nullptr) return Missing(name + ".weight", {rows, columns});
  return matrix;
}

Result<std::vector<float>> ModelSource::RequireConv(const std::string& name, std::int64_t channels,
                                                    std::int64_t width) {
  return Missing(name, {channels, 1, width});
}

Result<std::vector<float>> ModelSource::RequireVector(const std::string& name, std::int64_t size) {
  ASSIGN_OR_RETURN(auto values, FindVector(name, size));
  if (!values) return Missing(name, {size});
  return std::move(*values);
}

Result<std::unique_ptr<ModelSource>> OpenModelSource(const std::filesystem::path& directory) {
  if (IsGgufModel(directory)) return OpenGgufSource(directory);
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(directory));
  ASSIGN_OR_RETURN(TensorFile opened, TensorFile::OpenModelDirectory(directory));
  auto file = std::make_shared<const TensorFile>(std::move(opened));
  std::unique_ptr<ModelSource> source;
  if (config.quantization.empty()) {
    RETURN_IF_ERROR(CheckSaysHow(directory, *file));
    source = std::make_unique<DirectorySource>(std::move(file));
    return source;
  }
  ASSIGN_OR_RETURN(const nlohmann::json quantization, ParseJsonObject(config.quantization, "quantization_config"));
  if (const auto method = quantization.find("quant_method"); method == quantization.end() || *method != kPanelMethod) {
    ASSIGN_OR_RETURN(QuantizationConfig published,
                     ParseQuantizationConfig(config.quantization, (directory / "config.json").string()));
    return MakePublishedSource(std::move(file), std::move(published));
  }
  RETURN_IF_ERROR(CheckPanelLayout(quantization));
  source = std::make_unique<PanelSource>(std::move(file));
  return source;
}

std::unique_ptr<ModelSource> MakeFloatSource(const TensorFile& file) { return std::make_unique<FloatSource>(file); }

}  // namespace loramux
