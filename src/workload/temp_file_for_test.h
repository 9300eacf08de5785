// Files for tests of readers.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace loramux {

// A file in a directory of its own. Both go at destruction.
class TempFile {
 public:
  TempFile(const std::string& name, const std::string& text)
      : directory_(std::filesystem::path(testing::TempDir()) / ("workload_" + std::to_string(counter_++))) {
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ / name) << text;
    path_ = directory_ / name;
  }
  ~TempFile() { std::filesystem::remove_all(directory_); }
  std::string path() const { return path_.string(); }
  std::string directory() const { return directory_.string(); }

 private:
  static inline int counter_ = 0;
  std::filesystem::path directory_, path_;
};

}  // namespace loramux
