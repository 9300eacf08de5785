#include "runtime/history_keeper.h"

#include <utility>

#include "base/log.h"

namespace loramux {

HistoryKeeper::HistoryKeeper(FileSystem* files, std::filesystem::path file, HistoryPredictor* predictor,
                             std::chrono::milliseconds interval)
    : files_(files), file_(std::move(file)), predictor_(predictor), interval_(interval) {
  Load();
  thread_ = std::thread([this] { Run(); });
}

HistoryKeeper::~HistoryKeeper() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  thread_.join();
  Save();
}

void HistoryKeeper::Load() {
  auto bytes = files_->Read(file_);
  if (!bytes.ok() && bytes.error().code == ErrorCode::kNotFound) return;
  const Status restored = bytes.ok() ? predictor_->Restore(*bytes) : Status(bytes.error());
  if (restored.ok()) {
    written_ = std::move(*bytes);
    spdlog::info("restored the output lengths of {} adapters", predictor_->adapters());
  } else {
    spdlog::warn("{}: ignored, so output lengths are learned from the start: {}", file_.string(),
                 restored.error().message);
  }
}

void HistoryKeeper::Save() {
  std::string bytes = predictor_->Serialise();
  if (bytes == written_) return;
  const Status saved = ReplaceFile(*files_, file_, bytes);
  if (saved.ok()) {
    written_ = std::move(bytes);
  } else {
    spdlog::warn("output lengths are not saved: {}", saved.error().message);
  }
}

void HistoryKeeper::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, interval_, [this] { return stop_; })) {
    lock.unlock();
    Save();
    lock.lock();
  }
}

}  // namespace loramux
