// The servers of a fleet, as they register themselves in etcd: `/loramux/v1/servers/ID` on a lease (leased_keys.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "etcd/etcd_mirror.h"
#include "etcd/leased_keys.h"

namespace loramux {

inline constexpr char kServersPrefix[] = "/loramux/v1/servers/";
inline constexpr std::int64_t kMemberTtlSeconds = 10;
inline constexpr double kMaxMemberWeight = 1000;

// One server.
struct Member {
  std::string id;        // at most 128 of A-Z a-z 0-9 . _ : [ ] -
  std::string address;   // HOST:PORT, or https://HOST:PORT
  std::string instance;  // random, new with each start of the server
  std::string model;     // name of the base model
  double weight = 1;     // its share of the load, relative to the others' weights
  friend bool operator==(const Member&, const Member&) = default;
};

// Error: not such an id; the text names `flag`.
Status CheckMemberId(std::string_view id, std::string_view flag);

std::string MemberAsJson(const Member& member);
// Error: a field is missing or out of range.
Result<Member> ParseMember(const std::string& id, std::string_view json);

// Settings of the keys of server `self`: if it was restarted at the same address it takes its id over, while a server
// at another address waits until the id is free.
LeasedKeysOptions MemberKeysOptions(const Member& self);
// Registers `self`, or writes it anew.
void Register(LeasedKeys& keys, const Member& self);

// Calls `on_change` with all members, ascending by id, whenever they change. A member that cannot be read is left out,
// and the log says why. Members stay while etcd is silent, and if it lost its data, until they
// register again.
std::unique_ptr<EtcdMirror> FollowMembers(EtcdClient& client, std::function<void(std::vector<Member>)> on_change);

}  // namespace loramux
