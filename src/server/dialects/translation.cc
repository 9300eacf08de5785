#include "server/dialects/translation.h"

#include <algorithm>

namespace loramux {
namespace {

bool IsEmpty(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return (value.is_array() || value.is_object()) && value.empty();
}

bool ReadPart(FieldReader& fields, const Json& part, const std::string& where,
              std::initializer_list<std::string_view> types, std::string& text) {
  if (!part.is_object()) {
    fields.Expect(where, "an object {\"type\", \"text\"}", &part);
    return false;
  }
  FieldReader reader(part, "");
  std::string type;
  reader.String("type", type);
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    const Json* found = reader.Find("type");
    fields.Fail(ErrorCode::kUnsupported, where + ".type",
                "expected \"" + std::string(*types.begin()) + "\", the only kind that is supported here, found " +
                    (found == nullptr ? "nothing" : DescribeJson(*found)));
    return false;
  }
  if (reader.String("text", text)) return true;
  fields.Expect(where + ".text", "a string", reader.Find("text"));
  return false;
}

}  // namespace

void RefuseFields(FieldReader& fields, std::span<const DialectField> table) {
  for (const DialectField& field : table) {
    if (field.use != FieldUse::kRefused) continue;
    const Json* value = fields.Find(field.name);
    if (value == nullptr || IsEmpty(*value)) continue;
    if (!field.neutral.empty() && *value == Json::parse(field.neutral)) continue;
    fields.Fail(ErrorCode::kUnsupported, field.name,
                "this server does not support it here; " +
                    std::string(field.hint.empty() ? "leave it out" : field.hint) + " (found " + DescribeJson(*value) +
                    ")");
  }
}

void PassOn(Json& from, std::span<const DialectField> table, Json& to) {
  for (auto& [name, value] : from.get_ref<Json::object_t&>()) {
    const std::string_view wanted = name;
    if (std::any_of(table.begin(), table.end(), [&](const DialectField& field) { return field.name == wanted; }))
      continue;
    // Without a search: keys of a parsed document are unique.
    static_cast<Json::object_t::Container&>(to.get_ref<Json::object_t&>()).emplace_back(name, std::move(value));
  }
}

void AppendPart(std::string& text, bool& any, std::string_view part) {
  if (any) text += '\n';
  any = true;
  text += part;
}

bool ReadTextOrParts(FieldReader& fields, const Json& value, const std::string& where,
                     std::initializer_list<std::string_view> types, std::string& text) {
  if (value.is_string()) {
    text = value.get_ref<const std::string&>();
    return true;
  }
  if (!value.is_array()) {
    fields.Expect(where, "a string or an array of text parts", &value);
    return false;
  }
  bool any = false;
  for (std::size_t i = 0; i < value.size(); ++i) {
    std::string part;
    if (!ReadPart(fields, value[i], ItemName(where, i), types, part)) return false;
    AppendPart(text, any, part);
  }
  return true;
}

std::string ItemName(std::string_view list, std::size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

std::string NamedEvent(std::string_view name, const Json& data) {
  return "event: " + std::string(name) + "\ndata: " + DumpJson(data) + "\n\n";
}

}  // namespace loramux
