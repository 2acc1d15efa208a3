// Warnings of the sizes and forms of a model's kernels: widths of products, attention, head and loss.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "engine/driver/advise_subject.h"
#include "engine/driver/check_kernels.h"
#include "engine/driver/compile_recipe.h"
#include "engine/graph/dims.h"
#include "engine/ops/ops.h"

namespace engine::driver {
namespace {

// -------------------------------------------------------------------------------------------------------
// widths of products

// One side of a product's weight, as a rank has it.
struct Side {
  std::int64_t size = 1;
  bool features = true;  // none of its dims counts heads or the vocabulary
};

// y = W·x of one node.
struct Product {
  graph::NodeId node = -1;
  Side out = {}, in = {};
  std::int64_t elements = 0;  // of the weight, on all ranks
  bool of_experts = false;    // one for each expert, on its rows
};

Product ProductOf(const AdviceSubject& s, graph::NodeId id,
                  const std::map<std::string_view, const plan::LocalValue*>& weights) {
  const graph::Node& node = s.steps.node(id);
  const graph::Value& weight = s.steps.graph().value(node.inputs[1]);
  const auto known = weights.find(weight.name);
  const Shape& local = known != weights.end() ? known->second->local : weight.type.shape;
  Product product{
      .node = id, .elements = weight.type.shape.elements(), .of_experts = node.op == &ops::kGroupedLinear};
  const int out = local.rank() - static_cast<int>(node.attributes.Int("in_dims"));
  for (int dim = product.of_experts ? 1 : 0; dim < local.rank(); ++dim) {
    Side& side = dim < out ? product.out : product.in;
    const graph::Dim meaning = weight.type.meaning(dim);
    side.size *= local[dim];
    side.features = side.features && meaning != graph::Dim::kHead && meaning != graph::Dim::kVocab;
  }
  return product;
}

// But for adapters, which are narrow on purpose and take little of the time.
std::vector<Product> ProductsOf(const AdviceSubject& s) {
  std::map<std::string_view, const plan::LocalValue*> weights;
  for (const plan::PlanParameter& parameter : s.plan.parameters)
    weights[parameter.name] = &s.plan.values[static_cast<std::size_t>(parameter.value)];
  std::vector<Product> products;
  for (graph::NodeId i = 0; i < std::ssize(s.steps.graph().nodes()); ++i) {
    const graph::OpDef* op = s.steps.node(i).op;
    if (s.steps.node(i).attributes.Int("adapter", 0) != 0) continue;
    if (op == &ops::kLinear || op == &ops::kGroupedLinear) products.push_back(ProductOf(s, i, weights));
  }
  return products;
}

// Streaming multiprocessors; NVIDIA's data sheets.
std::int64_t Multiprocessors(const std::string& device) {
  if (device == "a100") return 108;
  if (device == "b200") return 148;
  return 132;  // H100 SXM, H200
}

// The narrowest result of a product of all tokens, forward or backward: of those with features on either side, but for small ones that
// stand beside them (adapters, low ranks), which take little of the time. 0: there is none.
std::int64_t NarrowestOf(const std::vector<Product>& products) {
  constexpr std::int64_t kShare = 10;  // a tenth of the largest
  std::int64_t largest = 0;
  for (const Product& product : products) {
    if (!product.of_experts && (product.out.features || product.in.features))
      largest = std::max(largest, product.elements);
  }
  std::int64_t narrowest = 0;
  for (const Product& product : products) {
    if (product.of_experts || kShare * product.elements < largest) continue;
    for (const Side& side : {product.out, product.in}) {
      if (side.features && (narrowest == 0 || side.size < narrowest)) narrowest = side.size;
    }
  }
  return narrowest;
}

void MicrobatchFillsDevice(const AdviceSubject& s) {
  constexpr std::int64_t kTileRows = 128,
                         kTileColumns = 256;  // of cuBLASLt's usual kernels of 16-bit products
  if (!s.on_gpu()) return;
  const recipe::Recipe& r = s.recipe;
  const std::int64_t tokens =
      r.training.micro_batch * r.data.sequence_length / r.parallelism.cp / s.plan.halves;
  const std::int64_t narrowest = NarrowestOf(ProductsOf(s));
  if (narrowest == 0) return;
  const auto cover = [](std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; };
  const std::int64_t tiles = cover(tokens, kTileRows) * cover(narrowest, kTileColumns);
  const std::int64_t processors = Multiprocessors(r.cluster.device);
  if (2 * tiles >= processors) return;
  s.report.Warn(
      "W204", {"training.micro_batch", "data.sequence_length", "parallelism.tp", "parallelism.cp"},
      fmt::format("{} tokens of a microbatch × {} features are {} of 128 × 256, for {} multiprocessors",
                  tokens, narrowest, recipe::Counted(tiles, "tile"), processors),
      "a larger micro_batch; less tp or cp");
}

// What products contract is what others gave before them, so one side of each is enough. Of a text one product is named
// for each size.
void SizesSuitTensorCores(const AdviceSubject& s) {
  constexpr std::int64_t kMultiple = 64;
  if (!s.on_gpu()) return;
  std::set<std::pair<std::int64_t, std::string_view>> known;
  for (const Product& product : ProductsOf(s)) {
    const Saying width = {product.node, "contract"};
    const std::int64_t size = product.in.size;
    const std::string_view key = s.steps.KeyName(width);
    if (size % kMultiple == 0 || !known.insert({size, key}).second) continue;
    const std::string message = key.empty()
                                    ? fmt::format("{} contracts {} features on a rank, no multiple of {}",
                                                  s.steps.node(product.node).name, size, kMultiple)
                                    : fmt::format("{} is {}, no multiple of {}", key, size, kMultiple);
    s.steps.Warn("W205", width, {}, message, fmt::format("{}", recipe::NearestMultiples(size, kMultiple)),
                 s.report);
  }
}

// -------------------------------------------------------------------------------------------------------
// attention

// Whether most of what is slow is so in this way.
bool IsSlow(const predict::Prediction& time, plan::SlowPath::Kind kind) {
  return !time.slow.empty() && time.slow.front().kind == kind;
}

// Where the recipe could have fast ones and does not ask for these, that is an error (driver/check_kernels.h).
void AttentionIsFast(const AdviceSubject& s) {
  if (!IsSlow(s.time, plan::SlowPath::Kind::kReference) || HasRefusedKernels(s.plan)) return;
  const bool is_fp32 = s.recipe.precision.compute == "fp32";
  if (!is_fp32 && s.recipe.precision.attention == "reference") {
    s.report.Warn("W209", {"precision.attention"},
                  fmt::format("attention runs in the reference kernels{}", SlowerBy(s.time, "; ")),
                  "precision.attention = \"fast\", which is refused where there is no fast kernel");
  } else {
    s.report.Warn("W209", {"precision.compute", "cluster.device"},
                  fmt::format("{} has no fast kernel{}", s.time.slow.front().why, SlowerBy(s.time, "; ")),
                  is_fp32 ? "precision.compute = \"bf16\"" : "");
  }
}

// To compile the plan without the window takes as long as the rest of the check.
void WindowSavesTime(const AdviceSubject& s) {
  const LongestWindow window = LongestWindowOf(s.steps);
  if (window.tokens == 0 || !IsSlow(s.time, plan::SlowPath::Kind::kMasked)) return;
  const absl::StatusOr<plan::Plan> other = CompileWithoutWindows(s.recipe, {.profile = s.profile});
  if (!other.ok()) return;
  const double other_s = predict::Predict(*other, s.recipe.cluster).iteration_s;
  if (s.time.iteration_s <= other_s) return;
  std::string message =
      fmt::format("with a window of {} of {} tokens an iteration takes {:.2f} times as long as without",
                  window.tokens, s.recipe.data.sequence_length, s.time.iteration_s / other_s);
  if (s.has_times()) message += fmt::format(": {:.3g} s, not {:.3g} s", s.time.iteration_s, other_s);
  s.steps.Warn("W210", window.saying, {.behind = {"data.sequence_length"}}, message,
               "window = 0, where the model need not have one", s.report);
}

// -------------------------------------------------------------------------------------------------------
// head and loss

// The largest logits that a training pass holds whole, for a loss that is a kernel of its own: where one kernel has head and
// loss, they are in no value of the plan. Null: there are none.
const plan::Instruction* LossOfWholeLogits(const plan::Plan& plan, std::int64_t* bytes) {
  const plan::Instruction* found = nullptr;
  *bytes = 0;
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Chunk& chunk : stage.chunks) {
      if (chunk.train().forward < 0) continue;
      const plan::Segment& forward = stage.segments[static_cast<std::size_t>(chunk.train().forward)];
      for (const plan::Instruction& instruction : forward.instructions) {
        if (instruction.op() != &ops::kCrossEntropy) continue;
        const plan::LocalValue& logits = plan.values[static_cast<std::size_t>(instruction.inputs[0].value)];
        if (logits.local_bytes() <= *bytes) continue;
        *bytes = logits.local_bytes();
        found = &instruction;
      }
    }
  }
  return found;
}

// Why head and loss are apart, as far as the model's steps say.
struct WhyApart {
  Saying saying = {-1, "weight"};  // the step that gives the logits
  std::vector<std::string> causes, remedies;
};

// Whether parameters that something other than these two reads are all frozen: then nothing wants the gradient of what the
// head reads.
bool OnlyHeadIsTrained(const graph::Graph& graph, const graph::Node& head, graph::ValueId bias) {
  const std::vector<graph::Parameter>& all = graph.parameters();
  return std::all_of(all.begin(), all.end(), [&](const graph::Parameter& parameter) {
    return parameter.training.frozen || parameter.value == head.inputs[1] || parameter.value == bias;
  });
}

WhyApart WhyApartOf(const ModelSteps& steps, const graph::Node& loss) {
  // What linear_cross_entropy takes, from the loss to the head.
  constexpr std::array kTaken = {&ops::kSoftcap, &ops::kScale, &ops::kBiasAdd};
  WhyApart why;
  const graph::Graph& graph = steps.graph();
  graph::NodeId at = graph.value(loss.inputs[0]).producer;
  graph::ValueId bias = graph::kNoValue;
  why.saying.node = at;
  const auto* next = kTaken.begin();
  while (at >= 0 && steps.node(at).op != &ops::kLinear) {
    const graph::Node& node = steps.node(at);
    if (node.op == &ops::kBiasAdd) bias = node.inputs[1];
    const auto* taken = std::find(next, kTaken.end(), node.op);
    if (taken != kTaken.end()) {
      next = taken + 1;
    } else {
      why.causes.push_back(fmt::format("{} stands between them", node.op->name));
      why.remedies.push_back(fmt::format("no {} between head and loss", node.op->name));
    }
    at = graph.value(node.inputs[0]).producer;
  }
  if (at >= 0 && OnlyHeadIsTrained(graph, steps.node(at), bias)) {
    why.causes.emplace_back("nothing before the head is trained");
    why.remedies.emplace_back("more that is trained");
  }
  return why;
}

// Where tp splits the vocabulary, head and loss are apart on every model, and each rank has its part of the logits.
void LogitsAreChunked(const AdviceSubject& s) {
  std::int64_t bytes = 0;
  const plan::Instruction* loss = s.on_gpu() ? LossOfWholeLogits(s.plan, &bytes) : nullptr;
  if (loss == nullptr || bytes <= s.recipe.training.logits_bytes) return;
  const plan::Layout& layout = s.plan.values[static_cast<std::size_t>(loss->inputs[0].value)].layout;
  const auto splits_classes = [&](const plan::Split& split) {
    return layout.dims()[split.dim] == graph::Dim::kVocab;
  };
  if (std::any_of(layout.splits().begin(), layout.splits().end(), splits_classes)) return;
  const std::vector<graph::Node>& nodes = s.steps.graph().nodes();
  const auto node = std::find_if(nodes.begin(), nodes.end(),
                                 [&](const graph::Node& known) { return known.name == loss->name; });
  if (node == nodes.end()) return;
  WhyApart why = WhyApartOf(s.steps, *node);
  why.remedies.emplace_back("a smaller micro_batch");
  s.steps.Warn(
      "W211", why.saying, {.behind = {"training.micro_batch", "training.logits_bytes"}},
      fmt::format("all logits of a microbatch exist at once, {} on a rank, and once more as gradients: {} is "
                  "not computed in chunks with its head{}{}",
                  FormatBytes(bytes), loss->name, why.causes.empty() ? "" : ", since ",
                  fmt::join(why.causes, " and ")),
      fmt::format("{}", fmt::join(why.remedies, "; or ")), s.report);
}

constexpr Advice kKernelAdvice[] = {MicrobatchFillsDevice, SizesSuitTensorCores, AttentionIsFast,
                                    WindowSavesTime, LogitsAreChunked};

}  // namespace

LongestWindow LongestWindowOf(const ModelSteps& steps) {
  LongestWindow longest;
  for (graph::NodeId i = 0; i < std::ssize(steps.graph().nodes()); ++i) {
    const graph::Node& node = steps.node(i);
    if (node.op->family != graph::Family::kAttention || node.attributes.Int("window", 0) <= longest.tokens)
      continue;
    longest.tokens = node.attributes.Int("window");
    longest.saying.node = i;
  }
  return longest;
}

std::string SlowerBy(const predict::Prediction& time, std::string_view before) {
  const predict::SlowTime& slowest = time.slow.front();
  if (slowest.seconds < 1.5 * slowest.fast_s) return "";  // no fast kernel could be much faster
  std::string text =
      fmt::format("{}the reference kernels take {:.0f} times as long, an iteration {:.1f} times", before,
                  slowest.seconds / slowest.fast_s, time.iteration_s / time.fast_iteration_s);
  if (time.has_times())
    text += fmt::format(": {:.2f} s, not {:.2f} s", time.iteration_s, time.fast_iteration_s);
  return text;
}

std::span<const Advice> KernelAdvice() { return kKernelAdvice; }

}  // namespace engine::driver
