// Requests whose length or host is in doubt.
#include "http/request_framing.h"

#include <gmock/gmock.h>

namespace loramux::request_framing_test {
namespace {

namespace http = boost::beast::http;
using Fields = std::vector<std::pair<http::field, std::string>>;

std::string Fault(const Fields& given, unsigned version = 11) {
  http::fields fields;
  for (const auto& [name, value] : given) fields.insert(name, value);
  return FramingFault(fields, version);
}

TEST(RequestFraming, OneLengthAndOneHostAreNoFault) {
  const std::pair host{http::field::host, std::string("example.com:8000")};
  EXPECT_EQ(Fault({host}), "");
  EXPECT_EQ(Fault({host, {http::field::content_length, "12"}}), "");
  EXPECT_EQ(Fault({host, {http::field::transfer_encoding, "cHunked"}}), "");
  EXPECT_EQ(Fault({}, 10), "");
}

TEST(RequestFraming, TargetsInAbsoluteForm) {
  EXPECT_EQ(AuthorityOf("/v1/models"), std::nullopt);
  EXPECT_EQ(AuthorityOf("/x?u=http://y/z"), std::nullopt);
  EXPECT_EQ(AuthorityOf("*"), std::nullopt);
  EXPECT_EQ(AuthorityOf("HTTP://a:1/b"), "a:1");
  EXPECT_EQ(AuthorityOf("https://[::1]?q"), "[::1]");
  EXPECT_EQ(AuthorityOf("http://"), "");
  EXPECT_EQ(OriginForm("/v1/models?x"), "/v1/models?x");
  EXPECT_EQ(OriginForm("http://a:1/b?c=http://d/e"), "/b?c=http://d/e");
  EXPECT_EQ(OriginForm("http://a"), "/");
  EXPECT_EQ(OriginForm("http://a?q=/"), "/?q=/");
}

TEST(RequestFraming, FaultsNameTheField) {
  const std::pair host{http::field::host, std::string("x")};
  const auto fault_of = [&](Fields fields) {
    fields.push_back(host);
    return Fault(fields);
  };
  for (const char* value : {"", "gzip", "chunked, chunked", "gzip, chunked", "chunked,", "\"chunked\"", "chunked x"}) {
    EXPECT_THAT(fault_of({{http::field::transfer_encoding, value}}), testing::StartsWith("Transfer-Encoding:"))
        << value;
  }
  const std::pair chunked{http::field::transfer_encoding, std::string("chunked")};
  EXPECT_THAT(fault_of({chunked, chunked}), testing::HasSubstr("expected one field, found 2"));
  EXPECT_THAT(fault_of({chunked, {http::field::content_length, "0"}}), testing::HasSubstr("found both"));
  EXPECT_THAT(Fault({chunked}, 10), testing::HasSubstr("HTTP/1.0"));
  for (const char* value : {"", "1,1", "-1", "1 1", "0x1"}) {
    EXPECT_THAT(fault_of({{http::field::content_length, value}}), testing::StartsWith("Content-Length:")) << value;
  }
  EXPECT_THAT(fault_of({host}), testing::HasSubstr("Host: expected one field, found 2"));
  EXPECT_THAT(Fault({}), testing::HasSubstr("found none"));
  EXPECT_THAT(Fault({host, host}, 10), testing::HasSubstr("Host"));
}

TEST(RequestFraming, Hosts) {
  for (const char* good : {"x", "example.com", "EXAMPLE.com:80", "127.0.0.1:8000", "[::1]", "[2001:db8::1]:443", "a_b",
                           "xn--bcher-kva.example", "x:"}) {
    EXPECT_TRUE(IsHost(good)) << good;
  }
  for (const char* bad :
       {"",    ":80", "a b",    "a/b",  "a@b",   "a:b",      "a:65536", "a:-1", "::1", "[::1", "::1]",
        "[x]", "[]",  "[::1]x", "a\tb", "a\x80", "http://x", "a:80:80", "a?b",  "a#b", "a\\b", "<x>"}) {
    EXPECT_FALSE(IsHost(bad)) << bad;
  }
  EXPECT_TRUE(IsHost(std::string(255, 'a')));
  EXPECT_FALSE(IsHost(std::string(256, 'a')));
}

}  // namespace
}  // namespace loramux::request_framing_test
