// What the files of cases make theirs of.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/ops/cases.h"

namespace engine::ops_test {

inline constexpr std::int64_t kOne = 1;
inline constexpr std::int64_t kTwo = 2;

inline Input Make(const Shape& shape, Input::Kind kind, std::int64_t limit = 0) {
  Input input;
  input.shape = shape;
  input.kind = kind;
  input.limit = limit;
  return input;
}
inline Input Real(const Shape& shape) { return Make(shape, Input::kReal, 0); }
inline Input Positive(const Shape& shape) { return Make(shape, Input::kPositive, 0); }
inline Input Ids(const Shape& shape, std::int64_t limit) { return Make(shape, Input::kIds, limit); }
inline Input Labels(const Shape& shape, std::int64_t limit) { return Make(shape, Input::kLabels, limit); }
inline Input Positions(const Shape& shape) { return Make(shape, Input::kPositions, 0); }

// Of caches of keys and values, of latents, and of what generation does with them.
void AddCacheCases(std::vector<Case>* cases);
// Of experts and their routers.
void AddExpertCases(std::vector<Case>* cases);

}  // namespace engine::ops_test
