#include "engine/base/status.h"
#include "engine/graph/distance_buckets.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

// The buckets that the attributes say. Both conditions of DistanceBuckets::lawful that their ranges leave.
absl::StatusOr<graph::DistanceBuckets> BucketsOf(StepContext& step) {
  const graph::DistanceBuckets of = {step.Int("buckets"), step.Int("max_distance"), step.Flag("both_ways")};
  if (of.both_ways && (of.buckets % 2 != 0 || of.buckets < 4)) {
    return step.ErrorIn("buckets", fmt::format("{} buckets are not shared by two directions", of.buckets),
                        "an even number, at least 4; or both_ways = false");
  }
  if (of.distance <= of.exact()) {
    return step.ErrorIn(
        "max_distance",
        fmt::format("the distances below {} have buckets of their own, and max_distance is {}", of.exact(),
                    of.distance),
        fmt::format("at least {}", of.exact() + 1));
  }
  return of;
}

absl::StatusOr<graph::ValueId> TableOf(StepContext& step, std::int64_t buckets) {
  if (!step.Has("weight")) {
    if (!step.Has("heads"))
      return step.Error("heads are needed, or the weight of another step", "heads = \"H\"");
    const Sizes& heads = step.Get("heads").sizes;
    if (heads.shape.rank() != 1) return step.ErrorIn("heads", "heads are one dim");
    Sizes sizes{Shape{buckets}, Shape{buckets}, {graph::Dim::kOther}};
    sizes.Append(heads.shape[0], heads.logical[0], heads.dims[0]);
    return step.Parameter("weight", graph::Role::kBias, sizes, step.Get("init").initializer);
  }
  const graph::ValueId table = step.Get("weight").value;
  const Shape& shape = step.type(table).shape;
  const bool of_heads =
      !step.Has("heads") || (shape.rank() == 2 && step.Get("heads").sizes.shape == Shape{shape[1]});
  if (shape.rank() == 2 && shape[0] == buckets && of_heads) return table;
  return step.ErrorIn("weight",
                      fmt::format("{} is {}, and a table of {} buckets is needed, with a column a head",
                                  step.graph().value(table).name, shape.ToString(), buckets),
                      "the weight of another relative_bias, with the same buckets and heads");
}

absl::StatusOr<graph::ValueIds> EmitRelativeBias(StepContext& step) {
  ASSIGN_OR_RETURN(const graph::DistanceBuckets of, BucketsOf(step));
  ASSIGN_OR_RETURN(const graph::ValueId table, TableOf(step, of.buckets));
  ASSIGN_OR_RETURN(const graph::ValueId biases,
                   step.Emit1(ops::kRelativeBias, step.path(), {table},
                              {{"buckets", of.buckets},
                               {"distance", of.distance},
                               {"both_ways", std::int64_t{of.both_ways ? 1 : 0}}}));
  return graph::ValueIds{biases};
}

}  // namespace

const ModuleDef kRelativeBiasModule{
    .name = "relative_bias",
    .doc =
        "A trained bias of attention's scores for each head and each distance of key and query, which `bias` "
        "of an "
        "attention step names (T5: Raffel et al., arXiv:1910.10683). Small distances have a bucket each, "
        "larger ones share "
        "buckets, the wider the further away, and from max_distance on there is one. It has no inputs, so "
        "one step may serve "
        "all layers of a stack, which hands its value in by `of`; one in a block has a table a layer.",
    .reads = "nothing",
    .parameters = "NAME.weight [buckets, heads]; role bias",
    .gives = "[heads, 2·max_distance + 1]",
    .least_inputs = 0,
    .most_inputs = 0,
    .attributes =
        {{.name = "buckets",
          .kind = AttributeKind::kInteger,
          .initial = "32",
          .doc = "Rows of the table, of both directions together.",
          .min = 2,
          .max = 4096},
         {.name = "max_distance",
          .kind = AttributeKind::kInteger,
          .initial = "128",
          .doc = "Keys as far away as that, and further, share a bucket.",
          .min = 2,
          .max = 65536},
         {.name = "heads", .kind = AttributeKind::kShape, .doc = "Query heads of attention: \"H\"."},
         {.name = "both_ways",
          .kind = AttributeKind::kFlag,
          .initial = "false",
          .doc = "Keys behind the query have half of the buckets, as an encoder needs; else they share that "
                 "of the query's "
                 "own place."},
         {.name = "weight",
          .kind = AttributeKind::kParameter,
          .doc = "The table of another step, in place of one of its own."},
         {.name = "init", .kind = AttributeKind::kInitializer, .initial = "normal", .doc = "Of the table."}},
    .emit = EmitRelativeBias};

}  // namespace engine::model
