// The networks of this host, and the settings by which NCCL chooses among them. Nothing is sent, and NCCL is not asked.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace engine::health {

// An IP network interface.
struct NetworkInterface {
  std::string name;                    // "eth0"
  std::vector<std::string> addresses;  // IPv4 and IPv6, in the system's order; none: NCCL does not see it
  bool runs = true;                    // it is up, and its cable is plugged in
  double gigabits = 0;                 // per second; 0: unknown, as of virtual ones
};

// A port of a network card that reads and writes other hosts' memory: InfiniBand, RoCE or EFA.
struct RdmaPort {
  std::string device;  // "mlx5_0"
  int port = 1;
  std::string link_layer;  // "InfiniBand", "Ethernet" (RoCE), else "Unspecified" (EFA)
  std::string driver;      // "mlx5_core", "efa"; empty: unknown
  std::string state;       // "ACTIVE", "DOWN", …
  double gigabits = 0;     // per second
};

struct Networks {
  std::vector<NetworkInterface> interfaces;       // in the system's order
  std::vector<RdmaPort> ports;                    // by name
  bool has_peer_memory = false;                   // the kernel's module nvidia_peermem is loaded
  std::int64_t shared_memory_bytes = 0;           // size of /dev/shm; 0: there is none
  std::optional<std::int64_t> locked_bytes = {};  // how much a process may lock; nullopt: as much as there is
  bool has_plugin = false;  // a network plugin of NCCL's, such as aws-ofi-nccl, can be loaded
};

// `root`: in front of /sys, for tests.
std::vector<RdmaPort> FindRdmaPorts(const std::string& root);
// `plugin`: the library's name.
Networks FindNetworks(const std::string& plugin);

// What sets a variable, and to what. NCCL reads a setting from its environment first, then from the file that NCCL_CONF_FILE names, else from ~/.nccl.conf,
// then from /etc/nccl.conf.
struct NcclSetting {
  std::string value;
  std::string from;  // "the environment", or the file
};
using NcclSettings =
    std::map<std::string, NcclSetting>;  // NCCL_…, and of libfabric and verbs FI_… and RDMAV_…

// `environment`: NAME=VALUE each. `read`: the content of a file, empty where there is none.
NcclSettings FindNcclSettings(const std::vector<std::string>& environment,
                              const std::function<std::string(const std::string& path)>& read);
NcclSettings FindNcclSettings();  // of this process
// Empty: it is not set.
std::string ValueOf(const NcclSettings& settings, const std::string& name);

// The library that NCCL looks for as its network plugin; empty: it loads none.
std::string PluginName(const NcclSettings& settings);

}  // namespace engine::health
