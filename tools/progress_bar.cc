#include "tools/progress_bar.h"

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
  constexpr int kWidth = 40;
  const int filled = static_cast<int>(percent * kWidth / 100);
  std::fprintf(stderr, "\r%s [%.*s%*s] %3lld %% (%lld/%lld %s)", title_.c_str(), filled,
               "########################################", kWidth - filled, "", static_cast<long long>(percent),
               static_cast<long long>(done / scale_), static_cast<long long>(total / scale_), unit_.c_str());
  std::fflush(stderr);
}

void ProgressBar::Finish() {
  if (terminal_ && last_percent_ >= 0) std::fprintf(stderr, "\r\033[K");
}

}  // namespace loramux
