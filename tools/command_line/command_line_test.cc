#include "tools/command_line/command_line.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "tools/command_line/help.h"
#include "tools/command_line/reference.h"
#include "tools/command_line/suggest.h"

namespace loramux::command_line_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr ForeignFlag kForeign[] = {
    {"Other", "--workers,-w", ForeignMeaning::kAlias, "--threads", ForeignValues::kOne},
    {"Other", "--quiet", ForeignMeaning::kAlias, "--level=warn"},
    {"Other", "--no-prefix-cache", ForeignMeaning::kAlias, "--prefix=false"},
    {"Other", "--modern", ForeignMeaning::kHolds, "it is"},
    {"Other", "--tune", ForeignMeaning::kIgnored, "there is nothing to tune", ForeignValues::kOne, "auto|fast"},
    {"Other", "--shards,--sh", ForeignMeaning::kRefused, "there is one process", ForeignValues::kOne, "1"},
};

struct Values {
  std::string model, level = "info";
  int threads = 3;
  bool eager = false;
  std::optional<bool> prefix;
  std::chrono::milliseconds idle{75'000};
  std::uint64_t body = 16 << 20;
  std::int64_t patience = kNsPerSecond / 2;
  std::vector<std::string> names;
  std::vector<std::int64_t> ranks;
  std::optional<std::int64_t> chunk;
  std::vector<std::string> keys;
  std::vector<std::string> warnings;
};

class CommandLineTest : public testing::Test {
 protected:
  CommandLineTest() : program_{.name = "loramux", .summary = "test", .version = "1"} {
    Command command{.name = "serve", .summary = "Serve"};
    CommandLine& line = command.line;
    line.ReadConfiguration(&values_.warnings);
    line.TakeForeign(kForeign);
    line.Add(
        {.names = "model", .target = &values_.model, .unit = "DIR", .help = "Model", .required = true, .common = true});
    line.Add({.names = "--level", .target = &values_.level, .help = "Level", .choices = {"info", "warn"}});
    line.Add({.names = "-t,--threads", .target = &values_.threads, .unit = "N", .help = "Threads", .range = {{1, 8}}});
    line.Add({.names = "--eager", .target = &values_.eager, .help = "Eager"});
    line.Add({.names = "--prefix,!--no-prefix", .target = &values_.prefix, .help = "Prefix", .default_text = "on"});
    line.Add({.names = "--idle", .target = &values_.idle, .unit = "SECONDS", .help = "Idle | time"});
    line.Add({.names = "--body", .target = &values_.body, .form = FlagForm::kBytes, .unit = "BYTES", .help = "Body"});
    line.Add({.names = "--patience",
              .target = &values_.patience,
              .form = FlagForm::kSeconds,
              .unit = "SECONDS",
              .help = "Patience",
              .range = {{0.0, 60.0}}});
    line.Add({.names = "--name", .target = &values_.names, .unit = "NAME", .help = "Name"});
    line.Add({.names = "--ranks", .target = &values_.ranks, .help = "Ranks", .comma_list = true});
    line.Add({.names = "--chunk", .target = &values_.chunk, .help = "Chunk", .default_text = "the preset's"});
    line.Add({.names = "--api-key",
              .target = &values_.keys,
              .unit = "KEY",
              .help = "Key. More of it",
              .common = true,
              .secret = true,
              .environment = {"OTHER_KEY"}});
    command.run = [this] { return ++runs_, 7; };
    program_.commands.push_back(std::move(command));
    program_.absent.emplace_back("bench", "build it with everything");
  }
  ~CommandLineTest() override {
    for (const char* name : {"LORAMUX_THREADS", "LORAMUX_LEVEL", "LORAMUX_EAGER", "LORAMUX_CONFIG", "LORAMUX_API_KEY",
                             "OTHER_KEY", "LORAMUX_THREAD", "LORAMUX_SERVICE_HOST"}) {
      unsetenv(name);
    }
  }

  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "loramux");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    testing::internal::CaptureStderr();
    const int status = RunProgram(program_, static_cast<int>(argv.size()), argv.data());
    error_ = testing::internal::GetCapturedStderr();
    arguments_ = arguments;
    return status;
  }

  std::string File(const std::string& text) {
    const std::string path = testing::TempDir() + "/command_line_test.toml";
    std::ofstream(path) << text;
    return path;
  }

  Values values_;
  Program program_;
  int runs_ = 0;
  std::string error_;
  std::vector<std::string> arguments_;  // as the program left them
};

TEST_F(CommandLineTest, ReadsEveryKindOfFlag) {
  EXPECT_EQ(Run({"serve", "m", "-t", "5", "--eager", "--no-prefix", "--idle", "1.5", "--name", "a", "b", "--ranks",
                 "8,16", "--chunk", "64"}),
            7);
  EXPECT_EQ(values_.model, "m");
  EXPECT_EQ(values_.threads, 5);
  EXPECT_TRUE(values_.eager);
  EXPECT_EQ(values_.prefix, false);
  EXPECT_EQ(values_.idle.count(), 1500);
  EXPECT_THAT(values_.names, ElementsAre("a", "b"));
  EXPECT_THAT(values_.ranks, ElementsAre(8, 16));
  EXPECT_EQ(values_.chunk, 64);
}

TEST_F(CommandLineTest, AmountsHaveAFormOfTheirOwn) {
  EXPECT_EQ(Run({"serve", "m", "--body", "1.5MiB", "--patience", "0.25"}), 7);
  EXPECT_EQ(values_.body, 3u << 19);
  EXPECT_EQ(values_.patience, kNsPerSecond / 4);
  EXPECT_EQ(Run({"serve", "m", "--body", "much"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("loramux serve: --body: expected an amount of memory such as 2GiB"));
  EXPECT_EQ(Run({"serve", "m", "--patience", "61"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--patience"));
  const std::string file = File("body = \"much\"\n");
  EXPECT_EQ(Run({"serve", "m", "--config", file}), kExitUsage);
  EXPECT_THAT(error_, AllOf(HasSubstr(file), HasSubstr("--body: expected an amount")));
  const std::string page = MarkdownReference(program_);
  EXPECT_THAT(page, HasSubstr("| `--body` | BYTES | 16MiB |"));
  EXPECT_THAT(page, HasSubstr("| `--patience` | SECONDS | 0.5 |"));
}

TEST_F(CommandLineTest, AMistypedFlagIsNamedWithTheNearestOneBeforeAnyOtherError) {
  EXPECT_EQ(Run({"serve", "--thread", "9"}), kExitUsage);  // neither the model nor the range is spoken of
  EXPECT_THAT(error_, HasSubstr("loramux serve: unknown flag --thread. Did you mean --threads?"));
  EXPECT_EQ(Run({"serve", "m", "--worker=2"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("Did you mean --workers?"));
  EXPECT_EQ(Run({"serve", "m", "--zzzzzz"}), kExitUsage);
  EXPECT_THAT(error_, Not(HasSubstr("Did you mean")));
  EXPECT_EQ(Run({"srve", "m"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("unknown command 'srve'. Did you mean serve?"));
  EXPECT_EQ(runs_, 0);
}

TEST_F(CommandLineTest, UnderscoresAndSingleDashesOfOtherServersAreRead) {
  EXPECT_EQ(Run({"serve", "m", "--no_prefix", "-sh", "1", "--api_key=abc"}), 7);
  EXPECT_EQ(values_.prefix, false);
  EXPECT_THAT(values_.keys, ElementsAre("abc"));
}

TEST_F(CommandLineTest, FlagsOfOtherServersAreServedIgnoredOrRefused) {
  EXPECT_EQ(Run({"serve", "m", "-w", "5", "--quiet", "--no-prefix-cache", "--modern", "--tune", "slow"}), 7);
  EXPECT_EQ(values_.threads, 5);
  EXPECT_EQ(values_.level, "warn");
  EXPECT_EQ(values_.prefix, false);
  EXPECT_THAT(values_.warnings, ElementsAre("--tune (a flag of Other): there is nothing to tune"));
  EXPECT_EQ(Run({"serve", "m", "--shards", "2"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--shards (a flag of Other): there is one process"));
}

TEST_F(CommandLineTest, AForeignFlagThatAsksForWhatHoldsIsNoWarning) {
  EXPECT_EQ(Run({"serve", "m", "--shards", "1", "--tune", "auto"}), 7);
  EXPECT_THAT(values_.warnings, IsEmpty());
}

TEST_F(CommandLineTest, TheFlagItselfWinsOverASwitchThatStandsForIt) {
  EXPECT_EQ(Run({"serve", "m", "--quiet", "--level", "info"}), 7);
  EXPECT_EQ(values_.level, "info");
  EXPECT_EQ(Run({"serve", "m", "--config", File("level = \"info\"\n"), "--quiet"}), 7);
  EXPECT_EQ(values_.level, "warn");  // the command line wins over the file
}

TEST_F(CommandLineTest, FlagsOfOtherServersMayStandInTheFile) {
  EXPECT_EQ(Run({"serve", "m", "--config", File("workers = 4\nquiet = true\ntune = \"slow\"\n")}), 7);
  EXPECT_EQ(values_.threads, 4);
  EXPECT_EQ(values_.level, "warn");
  EXPECT_EQ(values_.warnings.size(), 1u);
}

TEST_F(CommandLineTest, SecretsLeaveTheArguments) {
  EXPECT_EQ(Run({"serve", "m", "--api-key", "first", "second", "--threads", "2"}), 7);
  EXPECT_THAT(values_.keys, ElementsAre("first", "second"));
  EXPECT_THAT(arguments_, ElementsAre("loramux", "serve", "m", "--api-key", "*****", "******", "--threads", "2"));
  EXPECT_EQ(Run({"serve", "m", "--api_key=first"}), 7);
  EXPECT_EQ(arguments_.back(), "--api_key=*****");
}

TEST_F(CommandLineTest, AFlagMayHaveFurtherVariables) {
  setenv("OTHER_KEY", "theirs", 1);
  EXPECT_EQ(Run({"serve", "m"}), 7);
  EXPECT_THAT(values_.keys, ElementsAre("theirs"));
  setenv("LORAMUX_API_KEY", "ours", 1);
  EXPECT_EQ(Run({"serve", "m"}), 7);
  EXPECT_THAT(values_.keys, ElementsAre("ours"));
}

TEST_F(CommandLineTest, AMistypedVariableIsAWarning) {
  setenv("LORAMUX_THREAD", "7", 1);
  setenv("LORAMUX_SERVICE_HOST", "10.0.0.1", 1);  // Kubernetes sets this one
  EXPECT_EQ(Run({"serve", "m"}), 7);
  EXPECT_THAT(values_.warnings,
              ElementsAre("the environment variable LORAMUX_THREAD sets no flag. Did you mean LORAMUX_THREADS?"));
}

TEST_F(CommandLineTest, HelpShowsTheCommonFlagsAndHelpAllEveryOne) {
  const std::string brief = ShortHelp("loramux ", program_.commands[0], 60),
                    full = FullHelp("loramux ", program_.commands[0], 60);
  EXPECT_THAT(brief, HasSubstr("--api-key KEY..."));
  EXPECT_THAT(brief, Not(HasSubstr("--threads")));
  EXPECT_THAT(brief, Not(HasSubstr("More of it")));
  EXPECT_THAT(full, HasSubstr("--threads"));
  EXPECT_THAT(full, HasSubstr("More of it"));
  for (const std::string& text : {brief, full}) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 60u) << line;
  }
}

TEST_F(CommandLineTest, AnErrorOfAFlagIsAnErrorOfTheCommandLine) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(FailCommand("serve", InvalidArgument("--cache: expected lru", "--cache")), kExitUsage);
  EXPECT_EQ(FailCommand("serve", IoError("cannot listen on port 1", "port")), kExitFailure);
  EXPECT_EQ(FailCommand("serve", NotFound("--adapter-dir: not there", "--adapter-dir")), kExitFailure);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("command_line_test serve: --cache: expected lru\n"));
}

TEST(Suggest, TheDistanceCountsSwapsOfNeighboursOnce) {
  EXPECT_EQ(EditDistance("port", "prot"), 1u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  const std::vector<std::string> known{"--port", "--host", "--max-loras"};
  EXPECT_EQ(NearestName("--max-lora", known), "--max-loras");
  EXPECT_EQ(NearestName("--unrelated-thing", known), "");
  EXPECT_EQ(NearestName(std::string(1'000'000, 'x'), known), "");
}

TEST_F(CommandLineTest, WhatIsNotGivenKeepsItsDefault) {
  EXPECT_EQ(Run({"serve", "m"}), 7);
  EXPECT_EQ(values_.threads, 3);
  EXPECT_FALSE(values_.prefix.has_value());
  EXPECT_FALSE(values_.chunk.has_value());
  EXPECT_EQ(values_.idle.count(), 75'000);
}

TEST_F(CommandLineTest, RefusesWhatIsNotValid) {
  EXPECT_EQ(Run({"serve"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("model"));
  EXPECT_EQ(Run({"serve", "m", "--threads", "9"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--threads"));
  EXPECT_EQ(Run({"serve", "m", "--level", "loud"}), kExitUsage);
  EXPECT_EQ(Run({"serve", "m", "--idle", "soon"}), kExitUsage);
  EXPECT_EQ(Run({}), kExitUsage);
  EXPECT_EQ(runs_, 0);
}

TEST_F(CommandLineTest, TheCommandLineWinsOverTheEnvironmentAndThatOverTheFile) {
  const std::string file = File("threads = 6\nlevel = \"warn\"\neager = true\nidle = 2\n");
  setenv("LORAMUX_THREADS", "7", 1);
  setenv("LORAMUX_CONFIG", file.c_str(), 1);
  EXPECT_EQ(Run({"serve", "m", "--level", "info"}), 7);
  EXPECT_EQ(values_.level, "info");  // the command line
  EXPECT_EQ(values_.threads, 7);     // the environment
  EXPECT_TRUE(values_.eager);        // the file
  EXPECT_EQ(values_.idle.count(), 2000);
  EXPECT_EQ(Run({"serve", "m", "-t", "2"}), 7);
  EXPECT_EQ(values_.threads, 2);
}

TEST_F(CommandLineTest, ASwitchInTheEnvironmentIsTrueOrFalse) {
  setenv("LORAMUX_EAGER", "false", 1);
  EXPECT_EQ(Run({"serve", "m"}), 7);
  EXPECT_FALSE(values_.eager);
  setenv("LORAMUX_EAGER", "true", 1);
  EXPECT_EQ(Run({"serve", "m"}), 7);
  EXPECT_TRUE(values_.eager);
}

TEST_F(CommandLineTest, AnInvalidValueInTheEnvironmentIsRefused) {
  setenv("LORAMUX_THREADS", "many", 1);
  EXPECT_NE(Run({"serve", "m"}), 0);
  EXPECT_THAT(error_, HasSubstr("threads"));
}

TEST_F(CommandLineTest, ACommandThatIsNotBuiltInSaysWhatToDo) {
  EXPECT_EQ(Run({"bench", "--rate", "3"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("loramux bench: build it with everything"));
}

TEST_F(CommandLineTest, TheReferenceNamesEveryFlagWithItsDefaultEnvironmentAndKey) {
  const std::string page = MarkdownReference(program_);
  EXPECT_THAT(page, HasSubstr("| `-t`, `--threads` | N | 3 | Threads (1 to 8) | `LORAMUX_THREADS` | `threads` |"));
  EXPECT_THAT(page, HasSubstr("| `--prefix`, `--no-prefix` | switch | on | Prefix | `LORAMUX_PREFIX` | `prefix` |"));
  EXPECT_THAT(page, HasSubstr("| `--idle` | SECONDS | 75 | Idle \\| time |"));
  EXPECT_THAT(page, HasSubstr("| `model` | DIR | required |"));
  EXPECT_THAT(page, HasSubstr("| `--name` | NAME ... | none |"));
}

TEST_F(CommandLineTest, ManualPageAndCompletionsNameEveryFlag) {
  for (const std::string& text : {BashCompletion(program_), ZshCompletion(program_), FishCompletion(program_)}) {
    for (const Flag& flag : program_.commands[0].line.flags()) {
      if (IsPositional(flag)) continue;
      EXPECT_THAT(text, HasSubstr(LongName(flag).substr(2)));
    }
  }
  EXPECT_THAT(ManualPage(program_), HasSubstr("\\-\\-threads"));
  EXPECT_THAT(ManualPage(program_), HasSubstr("Default: 75."));
}

}  // namespace
}  // namespace loramux::command_line_test
