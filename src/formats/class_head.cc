#include "formats/class_head.h"

#include <array>
#include <utility>

#include "formats/json_fields.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxLabelBytes = 256;

constexpr std::array<std::pair<const char*, ClassTask>, 3> kTasks = {{
    {"single_label_classification", ClassTask::kOneOf},
    {"multi_label_classification", ClassTask::kAnyOf},
    {"regression", ClassTask::kRegression},
}};

Status ReadLabels(const JsonFields& fields, ClassHead& head) {
  const nlohmann::json* labels = fields.Find("id2label");
  if (labels == nullptr) return Ok{};
  const auto bad = [&] {
    return fields.Bad("id2label", "an object with a name of at most " + std::to_string(kMaxLabelBytes) +
                                      " bytes for each of the head's " + std::to_string(head.classes()) +
                                      " classes: \"0\", \"1\", ...");
  };
  if (!labels->is_object() || static_cast<std::int64_t>(labels->size()) != head.classes()) return bad();
  for (std::int64_t i = 0; i < head.classes(); ++i) {
    const auto label = labels->find(std::to_string(i));
    if (label == labels->end() || !label->is_string()) return bad();
    head.labels.push_back(label->get<std::string>());
    if (head.labels.back().size() > kMaxLabelBytes) return bad();
  }
  return Ok{};
}

}  // namespace

Status ReadClassLabels(std::string_view json, const std::string& label, ClassHead& head) {
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(json, label));
  const JsonFields fields(object, label + ": ");
  RETURN_IF_ERROR(ReadLabels(fields, head));
  ASSIGN_OR_RETURN(const auto problem, fields.String("problem_type"));
  if (!problem) return Ok{};
  for (const auto& [name, task] : kTasks) {
    if (*problem != name) continue;
    head.task = task;
    return Ok{};
  }
  return fields.Bad("problem_type", "single_label_classification, multi_label_classification or regression");
}

}  // namespace loramux
