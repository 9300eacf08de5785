// Fuzzes the reader of GGUF files, and what makes a model's JSON files of the metadata.
#include <functional>
#include <numeric>
#include <span>
#include <string>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "formats/adapter_gguf.h"
#include "formats/gguf_config.h"
#include "formats/gguf_file.h"
#include "formats/gguf_tokenizer.h"
#include "formats/model_config.h"

namespace loramux {
namespace {

// Checks the guarantees of Parse.
void CheckFile(const GgufFile& file, std::span<const std::byte> bytes) {
  std::size_t total = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    CHECK(tensor.type != nullptr);
    const std::int64_t elements =
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies<std::int64_t>());
    CHECK_EQ(static_cast<std::int64_t>(tensor.data.size()), elements / tensor.type->block * tensor.type->block_bytes);
    CHECK(tensor.data.data() >= bytes.data() && tensor.data.data() + tensor.data.size() <= bytes.data() + bytes.size());
    CHECK_EQ(file.FindTensor(tensor.name), &tensor);
    total += tensor.data.size();
  }
  CHECK_LE(total, bytes.size());
  for (const std::string& key : file.keys()) {
    const GgufValue* value = file.Find(key);
    CHECK(value != nullptr);
    CHECK_LT(DescribeGguf(*value).size(), 1024u);
    const auto* array = std::get_if<GgufArray>(value);
    if (array == nullptr) continue;
    if (array->element() == GgufArray::Element::kText) {
      CHECK_EQ(array->Texts().size(), array->size());
    } else {
      CHECK_EQ(array->Numbers().size(), array->size());
    }
  }
}

void CheckMessage(const Error& error) { CHECK_LT(error.message.size(), 4096u); }

const ModelConfig kModel = [] {
  ModelConfig model;
  model.head_dim = 4;
  return model;
}();

// What TensorReader reads of a file of `size` bytes must lie in it.
void CheckAdapter(const GgufAdapter& adapter, std::uint64_t size) {
  for (const TensorEntry& tensor : adapter.tensors) {
    CHECK(tensor.peft_name.starts_with("base_model.model."));
    CHECK_LE(tensor.offset, size);
    if (tensor.view == nullptr) {
      CHECK_LE(tensor.bytes, size - tensor.offset);
      continue;
    }
    if (tensor.view->picked == nullptr) continue;
    for (const std::int64_t row : *tensor.view->picked) CHECK(row >= 0 && row < tensor.view->rows);
  }
}

void ParseFile(std::span<const std::byte> bytes) {
  const auto file = GgufFile::Parse(bytes, "FILE");
  if (!file.ok()) return CheckMessage(file.error());
  CheckFile(*file, bytes);
  for (const auto& make : {GgufModelConfig, GgufGenerationConfig, GgufTokenizerConfig, GgufTokenizer}) {
    const auto text = make(*file);
    if (!text.ok()) CheckMessage(text.error());
  }
  for (const ModelConfig* model : {static_cast<const ModelConfig*>(nullptr), &kModel}) {
    const auto adapter = ParseGgufAdapter(bytes, bytes.size(), model, {.max_tensors = 100}, "FILE");
    if (adapter.ok()) {
      CheckAdapter(*adapter, bytes.size());
    } else {
      CheckMessage(adapter.error());
    }
  }
  const auto config = GgufModelConfig(*file);
  if (config.ok()) static_cast<void>(ParseModelConfig(*config, "FILE").ok());
}

}  // namespace
}  // namespace loramux

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  loramux::ParseFile(std::as_bytes(std::span(data, size)));
  return 0;
}
