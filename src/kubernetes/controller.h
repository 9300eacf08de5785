// The controller mode: LoraAdapter objects of one namespace become entries of the fleet's catalogue in etcd, and what
// the servers make of them becomes the objects' status. Several controllers may run: the catalogue changes by
// compare-and-swap.
//
// While the API server or etcd is silent, nothing changes: an entry is removed only after a complete list without its
// object.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stop_token>
#include <string>

#include "base/clock.h"
#include "etcd/etcd_client.h"
#include "kubernetes/kube_client.h"
#include "kubernetes/lora_adapter.h"
#include "kubernetes/plan.h"

namespace loramux {

inline constexpr char kOwnersPrefix[] = "/loramux/v1/kubernetes/";

struct ControllerOptions {
  std::string space;                                                   // the namespace
  std::chrono::nanoseconds status_interval = std::chrono::seconds(3);  // between two looks at what servers did
  std::chrono::nanoseconds first_pause = std::chrono::milliseconds(500), longest_pause = std::chrono::seconds(15);
};

class KubernetesController {
 public:
  // All must outlive the controller.
  KubernetesController(ControllerOptions options, const KubeClient& kubernetes, EtcdClient& etcd, const Clock& clock);

  // Works until `stop`. Called once.
  void Run(std::stop_token stop);

 private:
  void Follow(std::stop_token stop);
  Status ListAndWatch(std::stop_token stop);
  bool Take(std::string_view line, std::string& version, Status& failed);
  Status Sync(std::stop_token stop);
  Result<ControllerView> Look();
  Status Apply(const ControllerPlan& plan, std::stop_token stop);
  void Report(const char* what, const Status& status, std::string& last);
  void Sleep(std::stop_token stop, std::chrono::nanoseconds time);

  const ControllerOptions options_;
  const KubeClient& kubernetes_;
  EtcdClient& etcd_;
  const Clock& clock_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, LoraAdapterObject> objects_;  // by the object's name
  bool listed_ = false;                               // everything was read once
  bool new_ = false;                                  // objects_ changed since the last Sync
  std::string last_follow_, last_sync_;               // errors that the log has, of one thread each
};

}  // namespace loramux
