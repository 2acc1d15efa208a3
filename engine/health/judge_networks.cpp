#include "engine/health/judge_networks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace engine::health {
namespace {

std::vector<std::string_view> SplitAtCommas(std::string_view list) {
  std::vector<std::string_view> parts;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) parts.push_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return parts;
}

bool IsSet(const NcclSettings& settings, const std::string& name) {
  return !ValueOf(settings, name).empty() && ValueOf(settings, name) != "0";
}

// NCCL_NET: the name of a transport, of which NCCL takes any case.
bool Asks(const std::string& forced, const char* transport) {
  return strcasecmp(forced.c_str(), transport) == 0;
}

bool IsActive(const RdmaPort& port) { return port.state == "ACTIVE"; }
// NCCL's own transport for verbs; EFA is a plugin's.
bool IsOfVerbs(const RdmaPort& port) {
  return port.link_layer == "InfiniBand" || port.link_layer == "Ethernet";
}

std::string RateText(double gigabits) {
  return gigabits > 0 ? fmt::format("{:g} Gb/s", gigabits) : std::string("rate unknown");
}

std::string NameOf(const RdmaPort& port) { return fmt::format("{}:{}", port.device, port.port); }

template <typename T, typename Text>
std::string Joined(const std::vector<T>& list, const Text& text) {
  std::string joined;
  for (const T& one : list) joined += (joined.empty() ? "" : ", ") + text(one);
  return joined;
}

// Settings of which nothing here depends on the host's networks.
struct KnownSetting {
  const char* name;
  const char* trouble;
  bool only_if_set;  // "0" is as if it were not there
};
constexpr std::array<KnownSetting, 13> kTroubles = {{
    {"NCCL_COMM_ID", "all of a run's communicators would meet at this one address, and hang: leave it out",
     false},
    {"NCCL_P2P_DISABLE",
     "GPUs of one host exchange through the host's memory where NCCL does it: leave it out", true},
    {"NCCL_SHM_DISABLE",
     "GPUs of one host that do not reach each other's memory exchange over the network: leave it out", true},
    {"NCCL_ALGO", "sums over ranks may have other bits, and be slower, than without: leave it out", false},
    {"NCCL_PROTO", "sums over ranks may have other bits, and be slower, than without: leave it out", false},
    {"NCCL_MAX_NCHANNELS", "an upper limit to NCCL's speed: leave it out", false},
    {"NCCL_MAX_CTAS", "an upper limit to NCCL's speed: leave it out", false},
    {"NCCL_LAUNCH_MODE", "it is for programs whose thread drives several GPUs: leave it out", false},
    {"NCCL_BLOCKING_WAIT", "PyTorch's, not NCCL's; here --hang-timeout says how long an exchange may take",
     false},
    {"NCCL_ASYNC_ERROR_HANDLING", "PyTorch's, not NCCL's; here a lost rank always ends the others", false},
    {"NCCL_TIMEOUT", "nobody's; here --hang-timeout says how long an exchange may take", false},
    {"RDMAV_FORK_SAFE",
     "it slows memory down that is registered with the network, and breaks EFA: leave it out", false},
    {"FI_EFA_FORK_SAFE", "kernels from 5.15 on need it no more: leave it out", false},
}};

// Variables of NCCL's user guide, of which others may be misspelt.
constexpr std::array<const char*, 67> kVariables = {"NCCL_SOCKET_IFNAME",
                                                    "NCCL_SOCKET_FAMILY",
                                                    "NCCL_SOCKET_RETRY_CNT",
                                                    "NCCL_SOCKET_RETRY_SLEEP_MSEC",
                                                    "NCCL_SOCKET_NTHREADS",
                                                    "NCCL_NSOCKS_PERTHREAD",
                                                    "NCCL_CROSS_NIC",
                                                    "NCCL_IB_HCA",
                                                    "NCCL_IB_TIMEOUT",
                                                    "NCCL_IB_RETRY_CNT",
                                                    "NCCL_IB_GID_INDEX",
                                                    "NCCL_IB_ADDR_FAMILY",
                                                    "NCCL_IB_ADDR_RANGE",
                                                    "NCCL_IB_ROCE_VERSION_NUM",
                                                    "NCCL_IB_SL",
                                                    "NCCL_IB_TC",
                                                    "NCCL_IB_FIFO_TC",
                                                    "NCCL_IB_RETURN_ASYNC_EVENTS",
                                                    "NCCL_OOB_NET_ENABLE",
                                                    "NCCL_OOB_NET_IFNAME",
                                                    "NCCL_UID_STAGGER_THRESHOLD",
                                                    "NCCL_UID_STAGGER_RATE",
                                                    "NCCL_NET",
                                                    "NCCL_NET_PLUGIN",
                                                    "NCCL_TUNER_PLUGIN",
                                                    "NCCL_PROFILER_PLUGIN",
                                                    "NCCL_IGNORE_CPU_AFFINITY",
                                                    "NCCL_CONF_FILE",
                                                    "NCCL_DEBUG",
                                                    "NCCL_DEBUG_FILE",
                                                    "NCCL_DEBUG_SUBSYS",
                                                    "NCCL_DEBUG_TIMESTAMP_FORMAT",
                                                    "NCCL_DEBUG_TIMESTAMP_LEVELS",
                                                    "NCCL_COLLNET_ENABLE",
                                                    "NCCL_COLLNET_NODE_THRESHOLD",
                                                    "NCCL_CTA_POLICY",
                                                    "NCCL_NETDEVS_POLICY",
                                                    "NCCL_TOPO_FILE",
                                                    "NCCL_TOPO_DUMP_FILE",
                                                    "NCCL_SET_THREAD_NAME",
                                                    "NCCL_P2P_DISABLE",
                                                    "NCCL_P2P_LEVEL",
                                                    "NCCL_P2P_DIRECT_DISABLE",
                                                    "NCCL_PXN_DISABLE",
                                                    "NCCL_SHM_DISABLE",
                                                    "NCCL_BUFFSIZE",
                                                    "NCCL_NTHREADS",
                                                    "NCCL_MAX_NCHANNELS",
                                                    "NCCL_MIN_NCHANNELS",
                                                    "NCCL_MAX_CTAS",
                                                    "NCCL_MIN_CTAS",
                                                    "NCCL_CHECKS_DISABLE",
                                                    "NCCL_CHECK_POINTERS",
                                                    "NCCL_LAUNCH_MODE",
                                                    "NCCL_IB_DISABLE",
                                                    "NCCL_IB_AR_THRESHOLD",
                                                    "NCCL_IB_QPS_PER_CONNECTION",
                                                    "NCCL_IB_SPLIT_DATA_ON_QPS",
                                                    "NCCL_IB_CUDA_SUPPORT",
                                                    "NCCL_IB_PCI_RELAXED_ORDERING",
                                                    "NCCL_NET_GDR_LEVEL",
                                                    "NCCL_NET_GDR_READ",
                                                    "NCCL_DMABUF_ENABLE",
                                                    "NCCL_ALGO",
                                                    "NCCL_PROTO",
                                                    "NCCL_CUMEM_ENABLE",
                                                    "NCCL_NVLS_ENABLE"};

// The variable that this name may be meant for; empty: it is one, or near none.
std::string MeantBy(const std::string& name) {
  if (!name.starts_with("NCCL_") || std::find(kVariables.begin(), kVariables.end(), name) != kVariables.end())
    return "";
  // Names have parts in common, which are no likeness: a letter may be too many, missing or another one, or two have changed places.
  for (const char* variable : kVariables) {
    const std::string known = variable;
    if (std::max(known.size(), name.size()) - std::min(known.size(), name.size()) > 2) continue;
    const std::size_t same = static_cast<std::size_t>(
        std::mismatch(name.begin(), name.end(), known.begin(), known.end()).first - name.begin());
    const std::string rest = name.substr(same);
    const std::string other = known.substr(same);
    for (const auto& [cut_a, cut_b] : {std::pair<std::size_t, std::size_t>{1, 0}, {0, 1}, {1, 1}}) {
      if (rest.size() >= cut_a && other.size() >= cut_b && rest.substr(cut_a) == other.substr(cut_b))
        return variable;
    }
    if (rest.size() >= 2 && other.size() >= 2 && rest[0] == other[1] && rest[1] == other[0] &&
        rest.substr(2) == other.substr(2))
      return variable;
  }
  return "";
}

class Judgement {
 public:
  Judgement(const Networks& networks, const NcclSettings& settings, const NetworkNeeds& needs)
      : networks_(networks), settings_(settings), needs_(needs) {}

  std::vector<NetworkFinding> Make() {
    TellWhatIsHere();
    if (needs_.hosts == 1) {
      Well("NCCL", "all ranks are on one host: no network between hosts is used");
    } else {
      JudgeAddresses();
      JudgeTransport();
      JudgeNeeds();
    }
    JudgeMemory();
    return std::move(findings_);
  }

 private:
  void Well(std::string what, std::string detail) {
    findings_.push_back({.what = std::move(what), .is_well = true, .detail = std::move(detail)});
  }
  void Trouble(std::string what, std::string detail) {
    findings_.push_back({.what = std::move(what), .is_well = false, .detail = std::move(detail)});
  }

  void TellWhatIsHere() {
    for (const NetworkInterface& one : networks_.interfaces)
      Well(one.name, fmt::format("{}, {}{}",
                                 one.addresses.empty() ? "no address"
                                                       : fmt::format("{}", fmt::join(one.addresses, ", ")),
                                 RateText(one.gigabits), one.runs ? "" : ", down"));
    for (const RdmaPort& port : networks_.ports)
      Well(NameOf(port), fmt::format("{}, {}, {}{}", port.driver == "efa" ? "EFA" : port.link_layer,
                                     port.state, RateText(port.gigabits),
                                     port.driver.empty() || port.driver == "efa" ? "" : ", " + port.driver));
    for (const auto& [name, setting] : settings_) {
      const auto known =
          std::find_if(kTroubles.begin(), kTroubles.end(),
                       [&, &name = name](const KnownSetting& one) { return name == one.name; });
      const bool is_trouble =
          known != kTroubles.end() && !(known->only_if_set && !IsSet(settings_, known->name));
      const std::string text = fmt::format("{} ({})", setting.value, setting.from);
      if (const std::string meant = MeantBy(name); !is_trouble && !meant.empty()) {
        Trouble(name, fmt::format("{}: NCCL has no such variable; did you mean {}?", text, meant));
        continue;
      }
      is_trouble ? Trouble(name, fmt::format("{}: {}", text, known->trouble)) : Well(name, text);
    }
  }

  // The interfaces at which NCCL's ranks meet, and through which they send where there is nothing better. Of each of them NCCL takes
  // the first address of the family that is asked for, which alone is told here.
  std::vector<NetworkInterface> Taken() const {
    const std::string family = ValueOf(settings_, "NCCL_SOCKET_FAMILY");
    const auto is_usable = [&](const std::string& address) {
      const bool is_v6 = address.find(':') != std::string::npos;
      return !address.empty() && address != "::1" && !(family == "AF_INET" && is_v6) &&
             !(family == "AF_INET6" && !is_v6);
    };
    const auto by = [&](std::string_view list) {
      std::vector<NetworkInterface> taken;
      for (const NetworkInterface& one : networks_.interfaces) {
        const auto address = std::find_if(one.addresses.begin(), one.addresses.end(), is_usable);
        if (address == one.addresses.end() || !TakenByList(list, one.name, -1)) continue;
        taken.push_back(one);
        taken.back().addresses = {*address};
      }
      return taken;
    };
    const std::string named = ValueOf(settings_, "NCCL_SOCKET_IFNAME");
    if (named.size() > 1) return by(named);
    for (const char* list : {"ib", "^docker,lo", "docker", "lo"}) {
      std::vector<NetworkInterface> taken = by(list);
      if (!taken.empty()) return taken;
    }
    return {};
  }

  void JudgeAddresses() {
    const std::vector<NetworkInterface> taken = Taken();
    const std::string names = Joined(taken, [](const NetworkInterface& one) {
      return fmt::format("{} ({})", one.name, one.addresses.front());
    });
    const std::string named = ValueOf(settings_, "NCCL_SOCKET_IFNAME");
    if (taken.empty()) {
      const std::string family = ValueOf(settings_, "NCCL_SOCKET_FAMILY");
      const std::string address =
          family.empty() ? "an address" : "an address of NCCL_SOCKET_FAMILY=" + family;
      Trouble("addresses",
              named.empty()
                  ? fmt::format("this host has no interface with {} for NCCL to meet at", address)
                  : fmt::format("NCCL_SOCKET_IFNAME={} takes none of this host's interfaces with {}, "
                                "and NCCL fails: name one of those above",
                                named, address));
      return;
    }
    const auto is_local = [](const NetworkInterface& one) {
      return one.name == "lo" || one.name.starts_with("docker") || one.name.starts_with("virbr");
    };
    if (std::all_of(taken.begin(), taken.end(), is_local)) {
      Trouble("addresses",
              fmt::format("NCCL meets at {}, which other hosts do not reach: NCCL_SOCKET_IFNAME names "
                          "the interface that they do",
                          names));
    } else if (!taken.front().runs) {
      Trouble(
          "addresses",
          fmt::format("NCCL meets at {} first, which is down: NCCL_SOCKET_IFNAME names another one", names));
    } else {
      Well("addresses", "NCCL meets at " + names);
    }
  }

  std::vector<RdmaPort> PortsOfVerbs() const {
    const std::string named = ValueOf(settings_, "NCCL_IB_HCA");
    std::vector<RdmaPort> taken;
    for (const RdmaPort& port : networks_.ports) {
      if (IsOfVerbs(port) && IsActive(port) && (named.empty() || TakenByList(named, port.device, port.port)))
        taken.push_back(port);
    }
    return taken;
  }

  // Whether it is not active, and somebody counts on it: NCCL_IB_HCA has its name in full, or the name of its card, of which no
  // port is active, or none of this host's ports is active and it is not excluded. Others may have no cable, and are only told.
  bool IsMissed(const RdmaPort& port) const {
    if (IsActive(port)) return false;
    const auto has_active = [&](const std::string& device) {
      return std::any_of(networks_.ports.begin(), networks_.ports.end(), [&](const RdmaPort& other) {
        return IsActive(other) && (device.empty() || other.device == device);
      });
    };
    const std::string named = ValueOf(settings_, "NCCL_IB_HCA");
    if (!has_active("") && (named.empty() || TakenByList(named, port.device, port.port))) return true;
    std::string_view list = named;
    if (list.starts_with('^')) return false;
    if (list.starts_with('=')) list.remove_prefix(1);
    const std::vector<std::string_view> parts = SplitAtCommas(list);
    const auto lists = [&](const std::string& name) {
      return std::find(parts.begin(), parts.end(), name) != parts.end();
    };
    return lists(NameOf(port)) || (lists(port.device) && !has_active(port.device));
  }

  void JudgeTransport() {
    const std::string forced = ValueOf(settings_, "NCCL_NET");
    const std::vector<RdmaPort> ports = PortsOfVerbs();
    const bool has_efa = std::any_of(networks_.ports.begin(), networks_.ports.end(),
                                     [](const RdmaPort& port) { return port.driver == "efa"; });
    const auto has_port = [&](const auto& is) {
      return std::any_of(networks_.ports.begin(), networks_.ports.end(), is);
    };
    const bool has_verbs = has_port([](const RdmaPort& port) { return IsOfVerbs(port) && IsActive(port); });
    for (const RdmaPort& port : networks_.ports) {
      if (IsMissed(port))
        Trouble(NameOf(port), fmt::format("its state is {}: no data goes through it", port.state));
    }
    if (has_efa && !networks_.has_plugin) {
      Trouble("EFA", "NCCL reaches it through a plugin, aws-ofi-nccl, and finds no " + PluginName(settings_) +
                         ": install it, and put its folder into LD_LIBRARY_PATH");
    }
    if (networks_.has_plugin && !Asks(forced, "IB") && !Asks(forced, "Socket")) {
      gigabits_ = 0;
      for (const RdmaPort& port : networks_.ports) gigabits_ += IsActive(port) ? port.gigabits : 0;
      Well("transport",
           fmt::format("the network plugin {}, where it takes the network", PluginName(settings_)));
      return;
    }
    if (IsSet(settings_, "NCCL_IB_DISABLE") && has_verbs) {
      Trouble("transport", "TCP, though there is InfiniBand or RoCE: leave NCCL_IB_DISABLE out");
    } else if (Asks(forced, "Socket") && has_verbs) {
      Trouble("transport", "TCP, though there is InfiniBand or RoCE: leave NCCL_NET out");
    } else if (!ports.empty() && !IsSet(settings_, "NCCL_IB_DISABLE") && !Asks(forced, "Socket")) {
      for (const RdmaPort& port : ports) gigabits_ += port.gigabits;
      is_verbs_ = true;
      Well("transport",
           fmt::format("verbs through {}, {} in all; GPUs {}", Joined(ports, NameOf), RateText(gigabits_),
                       networks_.has_peer_memory
                           ? "are read by the network's cards (nvidia_peermem)"
                           : "are read by the network's cards if the kernel has DMA-BUF of them; "
                             "the module nvidia_peermem is not loaded"));
      return;
    } else if (has_verbs) {
      Trouble("transport", fmt::format("TCP, as NCCL_IB_HCA={} takes no active port: name one of those above",
                                       ValueOf(settings_, "NCCL_IB_HCA")));
    } else if (Asks(forced, "IB")) {
      Trouble("transport",
              fmt::format("NCCL_NET={}, but there is no active port of InfiniBand or RoCE, and NCCL fails",
                          forced));
    } else {
      Well("transport", "TCP through these interfaces");
    }
    gigabits_ = 0;
    for (const NetworkInterface& one : Taken()) gigabits_ += one.runs ? one.gigabits : 0;
  }

  void JudgeNeeds() {
    const auto has = [&](const auto& is) {
      return std::any_of(networks_.ports.begin(), networks_.ports.end(), is);
    };
    if (needs_.network == "efa" && !has([](const RdmaPort& port) { return port.driver == "efa"; }))
      Trouble("recipe", "launch.network is \"efa\", and this host has none");
    if (needs_.network == "infiniband" &&
        !has([](const RdmaPort& port) { return IsOfVerbs(port) && IsActive(port); }))
      Trouble("recipe", "launch.network is \"infiniband\", and this host has no active port of it");
    if (needs_.host_gigabits <= 0 || gigabits_ <= 0) return;
    const std::string sums = fmt::format(
        "the plan counts on {:.4g} Gb/s for this host's devices (cluster.inter_node_bandwidth), "
        "and what NCCL takes has {:.4g}",
        needs_.host_gigabits, gigabits_);
    gigabits_ < 0.95 * needs_.host_gigabits ? Trouble("recipe", sums) : Well("recipe", sums);
  }

  void JudgeMemory() {
    constexpr std::int64_t kLeastShared = std::int64_t{1} << 30;
    constexpr double kMiB = 1 << 20;
    if (networks_.shared_memory_bytes < kLeastShared)
      Trouble(
          "/dev/shm",
          fmt::format("{:.0f} MiB, and NCCL needs more between GPUs of one host: docker run --shm-size=16g, "
                      "launch.shared_memory_bytes",
                      static_cast<double>(networks_.shared_memory_bytes) / kMiB));
    if (is_verbs_ && networks_.locked_bytes)
      Trouble(
          "locked memory",
          fmt::format(
              "a process may lock {:.0f} MiB, and verbs need all that they send from: ulimit -l unlimited, "
              "docker run --ulimit memlock=-1",
              static_cast<double>(*networks_.locked_bytes) / kMiB));
  }

  const Networks& networks_;
  const NcclSettings& settings_;
  const NetworkNeeds& needs_;
  double gigabits_ = 0;  // of what NCCL takes, together; 0: unknown
  bool is_verbs_ = false;
  std::vector<NetworkFinding> findings_;
};

}  // namespace

bool TakenByList(std::string_view list, std::string_view name, int port) {
  const bool takes_others = list.starts_with('^');
  if (takes_others) list.remove_prefix(1);
  const bool is_exact = list.starts_with('=');
  if (is_exact) list.remove_prefix(1);
  const std::vector<std::string_view> parts = SplitAtCommas(list);
  const bool is_listed = std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    const std::size_t colon = part.find(':');
    if (colon != std::string_view::npos && port >= 0) {
      int number = -1;
      std::from_chars(part.data() + colon + 1, part.data() + part.size(), number);
      if (number != port) return false;
    }
    part = part.substr(0, colon);
    return is_exact ? name == part : name.starts_with(part);
  });
  return is_listed != takes_others;
}

std::vector<NetworkFinding> JudgeNetworks(const Networks& networks, const NcclSettings& settings,
                                          const NetworkNeeds& needs) {
  return Judgement(networks, settings, needs).Make();
}

}  // namespace engine::health
