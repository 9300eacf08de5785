#include "loadgen/tasks.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/text_file.h"

namespace loramux::load {
namespace {

Result<Task> LoadTask(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path.string()));
  Task task{.name = path.stem().string()};
  std::istringstream lines(text);
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty()) continue;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const bool good = !JsonTextProblem(line) && json.is_object() && json.contains("prompt") &&
                      json["prompt"].is_string() && json.contains("answer") && json["answer"].is_string();
    if (!good) {
      return InvalidArgument(
          fmt::format("{}, line {}: expected an object with the strings prompt and answer, found '{}'", path.string(),
                      number, line.substr(0, 80)));
    }
    task.questions.push_back({json["prompt"].get<std::string>(), json["answer"].get<std::string>()});
  }
  if (task.questions.empty()) return InvalidArgument(fmt::format("{}: no questions", path.string()));
  return task;
}

}  // namespace

Result<std::vector<Task>> LoadTasks(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".jsonl") paths.push_back(entry.path());
  }
  if (error) return IoError(fmt::format("--tasks: cannot list {}: {}", folder, error.message()));
  if (paths.empty()) return InvalidArgument(fmt::format("--tasks: {} has no *.jsonl files", folder));
  std::sort(paths.begin(), paths.end());
  std::vector<Task> tasks;
  for (const auto& path : paths) {
    ASSIGN_OR_RETURN(Task task, LoadTask(path));
    tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace loramux::load
