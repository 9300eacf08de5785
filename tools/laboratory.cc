#include "tools/laboratory.h"

#include <utility>

#include "tools/bench_command.h"
#include "tools/experiment_command.h"
#include "tools/profile_command.h"
#include "tools/simulate.h"

namespace loramux {

void AddLaboratory(Program& program, std::string command_line) {
  program.commands.push_back(ProfileCommand());
  program.commands.push_back(load::BenchCommand());
  program.commands.push_back(SimulateCommand(std::move(command_line)));
  program.commands.push_back(ExperimentCommand());
}

}  // namespace loramux
