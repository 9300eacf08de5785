#include "http/activity.h"

#include "base/check.h"

namespace loramux {

bool HttpActivity::Begin() {
  const std::lock_guard lock(mutex_);
  if (draining_) return false;
  ++running_;
  return true;
}

void HttpActivity::End() {
  const std::lock_guard lock(mutex_);
  CHECK_GT(running_, 0);
  if (--running_ == 0) idle_.notify_all();
}

void HttpActivity::StartDraining() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  report_.in_flight = running_;
}

bool HttpActivity::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

bool HttpActivity::WaitUntilIdle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, timeout, [this] { return running_ == 0; });
}

void HttpActivity::AddDropped(std::string request) {
  const std::lock_guard lock(mutex_);
  report_.dropped.push_back(std::move(request));
}

DrainReport HttpActivity::Report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

bool HttpActivity::TakeBodyBytes(const std::string& address, std::size_t bytes) {
  if (bytes == 0) return true;
  const std::lock_guard lock(mutex_);
  if (bytes > max_body_bytes_ - body_bytes_) return false;
  const auto held = body_bytes_by_address_.find(address);
  const std::size_t before = held == body_bytes_by_address_.end() ? 0 : held->second;
  if (max_body_bytes_per_address_ > 0 && before + bytes > max_body_bytes_per_address_) return false;
  body_bytes_by_address_[address] = before + bytes;
  body_bytes_ += bytes;
  return true;
}

void HttpActivity::ReturnBodyBytes(const std::string& address, std::size_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  const auto held = body_bytes_by_address_.find(address);
  CHECK(held != body_bytes_by_address_.end() && held->second >= bytes);
  held->second -= bytes;
  if (held->second == 0) body_bytes_by_address_.erase(held);
  body_bytes_ -= bytes;
}

}  // namespace loramux
