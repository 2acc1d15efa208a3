// Small shared pieces of the op definitions.
#pragma once

#include <cmath>
#include <string_view>
#include <vector>

#include "engine/graph/op.h"

namespace engine::ops {

using graph::Attributes;
using graph::AxisRule;
using graph::Dim;
using graph::Family;
using graph::GradientContext;
using graph::kNoValue;
using graph::OpDef;
using graph::Placement;
using graph::Reduction;
using graph::Signature;
using graph::TensorType;
using graph::TypeSpan;
using graph::ValueId;
using graph::ValueIds;
using graph::Work;
using Types = absl::StatusOr<std::vector<TensorType>>;

// The first `count` dims of a tensor.
inline TensorType Leading(const TensorType& of, int count, DType dtype) {
  TensorType type{.shape = {}, .dtype = dtype};
  for (int dim = 0; dim < count; ++dim) type.Append(of, dim);
  return type;
}

inline double Bytes(const TensorType& type) {
  return static_cast<double>(type.shape.elements()) * static_cast<double>(SizeOf(type.dtype));
}

inline double Bytes(TypeSpan types) {
  double sum = 0;
  for (const TensorType& type : types) sum += Bytes(type);
  return sum;
}

inline double Elements(const TensorType& type) { return static_cast<double>(type.shape.elements()); }

// Of an op that contracts its first two inputs a [m, k] and b [k, n] into its first output [m, n]: the number of terms
// of a sum is k = √(mk·kn / mn).
inline Work ProductWork(double flops, TypeSpan inputs, TypeSpan outputs) {
  const double results = Elements(outputs[0]);
  return {.flops = flops,
          .bytes = Bytes(inputs) + Bytes(outputs),
          .product_flops = flops,
          .results = results,
          .depth = results > 0 ? std::sqrt(Elements(inputs[0]) * Elements(inputs[1]) / results) : 0};
}

// The output dim and the contracted dim of a product that a weight-splitting axis may split (linear.cpp).
inline int OutSplit(const Attributes& attributes) { return static_cast<int>(attributes.Int("out_split", 0)); }
inline int InSplit(const Attributes& attributes) { return static_cast<int>(attributes.Int("in_split", 0)); }

// Whether a cache of this type keeps numbers of x's (cached_attention.cpp).
inline bool CanCache(const TensorType& cache, const TensorType& x) {
  return cache.dtype == x.dtype || cache.dtype == DType::kE4M3;
}
// Dtype of statistics (means, log-sum-exps) that go with activations of this dtype: at least fp32.
inline DType StatisticsDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// The same placement for every input and output: split along any dim of `rank`, or replicated.
std::vector<Signature> ElementwiseSignatures(int rank, size_t inputs, size_t outputs);
// Every input and output split along dim 0.
inline Signature SampleSplit(size_t inputs, size_t outputs) {
  return {std::vector<Placement>(inputs, Placement::S(0)), std::vector<Placement>(outputs, Placement::S(0))};
}

absl::Status ExpectInputs(TypeSpan inputs, size_t least, size_t most, std::string_view op);

}  // namespace engine::ops
