#include "server/api/messages/messages_request.h"

#include <limits>
#include <string>
#include <utility>

namespace loramux {
namespace {

constexpr FieldName kMessagesNames[] = {{"stop", "stop_sequences"},
                                        {"response_format", "output_config.format"},
                                        {"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"}};

// What the translation reads itself, and what it refuses.
constexpr DialectField kMessagesFields[] = {
    {"messages", FieldUse::kServed, R"({"type": "array", "minItems": 1, "items": {"type": "object"}})",
     "with content blocks `text`, `tool_use`, `tool_result` and `thinking`"},
    {"system", FieldUse::kServed, R"({"type": ["string", "array"], "items": {"type": "object"}})", "the system prompt"},
    {"max_tokens", FieldUse::kServed, R"({"type": "integer", "minimum": 1})"},
    {"stop_sequences", FieldUse::kServed, R"({"type": "array", "items": {"type": "string"}})"},
    {"tools", FieldUse::kServed, R"({"type": "array", "items": {"type": "object"}})",
     "{name, description, input_schema}"},
    {"tool_choice", FieldUse::kServed, R"({"type": "object"})", "{type: auto, any, none or tool}"},
    {"thinking", FieldUse::kServed, R"({"type": "object"})",
     "sets the template variable `enable_thinking`; a budget is not enforced"},
    {"output_config", FieldUse::kServed, R"({"type": "object"})",
     "`format`: a JSON schema; `effort`: goes to the template"},
    {"output_format", FieldUse::kServed, R"({"type": "object"})", "the older name of `output_config.format`"},
    {"chat_template_kwargs", FieldUse::kServed, R"({"type": "object"})", "variables of the chat template"},
    {"metadata", FieldUse::kAccepted},
    {"container", FieldUse::kRefused},
    {"mcp_servers", FieldUse::kRefused},
    {"context_management", FieldUse::kServed, R"({"type": "object"})", "`edits` that remove nothing"},
    {"n", FieldUse::kRefused, "{}", {}, "1"},
    {"best_of", FieldUse::kRefused, "{}", {}, "1"},
    {"logprobs", FieldUse::kRefused},
    {"top_logprobs", FieldUse::kRefused, "{}", {}, "0"},
    {"logprob_token_ids", FieldUse::kRefused},
    {"max_completion_tokens", FieldUse::kRefused, "{}", "use `max_tokens`"},
    {"functions", FieldUse::kRefused, "{}", "use `tools`"},
    {"function_call", FieldUse::kRefused, "{}", "use `tool_choice`"},
    {"stop", FieldUse::kRefused, "{}", "use `stop_sequences`"},
    {"response_format", FieldUse::kRefused, "{}", "use `output_config`"},
    {"stream_options", FieldUse::kRefused},
    {"parallel_tool_calls", FieldUse::kRefused, "{}", "use `tool_choice`"},
    {"add_generation_prompt", FieldUse::kRefused},
    {"continue_final_message", FieldUse::kRefused, "{}", "end with a message of the assistant"},
};

constexpr std::string_view kBillingLine = "x-anthropic-billing-header:";

std::string_view TypeOf(const FieldReader& block) {
  const Json* type = block.Find("type");
  return type != nullptr && type->is_string() ? std::string_view(type->get_ref<const std::string&>())
                                              : std::string_view();
}

// Turns messages with content blocks into chat messages.
class MessageTranslator {
 public:
  explicit MessageTranslator(FieldReader& fields) : fields_(fields) {}

  void AddSystem() {
    if (const Json* system = fields_.Find("system")) AddSystem(*system, "system");
  }

  void Add(const Json& message, const std::string& where) {
    if (!message.is_object()) return fields_.Expect(where, "an object {\"role\", \"content\"}", &message);
    FieldReader reader(message, "");
    std::string role;
    reader.String("role", role);
    if (role != "user" && role != "assistant" && role != "system") {
      return fields_.Expect(where + ".role", "\"user\", \"assistant\" or \"system\"", reader.Find("role"));
    }
    const Json* content = reader.Find("content");
    if (content == nullptr || !(content->is_string() || content->is_array())) {
      return fields_.Expect(where + ".content", "a string or an array of content blocks", content);
    }
    if (role == "system") return AddSystem(*content, where + ".content");
    if (content->is_string()) return Push({{"role", role}, {"content", *content}});
    role == "user" ? AddUser(*content, where + ".content") : AddAssistant(*content, where + ".content");
  }

  // True if the last message is a text of the assistant, which the model is to continue.
  bool continues() const {
    if (messages_.empty() || messages_.back()["role"] != "assistant") return false;
    return !messages_.back().contains("tool_calls") && messages_.back()["content"] != "";
  }
  Json Take() { return std::move(messages_); }

 private:
  void Push(Json message) { messages_.push_back(std::move(message)); }

  // Claude Code puts a line of its own before its prompt, which differs from request to request: with it no prefix of a
  // prompt would ever be found in the cache.
  void AddSystem(const Json& value, const std::string& where) {
    Json content = "", kept = "";
    if (!ReadContent(fields_, value, where, {"text"}, content)) return;
    if (content.is_string()) content = Json::array({{{"text", content}}});
    for (const Json& part : content) {
      const auto text = part["text"].get<std::string>();
      if (!text.starts_with(kBillingLine)) AddPart(kept, text);
    }
    Push({{"role", "system"}, {"content", std::move(kept)}});
  }

  // Returns false, with an error, if the block is no object.
  bool IsBlock(const Json& block, const std::string& where) {
    if (block.is_object()) return true;
    fields_.Expect(where, "an object with a `type`", &block);
    return false;
  }

  void RefuseBlock(const FieldReader& block, const std::string& where, std::string_view expected) {
    const Json* type = block.Find("type");
    fields_.Fail(ErrorCode::kUnsupported, where + ".type",
                 "expected " + std::string(expected) + ", which are supported here, found " +
                     (type == nullptr ? "nothing" : DescribeJson(*type)));
  }

  std::string StringOf(FieldReader& block, std::string_view name, const std::string& where) {
    std::string value;
    if (!block.String(name, value)) fields_.Expect(where + "." + std::string(name), "a string", block.Find(name));
    return value;
  }

  // The results of tools become messages of their own, in their place.
  void AddUser(const Json& blocks, const std::string& where) {
    Json content = "";
    bool any = false;
    const auto flush = [&] {
      if (std::exchange(any, false)) Push({{"role", "user"}, {"content", std::exchange(content, "")}});
    };
    if (blocks.empty()) any = true;
    for (std::size_t i = 0; i < blocks.size() && fields_.ok(); ++i) {
      const std::string name = ItemName(where, i);
      if (!IsBlock(blocks[i], name)) return;
      FieldReader block(blocks[i], "");
      if (TypeOf(block) == "text") {
        any = true;
        AddPart(content, StringOf(block, "text", name));
      } else if (TypeOf(block) == "tool_result") {
        flush();
        AddToolResult(block, name);
      } else {
        return RefuseBlock(block, name, "\"text\" or \"tool_result\"");
      }
    }
    flush();
  }

  // A chat has no place for `is_error`, so the text says it.
  void AddToolResult(FieldReader& block, const std::string& where) {
    Json text = "";
    bool failed = false;
    const std::string id = StringOf(block, "tool_use_id", where);
    const Json* content = block.Find("content");
    if (content != nullptr && !ReadContent(fields_, *content, where + ".content", {"text"}, text)) return;
    block.Boolean("is_error", failed);
    if (!block.ok()) return fields_.Expect(where + ".is_error", "true or false", block.Find("is_error"));
    if (failed) {
      Json& first = text.is_array() ? text.front()["text"] : text;
      first = "Error: " + first.get<std::string>();
    }
    Push({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
  }

  void AddAssistant(const Json& blocks, const std::string& where) {
    Json text = "";
    std::string thinking;
    bool any_thinking = false;
    Json calls = Json::array();
    for (std::size_t i = 0; i < blocks.size() && fields_.ok(); ++i) {
      const std::string name = ItemName(where, i);
      if (!IsBlock(blocks[i], name)) return;
      FieldReader block(blocks[i], "");
      const std::string_view type = TypeOf(block);
      if (type == "text") {
        AddPart(text, StringOf(block, "text", name));
      } else if (type == "thinking") {
        AppendPart(thinking, any_thinking, StringOf(block, "thinking", name));
      } else if (type == "tool_use") {
        AddToolUse(block, name, calls);
      } else if (type != "redacted_thinking") {  // which only the vendor's own model can read
        return RefuseBlock(block, name, "\"text\", \"thinking\" or \"tool_use\"");
      }
    }
    Json message = {{"role", "assistant"}, {"content", std::move(text)}};
    if (any_thinking) message["reasoning_content"] = std::move(thinking);
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    Push(std::move(message));
  }

  void AddToolUse(FieldReader& block, const std::string& where, Json& calls) {
    const std::string id = StringOf(block, "id", where), name = StringOf(block, "name", where);
    const Json* input = block.Find("input");
    if (input == nullptr || !input->is_object()) return fields_.Expect(where + ".input", "an object", input);
    calls.push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", DumpJson(*input)}}}});
  }

  FieldReader& fields_;
  Json messages_ = Json::array();
};

void TranslateMessages(FieldReader& fields, Json& chat) {
  const Json* list = fields.Array("messages");
  if (list == nullptr || list->empty()) return fields.Expect("messages", "an array of at least one message", list);
  MessageTranslator translator(fields);
  translator.AddSystem();
  for (std::size_t i = 0; i < list->size() && fields.ok(); ++i) translator.Add((*list)[i], ItemName("messages", i));
  if (!fields.ok()) return;
  if (translator.continues()) chat["continue_final_message"] = true;
  chat["messages"] = translator.Take();
}

void TranslateMessageTools(FieldReader& fields, Json& chat) {
  const Json* tools = fields.Array("tools");
  if (tools == nullptr || tools->empty()) return;
  Json functions = Json::array();
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const std::string where = ItemName("tools", i);
    if (!(*tools)[i].is_object()) return fields.Expect(where, "an object {\"name\", \"input_schema\"}", &(*tools)[i]);
    FieldReader tool((*tools)[i], "");
    std::string type = "custom", name, description;
    tool.String("type", type);
    if (type != "custom") {
      return fields.Fail(ErrorCode::kUnsupported, where + ".type",
                         "expected \"custom\" (a tool that the client runs), found " + DescribeJson(Json(type)));
    }
    if (!tool.String("name", name)) return fields.Expect(where + ".name", "a string", tool.Find("name"));
    const Json* schema = tool.Object("input_schema");
    if (schema == nullptr) return fields.Expect(where + ".input_schema", "an object", tool.Find("input_schema"));
    Json function = {{"name", name}};
    if (tool.String("description", description)) function["description"] = description;
    function["parameters"] = *schema;
    if (const Json* strict = tool.Find("strict")) function["strict"] = *strict;
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  chat["tools"] = std::move(functions);
}

void TranslateMessageToolChoice(FieldReader& fields, Json& chat) {
  const Json* object = fields.Object("tool_choice");
  if (object == nullptr) return;
  FieldReader choice(*object, "tool_choice.");
  std::string type, name;
  choice.String("type", type);
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool" && choice.String("name", name)) {
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
  } else {
    return fields.Expect("tool_choice", "{\"type\"} with \"auto\", \"any\", \"none\" or \"tool\" (with a `name`)",
                         object);
  }
  bool alone = false;
  choice.Boolean("disable_parallel_tool_use", alone);
  if (!choice.ok()) return fields.Fail(choice.error().code, "tool_choice", "in " + choice.error().message);
  if (alone) chat["parallel_tool_calls"] = false;
}

// Templates of models that think take `enable_thinking`. A budget is a wish, as with Anthropic; it is not enforced.
void TranslateThinking(FieldReader& fields, Json& chat) {
  const Json* object = fields.Object("thinking");
  if (object == nullptr) return;
  FieldReader thinking(*object, "thinking.");
  std::string type;
  thinking.String("type", type);
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return fields.Expect("thinking.type", "\"enabled\", \"adaptive\" or \"disabled\"", thinking.Find("type"));
  }
  Json& variables = chat["chat_template_kwargs"];
  if (variables.is_null()) variables = Json::object();
  if (variables.is_object()) variables["enable_thinking"] = type != "disabled";
}

// {"type": "json_schema", "schema"} in `output_config`.`format`, or, as it was called first, in `output_format`.
// `output_config`.`effort` goes to the template.
void TranslateOutput(FieldReader& fields, Json& chat) {
  const Json* format = fields.Object("output_format");
  const Json* config = fields.Object("output_config");
  if (const Json* effort = config != nullptr && config->contains("effort") ? &(*config)["effort"] : nullptr) {
    if (!effort->is_string()) return fields.Expect("output_config.effort", "a string such as \"low\"", effort);
    chat["reasoning_effort"] = *effort;
  }
  if (config != nullptr && config->contains("format")) format = &(*config)["format"];
  if (format == nullptr || format->is_null()) return;
  const bool schema =
      format->is_object() && format->contains("schema") && format->value("type", Json()) == "json_schema";
  if (!schema) {
    return fields.Expect("output_config.format", "{\"type\": \"json_schema\", \"schema\": {...}}", format);
  }
  chat["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"name", "output"}, {"schema", (*format)["schema"]}, {"strict", true}}}};
}

// Nothing is removed from a conversation here, so only edits that keep everything are taken.
void CheckContextManagement(FieldReader& fields) {
  const Json* object = fields.Object("context_management");
  if (object == nullptr) return;
  FieldReader management(*object, "context_management.");
  const Json* edits = management.Array("edits");
  for (std::size_t i = 0; edits != nullptr && i < edits->size(); ++i) {
    const Json& edit = (*edits)[i];
    if (edit.is_object() && edit.value("keep", Json()) == "all") continue;
    return fields.Fail(ErrorCode::kUnsupported, "context_management." + ItemName("edits", i),
                       "expected an edit with `keep`: \"all\", because this server removes nothing from a "
                       "conversation, found " +
                           DescribeJson(edit));
  }
  if (!management.ok()) fields.Fail(management.error().code, "context_management", "in " + management.error().message);
}

void TranslateLength(FieldReader& fields, bool needed, Json& chat) {
  std::int64_t tokens = 0;
  if (fields.Integer("max_tokens", 1, std::numeric_limits<std::int32_t>::max(), tokens)) {
    chat["max_tokens"] = tokens;
  } else if (needed) {
    fields.Expect("max_tokens", "the largest number of tokens of the answer", fields.Find("max_tokens"));
  }
}

void TranslateStop(FieldReader& fields, Json& chat) {
  const Json* stop = fields.Array("stop_sequences");
  if (stop != nullptr && !stop->empty()) chat["stop"] = *stop;
}

}  // namespace

std::span<const FieldName> MessagesNames() { return kMessagesNames; }

std::span<const DialectField> MessagesFields() { return kMessagesFields; }

Result<Json> ChatOfMessages(Json body, bool needs_length) {
  FieldReader fields(body, "");
  Json chat = Json::object();
  TranslateLength(fields, needs_length, chat);
  RefuseFields(fields, kMessagesFields);
  TranslateStop(fields, chat);
  TranslateMessageTools(fields, chat);
  TranslateMessageToolChoice(fields, chat);
  if (const Json* variables = fields.Find("chat_template_kwargs")) chat["chat_template_kwargs"] = *variables;
  TranslateThinking(fields, chat);
  TranslateOutput(fields, chat);
  fields.Object("metadata");
  CheckContextManagement(fields);
  TranslateMessages(fields, chat);
  if (!fields.ok()) return fields.error();
  PassOn(body, kMessagesFields, chat);
  return chat;
}

}  // namespace loramux
