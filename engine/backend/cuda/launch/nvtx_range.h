// Ranges of NVTX, which profilers show: in the domain "engine", apart from those of libraries, with the kernel as category. Without a
// profiler attached they cost next to nothing.
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <string>

namespace engine::backend::cuda {

// The name and the category that a profiler shows of a range. It is made once, and used for each time that its work is done.
class NvtxLabel {
 public:
  NvtxLabel(const std::string& name, const std::string& kernel);

 private:
  friend class NvtxRange;
  nvtxEventAttributes_t attributes_ = {};
};

// From its making to its end, on the calling thread. `label` lives as long.
class NvtxRange {
 public:
  explicit NvtxRange(const NvtxLabel& label);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace engine::backend::cuda
