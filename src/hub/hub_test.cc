#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hub/hub_cache.h"
#include "hub/hub_client.h"
#include "hub/repo_files.h"
#include "hub/repo_name.h"

namespace loramux::hub_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kCommit(40, 'a'), kSha256(64, 'b'), kSha1(40, 'c');

TEST(RepoName, IsOrganisationAndNameAndMaybeARevision) {
  const auto repo = ParseRepoName("meta-llama/Llama-3.2-1B_x@v1.0");
  ASSERT_TRUE(repo.has_value());
  EXPECT_EQ(repo->full(), "meta-llama/Llama-3.2-1B_x");
  EXPECT_EQ(repo->revision, "v1.0");
  EXPECT_EQ(ParseRepoName("a/b")->revision, "main");
}

TEST(RepoName, NothingThatLeavesAFolderIsAName) {
  for (const std::string text : {"",      "a",    "/a",   "a/",    "a/b/c",    "../a",          "a/..",
                                 "./a",   "a/.b", "~/a",  "a/b@",  "a/b@../x", "a/b@refs/pr/1", "a b/c",
                                 "a/b\n", "a//b", "-a/b", "a/b?c", "a/b#c",    "a/b%2e"}) {
    EXPECT_FALSE(ParseRepoName(text).has_value()) << text;
  }
  EXPECT_FALSE(ParseRepoName("a/" + std::string(97, 'b')).has_value());
  EXPECT_FALSE(ParseRepoName(std::string("a/b\0c", 5)).has_value());
}

std::string Listing(const std::string& files) { return R"({"sha":")" + kCommit + R"(","siblings":[)" + files + "]}"; }
std::string Small(const std::string& name) {
  return R"({"rfilename":")" + name + R"(","size":3,"blobId":")" + kSha1 + "\"}";
}
std::string Large(const std::string& name) {
  return R"({"rfilename":")" + name + R"(","size":1,"blobId":")" + kSha1 + R"(","lfs":{"size":9,"sha256":")" + kSha256 +
         "\"}}";
}

TEST(RepoFiles, KeepsWhatServingNeeds) {
  const auto files = ParseRepoFiles(
      Listing(Large("model.safetensors") + "," + Small("config.json") + "," + Small("chat_template.jinja") + "," +
              Small("README.md") + "," + Large("pytorch_model.bin") + "," + Large("consolidated.safetensors") + "," +
              Small("onnx/config.json") + "," + Small("1_Pooling/config.json") + "," +
              Small("x/1_Pooling/config.json") + "," + Small("../evil.json") + "," + Small(".hidden.json")));
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_EQ(files->commit, kCommit);
  ASSERT_EQ(files->files.size(), 4u);
  EXPECT_EQ(files->files[0].name, "1_Pooling/config.json");
  EXPECT_EQ(files->files[3].name, "model.safetensors");
  EXPECT_EQ(files->files[3].digest, kSha256);
  EXPECT_EQ(files->Bytes(), 3 + 3 + 3 + 9);
}

TEST(RepoFiles, GgufFilesAreApart) {
  const auto files = ParseRepoFiles(Listing(Large("b.gguf") + "," + Large("a.gguf") + "," + Small("tokenizer.json") +
                                            "," + Large("x/c.gguf") + "," + Large(".d.gguf")));
  ASSERT_TRUE(files.ok()) << files.error().message;
  ASSERT_EQ(files->files.size(), 1u);
  ASSERT_EQ(files->gguf.size(), 2u);
  EXPECT_EQ(files->gguf[0].name, "a.gguf");
  EXPECT_EQ(files->Bytes(), 3);  // bytes of what both kinds of servers need
}

TEST(RepoFiles, HostileListsAreRefused) {
  const std::string good = Large("model.safetensors");
  for (const std::string text :
       {std::string(), std::string("[]"), std::string("{}"), std::string(1 << 14, '['),
        R"({"sha":"../../x","siblings":[)" + good + "]}", R"({"sha":")" + kCommit + R"(","siblings":{}})", Listing(""),
        Listing("1,null"), Listing(Small("config.json")),
        Listing(good + R"(,{"rfilename":"a.json","size":-1,"blobId":")" + kSha1 + "\"}"),
        Listing(good + R"(,{"rfilename":"a.json","size":1e9,"blobId":")" + kSha1 + "\"}"),
        Listing(good + R"(,{"rfilename":"a.json","size":3,"blobId":"../../etc/passwd"})"),
        Listing(good + R"(,{"rfilename":"a.json","size":3})")}) {
    EXPECT_FALSE(ParseRepoFiles(text).ok()) << text.substr(0, 200);
  }
}

class HubCacheTest : public testing::Test {
 protected:
  HubCacheTest() : root_(fs::path(testing::TempDir()) / "hub_cache_test"), cache_(root_) { fs::remove_all(root_); }
  ~HubCacheTest() override { fs::remove_all(root_); }
  void Blob(const RepoFile& file, const std::string& text) {
    std::ofstream(cache_.BlobPath(repo_, file).value()) << text;
  }

  const fs::path root_;
  const HubCache cache_;
  const RepoName repo_ = *ParseRepoName("org/model");
};

TEST_F(HubCacheTest, WhatIsPublishedIsFoundUnderTheRevisionAndTheCommit) {
  const RepoFiles files{.commit = kCommit, .files = {{"config.json", 2, kSha1}, {"model.safetensors", 1, kSha256}}};
  EXPECT_FALSE(cache_.Find(repo_).has_value());
  Blob(files.files[0], "{}");
  Blob(files.files[1], "x");
  const auto folder = cache_.Publish(repo_, files);
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  EXPECT_EQ(*folder, root_ / "models--org--model" / "snapshots" / kCommit);
  EXPECT_EQ(cache_.Find(repo_), *folder);
  EXPECT_EQ(cache_.Find(*ParseRepoName("org/model@" + kCommit)), *folder);
  EXPECT_FALSE(cache_.Find(*ParseRepoName("org/model@other")).has_value());
  EXPECT_TRUE(cache_.Publish(repo_, files).ok());  // once more
}

TEST_F(HubCacheTest, AFileInAFolderIsFoundThere) {
  const RepoFiles files{
      .commit = kCommit,
      .files = {{"1_Pooling/config.json", 7, kSha1}, {"config.json", 7, kSha1}, {"model.safetensors", 1, kSha256}}};
  Blob(files.files[0], "pooling");
  Blob(files.files[2], "x");
  const auto folder = cache_.Publish(repo_, files);
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  std::string text;
  std::ifstream(*folder / "1_Pooling/config.json") >> text;
  EXPECT_EQ(text, "pooling");
}

TEST_F(HubCacheTest, ASnapshotWithoutAllPartsOfItsWeightsIsNotComplete) {
  const fs::path folder = root_ / "s";
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_FALSE(IsCompleteSnapshot(folder));
  std::ofstream(folder / "model.safetensors.index.json")
      << R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})";
  std::ofstream(folder / "one.safetensors") << "x";
  EXPECT_FALSE(IsCompleteSnapshot(folder));
  fs::create_symlink("nowhere", folder / "two.safetensors");
  EXPECT_FALSE(IsCompleteSnapshot(folder));
  fs::remove(folder / "two.safetensors");
  std::ofstream(folder / "two.safetensors") << "x";
  EXPECT_TRUE(IsCompleteSnapshot(folder));
}

TEST_F(HubCacheTest, ARefThatIsNoCommitIsIgnored) {
  fs::create_directories(root_ / "models--org--model" / "refs");
  for (const std::string& text : std::vector<std::string>{"../../..", "", "short", std::string(1000, 'a')}) {
    std::ofstream(root_ / "models--org--model" / "refs" / "main") << text;
    EXPECT_FALSE(cache_.Find(repo_).has_value());
  }
}

TEST(HubClient, RefusesEndpointsAndTokensThatItCannotUse) {
  EXPECT_THAT(HubClient::Create({.endpoint = "file:///etc"}).error().message, HasSubstr("--hf-endpoint"));
  const auto error = HubClient::Create({.token = "secret\r\nX: y"}).error();
  EXPECT_THAT(error.message, HasSubstr("--hf-token"));
  EXPECT_THAT(error.message, testing::Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace loramux::hub_test
