#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <iterator>

#include "engine/base/status.h"
#include "engine/graph/windows.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

using graph::ValueId;
using graph::ValueIds;

// The product x · wᵀ of a router, with its weight. In training x may have noise on it.
absl::StatusOr<ValueId> EmitLogits(StepContext& step, ValueId x) {
  const int lead = step.LeadingDims(x);
  if (step.Number("jitter") > 0 && step.options().dropout) {
    ASSIGN_OR_RETURN(x, step.Emit1(ops::kJitter, step.path() + ".jitter", {x},
                                   {{"eps", step.Number("jitter")}, {"stream", step.path() + ".jitter"}}));
  }
  Sizes sizes;  // no axis splits it, so its dims mean nothing
  sizes.Append(step.Int("experts"), step.Int("experts"), graph::Dim::kOther);
  const Sizes in = step.TrailingSizes(x, lead);
  for (int i = 0; i < in.shape.rank(); ++i) sizes.Append(in.shape[i], in.logical[i], graph::Dim::kOther);
  ASSIGN_OR_RETURN(const ValueId w,
                   step.Parameter("weight", graph::Role::kRouter, sizes, step.Get("init").initializer));
  return step.Emit1(ops::kLinear, step.path(), {x, w},
                    {{"in_dims", std::int64_t{in.shape.rank()}}, {"router", std::int64_t{1}}});
}

// An attribute that means something only where another one has a certain value.
struct Beside {
  std::string_view attribute;
  bool has_effect;
  std::string_view where;  // it has: "aux_loss > 0"
};

// An attribute that is given, not as its default, and has no effect is a mistake: of whoever thinks that it has.
absl::Status CheckEffects(StepContext& step, std::initializer_list<Beside> all) {
  for (const Beside& beside : all) {
    const AttributeValue& value = step.Get(beside.attribute);
    const std::string given =
        value.def->kind == AttributeKind::kWord ? value.word : fmt::format("{}", value.integer);
    if (beside.has_effect || value.node == nullptr || given == value.def->initial) continue;
    return step.ErrorIn(beside.attribute,
                        fmt::format("{} has an effect only with {}", beside.attribute, beside.where),
                        fmt::format("{}, or no {}", beside.where, beside.attribute));
  }
  return absl::OkStatus();
}

absl::Status CheckRouting(StepContext& step) {
  const std::int64_t experts = step.Int("experts");
  const std::int64_t groups = step.Int("groups");
  const std::int64_t k = step.Int("top_k");
  RETURN_IF_ERROR(CheckEffects(step, {{"rounds", step.Word("select") == "sinkhorn", "select = \"sinkhorn\""},
                                      {"group_top_k", groups > 1, "groups > 1"},
                                      {"group_best", groups > 1, "groups > 1"},
                                      {"aux_samples", step.Number("aux_loss") > 0, "aux_loss > 0"}}));
  if (k > experts)
    return step.ErrorIn("top_k", fmt::format("a token goes to {} experts, and there are {}", k, experts));
  if (step.Flag("normalize") && k == 1) {
    return step.ErrorIn(
        "normalize",
        "the weight of a single expert, divided by itself, is 1: the router would not be trained",
        "normalize = false");
  }
  if (step.Word("select") == "sinkhorn") {
    for (const char* other : {"bias_rate", "aux_loss", "microbatch_aux_loss", "global_aux_loss"}) {
      if (step.Number(other) > 0)
        return step.ErrorIn(other, "choices by sinkhorn are balanced already", fmt::format("{} = 0", other));
    }
    if (groups > 1) return step.ErrorIn("groups", "choices by sinkhorn are of all experts", "groups = 1");
  }
  if (groups == 1) return absl::OkStatus();
  if (experts % groups != 0) {
    return step.ErrorIn("groups", fmt::format("{} experts do not make {} equal groups", experts, groups));
  }
  const std::int64_t kept = step.Int("group_top_k");
  const std::int64_t size = experts / groups;
  if (kept < 1 || kept > groups || kept * size < k) {
    return step.ErrorIn("group_top_k", fmt::format("{} of {} groups of {} experts are to hold {} choices",
                                                   kept, groups, size, k));
  }
  return absl::OkStatus();
}

graph::Attributes RouteAttributes(const StepContext& step, bool plain) {
  graph::Attributes attributes = {{"k", step.Int("top_k")},
                                  {"score", step.Word("score")},
                                  {"normalize", std::int64_t{step.Flag("normalize") ? 1 : 0}}};
  if (plain) return attributes;
  if (step.Number("scale") != 1) attributes.Set("scale", step.Number("scale"));
  if (step.Int("groups") > 1) {
    attributes.Set("groups", step.Int("groups"));
    attributes.Set("kept", step.Int("group_top_k"));
    const std::int64_t best = step.Int("group_best");
    const std::int64_t share = step.Int("top_k") / step.Int("group_top_k");
    attributes.Set("best", best > 0 ? best : std::max<std::int64_t>(share, 1));
  }
  return attributes;
}

// A loss of the router: a metric, called as the step and `suffix`, with its weight in the objective.
void AddLoss(StepContext& step, const graph::OpDef& op, const std::string& suffix, double weight,
             const ValueIds& inputs, graph::Attributes attributes) {
  const Shape logits = step.type(inputs[0]).shape;
  const double of_sample = static_cast<double>(logits.elements(1, logits.rank() - 1));
  const double count = step.options().global_samples * of_sample;
  graph::Graph& graph = step.graph();
  const ValueId sum = graph.AddMetric(step.path() + "." + suffix, count, weight);
  attributes.Set("scale", weight / count);
  graph.Emit(op, step.path() + "." + suffix, inputs, attributes, std::array<ValueId, 1>{sum});
}

// Of so many whole samples what a router counts together: of an attribute, in passes in which a rank has all of them.
absl::StatusOr<std::int64_t> SamplesOf(StepContext& step, std::string_view attribute) {
  const std::int64_t samples = step.Int(attribute);
  const std::int64_t on_rank = step.options().rank_samples;
  if (on_rank == 0) return 1;
  if (on_rank % samples == 0) return samples;
  return step.ErrorIn(
      attribute,
      fmt::format("{} samples are counted together, and a rank has {} of a microbatch", samples, on_rank),
      fmt::format("{} that divides training.micro_batch", attribute));
}

// How many choices of each group of so many samples fall on each expert. A mark says that the group follows from the layout
// (model/check.h): all samples of a rank, or of all ranks.
absl::StatusOr<ValueId> EmitCounts(StepContext& step, const std::string& suffix, ValueId choice, DType dtype,
                                   std::int64_t samples, std::string_view mark) {
  graph::Attributes attributes = {{"experts", step.Int("experts")},
                                  {"f64", std::int64_t{dtype == DType::kF64}}};
  if (samples > 1) attributes.Set("samples", samples);
  if (!mark.empty()) attributes.Set(mark, std::int64_t{1});
  return step.Emit1(ops::kTally, step.path() + suffix, {choice}, attributes);
}

// Means of the counts of this iteration's microbatches so far, all ranks' together. Evaluation has no iteration.
absl::StatusOr<ValueId> EmitRunningLoad(StepContext& step, ValueId count) {
  if (!step.options().dropout) return count;
  const graph::TensorType type = step.type(count);
  graph::Graph& graph = step.graph();
  const std::string name = step.path() + ".running_load";
  const ValueId load = graph.AddState(name, {.shape = {type.shape[1] + 2}, .dtype = type.dtype},
                                      {.life = graph::Lifetime::kSession});
  return graph.Emit(ops::kRunningLoad, name, {count, load}, {},
                    std::array<ValueId, 2>{load, graph::kNoValue})[1];
}

struct Counted {
  std::string_view weight;     // the attribute that has it
  std::string suffix, counts;  // of the metric's name and of the counts'
};

absl::Status EmitBalanceLoss(StepContext& step, ValueId logits, ValueId choice, const Counted& counted) {
  const graph::TensorType type = step.type(logits);
  const std::int64_t batch = type.shape[0];
  const bool over_all = counted.weight == "global_aux_loss";
  const bool of_rank = counted.weight == "microbatch_aux_loss";
  std::int64_t samples = over_all ? batch : std::max<std::int64_t>(1, step.options().rank_samples);
  if (!over_all && !of_rank) {
    ASSIGN_OR_RETURN(samples, SamplesOf(step, "aux_samples"));
  }
  ASSIGN_OR_RETURN(ValueId count, EmitCounts(step, counted.counts, choice, type.dtype, samples,
                                             over_all ? "of_all" : (of_rank ? "of_rank" : "")));
  if (over_all) {
    ASSIGN_OR_RETURN(count, EmitRunningLoad(step, count));
  }
  const std::int64_t tokens = samples * type.shape.elements(1, type.shape.rank() - 1);
  AddLoss(step, ops::kBalanceLoss, counted.suffix, step.Number(counted.weight), {logits, count},
          {{"k", step.Int("top_k")}, {"score", step.Word("score")}, {"tokens", tokens}});
  return absl::OkStatus();
}

absl::Status EmitBalanceLosses(StepContext& step, ValueId logits, ValueId choice) {
  const Counted kinds[] = {{"aux_loss", "balance", ".counts"},
                           {"microbatch_aux_loss", "microbatch_balance", ".microbatch_counts"},
                           {"global_aux_loss", "global_balance", ".global_counts"}};
  const bool any = std::any_of(std::begin(kinds), std::end(kinds),
                               [&](const Counted& kind) { return step.Number(kind.weight) > 0; });
  if (any && (step.Int("groups") > 1 || step.Number("bias_rate") > 0)) {
    // They count what the scores alone would choose.
    ASSIGN_OR_RETURN(const ValueIds free, step.Emit(ops::kRoute, step.path() + ".free_choice", {logits},
                                                    RouteAttributes(step, /*plain=*/true)));
    choice = free[0];
  }
  for (const Counted& kind : kinds) {
    if (step.Number(kind.weight) > 0) RETURN_IF_ERROR(EmitBalanceLoss(step, logits, choice, kind));
  }
  return absl::OkStatus();
}

// What is logged of a router beside its losses.
void EmitWatched(StepContext& step, ValueId logits, ValueId choice) {
  const std::int64_t experts = step.Int("experts");
  const Shape choices = step.type(choice).shape;
  AddLoss(step, ops::kRouterEntropy, "entropy", 0, {logits}, {{"score", step.Word("score")}});
  graph::Graph& graph = step.graph();
  const std::string name = step.path() + ".load";
  const double count =
      step.options().global_samples * static_cast<double>(choices.elements(1, choices.rank()));
  const ValueId sum = graph.AddCounts(name, experts, count);
  graph.Emit(ops::kRouteCount, name, {choice}, {{"experts", experts}}, std::array<ValueId, 1>{sum});
}

// What experts are chosen by, where it is not the score. In evaluation it is the score, as in Megatron-LM: a sample is then
// routed as it is when it is generated, token by token.
absl::StatusOr<ValueId> EmitRanks(StepContext& step, ValueId logits) {
  return step.Emit1(ops::kSinkhorn, step.path() + ".sinkhorn", {logits}, {{"rounds", step.Int("rounds")}});
}

absl::StatusOr<ValueIds> EmitRoute(StepContext& step) {
  RETURN_IF_ERROR(CheckRouting(step));
  ASSIGN_OR_RETURN(const ValueId logits, EmitLogits(step, step.input()));
  ValueIds inputs = {logits};
  if (step.Number("bias_rate") > 0) {
    Sizes sizes;
    sizes.Append(step.Int("experts"), step.Int("experts"), graph::Dim::kOther);
    ASSIGN_OR_RETURN(const ValueId bias,
                     step.ExactParameter("bias", graph::Role::kBalance, sizes, StepContext::Zeros()));
    step.graph().SetTraining(bias, {.sign_step = step.Number("bias_rate")});
    inputs.push_back(bias);
  }
  graph::Attributes attributes = RouteAttributes(step, /*plain=*/false);
  if (step.Word("select") == "sinkhorn" && step.options().dropout) {
    ASSIGN_OR_RETURN(const ValueId ranks, EmitRanks(step, logits));
    inputs.push_back(ranks);
    attributes.Set("select", step.Word("select"));
  }
  if (!step.options().forced_router.empty())
    attributes.Set("force", std::string(step.options().forced_router));
  ASSIGN_OR_RETURN(const ValueIds routes, step.Emit(ops::kRoute, step.path() + ".route", inputs, attributes));
  RETURN_IF_ERROR(EmitBalanceLosses(step, logits, routes[0]));
  if (step.Number("z_loss") > 0) AddLoss(step, ops::kRouterZLoss, "z", step.Number("z_loss"), {logits}, {});
  EmitWatched(step, logits, routes[0]);
  return routes;
}

// How many experts a router chooses from, whose choice this is; 0: of no router.
std::int64_t ExpertsOf(const StepContext& step, const graph::Graph& graph, ValueId choice) {
  const graph::NodeId producer = graph.value(choice).producer;
  if (producer < 0) return 0;
  const graph::Node& node = graph.nodes()[static_cast<size_t>(producer)];
  if (node.op != &ops::kRoute || node.outputs[0] != choice) return 0;
  const Shape logits = step.type(node.inputs[0]).shape;
  return logits[logits.rank() - 1];
}

// The rows of the tokens, and how to come back.
struct Places {
  ValueId choice_of, row_of, groups, choice;
};

absl::StatusOr<Places> EmitPlaces(StepContext& step, ValueId choice, std::int64_t experts,
                                  const graph::Attributes& features) {
  graph::Attributes tally = features;
  tally.Set("experts", experts);
  tally.Set("by_expert", std::int64_t{1});
  ASSIGN_OR_RETURN(const ValueId load, step.Emit1(ops::kTally, step.path() + ".load", {choice}, tally));
  ASSIGN_OR_RETURN(const ValueIds places,
                   step.Emit(ops::kPlace, step.path() + ".place", {choice, load}, features));
  return Places{places[0], places[1], places[2], choice};
}

// The choices that stay where an expert takes at most so many of a group of samples, and the share of those that do not, as a metric.
absl::StatusOr<ValueId> EmitDrop(StepContext& step, ValueId choice, ValueId weight, std::int64_t experts) {
  const Shape choices = step.type(choice).shape;
  const double of_sample = static_cast<double>(choices.elements(1, choices.rank()));
  const bool of_rank = step.Word("capacity_of") == "rank";
  std::int64_t samples = std::max<std::int64_t>(1, step.options().rank_samples);
  if (!of_rank) {
    ASSIGN_OR_RETURN(samples, SamplesOf(step, "capacity_samples"));
  }
  const auto cap = static_cast<std::int64_t>(
      std::ceil(static_cast<double>(samples) * of_sample / static_cast<double>(experts) *
                step.Number("capacity") * (1 - 1e-12)));
  graph::Graph& graph = step.graph();
  const ValueId dropped =
      graph.AddMetric(step.path() + ".dropped", step.options().global_samples * of_sample, 0);
  graph::Attributes attributes = {{"experts", experts}, {"cap", cap}, {"by", step.Word("drop")}};
  if (samples > 1) attributes.Set("samples", samples);
  if (of_rank) attributes.Set("of_rank", std::int64_t{1});
  const ValueId kept = graph.Emit1(ops::kDrop, step.path() + ".drop", {choice, weight}, attributes);
  graph.Emit(ops::kDropCount, step.path() + ".dropped", {kept}, {}, std::array<ValueId, 1>{dropped});
  return kept;
}

// One product of all experts, with a parameter [X, out…, in…].
absl::StatusOr<ValueId> EmitGrouped(StepContext& step, const std::string& name, ValueId rows,
                                    const Places& places, const Sizes& weight, int in_dims,
                                    graph::Initializer initializer, graph::Attributes attributes) {
  ASSIGN_OR_RETURN(const ValueId w,
                   step.Parameter(name + ".weight", graph::Role::kMatrix, weight, initializer));
  const Shape choice = step.type(places.choice).shape;
  const int out_dims = weight.shape.rank() - 1 - in_dims;
  attributes.Set("in_dims", std::int64_t{in_dims});
  attributes.Set("experts", weight.shape[0]);
  attributes.Set("k", choice[choice.rank() - 1]);
  if (out_dims > 1) attributes.Set("out_split", std::int64_t{out_dims - 1});
  return step.Emit1(ops::kGroupedLinear, step.path() + "." + name, {rows, w, places.groups}, attributes);
}

// In how many passes the rows of the experts are worked on; 1: in none, as their buffers have room for all.
absl::StatusOr<std::int64_t> PassesOf(StepContext& step, std::int64_t experts, std::int64_t k) {
  const BuildOptions& options = step.options();
  if (options.expert_rows == 0 || experts % options.ep != 0) return 1;  // ep is blamed elsewhere
  const std::int64_t here = experts / options.ep;
  const double passes = graph::PassesOf(options.expert_rows, k, experts, here);
  constexpr auto kMost = static_cast<double>(graph::kMostPasses);
  if (passes <= kMost) return static_cast<std::int64_t>(passes);
  const double least = std::ceil(100 * graph::WorstOverMean(k, experts, here) / (kMost + 1)) / 100;
  return step.Error(
      fmt::format("with expert_rows {:g} the worst load of a rank takes {:.0f} passes, and the most is {}",
                  options.expert_rows, passes, graph::kMostPasses),
      fmt::format("parallelism.expert_rows of {:g} or more", least));
}

// All from the tokens' rows to their sums in passes, which keep no rows for the backward pass; and as a metric the share of the
// choices whose rows are not of the first pass.
absl::StatusOr<ValueId> EmitPasses(StepContext& step, ValueId x, ValueId weight, const Places& places,
                                   const Sizes& first, const Sizes& second, graph::Attributes attributes) {
  ASSIGN_OR_RETURN(const ValueId w1,
                   step.Parameter("fc1.weight", graph::Role::kMatrix, first, step.Get("init").initializer));
  ASSIGN_OR_RETURN(const ValueId w2, step.Parameter("fc2.weight", graph::Role::kMatrix, second,
                                                    step.Get("init_out").initializer));
  const Shape choices = step.type(places.choice).shape;  // a copy: emitting may move the graph's values
  attributes.Set("experts", first.shape[0]);
  attributes.Set("k", choices[choices.rank() - 1]);
  graph::Graph& graph = step.graph();
  const double of_sample = static_cast<double>(choices.elements(1, choices.rank()));
  const ValueId extra = graph.AddMetric(step.path() + ".extra", step.options().global_samples * of_sample, 0);
  graph.Emit(ops::kExtraRows, step.path() + ".extra", {places.choice_of, places.groups},
             {{"passes", attributes.Int("passes")}}, std::array<ValueId, 1>{extra});
  return step.Emit1(ops::kExpertPasses, step.path() + ".passes",
                    {x, weight, places.choice, places.choice_of, places.row_of, places.groups, w1, w2},
                    attributes);
}

absl::StatusOr<ValueIds> EmitExperts(StepContext& step) {
  const ValueId x = step.input(0);
  ValueId choice = step.input(1);
  const ValueId weight = step.input(2);
  const std::int64_t experts = ExpertsOf(step, step.graph(), choice);
  if (experts == 0) {
    return step.Error(
        fmt::format("it reads the choice of a router, and {} is none", step.graph().value(choice).name),
        "of = [x, choice, weight], with to = [\"choice\", \"weight\"] of a step `route`");
  }
  const int lead = step.LeadingDims(x);
  const Shape tokens = step.type(choice).shape;  // a copy: emitting may move the graph's values
  if (tokens.rank() != lead + 1 || step.type(weight).shape != tokens ||
      tokens.elements(0, lead) != step.type(x).shape.elements(0, lead)) {
    return step.Error(fmt::format("{} are routed by choices {} and weights {}", step.type(x).shape.ToString(),
                                  tokens.ToString(), step.type(weight).shape.ToString()));
  }
  Sizes hidden = step.Get("hidden").sizes;
  if (step.options().whole_experts) hidden.dims = {graph::Dim::kOther};
  if (hidden.shape.rank() != 1) return step.ErrorIn("hidden", "the width of an expert is one dim");
  const Sizes in = step.TrailingSizes(x, lead);
  const bool capped = step.Number("capacity") > 0;
  RETURN_IF_ERROR(CheckEffects(
      step, {{"capacity_of", capped, "capacity > 0"},
             {"capacity_samples", capped, "capacity > 0"},
             {"capacity_samples", step.Word("capacity_of") == "samples", "capacity_of = \"samples\""},
             {"drop", capped, "capacity > 0"}}));
  const bool gated = step.Flag("gated");
  const graph::Attributes features = {{"features", std::int64_t{hidden.dims[0] == graph::Dim::kFeature}}};
  // Router and experts read x, and what both give to its gradient is added where the stream is.
  if (step.graph().value(x).pin == graph::Pin::kNone) step.graph().value(x).pin = graph::Pin::kResidual;
  // Every rank that has a part of each expert needs all weights, and what it gives to their gradients is a term of them.
  if (features.Int("features") != 0) step.graph().value(weight).pin = graph::Pin::kReplicated;
  if (capped) {
    ASSIGN_OR_RETURN(choice, EmitDrop(step, choice, weight, experts));
  }
  ASSIGN_OR_RETURN(const std::int64_t passes, PassesOf(step, experts, tokens[tokens.rank() - 1]));
  ASSIGN_OR_RETURN(const Places places, EmitPlaces(step, choice, experts, features));
  Sizes first;
  first.Append(experts, experts, graph::Dim::kExpert);
  Sizes second = first;
  if (gated) first.Append(2, 2, graph::Dim::kOther);
  first.Append(hidden.shape[0], hidden.logical[0], hidden.dims[0]);
  for (int i = 0; i < in.shape.rank(); ++i) {
    first.Append(in.shape[i], in.logical[i], in.dims[i]);
    second.Append(in.shape[i], in.logical[i], in.dims[i]);
  }
  second.Append(hidden.shape[0], hidden.logical[0], hidden.dims[0]);
  graph::Attributes activation = features;
  activation.Set("act", step.Word("act"));
  activation.Set("gated", std::int64_t{gated});
  if (passes > 1) {
    activation.Set("passes", passes);
    ASSIGN_OR_RETURN(const ValueId sums, EmitPasses(step, x, weight, places, first, second, activation));
    return ValueIds{sums};
  }
  ASSIGN_OR_RETURN(const ValueId rows, step.Emit1(ops::kSpread, step.path() + ".spread",
                                                  {x, places.choice_of, places.row_of, choice}, features));
  ASSIGN_OR_RETURN(const ValueId h, EmitGrouped(step, "fc1", rows, places, first, in.shape.rank(),
                                                step.Get("init").initializer, features));
  ASSIGN_OR_RETURN(const ValueId scaled, step.Emit1(ops::kExpertActivation, step.path() + ".act",
                                                    {h, weight, places.choice_of}, activation));
  ASSIGN_OR_RETURN(const ValueId made, EmitGrouped(step, "fc2", scaled, places, second, 1,
                                                   step.Get("init_out").initializer, features));
  ASSIGN_OR_RETURN(const ValueId y, step.Emit1(ops::kCombine, step.path() + ".combine",
                                               {made, places.choice_of, places.row_of, choice}, features));
  return ValueIds{y};
}

}  // namespace

const ModuleDef kRouteModule{
    .name = "route",
    .doc =
        "A router: which experts each token goes to, and with what weight (Shazeer et al., "
        "arXiv:1701.06538). The "
        "logits x·wᵀ, their scores and the weights are at least float32.",
    .reads = "x [B, S, D]",
    .parameters =
        "NAME.weight [experts, D], role router; with bias_rate NAME.bias [experts], float32, zeros, role "
        "balance",
    .gives = "the choice, i32 [B, S, top_k], and the weights [B, S, top_k]",
    .results = 2,
    .attributes =
        {{.name = "experts",
          .kind = AttributeKind::kInteger,
          .doc = "How many experts there are: \"X\".",
          .min = 1,
          .max = 1 << 16,
          .required = true},
         {.name = "top_k",
          .kind = AttributeKind::kInteger,
          .doc = "How many a token goes to.",
          .min = 1,
          .max = 256,
          .required = true},
         {.name = "score",
          .kind = AttributeKind::kWord,
          .initial = "softmax",
          .doc = "What is made of the logits of all experts; the largest are chosen.",
          .words = {"softmax", "sigmoid", "sqrtsoftplus"}},
         {.name = "normalize",
          .kind = AttributeKind::kFlag,
          .initial = "true",
          .doc = "Whether the chosen scores are divided by their sum. With softmax this is a softmax over "
                 "the chosen logits "
                 "(Mixtral); without, the weights of a token add up to less than 1 (OLMoE)."},
         {.name = "select",
          .kind = AttributeKind::kWord,
          .initial = "score",
          .doc = "What experts are chosen by in training: the score, or sinkhorn, which balances the choices "
                 "of each "
                 "sample by itself (Clark et al., arXiv:2202.01169). In evaluation it is the score.",
          .words = {"score", "sinkhorn"}},
         {.name = "rounds",
          .kind = AttributeKind::kInteger,
          .initial = "16",
          .doc = "Rounds of sinkhorn.",
          .min = 1,
          .max = 1000},
         {.name = "jitter",
          .kind = AttributeKind::kNumber,
          .initial = "0",
          .doc = "eps: in training the router reads x times noise of 1 - eps to 1 + eps, drawn anew for each "
                 "element and "
                 "iteration (Switch Transformer, arXiv:2101.03961).",
          .min = 0,
          .max = 1,
          .open_end = true},
         {.name = "scale",
          .kind = AttributeKind::kNumber,
          .initial = "1",
          .doc = "A factor of all weights (DeepSeek-V3: 2.5).",
          .min = 0,
          .max = 1e4,
          .open = true},
         {.name = "groups",
          .kind = AttributeKind::kInteger,
          .initial = "1",
          .doc = "Groups of experts, of which the best group_top_k are chosen first (DeepSeek-V3).",
          .min = 1,
          .max = 1 << 16},
         {.name = "group_top_k",
          .kind = AttributeKind::kInteger,
          .initial = "1",
          .doc = "How many groups a token's experts may be of.",
          .min = 1,
          .max = 1 << 16},
         {.name = "group_best",
          .kind = AttributeKind::kInteger,
          .initial = "0",
          .doc = "A group's score is the sum of so many of its largest; 0: top_k / group_top_k.",
          .min = 0,
          .max = 256},
         {.name = "bias_rate",
          .kind = AttributeKind::kNumber,
          .initial = "0",
          .doc = "u: a bias is added to the scores that experts are chosen by, and to no weight. After each "
                 "iteration it goes up by u for "
                 "experts that were chosen less than the mean, and down by u for others (Wang et al., "
                 "arXiv:2408.15664); 0: no bias.",
          .min = 0,
          .max = 1},
         {.name = "aux_loss",
          .kind = AttributeKind::kNumber,
          .initial = "0",
          .doc = "Weight of the loss that balances the experts, sample by sample; it is 1 in balance. Logged "
                 "as NAME.balance.",
          .min = 0,
          .max = 1e3},
         {.name = "aux_samples",
          .kind = AttributeKind::kInteger,
          .initial = "1",
          .doc = "Samples that aux_loss counts together: a divisor of training.micro_batch.",
          .min = 1,
          .max = 1 << 20},
         {.name = "microbatch_aux_loss",
          .kind = AttributeKind::kNumber,
          .initial = "0",
          .doc = "Weight of the same loss, counted over all samples that a rank has of a microbatch "
                 "(Megatron-LM's "
                 "aux_loss). It depends on the layout. Logged as NAME.microbatch_balance.",
          .min = 0,
          .max = 1e3},
         {.name = "global_aux_loss",
          .kind = AttributeKind::kNumber,
          .initial = "0",
          .doc = "Weight of the same loss, counted over all ranks and the mean of the iteration's "
                 "microbatches so far "
                 "(Megatron-LM's global_aux_loss). It depends on the layout. Logged as NAME.global_balance.",
          .min = 0,
          .max = 1e3},
         {.name = "z_loss",
          .kind = AttributeKind::kNumber,
          .initial = "0",
          .doc = "Weight of the mean of (log Σ exp(logits))² (ST-MoE, arXiv:2202.08906). Logged as NAME.z.",
          .min = 0,
          .max = 1e3},
         {.name = "init", .kind = AttributeKind::kInitializer, .initial = "normal", .doc = "Of the weight."}},
    .emit = EmitRoute};

const ModuleDef kExpertsModule{
    .name = "experts",
    .doc =
        "A feed-forward layer for each expert, on the tokens that go to it: y = Σ over the chosen experts e "
        "of weight_e · "
        "fc2_e(act(fc1_e(x))), with a gate act(g)·u of the two halves of fc1. No token is dropped unless "
        "capacity says "
        "so.",
    .reads = "x [B, S, D], then choice and weights of a step `route`",
    .parameters =
        "NAME.fc1.weight [experts, 2, hidden, D] (without a gate [experts, hidden, D]), gate before value, "
        "and "
        "NAME.fc2.weight [experts, D, hidden], role matrix",
    .gives = "as x",
    .least_inputs = 3,
    .most_inputs = 3,
    .attributes =
        {{.name = "hidden",
          .kind = AttributeKind::kShape,
          .doc = "Width of an expert: \"F\".",
          .required = true},
         {.name = "act",
          .kind = AttributeKind::kWord,
          .initial = "silu",
          .doc = "Its activation.",
          .words = {"silu", "gelu_tanh", "gelu_erf", "quick_gelu", "relu", "sigmoid", "tanh"}},
         {.name = "gated", .kind = AttributeKind::kFlag, .initial = "true", .doc = "Whether fc1 has a gate."},
         {.name = "capacity",
          .kind = AttributeKind::kNumber,
          .initial = "0",
          .doc = "An expert takes at most ⌈capacity · S · top_k / experts⌉ choices of a sample, and the "
                 "others are dropped; 0: no "
                 "limit. The share of what was dropped is logged as NAME.dropped.",
          .min = 0,
          .max = 1e6},
         {.name = "capacity_samples",
          .kind = AttributeKind::kInteger,
          .initial = "1",
          .doc = "Samples that capacity counts together, so that S is their tokens: a divisor of "
                 "training.micro_batch.",
          .min = 1,
          .max = 1 << 20},
         {.name = "capacity_of",
          .kind = AttributeKind::kWord,
          .initial = "samples",
          .doc = "What capacity counts: capacity_samples, or all samples that a rank of dp and ep has of a "
                 "microbatch "
                 "(rank), as Megatron-LM does, which depends on the layout.",
          .words = {"samples", "rank"}},
         {.name = "drop",
          .kind = AttributeKind::kWord,
          .initial = "weight",
          .doc = "Which choices stay: those of largest weight, or the earliest.",
          .words = {"weight", "position"}},
         {.name = "init", .kind = AttributeKind::kInitializer, .initial = "normal", .doc = "Of fc1."},
         {.name = "init_out", .kind = AttributeKind::kInitializer, .initial = "branch", .doc = "Of fc2."}},
    .emit = EmitExperts};

}  // namespace engine::model
