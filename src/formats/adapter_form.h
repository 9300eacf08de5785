// The forms in which tools write adapters, and what each is in PEFT's form: settings, names, layouts. Internal to
// formats.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "formats/tensor_reader.h"

namespace loramux {

class JsonFields;

inline constexpr std::int64_t kMaxLoraRank = 4096;
inline constexpr std::size_t kMaxInvocationTokens = 4096;

// The name of the form's file of tensors.
const char* AdapterTensorFileName(AdapterForm form);
// The fields of its configuration that say which modules it changes, for messages.
const char* AdapterTargetsField(AdapterForm form);

// Reads a field of an adapter_config.json that is a list of strings or one string; null and absent leave both outputs
// empty. Error: another value, or more names than any adapter needs.
Status ParseNames(const JsonFields& fields, const char* key, std::vector<std::string>& list,
                  std::optional<std::string>& text);

// Whether an adapter_config.json is mlx-lm's.
bool IsMlxConfig(const JsonFields& fields);
// Reads the settings of mlx-lm. `label` names the file. Errors (field named): a wrong value; what is no LoRA.
Result<AdapterConfig> ParseMlxConfig(const JsonFields& fields, const std::string& label);

// Sets layers_to_transform by last_layers, for a model of `num_layers`. `label` names the configuration.
Status ApplyLastLayers(std::int64_t num_layers, const std::string& label, AdapterConfig& config);

// Gives a tensor as the form stores it the name and the shape that PEFT gives it. `label` names the file. Error: a name
// that the form does not have.
Status AsPeft(AdapterForm form, const std::string& label, TensorEntry& tensor);

// torchtune's own names come with a configuration in PEFT's form, which says nothing of DoRA. Whether these tensors
// have them.
bool HasTorchtuneNames(std::span<const TensorEntry> tensors);
// Brings such a configuration and its tensors, for which AsPeft was called, into PEFT's form. `model` may be null.
// Returns whether the order of rows is unknown without a model.
Result<bool> AsPeftFromTorchtune(const ModelConfig* model, const std::string& label, TensorReader& tensors,
                                 AdapterConfig& config);

// Puts the rows of queries and keys into the model's order, where the tensor has them in that of interleaved rotary
// embeddings: those of the two halves of a head alternate.
void OrderInterleavedRows(std::int64_t head_dim, TensorEntry& tensor);

}  // namespace loramux
