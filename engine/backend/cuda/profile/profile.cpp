#include "engine/backend/cuda/profile/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/backend/cuda/profile/attention_tiles.h"
#include "engine/backend/cuda/profile/column_sums.h"
#include "engine/backend/cuda/profile/few_rows.h"
#include "engine/backend/cuda/profile/scratch.h"
#include "engine/backend/cuda/profile/scratch_attention.h"
#include "engine/backend/cuda/profile/scratch_cached_attention.h"
#include "engine/backend/cuda/profile/scratch_exchange.h"
#include "engine/graph/op.h"

namespace engine::backend::cuda {
namespace {

struct ScratchEntry {
  std::string_view op;
  ScratchRule bytes;
};

constexpr std::array kScratch = {
#define KERNEL(op, name)
#define KERNEL_SCRATCH(op, name, scratch) ScratchEntry{#op, scratch##Scratch},
#include "engine/backend/cuda/profile/kernels.list"
#undef KERNEL
#undef KERNEL_SCRATCH
};

constexpr std::array kKernels = {
#define KERNEL(op, name) std::string_view(#op),
#define KERNEL_SCRATCH(op, name, scratch) KERNEL(op, name)
#include "engine/backend/cuda/profile/kernels.list"
#undef KERNEL
#undef KERNEL_SCRATCH
};

std::int64_t ScratchBytes(std::string_view kernel, Types inputs, Types outputs,
                          const graph::Attributes& attributes, const CudaTarget& target) {
  const auto* entry =
      std::find_if(kScratch.begin(), kScratch.end(), [&](const auto& e) { return e.op == kernel; });
  return entry == kScratch.end() ? 0 : entry->bytes(inputs, outputs, attributes, target);
}

bool IsNarrow(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

// cuBLASLt's GELU epilogues keep the activation's input in 16 bits only, in rows of 16-byte pieces.
bool EpilogueTakes(const graph::TensorType& pre, const graph::Attributes&) {
  return IsNarrow(pre.dtype) && pre.shape[pre.shape.rank() - 1] % 8 == 0;
}

// How many terms the sums of a product have, whose input x and attributes these are.
std::int64_t TermsOf(const graph::TensorType& x, const graph::Attributes& attributes) {
  return x.shape.elements(x.shape.rank() - static_cast<int>(attributes.Int("in_dims")), x.shape.rank());
}
bool HasFewRows(const graph::TensorType& x, const graph::Attributes& attributes) {
  const std::int64_t terms = TermsOf(x, attributes);
  return terms > 0 && IsFewRows(x.dtype, x.dtype, x.shape.elements() / terms, terms);
}
// A norm before and a residual behind a product pay with one row, and cost with 8 and 16 (docs/performance.md).
bool HasOneRow(const graph::TensorType& x, const graph::Attributes& attributes) {
  return HasFewRows(x, attributes) && x.shape.elements() == TermsOf(x, attributes);
}
bool HasOneNormedRow(const graph::TensorType& x, const graph::Attributes& attributes) {
  return HasOneRow(x, attributes) && x.shape.elements() <= kMostNormedElements;
}

// With grouped queries, heads do not lie at one stride in the packed projection (J = 3: one query head a group).
bool HeadsHaveOneStride(const graph::TensorType& packed, const graph::Attributes&) {
  return packed.shape[3] == 3;
}

// Kernels of fused ops that do not take every tensor.
struct FusedEntry {
  std::string_view op;
  bool (*takes)(const graph::TensorType& of, const graph::Attributes& attributes);
};

constexpr std::array kFused = {
    FusedEntry{"linear_gelu", EpilogueTakes},   FusedEntry{"linear_dgrad_gelu", EpilogueTakes},
    FusedEntry{"linear_gated", HasFewRows},     FusedEntry{"linear_residual", HasOneRow},
    FusedEntry{"norm_linear", HasOneNormedRow}, FusedEntry{"attention_packed", HeadsHaveOneStride},
    FusedEntry{"rotary", HeadsHaveOneStride},
};

bool Fuses(const graph::OpDef& op, const graph::TensorType& of, const graph::Attributes& attributes) {
  if (!IsNarrow(of.dtype) && of.dtype != DType::kF32) return false;
  const auto* entry =
      std::find_if(kFused.begin(), kFused.end(), [&](const FusedEntry& e) { return e.op == op.name; });
  return entry == kFused.end() || entry->takes(of, attributes);
}

// The branch that a norm adds to its stream.
int BranchPart(std::int64_t columns, const graph::Attributes&) { return HoldsNormRows(columns) ? 1 : -1; }

// The gradient of what a norm returns, of rows that a block holds in registers (kernels/norm.h).
int GradientPart(std::int64_t columns, const graph::Attributes& attributes) {
  const bool again = attributes.Int("again", 0) != 0;
  return MakeNormGradGrid(1, columns).vectors == 1 && !again ? 0 : -1;
}

// Names what the op has no kernel for whose bits do not depend on how many tokens there are (ops/linear.cpp, ops/attention.cpp);
// empty: there is one.
std::string LacksInvariant(const graph::OpDef& op, Types inputs, const graph::Attributes& attributes,
                           const CudaTarget& target) {
  const auto lacks = [](std::string_view what) { return std::string(what) + " with generate.invariant"; };
  if (op.name == "linear") {
    const std::int64_t terms = inputs[1].shape.elements(
        inputs[1].shape.rank() - static_cast<int>(attributes.Int("in_dims")), inputs[1].shape.rank());
    if (!IsNarrow(inputs[0].dtype)) return lacks("products in fp32");
    return terms % 8 == 0 ? "" : lacks(fmt::format("products of {} terms, no multiple of 8,", terms));
  }
  const bool is_forward =
      op.name == "attention" || op.name == "attention_packed" || op.name == "cached_attention";
  if (!is_forward || attributes.Float("dropout", 0) > 0) return "";
  const std::string_view why = WhyNotInvariant(op.name, inputs, attributes, target.chip);
  return why.empty() ? "" : lacks(why);
}

std::string Lacks(const graph::OpDef& op, Types inputs, const graph::Attributes& attributes,
                  const CudaTarget& target) {
  const bool has = std::find(kKernels.begin(), kKernels.end(), op.name) != kKernels.end();
  if (!has) return std::string(op.name);
  if (op.name == "attention" || op.name == "attention_packed") {
    std::int64_t widest = 0;  // of q, k and v, or of the tensor of all of them
    for (std::size_t i = 0; i < (op.name == "attention" ? 3U : 1U); ++i)
      widest = std::max(widest, inputs[i].shape[inputs[i].shape.rank() - 1]);
    if (widest > kAttentionReferenceMaxHead)
      return fmt::format("{} with heads of {} elements, of which {} are the most", op.name, widest,
                         kAttentionReferenceMaxHead);
  }
  return attributes.Int("invariant", 0) != 0 ? LacksInvariant(op, inputs, attributes, target) : "";
}

// Kernels that add another rank's part of an input: of which one, or −1.
struct PartEntry {
  std::string_view op;
  int (*input)(std::int64_t columns, const graph::Attributes& attributes);
};

constexpr std::array kAddsPart = {
    PartEntry{"add_layer_norm", BranchPart},         PartEntry{"add_rms_norm", BranchPart},
    PartEntry{"add_dropout_layer_norm", BranchPart}, PartEntry{"add_dropout_rms_norm", BranchPart},
    PartEntry{"layer_norm_grad_add", GradientPart},  PartEntry{"rms_norm_grad_add", GradientPart},
};

const PartEntry* FindPart(std::string_view kernel) {
  const auto* entry =
      std::find_if(kAddsPart.begin(), kAddsPart.end(), [&](const PartEntry& e) { return e.op == kernel; });
  return entry == kAddsPart.end() ? nullptr : entry;
}

int PartOf(const graph::OpDef& op, const graph::TensorType& part, const graph::Attributes& attributes) {
  const PartEntry* entry = FindPart(op.name);
  if ((!IsNarrow(part.dtype) && part.dtype != DType::kF32) || entry == nullptr) return -1;
  return entry->input(part.shape[part.shape.rank() - 1], attributes);
}

}  // namespace

bool AddsPart(std::string_view kernel) { return FindPart(kernel) != nullptr; }

PeerAccess AccessOf(int count, const std::function<bool(int from, int to)>& reaches) {
  PeerAccess access;
  const auto all_reach = [&](int block) {
    for (int from = 0; from < count; ++from) {
      const int first = from / block * block;
      for (int to = first; to < std::min(first + block, count); ++to) {
        if (from == to || reaches(from, to)) continue;
        if (access.missing.empty())
          access.missing = fmt::format("GPU {} does not reach the memory of GPU {}", from, to);
        return false;
      }
    }
    return true;
  };
  int block = count;
  while (block > 1 && !all_reach(block)) --block;
  access.reach = block == count ? 0 : block;
  return access;
}

plan::DeviceProfile CudaProfile(bool deterministic, const CudaChip& chip) {
  const CudaTarget target = {deterministic, chip};
  const auto scratch_bytes = [target](std::string_view kernel, Types inputs, Types outputs,
                                      const graph::Attributes& attributes) {
    return ScratchBytes(kernel, inputs, outputs, attributes, target);
  };
  // Measured on an H200, forward and backward: GPT-2 large 3.2, Llama 1B with 4096 tokens 2.4.
  constexpr double kAttentionSlowdown = 3;
  return {.name = "cuda",
          .scratch_bytes = scratch_bytes,
          .exchange_bytes = ExchangeScratch,
          .overlaps = true,
          .pushes = true,
          .ordered_ranks = 2,  // two terms have one sum; NCCL adds more in an order of its own
          .fuses = Fuses,
          .adds_part = PartOf,
          .lacks = [target](
                       const graph::OpDef& op, Types inputs,
                       const graph::Attributes& attributes) { return Lacks(op, inputs, attributes, target); },
          .slow =
              [target](std::string_view kernel, Types inputs, const graph::Attributes& attributes) {
                return SlowAttention(kernel, inputs, attributes, target);
              },
          .attention_slowdown = kAttentionSlowdown};
}

}  // namespace engine::backend::cuda
