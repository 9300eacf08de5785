// What an adapter's head for classes makes of a hidden state.
#pragma once

#include <span>
#include <vector>

#include "formats/class_head.h"

namespace loramux {

// The product of the head's matrix and a hidden state [hidden_size]: a number for each class. REQUIRES: the head's
// weights were read.
std::vector<float> ClassNumbers(const ClassHead& head, std::span<const float> hidden);

// Makes of the numbers what the head's task says: probabilities that add up to 1 (softmax), or of each class by itself
// (the logistic function; always where there is one class), or themselves.
void ActivateClasses(ClassTask task, std::vector<float>& numbers);

}  // namespace loramux
