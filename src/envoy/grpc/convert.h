// Envoy's messages and the picker's plain ones.
#pragma once

#include "envoy/proxy_message.h"
#include "ext_proc.pb.h"

namespace loramux {

// Takes the body out of `request`.
ProxyMessage MessageOf(envoy::service::ext_proc::v3::ProcessingRequest& request);
// Takes the body out of `reply`.
envoy::service::ext_proc::v3::ProcessingResponse ResponseOf(ProxyReply& reply);

}  // namespace loramux
