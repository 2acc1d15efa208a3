// What a device can do, as far as a plan depends on it. Backends make it; they own the kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/op.h"
#include "engine/graph/placement.h"
#include "engine/plan/collective.h"

namespace engine::plan {

struct Conversion;  // plan/plan.h

// What keeps an op out of a family of fast kernels of a device.
struct Obstacle {
  std::string_view kernels;    // the family: "cuDNN", "the kernels for Hopper"
  std::string_view attribute;  // of the op, that it is about: "softcap"; else "head", "queries" or "device"
  std::string_view why;        // what the family does not take: "attention with a soft cap"
  std::string_view takes;      // what it takes instead: "no soft cap"
};

// How a device carries out a kernel that takes much longer than a fast one would.
struct SlowPath {
  enum class Kind : std::uint8_t {
    kNone,
    kReference,  // by plain code, which other kernels are compared with
    kMasked,     // with all the pairs of attention that its mask leaves out
  };
  Kind kind = Kind::kNone;
  std::string_view why = {};  // "attention with dropout", a string literal
  double flops = 0;           // of kMasked, that it computes
  // Of kReference where a recipe has to ask for reference kernels (precision.attention), and this op does not: all that keeps
  // it out of the fast ones, family by family.
  std::vector<Obstacle> obstacles = {};
};

struct DeviceProfile {
  std::string name = "cpu";
  // Bytes of scratch for one launch of a kernel (by Instruction::kernel) on these local types; null: none.
  std::function<std::int64_t(std::string_view kernel, graph::TypeSpan, graph::TypeSpan,
                             const graph::Attributes&)>
      scratch_bytes;
  // Bytes of scratch for one conversion of these local types between `members` ranks; null: none.
  std::function<std::int64_t(const Conversion&, const graph::TensorType& from, const graph::TensorType& to,
                             std::int64_t members)>
      exchange_bytes = {};
  // Whether exchange runs beside computation, and whether ranks of one host can push into each other's
  // memory.
  bool overlaps = false;
  bool pushes = false;
  // Aligned blocks of so many devices of a host within which all reach each other's memory; 0: all do. And
  // which do not, for the plan's note: "GPU 0 does not reach the memory of GPU 2".
  std::int64_t reach = 0;
  std::string unreachable = {};
  // Of how many ranks every exchange adds up terms in order of rank, rounded once; 0: of any. Sums of more do so where they
  // are told to (Addition::kInOrder).
  std::int64_t ordered_ranks = 0;
  // Whether there is a kernel for a fused op (ops/fused.h), by the local type of the tensor that its row in ops/fusion.cpp
  // names: the activation's input, the residual stream, the logits; of attention, the packed projection. With the attributes
  // that the fused op would have. Null: for none.
  std::function<bool(const graph::OpDef&, const graph::TensorType&, const graph::Attributes&)> fuses;
  // The input to which the op's kernel adds another rank's part of it, by the type of that part: −1: none.
  // Null: no kernel does.
  std::function<int(const graph::OpDef&, const graph::TensorType&, const graph::Attributes&)> adds_part = {};
  // Why the device has no kernel that carries an op with inputs of these local types out, in words ("select_token"); empty: it
  // has one. Null: it has one for every op.
  std::function<std::string(const graph::OpDef&, graph::TypeSpan inputs, const graph::Attributes&)> lacks =
      {};
  // How a kernel (by Instruction::kernel) with inputs of these local types is carried out where that is slow;
  // of others kNone. Null: none is slow.
  std::function<SlowPath(std::string_view kernel, graph::TypeSpan inputs, const graph::Attributes&)> slow =
      {};
  // How much longer attention takes than matrix products of as many FLOPs (causal pairs counted).
  double attention_slowdown = 1;
  // Recipe keys of which the device can run these words only (driver/check_device.h).
  struct Limit {
    std::string key;
    std::vector<std::string> words;
  };
  std::vector<Limit> limits = {};
};

}  // namespace engine::plan
