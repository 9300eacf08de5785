#include "http/name_lookup.h"

#include <functional>
#include <optional>

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

namespace loramux::name_lookup_test {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using Handler = std::function<void(const boost::system::error_code&, NameLookup::Addresses)>;

class NameLookupTest : public testing::Test {
 protected:
  void Begin(std::chrono::nanoseconds longest) {
    asio::co_spawn(io_, lookup_.Wait([this](Handler handler) { handler_ = std::move(handler); }, longest, found_),
                   [this](const std::exception_ptr&, boost::system::error_code error) { ended_ = error; });
  }
  static NameLookup::Addresses SomeAddresses() {
    const asio::ip::tcp::endpoint endpoint(asio::ip::make_address("10.1.2.3"), 80);
    return NameLookup::Addresses::create(endpoint, "name", "80");
  }

  asio::io_context io_;
  NameLookup lookup_{io_.get_executor()};
  NameLookup::Addresses found_;
  Handler handler_;
  std::optional<boost::system::error_code> ended_;
};

TEST_F(NameLookupTest, ReturnsWhatWasFound) {
  Begin(1h);
  io_.poll();
  ASSERT_TRUE(handler_);
  EXPECT_FALSE(ended_);
  asio::post(io_, [&] { handler_({}, SomeAddresses()); });
  io_.run();
  EXPECT_EQ(ended_, boost::system::error_code());
  EXPECT_EQ(found_.size(), 1u);
}

TEST_F(NameLookupTest, ReturnsTheError) {
  Begin(1h);
  io_.poll();
  asio::post(io_, [&] { handler_(asio::error::host_not_found, {}); });
  io_.run();
  EXPECT_EQ(ended_, boost::system::error_code(asio::error::host_not_found));
}

TEST_F(NameLookupTest, AResolverThatIsSilentIsLeftAfterTheLimit) {
  Begin(20ms);
  io_.run();  // ends, although the handler was not called
  EXPECT_EQ(ended_, boost::system::error_code(boost::beast::error::timeout));
  handler_({}, SomeAddresses());  // late: nothing waits for it
  EXPECT_TRUE(found_.empty());
}

TEST_F(NameLookupTest, CanBeCancelled) {
  Begin(1h);
  io_.poll();
  asio::post(io_, [&] { lookup_.Cancel(); });
  io_.run();
  EXPECT_EQ(ended_, boost::system::error_code(asio::error::operation_aborted));
}

}  // namespace
}  // namespace loramux::name_lookup_test
