// Attacks on ids and seeds: what a client sees must not tell it what another client gets.
#include "http/random_source.h"

#include <array>
#include <charconv>
#include <set>

#include <gmock/gmock.h>

#include "base/prng.h"
#include "http/raw_client_for_test.h"
#include "server/completion/completion_job.h"
#include "server/server.h"
#include "server/server_fixture.h"

namespace loramux::random_source_test {
namespace {

constexpr std::uint64_t RotateLeft(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

// Undoes the output function of xoshiro256**: returns the second word of the state that gave `output`.
constexpr std::uint64_t SecondWord(std::uint64_t output) {
  constexpr std::uint64_t kInverseOf9 = 0x8e38e38e38e38e39ULL, kInverseOf5 = 0xcccccccccccccccdULL;
  return RotateLeft(output * kInverseOf9, 64 - 7) * kInverseOf5;
}

// Continues a xoshiro256** from four outputs in a row. The first two numbers repeat the last three outputs' state.
class Attacker {
 public:
  // Four second words give the whole state after the first of the four steps.
  explicit Attacker(const std::array<std::uint64_t, 4>& outputs) {
    std::array<std::uint64_t, 4> b{};
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = SecondWord(outputs[i]);
    const std::uint64_t c1 = (b[1] ^ b[0]) ^ (b[0] << 17), a1 = b[2] ^ b[1] ^ c1;
    const std::uint64_t c2 = c1 ^ a1 ^ (b[1] << 17), a2 = b[3] ^ b[2] ^ c2;
    state_ = {a1, b[1], c1, a2 ^ a1 ^ b[1]};
    for (int known = 1; known < 4; ++known) Next();
  }

  std::uint64_t Next() {
    const std::uint64_t result = RotateLeft(state_[1] * 5, 7) * 9, t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = RotateLeft(state_[3], 45);
    return result;
  }

 private:
  std::array<std::uint64_t, 4> state_{};
};

// The two numbers in the last 32 digits of an id.
std::array<std::uint64_t, 2> WordsOf(const std::string& id) {
  std::array<std::uint64_t, 2> words{};
  EXPECT_GE(id.size(), 32u) << id;
  if (id.size() < 32) return words;
  for (std::size_t i = 0; i < 2; ++i) {
    const char* first = id.data() + id.size() - 32 + 16 * i;
    EXPECT_EQ(std::from_chars(first, first + 16, words[i], 16).ptr, first + 16) << id;
  }
  return words;
}

Attacker After(const std::string& first_id, const std::string& second_id) {
  const auto first = WordsOf(first_id), second = WordsOf(second_id);
  return Attacker({first[0], first[1], second[0], second[1]});
}

TEST(Attacker, ContinuesTheGeneratorThatIdsOnceCameFrom) {
  Prng prng(99);
  Attacker attacker({prng.Next(), prng.Next(), prng.Next(), prng.Next()});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(attacker.Next(), prng.Next());
}

class RandomSourceTest : public testing::Test {
 protected:
  RandomSourceTest() : service_([](const GenerationRequest&) { return Say("x"); }) {
    ServerOptions options;
    options.http.port = 0;
    options.http.linger_timeout = std::chrono::milliseconds(200);
    options.seed = 7;  // the worst case: the attacker may know a generator's kind, but not its key
    auto server = Server::Start(options, fixture_.Parts(service_));
    EXPECT_TRUE(server.ok());
    server_ = std::move(server).value();
  }
  std::string Complete(RawHttpClient& client, const std::string& members) {
    const std::string body = R"({"model":"base","prompt":"p")" + members + "}";
    return client.Do("POST", "/v1/completions", body).json()["id"].get<std::string>();
  }

  ServingFixture fixture_;
  ScriptedService service_;
  std::unique_ptr<Server> server_;
};

TEST_F(RandomSourceTest, TwoRequestIdsDoNotPredictTheNext) {
  RawHttpClient client(server_->port());
  std::array<std::string, 3> ids;
  for (std::string& id : ids) id = client.Do("GET", "/health").Header("X-Request-Id");
  Attacker attacker = After(ids[0], ids[1]);
  const auto next = WordsOf(ids[2]);
  EXPECT_NE(attacker.Next(), next[0]);
  EXPECT_NE(attacker.Next(), next[1]);
}

// The attacker's requests bring seeds, so that each draws nothing but its id.
TEST_F(RandomSourceTest, TwoResponseIdsDoNotPredictAnotherRequestsSeed) {
  RawHttpClient attackers(server_->port()), victims(server_->port());
  const std::string first = Complete(attackers, R"(,"seed":1)"), second = Complete(attackers, R"(,"seed":1)");
  Attacker attacker = After(first, second);
  const std::string victim = Complete(victims, "");
  std::set<std::uint64_t> predicted;
  for (int i = 0; i < 8; ++i) predicted.insert(attacker.Next());
  EXPECT_FALSE(predicted.contains(WordsOf(victim)[0]));
  ASSERT_EQ(service_.submitted().size(), 3u);
  EXPECT_FALSE(predicted.contains(service_.submitted()[2].sampling.seed));
}

// Probes draw ids, and must not move the seeds of --seed.
TEST_F(RandomSourceTest, SeedsDoNotDependOnIds) {
  RawHttpClient client(server_->port());
  Complete(client, "");
  for (int i = 0; i < 3; ++i) client.Do("GET", "/health");
  Complete(client, R"(,"seed":5)");
  Complete(client, "");
  const auto submitted = service_.submitted();
  ASSERT_EQ(submitted.size(), 3u);
  SeedSource expected(7);
  EXPECT_EQ(submitted[0].sampling.seed, expected.Next());
  EXPECT_EQ(submitted[1].sampling.seed, 5u);
  EXPECT_EQ(submitted[2].sampling.seed, expected.Next());
}

TEST(SeedSource, AGivenSeedRepeatsAndNoneDoesNot) {
  SeedSource once(3), again(3), other(4), none(0), also_none(0);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t seed = once.Next();
    EXPECT_EQ(seed, again.Next());
    for (const std::uint64_t number : {seed, other.Next(), none.Next(), also_none.Next(), RandomIdBits()}) {
      EXPECT_TRUE(seen.insert(number).second) << i;
    }
  }
}

// One known seed of a keyed sequence gives no other: SplitMix64 and the attack above do not continue it.
TEST(SeedSource, SeedsDoNotPredictOneAnother) {
  SeedSource seeds(3);
  Attacker attacker({seeds.Next(), seeds.Next(), seeds.Next(), seeds.Next()});
  EXPECT_NE(attacker.Next(), seeds.Next());
}

}  // namespace
}  // namespace loramux::random_source_test
