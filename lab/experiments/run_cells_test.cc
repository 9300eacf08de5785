#include "lab/experiments/run_cells.h"

#include <array>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text_file.h"
#include "base/wait_until_for_test.h"
#include "formats/test_files.h"

namespace loramux::run_cells_test {
namespace {

namespace fs = std::filesystem;

// The experiments of these tests note in data_dir that they ran, and what they find there decides what they do.
std::size_t RunsIn(const std::string& folder) {
  std::size_t runs = 0;
  for (const auto& entry : fs::directory_iterator(folder)) runs += entry.path().filename().string().starts_with("ran-");
  return runs;
}

Result<ExperimentResult> Run(ExperimentContext& context, const char* id) {
  const std::string mark = fmt::format("{}/ran-{}-{}-{}", context.data_dir, id, context.seed, getpid());
  RETURN_IF_ERROR(WriteTextFile(mark, ""));
  const auto asked = [&](const char* what) {
    return fs::exists(fmt::format("{}/{}-{}-{}", context.data_dir, what, id, context.seed));
  };
  if (asked("fail")) return InvalidArgument("as asked", "");
  while (asked("hang")) usleep(10'000);
  ExperimentResult result{.setting = id};
  result.comparison.push_back(ChangeRow(id, "what", -0.2, 0.1 * static_cast<double>(context.seed)));
  return result;
}

constexpr std::array kExperiments = std::to_array<Experiment>(
    {{"a", "a", "A", "none", [](ExperimentContext& context) { return Run(context, "a"); }},
     {"b", "b", "B", "none", [](ExperimentContext& context) { return Run(context, "b"); }},
     {"m", "m", "M", "none", [](ExperimentContext& context) { return Run(context, "m"); }, "its rows are measured"}});

struct Folder {
  TempFolder files;
  ExperimentContext context{.data_dir = files.path().string(), .seeds = 2, .threads = 2};
  std::vector<ExperimentCell> cells = CellsToRun(kExperiments, context);
  KeptCells Kept(std::string digest = "one") const { return KeptCells(context.data_dir + "/cells", std::move(digest)); }
};

TEST(Cells, AreAllExperimentsSeedBySeed) {
  const Folder w;
  std::string names;
  for (const ExperimentCell& cell : w.cells) names += fmt::format("{}{} ", cell.experiment->id, cell.seed);
  EXPECT_EQ(names, "a1 b1 m1 a2 b2 ");  // what is measured runs once
}

TEST(Cells, RunOnceForAProgramAndItsSettings) {
  Folder w;
  ASSERT_TRUE(RunCells(w.cells, w.context, w.Kept()).ok());
  EXPECT_EQ(RunsIn(w.context.data_dir), 5u);
  const auto kept = w.Kept().Find(kExperiments[1], 2);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->setting, "b");
  EXPECT_DOUBLE_EQ(kept->comparison.front().numbers.front(), 1.2);
  ASSERT_TRUE(RunCells(w.cells, w.context, w.Kept()).ok());
  EXPECT_EQ(RunsIn(w.context.data_dir), 5u);
  EXPECT_FALSE(w.Kept("two").Find(kExperiments[1], 2).has_value());
  EXPECT_TRUE(w.Kept("two").SecondsOf(kExperiments[1], 2).has_value());
  ASSERT_TRUE(RunCells(w.cells, w.context, w.Kept("two")).ok());
  EXPECT_EQ(RunsIn(w.context.data_dir), 10u);
}

TEST(Cells, GoOnAfterAnError) {
  Folder w;
  w.files.Write("fail-b-2", "");
  const Status failed = RunCells(w.cells, w.context, w.Kept());
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "b seed 2 failed");
  EXPECT_FALSE(w.Kept().Find(kExperiments[2], 1).has_value());  // nothing is begun after the error
  const std::size_t before = RunsIn(w.context.data_dir);
  fs::remove(w.files.path() / "fail-b-2");
  ASSERT_TRUE(RunCells(w.cells, w.context, w.Kept()).ok());
  EXPECT_EQ(RunsIn(w.context.data_dir), before + 2);  // b2 and m1
}

// A run that is killed outright leaves no process behind, and the next one does only what is missing.
TEST(Cells, GoOnAfterAKill) {
  Folder w;
  w.files.Write("hang-a-2", "");
  const pid_t run = fork();
  if (run == 0) _exit(RunCells(w.cells, w.context, w.Kept()).ok() ? 0 : 1);
  const auto kept = [&] {
    std::size_t count = 0;
    for (const ExperimentCell& cell : w.cells) count += w.Kept().Find(*cell.experiment, cell.seed).has_value();
    return count;
  };
  EXPECT_TRUE(WaitUntil([&] { return kept() == 3; }));  // a1, b1, b2: a2 hangs, and m1 waits until it is alone
  kill(run, SIGKILL);
  int status = 0;
  waitpid(run, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  fs::remove(w.files.path() / "hang-a-2");
  const std::size_t before = RunsIn(w.context.data_dir);
  ASSERT_TRUE(RunCells(w.cells, w.context, w.Kept()).ok());
  EXPECT_EQ(RunsIn(w.context.data_dir), before + 2);  // a2 and m1; an a2 that had stayed would have been kept before
  EXPECT_EQ(kept(), 5u);
}

TEST(Cells, AnUnfinishedFileIsNone) {
  Folder w;
  ASSERT_TRUE(w.Kept().Keep(kExperiments[0], 1, {}, 7).ok());
  EXPECT_TRUE(w.Kept().Find(kExperiments[0], 1).has_value());
  const std::string path = w.context.data_dir + "/cells/a.1.json";
  const std::string text = ReadTextFile(path).value();
  ASSERT_TRUE(WriteTextFile(path, text.substr(0, text.size() / 2)).ok());
  EXPECT_FALSE(w.Kept().Find(kExperiments[0], 1).has_value());
  ASSERT_TRUE(WriteTextFile(path, R"({"digest": "one", "seconds": 1, "result": {"setting": 3}})").ok());
  EXPECT_FALSE(w.Kept().Find(kExperiments[0], 1).has_value());
}

TEST(Cells, KeepEverything) {
  ExperimentResult result{.setting = "setting | with \"marks\"", .remarks = {"first", "second"}, .seeds = 3};
  result.comparison.push_back(WithEvents(ChangeRow("a", "what", -0.246, 1.0 / 3), 12, "squashes"));
  result.comparison.push_back(ValueRow("b", "value", 8.6, 9.123456789012345, {" RPS", 1}));
  result.comparison.back().numbers.push_back(std::numeric_limits<double>::infinity());
  result.comparison.back().numbers.push_back(std::nan(""));
  result.tables.push_back({"title", {"x", "y"}, {{"1", "2"}, {"3", "4"}}});
  result.plots.push_back({"name", "title", "<svg/>"});
  const ExperimentResult again = ParseResult(ResultAsJson(result)).value();
  EXPECT_EQ(ResultAsJson(again), ResultAsJson(result));
  EXPECT_EQ(again.comparison[0].numbers, result.comparison[0].numbers);
  EXPECT_EQ(again.comparison[0].events, 12);
  EXPECT_EQ(again.comparison[1].verdict, result.comparison[1].verdict);
  EXPECT_TRUE(std::isinf(again.comparison[1].numbers[1]) && std::isnan(again.comparison[1].numbers[2]));
  EXPECT_EQ(again.plots[0].svg, "<svg/>");
  EXPECT_FALSE(ParseResult("{}").ok());
  EXPECT_FALSE(ParseResult("no").ok());
}

// A result depends on the program, the scale and the recordings.
TEST(Cells, TheDigestFollowsTheSettings) {
  Folder w;
  fs::create_directories(w.files.path() / "traces/clients");
  w.files.Write("traces/clients/one.csv", "1");
  const std::string before = DigestOfRun(w.context).value();
  EXPECT_EQ(DigestOfRun(w.context).value(), before);
  w.files.Write("traces/clients/one.csv", "2");
  const std::string other = DigestOfRun(w.context).value();
  EXPECT_NE(other, before);
  w.context.scale = 0.5;
  EXPECT_NE(DigestOfRun(w.context).value(), other);
}

TEST(Cells, TellHowLongTheRestTakes) {
  const Folder w;  // a1 b1 m1 a2 b2
  const std::vector<std::size_t> left = {2, 3, 4};
  EXPECT_DOUBLE_EQ(SecondsLeft(w.cells, std::array{10.0, 20.0, -1.0, -1.0, -1.0}, left, 1), 15 + 10 + 20);
  EXPECT_DOUBLE_EQ(SecondsLeft(w.cells, std::array{10.0, 20.0, 4.0, -1.0, -1.0}, left, 2), (4 + 10 + 20) / 2.0);
  EXPECT_DOUBLE_EQ(SecondsLeft(w.cells, std::array{-1.0, -1.0, -1.0, -1.0, -1.0}, left, 1), 0);
}

}  // namespace
}  // namespace loramux::run_cells_test
