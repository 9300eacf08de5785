// What becomes of an exception that no code below caught, such as one of the standard library.
#pragma once

#include <functional>

namespace loramux {

// Runs the program and returns its exit code. An exception that leaves `run`, or a thread, ends the process with exit
// code 1 and one line on standard error, instead of by a signal. Needs no memory for the line about a lack of memory.
// Stays in force for threads after it returns. A file that grows beyond the limit of sizes (ulimit -f) is an error of
// its write, and no signal.
int RunToTheEnd(const std::function<int()>& run);

}  // namespace loramux
