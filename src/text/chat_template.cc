#include "text/chat_template.h"

#include <array>
#include <ctime>
#include <utility>

#include <nlohmann/json.hpp>

#include "formats/model_files.h"
#include "text/c_interface.h"

namespace loramux {

using nlohmann::json;
using text_internal::Buffer;
using text_internal::Bytes;
using text_internal::TemplateHandle;
using text_internal::ToError;

struct ChatTemplate::Impl {
  std::string label;
  TemplateHandle plain;
  TemplateHandle with_tools;   // null: `plain` also serves requests with tools
  std::string sources;         // the text of both
  std::string special_tokens;  // JSON
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

namespace {

// The names of the special tokens in templates.
constexpr std::array kSpecialTokens = {"bos_token", "eos_token", "unk_token",  "sep_token",
                                       "pad_token", "cls_token", "mask_token", "additional_special_tokens"};

// The sources of a model's templates.
struct Sources {
  std::string label;
  std::optional<std::string> plain;
  std::optional<std::string> with_tools;
};

// The parsed file, or null if there is none.
Result<json> ReadJson(const ReadTextPath& read, const std::filesystem::path& path) {
  auto text = read(path);
  if (!text.ok()) {
    if (text.error().code == ErrorCode::kNotFound) return json();
    return std::move(text).error();
  }
  json value = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return InvalidArgument(path.string() + ": expected a JSON object", path.string());
  return value;
}

// A token in JSON is text, an AddedToken object, or a list of either.
json TokenText(const json& token) {
  if (token.is_string()) return token;
  if (token.is_object()) return token.contains("content") && token["content"].is_string() ? token["content"] : json();
  if (!token.is_array()) return json();
  json texts = json::array();
  for (const json& item : token) {
    if (json text = item.is_array() ? json() : TokenText(item); !text.is_null()) texts.push_back(std::move(text));
  }
  return texts;
}

json SpecialTokens(const json& config, const json& tokens_map) {
  json tokens = json::object();
  for (const char* name : kSpecialTokens) {
    for (const json* source : {&config, &tokens_map}) {
      if (!source->is_object() || !source->contains(name) || tokens.contains(name)) continue;
      if (json text = TokenText((*source)[name]); !text.is_null()) tokens[name] = std::move(text);
    }
  }
  return tokens;
}

// Adds `chat_template` of a JSON file to `sources`: text, or a list of {name, template}.
Status TakeTemplates(const json& value, const std::string& path, Sources& sources) {
  sources.label = path;
  if (value.is_string()) {
    sources.plain = value.get<std::string>();
    return Ok{};
  }
  if (!value.is_array())
    return InvalidArgument(path + ": chat_template: expected a string or a list of templates", path);
  for (const json& entry : value) {
    const auto text = [&entry](const char* key) {
      return entry.is_object() && entry.contains(key) && entry[key].is_string() ? entry[key].get<std::string>() : "";
    };
    if (text("name") == "default") sources.plain = text("template");
    if (text("name") == "tool_use") sources.with_tools = text("template");
  }
  if (!sources.plain) {
    return InvalidArgument(path + ": chat_template is a list without a template named \"default\"", path);
  }
  return Ok{};
}

Result<Sources> FindSources(const std::filesystem::path& directory, const ReadTextPath& read, const json& config) {
  Sources sources;
  const std::string path = (directory / "chat_template.jinja").string();
  if (auto text = read(path); text.ok()) {
    sources.label = path;
    sources.plain = std::move(text).value();
  } else if (text.error().code != ErrorCode::kNotFound) {
    return std::move(text).error();
  }
  if (!sources.plain) {
    const std::filesystem::path json_path = directory / "chat_template.json";
    ASSIGN_OR_RETURN(const json file, ReadJson(read, json_path));
    if (file.contains("chat_template") && !file["chat_template"].is_null()) {
      RETURN_IF_ERROR(TakeTemplates(file["chat_template"], json_path.string(), sources));
    }
  }
  if (!sources.plain && config.contains("chat_template") && !config["chat_template"].is_null()) {
    RETURN_IF_ERROR(TakeTemplates(config["chat_template"], (directory / "tokenizer_config.json").string(), sources));
  }
  // Newer versions of transformers keep templates other than the default here.
  if (auto text = read(directory / "additional_chat_templates" / "tool_use.jinja"); text.ok()) {
    sources.with_tools = std::move(text).value();
  } else if (text.error().code != ErrorCode::kNotFound) {
    return std::move(text).error();
  }
  return sources;
}

// The two files that name special tokens; null: there is none.
struct TokenFiles {
  json config, tokens_map;
  std::string SpecialTokensJson() const {
    return SpecialTokens(config, tokens_map).dump(-1, ' ', false, json::error_handler_t::replace);
  }
};

Result<TokenFiles> ReadTokenFiles(const std::filesystem::path& directory, const ReadTextPath& read) {
  TokenFiles files;
  ASSIGN_OR_RETURN(files.config, ReadJson(read, directory / "tokenizer_config.json"));
  ASSIGN_OR_RETURN(files.tokens_map, ReadJson(read, directory / "special_tokens_map.json"));
  return files;
}

Result<TemplateHandle> Compile(std::string_view source, std::string_view special_tokens, const std::string& label) {
  loramux_template* raw = nullptr;
  Buffer error;
  const auto status = loramux_template_parse(Bytes(source), source.size(), Bytes(special_tokens), special_tokens.size(),
                                             &raw, error.out());
  if (status != LORAMUX_TEXT_OK) return ToError(status, error, label);
  return TemplateHandle(raw);
}

bool HasTools(std::string_view context_json) {
  const json context = json::parse(context_json, nullptr, /*allow_exceptions=*/false);
  return context.is_object() && context.contains("tools") && !context["tools"].is_null();
}

}  // namespace

Result<ChatTemplate> ChatTemplate::LoadInstead(const std::filesystem::path& directory, std::string_view source,
                                               const std::string& label) {
  ASSIGN_OR_RETURN(const TokenFiles files, ReadTokenFiles(directory, ReadTokenizerFile));
  return Parse(source, files.SpecialTokensJson(), label);
}

Result<std::optional<ChatTemplate>> ChatTemplate::Load(const std::filesystem::path& directory) {
  return LoadOfAdapter(directory, ReadTokenizerFile, directory);
}

Result<std::optional<ChatTemplate>> ChatTemplate::LoadOfAdapter(const std::filesystem::path& directory,
                                                                const ReadTextPath& read,
                                                                const std::filesystem::path& base) {
  ASSIGN_OR_RETURN(TokenFiles files, ReadTokenFiles(directory, read));
  ASSIGN_OR_RETURN(const Sources sources, FindSources(directory, read, files.config));
  if (!sources.plain) return std::optional<ChatTemplate>();
  if (files.config.is_null() && files.tokens_map.is_null()) {
    ASSIGN_OR_RETURN(files, ReadTokenFiles(base, ReadTokenizerFile));
  }
  const std::string special_tokens = files.SpecialTokensJson();
  auto impl = std::make_unique<Impl>();
  impl->label = sources.label;
  ASSIGN_OR_RETURN(impl->plain, Compile(*sources.plain, special_tokens, sources.label));
  impl->sources = *sources.plain + '\n' + sources.with_tools.value_or("");
  impl->special_tokens = special_tokens;
  if (sources.with_tools) {
    ASSIGN_OR_RETURN(impl->with_tools, Compile(*sources.with_tools, special_tokens, sources.label + " (tool_use)"));
  }
  return std::optional(ChatTemplate(std::move(impl)));
}

Result<ChatTemplate> ChatTemplate::Parse(std::string_view source, std::string_view special_tokens_json,
                                         const std::string& label) {
  auto impl = std::make_unique<Impl>();
  impl->label = label;
  ASSIGN_OR_RETURN(impl->plain, Compile(source, special_tokens_json, label));
  impl->sources = source;
  impl->special_tokens = special_tokens_json;
  return ChatTemplate(std::move(impl));
}

const ChatTemplate& ChatTemplate::None() {
  static const ChatTemplate none = [] {
    auto impl = std::make_unique<Impl>();
    impl->label = "no chat template";
    return ChatTemplate(std::move(impl));
  }();
  return none;
}

Result<std::string> ChatTemplate::Render(std::string_view context_json, const Options& options) const {
  if (impl_->plain == nullptr) {
    return InvalidArgument(
        "This model has no chat template: expected chat_template.jinja or `chat_template` in its "
        "tokenizer_config.json, found neither; use /v1/completions");
  }
  const bool use_tools = impl_->with_tools != nullptr && HasTools(context_json);
  const loramux_template* chosen = use_tools ? impl_->with_tools.get() : impl_->plain.get();
  Buffer text, error;
  const loramux_render_options render = {.add_generation_prompt = options.add_generation_prompt,
                                         .fold_system = options.fold_system,
                                         .content_format = static_cast<std::uint32_t>(options.content),
                                         .unix_seconds = options.unix_seconds,
                                         .utc_offset = options.utc_offset};
  const auto status =
      loramux_template_render(chosen, Bytes(context_json), context_json.size(), &render, text.out(), error.out());
  if (status == LORAMUX_TEXT_OK) return text.ToString();
  Error failure = ToError(status, error, "");
  // The request made the template fail or exceed a limit, so this is an error in the client's input.
  if (status != LORAMUX_TEXT_INTERNAL && status != LORAMUX_TEXT_UNAVAILABLE) failure.code = ErrorCode::kInvalidArgument;
  return failure;
}

bool ChatTemplate::Equals(const ChatTemplate& other) const {
  return impl_->sources == other.impl_->sources && impl_->special_tokens == other.impl_->special_tokens &&
         (impl_->with_tools == nullptr) == (other.impl_->with_tools == nullptr);
}

const std::string& ChatTemplate::label() const { return impl_->label; }

bool ChatTemplate::Mentions(std::string_view word) const { return impl_->sources.find(word) != std::string::npos; }

std::int64_t LocalOffset(std::int64_t unix_seconds) {
  const std::time_t time = unix_seconds;
  std::tm local = {};
  return localtime_r(&time, &local) == nullptr ? 0 : local.tm_gmtoff;
}

Result<std::string> ReadTokenizerFile(const std::filesystem::path& path) {
  return ReadModelFile(path, text_internal::kMaxFileBytes);
}

Result<std::map<std::string, std::string, std::less<>>> LoadSpecialTokens(const std::filesystem::path& directory,
                                                                          const ReadTextPath& read) {
  ASSIGN_OR_RETURN(const TokenFiles files, ReadTokenFiles(directory, read));
  std::map<std::string, std::string, std::less<>> tokens;
  const json named = SpecialTokens(files.config, files.tokens_map);
  for (const auto& [name, text] : named.items()) {
    if (text.is_string()) tokens.emplace(name, text.get<std::string>());
  }
  return tokens;
}

Result<std::string> TokenizerInfo(const std::filesystem::path& directory) {
  ASSIGN_OR_RETURN(TokenFiles files, ReadTokenFiles(directory, ReadTokenizerFile));
  json& config = files.config;
  ASSIGN_OR_RETURN(const Sources sources, FindSources(directory, ReadTokenizerFile, config));
  if (config.is_null()) config = json::object();
  config.update(SpecialTokens(config, files.tokens_map));
  if (!config.contains("tokenizer_class")) config["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (sources.plain) config["chat_template"] = *sources.plain;
  return config.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace loramux
