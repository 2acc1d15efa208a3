// What becomes of the plain ops where the device has fused kernels and FP8 products: the plans that CUDA's
// profile gives, segment by segment.
#include "engine/compile/fuse.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/compile/compile.h"
#include "engine/model/build.h"
#include "engine/verify/verify.h"
#include "tests/graphs/graphs.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

using Sets = std::vector<std::string>;

Sets With(Sets sets, const Sets& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

constexpr bool kGpt = false;
constexpr bool kLlama = true;
const Sets kBf16 = {"precision.compute=bf16", "model.dropout.hidden=0", "model.dropout.embedding=0"};
const Sets kLlamaBf16 = {"precision.compute=bf16"};
const Sets kOneKeyAQuery = {"model.attention.kv_heads=8"};

// Verified; four layers.
plan::Plan CudaPlan(bool llama, const Sets& sets) {
  const recipe::Recipe recipe = plan::TinyRecipe(llama, With({"model.layers=4"}, sets));
  absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(recipe, {.profile = backend::cuda::CudaProfile()});
  if (!plan.ok()) FAIL(Message(plan.status()));
  return *std::move(plan);
}

const plan::Segment& SegmentOf(const plan::Plan& plan, std::string_view name) {
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Segment& segment : stage.segments) {
      if (segment.name == name) return segment;
    }
  }
  FAIL("no segment " << name);
  return plan.stages[0].segments[0];
}

// "add 1, linear 12": how often each kernel runs in a segment.
std::string Kernels(const plan::Plan& plan, const std::string& segment) {
  std::map<std::string, int> counts;
  for (const plan::Instruction& instruction : SegmentOf(plan, segment).instructions)
    ++counts[std::string(instruction.kernel())];
  std::string text;
  for (const auto& [kernel, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kernel, count);
  return text;
}

std::vector<const plan::Instruction*> All(const plan::Plan& plan, const std::string& segment,
                                          const std::string& kernel) {
  std::vector<const plan::Instruction*> found;
  for (const plan::Instruction& instruction : SegmentOf(plan, segment).instructions) {
    if (instruction.kernel() == kernel) found.push_back(&instruction);
  }
  return found;
}

bool SameBytes(const plan::BufferRef& a, const plan::BufferRef& b) {
  return a.offset == b.offset && a.in_slot == b.in_slot && a.bytes() == b.bytes();
}

bool IsFp8(DType dtype) { return dtype == DType::kE4M3 || dtype == DType::kE5M2; }

}  // namespace

// A layer has two norms, attention, and four linears, of which fc1 takes the activation with it. What stays
// is the sum of both embeddings, the first norm, which has no sum before it, and its gradient.
TEST_CASE("fuse: a GPT without dropout is fused all through") {
  const plan::Plan plan = CudaPlan(kGpt, kBf16);
  CHECK(Kernels(plan, "forward.0") ==
        "add_layer_norm 9, attention_packed 4, embedding 2, linear 12, linear_gelu 4");
  // Biases of qkv and fc1 have column sums of their own, and so has the last branch, whose gradient is the
  // final norm's alone; the other seven branches' are summed by the gradient of the norm behind them.
  CHECK(Kernels(plan, "backward.0") ==
        "attention_packed_grad 4, bias_grad 9, embedding_grad 2, layer_norm_grad 1, layer_norm_grad_add 8, "
        "linear_cross_entropy 1, linear_dgrad 12, linear_dgrad_gelu 4, linear_wgrad 16");
  int with_bias = 0;
  for (const plan::Instruction* norm : All(plan, "backward.0", "layer_norm_grad_add"))
    with_bias += norm->outputs.size() == 4 ? 1 : 0;
  CHECK(with_bias == 7);
  CHECK(Kernels(plan, "evaluate.0") ==
        "add_layer_norm 9, attention_packed 4, cross_entropy 1, embedding 2, linear 13, linear_gelu 4, "
        "loss_sum 1");
}

// An adapter's wide product is added to what it stands beside by the kernel that makes it, in its place; forward the product
// with B, backward that with A, and that of the lowest adapter has no gradient to pass on.
TEST_CASE("fuse: adapters' wide products are added where they are made") {
  const plan::Plan plan = CudaPlan(kLlama, With(kLlamaBf16, {"lora.rank=4", "lora.alpha=4"}));
  CHECK(All(plan, "forward.0", "add").empty());
  CHECK(All(plan, "forward.0", "linear").size() == 32);
  CHECK(All(plan, "forward.0", "linear_add").size() == 16);
  const auto backward = All(plan, "backward.0", "linear_dgrad_add");
  CHECK(backward.size() == 15);
  for (const std::string segment : {"forward.0", "backward.0"}) {
    const std::string op = segment == "forward.0" ? "linear_add" : "linear_dgrad_add";
    for (const plan::Instruction* product : All(plan, segment, op)) {
      INFO(product->name);
      CHECK(product->attributes().Int("adapter") == 1);
      CHECK(product->inputs[2].offset == product->outputs[0].offset);
      CHECK(product->name.find(".lora_") != std::string::npos);
    }
  }
  // Norms, whose gains are frozen, take the stream's sums and come again with their gradients as those of other models do.
  CHECK(All(plan, "backward.0", "rms_norm_grad_add").size() == 7);
  CHECK(All(plan, "backward.0", "add").empty());
  const plan::Plan cheap =
      CudaPlan(kLlama, With(kLlamaBf16, {"lora.rank=4", "lora.alpha=4", "recompute.granularity=cheap"}));
  const auto again = All(cheap, "backward.0", "rms_norm_grad_add");
  CHECK(again.size() == 7);
  for (const plan::Instruction* norm : again) {
    CHECK(norm->attributes().Int("again", 0) == 1);
    CHECK(norm->accumulate() == 0);
  }
  // The residual stream's sums stay with the norms, and no product of a model without adapters is added.
  CHECK(All(CudaPlan(kLlama, kLlamaBf16), "forward.0", "linear_add").empty());
}

// What attention on packed tensors does not take is left apart; what it takes keeps its attributes.
TEST_CASE("fuse: packed attention keeps soft caps, linear biases and rotation, and leaves sinks apart") {
  const absl::StatusOr<plan::Plan> made =
      plan::PlanOfGraph(plan::TinyRecipe(kLlama, {"precision.compute=bf16"}), plan::AttentionForms(),
                        backend::cuda::CudaProfile());
  REQUIRE_MESSAGE(made.ok(), Message(made.status()));
  for (const bool backward : {false, true}) {
    CAPTURE(backward);
    const std::string segment = backward ? "backward.0" : "forward.0";
    const std::string grad = backward ? "_grad" : "";
    const auto packed = All(*made, segment, "attention_packed" + grad);
    REQUIRE(packed.size() == 2);
    for (const plan::Instruction* attention : packed) CHECK(attention->attributes().Float("softcap") == 0.5);
    CHECK(std::count_if(packed.begin(), packed.end(), [](const plan::Instruction* attention) {
            return attention->attributes().Int("alibi", 0) == 1 && attention->attributes().Int("window") == 6;
          }) == 1);
    const auto turned = All(*made, segment, "rotary" + grad);
    REQUIRE(turned.size() == 1);
    CHECK(turned[0]->attributes().String("scaling") == "yarn");
    CHECK(turned[0]->attributes().Int("width") == 4);
    CHECK(turned[0]->attributes().Int("interleaved") == 1);
    const auto apart = All(*made, segment, "attention" + grad);
    REQUIRE(apart.size() == 2);
    for (const plan::Instruction* attention : apart) {
      CHECK(attention->inputs.size() == (backward ? 8 : 5));
      CHECK(attention->AsKernel()->slow.kind == plan::SlowPath::Kind::kReference);
    }
    CHECK(All(*made, segment, "rotate" + grad).size() == 2);
    CHECK(All(*made, segment, backward ? "qkv_merge" : "qkv_split").size() == 1);
  }
  // Without a backward pass, which alone would keep sinks from being packed.
  for (const plan::Instruction* attention : All(*made, "evaluate.0", "attention"))
    CHECK(attention->inputs.size() == 5);
  CHECK(All(*made, "evaluate.0", "attention").size() == 2);
}

TEST_CASE("fuse: attention with biases by distance stays apart") {
  const absl::StatusOr<plan::Plan> made =
      plan::PlanOfGraph(plan::TinyRecipe(kLlama, {"precision.compute=bf16"}), plan::DistanceBiases(),
                        backend::cuda::CudaProfile());
  REQUIRE_MESSAGE(made.ok(), Message(made.status()));
  for (const char* segment : {"forward.0", "backward.0", "evaluate.0"}) {
    CAPTURE(std::string(segment));
    const bool backward = std::string(segment) == "backward.0";
    CHECK(All(*made, segment, "attention_packed").empty());
    CHECK(All(*made, segment, "attention_packed_grad").empty());
    const auto apart = All(*made, segment, backward ? "attention_grad" : "attention");
    REQUIRE(apart.size() == 3);
    for (const plan::Instruction* attention : apart) {
      CHECK(attention->attributes().Int("distance") > 0);
      const plan::BufferRef& biases = attention->inputs.back();
      CHECK(made->values[static_cast<std::size_t>(biases.value)].local ==
            Shape{4, 2 * attention->attributes().Int("distance") + 1});
    }
  }
}

// Dropout after each branch goes with the norm behind it, the embedding's alone stays; the bias of a branch is before it, so
// its gradient is summed with dropout's.
TEST_CASE("fuse: dropout goes with norms, its gradients with those of biases") {
  const plan::Plan plan = CudaPlan(kGpt, {"precision.compute=bf16"});
  CHECK(
      Kernels(plan, "forward.0") ==
      "add 1, add_dropout_layer_norm 8, attention_packed 4, dropout 1, embedding 2, layer_norm 1, linear 12, "
      "linear_gelu 4");
  for (const plan::Instruction* norm : All(plan, "forward.0", "add_dropout_layer_norm")) {
    CHECK(norm->attributes().Float("p") == 0.1);
    CHECK(norm->attributes().Float("epsilon") == 1e-5);
    CHECK(norm->attributes().String("stream").ends_with(".dropout"));
  }
  CHECK(
      Kernels(plan, "backward.0") ==
      "attention_packed_grad 4, bias_grad 8, dropout_grad 1, dropout_grad_bias 8, embedding_grad 2, "
      "layer_norm_grad 1, layer_norm_grad_add 8, linear_cross_entropy 1, linear_dgrad 12, linear_dgrad_gelu "
      "4, linear_wgrad 16");
  for (const plan::Instruction* norm : All(plan, "backward.0", "layer_norm_grad_add"))
    CHECK(norm->outputs.size() == 3);
  // What is repeated draws the same mask; a norm that is repeated for its weight gradients takes the statistics that are
  // there.
  const plan::Plan cheap = CudaPlan(kGpt, {"precision.compute=bf16", "recompute.granularity=cheap"});
  CHECK(All(cheap, "forward.0", "add_dropout_layer_norm").size() == 8);
  CHECK(All(cheap, "backward.0", "layer_norm").size() == 1);  // the first, before which nothing is added
  int again = 0;
  for (const plan::Instruction* norm : All(cheap, "backward.0", "layer_norm_grad_add"))
    again += norm->attributes().Int("again", 0) != 0 ? 1 : 0;
  CHECK(again == 7);
  // Without biases dropout's gradient is by itself.
  const plan::Plan llama = CudaPlan(kLlama, With(kLlamaBf16, {"model.dropout.hidden=0.1"}));
  CHECK(All(llama, "forward.0", "add_dropout_rms_norm").size() == 8);
  CHECK(All(llama, "forward.0", "dropout").empty());
  CHECK(All(llama, "backward.0", "dropout_grad").size() == 8);
  // Where a norm is quantised as it is made, dropout stays apart.
  const plan::Plan fp8 = CudaPlan(kGpt, {"precision.compute=fp8"});
  CHECK(All(fp8, "forward.0", "add_layer_norm_quantize").size() == 7);
  CHECK(All(fp8, "forward.0", "add_dropout_layer_norm").size() == 1);  // the last, which the head reads
  CHECK(All(fp8, "forward.0", "dropout").size() == 8);
}

TEST_CASE("fuse: a Llama with a key a query") {
  const plan::Plan plan = CudaPlan(kLlama, With(kLlamaBf16, kOneKeyAQuery));
  CHECK(Kernels(plan, "forward.0") ==
        "add_rms_norm 8, attention_packed 4, embedding 1, linear 16, rms_norm 1, rotary 4, swiglu 4");
  CHECK(Kernels(plan, "backward.0") ==
        "attention_packed_grad 4, embedding_grad 1, linear_cross_entropy 1, linear_dgrad 16, linear_wgrad "
        "16, rms_norm_grad 1, rms_norm_grad_add 8, rotary_grad 4, swiglu_grad 4");
  CHECK(Kernels(plan, "evaluate.0") ==
        "add_rms_norm 8, attention_packed 4, cross_entropy 1, embedding 1, linear 17, loss_sum 1, rms_norm "
        "1, rotary 4, swiglu 4");
}

// Heads of grouped queries do not lie at one stride in the packed projection.
TEST_CASE("fuse: grouped queries keep their own attention") {
  const plan::Plan plan = CudaPlan(kLlama, kLlamaBf16);
  CHECK(Kernels(plan, "forward.0") ==
        "add_rms_norm 8, attention 4, embedding 1, linear 16, qkv_split 4, rms_norm 1, swiglu 4");
  CHECK(Kernels(plan, "backward.0") ==
        "attention_grad 4, embedding_grad 1, linear_cross_entropy 1, linear_dgrad 16, linear_wgrad 16, "
        "qkv_merge 4, rms_norm_grad 1, rms_norm_grad_add 8, swiglu_grad 4");
  for (const plan::Instruction* split : All(plan, "forward.0", "qkv_split"))
    CHECK(split->attributes().Int("rotary", 0) == 1);
}

// cuBLASLt's GELU keeps its input in 16 bits only.
TEST_CASE("fuse: in fp32 GELU stays a kernel of its own") {
  const plan::Plan plan = CudaPlan(kGpt, {"precision.compute=fp32", "model.dropout.hidden=0"});
  CHECK(All(plan, "forward.0", "gelu").size() == 4);
  CHECK(All(plan, "backward.0", "gelu_grad").size() == 4);
  CHECK(All(plan, "forward.0", "linear_gelu").empty());
  CHECK(All(plan, "backward.0", "linear_dgrad_gelu").empty());
  CHECK(All(plan, "forward.0", "attention_packed").size() == 4);
}

TEST_CASE("fuse: the erf form of GELU has no product of its own") {
  const plan::Plan plan = CudaPlan(kGpt, With(kBf16, {"model.mlp.activation=gelu_erf"}));
  CHECK(All(plan, "forward.0", "gelu").size() == 4);
  CHECK(All(plan, "backward.0", "gelu_grad").size() == 4);
  CHECK(All(plan, "forward.0", "linear").size() == 16);
}

// A profile without fused kernels: only the bias goes into the product.
TEST_CASE("fuse: without a profile of fused ops biases alone are fused") {
  const plan::Plan plan = plan::TinyPlan(kGpt, {"model.layers=4", "model.dropout.hidden=0"});
  CHECK(Kernels(plan, "forward.0") ==
        "add 9, attention 4, cross_entropy 1, dropout 1, embedding 2, gelu 4, layer_norm 9, linear 17, "
        "loss_sum 1, qkv_split 4");
  for (const plan::Instruction* linear : All(plan, "forward.0", "linear"))
    CHECK(linear->inputs.size() == (linear->name == "head" ? 2 : 3));
}

TEST_CASE("fuse: what is recomputed") {
  const char* const kForward = "add_layer_norm 9, attention_packed 4, embedding 2, linear 12, linear_gelu 4";
  const auto backward = [&](const char* granularity) {
    const plan::Plan plan =
        CudaPlan(kGpt, With(kBf16, {std::string("recompute.granularity=") + granularity}));
    CHECK(Kernels(plan, "forward.0") == kForward);
    return Kernels(plan, "backward.0");
  };
  // Norms come with their gradients, but for one that no sum precedes; the activation comes with its
  // gradient, for which dgrad is then a product of its own, and sums the gradient of its bias.
  CHECK(backward("cheap") ==
        "attention_packed_grad 4, bias_grad 5, embedding_grad 2, gelu_grad_again 4, layer_norm_grad 1, "
        "layer_norm_grad_add 8, linear_cross_entropy 1, linear_dgrad 16, linear_wgrad 16");
  CHECK(backward("selective") ==
        "attention_packed 4, attention_packed_grad 4, bias_grad 9, embedding_grad 2, layer_norm_grad 1, "
        "layer_norm_grad_add 8, linear_cross_entropy 1, linear_dgrad 12, linear_dgrad_gelu 4, linear_wgrad "
        "16");
  // Of a layer all but fc2, whose output only the next layer needs.
  CHECK(backward("full") ==
        "add_layer_norm 4, attention_packed 4, attention_packed_grad 4, bias_grad 5, embedding_grad 2, "
        "gelu_grad_again 4, layer_norm 4, layer_norm_grad 1, layer_norm_grad_add 8, linear 12, "
        "linear_cross_entropy 1, linear_dgrad 16, linear_wgrad 16");
  const auto llama = [&](const char* granularity) {
    return Kernels(CudaPlan(kLlama, With(With(kLlamaBf16, kOneKeyAQuery),
                                         {std::string("recompute.granularity=") + granularity})),
                   "backward.0");
  };
  CHECK(llama("cheap") ==
        "attention_packed_grad 4, embedding_grad 1, linear_cross_entropy 1, linear_dgrad 16, linear_wgrad "
        "16, rms_norm 1, rms_norm_grad 1, rms_norm_grad_add 8, rotary_grad 4, swiglu_grad_again 4");
  CHECK(llama("full") ==
        "add_rms_norm 4, attention_packed 4, attention_packed_grad 4, embedding_grad 1, linear 12, "
        "linear_cross_entropy 1, linear_dgrad 16, linear_wgrad 16, rms_norm 4, rms_norm_grad 1, "
        "rms_norm_grad_add 8, rotary 4, rotary_grad 4, swiglu_grad_again 4");
}

// Rows and activations of experts are made again: the rows by themselves, the activation with its gradient.
TEST_CASE("fuse: the activation of experts comes again with its gradient") {
  const recipe::LoadResult loaded =
      recipe::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/qwen3-moe-s-1gpu.toml");
  REQUIRE(loaded.ok());
  const auto plan = driver::CompileRecipe(loaded.recipe, {.profile = backend::cuda::CudaProfile()});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const std::string backward = Kernels(*plan, "backward.0");
  CHECK_MESSAGE(backward.find("expert_activation_grad_again 6, ") != std::string::npos, backward);
  CHECK_MESSAGE(backward.find("spread 12") != std::string::npos, backward);
  CHECK(backward.find("expert_activation 6") == std::string::npos);
}

// The sum of a row-parallel product lies between it and its bias, which the norm behind adds; each rank has a
// part of the vocabulary, so the loss is of several ranks and stays in steps.
TEST_CASE("fuse: conversions keep ops apart") {
  const plan::Plan tp = CudaPlan(kGpt, With(kBf16, {"parallelism.tp=2"}));
  CHECK(Kernels(tp, "forward.0") ==
        "add_layer_norm 9, all_reduce 11, attention_packed 4, cross_entropy 1, embedding 2, linear 13, "
        "linear_gelu 4, loss_sum 1");
  CHECK(Kernels(tp, "backward.0") ==
        "all_reduce 9, attention_packed_grad 4, bias_grad 9, cross_entropy_grad 1, embedding_grad 2, "
        "layer_norm_grad 1, layer_norm_grad_add 8, linear_dgrad 13, linear_dgrad_gelu 4, linear_wgrad 17, "
        "loss_weight 1");
  const plan::Plan sequence =
      CudaPlan(kGpt, With(kBf16, {"parallelism.tp=2", "parallelism.sequence_parallel=true"}));
  CHECK(All(sequence, "forward.0", "add_layer_norm").size() == 9);
  CHECK(All(sequence, "forward.0", "bias_add").empty());
  for (const plan::Instruction* norm : All(sequence, "forward.0", "add_layer_norm")) {
    CHECK(norm->inputs.size() == (norm->name == "layers.0.attention.norm" ? 4U : 5U));
  }
  CHECK(All(sequence, "backward.0", "linear_cross_entropy").empty());
  // Heads are exchanged for the sequence before queries, keys and values are cut apart, once for all three;
  // positions are gathered once.
  const plan::Plan heads = CudaPlan(kGpt, With(kBf16, {"parallelism.cp=2", "model.attention.head_dim=64"}));
  CHECK(Kernels(heads, "forward.0") ==
        "add_layer_norm 9, all_gather 1, all_to_all 8, attention_packed 4, embedding 2, linear 12, "
        "linear_gelu 4");
  // Then they are turned where all positions are, before attention and not before the exchange.
  const plan::Plan turned = CudaPlan(kGpt, With(kBf16, {"parallelism.cp=2", "model.attention.head_dim=64",
                                                        "model.attention.position=rotary"}));
  const plan::Segment& forward = SegmentOf(turned, "forward.0");
  CHECK(All(turned, "forward.0", "all_gather").size() == 1);
  CHECK(All(turned, "forward.0", "all_to_all").size() == 8);
  const auto split = std::find_if(
      forward.instructions.begin(), forward.instructions.end(),
      [](const plan::Instruction& i) { return i.kernel() == "qkv_split" || i.kernel() == "rotary"; });
  REQUIRE(split != forward.instructions.end());
  CHECK(ValueOf(turned, split->inputs[0]).layout.At(graph::Axis::kCp) == graph::Placement::S(2));
  CHECK(ValueOf(turned, split->inputs[1]).layout.At(graph::Axis::kCp) == graph::Placement::R());
  CHECK(std::find_if(forward.instructions.begin(), split,
                     [](const plan::Instruction& i) { return i.name == "positions.all_gather"; }) != split);
  // Documents: what turns goes by positions that begin again, attention by those of the sequence. Both are gathered once a chunk,
  // as spans are.
  const plan::Plan documents = CudaPlan(
      kGpt, With(kBf16, {"parallelism.cp=2", "model.attention.head_dim=64", "model.attention.position=rotary",
                         "data.documents=masked", "data.tokenizer.kind=none"}));
  CHECK(All(documents, "forward.0", "attention_packed").size() == 4);
  CHECK(All(documents, "forward.0", "all_to_all").size() == 8);
  std::vector<std::string> gathered;
  for (const plan::Instruction* gather : All(documents, "forward.0", "all_gather"))
    gathered.push_back(gather->name);
  std::sort(gathered.begin(), gathered.end());
  CHECK(gathered == std::vector<std::string>{"document_spans.all_gather", "positions.all_gather",
                                             "sequence_positions.all_gather"});
  for (const char* segment : {"forward.0", "backward.0"}) {
    for (const char* kernel : {"attention_packed", "attention_packed_grad"}) {
      for (const plan::Instruction* attention : All(documents, segment, kernel)) {
        CHECK(ValueOf(documents, attention->inputs[1]).name.starts_with("sequence_positions"));
        CHECK(ValueOf(documents, attention->inputs[2]).name.starts_with("document_spans"));
      }
    }
  }
  for (const plan::Instruction* turn : All(documents, "forward.0", "rotary"))
    CHECK(ValueOf(documents, turn->inputs[1]).name.starts_with("positions"));
  // Keys and values are gathered there where that is a tenth less.
  const plan::Plan cp = CudaPlan(
      kGpt, With(kBf16, {"parallelism.cp=2", "model.attention.kv_heads=2", "parallelism.overlap=off"}));
  CHECK(Kernels(cp, "forward.0") ==
        "add_layer_norm 9, all_gather 8, attention 4, embedding 2, linear 12, linear_gelu 4, qkv_split 4");
  CHECK(Kernels(cp, "backward.0") ==
        "all_gather 8, attention_grad 4, bias_grad 9, embedding_grad 2, layer_norm_grad 1, "
        "layer_norm_grad_add 8, linear_cross_entropy 1, linear_dgrad 12, linear_dgrad_gelu 4, linear_wgrad "
        "16, qkv_merge 4, reduce_scatter 8");
  const plan::Plan dp = CudaPlan(kGpt, With(kBf16, {"parallelism.dp=2"}));
  CHECK(Kernels(dp, "forward.0") == Kernels(CudaPlan(kGpt, kBf16), "forward.0"));
}

// Not where a stage may be on another host: then its memory cannot be reached.
TEST_CASE("fuse: transfers of a pipeline are pushed within a host, unless NCCL is asked for") {
  const auto pushed = [](const Sets& sets) {
    const plan::Plan plan = CudaPlan(kGpt, With(With(kBf16, {"parallelism.pp=2", "parallelism.dp=2"}), sets));
    REQUIRE(!plan.transfers.empty());
    const bool first = plan.transfers[0].push;
    for (const plan::Transfer& transfer : plan.transfers) CHECK(transfer.push == first);
    return first;
  };
  CHECK(pushed({}));
  CHECK(pushed({"cluster.devices_per_node=4"}));
  CHECK_FALSE(pushed({"cluster.devices_per_node=2"}));
  CHECK_FALSE(pushed({"parallelism.exchange=nccl"}));
  CHECK(CudaPlan(kGpt, With(kBf16, {"parallelism.pp=2"})).hash !=
        CudaPlan(kGpt, With(kBf16, {"parallelism.pp=2", "parallelism.exchange=nccl"})).hash);
}

// The sum that a stage sends is made on it, the norm that reads it on the next; the next stage's first norm
// gradient is not summed into a bias of the stage before.
TEST_CASE("fuse: a pipeline's cut keeps ops apart") {
  const plan::Plan plan = CudaPlan(kGpt, With(kBf16, {"parallelism.pp=2"}));
  CHECK(Kernels(plan, "forward.0") ==
        "add 1, add_layer_norm 4, attention_packed 2, embedding 2, linear 6, linear_gelu 2");
  CHECK(Kernels(plan, "forward.1") ==
        "add_layer_norm 4, attention_packed 2, layer_norm 1, linear 6, linear_gelu 2");
  CHECK(Kernels(plan, "backward.0") ==
        "attention_packed_grad 2, bias_grad 5, embedding_grad 2, layer_norm_grad_add 4, linear_dgrad 6, "
        "linear_dgrad_gelu 2, linear_wgrad 8");
  CHECK(Kernels(plan, "backward.1") ==
        "attention_packed_grad 2, bias_grad 5, layer_norm_grad 1, layer_norm_grad_add 4, "
        "linear_cross_entropy 1, linear_dgrad 6, linear_dgrad_gelu 2, linear_wgrad 8");
}

TEST_CASE("fuse: other layouts verify") {
  for (bool llama : {kGpt, kLlama}) {
    for (const Sets& layout : {Sets{"parallelism.dp=2", "parallelism.tp=2", "parallelism.pp=2",
                                    "parallelism.zero_stage=1", "parallelism.sequence_parallel=true"},
                               Sets{"parallelism.cp=2", "parallelism.tp=2"},
                               Sets{"parallelism.pp=2", "parallelism.virtual_stages=2"}}) {
      for (const char* granularity : {"none", "cheap", "selective", "full"}) {
        CudaPlan(llama, With({"precision.compute=bf16", std::string("recompute.granularity=") + granularity},
                             layout));
      }
    }
  }
}

// The projection is written into the slot, turned there, and read there by the backward pass.
TEST_CASE("fuse: rotary works in place, in the slot") {
  const plan::Plan plan = CudaPlan(kLlama, With(kLlamaBf16, kOneKeyAQuery));
  std::set<std::int64_t> places;
  for (const plan::Instruction* rotary : All(plan, "forward.0", "rotary")) {
    CHECK(rotary->outputs[0].in_slot);
    CHECK(SameBytes(rotary->inputs[0], rotary->outputs[0]));
    places.insert(rotary->outputs[0].offset);
    int made = 0;
    for (const plan::Instruction* linear : All(plan, "forward.0", "linear"))
      made += SameBytes(linear->outputs[0], rotary->inputs[0]) ? 1 : 0;
    CHECK(made == 1);
  }
  CHECK(places.size() == 4);
  for (const plan::Instruction* gradient : All(plan, "backward.0", "attention_packed_grad")) {
    CHECK(gradient->inputs[0].in_slot);
    CHECK(places.count(gradient->inputs[0].offset) == 1);
  }
  for (const plan::Instruction* rotary : All(plan, "backward.0", "rotary_grad"))
    CHECK(SameBytes(rotary->inputs[0], rotary->outputs[0]));
}

// Of a graph of its own, on a GPU; verified.
plan::Plan CudaPlanOf(const plan::GraphModel& model, const Sets& sets) {
  const absl::StatusOr<plan::Plan> plan =
      plan::PlanOfGraph(plan::TinyRecipe(true, sets), model, backend::cuda::CudaProfile());
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  const absl::Status lawful = verify::Verify(*plan, {});
  REQUIRE_MESSAGE(lawful.ok(), Message(lawful));
  return *plan;
}

TEST_CASE("fuse: the head takes label smoothing and z-loss with it") {
  const plan::GraphModel model = plan::Ladder(2);
  const auto heads = [](const plan::Plan& plan) { return All(plan, "backward.0", "linear_cross_entropy"); };
  const plan::Plan plain = CudaPlanOf(model, {});
  REQUIRE(heads(plain).size() == 1);
  for (const char* term : {"smoothing", "z_loss"}) CHECK_FALSE(heads(plain)[0]->attributes().Has(term));
  const plan::Plan plan = CudaPlanOf(plan::WithLossTerms(model, 0.1, 1e-4), {});
  REQUIRE(heads(plan).size() == 1);
  CHECK(heads(plan)[0]->attributes().Float("smoothing") == 0.1);
  CHECK(heads(plan)[0]->attributes().Float("z_loss") == 1e-4);
  CHECK(All(plan, "backward.0", "cross_entropy_grad").empty());
}

// A norm's gradient makes the gain's gradient too, alone or in one with an addition: where the gain is frozen it is written, and
// nobody reads it. Where nothing but the table is trained, there is no gradient of x.
TEST_CASE("fuse: what makes a weight's gradient is not fused where there is none") {
  const auto frozen = [](std::string_view end) {
    return plan::WithTraining(plan::Ladder(4), [end](const std::string& name) {
      return graph::TrainingSettings{.frozen = name.ends_with(end)};
    });
  };
  const plan::Plan all = CudaPlanOf(frozen("none"), {});
  CHECK(All(all, "backward.0", "linear_cross_entropy").size() == 1);
  CHECK(All(all, "backward.0", "rms_norm_grad_add").size() == 4);
  const plan::Plan table = CudaPlanOf(frozen("table"), {});
  CHECK(All(table, "backward.0", "linear_cross_entropy").size() == 1);
  CHECK(All(table, "backward.0", "linear_wgrad").size() == 8);  // of the blocks
  CHECK(All(table, "backward.0", "embedding_grad").empty());
  const plan::Plan gains = CudaPlanOf(frozen("norm.weight"), {});
  CHECK(All(gains, "backward.0", "linear_cross_entropy").size() == 1);
  CHECK(All(gains, "backward.0", "rms_norm_grad").size() == 1);
  const auto with_sum = All(gains, "backward.0", "rms_norm_grad_add");
  CHECK(with_sum.size() == 4);
  for (const plan::Instruction* norm : with_sum) CHECK(norm->accumulate() == 0);
  for (const plan::Instruction* norm : All(all, "backward.0", "rms_norm_grad_add"))
    CHECK(norm->accumulate() == 0b10);
}

// 16 · 64 tokens of 264 columns in bf16 are 540672 bytes.
TEST_CASE("fuse: the head's chunks keep within training.logits_bytes") {
  const auto chunk = [](const char* bytes) {
    const plan::Plan plan = CudaPlan(kGpt, With(kBf16, {"training.micro_batch=16", "data.sequence_length=64",
                                                        std::string("training.logits_bytes=") + bytes}));
    const auto heads = All(plan, "backward.0", "linear_cross_entropy");
    REQUIRE(heads.size() == 1);
    CHECK(heads[0]->attributes().Int("classes") == 257);
    return heads[0]->attributes().Int("chunk");
  };
  CHECK(chunk("540672") == 1024);
  CHECK(chunk("540671") == 512);
  CHECK(chunk("200000") == 384);  // three chunks of 342, a multiple of 128
  CHECK(chunk("1") == 128);
}

// ------------------------------------------------------------------------------------------------------ FP8

namespace {
const Sets kFp8 = {"precision.compute=fp8", "model.dropout.hidden=0", "model.dropout.embedding=0"};
const Sets kLlamaFp8 = {"precision.compute=fp8"};
}  // namespace

TEST_CASE("fp8 plan: operands are quantised where they are made") {
  const plan::Plan gpt = CudaPlan(kGpt, kFp8);
  CHECK(Kernels(gpt, "begin") == "quantize 16, zero 1");
  // By themselves: attention's output in each layer.
  CHECK(Kernels(gpt, "forward.0") ==
        "add_layer_norm 1, add_layer_norm_quantize 8, attention_packed 4, embedding 2, gelu_quantize 4, "
        "linear_fp8 16, quantize 4");
  // By themselves: gradients of the four qkv, and of the last fc2, which the final norm's gradient makes.
  CHECK(Kernels(gpt, "backward.0") ==
        "attention_packed_grad 4, embedding_grad 2, gelu_grad_quantize 4, layer_norm_grad 1, "
        "layer_norm_grad_add 1, layer_norm_grad_add_quantize 7, linear_cross_entropy 1, linear_dgrad_fp8 16, "
        "linear_wgrad_fp8 16, quantize 5");
  const plan::Plan llama = CudaPlan(kLlama, kLlamaFp8);
  CHECK(Kernels(llama, "begin") == "quantize 16, zero 1");
  // The first norm has no sum before it.
  CHECK(Kernels(llama, "forward.0") ==
        "add_rms_norm 1, add_rms_norm_quantize 7, attention 4, embedding 1, linear_fp8 16, qkv_split 4, "
        "quantize 5, rms_norm 1, swiglu_quantize 4");
  CHECK(Kernels(llama, "backward.0") ==
        "attention_grad 4, embedding_grad 1, linear_cross_entropy 1, linear_dgrad_fp8 16, linear_wgrad_fp8 "
        "16, qkv_merge 4, quantize 5, rms_norm_grad 1, rms_norm_grad_add 1, rms_norm_grad_add_quantize 7, "
        "swiglu_grad_quantize 4");
}

TEST_CASE("fp8 plan: recomputed operands are quantised again") {
  for (const char* granularity : {"cheap", "selective", "full"}) {
    for (bool llama : {kGpt, kLlama}) {
      const plan::Plan plan =
          CudaPlan(llama, {"precision.compute=fp8", std::string("recompute.granularity=") + granularity});
      CHECK(All(plan, "backward.0", "linear_wgrad_fp8").size() == 16);
      CHECK(All(plan, "backward.0", "linear_wgrad").empty());
      CHECK(All(plan, "begin", "quantize").size() == 16);
    }
  }
  const plan::Plan plan = CudaPlan(kGpt, With(kFp8, {"recompute.granularity=full"}));
  CHECK(All(plan, "backward.0", "linear_fp8").size() == 12);
}

TEST_CASE("fp8 plan: each layer's weight is quantised in the begin segment, once") {
  const plan::Plan plan = CudaPlan(kGpt, kFp8);
  const plan::StagePlan& stage = plan.stages[0];
  std::set<std::string> weights;
  std::set<std::int32_t> made;
  for (const plan::Instruction* quantize : All(plan, "begin", "quantize")) {
    const plan::LocalValue& weight = ValueOf(plan, quantize->inputs[0]);
    CHECK(weight.kind == graph::ValueKind::kParameter);
    CHECK(weight.name.starts_with("layers."));
    weights.insert(weight.name);
    for (const plan::BufferRef& output : quantize->outputs) {
      CHECK(ValueOf(plan, output).kind == graph::ValueKind::kDerived);
      CHECK(ValueOf(plan, output).dtype == DType::kE4M3);
      made.insert(output.value);
    }
  }
  CHECK(weights.size() == 16);
  CHECK(made.size() == 32);
  // What the products take is what the begin segment made.
  for (const char* segment : {"forward.0", "backward.0"}) {
    for (const char* product : {"linear_fp8", "linear_dgrad_fp8"}) {
      for (const plan::Instruction* linear : All(plan, segment, product))
        CHECK(made.count(linear->inputs[1].value) == 1);
    }
    for (const plan::Instruction& instruction : SegmentOf(plan, segment).instructions) {
      for (const plan::BufferRef& output : instruction.outputs) CHECK(made.count(output.value) == 0);
    }
  }
  CHECK(stage.derived.size() == 32);
}

TEST_CASE("fp8 plan: states lie one after the other, one for each quantised tensor") {
  for (bool llama : {kGpt, kLlama}) {
    const plan::Plan plan = CudaPlan(llama, llama ? kLlamaFp8 : kFp8);
    const plan::StagePlan& stage = plan.stages[0];
    std::int64_t at = stage.scales.offset;
    std::set<std::int32_t> states;
    for (const plan::State& state : stage.states) {
      const plan::BufferRef& ref = state.buffer;
      CHECK(ref.offset == at);
      CHECK(ref.elements == 8);
      CHECK(ref.dtype == DType::kF32);
      at += ref.bytes();
      states.insert(ref.value);
    }
    CHECK(at == stage.scales.offset + stage.scales.bytes());
    CHECK(stage.scales.elements == 8 * 48);  // 16 linears: input, weight, gradient of the output
    CHECK(states.size() == 48);
    // Each is written by the one instruction that quantises the tensor, whose format it starts with.
    std::map<std::int32_t, DType> formats;
    for (const plan::Segment& segment : stage.segments) {
      for (const plan::Instruction& instruction : segment.instructions) {
        if (instruction.kernel().find("quantize") == std::string::npos) continue;
        const size_t first = instruction.op()->accumulates == 0 && instruction.outputs.size() == 2 ? 0 : 1;
        DType format = DType::kF32;
        for (const plan::BufferRef& output : instruction.outputs) {
          if (IsFp8(output.dtype)) format = output.dtype;
        }
        CAPTURE(first);
        CHECK(formats.try_emplace(instruction.inputs.back().value, format).second);
      }
    }
    CHECK(formats.size() == 48);
    for (const plan::State& state : stage.states)
      CHECK(state.spec.fill[6] == (formats.at(state.buffer.value) == DType::kE5M2 ? 1 : 0));
  }
}

// Every operand of a product comes with the state that it was quantised with.
TEST_CASE("fp8 plan: products take their operands' states") {
  const plan::Plan plan = CudaPlan(kGpt, kFp8);
  std::map<std::int32_t, std::int32_t> state_of;  // by quantised value
  for (const plan::Segment& segment : plan.stages[0].segments) {
    for (const plan::Instruction& instruction : segment.instructions) {
      for (const plan::BufferRef& output : instruction.outputs) {
        if (IsFp8(output.dtype)) state_of[output.value] = instruction.inputs.back().value;
      }
    }
  }
  int products = 0;
  for (const char* segment : {"forward.0", "backward.0"}) {
    for (const char* kernel : {"linear_fp8", "linear_dgrad_fp8", "linear_wgrad_fp8"}) {
      for (const plan::Instruction* product : All(plan, segment, kernel)) {
        ++products;
        for (size_t i = 0; i < 2; ++i)
          CHECK(state_of.at(product->inputs[i].value) == product->inputs[i + 2].value);
      }
    }
  }
  CHECK(products == 48);
}

TEST_CASE("fp8 plan: gradients of biases ride along") {
  const plan::Plan plan = CudaPlan(kGpt, kFp8);
  CHECK(All(plan, "backward.0", "bias_grad").empty());
  std::map<std::string, std::string> summed_by;
  for (const plan::Instruction& instruction : SegmentOf(plan, "backward.0").instructions) {
    for (size_t k = 0; k < instruction.outputs.size(); ++k) {
      const plan::LocalValue& value = ValueOf(plan, instruction.outputs[k]);
      if (value.parameter < 0) continue;
      const std::string& name = plan.parameters[static_cast<size_t>(value.parameter)].name;
      if (!name.ends_with(".bias") || name.find("norm") != std::string::npos) continue;
      CHECK_MESSAGE(summed_by.try_emplace(name, std::string(instruction.kernel())).second, name);
      CHECK((instruction.accumulate() >> k & 1U) == 1);
      CHECK((instruction.fresh() >> k & 1U) == 1);
      CHECK(k + 1 == instruction.outputs.size());
    }
  }
  CHECK(summed_by.size() == 16);
  CHECK(summed_by.at("layers.1.attention.qkv.bias") == "quantize");
  CHECK(summed_by.at("layers.1.attention.proj.bias") == "layer_norm_grad_add_quantize");
  CHECK(summed_by.at("layers.1.mlp.fc1.bias") == "gelu_grad_quantize");
  CHECK(summed_by.at("layers.1.mlp.fc2.bias") == "layer_norm_grad_add_quantize");
  CHECK(summed_by.at("layers.3.mlp.fc2.bias") == "quantize");
}

TEST_CASE("fp8 plan: head and evaluation are not quantised, the update knows the states") {
  const Sets whole = {"model.vocab_multiple=16"};  // the head's sizes would do
  const plan::Plan plan = CudaPlan(kLlama, With(kLlamaFp8, whole));
  const auto heads = All(plan, "backward.0", "linear_cross_entropy");
  REQUIRE(heads.size() == 1);
  for (size_t i = 0; i < 2; ++i) CHECK(heads[0]->inputs[i].dtype == DType::kBF16);
  const plan::Plan bf16 = CudaPlan(kLlama, With(kLlamaBf16, whole));
  for (const char* segment : {"evaluate.0", "evaluate_begin", "evaluate_end"})
    CHECK(Kernels(plan, segment) == Kernels(bf16, segment));
  for (const plan::Instruction& instruction : SegmentOf(plan, "evaluate.0").instructions) {
    for (const auto* refs : {&instruction.inputs, &instruction.outputs}) {
      for (const plan::BufferRef& ref : *refs) CHECK(!IsFp8(ref.dtype));
    }
  }
  CHECK(Kernels(plan, "update") == "adamw 2, clip_factor 1, fp8_update 1, sum_squares 2");
  CHECK(Kernels(bf16, "update") == "adamw 2, clip_factor 1, sum_squares 2");
  // The gradient of one token's logits is 1/16·32 of the loss: scaled to 1.
  CHECK(plan.loss_scaler.scale == 16 * 32);
  CHECK(bf16.loss_scaler.scale == 1);
}

TEST_CASE("fp8 plan: formats are the recipe's") {
  for (const char* format : {"e4m3", "e5m2"}) {
    const plan::Plan plan = CudaPlan(kGpt, With(kFp8, {std::string("precision.fp8_gradients=") + format}));
    const std::optional<DType> gradients = ParseDType(format);
    for (const plan::Instruction* product : All(plan, "backward.0", "linear_wgrad_fp8")) {
      CHECK(product->inputs[0].dtype == gradients);
      CHECK(product->inputs[1].dtype == DType::kE4M3);
    }
    for (const plan::Instruction* product : All(plan, "forward.0", "linear_fp8")) {
      CHECK(product->inputs[0].dtype == DType::kE4M3);
      CHECK(product->inputs[1].dtype == DType::kE4M3);
    }
    for (const plan::Instruction* quantize : All(plan, "backward.0", "gelu_grad_quantize"))
      CHECK(quantize->attributes().Int("format") == (format[1] == '5' ? 1 : 0));
  }
}

TEST_CASE("fp8 plan: sizes that are no multiple of 16 stay in 16 bits") {
  // fc1 and fc2.
  const plan::Plan plan = CudaPlan(kGpt, With(kFp8, {"model.mlp.hidden=72"}));
  CHECK(Kernels(plan, "begin") == "quantize 8, zero 1");
  CHECK(All(plan, "forward.0", "linear_fp8").size() == 8);
  CHECK(All(plan, "forward.0", "linear").size() + All(plan, "forward.0", "linear_gelu").size() == 8);
  CHECK(plan.stages[0].scales.elements == 8 * 24);
  // Tokens.
  const plan::Plan odd = CudaPlan(kGpt, With(kFp8, {"data.sequence_length=24"}));
  CHECK(Kernels(odd, "begin") == "zero 1");
  CHECK(Kernels(odd, "update") == "adamw 2, clip_factor 1, sum_squares 2");
  CHECK(odd.stages[0].scales.elements == 0);
}

namespace {

struct Fp8Layout {
  std::string layout;
  Sets sets;
  std::string reduced;  // over which axes the states' largest values are taken
};
const std::vector<Fp8Layout>& SeveralRanks() {
  static const std::vector<Fp8Layout> ranks = {
      {"dp 2", {"parallelism.dp=2"}, "dp"},
      {"dp 2, ZeRO-1, behind",
       {"parallelism.dp=2", "parallelism.zero_stage=1", "parallelism.overlap=on"},
       "dp"},
      {"tp 2", {"parallelism.tp=2"}, "tp"},
      {"tp 2 by sequence", {"parallelism.tp=2", "parallelism.sequence_parallel=true"}, "tp"},
      {"tp 2 by samples, halves",
       {"parallelism.tp=2", "parallelism.sequence_parallel=true", "training.micro_batch=4",
        "parallelism.overlap=on"},
       "tp"},
      {"cp 2", {"parallelism.cp=2"}, "cp"},
      {"pp 2", {"parallelism.pp=2"}, "-"},
      {"pp 2 interleaved", {"parallelism.pp=2", "parallelism.virtual_stages=2"}, "-"},
      {"pp 2, weights apart", {"parallelism.pp=2", "parallelism.schedule=zero_bubble"}, "-"},
      {"dp 2 tp 2 pp 2",
       {"parallelism.dp=2", "parallelism.tp=2", "parallelism.pp=2", "parallelism.sequence_parallel=true",
        "parallelism.zero_stage=1"},
       "dp+tp"},
      {"dp 2 tp 2 cp 2", {"parallelism.dp=2", "parallelism.tp=2", "parallelism.cp=2"}, "dp+cp+tp"}};
  return ranks;
}

int Products(const plan::Plan& plan) {
  int products = 0;
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Segment& segment : stage.segments) {
      for (const plan::Instruction& instruction : segment.instructions) {
        const std::string kernel(instruction.kernel());
        products += kernel.starts_with("linear") && kernel.ends_with("_fp8") ? 1 : 0;
      }
    }
  }
  return products;
}

}  // namespace

// The verifier has seen each plan: placements of FP8 ops, and states reduced before they are updated.
TEST_CASE("fp8 plan: over several ranks every product is in FP8, and a tensor has one scale") {
  for (bool llama : {kGpt, kLlama}) {
    const Sets& fp8 = llama ? kLlamaFp8 : kFp8;
    const std::set<std::string> names = StateNames(CudaPlan(llama, fp8));
    CHECK(names.size() == 48);
    for (const Fp8Layout& ranks : SeveralRanks()) {
      for (const char* granularity : {"none", "cheap", "full"}) {
        const Sets recompute = {std::string("recompute.granularity=") + granularity};
        CAPTURE(ranks.layout);
        CAPTURE(recompute[0]);
        const plan::Plan plan = CudaPlan(llama, With(With(fp8, ranks.sets), recompute));
        CHECK(Products(plan) == plan.halves * Products(CudaPlan(llama, With(fp8, recompute))));
        CHECK(StateNames(plan) == names);
        for (const plan::StagePlan& stage : plan.stages) {
          const plan::Segment& update = stage.segments[static_cast<size_t>(stage.update())];
          std::string of_states;
          for (const plan::Instruction& instruction : update.instructions) {
            if (instruction.inputs[0].offset != stage.scales.offset) continue;
            of_states += " " + std::string(instruction.kernel());
            CHECK(instruction.inputs[0].elements == stage.scales.elements);
            if (!instruction.IsBucketExchange()) continue;
            CHECK(instruction.reduction() == graph::Reduction::kMax);
            CHECK(instruction.group().axes.ToString() == ranks.reduced);
          }
          CHECK(of_states == (ranks.reduced == "-" ? " fp8_update" : " all_reduce fp8_update"));
          for (const plan::Segment& segment : stage.segments) {
            for (const plan::Instruction& instruction : segment.instructions) {
              if (instruction.collective() == plan::Collective::kNone) continue;
              for (const plan::BufferRef& input : instruction.inputs) CHECK(!IsFp8(input.dtype));
            }
          }
        }
        for (const plan::Transfer& transfer : plan.transfers)
          CHECK(!IsFp8(plan.values[static_cast<size_t>(transfer.value)].dtype));
        CHECK(CudaPlan(llama, With(With(fp8, ranks.sets), With(recompute, {"precision.fp8_scaling=current"})))
                  .stages[0]
                  .scales.elements == 0);
      }
    }
  }
}

// What is gathered is 16 bits wide; it is quantised behind the gather, by itself, in each phase again.
TEST_CASE("fp8 plan: sequence parallelism quantises what it has gathered") {
  const plan::Plan plan =
      CudaPlan(kGpt, With(kFp8, {"parallelism.tp=2", "parallelism.sequence_parallel=true"}));
  // Norms of two a layer, and gradients of both branches.
  const std::pair<const char*, size_t> segments[] = {{"forward.0", 8}, {"backward.0", 16}};
  for (const auto& [segment, count] : segments) {
    size_t gathered = 0;
    for (const plan::Instruction* quantize : All(plan, segment, "quantize")) {
      const plan::LocalValue& x = ValueOf(plan, quantize->inputs[0]);
      CHECK(x.local == ValueOf(plan, quantize->outputs[0]).local);
      for (const plan::Instruction* gather : All(plan, segment, "all_gather")) {
        if (gather->outputs[0].value != quantize->inputs[0].value) continue;
        ++gathered;
        CHECK(x.layout.At(graph::Axis::kTp).replicated());
        CHECK(x.dtype == DType::kBF16);
      }
    }
    CHECK(gathered == count);
  }
  for (const char* kernel : {"add_layer_norm_quantize", "layer_norm_grad_add_quantize"}) {
    CHECK(All(plan, "forward.0", kernel).empty());
    CHECK(All(plan, "backward.0", kernel).empty());
  }
  // What tp splits and nothing gathers is quantised where it is made.
  CHECK(All(plan, "forward.0", "gelu_quantize").size() == 4);
  CHECK(All(plan, "backward.0", "gelu_grad_quantize").size() == 4);
}

TEST_CASE("fp8 plan: sizes count on a rank") {
  // Of 8 heads of 4 and 64 features tp 4 leaves 8 columns of proj and 16 of fc2.
  const plan::Plan plan = CudaPlan(kGpt, With(kFp8, {"parallelism.tp=4", "training.micro_batch=1"}));
  CHECK(All(plan, "forward.0", "linear_fp8").size() == 8);
  // 24 tokens of cp 2 have no multiple of 16 on a rank.
  const plan::Plan odd = CudaPlan(kGpt, With(kFp8, {"parallelism.cp=2", "data.sequence_length=48"}));
  CHECK(Kernels(odd, "begin") == "zero 1");
  CHECK(odd.stages[0].scales.elements == 0);
}

// No extra pass over a norm's output: what the weight gradient takes is made of x and the forward pass'
// statistics. The first norm, which has no sum before it, is run again.
TEST_CASE("fp8 plan: cheap recomputation makes the operands of weight gradients in one pass each") {
  const plan::Plan gpt = CudaPlan(kGpt, With(kFp8, {"recompute.granularity=cheap"}));
  CHECK(
      Kernels(gpt, "backward.0") ==
      "attention_packed_grad 4, embedding_grad 2, gelu_grad_quantize 4, gelu_quantize 4, layer_norm_grad 1, "
      "layer_norm_grad_add 1, layer_norm_grad_add_quantize 7, layer_norm_quantize_again 8, "
      "linear_cross_entropy 1, linear_dgrad_fp8 16, linear_wgrad_fp8 16, quantize 5");
  const plan::Plan llama = CudaPlan(kLlama, With(kLlamaFp8, {"recompute.granularity=cheap"}));
  CHECK(Kernels(llama, "backward.0") ==
        "attention_grad 4, embedding_grad 1, linear_cross_entropy 1, linear_dgrad_fp8 16, linear_wgrad_fp8 "
        "16, qkv_merge 4, quantize 6, rms_norm 1, rms_norm_grad 1, rms_norm_grad_add 1, "
        "rms_norm_grad_add_quantize 7, rms_norm_quantize_again 7, swiglu_grad_quantize 4, swiglu_quantize 4");
  for (const plan::Plan* plan : {&gpt, &llama}) {
    const bool layer = plan == &gpt;
    std::map<std::int32_t, const plan::Instruction*> forward;  // by the sum
    for (const plan::Instruction* norm :
         All(*plan, "forward.0", layer ? "add_layer_norm_quantize" : "add_rms_norm_quantize"))
      forward[norm->outputs[0].value] = norm;
    for (const plan::Instruction* again :
         All(*plan, "backward.0", layer ? "layer_norm_quantize_again" : "rms_norm_quantize_again")) {
      const plan::Instruction* norm = forward.at(again->inputs[0].value);
      CHECK(again->inputs[1].value == norm->inputs[2].value);
      CHECK(again->inputs[again->inputs.size() - 2].value == norm->outputs.back().value);
      CHECK(again->outputs.size() == 1);
      CHECK(ValueOf(*plan, again->outputs[0]).dtype == DType::kE4M3);
    }
  }
}

namespace {
// The plan of a tiny model all of whose norms add 1 to their gain.
plan::Plan PlanOfGainOffset(bool llama, const Sets& sets) {
  const recipe::Recipe recipe = plan::TinyRecipe(llama, With({"model.layers=4"}, sets));
  const CompileOptions options{.profile = backend::cuda::CudaProfile()};
  const absl::StatusOr<Policy> policy = ResolvePolicy(recipe, options);
  REQUIRE_MESSAGE(policy.ok(), Message(policy.status()));
  graph::Graph graph = model::BuildModel(recipe, {.batch = policy->microbatch_samples,
                                                  .sequence = policy->sequence,
                                                  .vocab_multiple = policy->vocab_rows,
                                                  .dtype = DType::kBF16,
                                                  .dropout = false,
                                                  .global_samples = 1});
  for (graph::Node& node : graph.nodes()) {
    if (node.op->family == graph::Family::kNorm) node.attributes.Set("gain_offset", 1.0);
  }
  absl::StatusOr<Compiled> compiled = Compile(*policy, graph, graph, options);
  REQUIRE_MESSAGE(compiled.ok(), Message(compiled.status()));
  return std::move(compiled->plan);
}
}  // namespace

TEST_CASE("no norm loses the offset of its gain: fused, quantising, run again") {
  std::set<std::string> seen;
  for (const bool llama : {kGpt, kLlama}) {
    const Sets bf16 = llama ? kLlamaBf16 : kBf16;
    const Sets fp8 = llama ? kLlamaFp8 : kFp8;
    const Sets cheap = {"recompute.granularity=cheap"};
    for (const Sets& sets : {bf16, With(bf16, cheap), fp8, With(fp8, cheap)}) {
      const plan::Plan plan = PlanOfGainOffset(llama, sets);
      for (const plan::Segment& segment : plan.stages[0].segments) {
        for (const plan::Instruction& instruction : segment.instructions) {
          if (instruction.op() == nullptr || instruction.op()->family != graph::Family::kNorm) continue;
          CAPTURE(instruction.name);
          CAPTURE(std::string(instruction.kernel()));
          REQUIRE(instruction.attributes().Has("gain_offset"));
          CHECK(instruction.attributes().Float("gain_offset") == 1);
          seen.insert(std::string(instruction.kernel()));
        }
      }
    }
  }
  // All but layer_norm: each of these LayerNorms reads a sum.
  CAPTURE(fmt::format("{}", fmt::join(seen, ", ")));
  CHECK(seen == std::set<std::string>{"add_layer_norm", "add_layer_norm_quantize", "add_rms_norm",
                                      "add_rms_norm_quantize", "layer_norm_grad", "layer_norm_grad_add",
                                      "layer_norm_grad_add_quantize", "layer_norm_quantize_again", "rms_norm",
                                      "rms_norm_grad", "rms_norm_grad_add", "rms_norm_grad_add_quantize",
                                      "rms_norm_quantize_again"});
}

TEST_CASE("fp8 plan: with current scaling each tensor's state is made with it") {
  const Sets current = {"precision.fp8_scaling=current"};
  const plan::Plan gpt = CudaPlan(kGpt, With(kFp8, current));
  CHECK(Kernels(gpt, "begin") == "quantize_current 16, zero 1");
  CHECK(Kernels(gpt, "forward.0") ==
        "add_layer_norm 9, attention_packed 4, embedding 2, gelu 4, linear_fp8 16, quantize_current 16");
  CHECK(Kernels(gpt, "backward.0") ==
        "attention_packed_grad 4, embedding_grad 2, gelu_grad 4, layer_norm_grad 1, layer_norm_grad_add 8, "
        "linear_cross_entropy 1, linear_dgrad_fp8 16, linear_wgrad_fp8 16, quantize_current 16");
  CHECK(All(gpt, "backward.0", "bias_grad").empty());
  for (bool llama : {kGpt, kLlama}) {
    for (const char* granularity : {"none", "cheap", "full"}) {
      const plan::Plan plan = CudaPlan(
          llama,
          With(llama ? kLlamaFp8 : kFp8, {current[0], std::string("recompute.granularity=") + granularity}));
      const plan::StagePlan& stage = plan.stages[0];
      CHECK(stage.scales.elements == 0);
      CHECK(stage.states.empty());
      for (const plan::Segment& segment : stage.segments) {
        for (const plan::Instruction& instruction : segment.instructions)
          CHECK(instruction.kernel() != "fp8_update");
      }
      // Every operand of a product comes with the state that was made with it.
      std::map<std::int32_t, std::int32_t> state_of;
      for (const plan::Segment& segment : stage.segments) {
        for (const plan::Instruction& instruction : segment.instructions) {
          if (instruction.kernel() != "quantize_current") continue;
          CHECK(ValueOf(plan, instruction.outputs[2]).kind == ValueOf(plan, instruction.outputs[0]).kind);
          for (size_t i : {0, 1}) state_of[instruction.outputs[i].value] = instruction.outputs[2].value;
        }
      }
      size_t products = 0;
      for (const char* segment : {"forward.0", "backward.0"}) {
        for (const char* kernel : {"linear_fp8", "linear_dgrad_fp8", "linear_wgrad_fp8"}) {
          for (const plan::Instruction* product : All(plan, segment, kernel)) {
            ++products;
            for (size_t i : {0, 1})
              CHECK(state_of.at(product->inputs[i].value) == product->inputs[i + 2].value);
          }
        }
      }
      CHECK(products >= 48);
    }
  }
  // A repeated norm is made by its gradient, in 16 bits, and quantised after it.
  const plan::Plan cheap = CudaPlan(kGpt, With(kFp8, {current[0], "recompute.granularity=cheap"}));
  CHECK(All(cheap, "backward.0", "layer_norm").empty());
  CHECK(All(cheap, "backward.0", "gelu_grad_again").size() == 4);
}

TEST_CASE("fp8 plan: the head on request") {
  for (bool llama : {kGpt, kLlama}) {
    for (const char* scaling : {"delayed", "current"}) {
      const plan::Plan plan = CudaPlan(
          llama, With(llama ? kLlamaFp8 : kFp8, {"precision.fp8_head=true", "model.vocab_multiple=16",
                                                 std::string("precision.fp8_scaling=") + scaling}));
      CHECK(All(plan, "backward.0", "linear_cross_entropy").empty());
      const auto heads = All(plan, "backward.0", "linear_cross_entropy_fp8");
      REQUIRE(heads.size() == 1);
      const auto weights =
          All(plan, "begin", scaling == std::string("current") ? "quantize_current" : "quantize");
      REQUIRE(weights.size() == 17);
      const plan::Instruction* table = nullptr;
      for (const plan::Instruction* weight : weights) {
        if (weight->outputs[0].value == heads[0]->inputs[1].value) table = weight;
      }
      REQUIRE(table != nullptr);
      CHECK(ValueOf(plan, table->inputs[0]).name == (llama ? "head.weight" : "embedding.tokens"));
      CHECK(table->outputs[1].value == heads[0]->inputs[2].value);
      CHECK((scaling == std::string("current") ? table->outputs[2] : table->inputs[1]).value ==
            heads[0]->inputs[3].value);
      CHECK(heads[0]->attributes().Int("format") == 1);
      CHECK((heads[0]->accumulate() & 0b110) == 0b110);
      CHECK(All(plan, "evaluate.0", "linear").size() > 0);  // in bf16
    }
  }
}

TEST_CASE("fp8 plan: the head over dp, cp and pp") {
  for (bool llama : {kGpt, kLlama}) {
    for (const Fp8Layout& ranks : SeveralRanks()) {
      if (ranks.reduced.find("tp") != std::string::npos) continue;
      CAPTURE(ranks.layout);
      const plan::Plan plan = CudaPlan(llama, With(With(llama ? kLlamaFp8 : kFp8, ranks.sets),
                                                   {"precision.fp8_head=true", "model.vocab_multiple=16"}));
      const std::string last = fmt::format("backward.{}", plan.chunk_stage.size() - 1);
      CHECK(All(plan, last, "linear_cross_entropy_fp8").size() == 1);
      CHECK(StateNames(plan).size() == 49);
    }
  }
}

}  // namespace engine::compile
