#include "tools/command_line/command_line.h"

#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/command_line/reference.h"

namespace loramux::command_line_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Values {
  std::string model, level = "info";
  int threads = 3;
  bool eager = false;
  std::optional<bool> prefix;
  std::chrono::milliseconds idle{75'000};
  std::vector<std::string> names;
  std::vector<std::int64_t> ranks;
  std::optional<std::int64_t> chunk;
};

class CommandLineTest : public testing::Test {
 protected:
  CommandLineTest() : program_{.name = "loramux", .summary = "test", .version = "1"} {
    Command command{.name = "serve", .summary = "Serve"};
    CommandLine& line = command.line;
    line.ReadConfiguration();
    line.Add({.names = "model", .target = &values_.model, .unit = "DIR", .help = "Model", .required = true});
    line.Add({.names = "--level", .target = &values_.level, .help = "Level", .choices = {"info", "warn"}});
    line.Add({.names = "-t,--threads", .target = &values_.threads, .unit = "N", .help = "Threads", .range = {{1, 8}}});
    line.Add({.names = "--eager", .target = &values_.eager, .help = "Eager"});
    line.Add({.names = "--prefix,!--no-prefix", .target = &values_.prefix, .help = "Prefix", .default_text = "on"});
    line.Add({.names = "--idle", .target = &values_.idle, .unit = "SECONDS", .help = "Idle | time"});
    line.Add({.names = "--name", .target = &values_.names, .unit = "NAME", .help = "Name"});
    line.Add({.names = "--ranks", .target = &values_.ranks, .help = "Ranks", .comma_list = true});
    line.Add({.names = "--chunk", .target = &values_.chunk, .help = "Chunk", .default_text = "the preset's"});
    command.run = [this] { return ++runs_, 7; };
    program_.commands.push_back(std::move(command));
    program_.absent.emplace_back("bench", "build it with everything");
  }
  ~CommandLineTest() override {
    for (const char* name : {"LORAMUX_THREADS", "LORAMUX_LEVEL", "LORAMUX_EAGER", "LORAMUX_CONFIG"}) unsetenv(name);
  }

  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "loramux");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    testing::internal::CaptureStderr();
    const int status = RunProgram(program_, static_cast<int>(argv.size()), argv.data());
    error_ = testing::internal::GetCapturedStderr();
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

TEST_F(CommandLineTest, WhatIsNotGivenKeepsItsDefault) {
  EXPECT_EQ(Run({"serve", "m"}), 7);
  EXPECT_EQ(values_.threads, 3);
  EXPECT_FALSE(values_.prefix.has_value());
  EXPECT_FALSE(values_.chunk.has_value());
  EXPECT_EQ(values_.idle.count(), 75'000);
}

TEST_F(CommandLineTest, RefusesWhatIsNotValid) {
  EXPECT_NE(Run({"serve"}), 0);
  EXPECT_THAT(error_, HasSubstr("model"));
  EXPECT_NE(Run({"serve", "m", "--threads", "9"}), 0);
  EXPECT_THAT(error_, HasSubstr("--threads"));
  EXPECT_NE(Run({"serve", "m", "--level", "loud"}), 0);
  EXPECT_NE(Run({"serve", "m", "--idle", "soon"}), 0);
  EXPECT_NE(Run({}), 0);
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
  EXPECT_NE(Run({"bench", "--rate", "3"}), 0);
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
