// A description of the machine that a result was measured on.
#pragma once

#include <fstream>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

namespace loramux {

// For example "Intel(R) Xeon(R) Processor, 2 processors, 8 GiB".
inline std::string Machine() {
  std::string model = "unknown processor", line;
  for (std::ifstream file("/proc/cpuinfo"); std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
    model = line.substr(colon + 2);
    break;
  }
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 30);
  return fmt::format("{}, {} processors, {:.0f} GiB", model, std::thread::hardware_concurrency(), memory);
}

}  // namespace loramux
