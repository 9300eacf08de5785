#include "tools/top/terminal.h"

#include <cerrno>
#include <csignal>
#include <string_view>
#include <sys/ioctl.h>
#include <poll.h>
#include <unistd.h>

namespace loramux {
namespace {

volatile std::sig_atomic_t end_asked = 0;

void AskForTheEnd(int) { end_asked = 1; }
void WakeUp(int) {}

// Without SA_RESTART, so that poll ends.
void Handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

void WriteAll(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

std::optional<std::pair<int, int>> TerminalSize() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return std::nullopt;
  return std::pair{static_cast<int>(size.ws_col), static_cast<int>(size.ws_row)};
}

Screen::Screen() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) Handle(signal, AskForTheEnd);
  Handle(SIGWINCH, WakeUp);
  if (tcgetattr(STDIN_FILENO, &before_) == 0) {
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  }
  WriteAll("\x1b[?1049h\x1b[?25l\x1b[?7l");
}

Screen::~Screen() {
  WriteAll("\x1b[?7h\x1b[?25h\x1b[?1049l");
  tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

void Screen::Show(const std::string& frame) {
  std::string out = "\x1b[H";
  for (const char c : frame) out += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
  if (out.ends_with('\n')) out.pop_back();  // the last line must not scroll the screen
  WriteAll(out + "\x1b[J");
}

char Screen::Wait(std::chrono::milliseconds patience) {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  const int ready = end_asked != 0 ? 0 : poll(&input, 1, static_cast<int>(patience.count()));
  if (end_asked != 0) return 'q';
  if (ready <= 0) return 0;
  char key = 0;
  return read(STDIN_FILENO, &key, 1) == 1 ? key : 'q';
}

}  // namespace loramux
