// Launchers of cross_entropy.cu. Tokens T (rows), columns V of this rank. Labels are int32 [T], −1: not
// counted. `control` (plan/control.h) may be null: loss scale 1.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// logits [rows, columns] of float, bf16 or fp16, 256-byte aligned. Column c is class first_class + c if c <
// classes, else padding.
struct Logits {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // below 2³¹
  std::int64_t classes = 0;  // 0 … columns
  std::int64_t first_class = 0;
};

// The terms of a token's loss beside its cross entropy: ε of label smoothing and ζ of the z-loss (ops/cross_entropy.cpp).
struct LossTerms {
  double smoothing = 0;
  double z_loss = 0;
  std::int64_t classes = 0;  // of all ranks, over which smoothing spreads; read only with it
  bool any() const { return smoothing != 0 || z_loss != 0; }
};

// What lies between the head's product z and the softmax (ops/scale.cpp, ops/softcap.cpp): by · z, and where cap is not
// 0, cap · tanh(by · z / cap).
struct LogitMap {
  double by = 1;
  double cap = 0;
  bool any() const { return by != 1 || cap != 0; }
};

// The loss of linear_cross_entropy on one chunk of tokens, forward and backward, in one pass over the logits:
//   token_loss[rows] f32 = lse − z_label where the label ≥ 0, else 0
//   logits = w · (softmax − onehot(label)), w = scale · control[kLossScale] · control[kLabelFactor] where the label ≥ 0, else 0
// both with what `terms` add. With a `map`, softmax and z_label are of the mapped logits, in fp32, and what is written is
// the gradient of those given.
// Columns from logits.classes on are padding: gradient 0. All classes must be here (first_class 0). A label ≥
// classes has no column: its loss is lse. `logits.data` is written.
void CrossEntropyInPlace(const Logits& logits, const std::int32_t* labels, double scale,
                         const LossTerms& terms, const LogitMap& map, const double* control,
                         float* token_loss, cudaStream_t stream);

// *loss (+)= Σ token_loss[rows] in f64, in an order fixed by `rows`. One block: for a chunk's some thousand
// rows.
void SumLosses(const float* token_loss, std::int64_t rows, bool accumulate, double* loss,
               cudaStream_t stream);

// lse[rows] = log Σ exp(z) over this rank's classes (−inf of none); target[rows] = z_label, 0 where the label
// is another rank's or −1; with label smoothing this rank's part of (1 − ε)·z_label + ε/V·Σ z, 0 where it is −1.
void CrossEntropy(const Logits& logits, const std::int32_t* labels, const LossTerms& terms, float* lse,
                  float* target, cudaStream_t stream);

// d_logits = weight · (exp(z − lse) − onehot(label)), with what `terms` add, 0 in padding columns. d_logits may be
// logits.data.
void CrossEntropyGrad(const Logits& logits, const std::int32_t* labels, const LossTerms& terms,
                      const float* lse, const float* weight, void* d_logits, cudaStream_t stream);

// weight[count] = scale · control[kLossScale] · control[kLabelFactor] where the label ≥ 0, else 0.
void LossWeight(const std::int32_t* labels, std::int64_t count, double scale, const double* control,
                float* weight, cudaStream_t stream);

// *loss (+)= Σ (lse − target + z_loss · lse²) over labels ≥ 0, in f64, in an order fixed by `count` and `blocks`.
// partial: `blocks` numbers of scratch.
void LossSum(const float* lse, const float* target, const std::int32_t* labels, std::int64_t count,
             double z_loss, bool accumulate, double* partial, int blocks, double* loss, cudaStream_t stream);

// log_probability[rows] = target − lse and rank[rows] = how many of this rank's classes come before the label's, by
// token_score in ops/cross_entropy.cpp; both 0 where the label is −1. Each logit is compared as fp32.
void TokenScore(const Logits& logits, const std::int32_t* labels, const float* lse, const float* target,
                float* log_probability, float* rank, cudaStream_t stream);

}  // namespace engine::backend::cuda
