// The output file of an offline batch, which a later run continues.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/result.h"

namespace loramux {

// Not thread-safe.
class BatchOutput {
 public:
  // Opens the file for more lines, or creates it. A last line that is not whole is cut off: a run ended while it was
  // written. A device or a pipe is only written to. Errors: the file cannot be used, or holds a line that is no output
  // of a batch.
  static Result<std::unique_ptr<BatchOutput>> Open(const std::string& path);
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  // True if the file has a line with this key (BatchResult::key).
  bool Has(const std::string& key) const { return keys_.contains(key); }
  // The lines that the file had when it was opened, and how many of them say that a request failed.
  std::int64_t lines_before() const { return lines_before_; }
  std::int64_t failed_before() const { return failed_before_; }

  // Writes a line, which holds its own end, and hands it to the system. Error: the disk.
  Status Write(const std::string& key, std::string_view line);
  // Writes everything to the disk.
  Status Close();

 private:
  BatchOutput(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}
  Status ReadLines();
  Status Failed(std::string_view what) const;

  std::FILE* file_;  // null once closed
  const std::string path_;
  std::unordered_set<std::string> keys_;
  std::int64_t lines_before_ = 0, failed_before_ = 0;
};

}  // namespace loramux
