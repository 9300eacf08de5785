// What the engine adds to its steps.
#pragma once

#include <memory>

#include "base/result.h"
#include "engine/runtime.h"

namespace loramux {

// Runs streams without adapters through the whole engine: seconds from the moment when it has a step's result to the moment
// when it submits the next step, median. Errors: those of Runtime::Create.
Result<double> SecondsBetweenSteps(std::unique_ptr<Model> model, RuntimeOptions options);

}  // namespace loramux
