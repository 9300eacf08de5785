// Model-based fuzzing of the pool against a set of owned pages, and tests that stale handles are detected.
#include "memory/page_pool.h"

#include <array>
#include <cstring>
#include <map>

#include "base/prng.h"

namespace loramux::page_pool_test {
namespace {

std::unique_ptr<PagePool> MakePool(std::int64_t pages, std::int64_t page_bytes = 128) {
  auto pool = PagePool::Create("test", pages * page_bytes, page_bytes);
  return std::move(pool).value();
}

TEST(PagePool, AllOrNothing) {
  auto pool = MakePool(4);
  std::vector<PageHandle> three(3), two(2);
  ASSERT_TRUE(pool->Allocate(PageCategory::kKv, three));
  EXPECT_FALSE(pool->Allocate(PageCategory::kAdapter, two));
  EXPECT_EQ(pool->free_pages(), 1);
  pool->Free(PageCategory::kKv, three);
  EXPECT_EQ(pool->free_pages(), 4);
  pool->CheckIntegrity();
}

TEST(PagePool, RefusesAnArenaWithoutAPage) {
  const auto pool = PagePool::Create("device", 100, 128);
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.error().code, ErrorCode::kResourceExhausted);
}

// A world that only counts pages needs no memory, however large it is; to touch a byte of it is a mistake.
TEST(PagePoolDeathTest, AnArenaWithoutBytesCountsPages) {
  constexpr std::int64_t kPageBytes = std::int64_t{1} << 40, kPages = 1000;  // no machine has so many addresses
  const auto pool = std::move(PagePool::Create("device", ArenaWithoutBytes(kPages * kPageBytes), kPageBytes)).value();
  EXPECT_EQ(pool->capacity_pages(), kPages);
  EXPECT_EQ(pool->memory_kind(), MemoryKind::kNone);
  EXPECT_EQ(pool->View().base, nullptr);
  std::vector<PageHandle> pages(3);
  ASSERT_TRUE(pool->Allocate(PageCategory::kKv, pages));
  EXPECT_DEATH((void)pool->Data(pages[0]), "CHECK failed");
  pool->Free(PageCategory::kKv, pages);
  pool->CheckIntegrity();
}

// A tier that is not there: it holds nothing, and nothing fits.
TEST(PagePool, WithoutPagesThereIsNoRoom) {
  const auto pool = PagePool::WithoutPages(128);
  EXPECT_EQ(pool->capacity_pages(), 0);
  EXPECT_EQ(pool->free_pages(), 0);
  EXPECT_EQ(pool->page_bytes(), 128);
  EXPECT_EQ(pool->View().base, nullptr);
  PageHandle page;
  EXPECT_FALSE(pool->Allocate(PageCategory::kAdapter, std::span(&page, 1)));
  EXPECT_FALSE(pool->IsCurrent(page));
  pool->CheckIntegrity();
}

// A device brings its own memory.
class BorrowedArena final : public Arena {
 public:
  BorrowedArena(std::span<std::byte> bytes, bool* freed) : bytes_(bytes), freed_(freed) {}
  ~BorrowedArena() override { *freed_ = true; }
  MemoryKind kind() const override { return MemoryKind::kPinned; }
  std::byte* base() const override { return bytes_.data(); }
  std::int64_t size() const override { return static_cast<std::int64_t>(bytes_.size()); }

 private:
  std::span<std::byte> bytes_;
  bool* freed_;
};

TEST(PagePool, DividesTheArenaItIsGivenAndFreesIt) {
  alignas(64) std::array<std::byte, 300> bytes = {};
  bool freed = false;
  auto pool = std::move(PagePool::Create("device", std::make_unique<BorrowedArena>(bytes, &freed), 128)).value();
  EXPECT_EQ(pool->capacity_pages(), 2);  // 44 bytes are too few for a page
  EXPECT_EQ(pool->memory_kind(), MemoryKind::kPinned);
  std::vector<PageHandle> pages(2);
  ASSERT_TRUE(pool->Allocate(PageCategory::kAdapter, pages));
  for (const PageHandle page : pages) EXPECT_EQ(pool->Data(page), bytes.data() + page.index * 128);
  pool->Free(PageCategory::kAdapter, pages);
  pool.reset();
  EXPECT_TRUE(freed);
  const auto none =
      PagePool::Create("device", std::make_unique<BorrowedArena>(std::span(bytes).first(100), &freed), 128);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message,
            "device memory: expected room for at least one page of 128 bytes, found 100 bytes in all");
}

TEST(PagePoolDeathTest, StaleAndForeignHandlesAreCaught) {
  auto pool = MakePool(2);
  std::vector<PageHandle> page(1);
  ASSERT_TRUE(pool->Allocate(PageCategory::kKv, page));
  EXPECT_DEATH(pool->Free(PageCategory::kAdapter, page), "CHECK failed");
  pool->Free(PageCategory::kKv, page);
  EXPECT_DEATH(pool->Free(PageCategory::kKv, page), "CHECK failed");  // double free
  EXPECT_DEATH((void)pool->Data(page[0]), "CHECK failed");            // use after free
  std::vector<PageHandle> again(1);
  ASSERT_TRUE(pool->Allocate(PageCategory::kKv, again));
  EXPECT_EQ(again[0].index, page[0].index);
  EXPECT_FALSE(pool->IsCurrent(page[0]));
}

// Random allocations and frees of both categories; each page carries a mark that only its owner writes.
TEST(PagePool, FuzzAgainstModel) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    auto pool = MakePool(64);
    struct Owned {
      PageCategory category;
      std::vector<PageHandle> pages;
      std::uint64_t mark;
    };
    std::vector<Owned> model;
    std::size_t owned_pages = 0;
    for (int step = 0; step < 3000; ++step) {
      if (prng.NextBelow(2) == 0) {
        Owned owned{static_cast<PageCategory>(prng.NextBelow(2)), std::vector<PageHandle>(prng.NextBelow(9)),
                    prng.Next()};
        const bool fits = owned_pages + owned.pages.size() <= 64;
        ASSERT_EQ(pool->Allocate(owned.category, owned.pages), fits);
        if (!fits) continue;
        for (const PageHandle page : owned.pages) std::memcpy(pool->Data(page), &owned.mark, sizeof(owned.mark));
        owned_pages += owned.pages.size();
        model.push_back(std::move(owned));
      } else if (!model.empty()) {
        const std::size_t victim = prng.NextBelow(model.size());
        for (const PageHandle page : model[victim].pages) {
          ASSERT_EQ(std::memcmp(pool->Data(page), &model[victim].mark, sizeof(std::uint64_t)), 0);
        }
        pool->Free(model[victim].category, model[victim].pages);
        owned_pages -= model[victim].pages.size();
        model.erase(model.begin() + static_cast<std::ptrdiff_t>(victim));
      }
      ASSERT_EQ(pool->free_pages(), static_cast<std::int64_t>(64 - owned_pages));
      if (step % 100 == 0) pool->CheckIntegrity();
    }
    for (const Owned& owned : model) pool->Free(owned.category, owned.pages);
    pool->CheckIntegrity();
    EXPECT_EQ(pool->free_pages(), 64);
  }
}

}  // namespace
}  // namespace loramux::page_pool_test
