#include "engine/health/nvml.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

namespace engine::health {
namespace {

// From NVIDIA's nvml.h, whose functions and numbers do not change between drivers: the header is not needed.
using Device = struct NvmlDevice*;
using EventSet = struct NvmlEventSet*;
struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
constexpr int kSuccess = 0;
constexpr int kTimeout = 10;
constexpr int kMultiprocessors = 1;  // NVML_CLOCK_SM
constexpr int kOfGpu = 0;            // NVML_TEMPERATURE_GPU
constexpr unsigned long long kXidEvent = 8;

struct Reason {
  unsigned long long bit;
  const char* text;
};
// nvmlClocksThrottleReason…; idleness and clocks that somebody has set are no trouble of the GPU's, but the second explains a slow one.
constexpr std::array<Reason, 7> kReasons = {{{0x2, "clocks that were set"},
                                             {0x4, "its power limit"},
                                             {0x8, "its hardware"},
                                             {0x10, "another GPU, by sync boost"},
                                             {0x20, "heat"},
                                             {0x40, "heat, by its hardware"},
                                             {0x80, "the power supply"}}};

struct XidFacts {
  std::uint64_t number;
  const char* text;
  bool is_fatal = true;
};
// Those of which NVIDIA's list says that the GPU, its memory or its links failed, and the commonest that are the program's.
constexpr std::array<XidFacts, 13> kXids = {{{13, "an exception of a kernel", false},
                                             {31, "a kernel read or wrote where there is no memory", false},
                                             {43, "a program on the GPU stopped", false},
                                             {45, "a program on the GPU was ended", false},
                                             {48, "an error of its memory that cannot be corrected"},
                                             {63, "a row of its memory is to be replaced", false},
                                             {64, "a row of its memory could not be replaced"},
                                             {74, "an error of NVLink"},
                                             {79, "the GPU has fallen off the bus"},
                                             {94, "an error of its memory, contained in one program"},
                                             {95, "an error of its memory, not contained"},
                                             {119, "its system processor does not answer"},
                                             {120, "an error of its system processor"}}};

// What is called of the library, by name.
struct Functions {
  int (*init)();
  const char* (*error)(int);
  int (*handle)(const char*, Device*);
  int (*clock)(Device, int, unsigned*);
  int (*most_clock)(Device, int, unsigned*);
  int (*temperature)(Device, int, unsigned*);
  int (*power)(Device, unsigned*);
  int (*reasons)(Device, unsigned long long*);
  int (*create_set)(EventSet*);
  int (*watch)(Device, unsigned long long, EventSet);
  int (*wait)(EventSet, EventData*, unsigned);
  int (*free_set)(EventSet);
};

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<Functions> Load(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: its threads may run on
  if (library == nullptr) return NotFound("{} cannot be loaded: {}", path, dlerror());
  Functions f{};
  const bool is_whole = Find(library, "nvmlInit_v2", &f.init) && Find(library, "nvmlErrorString", &f.error) &&
                        Find(library, "nvmlDeviceGetHandleByUUID", &f.handle) &&
                        Find(library, "nvmlDeviceGetClockInfo", &f.clock) &&
                        Find(library, "nvmlDeviceGetMaxClockInfo", &f.most_clock) &&
                        Find(library, "nvmlDeviceGetTemperature", &f.temperature) &&
                        Find(library, "nvmlDeviceGetPowerUsage", &f.power) &&
                        Find(library, "nvmlDeviceGetCurrentClocksThrottleReasons", &f.reasons) &&
                        Find(library, "nvmlEventSetCreate", &f.create_set) &&
                        Find(library, "nvmlDeviceRegisterEvents", &f.watch) &&
                        Find(library, "nvmlEventSetWait_v2", &f.wait) &&
                        Find(library, "nvmlEventSetFree", &f.free_set);
  if (!is_whole) return FailedPrecondition("{}: {}", path, dlerror());
  return f;
}

class NvmlGpu final : public Gpu {
 public:
  NvmlGpu(const Functions& functions, Device device) : f_(functions), device_(device) {}
  ~NvmlGpu() override {
    if (events_ != nullptr) f_.free_set(events_);
  }

  absl::StatusOr<GpuHealth> Health() override {
    GpuHealth health;
    unsigned milliwatts = 0;
    unsigned long long reasons = 0;
    RETURN_IF_ERROR(Check(f_.clock(device_, kMultiprocessors, &health.clock_mhz), "its clock"));
    RETURN_IF_ERROR(
        Check(f_.most_clock(device_, kMultiprocessors, &health.most_clock_mhz), "its highest clock"));
    RETURN_IF_ERROR(Check(f_.temperature(device_, kOfGpu, &health.temperature_c), "its temperature"));
    RETURN_IF_ERROR(Check(f_.power(device_, &milliwatts), "its power"));
    RETURN_IF_ERROR(Check(f_.reasons(device_, &reasons), "what slows it"));
    health.power_w = milliwatts / 1e3;
    for (const Reason& reason : kReasons) {
      if ((reasons & reason.bit) != 0) health.slowed_by.emplace_back(reason.text);
    }
    return health;
  }

  absl::StatusOr<std::optional<Xid>> WaitForXid(std::chrono::milliseconds within) override {
    if (events_ == nullptr) {
      RETURN_IF_ERROR(Check(f_.create_set(&events_), "its errors"));
      RETURN_IF_ERROR(Check(f_.watch(device_, kXidEvent, events_), "its errors"));
    }
    EventData event{};
    const int code = f_.wait(events_, &event, static_cast<unsigned>(within.count()));
    if (code == kTimeout) return std::optional<Xid>();
    RETURN_IF_ERROR(Check(code, "its errors"));
    return std::optional(XidOf(event.data));
  }

 private:
  absl::Status Check(int code, const char* what) const {
    if (code == kSuccess) return absl::OkStatus();
    return Unavailable("NVML does not tell {} of a GPU: {}", what, f_.error(code));
  }

  const Functions f_;
  const Device device_;
  EventSet events_ = nullptr;  // made when it is first waited for
};

const XidFacts* FactsOf(std::uint64_t number) {
  const auto* const found =
      std::find_if(kXids.begin(), kXids.end(), [&](const XidFacts& facts) { return facts.number == number; });
  return found == kXids.end() ? nullptr : found;
}

}  // namespace

std::string GpuHealth::Text() const {
  std::string text =
      fmt::format("{} of {} MHz, {} °C, {:.0f} W", clock_mhz, most_clock_mhz, temperature_c, power_w);
  if (!slowed_by.empty()) text += fmt::format(", slowed by {}", fmt::join(slowed_by, " and "));
  return text;
}

Xid XidOf(std::uint64_t number) {
  const XidFacts* const facts = FactsOf(number);
  return {.number = number, .is_fatal = facts != nullptr && facts->is_fatal};
}

std::string Xid::Text() const {
  const XidFacts* const facts = FactsOf(number);
  return facts == nullptr ? fmt::format("XID {}", number) : fmt::format("XID {} ({})", number, facts->text);
}

std::string UuidOf(const std::string& digits) {
  std::string uuid = "GPU";
  std::size_t at = 0;
  for (const std::size_t length : {8, 4, 4, 4, 12}) {
    uuid += "-" + digits.substr(std::min(at, digits.size()), length);
    at += length;
  }
  return uuid;
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const std::string& uuid, const std::string& library) {
  ASSIGN_OR_RETURN(const Functions functions, Load(library));
  if (const int code = functions.init(); code != kSuccess)
    return Unavailable("{} cannot be used: {}", library, functions.error(code));
  Device device = nullptr;
  if (const int code = functions.handle(uuid.c_str(), &device); code != kSuccess)
    return NotFound("{} knows no GPU {}: {}", library, uuid, functions.error(code));
  return std::make_unique<NvmlGpu>(functions, device);
}

}  // namespace engine::health
