#include "cluster/own_dispatches.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loramux {

void OwnDispatches::Send(std::uint64_t attempt, const RouteRequest& request, TimeNs now) {
  sent_.push_back({.at = now, .request = request, .attempt = attempt});
}

const OwnDispatch* OwnDispatches::FindSent(std::uint64_t attempt) const {
  const auto found = std::ranges::lower_bound(sent_, attempt, {}, &OwnDispatch::attempt);
  return found != sent_.end() && found->attempt == attempt ? &*found : nullptr;
}

TimeNs OwnDispatches::SentAt(std::uint64_t attempt) const {
  if (const OwnDispatch* const sent = FindSent(attempt)) return sent->at;
  const auto counted = counted_.find(attempt);
  CHECK(counted != counted_.end());
  return counted->second.at;
}

bool OwnDispatches::Answered(std::uint64_t attempt) {
  const OwnDispatch* const found = FindSent(attempt);
  const auto sent = found == nullptr ? sent_.end() : sent_.begin() + (found - sent_.data());
  if (sent == sent_.end()) {
    const auto counted = counted_.find(attempt);
    if (counted != counted_.end()) counted->second.answered = true;
    return false;
  }
  sent->answered = true;
  return true;
}

TimeNs OwnDispatches::End(std::uint64_t attempt, bool has_snapshot, TimeNs now) {
  const OwnDispatch* const found = FindSent(attempt);
  const auto sent = found == nullptr ? sent_.end() : sent_.begin() + (found - sent_.data());
  if (sent != sent_.end()) {
    const TimeNs at = sent->at;
    sent_.erase(sent);
    return at;
  }
  const auto counted = counted_.find(attempt);
  CHECK(counted != counted_.end());
  const TimeNs at = counted->second.at;
  if (has_snapshot) {
    ended_.push_back(std::move(counted->second));
    ended_.back().at = now;
  }
  counted_.erase(counted);
  return at;
}

void OwnDispatches::CountedAt(TimeNs as_of) {
  std::erase_if(ended_, [&](const OwnDispatch& dispatch) { return dispatch.at <= as_of; });
  const auto later = std::ranges::find_if(sent_, [&](const OwnDispatch& dispatch) { return dispatch.at > as_of; });
  for (auto sent = sent_.begin(); sent != later; ++sent) {
    sent->request.prefix = {};
    const std::uint64_t attempt = sent->attempt;
    counted_.emplace(attempt, std::move(*sent));
  }
  sent_.erase(sent_.begin(), later);
}

void OwnDispatches::CountAll() {
  ended_.clear();
  std::vector<OwnDispatch> all;
  all.reserve(sent_.size() + counted_.size());
  for (auto& [attempt, dispatch] : counted_) all.push_back(std::move(dispatch));
  for (OwnDispatch& dispatch : sent_) all.push_back(std::move(dispatch));
  counted_.clear();
  sent_ = std::move(all);
}

}  // namespace loramux
