// What RankExecutor makes of an instruction before the first iteration; for the executor's own files.
#pragma once

#include <memory>
#include <vector>

#include "engine/executor/executor.h"

namespace engine::executor {

struct RankExecutor::Prepared {
  const plan::Instruction* instruction = nullptr;
  std::unique_ptr<backend::Launch> launch;  // null where every microbatch is the first
  std::unique_ptr<backend::Launch> first;   // of microbatch 0, where that overwrites sums; else null
  std::vector<backend::TensorView> outputs;
  backend::Launch* direct = nullptr;  // the sum that it reads directly
  bool left_out = false;              // other ranks run it
};

}  // namespace engine::executor
