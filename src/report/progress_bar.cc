#include "report/progress_bar.h"

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

}  // namespace loramux
