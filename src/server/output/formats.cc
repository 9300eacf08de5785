#include "server/output/formats.h"

#include <algorithm>

namespace loramux {
namespace {

constexpr std::string_view kGemmaTokens[] = {"<|tool_call>", "<tool_call|>", "<|\"|>"};
constexpr std::string_view kHermesTokens[] = {"<tool_call>", "</tool_call>"};
constexpr std::string_view kGraniteTokens[] = {"<|tool_call|>", "<tool_call>"};
constexpr std::string_view kPhiTokens[] = {"<|tool_call|>", "<|/tool_call|>"};
constexpr std::string_view kLlamaTokens[] = {"<|python_tag|>"};
constexpr std::string_view kMistralTokens[] = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"};

constexpr CallText kHermesText = {"<tool_call>\n{\"name\": ", ", \"arguments\": ", "}\n</tool_call>", "\n"};
constexpr CallText kLlamaText = {"{\"name\": ", ", \"parameters\": ", "}", "; "};

const ToolFormat kToolFormats[] = {
    {"gemma4", kGemmaTokens, &kGemmaCalls},
    {"granite", kGraniteTokens, &kGraniteCalls},
    {"hermes", kHermesTokens, &kHermesCalls, false, &kHermesText},
    {"llama3_json", kLlamaTokens, &kLlamaCalls, false, &kLlamaText},
    {"mistral", kMistralTokens, &kMistralCalls, /*short_ids=*/true},
    {"phi4_mini_json", kPhiTokens, &kPhiCalls},
    {"qwen3_coder", kHermesTokens, &kQwenCoderCalls},
};

constexpr ReasoningTags kThinkTags = {"<think>", "</think>"};
constexpr std::string_view kThinkTokens[] = {"<think>", "</think>"};
constexpr std::string_view kGemmaThinkTokens[] = {"<|channel>", "<channel|>"};
constexpr std::string_view kMistralThinkTokens[] = {"[THINK]", "[/THINK]"};
constexpr std::string_view kChannelTokens[] = {"<|channel|>",   "<|message|>", "<|start|>", "<|end|>",
                                               "<|constrain|>", "<|call|>",    "<|return|>"};
constexpr ReasoningFormat kReasoningFormats[] = {
    {"qwen3", kThinkTags, kThinkTokens},
    {"deepseek_r1", kThinkTags, kThinkTokens, /*always_begins=*/true},
    {"gemma4", {"<|channel>thought", "<channel|>"}, kGemmaThinkTokens},
    {"mistral", {"[THINK]", "[/THINK]"}, kMistralThinkTokens},
    {"openai_gptoss", {"<|channel|>analysis<|message|>", "<|end|>"}, kChannelTokens, false, /*channels=*/true},
};

template <class Formats>
auto Find(const Formats& formats, std::string_view name) {
  const auto found = std::ranges::find_if(formats, [name](const auto& format) { return format.name == name; });
  return found == std::end(formats) ? nullptr : &*found;
}

template <class Formats>
std::vector<std::string> NamesOf(const Formats& formats) {
  std::vector<std::string> names;
  for (const auto& format : formats) names.emplace_back(format.name);
  return names;
}

}  // namespace

const ToolFormat* FindToolFormat(std::string_view name) { return Find(kToolFormats, name); }

const ReasoningFormat* FindReasoningFormat(std::string_view name) { return Find(kReasoningFormats, name); }

std::vector<std::string> ToolFormatNames() { return NamesOf(kToolFormats); }

std::vector<std::string> ReasoningFormatNames() { return NamesOf(kReasoningFormats); }

std::span<const ReasoningFormat> AllReasoningFormats() { return kReasoningFormats; }

}  // namespace loramux
