#include "engine/health/network.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace engine::health {
namespace {

namespace fs = std::filesystem;

std::string ContentOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

std::string LineOf(const std::string& path) {
  std::string text = ContentOf(path);
  return text.substr(0, text.find('\n'));
}

// The number that a text begins with; 0: none.
double NumberAtFront(const std::string& text) {
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::string AddressText(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* bytes = address.sa_family == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
                          : &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return inet_ntop(address.sa_family, bytes, text.data(), text.size()) == nullptr ? "" : text.data();
}

std::vector<NetworkInterface> FindInterfaces() {
  std::vector<NetworkInterface> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const sockaddr& address = *one->ifa_addr;
    if (address.sa_family != AF_INET && address.sa_family != AF_INET6) continue;
    const std::string name = one->ifa_name;
    const auto known =
        std::find_if(found.begin(), found.end(), [&](const auto& other) { return other.name == name; });
    if (known != found.end()) {
      known->addresses.push_back(AddressText(address));
      continue;
    }
    found.push_back(
        {.name = name,
         .addresses = {AddressText(address)},
         .runs = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_RUNNING) != 0,
         .gigabits = std::max(0.0, NumberAtFront(LineOf("/sys/class/net/" + name + "/speed"))) / 1e3});
  }
  freeifaddrs(all);
  return found;
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::vector<RdmaPort> FindRdmaPorts(const std::string& root) {
  std::vector<RdmaPort> ports;
  const std::string devices = root + "/sys/class/infiniband";
  for (const std::string& device : NamesIn(devices)) {
    std::error_code error;
    const std::string driver =
        fs::read_symlink(fmt::format("{}/{}/device/driver", devices, device), error).filename();
    for (const std::string& port : NamesIn(fmt::format("{}/{}/ports", devices, device))) {
      const std::string folder = fmt::format("{}/{}/ports/{}/", devices, device, port);
      const std::string state = LineOf(folder + "state");  // "4: ACTIVE"
      const std::size_t colon = state.find(": ");
      ports.push_back({.device = device,
                       .port = static_cast<int>(NumberAtFront(port)),
                       .link_layer = LineOf(folder + "link_layer"),
                       .driver = driver,
                       .state = colon == std::string::npos ? state : state.substr(colon + 2),
                       .gigabits = NumberAtFront(LineOf(folder + "rate"))});  // "400 Gb/sec (4X NDR)"
    }
  }
  return ports;
}

Networks FindNetworks(const std::string& plugin) {
  Networks networks{.interfaces = FindInterfaces(), .ports = FindRdmaPorts("")};
  networks.has_peer_memory = fs::exists("/sys/module/nvidia_peermem");
  struct statvfs shared = {};
  if (statvfs("/dev/shm", &shared) == 0)
    networks.shared_memory_bytes = static_cast<std::int64_t>(shared.f_blocks * shared.f_frsize);
  rlimit locked = {};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
    networks.locked_bytes = static_cast<std::int64_t>(locked.rlim_cur);
  if (!plugin.empty()) {
    if (void* library = dlopen(plugin.c_str(), RTLD_LAZY | RTLD_LOCAL); library != nullptr) {
      networks.has_plugin = true;
      dlclose(library);
    }
  }
  return networks;
}

NcclSettings FindNcclSettings(const std::vector<std::string>& environment,
                              const std::function<std::string(const std::string& path)>& read) {
  NcclSettings settings;
  const auto take = [&](std::string_view line, const std::string& from) {
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) return;
    const std::string_view name = line.substr(0, equals);
    for (const char* begin : {"NCCL_", "FI_", "RDMAV_"}) {
      if (name.starts_with(begin))  // what was there first stays
        settings.try_emplace(std::string(name), NcclSetting{std::string(line.substr(equals + 1)), from});
    }
  };
  std::string home;
  for (const std::string& variable : environment) {
    take(variable, "the environment");
    if (variable.starts_with("HOME=")) home = variable.substr(5);
  }
  const std::string named = ValueOf(settings, "NCCL_CONF_FILE");
  for (const std::string& path :
       {named.empty() ? home + "/.nccl.conf" : named, std::string("/etc/nccl.conf")}) {
    std::istringstream lines(read(path));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with('#')) take(line, path);
    }
  }
  return settings;
}

NcclSettings FindNcclSettings() {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
  return FindNcclSettings(environment, ContentOf);
}

std::string ValueOf(const NcclSettings& settings, const std::string& name) {
  const auto found = settings.find(name);
  return found == settings.end() ? "" : found->second.value;
}

std::string PluginName(const NcclSettings& settings) {
  const std::string named = ValueOf(settings, "NCCL_NET_PLUGIN");
  if (named.empty()) return "libnccl-net.so";
  if (named == "none") return "";
  return named.ends_with(".so") ? named : fmt::format("libnccl-net-{}.so", named);
}

}  // namespace engine::health
