#include "adapter/allowed_roots.h"

#include <climits>
#include <fstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "formats/file.h"

namespace loramux::allowed_roots_test {
namespace {

namespace fs = std::filesystem;

class AllowedRootsTest : public testing::Test {
 protected:
  AllowedRootsTest() {
    std::string pattern = (fs::temp_directory_path() / "loramux_roots_XXXXXX").string();
    top_ = fs::canonical(::mkdtemp(pattern.data()));
    for (const char* name : {"allowed/a", "allowed2/b", "outside/c"}) fs::create_directories(top_ / name);
    std::ofstream(top_ / "outside/secret") << "secret";
    fs::create_directory_symlink(top_ / "outside/c", top_ / "allowed/leaves");
    fs::create_directory_symlink(top_ / "allowed/a", top_ / "allowed/stays");
    fs::create_symlink(top_ / "outside/secret", top_ / "allowed/a/config");
    roots_ = *AllowedRoots::Create({top_ / "allowed"});
  }
  ~AllowedRootsTest() override { fs::remove_all(top_); }
  ErrorCode CodeOf(const std::string& path) const { return roots_.Resolve(path).error().code; }

  fs::path top_;
  AllowedRoots roots_;
};

TEST_F(AllowedRootsTest, Point11_PathsAreJudgedByWhereTheyReallyLie) {
  const std::string allowed = (top_ / "allowed").string();
  EXPECT_EQ(*roots_.Resolve(allowed + "/a"), top_ / "allowed/a");
  EXPECT_EQ(*roots_.Resolve(allowed + "/./a//"), top_ / "allowed/a");
  EXPECT_EQ(*roots_.Resolve(allowed + "/a/../stays"), top_ / "allowed/a");
  for (const std::string& bad :
       {allowed + "/../outside/c", allowed + "/leaves", allowed + "/leaves/..", std::string("/"),
        std::string("/etc/passwd"), allowed + "2/b", allowed + "/../nowhere", std::string("."),
        allowed + "/a/../../outside", std::string("/proc/self/root") + top_.string() + "/outside"}) {
    EXPECT_EQ(CodeOf(bad), ErrorCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(CodeOf(allowed + "/nobody"), ErrorCode::kNotFound);
  for (const std::string& bad : {std::string(), allowed + std::string("/a\0/x", 4), std::string(PATH_MAX, 'a'),
                                 allowed + "/" + std::string(300, 'x')}) {
    EXPECT_FALSE(roots_.Resolve(bad).ok());
  }
}

TEST_F(AllowedRootsTest, Point11_AnOpenFileIsJudgedByWhereItLies) {
  const auto file = RegularFile::Open(top_ / "allowed/a/config");
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(roots_.CheckOpened(*file->RealPath()).ok());
  std::ofstream(top_ / "allowed/a/own") << "x";
  EXPECT_TRUE(roots_.CheckOpened(*RegularFile::Open(top_ / "allowed/stays/own")->RealPath()).ok());
}

TEST_F(AllowedRootsTest, NothingIsAllowedWithoutRoots) {
  EXPECT_FALSE(AllowedRoots().Resolve((top_ / "allowed/a").string()).ok());
  EXPECT_FALSE(AllowedRoots::Create({top_ / "nowhere"}).ok());
}

}  // namespace
}  // namespace loramux::allowed_roots_test
