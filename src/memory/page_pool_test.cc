// Model-based fuzzing of the pool against a set of owned pages, and tests that stale handles are detected.
#include "memory/page_pool.h"

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
