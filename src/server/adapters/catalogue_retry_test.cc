#include "server/adapters/catalogue_retry.h"

#include <gtest/gtest.h>

namespace loramux::catalogue_retry_test {
namespace {

constexpr TimeNs kSecond = kNsPerSecond, kMinute = 60 * kSecond, kHour = 60 * kMinute;

// The seconds until the try that follows so many failures.
TimeNs WaitAfter(const FleetAdapter& entry, const Error& error, int failures) {
  CatalogueRetry retry;
  for (int i = 0; i < failures; ++i) retry.Failed(entry, error, 7 * kSecond);
  return retry.at() - 7 * kSecond;
}

TEST(CatalogueRetry, WaitsTwiceAsLongEachTimeUpToAMinute) {
  for (const char* source : {"/adapters/sql", "s3://bucket/sql"}) {
    const FleetAdapter entry{.source = source};
    const Error away = Unavailable("the store is away");
    EXPECT_EQ(WaitAfter(entry, away, 1), kSecond);
    EXPECT_EQ(WaitAfter(entry, away, 4), 8 * kSecond);
    EXPECT_EQ(WaitAfter(entry, away, 7), kMinute);
    EXPECT_EQ(WaitAfter(entry, away, 1000), kMinute);
  }
  EXPECT_EQ(WaitAfter({.source = "/adapters/sql"}, InvalidArgument("wrong shape"), 1000), kMinute);
}

TEST(CatalogueRetry, WhatWasRefusedIsNotFetchedEachMinute) {
  for (const char* source : {"s3://bucket/sql", "hf://org/sql"}) {
    const FleetAdapter entry{.source = source};
    EXPECT_EQ(WaitAfter(entry, InvalidArgument("wrong shape"), 7), 64 * kSecond);
    EXPECT_EQ(WaitAfter(entry, Unsupported("DoRA"), 1000), kHour);
    EXPECT_EQ(WaitAfter(entry, NotFound("no such object"), 1000), kMinute);
  }
}

TEST(CatalogueRetry, AnotherEntryBeginsAnew) {
  CatalogueRetry retry;
  FleetAdapter entry{.source = "hf://org/sql", .generation = 4};
  for (int i = 0; i < 100; ++i) retry.Failed(entry, InvalidArgument("wrong shape"), 0);
  EXPECT_EQ(retry.at(), kHour);
  entry.generation = 5;
  retry.Failed(entry, InvalidArgument("wrong shape"), kHour);
  EXPECT_EQ(retry.at(), kHour + kSecond);
  retry.Failed(entry, InvalidArgument("wrong shape"), kHour);
  EXPECT_EQ(retry.at(), kHour + 2 * kSecond);
}

}  // namespace
}  // namespace loramux::catalogue_retry_test
