#include "server/api/responses/responses_request.h"

#include <algorithm>
#include <string>
#include <utility>

namespace loramux {
namespace {

constexpr FieldName kResponsesNames[] = {{"messages", "input"},
                                         {"max_completion_tokens", "max_output_tokens"},
                                         {"response_format", "text.format"},
                                         {"reasoning_effort", "reasoning.effort"},
                                         {"verbosity", "text.verbosity"}};

// What the translation reads itself, and what it refuses.
constexpr DialectField kResponsesFields[] = {
    {"input", FieldUse::kServed, R"({"type": ["string", "array"], "items": {"type": "object"}})",
     "a text, or items `message`, `function_call`, `function_call_output` and `reasoning`; calls of other tools and "
     "their outputs are shown to the model as texts"},
    {"instructions", FieldUse::kServed, R"({"type": "string"})", "the system prompt"},
    {"max_output_tokens", FieldUse::kServed, R"({"type": "integer", "minimum": 1})"},
    {"text", FieldUse::kServed, R"({"type": "object"})",
     "`format`: text, json_object or json_schema; `verbosity` goes to the template"},
    {"tools", FieldUse::kServed, R"({"type": "array", "items": {"type": "object"}})",
     "functions; tools of other types are left out, and the header X-Loramux-Left-Out-Tools names them"},
    {"tool_choice", FieldUse::kServed, R"({"type": ["string", "object"]})"},
    {"reasoning", FieldUse::kServed, R"({"type": "object"})", "`effort` goes to the template"},
    {"include", FieldUse::kServed,
     R"({"type": "array", "items": {"enum": ["message.output_text.logprobs", "reasoning.encrypted_content"]}})"},
    {"truncation", FieldUse::kServed, R"({"enum": ["disabled"]})"},
    {"top_logprobs", FieldUse::kServed, R"({"type": "integer", "minimum": 0})"},
    {"metadata", FieldUse::kServed,
     R"({"type": "object", "maxProperties": 16, "additionalProperties": {"type": "string"}})"},
    {"store", FieldUse::kServed, R"({"type": "boolean"})", "nothing is kept in either case"},
    {"max_tool_calls", FieldUse::kAccepted},
    {"stream_options", FieldUse::kAccepted},
    {"previous_response_id", FieldUse::kRefused, "{}",
     "it keeps no responses, so send the whole conversation in `input`"},
    {"conversation", FieldUse::kRefused, "{}", "it keeps no responses, so send the whole conversation in `input`"},
    {"background", FieldUse::kRefused, "{}", "it keeps no responses, so send the whole conversation in `input`"},
    {"prompt", FieldUse::kRefused, "{}", "it keeps no responses, so send the whole conversation in `input`"},
    {"n", FieldUse::kRefused, "{}", {}, "1"},
    {"best_of", FieldUse::kRefused, "{}", {}, "1"},
    {"stop", FieldUse::kRefused},
    {"logprobs", FieldUse::kRefused, "{}", "use `include`"},
    {"functions", FieldUse::kRefused, "{}", "use `tools`"},
    {"function_call", FieldUse::kRefused, "{}", "use `tool_choice`"},
    {"max_tokens", FieldUse::kRefused, "{}", "use `max_output_tokens`"},
    {"max_completion_tokens", FieldUse::kRefused, "{}", "use `max_output_tokens`"},
    {"messages", FieldUse::kRefused, "{}", "use `input`"},
    {"response_format", FieldUse::kRefused, "{}", "use `text`"},
    {"reasoning_effort", FieldUse::kRefused, "{}", "use `reasoning`"},
};
constexpr std::string_view kIncludes[] = {"message.output_text.logprobs", "reasoning.encrypted_content"};
constexpr std::size_t kMaxMetadata = 16;
constexpr std::size_t kMaxLeftOut = 16;      // tools that the header names
constexpr std::size_t kMaxLeftOutName = 64;  // bytes of each

// Turns items into chat messages. A chat message of the assistant holds its reasoning, its text and its calls; here
// they are items of their own.
class ItemTranslator {
 public:
  explicit ItemTranslator(FieldReader& fields) : fields_(fields) {}

  void AddInstructions() {
    std::string text;
    if (fields_.String("instructions", text) && !text.empty()) Push({{"role", "system"}, {"content", text}});
  }

  void AddText(const Json& text) { Push({{"role", "user"}, {"content", text}}); }

  void Add(const Json& item, const std::string& where) {
    if (!item.is_object()) return fields_.Expect(where, "an object with a `type` or a `role`", &item);
    FieldReader reader(item, "");
    std::string type = "message";
    reader.String("type", type);
    if (type.ends_with("_output") && type != "function_call_output") {
      AddPart(outputs_, TextOf(item));
    } else {
      if (type != "function_call_output") PushOutputs();
      AddOfType(type, item, reader, where);
    }
    if (!reader.ok()) fields_.Fail(reader.error().code, where, "in " + reader.error().message);
  }

  Json Take() {
    PushOutputs();
    return std::move(messages_);
  }

 private:
  void AddOfType(const std::string& type, const Json& json, FieldReader& item, const std::string& where) {
    if (type == "message") return AddMessage(item, where);
    if (type == "function_call") return AddCall(item, where);
    if (type == "function_call_output") return AddCallOutput(item, where);
    if (type == "reasoning") return AddReasoning(item, where);
    if (type.ends_with("_call")) return AddForeignCall(json);
    fields_.Fail(ErrorCode::kUnsupported, where + ".type",
                 "expected \"message\", \"reasoning\", or the call of a tool or its output, such as "
                 "\"function_call\" and \"function_call_output\", found " +
                     DescribeJson(Json(type)));
  }

  // The item without what says nothing to a model.
  static std::string TextOf(const Json& item) {
    Json shown = Json::object();
    for (const auto& [key, value] : item.items()) {
      if (key != "id" && key != "status" && !value.is_null()) shown[key] = value;
    }
    return DumpJson(shown);
  }

  // A call of a tool that is no function, such as a search of the client's: the model is not offered the tool, but the
  // conversation goes on from there.
  void AddForeignCall(const Json& item) {
    Json& message = Assistant();
    if (message.contains("tool_calls")) {  // their text would stand before these calls
      open_ = false;
      return AddForeignCall(item);
    }
    AddPart(message["content"], TextOf(item));
  }

  // The outputs of such tools are one message behind those of functions: templates want the results of calls next to
  // these, and may want users and assistants to take turns.
  void PushOutputs() {
    if (outputs_ != "") Push({{"role", "user"}, {"content", std::exchange(outputs_, "")}});
  }

  void Push(Json message) {
    messages_.push_back(std::move(message));
    open_ = false;
  }

  // The message of the assistant that the next item of it belongs to.
  Json& Assistant() {
    if (!std::exchange(open_, true)) messages_.push_back({{"role", "assistant"}, {"content", ""}});
    return messages_.back();
  }

  std::string StringOf(FieldReader& item, std::string_view name, const std::string& where) {
    std::string value;
    if (!item.String(name, value)) fields_.Expect(where + "." + std::string(name), "a string", item.Find(name));
    return value;
  }

  bool ReadParts(const Json& value, const std::string& where, Json& content) {
    return ReadContent(fields_, value, where, {"input_text", "output_text", "text", "refusal"}, content);
  }

  void AddMessage(FieldReader& item, const std::string& where) {
    std::string role;
    Json text;
    item.String("role", role);
    if (role != "user" && role != "assistant" && role != "system" && role != kDeveloper) {
      return fields_.Expect(where + ".role", "\"user\", \"assistant\", \"system\" or \"developer\"", item.Find("role"));
    }
    const Json* content = item.Find("content");
    if (content == nullptr) return fields_.Expect(where + ".content", "a string or an array of parts", nullptr);
    if (!ReadParts(*content, where + ".content", text)) return;
    if (role != "assistant") return Push({{"role", role}, {"content", text}});
    Json* message = &Assistant();
    if ((*message)["content"] != "" || message->contains("tool_calls")) {  // it has its text: this is the next one
      open_ = false;
      message = &Assistant();
    }
    (*message)["content"] = text;
  }

  void AddCall(FieldReader& item, const std::string& where) {
    const std::string id = StringOf(item, "call_id", where), name = StringOf(item, "name", where);
    const std::string arguments = StringOf(item, "arguments", where);
    if (!fields_.ok()) return;
    if (!ParseModelObject(arguments).ok()) {
      return fields_.Expect(where + ".arguments", "a string that holds a JSON object", item.Find("arguments"));
    }
    Assistant()["tool_calls"].push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}});
  }

  void AddCallOutput(FieldReader& item, const std::string& where) {
    Json text;
    const std::string id = StringOf(item, "call_id", where);
    const Json* output = item.Find("output");
    if (output == nullptr) return fields_.Expect(where + ".output", "a string or an array of parts", nullptr);
    if (!ReadParts(*output, where + ".output", text)) return;
    Push({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
  }

  // The text of the reasoning, or else its summary.
  void AddReasoning(FieldReader& item, const std::string& where) {
    Json parts;
    const Json* content = item.Array("content");
    const bool whole = content != nullptr && !content->empty();
    const char* name = whole ? ".content" : ".summary";
    const Json* list = whole ? content : item.Array("summary");
    if (list == nullptr || list->empty()) return;
    if (!ReadContent(fields_, *list, where + name, {"reasoning_text", "summary_text", "text"}, parts)) return;
    std::string text = JoinedText(parts);
    Json* message = &Assistant();
    if ((*message)["content"] != "" || message->contains("tool_calls")) {  // it is the reasoning of the next one
      open_ = false;
      message = &Assistant();
    }
    if (message->contains("reasoning_content")) text = (*message)["reasoning_content"].get<std::string>() + "\n" + text;
    (*message)["reasoning_content"] = std::move(text);
  }

  FieldReader& fields_;
  Json messages_ = Json::array();
  bool open_ = false;  // the last message is the assistant's, and its next items belong to it
  Json outputs_ = "";  // outputs of other tools than functions, not in messages_ yet: the content of a message
};

void TranslateInput(FieldReader& fields, Json& chat) {
  const Json* input = fields.Find("input");
  if (input == nullptr || !(input->is_string() || input->is_array()) || (input->is_array() && input->empty())) {
    return fields.Expect("input", "a string or an array of at least one item", input);
  }
  ItemTranslator translator(fields);
  translator.AddInstructions();
  if (input->is_string()) translator.AddText(*input);
  for (std::size_t i = 0; input->is_array() && i < input->size() && fields.ok(); ++i) {
    translator.Add((*input)[i], ItemName("input", i));
  }
  chat["messages"] = translator.Take();
}

// A tool as the header calls it: "custom;name=apply_patch".
std::string LeftOut(std::string_view type, FieldReader& tool) {
  std::string name;
  const std::string plain = PlainName(type.substr(0, kMaxLeftOutName));
  return tool.String("name", name) ? plain + ";name=" + PlainName(name.substr(0, kMaxLeftOutName)) : plain;
}

// Tools of other types than functions are left out: the model cannot call them, and clients that offer them, such as
// Codex, do without.
void TranslateFunctions(FieldReader& fields, ResponsesChat& translated) {
  const Json* tools = fields.Array("tools");
  if (tools == nullptr) return;
  Json functions = Json::array();
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const std::string where = ItemName("tools", i);
    if (!(*tools)[i].is_object()) return fields.Expect(where, "an object {\"type\", \"name\"}", &(*tools)[i]);
    FieldReader tool((*tools)[i], "");
    std::string type, name;
    if (!tool.String("type", type)) return fields.Expect(where + ".type", "a string", tool.Find("type"));
    if (type != "function") {
      if (translated.left_out_tools.size() < kMaxLeftOut) translated.left_out_tools.push_back(LeftOut(type, tool));
      continue;
    }
    if (!tool.String("name", name)) return fields.Expect(where + ".name", "a string", tool.Find("name"));
    Json function = (*tools)[i];
    function.erase("type");
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (!functions.empty()) translated.chat["tools"] = std::move(functions);
}

void TranslateFunctionChoice(FieldReader& fields, Json& chat) {
  const Json* choice = fields.Find("tool_choice");
  if (choice == nullptr) return;
  const bool word = choice->is_string() && (*choice == "auto" || *choice == "none" || *choice == "required");
  const bool named = choice->is_object() && choice->value("type", Json()) == "function" && choice->contains("name") &&
                     (*choice)["name"].is_string();
  if (word) {
    chat["tool_choice"] = *choice;
  } else if (named) {
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", (*choice)["name"]}}}};
  } else {
    fields.Expect("tool_choice", "\"auto\", \"none\", \"required\" or {\"type\": \"function\", \"name\"}", choice);
  }
}

void TranslateText(FieldReader& fields, Json& chat) {
  const Json* object = fields.Object("text");
  if (object == nullptr) return;
  FieldReader text(*object, "text.");
  std::string verbosity;
  if (text.String("verbosity", verbosity)) chat["verbosity"] = verbosity;
  const Json* format = text.Object("format");
  if (!text.ok()) return fields.Fail(text.error().code, text.error().param, "in " + text.error().message);
  if (format == nullptr) return;
  Json schema = *format;
  Json& type = schema["type"];
  if (type != "json_schema") {
    chat["response_format"] = *format;
    return;
  }
  schema.erase("type");
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

void TranslateReasoning(FieldReader& fields, Json& chat) {
  const Json* object = fields.Object("reasoning");
  if (object == nullptr) return;
  FieldReader reasoning(*object, "reasoning.");
  std::string effort;
  if (reasoning.String("effort", effort)) chat["reasoning_effort"] = effort;
  if (!reasoning.ok()) fields.Fail(reasoning.error().code, "reasoning.effort", "in " + reasoning.error().message);
}

bool Includes(FieldReader& fields, std::string_view wanted) {
  const Json* include = fields.Array("include");
  if (include == nullptr) return false;
  for (const Json& item : *include) {
    const bool known = std::any_of(std::begin(kIncludes), std::end(kIncludes),
                                   [&](std::string_view name) { return item == std::string(name); });
    if (!known) {
      fields.Fail(
          ErrorCode::kUnsupported, "include",
          "expected \"message.output_text.logprobs\" or \"reasoning.encrypted_content\", found " + DescribeJson(item));
    }
  }
  return std::any_of(include->begin(), include->end(), [&](const Json& item) { return item == std::string(wanted); });
}

// Alternatives alone mean that log-probabilities are wanted.
void TranslateLogprobs(FieldReader& fields, Json& chat) {
  const Json* top = fields.Find("top_logprobs");
  if (top != nullptr) chat["top_logprobs"] = *top;
  const bool some = top != nullptr && AsInteger(*top) != 0;
  if (Includes(fields, kIncludes[0]) || some) chat["logprobs"] = true;
}

void CheckTruncation(FieldReader& fields) {
  std::string truncation = "disabled";
  fields.String("truncation", truncation);
  if (truncation == "disabled") return;
  fields.Fail(ErrorCode::kUnsupported, "truncation",
              "expected \"disabled\", all that is supported, found " + DescribeJson(Json(truncation)));
}

void CheckMetadata(FieldReader& fields) {
  const Json* metadata = fields.Object("metadata");
  if (metadata == nullptr) return;
  const bool texts =
      std::all_of(metadata->begin(), metadata->end(), [](const Json& value) { return value.is_string(); });
  if (metadata->size() <= kMaxMetadata && texts) return;
  fields.Expect("metadata", "an object of at most " + std::to_string(kMaxMetadata) + " strings", metadata);
}

Json OrDefault(const FieldReader& fields, std::string_view name, Json otherwise) {
  const Json* value = fields.Find(name);
  return value == nullptr ? std::move(otherwise) : *value;
}

Json EchoOf(const FieldReader& fields) {
  const Json format = {{"format", {{"type", "text"}}}};
  return {{"instructions", OrDefault(fields, "instructions", nullptr)},
          {"max_output_tokens", OrDefault(fields, "max_output_tokens", nullptr)},
          {"metadata", OrDefault(fields, "metadata", Json::object())},
          {"parallel_tool_calls", OrDefault(fields, "parallel_tool_calls", true)},
          {"previous_response_id", nullptr},
          {"reasoning", OrDefault(fields, "reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"store", false},
          {"temperature", OrDefault(fields, "temperature", 1.0)},
          {"text", OrDefault(fields, "text", format)},
          {"tool_choice", OrDefault(fields, "tool_choice", "auto")},
          {"tools", OrDefault(fields, "tools", Json::array())},
          {"top_logprobs", OrDefault(fields, "top_logprobs", 0)},
          {"top_p", OrDefault(fields, "top_p", 1.0)},
          {"truncation", "disabled"}};
}

}  // namespace

std::span<const FieldName> ResponsesNames() { return kResponsesNames; }

std::span<const DialectField> ResponsesFields() { return kResponsesFields; }

Result<ResponsesChat> ChatOfResponses(Json body) {
  FieldReader fields(body, "");
  ResponsesChat translated{Json::object(), {}, {}};
  Json& chat = translated.chat;
  RefuseFields(fields, kResponsesFields);
  bool ignored = false;
  fields.Boolean("background", ignored);
  fields.Boolean("store", ignored);
  CheckTruncation(fields);
  CheckMetadata(fields);
  TranslateInput(fields, chat);
  TranslateFunctions(fields, translated);
  TranslateFunctionChoice(fields, chat);
  TranslateText(fields, chat);
  TranslateReasoning(fields, chat);
  TranslateLogprobs(fields, chat);
  if (const Json* length = fields.Find("max_output_tokens")) chat["max_completion_tokens"] = *length;
  if (!fields.ok()) return fields.error();
  translated.echoed = EchoOf(fields);
  PassOn(body, kResponsesFields, chat);
  return translated;
}

}  // namespace loramux
