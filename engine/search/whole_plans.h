// Estimates of models whose layers differ (model/layers.h): the whole plan of each layout, and its prediction. Exact, and as
// slow as compiling.
#pragma once

#include <cstdint>
#include <utility>

#include "engine/compile/compile.h"
#include "engine/search/estimator.h"

namespace engine::search {

class WholePlans final : public Estimator {
 public:
  explicit WholePlans(compile::CompileOptions options) : options_(std::move(options)) {}

  absl::StatusOr<Estimate> Fold(const recipe::Recipe& recipe, double slow_s) override;
  absl::StatusOr<std::int64_t> LeastBytes(const recipe::Recipe&) override { return 0; }
  double LeastSeconds(const recipe::Recipe&) override { return 0; }
  std::int64_t probes() const override { return compiled_; }

 private:
  compile::CompileOptions options_;
  std::int64_t compiled_ = 0;
};

}  // namespace engine::search
