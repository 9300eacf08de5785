// Renders a model's chat template exactly as apply_chat_template of transformers does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// The form in which a template gets the content of messages, which requests hold as a text or as a list of text parts.
enum class ContentFormat {
  kAsGiven,
  kAuto,   // for each role the form that the template prints; found out by rendering small conversations
  kText,   // texts, whose parts line breaks join
  kParts,  // lists of parts, but for results of tools, as in vLLM
};

// Returns the content of a text file; kNotFound: there is none.
using ReadTextPath = std::function<Result<std::string>(const std::filesystem::path& path)>;

// Immutable after loading; thread-safe. Rendering is bounded in steps and output size, so that a hostile template
// cannot hang the process or exhaust its memory.
class ChatTemplate {
 public:
  // Loads the template from DIR: chat_template.jinja, or chat_template.json, or `chat_template` in
  // tokenizer_config.json. The latter is a string or a list of {name, template}: "default", and "tool_use" for requests
  // with tools. The special tokens (bos_token, eos_token, ...) come from tokenizer_config.json (a string or an
  // AddedToken object) and special_tokens_map.json. nullopt: the model has no chat template.
  static Result<std::optional<ChatTemplate>> Load(const std::filesystem::path& directory);
  // Loads the template of an adapter's folder DIR in the same way, by `read`. Where DIR has neither
  // tokenizer_config.json nor special_tokens_map.json, the special tokens are those of `base`, the model's directory.
  static Result<std::optional<ChatTemplate>> LoadOfAdapter(const std::filesystem::path& directory,
                                                           const ReadTextPath& read, const std::filesystem::path& base);
  // Compiles `source` in place of the templates of DIR, whose special tokens it uses. `label` names the source in
  // errors.
  static Result<ChatTemplate> LoadInstead(const std::filesystem::path& directory, std::string_view source,
                                          const std::string& label);
  // Compiles a template. `special_tokens_json` is an object such as {"bos_token": "<s>"}. `label` names the source in
  // errors.
  static Result<ChatTemplate> Parse(std::string_view source, std::string_view special_tokens_json,
                                    const std::string& label);
  // That of a model without one: it renders no conversation, and says so. Lives as long as the program.
  static const ChatTemplate& None();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Options of one rendering.
  struct Options {
    bool add_generation_prompt = true;
    std::int64_t unix_seconds = 0;  // the time that strftime_now returns
    std::int64_t utc_offset = 0;    // seconds by which local time, in which it returns it, is ahead of UTC
    // What the template gets of `messages`. Other forms than kAsGiven also turn ids of tool calls into what the
    // template accepts: those of Mistral want nine letters and digits.
    ContentFormat content = ContentFormat::kAsGiven;
    // Merges system messages that the template does not print in their place into their neighbours.
    bool fold_system = false;
  };
  // The form of content that the operator wants requests rendered with.
  ContentFormat content_format() const { return content_format_; }
  void SetContentFormat(ContentFormat format) { content_format_ = format; }
  // Renders one conversation. `context_json` is a JSON object with "messages" and optionally "tools", "documents" and
  // any other variable (chat_template_kwargs). Key order is kept. A call of raise_exception(...) and any template error
  // return kInvalidArgument with the template's message.
  Result<std::string> Render(std::string_view context_json, const Options& options) const;

  // True if both have the same sources and special tokens, so that they render the same.
  bool Equals(const ChatTemplate& other) const;
  // What the errors call it: the path of its file, or the label of Parse.
  const std::string& label() const;
  // True if the source of a template contains `word`, such as the name of a role.
  bool Mentions(std::string_view word) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  ContentFormat content_format_ = ContentFormat::kAuto;
};

// Returns by how many seconds the local time zone is ahead of UTC at that moment. Thread-safe.
std::int64_t LocalOffset(std::int64_t unix_seconds);

// Returns the special tokens of a tokenizer's directory as texts, by their names in templates. Tokens with several
// texts are left out. Errors: those of the files.
Result<std::map<std::string, std::string, std::less<>>> LoadSpecialTokens(const std::filesystem::path& directory,
                                                                          const ReadTextPath& read);
// Reads a file of a model (ReadModelFile), up to the largest size that a tokenizer may have.
Result<std::string> ReadTokenizerFile(const std::filesystem::path& path);

// Describes the tokenizer of a model's directory for clients that build prompts themselves: tokenizer_config.json as a
// JSON object, with special tokens as texts, and with the chat template, wherever the directory has it. Errors: those
// of the files.
Result<std::string> TokenizerInfo(const std::filesystem::path& directory);

}  // namespace loramux
