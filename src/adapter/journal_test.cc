#include "adapter/journal.h"

#include <fstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loramux::journal_test {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "loramux_journal_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  fs::path file() const { return path_ / "adapters.journal"; }
  std::string Content() const { return *OsFileSystem().Read(file()); }
  void SetContent(std::string_view content) const {
    std::ofstream(file(), std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  }

 private:
  fs::path path_;
};

// The state that a journal represents: loaded adapters and hidden names.
struct State {
  JournaledAdapters adapters;
  std::set<std::string, std::less<>> hidden;
  friend bool operator==(const State&, const State&) = default;
};
State StateOf(const AdapterJournal& journal) { return {journal.Adapters(), journal.Hidden()}; }

struct Operation {
  bool load = false;
  JournaledAdapter adapter;
  bool hide = false;
  Status Run(AdapterJournal& journal) const {
    return load ? journal.Load(adapter) : journal.Unload(adapter.name, hide);
  }
  void Apply(State& state) const {
    if (load) {
      state.adapters[adapter.name] = adapter;
      state.hidden.erase(adapter.name);
    } else {
      state.adapters.erase(adapter.name);
      if (hide) state.hidden.insert(adapter.name);
    }
  }
};

Operation RandomOperation(Prng& prng) {
  Operation operation;
  operation.load = prng.NextBelow(3) != 0;
  operation.hide = prng.NextBelow(4) == 0;
  const std::string number = std::to_string(prng.Next());
  operation.adapter = {"name \"" + std::to_string(prng.NextBelow(5)) + "\" é", "/path/" + number, number + number,
                       prng.NextBelow(2) == 0, static_cast<std::int64_t>(prng.NextBelow(1u << 31))};
  return operation;
}

// Fails chosen operations: the n-th only, or that one and all later ones. A failing write leaves a part of its data
// behind. A failed sync reports its error only once; from then on the file may lack data that the system considers
// written.
class FaultyFiles final : public FileSystem {
 public:
  void FailAt(std::int64_t n, bool for_good) {
    left_ = n;
    for_good_ = for_good;
  }
  void Heal() { left_ = INT64_MAX; }
  bool failed() const { return failed_; }
  void ForgetFailure() { failed_ = false; }
  bool MayHaveLost(const fs::path& path) const {
    const auto found = lost_.find(path);
    return found != lost_.end() && *found->second;
  }

  Status CreateDirectories(const fs::path& path) override {
    return Try([&] { return os_.CreateDirectories(path); });
  }
  Status Rename(const fs::path& from, const fs::path& to) override {
    return Try([&] {
      lost_[to] = lost_[from];
      return os_.Rename(from, to);
    });
  }
  Status SyncDirectory(const fs::path&) override {
    return Try([] { return Status(Ok{}); });
  }
  Result<std::string> Read(const fs::path& path) override { return os_.Read(path); }
  Result<std::unique_ptr<FileLock>> Lock(const fs::path& path) override { return os_.Lock(path); }
  Result<std::unique_ptr<WritableFile>> Create(const fs::path& path) override {
    if (Fails()) return Fault();
    lost_[path] = std::make_shared<bool>(false);
    return Wrap(os_.Create(path), lost_[path]);
  }
  Result<std::unique_ptr<WritableFile>> OpenForAppend(const fs::path& path) override {
    if (Fails()) return Fault();
    lost_[path] = std::make_shared<bool>(false);
    return Wrap(os_.OpenForAppend(path), lost_[path]);
  }

 private:
  class File final : public WritableFile {
   public:
    File(FaultyFiles* owner, std::unique_ptr<WritableFile> file, std::shared_ptr<bool> lost)
        : owner_(owner), file_(std::move(file)), lost_(std::move(lost)) {}
    Result<std::size_t> Append(std::string_view data) override {
      const bool fails = owner_->Fails();
      // Every write is short; a failing write writes a part too.
      const auto written =
          file_->Append(data.substr(0, fails ? data.size() / 2 : std::max<std::size_t>(1, data.size() / 3)));
      if (fails) return Fault();
      return written;
    }
    Status Sync() override {
      const Status status =
          owner_->Try([] { return Status(Ok{}); });  // no real sync: the tests do not crash the system
      *lost_ |= !status.ok();
      return status;
    }
    Status Truncate(std::uint64_t size) override {
      return owner_->Try([&] { return file_->Truncate(size); });
    }

   private:
    FaultyFiles* owner_;
    std::unique_ptr<WritableFile> file_;
    std::shared_ptr<bool> lost_;
  };

  static Error Fault() { return IoError("adapters.journal: cannot write: No space left on device (injected)"); }
  bool Fails() {
    const bool fails = for_good_ ? left_ <= 0 : left_ == 0;
    --left_;
    failed_ |= fails;
    return fails;
  }
  template <typename Function>
  Status Try(Function function) {
    if (Fails()) return Fault();
    return function();
  }
  Result<std::unique_ptr<WritableFile>> Wrap(Result<std::unique_ptr<WritableFile>> file, std::shared_ptr<bool> lost) {
    if (!file.ok()) return file;
    return std::unique_ptr<WritableFile>(std::make_unique<File>(this, std::move(*file), std::move(lost)));
  }

  FileSystem& os_ = OsFileSystem();
  std::map<fs::path, std::shared_ptr<bool>> lost_;  // by the current name of the file
  std::int64_t left_ = INT64_MAX;
  bool for_good_ = false, failed_ = false;
};

TEST(Peers, Point10_TheRegistrySurvivesARestart) {
  const Folder folder;
  Prng prng(1);
  State expected;
  for (int restart = 0; restart < 20; ++restart) {
    const auto journal = AdapterJournal::Open(&OsFileSystem(), folder.path());
    ASSERT_TRUE(journal.ok()) << journal.error().message;
    ASSERT_EQ(StateOf(**journal), expected);
    for (int i = 0; i < 10; ++i) {
      const Operation operation = RandomOperation(prng);
      ASSERT_TRUE(operation.Run(**journal).ok());
      operation.Apply(expected);
    }
  }
}

TEST(Journal, OneProcessAtATime) {
  const Folder folder;
  const auto first = AdapterJournal::Open(&OsFileSystem(), folder.path());
  ASSERT_TRUE(first.ok());
  const auto second = AdapterJournal::Open(&OsFileSystem(), folder.path());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(second.error().message.find("is a server running"), std::string::npos) << second.error().message;
}

TEST(Journal, IsRewrittenWhenItGrowsAndStaysSmall) {
  const Folder folder;
  FaultyFiles files;
  Prng prng(2);
  State expected;
  {
    const auto journal = AdapterJournal::Open(&files, folder.path());
    ASSERT_TRUE(journal.ok());
    for (int i = 0; i < 3000; ++i) {
      const Operation operation = RandomOperation(prng);
      ASSERT_TRUE(operation.Run(**journal).ok());
      operation.Apply(expected);
      ASSERT_LT((*journal)->file_bytes(), 80'000u);
    }
    EXPECT_EQ((*journal)->file_bytes(), folder.Content().size());
  }
  EXPECT_EQ(StateOf(**AdapterJournal::Open(&OsFileSystem(), folder.path())), expected);
}

// The file must not grow with each restart: restarts must not raise the size at which it is rewritten.
TEST(Journal, StaysSmallOverRestarts) {
  const Folder folder;
  FaultyFiles files;
  Prng prng(3);
  for (int restart = 0; restart < 30; ++restart) {
    const auto journal = AdapterJournal::Open(&files, folder.path());
    ASSERT_TRUE(journal.ok());
    for (int i = 0; i < 300; ++i) ASSERT_TRUE(RandomOperation(prng).Run(**journal).ok());
    ASSERT_LT((*journal)->file_bytes(), 80'000u) << "restart " << restart;
  }
}

// A journal with some operations: its content, and the state and file size after each.
struct Written {
  std::string content;
  std::vector<std::pair<std::uint64_t, State>> states;
};
Written WriteSome(std::uint64_t seed, int operations) {
  const Folder folder;
  Prng prng(seed);
  Written written;
  const auto journal = AdapterJournal::Open(&OsFileSystem(), folder.path());
  State state;
  written.states.emplace_back((*journal)->file_bytes(), state);
  for (int i = 0; i < operations; ++i) {
    const Operation operation = RandomOperation(prng);
    CHECK(operation.Run(**journal).ok());
    operation.Apply(state);
    if ((*journal)->file_bytes() == written.states.back().first) continue;  // there was nothing to unload
    written.states.emplace_back((*journal)->file_bytes(), state);
  }
  written.content = folder.Content();
  return written;
}

TEST(Journal, TruncatedAtAnyByteLosesAtMostTheRecordThatIsCut) {
  const Written written = WriteSome(3, 12);
  const Folder folder;
  FaultyFiles files;
  for (std::size_t length = 0; length <= written.content.size(); ++length) {
    folder.SetContent(std::string_view(written.content).substr(0, length));
    const auto journal = AdapterJournal::Open(&files, folder.path());
    if (length < 16) {  // the file appears whole by renaming, so loramux cannot have left this
      EXPECT_FALSE(journal.ok());
      continue;
    }
    ASSERT_TRUE(journal.ok()) << length << ": " << journal.error().message;
    std::size_t whole = 0;
    while (whole + 1 < written.states.size() && written.states[whole + 1].first <= length) ++whole;
    ASSERT_EQ(StateOf(**journal), written.states[whole].second) << length;
    EXPECT_EQ((*journal)->dropped_bytes(), length - written.states[whole].first);
    // The journal continues from there.
    const JournaledAdapter more{"more", "/more", "d", false, 7};
    ASSERT_TRUE((*journal)->Load(more).ok());
    EXPECT_EQ(folder.Content().size(), (*journal)->file_bytes());
  }
}

TEST(Journal, UnwrittenBlocksAtTheEndAreDropped) {
  const Written written = WriteSome(4, 6);
  const std::uint64_t before = written.states[written.states.size() - 2].first;
  const Folder folder;
  FaultyFiles files;
  for (std::size_t length = before + 1; length < written.content.size(); ++length) {
    std::string content = written.content.substr(0, length);
    content.resize(written.content.size(), '\0');  // the size reached the disk, the data did not
    folder.SetContent(content);
    const auto journal = AdapterJournal::Open(&files, folder.path());
    ASSERT_TRUE(journal.ok()) << length << ": " << journal.error().message;
    ASSERT_EQ(StateOf(**journal), written.states[written.states.size() - 2].second) << length;
  }
}

TEST(Journal, AnyFlippedBitIsAnErrorThatNamesThePlace) {
  const Written written = WriteSome(5, 6);
  const Folder folder;
  FaultyFiles files;
  for (std::size_t at = 0; at < written.content.size(); ++at) {
    std::string content = written.content;
    content[at] = static_cast<char>(content[at] ^ (1 << at % 8));
    folder.SetContent(content);
    const auto journal = AdapterJournal::Open(&files, folder.path());
    ASSERT_FALSE(journal.ok()) << "byte " << at;
    EXPECT_NE(journal.error().message.find("adapters.journal: damaged at byte "), std::string::npos)
        << journal.error().message;
    EXPECT_EQ(folder.Content(), content);  // the file is unchanged
  }
}

// Each file system operation fails in turn, once or permanently. A failed operation changes nothing, and an
// acknowledged one survives a crash (the journal object is dropped and the file read again). The journal continues when
// the disk does.
TEST(Journal, EveryDiskOperationMayFail) {
  for (const bool for_good : {false, true}) {
    int runs_with_failure = 0;
    bool failed = true;
    for (std::int64_t n = 0; failed; ++n) {
      SCOPED_TRACE(testing::Message() << "operation " << n << (for_good ? " and all after it fail" : " fails"));
      const Folder folder;
      FaultyFiles files;
      Prng prng(6);
      State expected;
      auto journal = AdapterJournal::Open(&files, folder.path());
      ASSERT_TRUE(journal.ok());
      files.ForgetFailure();
      files.FailAt(n, for_good);
      State maybe = expected;  // the state if a failed operation could not be undone
      for (int i = 0; i < 25; ++i) {
        const Operation operation = RandomOperation(prng);
        const Status status = operation.Run(**journal);
        if (status.ok()) {
          const State before = expected;
          operation.Apply(expected);
          if (before != expected) {  // an operation without effect does not access the disk
            maybe = expected;
            ASSERT_FALSE(files.MayHaveLost(folder.file()))
                << "the operation was acknowledged although a sync of its file had failed";
          }
        } else {
          EXPECT_EQ(status.error().code, ErrorCode::kIoError);
          EXPECT_NE(status.error().message.find("adapters.journal"), std::string::npos);
          if (maybe == expected) operation.Apply(maybe);
        }
        ASSERT_EQ(StateOf(**journal), expected);
      }
      failed = files.failed();
      runs_with_failure += failed;
      journal = Error{};  // the process dies
      {
        const auto again = AdapterJournal::Open(&OsFileSystem(), folder.path());
        ASSERT_TRUE(again.ok()) << again.error().message;
        if (for_good) {
          EXPECT_TRUE(StateOf(**again) == expected || StateOf(**again) == maybe);
        } else {
          EXPECT_EQ(StateOf(**again), expected);
        }
      }
    }
    EXPECT_GT(runs_with_failure, 50);
  }
}

TEST(Journal, GoesOnWhenTheDiskDoes) {
  const Folder folder;
  FaultyFiles files;
  auto journal = AdapterJournal::Open(&files, folder.path());
  ASSERT_TRUE(journal.ok());
  const JournaledAdapter a{"a", "/a", "d", true, 1}, b{"b", "/b", "d", false, 2};
  ASSERT_TRUE((*journal)->Load(a).ok());
  files.FailAt(0, /*for_good=*/true);
  EXPECT_FALSE((*journal)->Load(b).ok());
  EXPECT_FALSE((*journal)->Unload("a", false).ok());
  files.Heal();
  ASSERT_TRUE((*journal)->Load({"c", "/c", "d", false, 3}).ok());
  journal = Error{};
  const auto again = AdapterJournal::Open(&OsFileSystem(), folder.path());
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ((*again)->Adapters().size(), 2u);
  EXPECT_EQ((*again)->Adapters().at("a"), a);
}

}  // namespace
}  // namespace loramux::journal_test
