#include "http/cors.h"

#include <gmock/gmock.h>

namespace loramux::cors_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(Cors, OffByDefault) {
  const std::vector<std::string> off;
  EXPECT_THAT(CorsHeaders(off, "https://a.example"), IsEmpty());
  EXPECT_THAT(PreflightHeaders(off, "https://a.example", "POST", "authorization"), IsEmpty());
}

TEST(Cors, NamedOriginsOnly) {
  const std::vector<std::string> allowed = {"https://a.example", "http://localhost:3000"};
  EXPECT_THAT(CorsHeaders(allowed, "http://localhost:3000"),
              ElementsAre(Pair("Vary", "Origin"), Pair("Access-Control-Allow-Origin", "http://localhost:3000"),
                          Pair("Access-Control-Expose-Headers", testing::_)));
  for (const char* other : {"https://b.example", "https://a.example.evil", "https://a.exampl", "null", ""}) {
    EXPECT_THAT(CorsHeaders(allowed, other), ElementsAre(Pair("Vary", "Origin"))) << other;
    EXPECT_THAT(PreflightHeaders(allowed, other, "POST", "authorization"), IsEmpty()) << other;
  }
  EXPECT_THAT(PreflightHeaders(allowed, "https://a.example", "POST, OPTIONS", "authorization, content-type"),
              ElementsAre(Pair("Access-Control-Allow-Methods", "POST, OPTIONS"), Pair("Access-Control-Max-Age", "600"),
                          Pair("Access-Control-Allow-Headers", "authorization, content-type")));
}

TEST(Cors, AnyOrigin) {
  const std::vector<std::string> allowed = {"*"};
  EXPECT_THAT(CorsHeaders(allowed, "https://b.example"),
              ElementsAre(Pair("Access-Control-Allow-Origin", "*"), Pair("Access-Control-Expose-Headers", testing::_)));
  EXPECT_THAT(CorsHeaders(allowed, ""), IsEmpty());
  EXPECT_EQ(PreflightHeaders(allowed, "https://b.example", "GET", "").size(), 2u);
}

}  // namespace
}  // namespace loramux::cors_test
