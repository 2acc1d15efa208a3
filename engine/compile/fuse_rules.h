// What the rules of fusion that are written by hand (compile/fuse_attention.h, compile/fuse_norm.h) are written with.
#pragma once

#include <initializer_list>

#include "engine/compile/fuse.h"
#include "engine/compile/rewriter.h"

namespace engine::compile {

// A rule looks at one node, and may replace it and others.
class FusionRules {
 public:
  FusionRules(const FuseOptions& options, Rewriter* graph)
      : options_(options), profile_(*options.profile), g_(*graph) {}

 protected:
  // Rule by rule, each for all nodes.
  template <typename Rules>
  void Apply(std::initializer_list<void (Rules::*)(int)> rules) {
    for (const auto rule : rules) {
      for (int i = 0; i < g_.size(); ++i) {
        if (g_.alive(i)) (static_cast<Rules*>(this)->*rule)(i);
      }
    }
  }

  bool SameChunk(const LocalNode& a, const LocalNode& b) const {
    return options_.chunk_of(a.unit) == options_.chunk_of(b.unit);
  }

  bool Has(const graph::OpDef& op, std::int32_t value) const {
    return profile_.fuses(op, g_.type(value), {});
  }

  const FuseOptions& options_;
  const plan::DeviceProfile& profile_;
  Rewriter& g_;
};

}  // namespace engine::compile
