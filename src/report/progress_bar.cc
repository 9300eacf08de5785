#include "report/progress_bar.h"

#include <cmath>
#include <cstdio>
#include <unistd.h>

namespace loramux {

ProgressBar::ProgressBar(std::string title, std::string unit, std::int64_t scale)
    : title_(std::move(title)), unit_(std::move(unit)), scale_(scale), terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressBar::Update(std::int64_t done, std::int64_t total) {
  if (!terminal_ || total <= 0) return;
  const std::int64_t percent = done * 100 / total;
  if (percent == last_percent_) return;
  last_percent_ = percent;
  drawn_ = true;
  const int width = note_.empty() ? 40 : 16;  // a note is long enough
  const int filled = static_cast<int>(percent * width / 100);
  std::fprintf(stderr, "\r%s [%.*s%*s] %3lld %% (%lld/%lld %s)%s%s\033[K", title_.c_str(), filled,
               "########################################", width - filled, "", static_cast<long long>(percent),
               static_cast<long long>(done / scale_), static_cast<long long>(total / scale_), unit_.c_str(),
               note_.empty() ? "" : " ", note_.c_str());
  std::fflush(stderr);
}

void ProgressBar::Note(std::string note) {
  if (note != note_) last_percent_ = -1;
  note_ = std::move(note);
}

void ProgressBar::Finish() {
  if (terminal_ && drawn_) std::fprintf(stderr, "\r\033[K");
}

TimedProgress::TimedProgress(std::string title) : bar_(std::move(title), "%", 1), begin_(clock_.Now()) {}

void TimedProgress::Update(double share) {
  constexpr double kTellsSomething = 0.02;  // share of the work
  constexpr TimeNs kLeast = kNsPerSecond;
  const TimeNs spent = clock_.Now() - begin_;
  std::string left = note_;
  if (share >= kTellsSomething && spent >= kLeast) {
    const double seconds = static_cast<double>(spent) / kNsPerSecond * (1 - share) / share;
    left += std::string(note_.empty() ? "" : ", ") + "about " + std::to_string(std::llround(seconds)) + " s left";
  }
  bar_.Note(std::move(left));
  bar_.Update(static_cast<std::int64_t>(100 * share), 100);
}

}  // namespace loramux
