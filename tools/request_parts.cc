#include "tools/request_parts.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "base/log.h"
#include "formats/embedding_config.h"
#include "formats/file.h"
#include "formats/generation_defaults.h"
#include "tools/runtime_flags.h"

namespace loramux {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;

// Returns the model's own defaults of sampling, as in vLLM.
Result<GenerationDefaults> LoadDefaults(const std::string& source, const std::string& model_dir) {
  if (source == "none" || source == "vllm") return GenerationDefaults();  // vLLM's word for the same
  const bool automatic = source == "auto";
  auto defaults = LoadGenerationDefaults(automatic ? model_dir : source);
  if (defaults.ok()) return defaults;
  if (automatic && defaults.error().code == ErrorCode::kNotFound) return GenerationDefaults();
  return Error{defaults.error().code,
               "--generation-config: " + defaults.error().message + "; --generation-config none ignores the file",
               "--generation-config"};
}

bool IsTemplateText(const std::string& text) {
  return text.find("{{") != std::string::npos || text.find("{%") != std::string::npos;
}

// The name and the source of NAME=FILE. A template, or a file whose path has an equals sign, has no name.
std::pair<std::string, std::string> SplitTemplate(const std::string& value) {
  const auto equals = value.find('=');
  std::error_code ignored;
  if (equals == std::string::npos || IsTemplateText(value) || fs::exists(value, ignored)) {
    return {std::string(), value};
  }
  return {value.substr(0, equals), value.substr(equals + 1)};
}

ContentFormat ContentFormatOf(const RuntimeFlags& flags) {
  static const std::map<std::string, ContentFormat> kFormats = {
      {"auto", ContentFormat::kAuto}, {"string", ContentFormat::kText}, {"openai", ContentFormat::kParts}};
  return kFormats.at(flags.content_format);
}

Result<ChatTemplate> LoadGiven(const RuntimeFlags& flags, std::string source) {
  std::string label = "--chat-template";
  if (!IsTemplateText(source)) {
    label = "--chat-template: " + source;
    auto text = ReadTextFile(source, kMaxTemplateBytes);
    if (!text.ok()) return Error{text.error().code, "--chat-template: " + text.error().message, "--chat-template"};
    source = std::move(text).value();
  }
  ASSIGN_OR_RETURN(ChatTemplate given, ChatTemplate::LoadInstead(flags.text_directory(), source, label));
  given.SetContentFormat(ContentFormatOf(flags));
  return given;
}

}  // namespace

Flag GenerationConfigFlag(std::string& target) {
  return {.names = "--generation-config",
          .target = &target,
          .unit = "PATH",
          .help =
              "What requests get where they say nothing of temperature, top_p, top_k, min_p and "
              "repetition_penalty, and the bound max_new_tokens: auto takes the model's generation_config.json, and "
              "on top of it the adapter's own, none OpenAI's defaults, and PATH that file or directory"};
}

Result<RequestDefaults> RequestDefaultsOf(const std::string& source, const std::string& model_dir) {
  ASSIGN_OR_RETURN(const GenerationDefaults loaded, LoadDefaults(source, model_dir));
  if (loaded == GenerationDefaults()) return RequestDefaults();
  spdlog::info("generation_config.json sets what requests do not say: {} (--generation-config none ignores it)",
               DescribeDefaults(loaded));
  return WithDefaults(RequestDefaults(), loaded);
}

std::optional<RequestDefaults> DefaultsOfAdapters(const std::string& source, const RequestDefaults& base) {
  return source == "auto" ? std::optional(base) : std::nullopt;
}

Flag PoolingFlag(std::string& target) {
  return {.names = "--pooling",
          .target = &target,
          .unit = "NAME",
          .help =
              "Which hidden states make an embedding (/v1/embeddings): last, the last token's; mean, the mean over "
              "all tokens; auto, what the modules.json of the adapter or the model says, without one the last "
              "token's"};
}

Result<EmbeddingOptions> EmbeddingOptionsOf(const std::string& pooling, const std::string& model_dir) {
  EmbeddingOptions options;
  options.pooling = FindPooling(pooling);
  if (!options.pooling && pooling != "auto") {
    return InvalidArgument("--pooling: expected auto, last or mean, found " + pooling, "--pooling");
  }
  options.model = LoadEmbeddingConfig(model_dir);
  if (!options.model.ok() && !options.pooling) {
    spdlog::warn("{}: {}; /v1/embeddings will refuse requests for this model (--pooling chooses another pooling)",
                 model_dir, options.model.error().message);
  }
  return options;
}

std::unique_ptr<GrammarCompiler> MakeGrammarCompiler(const Tokenizer& tokenizer, const Runtime& runtime) {
  GrammarCompilerOptions options;
  options.mask_threads = std::clamp(AvailableProcessors() / 8, 1, 8);
  auto compiler = GrammarCompiler::Create(tokenizer, runtime.config().eos_token_ids, options);
  if (compiler.ok()) return std::move(*compiler);
  spdlog::warn("structured output is not available: {}", compiler.error().message);
  return GrammarCompiler::Refusing();
}

Result<ChatTemplates> LoadChatTemplates(const RuntimeFlags& flags, const std::vector<std::string>& base_names) {
  ChatTemplates templates;
  for (const std::string& value : flags.chat_templates) {
    const auto [name, source] = SplitTemplate(value);
    ASSIGN_OR_RETURN(ChatTemplate given, LoadGiven(flags, source));
    if (std::find(base_names.begin(), base_names.end(), name) != base_names.end()) {
      templates.base = std::move(given);
    } else {
      auto& target = name.empty() ? templates.for_all : templates.by_name[name];
      target = MakeOwnTemplate(std::move(given));
    }
  }
  if (templates.of_base() != nullptr) return templates;
  ASSIGN_OR_RETURN(templates.base, ChatTemplate::Load(flags.text_directory()));
  if (templates.base) templates.base->SetContentFormat(ContentFormatOf(flags));
  return templates;
}

AdapterTextOptions AdapterTextOptionsOf(const RuntimeFlags& flags, const Tokenizer& tokenizer,
                                        const ChatTemplates& templates) {
  return {.tokenizer = &tokenizer,
          .directory = flags.text_directory(),
          .chat_template = templates.of_base(),
          .content_format = ContentFormatOf(flags),
          .for_all = templates.for_all,
          .by_name = templates.by_name};
}

}  // namespace loramux
