// Fits the part of a running engine's step times that the linear terms miss. The input are the steps of EngineSession
// runs; the linear terms come from single steps (fit.h).
#pragma once

#include <span>

#include "costs/performance_profile.h"
#include "profile/engine_session.h"

namespace loramux {

// Sets the factors and after_prefill of the model for `shape`, with which the engine ran, and the quality of both on a
// quarter of the steps, which the fit does not use. Also sets between_steps and submit_latency of both shapes, and the
// pace. Leaves the factors of the other shape alone. Ignores steps that waited for a transfer or copied pages.
// REQUIRES: the runs have steps, and the first request of every run found the engine idle.
void FitEngine(std::span<const EngineRun> runs, LoraCostShape shape, PerformanceProfile& profile);

}  // namespace loramux
