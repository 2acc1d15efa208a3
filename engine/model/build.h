// The text of a model → logical forward graph of one microbatch, with its losses.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/graph/graph.h"
#include "engine/model/origins.h"
#include "engine/recipe/document.h"
#include "engine/recipe/recipe.h"

namespace engine::model {

struct BuildOptions {
  std::int64_t batch = 1;           // B: samples of the microbatch, over all data-parallel ranks
  std::int64_t rank_samples = 0;    // those of one of these ranks, a divisor of B; 0: not known
  std::int64_t sequence = 1;        // S: tokens of a sample
  std::int64_t vocab_multiple = 1;  // a vocabulary is padded to a multiple of it
  bool whole_experts = false;       // no axis splits the features of experts' matrices
  std::int64_t ep = 1;              // ranks that share the experts
  double expert_rows = 0;           // of a rank's buffers, times those of even loads; 0: of the worst load
  DType dtype = DType::kF32;        // of activations and weights
  bool dropout = true;              // false: as in evaluation
  bool windows = true;              // false: attention sees all that its masks leave it
  std::string_view attention_kernel = {};  // attribute kernel of every attention ("reference"); empty: none
  std::string_view forced_router = {};  // attribute force of every route (engine/ops/route.cpp); empty: none
  double global_samples = 1;            // of the global batch: a loss is a mean over its tokens
  double init_std = 0.02;               // of the initializer "normal"
  bool scores = false;  // the graph tells how well each label was predicted (graph::TokenScores)
  bool documents =
      false;  // attention sees its own document alone (data.documents); BuildModel takes the recipe's
  recipe::Lora lora = {};  // adapters beside linear steps of stacks; BuildModel takes the recipe's
};

inline constexpr const char* kTokens = "tokens";  // inputs, all [batch, sequence] int32
inline constexpr const char* kLabels = "labels";  // next tokens; < 0: not counted
inline constexpr std::string_view kLabelsOf =
    "labels_";  // "labels_2": the tokens after the next; −1 beyond the sample
// 0 … sequence−1 in every row; where documents are masked, 0 again at the beginning of each.
inline constexpr const char* kPositions = "positions";
// Only where documents are masked: 0 … sequence−1 in every row, and [batch, sequence, 2] the first place of the token's document
// and the one behind its last. Attention reads them, which the text says nothing of.
inline constexpr const char* kSequencePositions = "sequence_positions";
inline constexpr const char* kDocumentSpans = "document_spans";

// "tokens_1": the next tokens, those that do not count as labels among them; "tokens_2": those after the next. −1 beyond the
// sample.
inline constexpr std::string_view kTokensOf = "tokens_";

// How many tokens behind a place of a sample the input's number stands: tokens 0, labels 1, labels_2 2, up to 9; tokens_1 1,
// up to 9. nullopt of an input that is no token of the sample.
std::optional<int> TokenOffset(std::string_view input);
// Whether it is of labels: numbers that are to be predicted, −1 where they do not count.
bool IsLabels(std::string_view input);

// The graph of a text (recipe/text.h); mistakes are added to `diagnostics`, each at the step, attribute or dim that it is
// of. With a mistake the graph is no model. `origins`: of its nodes, where not null. `notes`, where not null: one for each block
// and dim of the text that nothing uses, if there is no mistake.
graph::Graph BuildText(const recipe::Node& text, const BuildOptions& options,
                       std::vector<Diagnostic>* diagnostics, Origins* origins = nullptr,
                       std::vector<Diagnostic>* notes = nullptr);

// The recipe's model: its text, or what its knobs expand to (recipe/expand.h). The recipe must have passed model::Load.
graph::Graph BuildModel(const recipe::Recipe& recipe, const BuildOptions& options,
                        Origins* origins = nullptr);

// The same for samples that the recipe was not checked with. Unimplemented: what the model lacks for them.
absl::StatusOr<graph::Graph> TryBuildModel(const recipe::Recipe& recipe, const BuildOptions& options,
                                           Origins* origins = nullptr);

// Sum of the parameters' elements, padding excluded.
std::int64_t CountParameters(const graph::Graph& graph);

// Those that a token meets: of experts, only as many as it goes to.
std::int64_t CountActiveParameters(const graph::Graph& graph);

}  // namespace engine::model
