// The forms of linear_cross_entropy (engine/ops/fused.h).
#pragma once

#include <string>
#include <vector>

#include "tests/ops/cases.h"

namespace engine::ops_test {

// Terms of the loss, what lies between product and softmax, a bias, and what is frozen.
struct HeadForm {
  std::string label;
  graph::Attributes attributes;  // beside those of every head
  bool bias = false;
};

std::vector<HeadForm> HeadForms();

// Inputs x [2, 5, 6], w [16, 6], labels below 13[, b].
Case HeadCase(const HeadForm& form);

}  // namespace engine::ops_test
