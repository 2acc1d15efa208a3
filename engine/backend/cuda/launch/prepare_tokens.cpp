#include <algorithm>
#include <cstddef>
#include <numbers>

#include "engine/backend/cuda/device/device.h"
#include "engine/backend/cuda/kernels/cross_entropy.h"
#include "engine/backend/cuda/kernels/tokens.h"
#include "engine/backend/cuda/launch/loss_terms.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_checks.h"
#include "engine/graph/rotary.h"

namespace engine::backend::cuda {
namespace {

// Where ids have an offset to their rows, rows begin so much earlier.
absl::StatusOr<TableRows> RowsOf(const char* op, const TensorView& table, const LaunchArgs& args) {
  ASSIGN_OR_RETURN(const Interval rows, OnePiece(op, table, 0));
  const std::int64_t offset = args.instruction->attributes().Int("offset", 0);
  return TableRows{.first_row = rows.start - offset, .rows = rows.length, .columns = table.shape[1]};
}

absl::StatusOr<Logits> LogitsOf(const char* op, const TensorView& logits,
                                const graph::Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOneElementType(op, {&logits}));
  const int classes = logits.shape.rank() - 1;
  ASSIGN_OR_RETURN(const Interval held, OnePiece(op, logits, classes));
  return Logits{.data = logits.data,
                .dtype = logits.dtype,
                .rows = logits.shape.elements(0, classes),
                .columns = logits.shape[classes],
                .classes = std::clamp<std::int64_t>(attributes.Int("classes") - held.start, 0, held.length),
                .first_class = held.start};
}

absl::StatusOr<Rotation> RotationOf(const char* op, const graph::Attributes& attributes, int head,
                                    bool inverse) {
  static_assert(Rotation::kMaxHalf == graph::RotaryTable::kMaxHalf);
  if (head % 2 != 0) {
    return Unimplemented("{}: no CUDA kernel turns heads of {} elements, only of an even number", op, head);
  }
  RETURN_IF_ERROR(graph::CheckRotary(attributes, head));
  const graph::RotaryTable table = graph::RotaryTableOf(attributes, head);
  Rotation rotation;
  rotation.half = static_cast<int>(table.half);
  rotation.inverse = inverse;
  rotation.interleaved = table.interleaved;
  rotation.factor = static_cast<float>(table.factor);
  for (std::size_t i = 0; i < static_cast<std::size_t>(table.half); ++i)
    rotation.turns[i] = table.frequencies[i] / (2 * std::numbers::pi);
  return rotation;
}

// None unless attribute rotary is 1.
absl::StatusOr<Rotation> OptionalRotationOf(const char* op, const graph::Attributes& attributes, int head,
                                            bool inverse) {
  if (attributes.Int("rotary", 0) == 0) return Rotation{};
  return RotationOf(op, attributes, head, inverse);
}

QkvShape ShapeOf(const TensorView& packed) {
  return {.tokens = packed.shape[0] * packed.shape[1],
          .groups = static_cast<int>(packed.shape[2]),
          .per_group = static_cast<int>(packed.shape[3]),
          .head = static_cast<int>(packed.shape[4]),
          .turned = static_cast<int>(packed.shape[3]) - 1};
}

// Null where nothing is rotated and there are none.
const std::int32_t* PositionsOf(const LaunchArgs& args, std::size_t input) {
  return args.inputs.size() > input ? args.inputs[input].as<std::int32_t>() : nullptr;
}

absl::StatusOr<Enqueue> PrepareRotaryInPlace(const LaunchArgs& args, const char* op, bool inverse) {
  const TensorView in = args.inputs[0];
  const TensorView out = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType(op, {&in, &out}));
  const QkvShape shape = ShapeOf(out);
  ASSIGN_OR_RETURN(const Rotation rotation,
                   RotationOf(op, args.instruction->attributes(), shape.head, inverse));
  const auto* positions = args.inputs[1].as<std::int32_t>();
  const auto bytes = static_cast<std::size_t>(out.shape.elements() * SizeOf(out.dtype));
  return [=](cudaStream_t stream, const KernelContext&) {
    if (in.data != out.data) {
      RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(out.data, in.data, bytes, cudaMemcpyDeviceToDevice, stream));
    }
    Rotary(out.data, shape, out.dtype, positions, rotation, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

absl::StatusOr<Enqueue> PrepareTurn(const LaunchArgs& args, const char* op, bool inverse) {
  const TensorView x = args.inputs[0];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType(op, {&x, &y}));
  const std::int64_t tokens = x.shape[0] * x.shape[1];
  const auto heads = static_cast<int>(x.shape[2]);
  const auto head = static_cast<int>(x.shape[3]);
  ASSIGN_OR_RETURN(const Rotation rotation, RotationOf(op, args.instruction->attributes(), head, inverse));
  const auto* positions = args.inputs[1].as<std::int32_t>();
  return [=](cudaStream_t stream, const KernelContext&) {
    Rotate(x.data, tokens, heads, head, x.dtype, positions, rotation, y.data, stream);
    return ToStatus(cudaGetLastError(), op);
  };
}

}  // namespace

absl::StatusOr<Enqueue> PrepareEmbedding(Device&, const LaunchArgs& args) {
  const TensorView ids = args.inputs[0];
  const TensorView table = args.inputs[1];
  const TensorView y = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("embedding", {&table, &y}));
  ASSIGN_OR_RETURN(const TableRows rows, RowsOf("embedding", table, args));
  return [=](cudaStream_t stream, const KernelContext&) {
    Embedding(ids.as<std::int32_t>(), ids.shape.elements(), table.data, rows, table.dtype, y.data, stream);
    return ToStatus(cudaGetLastError(), "embedding");
  };
}

absl::StatusOr<Enqueue> PrepareEmbeddingGrad(Device&, const LaunchArgs& args) {
  const TensorView ids = args.inputs[0];
  const TensorView dy = args.inputs[1];
  const TensorView d_table = args.outputs[0];
  RETURN_IF_ERROR(ExpectOneElementType("embedding_grad", {&dy}));
  if (d_table.dtype != DType::kBF16) RETURN_IF_ERROR(ExpectFloat("embedding_grad", {&d_table}));
  ASSIGN_OR_RETURN(const TableRows rows, RowsOf("embedding_grad", d_table, args));
  const std::int64_t tokens = ids.shape.elements();
  const EmbeddingGradLayout layout = LayoutOfEmbeddingGrad(tokens, rows.columns);
  RETURN_IF_ERROR(ExpectScratch("embedding_grad", args, layout.bytes));
  std::int64_t sort_bytes = 0;
  RETURN_IF_CUDA_ERROR(EmbeddingSortBytes(tokens, rows.rows, &sort_bytes));
  if (sort_bytes > layout.sort_bytes) {
    return Internal("embedding_grad: sorting {} tokens needs {} bytes, {} are planned", tokens, sort_bytes,
                    layout.sort_bytes);
  }
  const bool accumulate = (args.accumulate & 1U) != 0;
  const auto table_bytes = static_cast<std::size_t>(d_table.shape.elements() * SizeOf(d_table.dtype));
  std::byte* scratch = args.scratch.data();
  return [=](cudaStream_t stream, const KernelContext&) {
    if (!accumulate) RETURN_IF_CUDA_ERROR(cudaMemsetAsync(d_table.data, 0, table_bytes, stream));
    EmbeddingGrad(ids.as<std::int32_t>(), tokens, dy.data, dy.dtype, rows, d_table.data, d_table.dtype,
                  scratch, layout, stream);
    return ToStatus(cudaGetLastError(), "embedding_grad");
  };
}

absl::StatusOr<Enqueue> PrepareQkvSplit(Device&, const LaunchArgs& args) {
  const TensorView packed = args.inputs[0];
  const QkvParts parts{args.outputs[0].data, args.outputs[1].data, args.outputs[2].data};
  RETURN_IF_ERROR(
      ExpectOneElementType("qkv_split", {&packed, &args.outputs[0], &args.outputs[1], &args.outputs[2]}));
  const QkvShape shape = ShapeOf(packed);
  ASSIGN_OR_RETURN(const Rotation rotation, OptionalRotationOf("qkv_split", args.instruction->attributes(),
                                                               shape.head, /*inverse=*/false));
  const std::int32_t* positions = PositionsOf(args, 1);
  return [=](cudaStream_t stream, const KernelContext&) {
    QkvSplit(packed.data, shape, packed.dtype, positions, rotation, parts, stream);
    return ToStatus(cudaGetLastError(), "qkv_split");
  };
}

absl::StatusOr<Enqueue> PrepareQkvMerge(Device&, const LaunchArgs& args) {
  const TensorView packed = args.outputs[0];
  const QkvParts parts{args.inputs[0].data, args.inputs[1].data, args.inputs[2].data};
  RETURN_IF_ERROR(
      ExpectOneElementType("qkv_merge", {&packed, &args.inputs[0], &args.inputs[1], &args.inputs[2]}));
  const QkvShape shape = ShapeOf(packed);
  ASSIGN_OR_RETURN(const Rotation rotation, OptionalRotationOf("qkv_merge", args.instruction->attributes(),
                                                               shape.head, /*inverse=*/true));
  const std::int32_t* positions = PositionsOf(args, 3);
  return [=](cudaStream_t stream, const KernelContext&) {
    QkvMerge(parts, shape, packed.dtype, positions, rotation, packed.data, stream);
    return ToStatus(cudaGetLastError(), "qkv_merge");
  };
}

absl::StatusOr<Enqueue> PrepareRotary(Device&, const LaunchArgs& args) {
  return PrepareRotaryInPlace(args, "rotary", /*inverse=*/false);
}
absl::StatusOr<Enqueue> PrepareRotaryGrad(Device&, const LaunchArgs& args) {
  return PrepareRotaryInPlace(args, "rotary_grad", /*inverse=*/true);
}

absl::StatusOr<Enqueue> PrepareRotate(Device&, const LaunchArgs& args) {
  return PrepareTurn(args, "rotate", /*inverse=*/false);
}
absl::StatusOr<Enqueue> PrepareRotateGrad(Device&, const LaunchArgs& args) {
  return PrepareTurn(args, "rotate_grad", /*inverse=*/true);
}

absl::StatusOr<Enqueue> PrepareCrossEntropy(Device&, const LaunchArgs& args) {
  const TensorView lse = args.outputs[0];
  const TensorView target = args.outputs[1];
  RETURN_IF_ERROR(ExpectFloat("cross_entropy", {&lse, &target}));
  ASSIGN_OR_RETURN(const Logits logits,
                   LogitsOf("cross_entropy", args.inputs[0], args.instruction->attributes()));
  const auto* labels = args.inputs[1].as<std::int32_t>();
  const LossTerms terms = LossTermsOf(args.instruction->attributes());
  return [=](cudaStream_t stream, const KernelContext&) {
    CrossEntropy(logits, labels, terms, lse.as<float>(), target.as<float>(), stream);
    return ToStatus(cudaGetLastError(), "cross_entropy");
  };
}

absl::StatusOr<Enqueue> PrepareCrossEntropyGrad(Device&, const LaunchArgs& args) {
  const TensorView lse = args.inputs[2];
  const TensorView weight = args.inputs[3];
  const TensorView d_logits = args.outputs[0];
  RETURN_IF_ERROR(ExpectFloat("cross_entropy_grad", {&lse, &weight}));
  RETURN_IF_ERROR(ExpectOneElementType("cross_entropy_grad", {&args.inputs[0], &d_logits}));
  ASSIGN_OR_RETURN(const Logits logits,
                   LogitsOf("cross_entropy_grad", args.inputs[0], args.instruction->attributes()));
  const auto* labels = args.inputs[1].as<std::int32_t>();
  const LossTerms terms = LossTermsOf(args.instruction->attributes());
  return [=](cudaStream_t stream, const KernelContext&) {
    CrossEntropyGrad(logits, labels, terms, lse.as<float>(), weight.as<float>(), d_logits.data, stream);
    return ToStatus(cudaGetLastError(), "cross_entropy_grad");
  };
}

absl::StatusOr<Enqueue> PrepareTokenScore(Device&, const LaunchArgs& args) {
  const TensorView lse = args.inputs[2];
  const TensorView target = args.inputs[3];
  const TensorView log_probability = args.outputs[0];
  const TensorView rank = args.outputs[1];
  RETURN_IF_ERROR(ExpectFloat("token_score", {&lse, &target, &log_probability, &rank}));
  ASSIGN_OR_RETURN(const Logits logits,
                   LogitsOf("token_score", args.inputs[0], args.instruction->attributes()));
  const auto* labels = args.inputs[1].as<std::int32_t>();
  return [=](cudaStream_t stream, const KernelContext&) {
    TokenScore(logits, labels, lse.as<float>(), target.as<float>(), log_probability.as<float>(),
               rank.as<float>(), stream);
    return ToStatus(cudaGetLastError(), "token_score");
  };
}

absl::StatusOr<Enqueue> PrepareLossWeight(Device&, const LaunchArgs& args) {
  const TensorView labels = args.inputs[0];
  const TensorView weight = args.outputs[0];
  RETURN_IF_ERROR(ExpectFloat("loss_weight", {&weight}));
  const double scale = args.instruction->attributes().Float("scale");
  return [=](cudaStream_t stream, const KernelContext& context) {
    LossWeight(labels.as<std::int32_t>(), labels.shape.elements(), scale, context.control, weight.as<float>(),
               stream);
    return ToStatus(cudaGetLastError(), "loss_weight");
  };
}

absl::StatusOr<Enqueue> PrepareLossSum(Device&, const LaunchArgs& args) {
  const TensorView lse = args.inputs[0];
  const TensorView target = args.inputs[1];
  const TensorView labels = args.inputs[2];
  RETURN_IF_ERROR(ExpectFloat("loss_sum", {&lse, &target}));
  RETURN_IF_ERROR(ExpectScratch("loss_sum", args, sizeof(double)));
  const bool accumulate = (args.accumulate & 1U) != 0;
  auto* partial = reinterpret_cast<double*>(args.scratch.data());
  const int blocks = static_cast<int>(args.scratch.size() / sizeof(double));
  auto* loss = args.outputs[0].as<double>();
  const double z_loss = args.instruction->attributes().Float("z_loss", 0);
  return [=](cudaStream_t stream, const KernelContext&) {
    LossSum(lse.as<float>(), target.as<float>(), labels.as<std::int32_t>(), labels.shape.elements(), z_loss,
            accumulate, partial, blocks, loss, stream);
    return ToStatus(cudaGetLastError(), "loss_sum");
  };
}

}  // namespace engine::backend::cuda
