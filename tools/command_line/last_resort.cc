#include "tools/command_line/last_resort.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

namespace loramux {
namespace {

constexpr int kFailed = 1;

// REQUIRES: an exception is being handled. fputs and fprintf to standard error, which has no buffer, allocate nothing.
void Explain() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    std::fputs(
        "loramux: not enough memory. Raise this process's limit (ulimit -v, or the container's), or ask for less\n",
        stderr);
  } catch (const std::exception& exception) {
    std::fprintf(stderr,
                 "loramux: an unexpected error ended the command: %s. Please report it, with the command line\n",
                 exception.what());
  } catch (...) {
    std::fputs("loramux: an unexpected error ended the command. Please report it, with the command line\n", stderr);
  }
}

// Ends the process when an exception leaves a thread. What is not an exception, such as a failed CHECK, still aborts.
[[noreturn]] void Terminate() {
  if (std::current_exception() == nullptr) std::abort();
  Explain();
  std::_Exit(kFailed);
}

}  // namespace

int RunToTheEnd(const std::function<int()>& run) {
  std::set_terminate(Terminate);
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run();
  } catch (...) {
    Explain();
    return kFailed;
  }
}

}  // namespace loramux
