// Stands for NVIDIA's management library: one GPU, GPU-fake, hot and slowed down, which reports the XIDs of the variable
// FAKE_NVML_XIDS ("31,79") one after another.
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
int device = 0;
int events = 0;
bool watches = false;
constexpr int kInvalid = 2, kNotFound = 6, kTimeout = 10;

int Answer(const void* of, unsigned* number, unsigned value) {
  if (of != &device) return kInvalid;
  *number = value;
  return 0;
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return std::getenv("FAKE_NVML_BROKEN") != nullptr ? 9 : 0; }
const char* nvmlErrorString(int code) {
  return code == 9 ? "Driver Not Loaded" : code == kNotFound ? "Not Found" : "Unknown Error";
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  if (std::strcmp(uuid, "GPU-fake") != 0) return kNotFound;
  *handle = &device;
  return 0;
}
int nvmlDeviceGetClockInfo(void* of, int type, unsigned* mhz) {
  return type == 1 ? Answer(of, mhz, 1410) : kInvalid;
}
int nvmlDeviceGetMaxClockInfo(void* of, int type, unsigned* mhz) {
  return type == 1 ? Answer(of, mhz, 1980) : kInvalid;
}
int nvmlDeviceGetTemperature(void* of, int sensor, unsigned* celsius) {
  return sensor == 0 ? Answer(of, celsius, 88) : kInvalid;
}
int nvmlDeviceGetPowerUsage(void* of, unsigned* milliwatts) { return Answer(of, milliwatts, 411600); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* of, unsigned long long* reasons) {
  if (of != &device) return kInvalid;
  *reasons = 0x1 | 0x4 | 0x20;
  return 0;
}
int nvmlEventSetCreate(void** set) {
  *set = &events;
  return 0;
}
int nvmlDeviceRegisterEvents(void* of, unsigned long long types, void* set) {
  watches = of == &device && types == 8 && set == &events;
  return watches ? 0 : kInvalid;
}
int nvmlEventSetWait_v2(void* set, EventData* event, unsigned) {
  static const char* at = std::getenv("FAKE_NVML_XIDS");
  if (!watches || set != &events) return kInvalid;
  if (at == nullptr || *at == '\0') return kTimeout;
  char* end = nullptr;
  *event = {&device, 8, std::strtoull(at, &end, 10), 0, 0};
  at = *end == ',' ? end + 1 : end;
  return 0;
}
int nvmlEventSetFree(void*) { return 0; }
}
