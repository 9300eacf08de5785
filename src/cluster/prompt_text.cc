#include "cluster/prompt_text.h"

#include <algorithm>
#include <string_view>

#include <nlohmann/json.hpp>

#include "cluster/prefix_blocks.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxPromptText = kMaxPrefixBlocks * kPrefixBlockBytes;
constexpr char kAfterRole = '\x1f', kAfterContent = '\x1e';

// Collects text up to kMaxPromptText. Json: nlohmann::json or nlohmann::ordered_json.
template <typename Json>
class TextOfBody {
 public:
  explicit TextOfBody(const Json& body) : body_(body) {}

  std::string Take() && {
    if (!body_.is_object()) return {};
    Instruction("system");
    Instruction("instructions");
    Messages("messages");
    Messages("input");
    if (const Json* prompt = Field(body_, "prompt")) AddFirstString(*prompt);
    if (const Json* prompt = Field(body_, "inputs")) AddFirstString(*prompt);
    return std::move(text_);
  }

 private:
  static const Json* Field(const Json& object, const char* name) {
    if (!object.is_object()) return nullptr;
    const auto found = object.find(name);
    return found == object.end() ? nullptr : &*found;
  }
  bool full() const { return text_.size() >= kMaxPromptText; }

  void Add(std::string_view more) { text_.append(more.substr(0, kMaxPromptText - text_.size())); }
  void AddString(const Json* value) {
    if (value != nullptr && value->is_string()) Add(value->template get_ref<const std::string&>());
  }
  // A string, or the texts of the parts of a list.
  void AddContent(const Json& content) {
    if (!content.is_array()) return AddString(&content);
    for (const Json& part : content) {
      if (full()) return;
      AddString(Field(part, "text"));
    }
  }
  void AddMessage(std::string_view role, const Json* content) {
    Add(role);
    Add({&kAfterRole, 1});
    if (content != nullptr) AddContent(*content);
    Add({&kAfterContent, 1});
  }
  void AddMessageOf(const Json& message) {
    const Json* role = Field(message, "role");
    if (role == nullptr || !role->is_string()) return;
    AddMessage(role->template get_ref<const std::string&>(), Field(message, "content"));
  }
  void Instruction(const char* name) {
    if (const Json* content = Field(body_, name)) AddMessage("system", content);
  }
  void Messages(const char* name) {
    const Json* messages = Field(body_, name);
    if (messages == nullptr) return;
    if (messages->is_string()) return AddMessage("user", messages);
    if (!messages->is_array()) return;
    for (const Json& message : *messages) {
      if (full()) return;
      AddMessageOf(message);
    }
  }
  void AddFirstString(const Json& prompt) {
    if (!prompt.is_array()) return AddString(&prompt);
    const auto first = std::find_if(prompt.begin(), prompt.end(), [](const Json& item) { return item.is_string(); });
    if (first != prompt.end()) AddString(&*first);
  }

  const Json& body_;
  std::string text_;
};

}  // namespace

std::string PromptText(const nlohmann::json& body) { return TextOfBody(body).Take(); }
std::string PromptText(const nlohmann::ordered_json& body) { return TextOfBody(body).Take(); }

}  // namespace loramux
