#include "server/adapters/upload_store.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

namespace loramux::upload_store_test {
namespace {

namespace fs = std::filesystem;

class UploadStoreTest : public testing::Test {
 protected:
  UploadStoreTest() : top_(fs::path(testing::TempDir()) / "loramux_upload_store") { fs::remove_all(top_); }
  ~UploadStoreTest() override { fs::remove_all(top_); }

  std::unique_ptr<UploadStore> Open(const std::set<fs::path>& keep = {}) {
    auto store = UploadStore::Open(&OsFileSystem(), top_ / "uploads", keep);
    EXPECT_TRUE(store.ok());
    return std::move(store).value();
  }
  static std::shared_ptr<UploadFolder> Write(UploadStore& store) {
    auto folder = std::move(store.Begin()).value();
    EXPECT_TRUE(folder->Begin("a").ok());
    EXPECT_TRUE(folder->Append("1").ok());
    EXPECT_TRUE(folder->Begin("b").ok());
    EXPECT_TRUE(folder->Finish().ok());
    return folder;
  }
  std::size_t folders() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(top_ / "uploads"), {}));
  }

  const fs::path top_;
};

TEST_F(UploadStoreTest, AFolderGoesWithItsLastHolder) {
  const auto store = Open();
  auto folder = Write(*store);
  EXPECT_EQ(fs::file_size(folder->path() / "a"), 1u);
  EXPECT_EQ(folder->Begin("a").error().code, ErrorCode::kInvalidArgument);
  auto other = store->Hold(folder->path());
  EXPECT_EQ(other, folder);
  EXPECT_EQ(store->Hold(top_), nullptr);
  folder = nullptr;
  EXPECT_EQ(folders(), 1u);
  other = nullptr;
  EXPECT_EQ(folders(), 0u);
}

TEST_F(UploadStoreTest, WhatTheJournalNamesOutlivesTheProcess) {
  fs::path kept;
  {
    auto store = Open();
    auto folder = Write(*store), other = Write(*store);
    kept = folder->path();
    store = nullptr;  // the end of the process
  }
  EXPECT_EQ(folders(), 2u);
  fs::create_directories(top_ / "uploads" / "of-people");
  const auto store = Open({kept.filename()});
  EXPECT_EQ(folders(), 2u);
  EXPECT_TRUE(fs::exists(top_ / "uploads" / "of-people"));
  // What cannot be opened now is still there later.
  store->Hold(kept);
  EXPECT_TRUE(fs::exists(kept));
  auto served = store->Hold(kept);
  store->Own(kept);
  store->Own(top_);
  EXPECT_TRUE(fs::exists(kept));
  served = nullptr;
  EXPECT_FALSE(fs::exists(kept));
}

}  // namespace
}  // namespace loramux::upload_store_test
