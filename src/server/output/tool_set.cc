#include "server/output/tool_set.h"

namespace loramux {

const Json* ToolSet::Properties(std::string_view function) const {
  const auto found = functions_.find(function);
  if (found == functions_.end() || !found->second.is_object()) return nullptr;
  const auto properties = found->second.find("properties");
  if (properties == found->second.end() || !properties->is_object()) return nullptr;
  return &*properties;
}

const Json* ToolSet::Parameter(std::string_view function, std::string_view parameter) const {
  const Json* properties = Properties(function);
  if (properties == nullptr) return nullptr;
  const auto schema = properties->find(parameter);
  return schema == properties->end() ? nullptr : &*schema;
}

}  // namespace loramux
