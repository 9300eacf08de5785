// Fuzzes ParseAdapterConfig, the queries on the resulting configuration, and the parser of tensor names.
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "base/fuzz_limits.h"
#include "formats/adapter_config.h"
#include "formats/adapter_form.h"
#include "formats/adapter_tensor_name.h"

namespace loramux {
namespace {

void ParseConfig(std::string_view text) {
  auto config = ParseAdapterConfig(text, "FILE");
  if (!config.ok()) {
    CHECK_LT(config.error().message.size(), 8192u);
    return;
  }
  for (const char* module :
       {"model.layers.0.self_attn.q_proj", "model.language_model.layers.17.mlp.down_proj", "lm_head", ""}) {
    const std::int64_t rank = config->RankOf(module);
    CHECK(rank >= 1 && rank <= 4096);
    CHECK(std::isfinite(config->ScaleOf(module)));
    static_cast<void>(config->Targets(module));
  }
  if (config->last_layers && ApplyLastLayers(24, "FILE", *config).ok()) {
    CHECK_LE(config->layers_to_transform.size(), 24u);
  }
}

void ParseNameOfForm(AdapterForm form, std::string_view text) {
  TensorEntry tensor{.name = std::string(text), .shape = {3, 2}, .bytes = 24};
  const Status named = AsPeft(form, "FILE", tensor);
  if (!named.ok()) {
    CHECK_LT(named.error().message.size(), 2048u);
    return;
  }
  if (form == AdapterForm::kPeft) return;
  CHECK(tensor.peft_name.starts_with("base_model.model."));
  static_cast<void>(ParseAdapterTensorName(tensor.peft_name, 24, NormNames(), "FILE").ok());
}

void ParseName(std::string_view text) {
  const auto name = ParseAdapterTensorName(text, 24, InfoOf(ModelFamily::kGemma3).norms, "FILE");
  if (!name.ok()) {
    CHECK_LT(name.error().message.size(), 2048u);
    return;
  }
  CHECK(name->layer >= 0 && name->layer < 24);
  CHECK(!name->module.empty() && !name->plain_module.empty());
}

}  // namespace
}  // namespace loramux

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const loramux::FuzzLimits cost;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  loramux::ParseConfig(text);
  loramux::ParseName(text);
  loramux::ParseNameOfForm(loramux::AdapterForm::kMlx, text);
  return 0;
}
