#include "engine/backend/cuda/launch/nvtx_range.h"

#include <cstdint>
#include <map>
#include <mutex>

namespace engine::backend::cuda {
namespace {

nvtxDomainHandle_t Domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("engine");
  return domain;
}

// The number of a kernel's category, from 1.
std::uint32_t CategoryOf(const std::string& kernel) {
  static std::mutex mutex;
  static std::map<std::string, std::uint32_t> numbers;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [found, is_new] = numbers.emplace(kernel, static_cast<std::uint32_t>(numbers.size() + 1));
  if (is_new) nvtxDomainNameCategoryA(Domain(), found->second, kernel.c_str());
  return found->second;
}

}  // namespace

NvtxLabel::NvtxLabel(const std::string& name, const std::string& kernel) {
  attributes_.version = NVTX_VERSION;
  attributes_.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes_.category = CategoryOf(kernel);
  attributes_.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes_.message.registered = nvtxDomainRegisterStringA(Domain(), name.c_str());
}

NvtxRange::NvtxRange(const NvtxLabel& label) { nvtxDomainRangePushEx(Domain(), &label.attributes_); }

NvtxRange::~NvtxRange() { nvtxDomainRangePop(Domain()); }

}  // namespace engine::backend::cuda
