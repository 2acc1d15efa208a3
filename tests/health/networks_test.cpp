// Which networks NCCL takes: hosts that are made up, and this one.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/health/judge_networks.h"
#include "tests/recipe/test_files.h"

namespace engine::health {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// A host with two cards of InfiniBand, as clusters have them.
Networks Host() {
  const auto port = [](const std::string& device, const std::string& state) {
    return RdmaPort{.device = device,
                    .port = 1,
                    .link_layer = "InfiniBand",
                    .driver = "mlx5_core",
                    .state = state,
                    .gigabits = 400};
  };
  return {.interfaces = {{.name = "lo", .addresses = {"127.0.0.1"}},
                         {.name = "docker0", .addresses = {"172.17.0.1"}},
                         {.name = "eth0", .addresses = {"10.0.0.7"}, .gigabits = 25},
                         {.name = "eth1", .addresses = {"10.1.0.7"}, .runs = false}},
          .ports = {port("mlx5_0", "ACTIVE"), port("mlx5_1", "ACTIVE")},
          .has_peer_memory = true,
          .shared_memory_bytes = 64 * kGiB};
}

NcclSettings Set(const std::vector<std::string>& environment) {
  return FindNcclSettings(environment, [](const std::string&) { return std::string(); });
}

// The findings of what is wrong, or those of `what`, a line each.
std::string Wrong(const Networks& networks, const NcclSettings& settings = {},
                  const NetworkNeeds& needs = {}) {
  std::string text;
  for (const NetworkFinding& finding : JudgeNetworks(networks, settings, needs)) {
    if (!finding.is_well) text += fmt::format("{}: {}\n", finding.what, finding.detail);
  }
  return text;
}
std::string Found(const std::string& what, const Networks& networks, const NcclSettings& settings = {}) {
  for (const NetworkFinding& finding : JudgeNetworks(networks, settings, {})) {
    if (finding.what == what) return finding.detail;
  }
  return "";
}
bool Begins(const std::string& text, const std::string& with) { return text.starts_with(with); }

}  // namespace

TEST_CASE("networks: lists of interfaces and cards are read as NCCL reads them") {
  CHECK(TakenByList("eth,en", "eth0", -1));
  CHECK(TakenByList("eth,en", "enp3s0", -1));
  CHECK(!TakenByList("eth,en", "ib0", -1));
  CHECK(!TakenByList("=eth0,eth1", "eth10", -1));
  CHECK(TakenByList("=eth0,eth1", "eth1", -1));
  CHECK(TakenByList("^docker,lo", "eth0", -1));
  CHECK(!TakenByList("^docker,lo", "lo", -1));
  CHECK(TakenByList("^=eth0", "eth01", -1));
  CHECK(!TakenByList("^=eth0", "eth0", -1));
  CHECK(TakenByList("mlx5_0:1", "mlx5_0", 1));
  CHECK(!TakenByList("mlx5_0:1", "mlx5_0", 2));
  CHECK(TakenByList("mlx5_0", "mlx5_0", 2));
}

TEST_CASE("networks: settings come from the environment, then the user's file, then the system's") {
  const auto read = [](const std::string& path) -> std::string {
    if (path == "/home/a/.nccl.conf") return "# NCCL_NET=IB\nNCCL_IB_HCA=mlx5_9\nNCCL_IB_TIMEOUT=22\n";
    if (path == "/etc/nccl.conf") return "NCCL_IB_TIMEOUT=18\nNCCL_DEBUG=WARN\nOTHER=1\n";
    return "";
  };
  const NcclSettings settings = FindNcclSettings({"NCCL_IB_HCA=mlx5_0", "HOME=/home/a", "PATH=/bin"}, read);
  CHECK(settings.size() == 3);
  CHECK(settings.at("NCCL_IB_HCA").value == "mlx5_0");
  CHECK(settings.at("NCCL_IB_HCA").from == "the environment");
  CHECK(settings.at("NCCL_IB_TIMEOUT").value == "22");
  CHECK(settings.at("NCCL_IB_TIMEOUT").from == "/home/a/.nccl.conf");
  CHECK(settings.at("NCCL_DEBUG").from == "/etc/nccl.conf");
  const NcclSettings named = FindNcclSettings(
      {"NCCL_CONF_FILE=/etc/mine", "HOME=/home/a"},
      [](const std::string& path) { return std::string(path == "/etc/mine" ? "NCCL_NET=IB\n" : ""); });
  CHECK(named.at("NCCL_NET").from == "/etc/mine");
  CHECK(PluginName(Set({})) == "libnccl-net.so");
  CHECK(PluginName(Set({"NCCL_NET_PLUGIN=ofi"})) == "libnccl-net-ofi.so");
  CHECK(PluginName(Set({"NCCL_NET_PLUGIN=none"})).empty());
}

TEST_CASE("networks: what NCCL takes where nobody says anything") {
  Networks host = Host();
  CHECK(Wrong(host) == "");
  CHECK(Found("addresses", host) == "NCCL meets at eth0 (10.0.0.7), eth1 (10.1.0.7)");
  CHECK(Begins(Found("transport", host), "verbs through mlx5_0:1, mlx5_1:1, 800 Gb/s in all; GPUs are read"));
  host.interfaces.push_back({.name = "ib0", .addresses = {"10.9.0.7"}});
  CHECK(Found("addresses", host) == "NCCL meets at ib0 (10.9.0.7)");
  host.ports.clear();
  CHECK(Found("transport", host) == "TCP through these interfaces");
  host.interfaces = {{.name = "lo", .addresses = {"127.0.0.1"}},
                     {.name = "docker0", .addresses = {"172.17.0.1"}}};
  CHECK(Begins(Wrong(host), "addresses: NCCL meets at docker0 (172.17.0.1), which other hosts do not reach"));
  CHECK(Wrong(host, {}, {.hosts = 1}) == "");
}

TEST_CASE("networks: settings that this host contradicts are told, with what would be right") {
  Networks host = Host();
  CHECK(Begins(Wrong(host, Set({"NCCL_SOCKET_IFNAME=eno"})),
               "addresses: NCCL_SOCKET_IFNAME=eno takes none of this host's interfaces"));
  CHECK(
      Begins(Wrong(host, Set({"NCCL_SOCKET_IFNAME=lo"})), "addresses: NCCL meets at lo (127.0.0.1), which"));
  CHECK(Begins(Wrong(host, Set({"NCCL_SOCKET_IFNAME=eth1"})),
               "addresses: NCCL meets at eth1 (10.1.0.7) first, which is down"));
  CHECK(Begins(Wrong(host, Set({"NCCL_SOCKET_FAMILY=AF_INET6"})), "addresses: this host has no interface"));
  CHECK(
      Begins(Wrong(host, Set({"NCCL_IB_DISABLE=1"})), "transport: TCP, though there is InfiniBand or RoCE"));
  CHECK(Wrong(host, Set({"NCCL_IB_DISABLE=0"})) == "");
  for (const std::string sockets : {"Socket", "socket"}) {
    CHECK(Begins(Wrong(host, Set({"NCCL_NET=" + sockets})),
                 "transport: TCP, though there is InfiniBand or RoCE"));
  }
  CHECK(
      Begins(Wrong(host, Set({"NCCL_IB_HCA=mlx4"})), "transport: TCP, as NCCL_IB_HCA=mlx4 takes no active"));
  CHECK(Begins(Found("transport", host, Set({"NCCL_IB_HCA=^mlx5_0"})), "verbs through mlx5_1:1, 400 Gb/s"));
  CHECK(
      Wrong(host, Set({"NCCL_ALGO=Ring", "NCCL_P2P_DISABLE=0", "NCCL_TIMEOUT=9"})) ==
      "NCCL_ALGO: Ring (the environment): sums over ranks may have other bits, and be slower, than without: "
      "leave it out\nNCCL_TIMEOUT: 9 (the environment): nobody's; here --hang-timeout says how long an "
      "exchange may take\n");
  CHECK(Wrong(host, Set({"NCCL_SOCKET_IFNAM=eth0"})) ==
        "NCCL_SOCKET_IFNAM: eth0 (the environment): NCCL has no such variable; did you mean "
        "NCCL_SOCKET_IFNAME?\n");
  CHECK(Begins(Wrong(host, Set({"NCCL_IB_HAC=mlx5"})),
               "NCCL_IB_HAC: mlx5 (the environment): NCCL has no such"));
  CHECK(Begins(Wrong(host, Set({"NCCL_IB_HCB=mlx5"})),
               "NCCL_IB_HCB: mlx5 (the environment): NCCL has no such"));
  // NCCL_P2P_DISABLE is two letters away from either: one is a variable, the other is nobody's misspelling.
  CHECK(Wrong(host, Set({"NCCL_PXN_DISABLE=1", "NCCL_PAB_DISABLE=1"})) == "");
  CHECK(Wrong(host, Set({"NCCL_DEBUG=INFO", "NCCL_IB_QPS_PER_CONNECTION=4", "NCCL_NEWER_THAN_THIS=1"})) ==
        "");
  host.ports.front().state = "DOWN";
  CHECK(Wrong(host) == "");
  CHECK(Found("mlx5_0:1", host) == "InfiniBand, DOWN, 400 Gb/s, mlx5_core");
  CHECK(Begins(Found("transport", host), "verbs through mlx5_1:1, 400 Gb/s"));
  host.ports.pop_back();
  CHECK(Begins(Wrong(host), "mlx5_0:1: its state is DOWN"));
  CHECK(Wrong(host, Set({"NCCL_NET=IB"})).find("NCCL_NET=IB, but there is no active port") !=
        std::string::npos);
  CHECK(Wrong(host, Set({"NCCL_NET=ib"})).find("NCCL_NET=ib, but there is no active port") !=
        std::string::npos);
}

TEST_CASE("networks: a port that is down is trouble where somebody counts on it") {
  Networks host = Host();
  host.ports.push_back(host.ports.back());
  host.ports.back().port = 2;
  host.ports.back().state = "DOWN";
  host.ports.front().state = "DOWN";  // mlx5_0:1 and mlx5_1:2 are down, mlx5_1:1 is not
  const auto wrong = [&](const std::string& cards) { return Wrong(host, Set({"NCCL_IB_HCA=" + cards})); };
  const std::string of_first = "mlx5_0:1: its state is DOWN: no data goes through it\n";
  const std::string of_second = "mlx5_1:2: its state is DOWN: no data goes through it\n";
  for (const char* cards : {"mlx5", "mlx5_1", "=mlx5_1", "^mlx5_0", "^mlx5_0:1", "mlx5_1:1"})
    CHECK_MESSAGE(wrong(cards) == "", cards);
  CHECK(wrong("mlx5_0,mlx5_1") == of_first);
  CHECK(wrong("=mlx5_0:1,mlx5_1:1") == of_first);
  CHECK(wrong("mlx5_1:1,mlx5_1:2") == of_second);
  host.ports[1].state = "DOWN";
  const std::string of_all = of_first + "mlx5_1:1: its state is DOWN: no data goes through it\n" + of_second;
  CHECK(Wrong(host) == of_all);
  CHECK(wrong("mlx5") == of_all);
  CHECK(wrong("^mlx5_1") == of_first);
}

TEST_CASE("networks: of an interface's addresses the first of the family that is asked for is taken") {
  Networks host = Host();
  host.interfaces = {{.name = "lo", .addresses = {"127.0.0.1", "::1"}},
                     {.name = "eth0", .addresses = {"10.0.0.7", "fd00::2", "fe80::2"}},
                     {.name = "eth1", .addresses = {"10.1.0.7"}}};
  CHECK(Begins(Found("eth0", host), "10.0.0.7, fd00::2, fe80::2, "));
  CHECK(Found("addresses", host) == "NCCL meets at eth0 (10.0.0.7), eth1 (10.1.0.7)");
  CHECK(Found("addresses", host, Set({"NCCL_SOCKET_FAMILY=AF_INET"})) ==
        "NCCL meets at eth0 (10.0.0.7), eth1 (10.1.0.7)");
  CHECK(Wrong(host, Set({"NCCL_SOCKET_FAMILY=AF_INET6"})) == "");
  CHECK(Found("addresses", host, Set({"NCCL_SOCKET_FAMILY=AF_INET6"})) == "NCCL meets at eth0 (fd00::2)");
  CHECK(Begins(Wrong(host, Set({"NCCL_SOCKET_FAMILY=AF_INET6", "NCCL_SOCKET_IFNAME=eth1"})),
               "addresses: NCCL_SOCKET_IFNAME=eth1 takes none of this host's interfaces with an address of "
               "NCCL_SOCKET_FAMILY=AF_INET6"));
  // NCCL skips ::1, also where nothing else is there.
  host.interfaces.resize(1);
  CHECK(Begins(Wrong(host, Set({"NCCL_SOCKET_FAMILY=AF_INET6"})),
               "addresses: this host has no interface with an address of NCCL_SOCKET_FAMILY=AF_INET6"));
}

TEST_CASE("networks: what a recipe needs of them, and memory") {
  Networks host = Host();
  CHECK(Wrong(host, {}, {.hosts = 2, .network = "infiniband", .host_gigabits = 800}) == "");
  CHECK(
      Wrong(host, {}, {.hosts = 2, .host_gigabits = 3200}) ==
      "recipe: the plan counts on 3200 Gb/s for this host's devices (cluster.inter_node_bandwidth), and what "
      "NCCL takes has 800\n");
  CHECK(Begins(Wrong(host, Set({"NCCL_NET=Socket"}), {.hosts = 2, .host_gigabits = 800}), "transport: TCP"));
  CHECK(Wrong(host, Set({"NCCL_NET=Socket"}), {.hosts = 2, .host_gigabits = 800}).find("has 25\n") !=
        std::string::npos);
  CHECK(Wrong(host, {}, {.hosts = 2, .network = "efa"}) ==
        "recipe: launch.network is \"efa\", and this host has none\n");
  host.locked_bytes = 8 << 20;
  CHECK(Begins(Wrong(host), "locked memory: a process may lock 8 MiB"));
  CHECK(Wrong(host, Set({"NCCL_IB_DISABLE=1"})).find("locked") == std::string::npos);
  host.shared_memory_bytes = 64 << 20;
  CHECK(Begins(Wrong(host), "/dev/shm: 64 MiB, and NCCL needs more"));
  host = Host();
  for (RdmaPort& port : host.ports) {
    port.driver = "efa";
    port.link_layer = "Unspecified";
  }
  CHECK(Begins(Wrong(host),
               "EFA: NCCL reaches it through a plugin, aws-ofi-nccl, and finds no libnccl-net.so"));
  host.has_plugin = true;
  CHECK(Wrong(host, {}, {.hosts = 2, .network = "efa", .host_gigabits = 800}) == "");
}

TEST_CASE("networks: cards are found as the kernel shows them, and this host's interfaces") {
  const recipe::TemporaryFolder folder;
  const std::string root = folder.Path("");
  CHECK(FindRdmaPorts(root).empty());
  const std::string device = "sys/class/infiniband/mlx5_3/";
  for (const char* port : {"1", "2"}) {
    const std::string of_port = fmt::format("{}ports/{}/", device, port);
    folder.Write(of_port + "state", port[0] == '1' ? "4: ACTIVE\n" : "1: DOWN\n");
    folder.Write(of_port + "link_layer", "Ethernet\n");
    folder.Write(of_port + "rate", "200 Gb/sec (2X NDR)\n");
  }
  folder.Write(device + "device/vendor", "0x15b3\n");
  folder.Write("sys/bus/drivers/mlx5_core/bind", "");
  std::filesystem::create_directory_symlink(folder.Path("sys/bus/drivers/mlx5_core"),
                                            folder.Path(device + "device/driver"));
  const std::vector<RdmaPort> ports = FindRdmaPorts(root);
  REQUIRE(ports.size() == 2);
  CHECK(ports[0].device == "mlx5_3");
  CHECK(ports[0].driver == "mlx5_core");
  CHECK(ports[0].link_layer == "Ethernet");
  CHECK(ports[0].state == "ACTIVE");
  CHECK(ports[0].gigabits == 200);
  CHECK(ports[1].port == 2);
  CHECK(ports[1].state == "DOWN");

  const Networks here = FindNetworks("libno-such-plugin.so");
  CHECK(!here.has_plugin);
  CHECK(std::any_of(here.interfaces.begin(), here.interfaces.end(), [](const NetworkInterface& one) {
    return one.name == "lo" && !one.addresses.empty() && one.addresses.front() == "127.0.0.1" && one.runs;
  }));
}

}  // namespace engine::health
