// What the linear terms miss of a running engine: fitted to the steps of EngineSession's runs, on top of a model of
// steps that were measured one by one (fit.h).
#pragma once

#include <span>

#include "schedule/performance_profile.h"
#include "tools/profile/engine_session.h"

namespace loramux {

// Fills in the model's factors and after_prefill for `shape`, which the engine ran with, and their qualities on a
// quarter of the steps, which the fit does not see; between_steps and submit_latency of both shapes, and the pace.
// Factors of the other shape are left as they are. Steps that waited for a transfer or copied pages are not looked at.
// REQUIRES: the runs had steps, of every run the first has begun on an engine that slept.
void FitEngine(std::span<const EngineRun> runs, LoraCostShape shape, PerformanceProfile& profile);

}  // namespace loramux
