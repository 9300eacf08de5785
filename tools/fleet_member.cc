#include "tools/fleet_member.h"

#include <fmt/format.h>

#include "base/log.h"
#include "http/random_source.h"
#include "http/url.h"
#include "tools/etcd_flags.h"

namespace loramux {
namespace {

using namespace std::chrono_literals;
// A start does not wait longer for etcd, nor for adapters that load slowly: they arrive while the server serves.
constexpr auto kPatienceWithEtcd = 6s, kPatienceWithLoads = 30s;

bool IsAnyAddress(const std::string& host) { return host == "0.0.0.0" || host == "::" || host == "[::]"; }

}  // namespace

void AddFleetMemberFlags(CommandLine& line, EtcdOptions& etcd, Member& self) {
  AddEtcdFlags(
      line, etcd,
      "Members of an etcd cluster (v3), as in http://a:2379,http://b:2379. The server registers there, and serves "
      "the adapters of the fleet's catalogue; loads and unloads change the catalogue");
  line.Add({.names = "--advertise",
            .target = &self.address,
            .unit = "HOST:PORT",
            .group = "Many servers",
            .help = "Address at which routers reach this server; without a port, that of --port",
            .default_text = "--host and --port",
            .needs = "--etcd"});
  line.Add({.names = "--server-id",
            .target = &self.id,
            .unit = "ID",
            .group = "Many servers",
            .help = "Name of this server in etcd; no other server may have it",
            .default_text = "the address of --advertise",
            .needs = "--etcd"});
}

Status CompleteMember(const EtcdOptions& etcd, const std::string& host, std::uint16_t port, bool tls, Member& self) {
  if (etcd.urls.empty()) return Ok{};
  if (self.address.empty() && IsAnyAddress(host)) {
    return InvalidArgument("--etcd: routers cannot reach a server at " + host +
                               "; give --advertise HOST:PORT with an address of this machine",
                           "--advertise");
  }
  const std::string given =
      self.address.empty() ? Url{.host = host, .port = std::to_string(port)}.authority() : self.address;
  ASSIGN_OR_RETURN(Url url, ParseUrl("http://" + given, "--advertise"));
  if (!url.prefix.empty()) {
    return InvalidArgument("--advertise: expected HOST:PORT, found '" + given + "'", "--advertise");
  }
  const bool has_port = given.ends_with(":" + url.port);
  if (!has_port) url.port = std::to_string(port);
  if (self.id.empty()) self.id = url.authority();
  self.address = (tls ? "https://" : "") + url.authority();
  self.instance = fmt::format("{:016x}", RandomIdBits());
  return CheckMemberId(self.id, "--server-id");
}

Result<std::unique_ptr<FleetMember>> FleetMember::Start(const EtcdOptions& etcd, Member self, AdapterAdmin& admin,
                                                        const Clock& clock) {
  std::unique_ptr<FleetMember> member(new FleetMember);
  ASSIGN_OR_RETURN(member->client_, EtcdClient::Open(etcd, clock));
  if (member->client_ == nullptr) return member;
  member->self_ = std::move(self);
  member->keys_ = std::make_unique<LeasedKeys>(*member->client_, clock, MemberKeysOptions(member->self_));
  member->follower_ =
      std::make_unique<CatalogueFollower>(admin, *member->client_, *member->keys_, clock, member->self_.id);
  return member;
}

FleetMember::~FleetMember() {
  if (client_ == nullptr) return;
  client_->Stop();
  follower_.reset();
  keys_.reset();
}

AdapterChanges FleetMember::ChangesTo(AdapterAdmin& admin) {
  AdapterChanges changes = ChangesOf(admin);
  if (follower_ == nullptr) return changes;
  changes.uploads = nullptr;  // other servers do not have them
  changes.load = [follower = follower_.get()](const auto& request) { return follower->Load(request); };
  changes.unload = [follower = follower_.get()](const auto& name) { return follower->Unload(name); };
  return changes;
}

void FleetMember::WaitForAdapters() {
  if (follower_ == nullptr) return;
  const bool complete = follower_->WaitUntilFirstPass(kPatienceWithEtcd, kPatienceWithLoads);
  spdlog::info("etcd ({}): {} adapters of the catalogue are loaded, {} could not be loaded{}", client_->names(),
               follower_->loaded(), follower_->failed(), complete ? "" : "; the start does not wait for the rest");
}

void FleetMember::Join() {
  if (keys_ == nullptr) return;
  Register(*keys_, self_);
  spdlog::info("etcd ({}): registers as '{}' at {}", client_->names(), self_.id, self_.address);
}

void FleetMember::Leave() {
  if (keys_ == nullptr) return;
  const Status status = keys_->Withdraw();
  if (!status.ok()) {
    spdlog::warn("etcd: the registration could not be withdrawn, so it stays for at most {} s: {}", kMemberTtlSeconds,
                 status.error().message);
  }
}

}  // namespace loramux
