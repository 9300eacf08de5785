#include "quant/model_source.h"

#include <utility>

#include "formats/message.h"
#include "formats/safetensors.h"
#include "quant/tensor_finder.h"

namespace loramux {
namespace {

Error Missing(const std::string& name, const TensorFinder::Shape& shape) {
  return InvalidArgument("tensor " + Quote(name) + " of shape " + ShapeToString(shape) + " is missing from the weights",
                         name);
}

// A safetensors file or directory with weights in floats.
class FloatSource : public ModelSource {
 public:
  explicit FloatSource(const TensorFile& file) : finder_(file) {}

  Result<std::shared_ptr<const StoredMatrix>> FindMatrix(const std::string& name, std::int64_t rows,
                                                         std::int64_t columns) override {
    ASSIGN_OR_RETURN(const StoredTensor* tensor, finder_.Find(name + ".weight", {rows, columns}));
    std::shared_ptr<const StoredMatrix> matrix;
    if (tensor != nullptr) matrix = MakeFloatMatrix(*tensor);
    return matrix;
  }

  Result<std::optional<std::vector<float>>> FindVector(const std::string& name, std::int64_t size) override {
    ASSIGN_OR_RETURN(const StoredTensor* tensor, finder_.Find(name, {size}));
    std::optional<std::vector<float>> values;
    if (tensor != nullptr) values = ToFloats(*tensor);
    return values;
  }

  Status CheckAllUsed() const override { return finder_.CheckAllUsed(/*ignored=*/"rotary_emb.inv_freq"); }

 private:
  TensorFinder finder_;
};

// The same with the files that it reads.
class OwningSource : public FloatSource {
 public:
  explicit OwningSource(std::unique_ptr<TensorFile> file) : FloatSource(*file), file_(std::move(file)) {}

 private:
  std::unique_ptr<TensorFile> file_;
};

}  // namespace

Result<std::shared_ptr<const StoredMatrix>> ModelSource::RequireMatrix(const std::string& name, std::int64_t rows,
                                                                       std::int64_t columns) {
  ASSIGN_OR_RETURN(auto matrix, FindMatrix(name, rows, columns));
  if (matrix == nullptr) return Missing(name + ".weight", {rows, columns});
  return matrix;
}

Result<std::vector<float>> ModelSource::RequireVector(const std::string& name, std::int64_t size) {
  ASSIGN_OR_RETURN(auto values, FindVector(name, size));
  if (!values) return Missing(name, {size});
  return std::move(*values);
}

Result<std::unique_ptr<ModelSource>> OpenModelSource(const std::filesystem::path& directory) {
  ASSIGN_OR_RETURN(TensorFile file, TensorFile::OpenModelDirectory(directory));
  std::unique_ptr<ModelSource> source = std::make_unique<OwningSource>(std::make_unique<TensorFile>(std::move(file)));
  return source;
}

std::unique_ptr<ModelSource> MakeFloatSource(const TensorFile& file) { return std::make_unique<FloatSource>(file); }

}  // namespace loramux
