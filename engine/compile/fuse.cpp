#include "engine/compile/fuse.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/units.h"
#include "engine/compile/fuse_attention.h"
#include "engine/compile/fuse_norm.h"
#include "engine/compile/match.h"
#include "engine/compile/quantize.h"
#include "engine/compile/rewriter.h"
#include "engine/ops/fusion.h"

namespace engine::compile {
namespace {

using ops::FusionStage;

// What compositions look like does not depend on the graph.
const std::vector<RowPatterns>& Patterns() {
  static const std::vector<RowPatterns> patterns = PatternsOf(ops::FusionRows());
  return patterns;
}

// Tokens of a chunk of the head: equal chunks, a multiple of 128 tokens where there are so many.
std::int64_t TokensOfChunk(const plan::LocalValue& logits, std::int64_t logits_bytes) {
  const std::int64_t tokens = logits.local.elements(0, logits.local.rank() - 1);
  const std::int64_t chunks = (logits.local_bytes() + logits_bytes - 1) / logits_bytes;
  return std::min(tokens, RoundUp((tokens + chunks - 1) / chunks, 128));
}

// A head works on as many tokens at a time as the budget allows; the device was asked of its logits.
void CutHead(const FuseOptions& options, const Rewriter& graph, FusionMatch* match) {
  match->fused.name += ".loss";
  match->fused.attributes.Set("chunk", TokensOfChunk(graph.value(match->asked), options.logits_bytes));
}

void FuseRows(FusionStage stage, const FuseOptions& options, Rewriter* graph) {
  bool has_gradients = false;
  for (int i = 0; i < graph->size(); ++i)
    has_gradients = has_gradients || graph->node(i).phase == graph::Phase::kBackward;
  for (const RowPatterns& row : Patterns()) {
    if (row.row->stage != stage || (row.row->without_gradients && has_gradients)) continue;
    for (int i = 0; i < graph->size(); ++i) {
      std::optional<FusionMatch> match = FindFusion(row, i, options, *graph);
      if (!match.has_value()) continue;
      if (match->fused.op->family == graph::Family::kHead) CutHead(options, *graph, &*match);
      ApplyFusion(*std::move(match), graph);
    }
  }
}

}  // namespace

void Fuse(const FuseOptions& options, LocalGraph* graph) {
  const bool fp8 = !options.fp8.gradients.empty();
  {
    Rewriter plain(graph);
    FuseRows(FusionStage::kEveryDevice, options, &plain);
    FuseAttention(options, &plain);
    plain.Finish();
  }
  if (fp8) QuantizeLinears(options.fp8, *options.logical, graph);
  if (options.profile->fuses) {
    Rewriter quantized(graph);
    FuseRows(FusionStage::kFirst, options, &quantized);
    FuseRepeatedNorms(options, &quantized);
    FuseRows(FusionStage::kLast, options, &quantized);
    quantized.Finish();
  }
  if (fp8 && options.fp8.head) QuantizeHead(options.fp8, *options.logical, graph);
}

}  // namespace engine::compile
