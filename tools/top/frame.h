// One frame of `loramux top`, as text for a terminal or a pipe.
#pragma once

#include <string>

#include "tools/top/server_view.h"

namespace loramux {

struct FrameOptions {
  int columns = 80, rows = 0;  // rows 0: as many as there are adapters
  bool color = false;
  AdapterOrder order = AdapterOrder::kTokens;
  std::string address;  // address of the server
  std::string problem;  // in place of the line of keys: why the figures are old
  bool keys = false;    // the last line explains the keys
};

// The frame: lines of at most `columns` characters, and at most `rows` lines, each with a line end. Without color it
// holds no control character. Names of the server cannot steer the terminal.
std::string DrawFrame(ServerFigures view, const FrameOptions& options);

}  // namespace loramux
