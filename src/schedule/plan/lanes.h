// Admission by the quotas of lanes (Chameleon's algorithm 1), and opportunistic bypass (Chameleon 4.3.3).
#pragma once

#include <cstdint>

#include "schedule/heap.h"
#include "schedule/plan/admitter.h"
#include "schedule/plan/step_draft.h"

namespace loramux {

// Admits waiting requests lane by lane. Owns none of its arguments.
class Lanes {
 public:
  Lanes(StepDraft& draft, Admitter& admitter) : draft_(draft), admitter_(admitter) {}

  // In the first phase each lane uses its own quota. In the second phase lanes use the quotas left over by lanes in
  // which no request waits any longer, smallest requests first.
  void Admit();

 private:
  // The predicted end of a running request; time as in RunTimeOf.
  struct End {
    double time = 0;
    const Request* request = nullptr;
  };
  struct EndsBefore {
    bool operator()(const End& a, const End& b) const { return a.time < b.time; }
  };
  // Admits requests of the lane, from turn `first` on, while `tokens` last. Returns the first turn for which the quota
  // was too small, or kEmptied, or kBlocked.
  std::size_t AdmitFrom(std::size_t lane, std::size_t first, double& tokens);
  // Predicted time until the request ends: seconds with a performance model, else steps.
  double RunTimeOf(const Request& request) const;
  // Predicted seconds of a step in which all runners decode.
  double DecodeSeconds() const;
  // Sets time_until_room_ for the request, which memory has no room for.
  void EstimateTimeUntilRoom(const Request& request);
  // True if the request may overtake the one that memory has no room for.
  bool MayOvertake(const Request& request) const;
  // True if free memory has room for the request and for its adapter, which is not on the device.
  bool FitsBesideOthers(const Request& request) const;

  StepDraft& draft_;
  Admitter& admitter_;
  Heap<End, EndsBefore> ends_;  // of running requests, the earliest first
  double decode_seconds_ = 0;   // DecodeSeconds, with a performance model
  double time_until_room_ = 0;  // as in RunTimeOf
};

}  // namespace loramux
