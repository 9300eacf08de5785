// A terminal that shows frames and gives single keys.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <termios.h>

namespace loramux {

// Columns and rows of the terminal on standard output. nullopt: it is none, or does not say.
std::optional<std::pair<int, int>> TerminalSize();

// While it lives, the terminal is in its second screen, without cursor, line wrap and echo. The destructor, and with it
// Ctrl-C and SIGTERM, which only end Wait, leave it as it was. One at a time.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Shows the frame in place of the one before.
  void Show(const std::string& frame);
  // Waits for a key. 0: none came in time, or the window has another size. 'q': also the end of the input, or a signal.
  char Wait(std::chrono::milliseconds patience);

 private:
  termios before_{};
};

}  // namespace loramux
