// A head for classes that an adapter brings, as PEFT saves it for the task type SEQ_CLS: one matrix, which makes a
// number for each class of the hidden state of the last token, after the final norm (adapter/class_numbers.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/tensor_reader.h"

namespace loramux {

// What becomes of a head's numbers: `problem_type` of transformers.
enum class ClassTask : std::uint8_t {
  kOneOf,       // single_label_classification: probabilities of the classes, of which one is right
  kAnyOf,       // multi_label_classification: a probability for each class
  kRegression,  // the numbers themselves
};

inline constexpr std::int64_t kMaxClasses = 4096;

struct ClassHead {
  std::string module;                   // its name in PEFT: "score" or "classifier"
  const TensorEntry* tensor = nullptr;  // [classes, hidden_size]; belongs to AdapterFile
  // The tensor's bytes, once they were read; until then empty. They lie in host memory and on no page, because the
  // product takes place where the hidden state arrives.
  std::vector<std::byte> weights;
  std::vector<std::string> labels;  // names of the classes; empty: LABEL_0, LABEL_1, ...
  ClassTask task = ClassTask::kOneOf;

  std::int64_t classes() const { return tensor->shape[0]; }
  std::string LabelOf(std::size_t index) const {
    return labels.empty() ? "LABEL_" + std::to_string(index) : labels.at(index);
  }
};

// Reads id2label and problem_type of the config.json beside an adapter. Errors: one of them is malformed, or the labels
// are not one for each class. `label` names the file in errors.
Status ReadClassLabels(std::string_view json, const std::string& label, ClassHead& head);

}  // namespace loramux
