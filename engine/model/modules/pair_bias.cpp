#include "engine/model/modules/modules.h"

namespace engine::model {
namespace {

absl::StatusOr<graph::ValueIds> EmitPairBias(StepContext& step) {
  const Sizes& heads = step.Get("heads").sizes;
  if (heads.shape.rank() != 1) return step.ErrorIn("heads", "heads are one dim");
  const Sizes& places = step.Get("places").sizes;
  if (places.shape.rank() != 1) return step.ErrorIn("places", "places are one dim, of queries and of keys");
  Sizes sizes = heads;
  for (int i = 0; i < 2; ++i) sizes.Append(places.shape[0], places.shape[0], graph::Dim::kOther);
  ASSIGN_OR_RETURN(const graph::ValueId biases,
                   step.Parameter("weight", graph::Role::kBias, sizes, step.Get("init").initializer));
  return graph::ValueIds{biases};
}

}  // namespace

const ModuleDef kPairBiasModule{
    .name = "pair_bias",
    .doc =
        "A trained bias of attention's scores for each head and each pair of a query's place and a key's, "
        "which `bias` of an "
        "attention step names: H·P² numbers, where relative_bias has one for a bucket of distances. It has "
        "no inputs, so one step may "
        "serve all layers of a stack, which hands its value in by `of`; one in a block has biases of its own "
        "in each layer.",
    .reads = "nothing",
    .parameters = "NAME.weight [heads, places, places], of a query's place the row; role bias",
    .gives = "[heads, places, places]",
    .least_inputs = 0,
    .most_inputs = 0,
    .attributes =
        {{.name = "heads",
          .kind = AttributeKind::kShape,
          .doc = "Query heads of attention: \"H\".",
          .required = true},
         {.name = "places",
          .kind = AttributeKind::kShape,
          .doc = "P: as many as a sequence has tokens, or more.",
          .required = true},
         {.name = "init", .kind = AttributeKind::kInitializer, .initial = "normal", .doc = "Of the biases."}},
    .emit = EmitPairBias};

}  // namespace engine::model
