// Finds in a local graph the nodes that a fused op stands for (ops/fusion.h), by the op's composition.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/compile/fuse.h"
#include "engine/compile/rewriter.h"
#include "engine/ops/fusion.h"

namespace engine::compile {

// What a variant of a row looks for: the nodes of the composition as the graph has them once the rows above have been
// applied. Their values are numbered.
struct FusionPattern {
  struct Node {
    const graph::OpDef* op = nullptr;
    std::vector<int> inputs, outputs;
    // It has the attributes of the fused op: all of them, or only those `shared`. Those `fixed` are the composition's own;
    // a fixed 0 may be missing.
    bool has_all = false;
    std::vector<std::string> shared = {};
    graph::Attributes fixed = {};
  };
  std::vector<Node> nodes;
  int values = 0;
  std::vector<int> inputs, outputs;  // of the fused op
  graph::Attributes attributes;      // that the variant sets
  std::size_t at = 0, named_by = 0;  // nodes
  int asked = -1;                    // value of which the device is asked; −1: it is not
  int excepted = -1;                 // value of FusionRow::except; −1: none
};

struct RowPatterns {
  const ops::FusionRow* row = nullptr;
  std::vector<FusionPattern> variants;
};

// `rows` outlive what is returned. CHECKs that the nodes that a row names are in its composition, once each.
std::vector<RowPatterns> PatternsOf(std::span<const ops::FusionRow> rows);

struct FusionMatch {
  LocalNode fused;
  int at = -1;              // the node that it replaces
  std::vector<int> others;  // the nodes that go with that one
  std::int32_t asked = -1;  // the value of which the device was asked; −1: none
};

// The fused node that would replace node `at`, of the first variant that matches there; nothing where none does.
std::optional<FusionMatch> FindFusion(const RowPatterns& row, int at, const FuseOptions& options,
                                      const Rewriter& graph);
void ApplyFusion(FusionMatch match, Rewriter* graph);

}  // namespace engine::compile
