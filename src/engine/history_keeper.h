// Keeps what a HistoryPredictor learned in a file: read at the start, written now and then and at the end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "base/file_system.h"
#include "schedule/history_predictor.h"

namespace loramux {

// A thread of its own. Nothing here fails the server: a file that cannot be read or written is a warning in the log,
// and the predictor begins with nothing, or the file stays as it was.
class HistoryKeeper {
 public:
  // Reads `file`, if there is one. `files` and `predictor` must outlive it.
  HistoryKeeper(FileSystem* files, std::filesystem::path file, HistoryPredictor* predictor,
                std::chrono::milliseconds interval = std::chrono::minutes(5));
  ~HistoryKeeper();  // writes it
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
  std::string written_;  // what the file holds, as far as known
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace loramux
