// Persists what a HistoryPredictor has learned: reads the file at the start, writes it periodically and at the end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "base/file_system.h"
#include "schedule/predict/history_predictor.h"

namespace loramux {

// Has its own thread. A failure never stops the server: it is logged as a warning. After a failed read, the predictor
// starts empty; after a failed write, the file stays as it was.
class HistoryKeeper {
 public:
  // Reads `file` if it exists, then saves every `interval` (default: 5 minutes). `files` and `predictor` must outlive
  // it.
  HistoryKeeper(FileSystem* files, std::filesystem::path file, HistoryPredictor* predictor,
                std::chrono::milliseconds interval = std::chrono::minutes(5));
  ~HistoryKeeper();  // saves a last time
  HistoryKeeper(const HistoryKeeper&) = delete;
  HistoryKeeper& operator=(const HistoryKeeper&) = delete;

 private:
  void Load();
  void Save();
  void Run();

  FileSystem* const files_;
  const std::filesystem::path file_;
  HistoryPredictor* const predictor_;
  const std::chrono::milliseconds interval_;
  std::string written_;  // content of the file, as far as known
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace loramux
