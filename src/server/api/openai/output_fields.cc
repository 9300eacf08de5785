#include "server/api/openai/output_fields.h"

#include <string>
#include <string_view>
#include <utility>

namespace loramux {
namespace {

constexpr std::size_t kMaxConstraintBytes = std::size_t{512} << 10;
constexpr std::size_t kMaxWords = 4096;  // most words of a choice
constexpr std::string_view kAnyObject = R"({"type":"object"})";

// The field that is read, and where its demand goes.
class Demand {
 public:
  // `name` is a field of the request.
  Demand(FieldReader& request, std::optional<OutputConstraint>& output, std::string name)
      : request_(request), output_(output), name_(std::move(name)) {}

  void Set(GrammarKind kind, std::string text) {
    if (text.size() > kMaxConstraintBytes) {
      return Fail(ErrorCode::kInvalidArgument, "expected at most " + std::to_string(kMaxConstraintBytes) +
                                                   " bytes of a schema or grammar, found " +
                                                   std::to_string(text.size()));
    }
    if (output_) {
      return Fail(ErrorCode::kInvalidArgument,
                  "expected one demand for structured output in a request, found `" + output_->field + "` too");
    }
    output_ = OutputConstraint{kind, std::move(text), name_};
  }
  void Fail(ErrorCode code, std::string message) { request_.Fail(code, name_, std::move(message)); }
  void Expect(std::string_view expected, const Json* found) { request_.Expect(name_, expected, found); }
  // Passes on an error in an object within the field.
  void Take(const FieldReader& part) {
    if (!part.ok()) Fail(part.error().code, "in " + part.error().message);
  }

 private:
  FieldReader& request_;
  std::optional<OutputConstraint>& output_;
  const std::string name_;
};

// A schema is an object, or its text.
void SetSchema(Demand& demand, const Json& schema, bool compact = false) {
  const GrammarKind kind = compact ? GrammarKind::kCompactJsonSchema : GrammarKind::kJsonSchema;
  if (schema.is_string()) return demand.Set(kind, schema.get<std::string>());
  if (!schema.is_object()) return demand.Expect("a JSON schema, which is an object", &schema);
  demand.Set(kind, DumpJson(schema));
}

void SetRegex(Demand& demand, const Json& regex) {
  if (!regex.is_string() || regex.get_ref<const std::string&>().empty()) {
    return demand.Expect("a regular expression", &regex);
  }
  demand.Set(GrammarKind::kRegex, regex.get<std::string>());
}

// Rules of GBNF are written with ::=, those of Lark with a colon.
void SetGrammar(Demand& demand, const Json& grammar) {
  if (!grammar.is_string() || grammar.get_ref<const std::string&>().empty()) {
    return demand.Expect("a grammar in GBNF or Lark", &grammar);
  }
  const auto& text = grammar.get_ref<const std::string&>();
  const bool lark = text.starts_with("%llguidance") || text.find("::=") == std::string::npos;
  demand.Set(lark ? GrammarKind::kLark : GrammarKind::kGbnf, text);
}

// A text as a regular expression that matches nothing else.
std::string Quote(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string quoted;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (plain) {
      quoted += c;
    } else {
      quoted += std::string("\\x") + kDigits[byte / 16] + kDigits[byte % 16];
    }
  }
  return quoted;
}

void SetChoice(Demand& demand, const Json& choice) {
  constexpr std::string_view kExpected = "an array of 1 to 4096 texts that are not empty";
  if (!choice.is_array() || choice.empty() || choice.size() > kMaxWords) return demand.Expect(kExpected, &choice);
  std::string regex;
  for (const Json& word : choice) {
    if (!word.is_string() || word.get_ref<const std::string&>().empty()) return demand.Expect(kExpected, &word);
    regex += (regex.empty() ? "(?:" : "|") + Quote(word.get_ref<const std::string&>());
  }
  demand.Set(GrammarKind::kRegex, regex + ")");
}

// ---- OpenAI

void ReadJsonSchema(Demand& demand, FieldReader& format) {
  const Json* object = format.Object("json_schema");
  if (object == nullptr) return format.Expect("json_schema", "an object with the `schema`", format.Find("json_schema"));
  FieldReader named(*object, "response_format.json_schema.");
  std::string text;
  bool strict = true;
  named.String("name", text);
  named.String("description", text);
  named.Boolean("strict", strict);  // the schema holds in any case
  const Json* schema = named.Object("schema");
  demand.Take(named);
  if (schema != nullptr) return SetSchema(demand, *schema);
  if (named.ok()) demand.Set(GrammarKind::kJsonSchema, std::string(kAnyObject));
}

void ReadResponseFormat(FieldReader& fields, std::optional<OutputConstraint>& output) {
  const Json* object = fields.Object("response_format");
  if (object == nullptr) return;
  Demand demand(fields, output, "response_format");
  FieldReader format(*object, "response_format.");
  std::string type;
  format.String("type", type);
  if (type == "json_schema") {
    ReadJsonSchema(demand, format);
  } else if (const Json* schema = type == "json_object" ? format.Object("schema") : nullptr) {
    SetSchema(demand, *schema);  // as llama.cpp and others
  } else if (type == "json_object" && format.ok()) {
    demand.Set(GrammarKind::kJsonSchema, std::string(kAnyObject));
  } else if (type != "text" && format.ok()) {
    demand.Fail(ErrorCode::kUnsupported,
                "expected the type \"text\", \"json_object\" or \"json_schema\", found " + DescribeJson(Json(type)));
  }
  demand.Take(format);
}

// ---- vLLM

void RefusePart(FieldReader& options, std::string_view name) {
  const Json* value = options.Find(name);
  if (value == nullptr || *value == false) return;
  options.Fail(ErrorCode::kUnsupported, name,
               "this server does not support it; leave it out (found " + DescribeJson(*value) + ")");
}

void ReadStructuredOutputs(FieldReader& fields, std::optional<OutputConstraint>& output) {
  const Json* object = fields.Object("structured_outputs");
  if (object == nullptr) return;
  Demand demand(fields, output, "structured_outputs");
  FieldReader options(*object, "structured_outputs.");
  bool compact = false, any_object = false;
  options.Boolean("disable_any_whitespace", compact);
  options.Boolean("json_object", any_object);
  for (const auto* name : {"structural_tag", "whitespace_pattern", "disable_additional_properties"}) {
    RefusePart(options, name);
  }
  demand.Take(options);
  if (!options.ok()) return;
  if (const Json* schema = options.Find("json")) SetSchema(demand, *schema, compact);
  if (any_object) SetSchema(demand, Json(std::string(kAnyObject)), compact);
  if (const Json* regex = options.Find("regex")) SetRegex(demand, *regex);
  if (const Json* choice = options.Find("choice")) SetChoice(demand, *choice);
  if (const Json* grammar = options.Find("grammar")) SetGrammar(demand, *grammar);
}

}  // namespace

void ReadOutputConstraint(FieldReader& fields, std::optional<OutputConstraint>& output) {
  ReadResponseFormat(fields, output);
  ReadStructuredOutputs(fields, output);
  const auto read = [&](const char* name, const auto& set) {
    const Json* value = fields.Find(name);
    if (value == nullptr || (value->is_string() && value->get_ref<const std::string&>().empty())) return;
    Demand demand(fields, output, name);
    set(demand, *value);
  };
  const auto schema = [](Demand& demand, const Json& value) { SetSchema(demand, value); };
  read("guided_json", schema);
  read("guided_regex", SetRegex);
  read("guided_choice", SetChoice);
  read("guided_grammar", SetGrammar);
  read("grammar", SetGrammar);  // llama.cpp's
  read("json_schema", schema);  // llama.cpp's
}

}  // namespace loramux
