// How fast prompts and steps are on the GPU, by hand (tools/bench-generate).
#include <cuda_profiler_api.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/backend/cuda/device/survey.h"
#include "engine/generate/cached_decoder.h"
#include "engine/model/build.h"
#include "engine/model/generation.h"
#include "engine/model/load.h"
#include "tests/gpu/generation_run.h"
#include "tests/gpu/world.h"

namespace engine::gpu_test {
namespace {

// Weights of a published model, all of one stretch of numbers: what they are does not matter to how fast they are read.
void FillWeights(state::Ranks& ranks) {
  Must(ranks.Run([&](executor::RankExecutor& rank) -> absl::Status {
    std::vector<std::uint16_t> numbers(std::size_t{1} << 22U);
    const PhiloxKey key = MakePhiloxKey(1, "bench");
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = BFloat16FromFloat(static_cast<float>(0.04 * (UniformFromWord(PhiloxWord(key, i)) - 0.5)));
    for (const executor::LocalTensor& tensor : rank.Parameters()) {
      auto* const data = static_cast<std::byte*>(tensor.view.data);
      const std::int64_t bytes = tensor.view.shape.elements() * SizeOf(tensor.view.dtype);
      const auto period = static_cast<std::int64_t>(numbers.size() * 2);
      for (std::int64_t at = 0; at < bytes; at += period)
        RETURN_IF_ERROR(rank.backend().Upload(data + at, numbers.data(), std::min(period, bytes - at)));
    }
    return absl::OkStatus();
  }));
}

// Milliseconds of one step of these sequences, each with so many tokens: with all logits on the host; with a token drawn for each
// of the 50 likeliest, and of all (of weights like these, whose tokens are almost equally likely, the dearest draw that there
// is); and of the program alone.
struct DrawTimes {
  double all_ms, launch_ms,
      draw_ms;  // of them, until the program was launched, and from the first row's numbers on
};
struct StepTimes {
  double logits_ms;
  DrawTimes top;
  double any_ms, program_ms;
};
DrawTimes TimeDraws(generate::Decoder& decoder, const std::vector<generate::Decoder::Next>& next,
                    const generate::SamplingOptions& options, int steps) {
  using Clock = std::chrono::steady_clock;
  std::chrono::duration<double, std::milli> launch(0);
  std::chrono::duration<double, std::milli> draw(0);
  const auto begin = Clock::now();
  std::vector<float> logits;
  for (int i = 0; i < steps; ++i) {
    const auto asked = Clock::now();
    Must(decoder.Step(next));
    launch += Clock::now() - asked;
    Must(decoder.ReadLikeliest(0).status());
    const auto read = Clock::now();
    for (std::int64_t row = 0; row < std::ssize(next); ++row) {
      const double uniform =
          generate::DrawUniform(1, static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(i));
      const absl::StatusOr<std::optional<generate::Likeliest>> likeliest = decoder.ReadLikeliest(row);
      Must(likeliest.status());
      REQUIRE(likeliest->has_value());
      if (generate::ChooseToken(**likeliest, options, uniform)) continue;
      Must(decoder.ReadLogits(row, 1, &logits));
      Must(generate::ChooseToken(logits, {}, options, uniform).status());
    }
    draw += Clock::now() - read;
  }
  const std::chrono::duration<double, std::milli> spent = Clock::now() - begin;
  return {spent.count() / steps, launch.count() / steps, draw.count() / steps};
}
StepTimes TimeSteps(Decoding& run, std::int64_t batch, std::int64_t tokens) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(tokens), 1);
  std::vector<float> logits;
  std::vector<generate::Decoder::Next> next;
  for (std::int64_t b = 0; b < batch; ++b) {
    Must(run.decoder->PrefillAndRead(b, prompt, 1, &logits));
    next.push_back({b, 5});
  }
  for (int i = 0; i < 3; ++i) Must(run.decoder->StepAndRead(next, &logits));
  constexpr int kSteps = 20;
  const auto begin = Clock::now();
  for (int i = 0; i < kSteps; ++i) Must(run.decoder->StepAndRead(next, &logits));
  const std::chrono::duration<double, std::milli> steps = Clock::now() - begin;
  const DrawTimes top = TimeDraws(*run.decoder, next, {.top_k = 50}, kSteps);
  const double any_ms = TimeDraws(*run.decoder, next, {}, kSteps / 4).all_ms;
  plan::FormId form = -1;
  for (plan::FormId f = plan::kFirstGenerationForm; f < run.plan.FormsEnd(); ++f) {
    const plan::Form& of = run.plan.FormAt(f);
    if (of.kind == plan::ProgramKind::kDecode && of.samples == batch) form = f;
  }
  REQUIRE(form >= 0);
  const executor::FeedFunction feed = [&](const std::string& input, std::int64_t,
                                          const backend::TensorView& host) -> absl::Status {
    for (std::int64_t i = 0; i < host.shape.elements(); ++i)
      host.as<std::int32_t>()[i] = input == model::kTemperatures
                                       ? std::bit_cast<std::int32_t>(1.0F)
                                       : static_cast<std::int32_t>(input == model::kPositions    ? tokens
                                                                   : input == model::kCacheSlots ? i
                                                                                                 : 5);
    return absl::OkStatus();
  };
  const auto programs_of = [&](int count) {
    Must(run.ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
      for (int i = 0; i < count; ++i) RETURN_IF_ERROR(rank.Generate(form, feed));
      return rank.backend().Synchronize();
    }));
  };
  programs_of(1);
  const auto start = Clock::now();
  programs_of(kSteps);
  const std::chrono::duration<double, std::milli> programs = Clock::now() - start;
  // One program for a profiler: ncu --profile-from-start off shows the kernels of this alone.
  cudaProfilerStart();
  programs_of(1);
  cudaProfilerStop();
  return {steps.count() / kSteps, top, any_ms, programs.count() / kSteps};
}

// `more`: tables of the recipe.
recipe::Recipe PublishedModel(const std::string& model, std::int64_t context, const char* more = "") {
  const data::TempDir folder;
  const std::string path = folder / "recipe.toml";
  data::WriteFile(path, fmt::format(R"(extends = "{}/configs/models/{}.toml"
[data]
source = "random"
sequence_length = {}
[optimizer]
learning_rate = 1e-3
[precision]
compute = "bf16"
[training]
global_batch = 1
micro_batch = 1
iterations = 1
{})",
                                    std::filesystem::current_path().string(), model, context, more));
  const recipe::LoadResult loaded = model::Load(path);
  for (const Diagnostic& diagnostic : loaded.diagnostics) MESSAGE(Format(diagnostic));
  REQUIRE(loaded.ok());
  return loaded.recipe;
}

// Milliseconds of one of `count` calls, after one more.
template <typename Call>
double TimeCalls(int count, const Call& call) {
  call();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) call();
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;
  return spent.count() / count;
}

absl::Status FeedOnes(const std::string& input, std::int64_t, const backend::TensorView& host) {
  for (std::int64_t i = 0; i < host.shape.elements(); ++i) {
    host.as<std::int32_t>()[i] = input == model::kTemperatures ? std::bit_cast<std::int32_t>(1.0F)
                                 : input == model::kCacheSlots ? 0
                                 : input == model::kPositions  ? static_cast<std::int32_t>(i)
                                                               : 1;
  }
  return absl::OkStatus();
}

// A prompt as long as the context, beside an evaluation of one sequence of as many tokens, which is training's forward pass and the
// loss.
void BenchPrefill(const char* model, std::int64_t context) {
  const recipe::Recipe recipe = PublishedModel(model, context);
  constexpr int kCalls = 10;
  double prefill_ms = 0;
  {
    Decoding run(recipe, GpuDevice(recipe), 1);
    FillWeights(*run.ranks);
    executor::RankExecutor& rank = *run.ranks->executors()[0];
    plan::FormId form = plan::kFirstGenerationForm;
    while (run.plan.FormAt(form).tokens != context) ++form;
    prefill_ms = TimeCalls(kCalls, [&] {
      Must(rank.Generate(form, FeedOnes));
      Must(rank.backend().Synchronize());
    });
  }
  const state::Device device = GpuDevice(recipe);
  const absl::StatusOr<plan::Plan> plan =
      driver::CompileRecipe(recipe, {.profile = device.profile, .training = false});
  Must(plan.status());
  const auto ranks = state::Ranks::Create(*plan, device, 0);
  Must(ranks.status());
  FillWeights(**ranks);
  executor::RankExecutor& rank = *(*ranks)->executors()[0];
  const double evaluate_ms = TimeCalls(kCalls, [&] { Must(rank.Evaluate(FeedOnes).status()); });
  fmt::print("{}: prefill of {} tokens {:.3f} ms, evaluation of as many {:.3f} ms: rate {:.3f}\n", model,
             context, prefill_ms, evaluate_ms, evaluate_ms / prefill_ms);
  std::fflush(stdout);
}

struct BenchForm {
  int dp = 1, tp = 1, ep = 1;
  bool invariant = false;
  const char* cache_dtype = "auto";
  const char* what = "";  // printed behind the model's name
  const char* more = "";  // tables of the recipe
};
// `batches`: sequences on all ranks.
void Bench(const std::string& model, std::int64_t context, const std::vector<std::int64_t>& batches,
           const BenchForm& form = {}) {
  recipe::Recipe recipe = PublishedModel(model, context, form.more);
  recipe.parallelism.dp = form.dp;
  recipe.parallelism.tp = form.tp;
  recipe.parallelism.ep = form.ep;
  recipe.generate.invariant = form.invariant;
  recipe.generate.cache_dtype = form.cache_dtype;
  for (const std::int64_t batch : batches) {
    Decoding run(recipe, GpuDevice(recipe), batch);
    FillWeights(*run.ranks);
    const std::int64_t tokens = context - 64;
    const StepTimes times = TimeSteps(run, batch, tokens);
    double cache = 0;
    for (const plan::State& state : run.plan.stages[0].states)
      cache += static_cast<double>(state.buffer.bytes()) * static_cast<double>(tokens) /
               static_cast<double>(context);
    const double weights = 2.0 * static_cast<double>(run.plan.parameter_count);
    const double bound_ms = (weights + cache) / 4.3e9;
    fmt::print(
        "{}{} dp {} tp {} ep {} batch {} at {} tokens: step with all logits {:.3f} ms, with a draw of 50 "
        "{:.3f} (launch {:.3f}, draw {:.3f}), of all {:.3f}, "
        "program {:.3f} ms; (weights + cache) / 4.3 TB/s {:.3f} ms: {:.3f}\n",
        model, form.what, form.dp, form.tp, form.ep, batch, tokens, times.logits_ms, times.top.all_ms,
        times.top.launch_ms, times.top.draw_ms, times.any_ms, times.program_ms, bound_ms,
        bound_ms / times.program_ms);
    std::fflush(stdout);
  }
}

TEST_CASE("generation bench: prefill" * doctest::skip()) {
  BenchPrefill("gpt2-124m", 1024);
  BenchPrefill("llama3-8b", 2048);
}
TEST_CASE("generation bench: two GPUs" * doctest::skip()) {
  if (HasTwoGpus()) Bench("llama3-8b", 2112, {1, 64}, {.tp = 2});
}
TEST_CASE("generation bench: slots of Llama-3 8B over two GPUs" * doctest::skip()) {
  if (HasTwoGpus()) Bench("llama3-8b", 2112, {2, 64, 128}, {.dp = 2});
}
TEST_CASE("generation bench: slots of DeepSeek-V2-Lite over two GPUs" * doctest::skip()) {
  if (!HasTwoGpus()) return;
  for (const BenchForm& layout : {BenchForm{.dp = 2}, BenchForm{.ep = 2}})
    Bench("deepseek-v2-lite", 2112, {2, 64, 128}, layout);
}
TEST_CASE("generation bench: GPT-2 124M" * doctest::skip()) { Bench("gpt2-124m", 1024, {1, 8, 64}); }
TEST_CASE("generation bench: DeepSeek-V2-Lite, of whose experts a step reads some" * doctest::skip()) {
  Bench("deepseek-v2-lite", 2112, {1, 8, 64});
}
TEST_CASE("generation bench: Llama-3 8B" * doctest::skip()) { Bench("llama3-8b", 2112, {1, 8, 16, 64}); }

void BenchCaches(const char* model, std::int64_t context, const std::vector<std::int64_t>& batches) {
  for (const BenchForm& form : {BenchForm{}, BenchForm{.cache_dtype = "fp8", .what = " fp8-cache"}})
    Bench(model, context, batches, form);
}
TEST_CASE("generation bench: fp8 caches of GPT-2 124M" * doctest::skip()) {
  BenchCaches("gpt2-124m", 1024, {1, 8, 64});
}
TEST_CASE("generation bench: fp8 caches of Llama-3 8B" * doctest::skip()) {
  BenchCaches("llama3-8b", 2112, {1, 8, 16, 64});
  BenchCaches("llama3-8b", 8192, {16});
}
TEST_CASE("generation bench: fp8 caches of DeepSeek-V2-Lite" * doctest::skip()) {
  BenchCaches("deepseek-v2-lite", 2112, {1, 64});
}
TEST_CASE("generation bench: fp8 caches with 64 sequences, for a profiler" * doctest::skip()) {
  BenchCaches("llama3-8b", 2112, {64});
}
// A soft cap that bends nothing: with one, keys and values are kept in place of latents.
TEST_CASE("generation bench: latents against keys and values" * doctest::skip()) {
  constexpr const char* kCapped = "[block.attention]\nsteps.core = { softcap = 1e4 }\n";
  for (const BenchForm& form : {BenchForm{}, BenchForm{.what = " keys", .more = kCapped}})
    Bench("deepseek-v2-lite", 2112, {1, 8, 64}, form);
}
TEST_CASE("generation bench: invariant" * doctest::skip()) {
  for (const BenchForm& form : {BenchForm{}, BenchForm{.invariant = true, .what = " invariant"}}) {
    Bench("gpt2-124m", 1024, {1, 64}, form);
    Bench("llama3-8b", 2112, {1, 64}, form);
  }
}

}  // namespace
}  // namespace engine::gpu_test
