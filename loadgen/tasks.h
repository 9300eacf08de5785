// Questions with exactly one correct answer, so that a run can check that the right adapter answered.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace loramux::load {

// A question and its answer.
struct Question {
  std::string prompt, answer;
};

// The questions for one adapter.
struct Task {
  std::string name;  // file name without .jsonl: the adapter to ask; "base" is the base model
  std::vector<Question> questions;
};

// Reads every *.jsonl of a folder, sorted by name, with lines {"prompt": ..., "answer": ...}. Errors name file and
// line.
Result<std::vector<Task>> LoadTasks(const std::string& folder);

}  // namespace loramux::load
