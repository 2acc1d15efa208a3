// Fused ops found by their compositions: every row of ops/fusion.h on its own composition and on near misses of it, some
// rows by hand, and rows of ops that only this test has.
#include "engine/compile/match.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "engine/ops/fp8.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"

namespace engine::compile {
namespace {

using graph::Attributes;
using graph::OpDef;
using graph::Phase;
using graph::TensorType;
using graph::ValueId;
using graph::ValueIds;

constexpr std::int64_t kOne = 1;

// A local graph of one rank, written node by node; values are named by what they are.
class FusionSketch {
 public:
  std::int32_t Value(const std::string& name, const Shape& shape = {2, 3, 8}) {
    plan::LocalValue value;
    value.name = name;
    value.shape = value.local = shape;
    graph.values.push_back(std::move(value));
    return static_cast<std::int32_t>(graph.values.size() - 1);
  }

  LocalNode& Node(const OpDef& op, std::vector<std::int32_t> inputs, std::vector<std::int32_t> outputs,
                  const Attributes& attributes = {}) {
    LocalNode node;
    node.op = &op;
    node.name = fmt::format("n{}", graph.nodes.size());
    node.inputs = std::move(inputs);
    node.outputs = std::move(outputs);
    node.attributes = attributes;
    node.phase = phase;
    graph.nodes.push_back(std::move(node));
    return graph.nodes.back();
  }

  // "n0: linear(x, w) -> y {in_dims=1} adds 0b1", a node a line.
  std::string Text() const {
    std::string text;
    for (const LocalNode& node : graph.nodes) {
      const auto names = [&](const std::vector<std::int32_t>& values) {
        std::vector<std::string> list;
        for (std::int32_t v : values) list.push_back(graph.values[static_cast<size_t>(v)].name);
        return fmt::format("{}", fmt::join(list, ", "));
      };
      text += fmt::format("{}: {}({}) -> {} {}", node.name, node.op->name, names(node.inputs),
                          names(node.outputs), node.attributes.ToString());
      if (node.accumulate != 0) text += fmt::format(" adds {:#b}", node.accumulate);
      text += "\n";
    }
    return text;
  }

  LocalGraph graph;
  Phase phase = Phase::kBackward;  // of the nodes that follow
};

struct Device {
  Device() {
    profile.fuses = [this](const OpDef& op, const TensorType& of, const Attributes&) {
      asked.push_back(fmt::format("{} {}", op.name, of.shape.ToString()));
      return !refused.contains(&op);
    };
    options.profile = &profile;
    options.chunk_of = [](std::int32_t unit) { return unit / 10; };
  }
  plan::DeviceProfile profile;
  FuseOptions options;
  std::vector<std::string> asked;
  std::set<const OpDef*> refused;
};

void ApplyRows(std::span<const RowPatterns> rows, const FuseOptions& options, LocalGraph* graph) {
  Rewriter rewriter(graph);
  for (const RowPatterns& row : rows) {
    for (int i = 0; i < rewriter.size(); ++i) {
      if (auto match = FindFusion(row, i, options, rewriter)) ApplyFusion(*std::move(match), &rewriter);
    }
  }
  rewriter.Finish();
}

const std::vector<RowPatterns>& Rows() {
  static const std::vector<RowPatterns> rows = PatternsOf(ops::FusionRows());
  return rows;
}

// What the rows of ops/fusion.h make of a sketch.
std::string Fused(FusionSketch sketch, Device* device) {
  ApplyRows(Rows(), device->options, &sketch.graph);
  return sketch.Text();
}
std::string Fused(const FusionSketch& sketch) {
  Device device;
  return Fused(sketch, &device);
}

// The composition of a row's variant as a graph of a model has it.
struct Composition {
  FusionSketch sketch;
  std::vector<std::int32_t> inputs, outputs;

  Composition(const ops::FusionRow& row, const ops::FusionVariant& variant) {
    graph::Graph composed;
    ValueIds ids;
    for (const Shape& shape : variant.inputs) ids.push_back(composed.AddInput("", {shape, DType::kF32}));
    Attributes attributes = row.example;
    for (const auto& [name, item] : variant.example.items()) attributes.Set(name, item);
    for (const auto& [name, item] : row.where.items()) attributes.Set(name, item);
    for (const auto& [name, item] : variant.attributes.items()) attributes.Set(name, item);
    const ValueIds made =
        (row.compose != nullptr ? row.compose : row.op->compose)(&composed, ids, attributes);
    for (const graph::Value& value : composed.values()) sketch.Value("v", value.type.shape);
    for (const graph::Node& node : composed.nodes()) {
      LocalNode& local = sketch.Node(*node.op, {node.inputs.begin(), node.inputs.end()},
                                     {node.outputs.begin(), node.outputs.end()}, node.attributes);
      local.accumulate = node.op->accumulates & ((1U << node.outputs.size()) - 1);
    }
    inputs.assign(ids.begin(), ids.end());
    outputs.assign(made.begin(), made.end());
  }

  // Whether the rows make one node of it, of the row's op.
  bool Becomes(const ops::FusionRow& row) {
    Device device;
    ApplyRows(Rows(), device.options, &sketch.graph);
    return std::any_of(sketch.graph.nodes.begin(), sketch.graph.nodes.end(), [&](const LocalNode& node) {
      return node.op == row.op && node.inputs == inputs && node.outputs == outputs;
    });
  }
};

template <typename Check>
void ForEachVariant(const Check& check) {
  for (const ops::FusionRow& row : ops::FusionRows()) {
    for (size_t v = 0; v < row.variants.size(); ++v) {
      INFO(row.op->name << ", variant " << v);
      check(row, row.variants[v]);
    }
  }
}

const Attributes kTanh = {{"tanh", kOne}};
const Attributes kErf = {{"tanh", std::int64_t{0}}};
const Attributes kInDims = {{"in_dims", kOne}};
const Attributes kRowSums = {{"dims", kOne}};

}  // namespace

// ------------------------------------------------------------------------------------------------- all rows

TEST_CASE("match: every row finds its own composition, inputs, outputs and sums in order") {
  ForEachVariant([](const ops::FusionRow& row, const ops::FusionVariant& variant) {
    Composition composition(row, variant);
    CHECK(composition.Becomes(row));
    REQUIRE(composition.sketch.graph.nodes.size() == 1);
    const LocalNode& node = composition.sketch.graph.nodes[0];
    CHECK(node.accumulate == (row.op->accumulates & ((1U << node.outputs.size()) - 1)));
    for (const auto& [name, item] : variant.attributes.items()) CHECK(node.attributes.Int(name) == 1);
  });
}

TEST_CASE("match: not where a value that would vanish has another reader") {
  int tried = 0;
  ForEachVariant([&](const ops::FusionRow& row, const ops::FusionVariant& variant) {
    const Composition whole(row, variant);
    for (const LocalNode& node : whole.sketch.graph.nodes) {
      for (std::int32_t value : node.outputs) {
        if (std::find(whole.outputs.begin(), whole.outputs.end(), value) != whole.outputs.end()) continue;
        Composition read(row, variant);
        const std::int32_t copy = read.sketch.Value("copy");
        read.sketch.Node(ops::kDropout, {value}, {copy});
        CHECK_FALSE(read.Becomes(row));
        // Nor where it is added to what others have made.
        Composition added(row, variant);
        for (LocalNode& maker : added.sketch.graph.nodes) {
          for (size_t o = 0; o < maker.outputs.size(); ++o) {
            if (maker.outputs[o] == value) maker.accumulate |= 1U << o;
          }
        }
        CHECK_FALSE(added.Becomes(row));
        ++tried;
      }
    }
  });
  CHECK(tried > 20);
}

TEST_CASE(
    "match: a sum that is not added to anything is written, where an op makes it beside others and nobody "
    "reads it") {
  int tried = 0;
  ForEachVariant([&](const ops::FusionRow& row, const ops::FusionVariant& variant) {
    const std::vector<LocalNode> nodes = Composition(row, variant).sketch.graph.nodes;
    for (size_t n = 0; n < nodes.size(); ++n) {
      for (size_t o = 0; o < nodes[n].outputs.size(); ++o) {
        if (((nodes[n].accumulate >> o) & 1U) == 0) continue;
        const std::int32_t sum = nodes[n].outputs[o];
        Composition written(row, variant);
        written.sketch.graph.nodes[n].accumulate &= ~(1U << o);
        Composition read = written;
        const bool beside = nodes[n].outputs.size() > 1;
        CHECK(written.Becomes(row) == beside);  // nobody would make it alone
        if (!beside) continue;
        const LocalNode& fused = written.sketch.graph.nodes[0];
        const auto k = std::find(fused.outputs.begin(), fused.outputs.end(), sum) - fused.outputs.begin();
        CHECK(((fused.accumulate >> k) & 1U) == 0);
        const std::int32_t copy = read.sketch.Value("copy");
        read.sketch.Node(ops::kDropout, {sum}, {copy});
        CHECK_FALSE(read.Becomes(row));
        ++tried;
      }
    }
  });
  CHECK(tried == 15);
}

TEST_CASE("match: not across phases, but where the row says so, nor across chunks") {
  ForEachVariant([](const ops::FusionRow& row, const ops::FusionVariant& variant) {
    const size_t nodes = Composition(row, variant).sketch.graph.nodes.size();
    for (size_t n = 0; n < nodes; ++n) {
      Composition other(row, variant);
      other.sketch.graph.nodes[n].phase = Phase::kForward;
      CHECK(other.Becomes(row) == row.across_phases);
      Composition beyond(row, variant);
      beyond.sketch.graph.nodes[n].unit = 10;
      CHECK_FALSE(beyond.Becomes(row));
      Composition beside(row, variant);
      beside.sketch.graph.nodes[n].unit = 9;  // of the same chunk
      CHECK(beside.Becomes(row) != row.same_unit);
    }
  });
}

TEST_CASE("match: not where the device has no such kernel") {
  ForEachVariant([](const ops::FusionRow& row, const ops::FusionVariant& variant) {
    Composition composition(row, variant);
    Device device;
    device.refused = {row.op};
    ApplyRows(Rows(), device.options, &composition.sketch.graph);
    const bool found = std::any_of(
        composition.sketch.graph.nodes.begin(), composition.sketch.graph.nodes.end(),
        [&](const LocalNode& node) { return node.op == row.op && node.inputs == composition.inputs; });
    CHECK(found == (row.stage == ops::FusionStage::kEveryDevice));
  });
}

TEST_CASE("match: attributes that a row wants") {
  ForEachVariant([](const ops::FusionRow& row, const ops::FusionVariant& variant) {
    for (const auto& [name, wanted] : row.where.items()) {
      Composition composition(row, variant);
      for (LocalNode& node : composition.sketch.graph.nodes) {
        if (node.attributes.Has(name)) node.attributes.Set(name, std::get<std::int64_t>(wanted) + 1);
      }
      CHECK_FALSE(composition.Becomes(row));
    }
  });
}

// Rows above are applied to compositions of those below.
TEST_CASE("match: rows are in the order of their stages") {
  CHECK(std::is_sorted(ops::FusionRows().begin(), ops::FusionRows().end(),
                       [](const ops::FusionRow& a, const ops::FusionRow& b) { return a.stage < b.stage; }));
}

TEST_CASE("match: each op with a composition has a row, or a rule by hand that names it") {
  std::set<const OpDef*> found;
  for (const ops::FusionRow& row : ops::FusionRows()) found.insert(row.op);
  for (const ops::RepeatedNorm& norm : ops::RepeatedNorms()) found.insert(norm.quantize);
  for (const ops::PackedAttention& attention : ops::PackedAttentions()) {
    for (const ops::PackedAttention::Way& way : {attention.forward, attention.backward})
      found.insert({way.packed, way.turn});
  }
  for (const ops::Fp8Product& product : ops::Fp8Products()) found.insert(product.fp8);
  for (const auto& list : {ops::AllFusedOps(), ops::AllFp8Ops()}) {
    for (const OpDef* op : list) CHECK_MESSAGE((op->compose == nullptr || found.contains(op)), op->name);
  }
}

// -------------------------------------------------------------------------------------------- rows by hand

// pre = x · w + b, y = gelu(pre); pre is read by the backward pass too.
static FusionSketch Product(const Attributes& gelu, bool biased = true) {
  FusionSketch sketch;
  sketch.phase = Phase::kForward;
  const std::int32_t x = sketch.Value("x", {2, 3, 4});
  const std::int32_t w = sketch.Value("w", {8, 4});
  const std::int32_t b = sketch.Value("b", {8});
  const std::int32_t pre = sketch.Value("pre", {2, 3, 8});
  const std::int32_t y = sketch.Value("y");
  std::vector<std::int32_t> inputs = {x, w};
  if (biased) inputs.push_back(b);
  sketch.Node(ops::kLinear, inputs, {pre}, {{"in_dims", kOne}, {"out_split", kOne}});
  sketch.Node(ops::kGelu, {pre}, {y}, gelu);
  return sketch;
}

TEST_CASE("match: a product and its activation") {
  Device device;
  // All attributes of both nodes, the product's first; the device is asked of the activation's input.
  CHECK(Fused(Product(kTanh), &device) ==
        "n0: linear_gelu(x, w, b) -> y, pre {in_dims=1, out_split=1, tanh=1}\n");
  CHECK(device.asked == std::vector<std::string>{"linear_gelu [2, 3, 8]"});
  const auto stays = [](const FusionSketch& sketch) { CHECK(Fused(sketch) == sketch.Text()); };
  stays(Product(kErf));
  stays(Product(kTanh, /*biased=*/false));
  FusionSketch sketch = Product(kTanh);
  sketch.graph.nodes[1].unit = 1;
  stays(sketch);
}

// sum = x + (branch + bias), y = layer_norm(sum). The bias and the gain may be of two dims.
static FusionSketch Norm(bool bias_of_heads = false, bool gain_of_heads = false) {
  FusionSketch sketch;
  const std::int32_t x = sketch.Value("x");
  const std::int32_t branch = sketch.Value("branch");
  const std::int32_t bias = sketch.Value("bias", bias_of_heads ? Shape{2, 8} : Shape{8});
  const Shape of_gain = gain_of_heads ? Shape{2, 8} : Shape{8};
  const std::int32_t gamma = sketch.Value("gamma", of_gain);
  const std::int32_t beta = sketch.Value("beta", of_gain);
  const std::int32_t biased = sketch.Value("biased");
  const std::int32_t sum = sketch.Value("sum");
  const std::int32_t y = sketch.Value("y");
  const std::int32_t mean = sketch.Value("mean", {2, 3});
  const std::int32_t rstd = sketch.Value("rstd", {2, 3});
  sketch.Node(ops::kBiasAdd, {branch, bias}, {biased});
  sketch.Node(ops::kAdd, {x, biased}, {sum});
  sketch.Node(ops::kLayerNorm, {sum, gamma, beta}, {y, mean, rstd}, {{"epsilon", 1e-5}});
  return sketch;
}

TEST_CASE("match: kernels that add to a norm take a gain and a bias of one dim") {
  CHECK(Fused(Norm(/*bias_of_heads=*/true)) ==
        "n0: bias_add(branch, bias) -> biased \n"
        "n2: add_layer_norm(x, biased, gamma, beta) -> sum, y, mean, rstd {epsilon=1e-05}\n");
  const FusionSketch of_heads = Norm(/*bias_of_heads=*/true, /*gain_of_heads=*/true);
  CHECK(Fused(of_heads) == of_heads.Text());
  // Of gradients too.
  for (const OpDef* norm : {&ops::kLayerNormGrad, &ops::kRmsNormGrad}) {
    for (const bool heads : {false, true}) {
      FusionSketch sketch;
      std::vector<std::int32_t> inputs = {sketch.Value("dy"), sketch.Value("x"),
                                          sketch.Value("gamma", heads ? Shape{3, 8} : Shape{8})};
      std::vector<std::int32_t> made = {sketch.Value("dx"), sketch.Value("d_gamma")};
      if (norm == &ops::kLayerNormGrad) {
        inputs.push_back(sketch.Value("mean"));
        made.push_back(sketch.Value("d_beta"));
      }
      inputs.push_back(sketch.Value("rstd"));
      const std::int32_t residual = sketch.Value("residual");
      const std::int32_t sum = sketch.Value("sum");
      sketch.Node(*norm, inputs, made, {{"epsilon", 1e-5}, {"gain_offset", 1.0}}).accumulate =
          norm->accumulates;
      sketch.Node(ops::kAdd, {residual, made[0]}, {sum});
      const std::string fused = Fused(sketch);
      CHECK((fused == sketch.Text()) == heads);
      CHECK(fused.find("gain_offset=1") != std::string::npos);
    }
  }
}

TEST_CASE("match: the first variant that holds is taken") {
  const char* const plain =
      "n2: add_layer_norm(x, biased, gamma, beta) -> sum, y, mean, rstd {epsilon=1e-05}\n";
  CHECK(Fused(Norm()) ==
        "n2: add_layer_norm(x, branch, gamma, beta, bias) -> sum, y, mean, rstd {epsilon=1e-05}\n");
  FusionSketch read = Norm();
  const std::int32_t copy = read.Value("copy");
  read.Node(ops::kDropout, {5}, {copy});
  CHECK(Fused(read) ==
        std::string("n0: bias_add(branch, bias) -> biased \n") + plain + "n3: dropout(biased) -> copy \n");
  FusionSketch beyond = Norm();
  beyond.graph.nodes[0].unit = 10;
  CHECK(Fused(beyond) == std::string("n0: bias_add(branch, bias) -> biased \n") + plain);
}

// The sum would be made only where the norm is.
TEST_CASE("match: not where an output is read before the fused node runs") {
  FusionSketch sketch = Norm();
  const std::int32_t copy = sketch.Value("copy");
  sketch.Node(ops::kDropout, {6}, {copy});
  CHECK(Fused(sketch) ==
        "n2: add_layer_norm(x, branch, gamma, beta, bias) -> sum, y, mean, rstd {epsilon=1e-05}\n"
        "n3: dropout(sum) -> copy \n");
  std::swap(sketch.graph.nodes[2], sketch.graph.nodes[3]);
  CHECK(Fused(sketch) == sketch.Text());
}

// An activation that is run again stands where it is; what its gradient takes may be made only later.
TEST_CASE("match: not where an input is made behind the fused node") {
  const auto again = [](bool late) {
    FusionSketch sketch;
    const std::int32_t pre = sketch.Value("pre");
    const std::int32_t z = sketch.Value("z");
    const std::int32_t dy = sketch.Value("dy");
    const std::int32_t y = sketch.Value("y");
    const std::int32_t d_pre = sketch.Value("d_pre");
    if (!late) sketch.Node(ops::kDropout, {z}, {dy});
    sketch.Node(ops::kGelu, {pre}, {y}, kTanh);
    if (late) sketch.Node(ops::kDropout, {z}, {dy});
    sketch.Node(ops::kGeluGrad, {pre, dy}, {d_pre}, kTanh);
    return sketch;
  };
  CHECK(Fused(again(false)) == "n0: dropout(z) -> dy \nn1: gelu_grad_again(pre, dy) -> d_pre, y {tanh=1}\n");
  CHECK(Fused(again(true)) == again(true).Text());
  FusionSketch forward = again(false);
  for (LocalNode& node : forward.graph.nodes) node.phase = Phase::kForward;
  CHECK(Fused(forward) == forward.Text());
  // Both forms are fused, but not one with the other's gradient.
  FusionSketch mixed = again(false);
  mixed.graph.nodes[1].attributes = kErf;
  CHECK(Fused(mixed) == mixed.Text());
  mixed.graph.nodes[2].attributes = kErf;
  CHECK(Fused(mixed) == "n0: dropout(z) -> dy \nn1: gelu_grad_again(pre, dy) -> d_pre, y {tanh=0}\n");
}

TEST_CASE("match: what will be quantised as it is made is not made with its gradient") {
  FusionSketch sketch;
  const std::int32_t pre = sketch.Value("pre");
  const std::int32_t dy = sketch.Value("dy");
  const std::int32_t y = sketch.Value("y");
  const std::int32_t d_pre = sketch.Value("d_pre");
  const std::int32_t state = sketch.Value("state", {8});
  const std::int32_t q = sketch.Value("q");
  const std::int32_t qt = sketch.Value("qt");
  sketch.Node(ops::kGelu, {pre}, {y}, kTanh);
  sketch.Node(ops::kQuantize, {y, state}, {q, qt}, {{"dims", kOne}, {"format", std::int64_t{0}}});
  sketch.Node(ops::kGeluGrad, {pre, dy}, {d_pre}, kTanh);
  CHECK(Fused(sketch) ==
        "n0: gelu_quantize(pre, state) -> q, qt {tanh=1, dims=1, format=0}\n"
        "n2: gelu_grad(pre, dy) -> d_pre {tanh=1}\n");
  // Nor where the form has no kernel that quantises.
  sketch.graph.nodes[0].attributes = sketch.graph.nodes[2].attributes = kErf;
  CHECK(Fused(sketch) == sketch.Text());
}

// dx, d_gamma, d_beta = layer_norm_grad(…), total = residual + dx, d_bias += column sums of total.
static FusionSketch NormGradient(bool residual_first, const Attributes& sums = kRowSums, bool adds = true) {
  FusionSketch sketch;
  std::vector<std::int32_t> inputs = {sketch.Value("dy"), sketch.Value("x"), sketch.Value("gamma", {8}),
                                      sketch.Value("mean", {2, 3}), sketch.Value("rstd", {2, 3})};
  const std::int32_t dx = sketch.Value("dx");
  const std::int32_t d_gamma = sketch.Value("d_gamma", {8});
  const std::int32_t d_beta = sketch.Value("d_beta", {8});
  const std::int32_t residual = sketch.Value("residual");
  const std::int32_t total = sketch.Value("total");
  const std::int32_t d_bias = sketch.Value("d_bias", {8});
  sketch.Node(ops::kLayerNormGrad, inputs, {dx, d_gamma, d_beta}, {{"epsilon", 1e-5}}).accumulate = 0b110;
  sketch.Node(ops::kAdd, residual_first ? std::vector{residual, dx} : std::vector{dx, residual}, {total});
  sketch.Node(ops::kBiasGrad, {total}, {d_bias}, sums).accumulate = adds ? 1 : 0;
  return sketch;
}

TEST_CASE("match: either side of a sum, and column sums that are added") {
  const char* const with_bias =
      "n0: layer_norm_grad_add(dy, x, gamma, mean, rstd, residual) -> total, d_gamma, d_beta, d_bias "
      "{epsilon=1e-05, bias=1} adds 0b1110\n";
  CHECK(Fused(NormGradient(true)) == with_bias);
  CHECK(Fused(NormGradient(false)) == with_bias);
  const std::string without =
      "n0: layer_norm_grad_add(dy, x, gamma, mean, rstd, residual) -> total, d_gamma, d_beta "
      "{epsilon=1e-05} adds 0b110\n";
  CHECK(Fused(NormGradient(true, {{"dims", std::int64_t{2}}})) ==
        without + "n2: bias_grad(total) -> d_bias {dims=2} adds 0b1\n");
  CHECK(Fused(NormGradient(true, kRowSums, /*adds=*/false)) ==
        without + "n2: bias_grad(total) -> d_bias {dims=1}\n");
}

// Rows look for what the rows above have made: the sum with the norm's gradient first, its quantisation then.
TEST_CASE("match: what is quantised where it is made") {
  FusionSketch sketch = NormGradient(true);
  sketch.graph.nodes.pop_back();
  const std::int32_t state = sketch.Value("state", {8});
  const std::int32_t q = sketch.Value("q");
  const std::int32_t qt = sketch.Value("qt");
  const std::int32_t total = 9;
  const std::int32_t d_bias = 10;
  sketch
      .Node(ops::kQuantize, {total, state}, {q, qt, d_bias},
            {{"dims", kOne}, {"format", kOne}, {"start", 64.0}, {"bias", kOne}})
      .accumulate = 0b100;
  CHECK(
      Fused(sketch) ==
      "n0: layer_norm_grad_add_quantize(dy, x, gamma, mean, rstd, residual, state) -> total, q, qt, d_gamma, "
      "d_beta, d_bias {epsilon=1e-05, dims=1, format=1, start=64, bias=1} adds 0b111000\n");
}

// No kernel quantises a norm whose branch has a bias, or sums the columns of a SwiGLU's gradient.
TEST_CASE("match: not with more inputs or outputs than the composition has") {
  const Attributes quantize = {{"dims", kOne}, {"format", kOne}};
  FusionSketch norm = Norm();
  const std::int32_t state = norm.Value("state", {8});
  const std::int32_t q = norm.Value("q");
  const std::int32_t qt = norm.Value("qt");
  norm.Node(ops::kQuantize, {7, state}, {q, qt}, quantize);
  CHECK(Fused(norm) ==
        "n2: add_layer_norm(x, branch, gamma, beta, bias) -> sum, y, mean, rstd {epsilon=1e-05}\n"
        "n3: quantize(y, state) -> q, qt {dims=1, format=1}\n");

  const auto gradient = [&](bool sums) {
    FusionSketch sketch;
    std::vector<std::int32_t> made = {sketch.Value("q"), sketch.Value("qt")};
    const std::int32_t x = sketch.Value("x", {2, 3, 2, 8});
    const std::int32_t dy = sketch.Value("dy");
    const std::int32_t dx = sketch.Value("dx", {2, 3, 2, 8});
    const std::int32_t scale = sketch.Value("state", {8});
    if (sums) made.push_back(sketch.Value("d_bias", {2, 8}));
    sketch.Node(ops::kSwigluGrad, {x, dy}, {dx});
    sketch.Node(ops::kQuantize, {dx, scale}, made, quantize).accumulate = sums ? 0b100 : 0;
    return sketch;
  };
  CHECK(Fused(gradient(false)) == "n0: swiglu_grad_quantize(x, dy, state) -> q, qt {dims=1, format=1}\n");
  CHECK(Fused(gradient(true)) == gradient(true).Text());
}

// ------------------------------------------------------------------------------ ops that only this test has

namespace {

ValueIds ComposeAddGelu(graph::Graph* g, const ValueIds& in, const Attributes& attributes) {
  return {g->Emit1(ops::kGelu, "y", {g->Emit1(ops::kAdd, "sum", {in[0], in[1]})}, attributes)};
}
ValueIds ComposeAddGeluDropout(graph::Graph* g, const ValueIds& in, const Attributes& attributes) {
  const ValueId y = ComposeAddGelu(g, in, attributes)[0];
  return {g->Emit1(ops::kDropout, "dropped", {y}, {{"p", 0.5}, {"stream", std::string("s")}}), y};
}

const OpDef kAddGelu{.name = "add_gelu", .compose = ComposeAddGelu};
const OpDef kAddGeluDropout{.name = "add_gelu_dropout", .compose = ComposeAddGeluDropout};

}  // namespace

// Nothing but an op and a row: no pass knows it.
TEST_CASE("match: rows of new ops, one on top of the other") {
  const Shape x = {2, 3, 8};
  const std::vector<ops::FusionRow> rows = {
      {.op = &kAddGelu,
       .variants = {{{x, x}}},
       .example = kTanh,
       .at = &ops::kGelu,
       .named_by = &ops::kAdd,
       .asks = ops::OutputOf(ops::kAdd, 0)},
      {.op = &kAddGeluDropout,
       .variants = {{{x, x}}},
       .example = kTanh,
       .at = &kAddGelu,
       .asks = ops::InputOf(kAddGelu, 1)},
  };
  const std::vector<RowPatterns> patterns = PatternsOf(rows);
  // The second row's composition with the first row's op in it.
  REQUIRE(patterns[1].variants[0].nodes.size() == 2);
  CHECK(patterns[1].variants[0].nodes[0].op == &kAddGelu);
  const auto fused = [&](double p) {
    FusionSketch sketch;
    const std::int32_t a = sketch.Value("a");
    const std::int32_t b = sketch.Value("b");
    const std::int32_t sum = sketch.Value("sum");
    const std::int32_t y = sketch.Value("y");
    const std::int32_t dropped = sketch.Value("dropped");
    sketch.Node(ops::kAdd, {a, b}, {sum});
    sketch.Node(ops::kGelu, {sum}, {y}, kTanh);
    sketch.Node(ops::kDropout, {y}, {dropped}, {{"p", p}, {"stream", std::string("s")}});
    Device device;
    ApplyRows(patterns, device.options, &sketch.graph);
    return sketch.Text();
  };
  // An attribute that the composition itself gives is a condition, and none of the fused node's.
  CHECK(fused(0.5) == "n0: add_gelu_dropout(a, b) -> dropped, y {tanh=1}\n");
  CHECK(fused(0.1) == "n0: add_gelu(a, b) -> y {tanh=1}\nn2: dropout(y) -> dropped {p=0.1, stream=s}\n");
}

}  // namespace engine::compile
