#include "engine/compile/compile.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/base/units.h"
#include "engine/plan/arena.h"
#include "engine/verify/verify.h"
#include "tests/plan/plans.h"

namespace engine::compile {
namespace {

std::string HashOfText(const std::string& text) {
  const recipe::LoadResult result = recipe::LoadText(text, "hash.toml");
  REQUIRE(result.ok());
  const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(result.recipe, {});
  REQUIRE(plan.ok());
  return plan->hash;
}

}  // namespace

TEST_CASE("hash: decided by what runs, not by how the recipe is written") {
  const std::string model =
      "[model]\nlayers = 2\nhidden = 32\nvocab = 257\nmax_positions = 32\nattention = {heads = 4}\n";
  const std::string training = "[training]\nglobal_batch = 4\nmicro_batch = 1\niterations = 5\n";
  const std::string rest =
      "[data]\npaths = [\"none\"]\nsequence_length = 32\n[optimizer]\nlearning_rate = 1e-3\n";
  const std::string hash = HashOfText(model + training + rest);
  CHECK(hash.size() == 32);
  CHECK(HashOfText("# a comment\n" + rest + training + "\n" + model) == hash);
  CHECK(HashOfText(model + "mlp = {hidden = 64}\n" + training + rest) != hash);
  CHECK(HashOfText(model + training + rest + "[parallelism]\ndp = 2\n") != hash);
  CHECK(HashOfText(model + training + rest + "beta2 = 0.9\n") != hash);
}

TEST_CASE("memory: an independent count of parameters, gradients and optimizer state") {
  struct Case {
    std::vector<std::string> sets;
    std::int64_t tp, shards, parameter_bytes, master_bytes;
  };
  const Case cases[] = {
      {{}, 1, 1, 4, 0},
      {{"parallelism.tp=2"}, 2, 1, 4, 0},
      {{"parallelism.dp=2", "parallelism.zero_stage=1"}, 1, 2, 4, 0},
      {{"parallelism.dp=4", "parallelism.tp=2", "parallelism.zero_stage=1", "precision.compute=\"bf16\""},
       2,
       4,
       2,
       4}};
  for (const Case& c : cases) {
    const plan::Plan plan = plan::TinyPlan(false, c.sets);
    CAPTURE(plan.mesh.world());
    // 8 layers of width 32, 8 heads, ffn 64, positions 64; the vocabulary of 257 is padded to a multiple of
    // 8·tp.
    const std::int64_t vocab = RoundUp(257, 8 * c.tp);
    const std::int64_t split = vocab * 32 + 8 * (3 * 32 * 32 + 3 * 32 + 32 * 32 + 64 * 32 + 64 + 32 * 64);
    const std::int64_t whole = 64 * 32 + 8 * (2 * 32 + 32 + 2 * 32 + 32) + 2 * 32;
    const std::int64_t elements = split / c.tp + whole;
    const plan::StagePlan& stage = plan.stages[0];
    std::int64_t items = 0;
    for (const plan::Bucket& bucket : stage.buckets) {
      for (const plan::Bucket::Item& item : bucket.items) items += item.elements;
      CHECK(bucket.elements % (128 * c.shards) == 0);
    }
    CHECK(items == elements);
    // Padding: under 128 elements an item, and 128 a shard at the end of a bucket.
    const std::int64_t padding = stage.parameter_count - elements;
    CHECK(padding >= 0);
    CHECK(padding < 128 * static_cast<std::int64_t>(plan.parameters.size()) + 128 * c.shards * 8);
    CHECK(stage.memory.parameters >= stage.parameter_count * c.parameter_bytes);
    CHECK(stage.memory.parameters < stage.parameter_count * c.parameter_bytes + 256 * 8);
    CHECK(stage.memory.gradients == stage.parameter_count * 4);
    CHECK(stage.memory.optimizer == stage.parameter_count * (8 + c.master_bytes) / c.shards);
    CHECK(stage.memory.total() == stage.arena_bytes);
  }
}

TEST_CASE("memory: gradients and masters of matrices in bf16, those of biases and norms in fp32") {
  const std::vector<std::string> both = {"precision.gradient_dtype=bf16", "precision.master_dtype=bf16"};
  for (const char* layout : {"parallelism.dp=2", "parallelism.tp=2", "parallelism.pp=2"}) {
    const std::vector<std::string> sets = {"precision.compute=bf16", "parallelism.zero_stage=1", layout};
    std::vector<std::string> narrow_sets = sets;
    narrow_sets.insert(narrow_sets.end(), both.begin(), both.end());
    const plan::Plan wide = plan::TinyPlan(false, sets);
    const plan::Plan narrow = plan::TinyPlan(false, narrow_sets);
    CHECK(narrow.hash != wide.hash);
    for (size_t s = 0; s < narrow.stages.size(); ++s) {
      CAPTURE(layout);
      CAPTURE(s);
      std::int64_t matrices = 0;  // elements, padding included
      std::int64_t matrix_masters = 0;
      for (const plan::Bucket& bucket : narrow.stages[s].buckets) {
        bool matrix = false;
        for (const plan::Bucket::Item& item : bucket.items) {
          const plan::PlanParameter& parameter = narrow.parameters[static_cast<size_t>(item.parameter)];
          matrix = parameter.logical_shape.rank() > 1 && !parameter.name.ends_with(".bias");
          const DType dtype = matrix ? DType::kBF16 : DType::kF32;
          CHECK_MESSAGE(bucket.gradient.dtype == dtype, parameter.name);
          CHECK_MESSAGE(narrow.values[static_cast<size_t>(parameter.gradient)].dtype == dtype,
                        parameter.name);
          CHECK_MESSAGE((bucket.master.elements == 0) == matrix, parameter.name);
        }
        if (matrix) matrices += bucket.elements;
        if (matrix) matrix_masters += bucket.elements / bucket.shards;
      }
      const plan::MemoryBreakdown& a = wide.stages[s].memory;
      const plan::MemoryBreakdown& b = narrow.stages[s].memory;
      CHECK(matrices > narrow.stages[s].parameter_count / 2);
      CHECK(a.gradients == 4 * wide.stages[s].parameter_count);
      CHECK(a.gradients - b.gradients == 2 * matrices);
      CHECK(a.optimizer - b.optimizer == 4 * matrix_masters);
      CHECK(a.parameters == b.parameters);
      CHECK(b.total() == narrow.stages[s].arena_bytes);
    }
    const absl::Status status = verify::Verify(narrow, {});
    CHECK_MESSAGE(status.ok(), Message(status));
  }
}

TEST_CASE("memory: gradients and parameters of blocks in shards") {
  for (const bool overlap : {false, true}) {
    CAPTURE(overlap);
    const auto with = [&](const char* zero) {
      return plan::TinyPlan(false, {"parallelism.dp=4", "precision.compute=bf16", zero,
                                    overlap ? "parallelism.overlap=on" : "parallelism.overlap=off"});
    };
    const plan::Plan one = with("parallelism.zero_stage=1");
    const plan::Plan two = with("parallelism.zero_stage=2");
    const plan::Plan three = with("parallelism.zero_stage=3");
    // A block of width 32 and ffn 64: qkv, out, fc1, fc2.
    const std::int64_t block = 3 * 32 * 32 + 32 * 32 + 2 * 64 * 32;
    const std::int64_t whole = overlap ? 2 : 1;  // buffers
    const plan::MemoryBreakdown& a = one.stages[0].memory;
    const plan::MemoryBreakdown& b = two.stages[0].memory;
    const plan::MemoryBreakdown& c = three.stages[0].memory;
    CHECK(a.gradients - b.gradients == 4 * (8 * block - 8 * block / 4 - whole * block));
    CHECK(a.parameters == b.parameters);
    CHECK(b.parameters - c.parameters == 2 * (8 * block - 8 * block / 4 - whole * block));
    CHECK(b.gradients == c.gradients);
    CHECK(a.optimizer == b.optimizer);
    CHECK(a.optimizer == c.optimizer);
    CHECK(c.total() == three.stages[0].arena_bytes);
  }
}

TEST_CASE("stages: uneven layers, and activations by the number of microbatches in flight") {
  const plan::Plan plan = plan::TinyPlan(false, {"parallelism.pp=4"});
  std::int64_t layers = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::Chunk& chunk = plan.stages[s].chunks[0];
    layers += plan.BlocksIn(chunk);
    CHECK(chunk.slots == static_cast<std::int64_t>(4 - s));
    CHECK(plan.stages[s].memory.activations == chunk.slots * chunk.slot_bytes);
  }
  CHECK(layers == 8);
  const plan::Plan given = plan::TinyPlan(false, {"parallelism.pp=2", "parallelism.layers_per_stage=[3,5]"});
  CHECK(given.BlocksIn(given.stages[0].chunks[0]) == 3);
  CHECK(given.BlocksIn(given.stages[1].chunks[0]) == 5);
}

TEST_CASE("recomputation saves activations, never costs parameters") {
  const plan::Plan none = plan::TinyPlan(false, {});
  const plan::Plan selective = plan::TinyPlan(false, {"recompute.granularity=\"selective\""});
  const plan::Plan full = plan::TinyPlan(false, {"recompute.granularity=\"full\""});
  CHECK(selective.stages[0].memory.activations < none.stages[0].memory.activations);
  CHECK(full.stages[0].memory.activations < selective.stages[0].memory.activations);
  CHECK(full.stages[0].flops > selective.stages[0].flops);
  CHECK(selective.stages[0].flops > none.stages[0].flops);
  CHECK(full.stages[0].memory.parameters == none.stages[0].memory.parameters);
}

TEST_CASE("evaluation only: no gradients, no optimizer, logits kept") {
  const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(
      plan::TinyRecipe(true, {"parallelism.tp=2"}), {.profile = {}, .training = false, .keep_logits = true});
  REQUIRE(plan.ok());
  CHECK(plan->stages[0].memory.gradients == 0);
  CHECK(plan->stages[0].memory.optimizer == 0);
  CHECK(plan->ProgramOf(plan::kTrainForm) == -1);
  CHECK(plan->logits[plan::kEvaluateForm].buffer.elements == 32 * 272 / 2);
}

namespace {

absl::StatusOr<plan::Plan> CompileInBf16(const plan::DeviceProfile& profile, std::vector<std::string> sets) {
  sets.emplace_back("precision.compute=bf16");
  return driver::CompileRecipe(plan::TinyRecipe(false, sets), {.profile = profile});
}

}  // namespace

TEST_CASE("exchange: of GPUs that do not reach each other's memory it is NCCL's, and the plan says why") {
  plan::DeviceProfile apart = backend::cuda::CudaProfile();
  apart.reach = 1;
  apart.unreachable = "GPU 0 does not reach the memory of GPU 1";
  for (const auto& [axes, layout] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"dp", {"parallelism.dp=2", "parallelism.zero_stage=1"}},
           {"tp", {"parallelism.dp=2", "parallelism.tp=2", "training.micro_batch=2"}},
           {"tp, dp", {"parallelism.dp=2", "parallelism.tp=2", "parallelism.zero_stage=1"}},
           {"pp", {"parallelism.pp=2"}}}) {
    const std::string note =
        "ranks of " + axes + " exchange by NCCL, not by copy engines: " + apart.unreachable;
    std::vector<std::string> by_nccl = layout;
    by_nccl.emplace_back("parallelism.exchange=nccl");
    const auto plan = CompileInBf16(apart, layout);
    const auto wanted = CompileInBf16(apart, by_nccl);
    const auto pushed = CompileInBf16(backend::cuda::CudaProfile(), layout);
    REQUIRE_MESSAGE((plan.ok() && wanted.ok() && pushed.ok()), plan.status().message());
    CHECK(plan->hash == wanted->hash);
    CHECK(plan->hash != pushed->hash);
    CHECK(std::count(plan->notes.begin(), plan->notes.end(), note) == 1);
    CHECK(std::count(wanted->notes.begin(), wanted->notes.end(), note) == 0);
  }
  CHECK(CompileInBf16(apart, {"parallelism.tp=2", "parallelism.exchange=push"}).status().message() ==
        "parallelism.exchange \"push\": GPU 0 does not reach the memory of GPU 1, of ranks of tp 2; \"auto\" "
        "pushes where "
        "it can");
  const auto alone = CompileInBf16(apart, {});
  REQUIRE(alone.ok());
  for (const std::string& note : alone->notes) CHECK(note.find("NCCL") == std::string::npos);
}

TEST_CASE(
    "exchange: of GPUs that reach each other in blocks, NCCL's between blocks alone, as between hosts") {
  plan::DeviceProfile blocks = backend::cuda::CudaProfile();
  blocks.reach = 2;
  blocks.unreachable = "GPU 0 does not reach the memory of GPU 2";
  for (const auto& [axes, layout] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"dp",
            {"parallelism.dp=2", "parallelism.tp=2", "parallelism.zero_stage=1", "training.micro_batch=2"}},
           {"dp", {"parallelism.dp=2", "parallelism.tp=2", "parallelism.zero_stage=1"}},
           {"pp", {"parallelism.pp=2", "parallelism.tp=2"}}}) {
    CAPTURE(layout[1]);
    std::vector<std::string> hosts = layout;
    hosts.emplace_back("cluster.devices_per_node=2");
    const auto plan = CompileInBf16(blocks, layout);
    const auto between_hosts = CompileInBf16(backend::cuda::CudaProfile(), hosts);
    REQUIRE_MESSAGE((plan.ok() && between_hosts.ok()), plan.status().message());
    CHECK(plan->hash == between_hosts->hash);
    const std::string note =
        "ranks of " + axes + " exchange by NCCL, not by copy engines: " + blocks.unreachable;
    CHECK(std::count(plan->notes.begin(), plan->notes.end(), note) == 1);
    const std::string of_hosts = "ranks of " + axes +
                                 " exchange by NCCL, not by copy engines: they are not all on one host "
                                 "(devices_per_node 2)";
    CHECK(std::count(between_hosts->notes.begin(), between_hosts->notes.end(), of_hosts) == 1);
    std::vector<std::string> forced = layout, forced_on_hosts = hosts;
    forced.emplace_back("parallelism.exchange=push");
    forced_on_hosts.emplace_back("parallelism.exchange=push");
    const auto chosen = CompileInBf16(blocks, forced);
    const auto on_hosts = CompileInBf16(backend::cuda::CudaProfile(), forced_on_hosts);
    REQUIRE_MESSAGE((chosen.ok() && on_hosts.ok()), chosen.status().message());
    CHECK(chosen->hash == on_hosts->hash);
    CHECK(std::count(on_hosts->notes.begin(), on_hosts->notes.end(), of_hosts) == 1);
  }
  CHECK(CompileInBf16(blocks, {"parallelism.tp=4", "parallelism.exchange=push"}).status().message() ==
        "parallelism.exchange \"push\": GPU 0 does not reach the memory of GPU 2, of ranks of tp 4; \"auto\" "
        "pushes where "
        "it can");
  // Gradients that are all-reduced are NCCL's anyway.
  const auto no_shards = CompileInBf16(blocks, {"parallelism.dp=2", "parallelism.tp=2"});
  REQUIRE(no_shards.ok());
  for (const std::string& note : no_shards->notes) CHECK(note.find("NCCL") == std::string::npos);
  const std::vector<std::string> within = {"parallelism.tp=2", "parallelism.exchange=push"};
  const auto pushed = CompileInBf16(backend::cuda::CudaProfile(), within);
  const auto in_block = CompileInBf16(blocks, within);
  REQUIRE((pushed.ok() && in_block.ok()));
  CHECK(in_block->hash == pushed->hash);
  CHECK(in_block->notes == pushed->notes);
}

TEST_CASE("exchange: the largest aligned blocks of GPUs that reach each other's memory") {
  // Sockets of `socket` GPUs, of which `lonely` is reached by none; −1: all are.
  const auto look = [](int count, int socket, int lonely) {
    return backend::cuda::AccessOf(count, [&](int from, int to) {
      return from / socket == to / socket && from != lonely && to != lonely;
    });
  };
  CHECK(look(8, 8, -1).reach == 0);
  CHECK(look(8, 8, -1).missing.empty());
  CHECK(look(8, 4, -1).reach == 4);
  CHECK(look(8, 4, -1).missing == "GPU 0 does not reach the memory of GPU 4");
  CHECK(look(6, 4, -1).reach == 4);  // the last one of two
  CHECK(look(8, 3, -1).reach == 3);
  CHECK(look(6, 2, -1).reach == 2);
  CHECK(look(8, 1, -1).reach == 1);
  CHECK(look(4, 4, 3).reach == 3);
  CHECK(look(4, 4, 1).reach == 1);
  CHECK(look(1, 1, -1).reach == 0);
}

}  // namespace engine::compile
