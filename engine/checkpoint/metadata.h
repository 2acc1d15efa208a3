// What a checkpoint says about a run and about its tensors, besides their data.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/shape.h"
#include "engine/recipe/iteration_range.h"

namespace engine::checkpoint {

struct TensorInfo {
  // "layers.0.attention.qkv.weight"; of the optimizer's states "<folder>/<parameter>" (plan/optimizer.h): "adam.m/…"
  std::string name;
  Shape shape;  // logical, whole; rank 0 is a scalar
  DType dtype = DType::kF32;

  std::int64_t bytes() const { return shape.elements() * SizeOf(dtype); }
};

// The numbers that a run with a [guard] (recipe.h) remembers of earlier iterations: a run that goes on from this checkpoint judges by
// them as the run before it would have.
struct GuardState {
  std::vector<double> losses;  // of the last iterations that were trained, as many as the window has at most
  std::vector<double> grad_norms;                // of the same
  std::vector<recipe::IterationRange> left_out;  // by the guard, not by the recipe
  std::int64_t rewinds = 0;                      // so far
  std::int64_t skips = 0;                        // updates that were skipped, the last ones in a row

  bool operator==(const GuardState&) const = default;
};

struct Metadata {
  std::int64_t iteration = 0;         // iterations done
  std::int64_t consumed_samples = 0;  // the data position: the next sample's global index
  std::int64_t seed = 0;              // of the counter-based generator, whose draws need no other state
  // Updates done, of any optimizer; AdamW's bias correction has them as exponent. On disk the key is "adam_step",
  // which is older than the second optimizer.
  std::int64_t optimizer_steps = 0;
  // Of the consumed samples, those of iterations that were updates: where the learning-rate schedule stands. −1 in
  // checkpoints that were written before it was kept.
  std::int64_t schedule_samples = -1;
  // kAttentionDrawsVersion (base/attention_draws.h) of the run; 1 in checkpoints that were written before it was kept.
  std::int64_t attention_draws = 1;
  std::int64_t dropout_draws = 1;  // likewise kDropoutDrawsVersion (base/dropout_draws.h)
  std::string plan_hash;
  std::string recipe_toml;  // the resolved recipe, UTF-8
  std::string engine_version;
  std::map<std::string, std::int64_t> mesh;  // sizes of dp, tp, pp, cp, ep when it was written
  // Fingerprints (size and checksum) of the files that the run read besides its recipe, by a name for people
  // ("data text_document.bin"). Empty in checkpoints that were written before there were any.
  std::map<std::string, std::string> fingerprints = {};
  GuardState guard =
      {};  // as it begins where the run has no guard, and in checkpoints that were written before there was one
};

// Names: unique, no name a folder of another ("a" and "a/b"), 1 to 512 printable ASCII characters without
// blanks,
// '%', '@', '"' and '\', no empty, "." or ".." parts. Shapes: at most 32 dims (HDF5's limit), each at least
// 1, below 2^62 bytes in all.
absl::Status ValidateTensors(const std::vector<TensorInfo>& tensors);

// Counts are not negative, mesh axes at least 1.
absl::Status ValidateMetadata(const Metadata& metadata);

}  // namespace engine::checkpoint
