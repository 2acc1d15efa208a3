// Generation on the GPU: prompts and steps against the CPU's.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/backend/cuda/device/survey.h"
#include "engine/generate/cached_decoder.h"
#include "engine/model/build.h"
#include "engine/model/generation.h"
#include "engine/model/load.h"
#include "tests/generate/hash_decoder.h"
#include "tests/generate/invariant.h"
#include "tests/gpu/generation_run.h"
#include "tests/gpu/world.h"
#include "tests/plan/plans.h"
#include "tests/train/text_testing.h"

namespace engine::gpu_test {
namespace {

using train::testing::Loaded;

// What the device tells of the rows is what their logits, in 16 bits or 32, say.
void CheckLikeliest(generate::Decoder& decoder, const std::vector<generate::Decoder::Next>& next,
                    const std::vector<float>& rows) {
  const auto vocab = static_cast<std::size_t>(decoder.vocabulary());
  for (std::size_t r = 0; r < next.size(); ++r) {
    const absl::StatusOr<std::optional<generate::Likeliest>> told =
        decoder.ReadLikeliest(static_cast<std::int64_t>(r));
    Must(told.status());
    REQUIRE(told->has_value());
    const generate::Likeliest expected = generate::testing::LikeliestOf(
        std::span(rows).subspan(r * vocab, vocab), std::ssize((*told)->tokens), next[r].temperature);
    REQUIRE((*told)->tokens.size() >= std::min<std::size_t>(vocab, 20));
    for (std::size_t n = 0; n < expected.tokens.size(); ++n) {
      CHECK((*told)->tokens[n].token == expected.tokens[n].token);
      CHECK((*told)->tokens[n].value == expected.tokens[n].value);
    }
    CHECK(std::abs((*told)->log_sum - expected.log_sum) < 2e-6 * (10 + std::abs(expected.log_sum)));
    CHECK(std::abs((*told)->tempered_log_sum - expected.tempered_log_sum) <
          2e-6 * (10 + std::abs(expected.tempered_log_sum)));
  }
}

// All logits of a prompt of 20 tokens in slot 1 and of 60 steps, beside another sequence in slot 0.
std::vector<float> Transcript(Decoding& run) {
  const std::int64_t vocab = run.decoder->vocabulary();
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < 20; ++i) tokens.push_back(TokenAt(i, vocab));
  std::vector<float> all;
  std::vector<float> logits;
  Must(run.decoder->PrefillAndRead(0, std::span(tokens).first(5), 1, &logits));
  Must(run.decoder->PrefillAndRead(1, tokens, 20, &all));
  for (std::int64_t i = 20; i < 80; ++i) {
    const std::vector<generate::Decoder::Next> next = {{1, TokenAt(i, vocab), 0.7},
                                                       {0, TokenAt(i + 1, vocab)}};
    Must(run.decoder->StepAndRead(next, &logits));
    CheckLikeliest(*run.decoder, next, logits);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

recipe::Recipe TinyModel(bool llama) {
  recipe::Recipe recipe = plan::TinyRecipe(
      llama, {"training.global_batch=1", "data.sequence_length=64", "model.max_positions=96"});
  recipe.data.sequence_length = 96;
  return recipe;
}

std::vector<float> CpuTranscript(recipe::Recipe recipe) {
  recipe.precision.compute = "fp32";
  Decoding cpu(recipe, train::testing::CpuDevice(), 3);
  cpu.Start();
  return Transcript(cpu);
}

// `bound` is relative to the largest logit.
void CheckTranscript(const std::string& name, const std::vector<float>& expected,
                     const std::vector<float>& actual, double bound) {
  REQUIRE(actual.size() == expected.size());
  double scale = 0;
  double error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    scale = std::max<double>(scale, std::abs(expected[i]));
    error = std::max<double>(error, std::abs(expected[i] - actual[i]));
  }
  MESSAGE(fmt::format("{}: logits up to {:.3g}, off by {:.2g} of that", name, scale, error / scale));
  CHECK(error <= bound * scale);
}

TEST_CASE("gpu generation: prompts and steps over caches give the CPU's logits") {
  for (const bool llama : {false, true}) {
    for (const char* compute : {"fp32", "bf16", "fp16"}) {
      recipe::Recipe recipe = TinyModel(llama);
      const std::vector<float> expected = CpuTranscript(recipe);
      recipe.precision.compute = compute;
      Decoding gpu(recipe, GpuDevice(recipe), 3);
      gpu.Start();
      const std::vector<float> actual = Transcript(gpu);
      const double bound = std::string(compute) == "fp32"   ? 2e-5
                           : std::string(compute) == "fp16" ? 5e-3
                                                            : 4e-2;
      CheckTranscript(fmt::format("{} {}", llama ? "llama" : "gpt", compute), expected, actual, bound);
      const std::vector<float> again = Transcript(gpu);
      CHECK(again == actual);
    }
  }
}

// A published family with few features, in heads that our own kernels have.
recipe::Recipe FamilyOf(const char* model, const char* dims, std::int64_t context) {
  const data::TempDir folder;
  const std::string path = folder / "recipe.toml";
  data::WriteFile(path, fmt::format(R"(extends = "{}/configs/models/{}.toml"
[model]
init_std = 0.1
dims = {{ {} }}
[data]
source = "random"
sequence_length = {}
[optimizer]
learning_rate = 1e-3
[training]
global_batch = 1
micro_batch = 1
iterations = 1
)",
                                    std::filesystem::current_path().string(), model, dims, context));
  const recipe::LoadResult loaded = model::Load(path);
  for (const Diagnostic& diagnostic : loaded.diagnostics) MESSAGE(Format(diagnostic));
  REQUIRE(loaded.ok());
  return loaded.recipe;
}

constexpr const char* kCapsAndSinks = R"(
[model]
dims = { D = 128, L = 2, H = 4, K = 2, E = 64, F = 256, V = 300 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
rotary.rope = { dim = "E", base = 1e4 }
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["mine"], cycle = { window = [70, 0] } },
  { do = "layer_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"], weight = "embedding.tokens" },
  { do = "softcap", as = "capped", cap = 30.0 },
  { do = "cross_entropy", as = "loss" },
]
[block.mine]
steps = [
  { do = "layer_norm", as = "norm", of = "x" },
  { do = "linear", as = "qkv", of = "norm", out = ["K", "H/K+2", "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"] },
  { do = "rotary", of = ["q", "k"], to = ["q", "k"], table = "rope" },
  { do = "attention", as = "core", of = ["q", "k", "v"], window = "$window", softcap = 5.0, sinks = true },
  { do = "linear", as = "proj", out = ["D"] },
  { do = "residual", as = "residual", of = ["x", "proj"], to = "x" },
]
[data]
source = "random"
sequence_length = 200
[optimizer]
learning_rate = 1e-3
[training]
global_batch = 1
micro_batch = 1
iterations = 1
)";

TEST_CASE("gpu generation: invariant, the bits are those of evaluation and training, beside any others") {
  struct Case {
    const char* name;
    recipe::Recipe recipe;
  };
  // Contexts past one and two blocks of keys; products of terms that are split elsewhere; windows, caps, two widths of heads, grouped
  // queries; sinks.
  const std::vector<Case> cases = {
      {"gpt", plan::TinyRecipe(false, {"data.sequence_length=64", "model.attention.heads=4"})},
      {"llama", plan::TinyRecipe(true, {"data.sequence_length=64", "model.attention.heads=4"})},
      {"opt", FamilyOf("opt-125m", "D = 256, L = 2, H = 4, E = 64, F = 1024, V = 300", 300)},
      {"qwen3", FamilyOf("qwen3-8b", "D = 256, L = 2, H = 8, K = 2, E = 128, F = 2048, V = 300", 300)},
      {"sinks", Loaded(model::LoadText(kCapsAndSinks, "test.toml"))},
      {"gemma3", FamilyOf("gemma3-1b", "D = 128, L = 6, H = 4, K = 1, E = 256, F = 512, V = 300", 600)},
      {"gemma2",
       FamilyOf("gemma2-2b", "D = 128, L = 4, H = 4, K = 2, E = 128, F = 512, V = 300, Q = 128", 200)},
      {"olmo2", FamilyOf("olmo2-7b", "D = 192, L = 2, H = 2, K = 2, E = 96, F = 384, V = 300", 200)},
  };
  for (const Case& of : cases) {
    for (const char* compute : {"bf16", "fp16"}) {
      CAPTURE(std::string(of.name));
      CAPTURE(std::string(compute));
      recipe::Recipe recipe = of.recipe;
      recipe.precision.compute = compute;
      generate::testing::CheckInvariant(recipe, [&] { return GpuDevice(recipe); });
    }
  }
  recipe::Recipe many = FamilyOf("qwen3-8b", "D = 256, L = 2, H = 8, K = 2, E = 128, F = 4096, V = 300", 150);
  many.precision.compute = "bf16";
  generate::testing::CheckInvariant(
      many, [&] { return GpuDevice(many); }, /*slots=*/24);
  generate::testing::CheckNotInvariant(many, [&] { return GpuDevice(many); });
}

// Of their experts some have many rows and some none.
TEST_CASE("gpu generation: invariant with experts, the bits are those of evaluation and training") {
  const std::vector<std::pair<const char*, recipe::Recipe>> models = {
      {"mixtral",
       FamilyOf("mixtral-8x7b", "D = 128, L = 2, H = 2, K = 2, E = 64, F = 256, X = 8, V = 300", 300)},
      {"deepseek-v3",
       FamilyOf("deepseek-v3",
                "D = 128, L = 3, J = 1, H = 4, Q = 64, C = 64, N = 128, R = 64, U = 128, F = 256, X = 16, "
                "W = 64, V = 300",
                200)},
  };
  for (const auto& [name, model] : models) {
    for (const char* compute : {"bf16", "fp16"}) {
      CAPTURE(std::string(name));
      CAPTURE(std::string(compute));
      recipe::Recipe recipe = model;
      recipe.precision.compute = compute;
      generate::testing::CheckInvariant(
          recipe, [&] { return GpuDevice(recipe); }, /*slots=*/9);
    }
  }
}

using Layouts = std::vector<std::pair<std::string, const recipe::Recipe*>>;

// Layouts name an axis of so many ranks; all others are 1. "tp sp": with sequence parallelism.
void CheckInvariantOver(std::int64_t ranks, const Layouts& layouts) {
  for (const auto& [layout, model] : layouts) {
    CAPTURE(layout);
    recipe::Recipe recipe = *model;
    recipe::Parallelism& p = recipe.parallelism;
    for (auto& [axis, size] : {std::pair("dp", &p.dp), std::pair("tp", &p.tp), std::pair("pp", &p.pp),
                               std::pair("cp", &p.cp), std::pair("ep", &p.ep)}) {
      if (layout.starts_with(axis)) *size = ranks;
    }
    p.sequence_parallel = layout.ends_with("sp");
    recipe.precision.compute = "bf16";
    generate::testing::CheckInvariant(
        recipe, [&] { return GpuDevice(recipe); }, /*slots=*/6);
  }
}

TEST_CASE(
    "gpu generation: invariant on two GPUs, the bits are those of evaluation and training in the same "
    "layout") {
  if (!HasTwoGpus()) return;
  const recipe::Recipe dense =
      FamilyOf("qwen3-8b", "D = 256, L = 2, H = 8, K = 2, E = 128, F = 2048, V = 300", 320);
  const recipe::Recipe experts =
      FamilyOf("mixtral-8x7b", "D = 128, L = 2, H = 2, K = 2, E = 64, F = 256, X = 8, V = 300", 320);
  CheckInvariantOver(2, {{"tp", &dense},
                         {"cp", &dense},
                         {"dp", &dense},
                         {"pp", &dense},
                         {"tp", &experts},
                         {"ep", &experts},
                         {"tp sp", &dense}});
}

// An evaluation's sums are long enough to be made in parts, those of a step are not.
TEST_CASE("gpu generation: invariant on four GPUs, the bits are those of evaluation and training") {
  if (!HasGpus(4)) return;
  const recipe::Recipe dense =
      FamilyOf("qwen3-8b", "D = 512, L = 2, H = 8, K = 4, E = 64, F = 2048, V = 300", 640);
  const recipe::Recipe experts =
      FamilyOf("mixtral-8x7b", "D = 128, L = 2, H = 4, K = 4, E = 64, F = 256, X = 8, V = 300", 320);
  CheckInvariantOver(4, {{"tp", &dense}, {"tp sp", &dense}, {"tp", &experts}, {"ep", &experts}});
}

// DeepSeek's attention with the widths of its latents and heads, in a small model without experts, whose choices would turn with
// the rounding.
recipe::Recipe LatentModel() {
  const data::TempDir folder;
  const std::string path = folder / "recipe.toml";
  data::WriteFile(path, fmt::format(R"(extends = "{}/configs/blocks/mla.toml"
[model]
dims = {{ D = 64, L = 3, J = 1, H = 6, C = 512, N = 128, R = 64, E = "N+R", U = 128, F = 96, X = 8, W = 8, Y = 8, V = 300 }}
init_std = 0.05
main.layers = {{ layer = ["attention as attention", "mlp as mlp"] }}
[data]
source = "random"
sequence_length = 96
[optimizer]
learning_rate = 1e-3
[training]
global_batch = 1
micro_batch = 1
iterations = 1
)",
                                    std::filesystem::current_path().string()));
  const recipe::LoadResult loaded = model::Load(path);
  for (const Diagnostic& diagnostic : loaded.diagnostics) MESSAGE(Format(diagnostic));
  REQUIRE(loaded.ok());
  return loaded.recipe;
}

TEST_CASE("gpu generation: prompts and steps over caches of latents give the CPU's logits") {
  for (const char* compute : {"bf16", "fp16", "fp32"}) {
    recipe::Recipe recipe = LatentModel();
    const std::vector<float> expected = CpuTranscript(recipe);
    recipe.precision.compute = compute;
    Decoding gpu(recipe, GpuDevice(recipe), 3);
    gpu.Start();
    std::int64_t kept = 0;
    for (const plan::State& state : gpu.plan.stages[0].states) kept += state.buffer.elements;
    CHECK(kept == std::int64_t{3} * 3 * 96 * (512 + 64));  // layers, slots, rows
    const std::vector<float> actual = Transcript(gpu);
    const double bound = std::string(compute) == "fp32" ? 2e-5 : std::string(compute) == "fp16" ? 5e-3 : 4e-2;
    CheckTranscript(fmt::format("latents {}", compute), expected, actual, bound);
    CHECK(Transcript(gpu) == actual);
  }
}

// Numbers near a border of two of e4m3 are rounded up by one device and down by the other, for their sums differ; in fp32 few are.
TEST_CASE("gpu generation: caches in fp8 give the CPU's logits") {
  std::vector<recipe::Recipe> models = {TinyModel(true), LatentModel()};
  for (recipe::Recipe& recipe : models) {
    recipe.generate.cache_dtype = "fp8";
    const std::vector<float> expected = CpuTranscript(recipe);
    for (const auto& [compute, bound] :
         {std::pair<const char*, double>{"fp32", 5e-3}, {"fp16", 2e-2}, {"bf16", 5e-2}}) {
      recipe.precision.compute = compute;
      Decoding gpu(recipe, GpuDevice(recipe), 3);
      gpu.Start();
      for (const plan::State& state : gpu.plan.stages[0].states)
        CHECK(state.buffer.bytes() == state.buffer.elements);
      const std::vector<float> actual = Transcript(gpu);
      CheckTranscript(fmt::format("fp8 caches {} {}", &recipe == &models[0] ? "llama" : "latents", compute),
                      expected, actual, bound);
      CHECK(Transcript(gpu) == actual);
    }
  }
}

TEST_CASE("gpu generation: on two GPUs of one process, prompts and steps give the CPU's logits") {
  if (!HasTwoGpus()) return;
  for (const bool llama : {false, true}) {
    recipe::Recipe recipe = TinyModel(llama);
    const std::vector<float> expected = CpuTranscript(recipe);
    recipe.precision.compute = "bf16";
    for (const auto& [dp, tp, pp] : {std::array<int, 3>{1, 2, 1}, {1, 1, 2}, {2, 1, 1}}) {
      recipe.parallelism.dp = dp;
      recipe.parallelism.tp = tp;
      recipe.parallelism.pp = pp;
      Decoding gpus(recipe, GpuDevice(recipe), 3);
      gpus.Start();
      const std::vector<float> actual = Transcript(gpus);
      CheckTranscript(fmt::format("{} dp {} tp {} pp {}", llama ? "llama" : "gpt", dp, tp, pp), expected,
                      actual, 4e-2);
    }
  }
}

// In float32, as rounding to 16 bits turns the choices of routers.
TEST_CASE("gpu generation: experts over two GPUs of one process, prompts and steps give the CPU's logits") {
  if (!HasTwoGpus()) return;
  const std::vector<std::pair<const char*, const char*>> models = {
      {"mixtral-8x7b", "D = 128, L = 2, H = 2, K = 2, E = 64, F = 128, X = 8, V = 300"},
      {"deepseek-v2-lite",
       "D = 64, L = 2, J = 1, H = 4, C = 32, N = 16, R = 8, U = 16, F = 96, X = 8, W = 32, V = 300"}};
  for (const auto& [model, dims] : models) {
    recipe::Recipe recipe = FamilyOf(model, dims, 96);
    const std::vector<float> expected = CpuTranscript(recipe);
    recipe.precision.compute = "fp32";
    for (const auto& [dp, ep] : {std::pair<int, int>{1, 2}, {2, 1}}) {
      recipe.parallelism.dp = dp;
      recipe.parallelism.ep = ep;
      Decoding gpus(recipe, GpuDevice(recipe), 4);
      gpus.Start();
      const std::vector<float> actual = Transcript(gpus);
      CheckTranscript(fmt::format("{} dp {} ep {}", model, dp, ep), expected, actual, 2e-5);
      CHECK(Transcript(gpus) == actual);
    }
  }
}

}  // namespace
}  // namespace engine::gpu_test
