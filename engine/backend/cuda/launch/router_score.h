// Attribute score of a router's ops (engine/ops/route.cpp), for its kernels.
#pragma once

#include <string>

#include "engine/backend/cuda/kernels/router_score.h"
#include "engine/graph/graph.h"

namespace engine::backend::cuda {

inline RouterScore RouterScoreOf(const graph::Attributes& attributes) {
  const std::string& score = attributes.String("score");
  if (score == "softmax") return RouterScore::kSoftmax;
  return score == "sigmoid" ? RouterScore::kSigmoid : RouterScore::kSqrtSoftplus;
}

}  // namespace engine::backend::cuda
