#include "auth/error_body.h"

#include <gtest/gtest.h>

#include "http/error_status.h"

namespace loramux::error_body_test {
namespace {

TEST(ErrorBody, HasTheTypeOfItsStatus) {
  EXPECT_EQ(ErrorBody(404, "no such \"path\"", ""),
            R"({"error":{"message":"no such \"path\"","type":"NotFoundError","param":null,"code":404}})");
  EXPECT_EQ(ErrorBody(400, "m", "prompt"),
            R"({"error":{"message":"m","type":"BadRequestError","param":"prompt","code":400}})");
  EXPECT_STREQ(ErrorType(401), "AuthenticationError");
  EXPECT_STREQ(ErrorType(403), "PermissionDeniedError");
  EXPECT_STREQ(ErrorType(413), "BadRequestError");
  EXPECT_STREQ(ErrorType(429), "RateLimitError");
  EXPECT_STREQ(ErrorType(500), "InternalServerError");
  EXPECT_STREQ(ErrorType(503), "InternalServerError");
}

TEST(ErrorStatus, FollowsFromTheCode) {
  EXPECT_EQ(HttpStatus(InvalidArgument("m")), 400);
  EXPECT_EQ(HttpStatus(Unsupported("m")), 400);
  EXPECT_EQ(HttpStatus(ResourceExhausted("m")), 400);
  EXPECT_EQ(HttpStatus(NotFound("m")), 404);
  EXPECT_EQ(HttpStatus(Unavailable("m")), 503);
  EXPECT_EQ(HttpStatus(Internal("m")), 500);
  EXPECT_EQ(HttpStatus(IoError("m")), 500);
}

}  // namespace
}  // namespace loramux::error_body_test
