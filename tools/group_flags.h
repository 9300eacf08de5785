// One model on several processes: the flags, and what the processes beside the first do (`loramux serve` of rank > 0).
#pragma once

#include <chrono>
#include <cstdint>

#include "base/result.h"
#include "tools/command_line/command_line.h"
#include "tools/runtime_flags.h"

namespace loramux {

struct GroupFlags {
  std::int64_t ranks = 1;
  std::chrono::milliseconds timeout{30'000};
};

// The exit status of a server that lost a rank: to start it again may help.
inline constexpr int kExitRankLost = 75;

void AddGroupFlags(CommandLine& line, GroupFlags& flags);
// Joins the group of processes that mpirun started, and sets the group and this rank's part in runtime.options; does
// nothing if one process is asked for. Errors: MPI is not there; there are other numbers of processes.
Status JoinGroup(const GroupFlags& flags, RuntimeFlags& runtime);
// Compares program, model and settings of all ranks. Does nothing without a group. Error: says what differs. REQUIRES:
// FetchNamed.
Status AgreeInGroup(const GroupFlags& flags, const RuntimeFlags& runtime);
// What a rank > 0 does: loads its part of the model and follows rank 0 until that ends. Errors: those of the model;
// rank 0 is lost.
Status FollowInGroup(const GroupFlags& flags, RuntimeFlags& runtime);

}  // namespace loramux
