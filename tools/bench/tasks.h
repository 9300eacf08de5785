// Questions with exactly one right answer, so that a run can tell whether it was the right adapter that answered.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace loramux::load {

struct Question {
  std::string prompt, answer;
};

struct Task {
  std::string name;  // the file's name without .jsonl: the adapter to ask; "base" stands for the base model
  std::vector<Question> questions;
};

// Every *.jsonl of a folder, ascending by name; lines {"prompt": ..., "answer": ...}. Errors name file and line.
Result<std::vector<Task>> LoadTasks(const std::string& folder);

}  // namespace loramux::load
