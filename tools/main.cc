// The program: `loramux serve | generate | inspect | profile | bench | simulate | experiment`.
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "tools/bench/command.h"
#include "tools/experiment/command.h"
#include "tools/generate.h"
#include "tools/inspect.h"
#include "tools/profile/command.h"
#include "tools/serve.h"
#include "tools/simulate.h"

int main(int argc, char** argv) {
  CLI::App app{"loramux: one base model, thousands of LoRA adapters, one server"};
  app.require_subcommand(1);
  app.set_version_flag("--version", LORAMUX_VERSION);
  app.footer(
      "Examples:\n"
      "  loramux serve demo/model --adapter-dir demo/adapters\n"
      "  loramux generate demo/model --adapter-dir demo/adapters --lora reverse -p hello\n"
      "  loramux inspect demo/model\n"
      "  loramux inspect demo/adapters/reverse --base demo/model\n"
      "  loramux profile demo/model --quick --output profile.json\n"
      "  loramux bench --tasks demo/eval --concurrency 16\n"
      "  loramux simulate --rate 3 --preset loramux,chameleon,s-lora\n"
      "  loramux experiment ch-11 --quick --output /tmp/results\n"
      "Each command explains itself: loramux COMMAND --help");
  int status = 0;

  loramux::ServeFlags serve;
  CLI::App* serve_command =
      app.add_subcommand("serve", "Serve a base model and its adapters behind an OpenAI-compatible API");
  loramux::AddServeFlags(*serve_command, serve);
  serve_command->callback([&] { status = loramux::RunServe(serve); });

  loramux::GenerateFlags generate;
  CLI::App* generate_command = app.add_subcommand("generate", "Answer one prompt, without a server");
  loramux::AddGenerateFlags(*generate_command, generate);
  generate_command->callback([&] { status = loramux::RunGenerate(generate); });

  loramux::InspectFlags inspect;
  CLI::App* inspect_command = app.add_subcommand("inspect", "What is in a model or adapter directory");
  loramux::AddInspectFlags(*inspect_command, inspect);
  inspect_command->callback([&] { status = loramux::RunInspect(inspect); });

  loramux::ProfileFlags profile;
  CLI::App* profile_command =
      app.add_subcommand("profile", "Measure how long steps and transfers take on this machine, and fit models to it");
  loramux::AddProfileFlags(*profile_command, profile);
  profile_command->callback([&] { status = loramux::RunProfile(profile); });

  loramux::load::BenchFlags bench;
  CLI::App* bench_command =
      app.add_subcommand("bench", "Send load to any OpenAI-compatible server and measure its answers");
  loramux::load::AddBenchFlags(*bench_command, bench);
  bench_command->callback([&] { status = loramux::load::RunBench(bench); });

  loramux::SimulateFlags simulate;
  CLI::App* simulate_command = app.add_subcommand("simulate", "What a server would do with a load, on a virtual clock");
  loramux::AddSimulateFlags(*simulate_command, simulate);
  for (int i = 0; i < argc; ++i) simulate.command_line += (i == 0 ? "" : " ") + std::string(argv[i]);
  simulate_command->callback([&] { status = loramux::RunSimulate(simulate); });

  loramux::ExperimentFlags experiment;
  CLI::App* experiment_command =
      app.add_subcommand("experiment", "What the source documents report, beside what this project's simulator finds");
  loramux::AddExperimentFlags(*experiment_command, experiment);
  experiment_command->callback([&] { status = loramux::RunExperiment(experiment); });

  CLI11_PARSE(app, argc, argv);
  return status;
}
