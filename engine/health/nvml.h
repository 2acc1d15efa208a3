// What NVIDIA's management library (NVML, part of the driver) says of a GPU: how fast it runs and why not faster, and
// the errors that its driver reports (XID). The library is loaded when it is first needed; without it nothing is known.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace engine::health {

struct GpuHealth {
  unsigned clock_mhz = 0;  // of the multiprocessors
  unsigned most_clock_mhz = 0;
  unsigned temperature_c = 0;
  double power_w = 0;
  std::vector<std::string> slowed_by = {};  // "heat", "its power limit"; empty: nothing

  std::string Text() const;  // "1410 of 1980 MHz, 88 °C, 412 W, slowed by heat"
};

// An error of a GPU, as its driver numbers them (NVIDIA, "XID Errors").
struct Xid {
  std::uint64_t number = 0;
  // Whether the GPU, or what is on it, is not to be trusted any more; others are of the program that ran on it.
  bool is_fatal = false;

  std::string Text() const;  // "XID 79 (the GPU has fallen off the bus)"
};
Xid XidOf(std::uint64_t number);

// "GPU-01234567-89ab-…" of a UUID's 32 hex digits.
std::string UuidOf(const std::string& digits);

// One GPU of this machine. Health from any thread, WaitForXid from one at a time.
class Gpu {
 public:
  static constexpr const char* kLibrary = "libnvidia-ml.so.1";
  // `uuid`: as nvidia-smi gives it (UuidOf). Errors: the library is missing, NotFound; it knows no such GPU.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(const std::string& uuid,
                                                   const std::string& library = kLibrary);
  virtual ~Gpu() = default;

  virtual absl::StatusOr<GpuHealth> Health() = 0;
  // The next error; nullopt: none within that time. Error: the GPU does not report any.
  virtual absl::StatusOr<std::optional<Xid>> WaitForXid(std::chrono::milliseconds within) = 0;
};

}  // namespace engine::health
