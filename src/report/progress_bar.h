// A progress bar on stderr for work that takes long enough for a person to wonder.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/clock.h"

namespace loramux {

// Draws on a terminal only, at most once per percent or new note; elsewhere it prints nothing. Not thread-safe.
class ProgressBar {
 public:
  // Amounts are shown divided by `scale`, with `unit`.
  ProgressBar(std::string title, std::string unit, std::int64_t scale);
  void Update(std::int64_t done, std::int64_t total);
  // Text after the numbers, from the next Update on.
  void Note(std::string note);
  // Clears the line.
  void Finish();

 private:
  std::string title_, unit_, note_;
  std::int64_t scale_;
  std::int64_t last_percent_ = -1;  // as drawn; -1: draw in any case
  bool drawn_ = false;
  bool terminal_;
};

// The same for work whose share is known: with the time that is left, as soon as it can be told.
class TimedProgress {
 public:
  explicit TimedProgress(std::string title);
  // REQUIRES: share in [0, 1]. It may fall, when there is more to do than thought.
  void Update(double share);
  // What is being done now, before the time.
  void Note(std::string note) { note_ = std::move(note); }
  void Finish() { bar_.Finish(); }

 private:
  ProgressBar bar_;
  OsClock clock_;
  TimeNs begin_;
  std::string note_;
};

}  // namespace loramux
