#include "engine/cli/doctor.h"

#ifdef ENGINE_CUDA
#include <utility>

#include "engine/backend/cuda/device/survey.h"
#include "engine/backend/cuda/gemm/gemm_tuner.h"
#include "engine/backend/cuda/launch/attention_choice.h"
#include "engine/backend/cuda/libraries/libraries.h"
#include "engine/base/cache_folder.h"
#include "engine/base/units.h"
#include "engine/cli/cuda_device.h"
#endif

namespace engine::cli {

#ifdef ENGINE_CUDA

namespace {

namespace cuda = backend::cuda;

Finding LibraryFinding(std::string what, const absl::StatusOr<cuda::LoadedLibrary>& library) {
  if (!library.ok()) return FindingOf(std::move(what), library.status());
  return {.what = std::move(what), .detail = fmt::format("{}, {}", library->version, library->path)};
}

Finding GpuFinding(int index) {
  std::string what = fmt::format("GPU {}", index);
  const absl::StatusOr<cuda::Gpu> gpu = cuda::LookAtGpu(index);
  if (!gpu.ok()) return FindingOf(std::move(what), gpu.status());
  return {
      .what = std::move(what),
      .detail = fmt::format("{}, compute capability {}, {} of memory, {} free", gpu->name, gpu->capability,
                            FormatBytes(gpu->total_bytes), FormatBytes(gpu->free_bytes))};
}

Finding PeersFinding(int count) {
  const absl::StatusOr<cuda::PeerAccess> peers = cuda::LookAtPeers(count);
  Finding finding;
  if (!peers.ok()) {
    finding = FindingOf("peers", peers.status());
  } else {
    finding.what = "peers";
    finding.detail = "GPUs reach each other's memory: copy engines exchange";
    if (peers->reach == 1) finding.detail = peers->missing + ": NCCL exchanges";
    if (peers->reach > 1)
      finding.detail = fmt::format("{}: copy engines exchange within each {} GPUs, NCCL between them",
                                   peers->missing, peers->reach);
  }
  finding.needed = false;
  return finding;
}

void AddGpus(std::vector<Finding>* findings) {
  const absl::StatusOr<int> count = cuda::CountGpus();
  if (!count.ok()) return findings->push_back(FindingOf("GPU", count.status()));
  if (*count == 0) return findings->push_back(FindingOf("GPU", NotFound("the driver finds no GPU")));
  for (int index = 0; index < *count; ++index) {
    findings->push_back(GpuFinding(index));
    findings->back().needed = index == 0;  // the one that a run takes
  }
  if (*count > 1) findings->push_back(PeersFinding(*count));
}

}  // namespace

std::vector<Finding> CudaFindings() {
  std::vector<Finding> findings;
  findings.push_back({.what = "CUDA",
                      .detail = fmt::format("compiled with toolkit {} for {}", cuda::ToolkitVersion(),
                                            cuda::CompiledArchitectures())});
  const absl::StatusOr<std::string> driver = cuda::DriverVersion();
  if (driver.ok()) {
    findings.push_back({.what = "driver", .detail = "knows CUDA " + *driver});
    AddGpus(&findings);
  } else {
    findings.push_back(FindingOf("driver", driver.status()));
    findings.push_back(FindingOf("GPU", NotFound("none can be found without a driver")));
  }
  findings.push_back(LibraryFinding("cuBLASLt", cuda::LoadCublasLt()));
  findings.push_back(LibraryFinding("cuDNN", cuda::LoadCudnn()));
  findings.push_back(LibraryFinding("NCCL", cuda::LoadNccl()));
  findings.back().needed = false;
  return findings;
}

Finding CacheFinding() {
  const std::string file = GemmCacheFile();
  if (file.empty()) {
    Finding finding = FindingOf("cache", NotFound("no folder: set ENGINE_CACHE, XDG_CACHE_HOME or HOME"));
    finding.needed = false;
    return finding;
  }
  return {.what = "cache",
          .detail = fmt::format("{}, kept choices of {} matrix products and {} attentions", CacheFolder(),
                                cuda::CountKeptProducts(file), cuda::CountKeptAttentions(file)),
          .needed = false};
}

#else

std::vector<Finding> CudaFindings() {
  return {
      FindingOf("CUDA", NotFound("this program was compiled without CUDA; configure the build where nvcc is "
                                 "found"))};
}

Finding CacheFinding() { return {.what = "cache", .detail = "not used without CUDA", .needed = false}; }

#endif

}  // namespace engine::cli
