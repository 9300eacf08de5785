// The program: `loramux COMMAND`. Each command brings its own flags. A build that only serves (the CMake option
// LORAMUX_SERVE_ONLY; `make demo`) leaves out the commands that measure, load and simulate servers.
#include <string>

#include "tools/adapter_command.h"
#include "tools/batch_command.h"
#include "tools/command_line/command_line.h"
#include "tools/command_line/last_resort.h"
#include "tools/command_line/reference.h"
#include "tools/controller_command.h"
#include "tools/demo_command.h"
#include "tools/doctor_command.h"
#include "tools/generate.h"
#include "tools/inspect.h"
#include "tools/quantize.h"
#include "tools/route.h"
#include "tools/serve.h"
#include "tools/top_command.h"
#ifndef LORAMUX_SERVE_ONLY
#include "tools/bench_command.h"
#include "tools/profile_command.h"
#include "tools/simulate.h"
#endif

namespace {

// `command_line` is what the user typed; reports show it.
void AddMeasuringCommands(loramux::Program& program, const std::string& command_line) {
#ifdef LORAMUX_SERVE_ONLY
  for (const char* name : {"profile", "bench", "simulate"}) {
    program.absent.emplace_back(name,
                                "this program was built to serve only. Build one with all commands by `make build` "
                                "(build/release/tools/loramux), or configure with -DLORAMUX_SERVE_ONLY=OFF");
  }
#else
  program.commands.push_back(loramux::ProfileCommand());
  program.commands.push_back(loramux::load::BenchCommand());
  program.commands.push_back(loramux::SimulateCommand(command_line));
#endif
}

int Run(int argc, char** argv) {
  std::string command_line;
  for (int i = 0; i < argc; ++i) command_line += (i == 0 ? "" : " ") + std::string(argv[i]);

  loramux::Program program{.name = "loramux",
                           .summary = "loramux: one base model, hundreds of LoRA adapters, one server",
                           .version = LORAMUX_VERSION};
  program.footer =
      "Examples:\n"
      "  loramux demo\n"
      "  loramux serve demo/model --adapter-dir demo/adapters\n"
      "  loramux route --servers 10.0.0.1:8000,10.0.0.2:8000\n"
      "  loramux generate demo/model --adapter-dir demo/adapters --lora reverse -p hello\n"
      "  loramux batch requests.jsonl -o answers.jsonl demo/model --adapter-dir demo/adapters\n"
      "  loramux inspect demo/model\n"
      "  loramux inspect demo/adapters/reverse --base demo/model\n"
      "  loramux adapter convert adapter.gguf -o converted --base demo/model\n"
      "  loramux quantize demo/model --weights q4 --output demo-q4\n"
      "  loramux profile demo/model --quick --output profile.json\n"
      "  loramux bench --tasks demo/eval --concurrency 16\n"
      "  loramux simulate --rate 3 --preset loramux,chameleon,s-lora\n"
      "Each command explains its flags: loramux COMMAND --help";
  program.commands.push_back(loramux::ServeCommand());
  program.commands.push_back(loramux::DemoCommand());
  program.commands.push_back(loramux::DoctorCommand());
  program.commands.push_back(loramux::TopCommand());
  program.commands.push_back(loramux::RouteCommand());
  program.commands.push_back(loramux::ControllerCommand());
  program.commands.push_back(loramux::GenerateCommand());
  program.commands.push_back(loramux::BatchCommand());
  program.commands.push_back(loramux::InspectCommand());
  program.commands.push_back(loramux::QuantizeCommand());
  program.commands.push_back(loramux::AdapterCommand());
  AddMeasuringCommands(program, command_line);
  program.commands.push_back(loramux::ReferenceCommand(program));
  return loramux::RunProgram(program, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  return loramux::RunToTheEnd([&] { return Run(argc, argv); });
}
