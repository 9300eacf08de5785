#include "server/api/openai/chat_fields.h"

#include <algorithm>
#include <vector>

#include "server/api/openai/tool_fields.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxTemplateVariables = 256;

// The text parts of a message: one text, or a list of {"type": "text", "text"}, of which the template is shown what it
// reads. Other keys of parts, such as `cache_control`, mean nothing to a template.
void NormaliseContent(Json& message, FieldReader& fields, const std::string& where) {
  Json& content = message["content"];
  if (content.is_null()) content = "";
  if (content.is_array()) {
    Json parts = Json::array();
    for (std::size_t i = 0; i < content.size(); ++i) {
      std::string text;
      if (!ReadTextPart(content[i], fields, where + ".content[" + std::to_string(i) + "]",
                        {"text", "input_text", "output_text", "refusal"}, text)) {
        return;
      }
      parts.push_back({{"type", "text"}, {"text", std::move(text)}});
    }
    content = parts.empty() ? Json("") : std::move(parts);
  } else if (!content.is_string()) {
    return fields.Expect(where + ".content", "a string or an array of text parts", &content);
  }
  // OpenAI's answers say a refusal beside the content.
  const auto refusal = message.find("refusal");
  if (refusal != message.end() && refusal->is_string() && content == "") content = *refusal;
}

// The text parts of a message whose content is normalised.
std::vector<std::string> TextsOf(const Json& message) {
  const Json& content = message["content"];
  if (content.is_string()) return {content.get<std::string>()};
  std::vector<std::string> texts;
  for (const Json& part : content) texts.push_back(part["text"].get<std::string>());
  return texts;
}

// Parses the arguments of a call, which are a string of JSON in the protocol: templates iterate over objects. A call
// without arguments has an empty object.
void NormaliseArguments(Json& function, FieldReader& fields, const std::string& where) {
  Json& arguments = function["arguments"];
  const auto* text = arguments.get_ptr<const std::string*>();
  if (arguments.is_null() || (text != nullptr && (text->empty() || *text == "null"))) {
    arguments = Json::object();
    return;
  }
  if (text == nullptr) return;
  auto parsed = ParseModelObject(*text);
  if (!parsed.ok()) return fields.Expect(where + ".arguments", "a string that holds a JSON object", &arguments);
  arguments = std::move(parsed).value();
}

// An answer's own message may have no calls: templates would take a list of them, even an empty one, for calls.
void NormaliseToolCalls(Json& message, FieldReader& fields, const std::string& where) {
  const auto found = message.find("tool_calls");
  if (found == message.end()) return;
  Json& calls = *found;
  if (!calls.is_null() && !calls.is_array()) return fields.Expect(where + ".tool_calls", "an array", &calls);
  if (calls.empty()) {
    message.erase("tool_calls");
    return;
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string name = where + ".tool_calls[" + std::to_string(i) + "].function";
    if (!calls[i].is_object() || !calls[i].contains("function") || !calls[i]["function"].is_object()) {
      return fields.Expect(name, "an object {\"name\", \"arguments\"}", nullptr);
    }
    NormaliseArguments(calls[i]["function"], fields, name);
  }
}

void ReadMessages(Json& body, FieldReader& fields, std::int64_t max_messages, ChatPrompt& prompt, Json& context) {
  const Json* list = fields.Array("messages");
  if (list == nullptr || list->empty()) return fields.Expect("messages", "an array of at least one message", list);
  if (static_cast<std::int64_t>(list->size()) > max_messages) {
    return fields.Expect("messages", "at most " + std::to_string(max_messages) + " messages", list);
  }
  Json messages = std::move(body["messages"]);
  for (std::size_t i = 0; i < messages.size() && fields.ok(); ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    if (!messages[i].is_object()) return fields.Expect(where, "an object {\"role\", \"content\"}", &messages[i]);
    FieldReader message(messages[i], "");
    std::string role;
    if (!message.String("role", role) || role.empty()) {
      return fields.Expect(where + ".role", "a string such as \"user\"", message.Find("role"));
    }
    prompt.has_developer = prompt.has_developer || role == kDeveloper;
    NormaliseContent(messages[i], fields, where);
    NormaliseToolCalls(messages[i], fields, where);
  }
  if (!fields.ok()) return;
  const std::vector<std::string> texts = TextsOf(messages.back());
  for (const std::string& text : texts) {
    if (text.empty()) continue;
    prompt.final_message += (prompt.final_message.empty() ? "" : "\n") + text;
    if (texts.size() > 1) prompt.final_part = text;
  }
  context["messages"] = std::move(messages);
}

// Tools without a type are functions, and templates ask for the type.
Json WithTypes(Json tools) {
  for (Json& tool : tools) {
    const auto type = tool.find("type");
    if (type == tool.end() || type->is_null()) tool["type"] = "function";
  }
  return tools;
}

void ReadTemplateOptions(FieldReader& fields, ChatPrompt& prompt, Json& context) {
  if (const Json* documents = fields.Array("documents")) context["documents"] = *documents;
  fields.Boolean("add_generation_prompt", prompt.add_generation_prompt);
  fields.Boolean("continue_final_message", prompt.continue_final_message);
  if (prompt.continue_final_message) {
    if (fields.Find("add_generation_prompt") != nullptr && prompt.add_generation_prompt) {
      return fields.Fail(ErrorCode::kInvalidArgument, "continue_final_message",
                         "expected `add_generation_prompt`: false with it, found true");
    }
    prompt.add_generation_prompt = false;
  }
  std::string effort;
  if (fields.String("reasoning_effort", effort)) context["reasoning_effort"] = effort;
  std::string verbosity;
  if (fields.String("verbosity", verbosity)) context["verbosity"] = verbosity;
  const Json* extra = fields.Object("chat_template_kwargs");
  if (extra == nullptr) return;
  if (extra->size() > kMaxTemplateVariables) {
    return fields.Expect("chat_template_kwargs", "at most " + std::to_string(kMaxTemplateVariables) + " entries",
                         extra);
  }
  for (const auto& [key, value] : extra->items()) {
    for (const std::string_view reserved :
         {"messages", "tools", "documents", "add_generation_prompt", "chat_template"}) {
      if (key == reserved) {
        return fields.Fail(ErrorCode::kInvalidArgument, "chat_template_kwargs",
                           "expected no `" + key + "` in it, found one (it has a field of its own)");
      }
    }
    context[key] = value;
  }
}

// Refuses `chat_template`. Templates come with the model; a client's template could change what the model is told.
void RefuseTemplate(FieldReader& fields) {
  const Json* own = fields.Find("chat_template");
  if (own == nullptr || (own->is_string() && own->get_ref<const std::string&>().empty())) return;
  fields.Fail(ErrorCode::kUnsupported, "chat_template",
              "this server does not support it; leave it out (found " + DescribeJson(*own) + ")");
}

}  // namespace

bool ReadTextPart(const Json& part, FieldReader& fields, const std::string& where,
                  std::initializer_list<std::string_view> types, std::string& text) {
  if (part.is_string()) {
    text = part.get_ref<const std::string&>();
    return true;
  }
  if (!part.is_object()) {
    fields.Expect(where, "an object {\"type\", \"text\"} or a string", &part);
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
  const char* name = type == "refusal" ? "refusal" : "text";
  if (reader.String(name, text)) return true;
  fields.Expect(where + "." + name, "a string", reader.Find(name));
  return false;
}

void ReadChatPrompt(Json& body, FieldReader& fields, std::int64_t max_messages, ChatPrompt& prompt) {
  RefuseTemplate(fields);
  Json context = Json::object();
  prompt.tools = ReadTools(fields);
  if (!prompt.tools->empty()) context["tools"] = WithTypes(*fields.Array("tools"));
  ReadTemplateOptions(fields, prompt, context);
  ReadMessages(body, fields, max_messages, prompt, context);
  if (fields.ok()) prompt.template_context = DumpJson(context);
}

}  // namespace loramux
