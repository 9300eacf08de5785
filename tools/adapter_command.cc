#include "tools/adapter_command.h"

#include <memory>
#include <optional>
#include <string>

#include <fmt/core.h>

#include "formats/adapter_config.h"
#include "formats/adapter_writer.h"
#include "formats/model_config.h"
#include "tools/runtime_flags.h"

namespace loramux {
namespace {

struct ConvertFlags {
  std::string action, adapter, output, base;
};

Status Convert(const ConvertFlags& flags) {
  RETURN_IF_ERROR(CheckNewAdapterDirectory(flags.output));
  std::optional<ModelConfig> model;
  if (!flags.base.empty()) {
    ASSIGN_OR_RETURN(model, LoadModelConfig(flags.base));
    model->AddTokens(kMostAdapterTokens);
  }
  ASSIGN_OR_RETURN(const AdapterFile file,
                   model ? OpenAdapter(flags.adapter, *model) : OpenAdapterWithoutBase(flags.adapter));
  RETURN_IF_ERROR(WriteAdapter(file, model ? &*model : nullptr, flags.output));
  fmt::print("wrote {}: {} modules of {}, in PEFT's form\n  digest  {}\n", flags.output, file.modules.size(),
             AdapterFormName(file.config.form), file.digest);
  return Ok{};
}

int RunAdapter(const ConvertFlags& flags) {
  const Status status = Convert(flags);
  return status.ok() ? 0 : FailCommand("adapter convert", status.error());
}

}  // namespace

Command AdapterCommand() {
  const auto flags = std::make_shared<ConvertFlags>();
  Command command{.name = "adapter", .summary = "Convert an adapter of another tool to PEFT's form"};
  command.line.Add({.names = "action",
                    .target = &flags->action,
                    .unit = "ACTION",
                    .help = "What to do: convert writes the adapter as PEFT saves it",
                    .choices = {"convert"},
                    .required = true});
  command.line.Add({.names = "adapter",
                    .target = &flags->adapter,
                    .unit = "ADAPTER",
                    .help = "A folder or a GGUF file: any adapter that `loramux serve` takes",
                    .path = FlagPath::kExistingPath,
                    .required = true});
  command.line.Add({.names = "-o,--output",
                    .target = &flags->output,
                    .unit = "DIR",
                    .help = "The folder to write; new or empty",
                    .required = true,
                    .common = true});
  command.line.Add({.names = "--base,--model",
                    .target = &flags->base,
                    .unit = "MODEL",
                    .help = "The base model, a folder or a GGUF file: checks that the adapter fits. Needed where the "
                            "order of rows depends on it: GGUF files of llama, qkv_proj and torchtune's own names",
                    .common = true});
  command.line.set_footer(
      "Examples:\n"
      "  loramux adapter convert mlx-adapters -o converted --base my-model\n"
      "  loramux adapter convert adapter.gguf -o converted --base my-model\n"
      "The result has the same content: `loramux inspect` prints the same digest for both.");
  command.run = [flags] { return RunAdapter(*flags); };
  return command;
}

}  // namespace loramux
