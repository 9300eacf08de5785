#include "server/api/translation.h"

#include <algorithm>

namespace loramux {
namespace {

bool IsEmpty(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return (value.is_array() || value.is_object()) && value.empty();
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

bool ReadContent(FieldReader& fields, const Json& value, const std::string& where,
                 std::initializer_list<std::string_view> types, Json& content) {
  if (value.is_string()) {
    content = value;
    return true;
  }
  if (!value.is_array()) {
    fields.Expect(where, "a string or an array of text parts", &value);
    return false;
  }
  content = "";
  for (std::size_t i = 0; i < value.size(); ++i) {
    std::string text;
    if (!ReadTextPart(value[i], fields, ItemName(where, i), types, text)) return false;
    AddPart(content, std::move(text));
  }
  return true;
}

void AddPart(Json& content, std::string text) {
  const auto part = [](Json of) { return Json{{"type", "text"}, {"text", std::move(of)}}; };
  if (content.is_array()) {
    content.push_back(part(std::move(text)));
  } else if (content == "") {
    content = std::move(text);
  } else {
    content = Json::array({part(std::move(content)), part(std::move(text))});
  }
}

std::string JoinedText(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string joined;
  bool any = false;
  for (const Json& part : content) AppendPart(joined, any, part["text"].get_ref<const std::string&>());
  return joined;
}

std::string ItemName(std::string_view list, std::size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

std::string NamedEvent(std::string_view name, const Json& data) {
  return "event: " + std::string(name) + "\ndata: " + DumpJson(data) + "\n\n";
}

}  // namespace loramux
