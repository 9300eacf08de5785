#include "server/completion/answer_plan.h"

#include <utility>

#include <fmt/format.h>

#include "http/random_source.h"
#include "server/output/channels.h"
#include "server/output/forced_calls.h"

namespace loramux {
namespace {

// Nine letters and digits, which is what Mistral's chat templates accept.
std::string ShortId() {
  constexpr std::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id;
  for (std::uint64_t bits = RandomIdBits(); id.size() < 9; bits /= kDigits.size()) id += kDigits[bits % kDigits.size()];
  return id;
}

using ParserNames = std::map<std::string, std::string, std::less<>>;

// The names by adapter; all other models have the empty name.
ParserNames NamesByAdapter(std::span<const std::string> choices) {
  ParserNames names = {{"", "auto"}};
  for (const std::string& choice : choices) {
    const auto equals = choice.rfind('=');
    const bool all = equals == std::string::npos;
    names[all ? std::string() : choice.substr(0, equals)] = all ? choice : choice.substr(equals + 1);
  }
  return names;
}

const std::string& NameFor(const ParserNames& names, const std::string& adapter) {
  const auto found = names.find(adapter);
  return found == names.end() ? names.at("") : found->second;
}

}  // namespace

Result<OutputFormatTable> ReadOutputFormats(const ChatTemplate& chat_template,
                                            std::span<const std::string> tool_call_parsers,
                                            std::span<const std::string> reasoning_parsers) {
  const ParserNames tools = NamesByAdapter(tool_call_parsers), reasoning = NamesByAdapter(reasoning_parsers);
  ParserNames adapters = tools;
  adapters.insert(reasoning.begin(), reasoning.end());
  OutputFormatTable table;
  for (const auto& [adapter, unused] : adapters) {
    const std::string &tool_name = NameFor(tools, adapter), &reasoning_name = NameFor(reasoning, adapter);
    ASSIGN_OR_RETURN(const OutputFormats formats, ChooseFormats(chat_template, tool_name, reasoning_name));
    (adapter.empty() ? table.base : table.adapters[adapter]) = {formats, tool_name == "auto", reasoning_name == "auto"};
  }
  return table;
}

OutputFormats OutputFormatTable::Of(std::string_view adapter, const OutputFormats* own) const {
  const auto found = adapters.find(adapter);
  const Choice& choice = found == adapters.end() ? base : found->second;
  OutputFormats formats = choice.formats;
  if (own != nullptr && choice.tools_by_template) formats.tools = own->tools;
  if (own != nullptr && choice.reasoning_by_template) formats.reasoning = own->reasoning;
  return formats;
}

std::unique_ptr<OutputParser> AnswerPlan::MakeParser() const {
  if (reasoning != nullptr && reasoning->channels) return std::make_unique<ChannelParser>(offered);
  std::unique_ptr<OutputParser> answer;
  if (calls != nullptr) {
    answer = std::make_unique<CallParser>(*calls, offered);
  } else {
    answer = std::make_unique<ContentParser>();
  }
  if (reasoning == nullptr) return answer;
  return std::make_unique<ReasoningParser>(start, std::move(answer), reasoning->tags);
}

std::vector<std::string_view> AnswerPlan::Tokens() const {
  std::vector<std::string_view> tokens;
  if (reasoning != nullptr) tokens.assign(reasoning->tokens.begin(), reasoning->tokens.end());
  tokens.insert(tokens.end(), call_tokens.begin(), call_tokens.end());
  return tokens;
}

std::string AnswerPlan::NewCallId() const {
  if (short_ids) return ShortId();
  return fmt::format("chatcmpl-tool-{:016x}{:016x}", RandomIdBits(), RandomIdBits());
}

AnswerPlan PlanCalls(const OutputFormats& formats, CompletionRequest& request) {
  AnswerPlan plan;
  const ToolFields& tools = request.tools;
  if (tools.offered == nullptr) return plan;
  if (formats.tools != nullptr) {
    plan.calls = formats.tools->grammar;
    plan.call_tokens = formats.tools->tokens;
    plan.short_ids = formats.tools->short_ids;
  }
  plan.offered = tools.offered;
  if (!MustCall(tools)) return plan;
  plan.named = tools.choice == ToolChoice::kNamed;
  ForcedCalls forced = plan.named ? ForceFunction(formats.tools, *tools.offered, tools.function)
                                  : ForceCalls(formats.tools, tools.offered, tools.parallel);
  request.output = std::move(forced.constraint);
  plan.calls = forced.grammar;
  plan.offered = std::move(forced.tools);
  return plan;
}

void PlanReasoning(const OutputFormats& formats, const CompletionRequest& request, const Tokenizer& tokenizer,
                   std::string_view prompt, AnswerPlan& plan) {
  if (formats.reasoning == nullptr) return;
  const ReasoningFormat& format = *formats.reasoning;
  if (format.channels) {
    if (!request.output) plan.reasoning = &format;  // what a grammar constrains has no headers
    return;
  }
  const ThinkState state = request.chat.continue_final_message
                               ? ThinkStateOfMessage(request.chat.final_message, format.tags)
                               : ThinkStateOfPrompt(prompt, format.tags);
  if (state == ThinkState::kClosed) return;
  const bool inside = state == ThinkState::kOpen || format.always_begins;
  if (request.output) {
    plan.prefix = PrefixBetween(tokenizer, format.tokens.front(), format.tags.close, inside);
    if (!plan.prefix) return;
  }
  plan.reasoning = &format;
  plan.start = inside ? ReasoningParser::Start::kInside : ReasoningParser::Start::kPerhaps;
}

}  // namespace loramux
