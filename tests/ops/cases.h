// One small problem or more for every op: what the harness walks.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/op.h"
#include "tests/ops/tensor.h"

namespace engine::ops_test {

struct Input {
  enum Kind {
    kReal,       // uniform in [−1.5, 1.5)
    kPositive,   // uniform in [0.5, 1.5)
    kCached,     // as kReal, in e4m3 whatever the type of the others
    kIds,        // integers in [0, limit)
    kLabels,     // as ids, every fifth −1
    kPositions,  // 0, 1, 2, … along dim 1
    kGiven,      // integers, `given`
    kSlots,  // likewise: of `limit` slots of caches, −1 for none, which count from the first that a rank has
  };
  Shape shape;
  Kind kind = kReal;
  std::int64_t limit = 0;
  std::vector<std::int32_t> given = {};
};

struct Case {
  const graph::OpDef* op;
  std::string label;
  std::vector<Input> inputs;
  graph::Attributes attributes;
  std::int64_t terms = 1;  // terms of the longest sum behind an output element: scales the rounding error
  bool large = false;      // several tasks a kernel; too large for finite differences
  // Of rows of experts (graph/rows.h), whose parts on two ranks are no parts of a whole: chains of such ops are compared
  // (experts_test.cpp, tests/train/experts_test.cpp).
  bool rows = false;
};

const std::vector<Case>& AllCases();

// Inputs of a case; real ones in `real`. The same call gives the same values.
Tensors MakeInputs(const Case& test, DType real);

// The largest absolute value, at least 1.
double Scale(const Tensor& tensor);

// The largest absolute difference; infinite if any element is NaN in one of them.
double Distance(const Tensor& a, const Tensor& b);

}  // namespace engine::ops_test
