#include "tools/output_flags.h"

#include "server/completion/answer_plan.h"

namespace loramux {

void AddOutputFlags(CommandLine& line, std::vector<std::string>& tool_call_parsers,
                    std::vector<std::string>& reasoning_parsers) {
  const std::string output = "Tools and reasoning";
  line.Add({.names = "--tool-call-parser",
            .target = &tool_call_parsers,
            .unit = "NAME",
            .group = output,
            .help =
                "How the model writes calls of tools: gemma4, granite, hermes, llama3_json, mistral, phi4_mini_json, "
                "qwen3_coder, none, or auto, "
                "which is what the chat template writes. ADAPTER=NAME is for one adapter. Repeatable",
            .default_text = "auto",
            .one_value_each = true});
  line.Add({.names = "--reasoning-parser",
            .target = &reasoning_parsers,
            .unit = "NAME",
            .group = output,
            .help = "How the model writes reasoning: qwen3 (between <think> and </think>), deepseek_r1 (the answer "
                    "begins with reasoning even without <think>), gemma4, mistral (between tags of their own), "
                    "openai_gptoss (in channels, "
                    "calls too), none, "
                    "or auto, which is what the chat template knows. ADAPTER=NAME is for one adapter. Repeatable",
            .default_text = "auto",
            .one_value_each = true});
}

Status CheckOutputFlags(const std::vector<std::string>& tool_call_parsers,
                        const std::vector<std::string>& reasoning_parsers) {
  const auto formats = ReadOutputFormats(ChatTemplate::None(), tool_call_parsers, reasoning_parsers);
  return formats.ok() ? Status(Ok{}) : Status(formats.error());
}

}  // namespace loramux
