#include "etcd/membership.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "http/json_reader.h"
#include "http/url.h"

namespace loramux {
namespace {

constexpr std::size_t kMaxIdBytes = 128;
const JsonLimits kMemberLimits = {
    .max_depth = 4, .max_values = 64, .max_string = 4096, .subject = "The server's entry"};

bool IsIdCharacter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
         std::string_view("._:[]-").find(c) != std::string_view::npos;
}

std::vector<Member> MembersOf(const EtcdMirrorState& state) {
  std::vector<Member> members;
  for (const auto& [id, item] : state.values) {
    auto member = ParseMember(id, item.value);
    if (member.ok()) {
      members.push_back(*std::move(member));
    } else {
      spdlog::warn("etcd: the server '{}' is left out: {}", id.substr(0, kMaxIdBytes), member.error().message);
    }
  }
  return members;
}

}  // namespace

Status CheckMemberId(std::string_view id, std::string_view flag) {
  if (!id.empty() && id.size() <= kMaxIdBytes && std::all_of(id.begin(), id.end(), IsIdCharacter)) return Ok{};
  return InvalidArgument(fmt::format("{}: expected at most {} letters, digits and . _ : [ ] -, found '{}'", flag,
                                     kMaxIdBytes, id.substr(0, kMaxIdBytes)),
                         std::string(flag));
}

std::string MemberAsJson(const Member& member) {
  return DumpJson(
      {{"address", member.address}, {"instance", member.instance}, {"model", member.model}, {"weight", member.weight}});
}

Result<Member> ParseMember(const std::string& id, std::string_view text) {
  RETURN_IF_ERROR(CheckMemberId(id, "id"));
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, kMemberLimits));
  if (!json.is_object()) return InvalidArgument("expected a JSON object, found " + DescribeJson(json));
  FieldReader fields(json, "");
  Member member{.id = id};
  float weight = 1;
  fields.String("address", member.address);
  fields.String("instance", member.instance);
  fields.String("model", member.model);
  fields.Number("weight", 0, kMaxMemberWeight, /*open_min=*/true, weight);
  if (!fields.ok()) return fields.error();
  member.weight = weight;
  const bool has_scheme = member.address.starts_with("https://");
  RETURN_IF_ERROR(ParseUrl(has_scheme ? member.address : "http://" + member.address, "address"));
  return member;
}

LeasedKeysOptions MemberKeysOptions(const Member& self) {
  LeasedKeysOptions options{.ttl_seconds = kMemberTtlSeconds, .guarded_key = kServersPrefix + self.id};
  options.may_take = [self](const std::string& present) {
    const auto other = ParseMember(self.id, present);
    return !other.ok() || other->address == self.address;
  };
  return options;
}

void Register(LeasedKeys& keys, const Member& self) { keys.Set(kServersPrefix + self.id, MemberAsJson(self)); }

namespace {

// The members of a store, and those of a store whose data was lost until they register again.
class MemberList {
 public:
  explicit MemberList(std::function<void(std::vector<Member>)> on_change) : on_change_(std::move(on_change)) {}

  void Take(const EtcdMirrorState& state) {
    std::map<std::string, Member> now;
    for (Member& member : MembersOf(state)) now.emplace(member.id, std::move(member));
    if (state.epoch != epoch_) lost_.insert(last_.begin(), last_.end());
    epoch_ = state.epoch;
    std::erase_if(lost_, [&](const auto& item) { return now.contains(item.first); });
    last_ = now;
    now.insert(lost_.begin(), lost_.end());
    std::vector<Member> members;
    for (auto& [id, member] : now) members.push_back(std::move(member));
    on_change_(std::move(members));
  }

 private:
  const std::function<void(std::vector<Member>)> on_change_;
  std::uint64_t epoch_ = 0;
  std::map<std::string, Member> last_, lost_;
};

}  // namespace

std::unique_ptr<EtcdMirror> FollowMembers(EtcdClient& client, std::function<void(std::vector<Member>)> on_change) {
  const auto list = std::make_shared<MemberList>(std::move(on_change));
  return std::make_unique<EtcdMirror>(client, kServersPrefix, "the list of servers",
                                      [list](const EtcdMirrorState& state) { list->Take(state); });
}

}  // namespace loramux
