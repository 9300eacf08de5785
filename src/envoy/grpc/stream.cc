#include "envoy/grpc/stream.h"

#include <utility>

#include "envoy/grpc/convert.h"

namespace loramux {

void OpenStreams::Add(ProcessStream* stream) {
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
}

void OpenStreams::Remove(ProcessStream* stream) {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
  if (closing_ && gpr_time_cmp(gpr_now(GPR_CLOCK_REALTIME), deadline_) >= 0) ++ended_late_;
}

void OpenStreams::CloseSettled(gpr_timespec deadline) {
  const std::lock_guard lock(mutex_);
  closing_ = true;
  deadline_ = deadline;
  for (ProcessStream* stream : streams_) stream->CloseIfSettled();
}

bool OpenStreams::closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

std::int64_t OpenStreams::ended_late() const {
  const std::lock_guard lock(mutex_);
  return ended_late_;
}

ProcessStream::ProcessStream(std::unique_ptr<ProxyExchange> exchange, OpenStreams& streams)
    : exchange_(std::move(exchange)), streams_(streams) {
  streams_.Add(this);
  const std::lock_guard lock(mutex_);
  WriteOrRead();
}

void ProcessStream::OnReadDone(bool ok) {
  const bool closing = streams_.closing();
  const std::lock_guard lock(mutex_);
  reading_ = false;
  if (finished_) return;
  if (!ok) return Close();  // the proxy ended the exchange
  replies_.clear();
  next_ = 0;
  ProxyMessage message = MessageOf(request_);
  request_.Clear();
  exchange_->Take(std::move(message), replies_);
  if (closing && replies_.empty() && exchange_->Settled()) return Close();
  WriteOrRead();
}

void ProcessStream::OnWriteDone(bool ok) {
  const bool closing = streams_.closing();
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  if (!ok) return Close();
  const bool all = next_ == replies_.size();
  const bool immediate = all && !replies_.empty() && replies_.back().part == ProxyPart::kImmediate;
  if (immediate || (all && closing && exchange_->Settled())) return Close();
  WriteOrRead();
}

void ProcessStream::OnDone() {
  streams_.Remove(this);
  delete this;
}

void ProcessStream::CloseIfSettled() {
  const std::lock_guard lock(mutex_);
  if (!finished_ && reading_ && exchange_->Settled()) Close();
}

void ProcessStream::WriteOrRead() {
  if (next_ < replies_.size()) {
    response_ = ResponseOf(replies_[next_++]);
    return StartWrite(&response_);
  }
  reading_ = true;
  StartRead(&request_);
}

void ProcessStream::Close() {
  finished_ = true;
  Finish(grpc::Status::OK);
}

}  // namespace loramux
