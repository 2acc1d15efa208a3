// Which of a host's networks NCCL takes between hosts, and what is wrong with that: what its settings and its own rules come to. Source: NCCL's
// user guide, "Environment Variables", and src/misc/socket.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/health/network.h"

namespace engine::health {

// Whether a list as NCCL_SOCKET_IFNAME and NCCL_IB_HCA have it takes this one: "eth,en" those that begin so, "=eth0" that one, "^docker" all
// but those; "mlx5_0:1" that port of it. `port` −1: of no port.
bool TakenByList(std::string_view list, std::string_view name, int port);

// The needs of a run on several hosts. Each is 0 or empty where no recipe says it.
struct NetworkNeeds {
  std::int64_t hosts = 0;
  std::string network = {};  // launch.network
  double host_gigabits = 0;  // per second, that a plan counts on, of all devices of a host together
};

struct NetworkFinding {
  std::string what;  // "eth0", "NCCL_IB_HCA"
  bool is_well = true;
  std::string detail;  // what was found; else what is wrong with it, and what would be right
};

// What is here, with settings that are wrong wherever they are, and then what NCCL takes and what is wrong with that.
std::vector<NetworkFinding> JudgeNetworks(const Networks& networks, const NcclSettings& settings,
                                          const NetworkNeeds& needs);

}  // namespace engine::health
