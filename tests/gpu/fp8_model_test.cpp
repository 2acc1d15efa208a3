// Small models in FP8 and fp16 on the GPU: beside bf16, and against themselves; and looking for what is not
// finite.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/gpu/world.h"

namespace engine::gpu_test {
namespace {

// Sizes of products are multiples of 16, attention is cuDNN's; the learning rate is that of real runs.
const std::vector<Model>& Models() {
  static const std::vector<Model> models = {
      {"gpt",
       kGptLike,
       {"model.hidden=128", "model.mlp.hidden=512", "model.attention.heads=2", "model.vocab_multiple=64",
        "model.max_positions=128", "data.sequence_length=128", "optimizer.learning_rate=1e-3",
        "model.dropout.embedding=0", "model.dropout.hidden=0", "model.dropout.attention=0"}},
      {"gpt with dropout",
       kGptLike,
       {"model.hidden=128", "model.mlp.hidden=512", "model.attention.heads=2", "model.vocab_multiple=64",
        "model.max_positions=128", "data.sequence_length=128", "optimizer.learning_rate=1e-3"}},
      {"llama",
       kLlamaLike,
       {"model.hidden=256", "model.mlp.hidden=384", "model.attention.heads=4", "model.attention.kv_heads=2",
        "model.vocab_multiple=64", "model.max_positions=128", "data.sequence_length=128",
        "optimizer.learning_rate=1e-3"}}};
  return models;
}

Curve Run(const Model& model, const Sets& sets, int iterations,
          const executor::ExecutorOptions& options = {}) {
  return World(model.model, With(model.sets, sets), true, options).TrainAll(iterations);
}

double LargestRelativeError(const std::vector<double>& expected, const std::vector<double>& actual) {
  REQUIRE(expected.size() == actual.size());
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(actual[i] - expected[i]) / expected[i];
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  }
  return worst;
}

const Sets kFp8 = {"precision.compute=fp8"};
const Sets kFp8E4M3 = {"precision.compute=fp8", "precision.fp8_gradients=e4m3"};
const Sets kFp8Current = {"precision.compute=fp8", "precision.fp8_scaling=current"};
const Sets kFp8Head = {"precision.compute=fp8", "precision.fp8_head=true"};
const Sets kBf16 = {"precision.compute=bf16"};
const Sets kFp16 = {"precision.compute=fp16"};

}  // namespace

// e4m3 rounds an operand by up to 2⁻⁴ of itself, at random: over the K ≥ 128 terms of a product some 2⁻⁴ of
// its deviation remains, 16 times what bf16's 2⁻⁸ does; so the band is 4 times that of bf16 beside fp32
// (model_test.cpp), 2⁻⁶ of the loss, as errors of 16 products add up as √16 there and here alike. Gradient
// norms sum what e5m2 rounds by 2⁻³: 2⁻³. Both fall: 20 iterations learn how often tokens come. Scales of a
// tensor's own largest value only use more of the format; the head is one product more.
TEST_CASE("gpu fp8 model: FP8 follows bf16") {
  constexpr int kIterations = 20;
  for (const Model& model : Models()) {
    const Curve wide = Run(model, kBf16, kIterations);
    for (const Sets& sets :
         {kFp8, kFp8E4M3, kFp8Current, kFp8Head, With(kFp8Current, {"precision.fp8_head=true"})}) {
      const Curve curve = Run(model, sets, kIterations);
      const double loss = LargestRelativeError(wide.losses, curve.losses);
      const double norm = LargestRelativeError(wide.norms, curve.norms);
      const std::string what =
          fmt::format("{} {}: losses within {:.3g}, gradient norms within {:.3g} of bf16's", model.name,
                      sets.back(), loss, norm);
      MESSAGE(what);
      CHECK_MESSAGE(loss <= 0x1p-6, what);
      CHECK_MESSAGE(norm <= 0x1p-3, what);
      CHECK_MESSAGE(loss > 0, what);  // it is FP8
    }
  }
}

TEST_CASE("gpu fp8 model: two runs, recorded or launch by launch, give the same bits") {
  constexpr int kIterations = 8;
  for (const Model& model : Models()) {
    for (const Sets& sets :
         {kFp8, kFp8E4M3, With(kFp8, {"training.micro_batch=2"}), With(kFp8, {"recompute.granularity=cheap"}),
          With(kFp8, {"recompute.granularity=full"}), kFp8Current,
          With(kFp8Current, {"training.micro_batch=2"}), With(kFp8Current, {"recompute.granularity=cheap"}),
          kFp8Head}) {
      if (&model == &Models()[1] && sets.size() > 1) continue;  // dropout: once is enough
      const std::string what = std::string(model.name) + " " + sets.back();
      const Curve base = Run(model, sets, kIterations);
      SameBits(what + ": two runs", base, Run(model, sets, kIterations));
      SameBits(what + ": recorded, not recorded", base, Run(model, sets, kIterations, {.record = false}));
    }
  }
}

// Delayed scales of the next iteration are in the checkpoint; with current scaling there are none.
TEST_CASE("gpu fp8 model: a resumed run gives the bits of the undisturbed one") {
  constexpr int kSaved = 3;
  constexpr int kIterations = 6;
  for (const Model& model : Models()) {
    for (const Sets& sets : {kFp8, kFp8Current}) {
      const Curve base = Run(model, sets, kIterations);
      const data::TempDir folder;
      Curve resumed;
      std::string saved;
      {
        const World before(model.model, With(model.sets, sets));
        before.Train(0, kSaved, &resumed);
        saved = before.Save(folder / "root", kSaved);
      }
      const World after(model.model, With(model.sets, sets));
      CHECK((after.plan().stages[0].scales.elements == 0) == (sets == kFp8Current));
      after.Load(saved);
      after.Train(kSaved, kIterations, &resumed);
      after.Finish(&resumed);
      SameBits(std::string(model.name) + " " + sets.back() + ": undisturbed, resumed", base, resumed);
    }
  }
}

// -------------------------------------------------------------------------------------------------- fp16

// Megatron-LM's scaler: 2³² at first; the second overflow and each after it halve the scale, as hysteresis is
// refilled after 1000 clean iterations only. An overflown iteration is no step and changes nothing.
TEST_CASE("gpu fp16 model: overflows are skipped and lower the loss scale") {
  const Model& model = Models()[0];
  const World world(model.model, With(model.sets, kFp16));
  double scale = 0x1p32;
  std::int64_t hysteresis = 2;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  std::vector<std::vector<float>> weights = world.Weights();
  std::vector<std::vector<float>> state = world.OptimizerState();
  for (int i = 0; i < 60; ++i) {
    const auto result = world.Iterate(i, i);
    Must(result.status());
    CAPTURE(i);
    CHECK(std::isfinite(result->sums[0]));
    const bool overflow = result->skipped > skipped;
    CHECK(overflow == !std::isfinite(result->grad_norm));
    if (i == 0) CHECK(overflow);  // 2³² / 1024 tokens is beyond fp16's 65504
    if (overflow) {
      ++skipped;
      if (--hysteresis <= 0) scale /= 2;
    } else {
      ++steps;
    }
    CHECK(result->skipped == skipped);
    CHECK(result->steps == steps);
    CHECK(result->loss_scale == scale);
    std::vector<std::vector<float>> weights_now = world.Weights();
    std::vector<std::vector<float>> state_now = world.OptimizerState();
    CHECK((weights_now == weights) == overflow);
    CHECK((state_now == state) == overflow);
    weights = std::move(weights_now);
    state = std::move(state_now);
  }
  CHECK(skipped >= 2);
  CHECK(steps >= 20);
}

// The same batch again until it is a step. fp16 rounds 8 times finer than bf16, so the band is bf16's own
// beside fp32 (model_test.cpp).
TEST_CASE("gpu fp16 model: fp16 follows bf16") {
  constexpr int kSteps = 20;
  for (const Model& model : {Models()[0], Models()[2]}) {
    const Curve wide = Run(model, kBf16, kSteps);
    const World world(model.model, With(model.sets, kFp16));
    Curve curve;
    for (int i = 0; i < 100 && static_cast<int>(curve.losses.size()) < kSteps; ++i) {
      const auto done = static_cast<int>(curve.losses.size());
      const auto result = world.Iterate(done, done);
      Must(result.status());
      if (result->steps == done) continue;
      curve.losses.push_back(result->sums[0]);
      curve.norms.push_back(result->grad_norm);
    }
    const double loss = LargestRelativeError(wide.losses, curve.losses);
    const double norm = LargestRelativeError(wide.norms, curve.norms);
    const std::string what = fmt::format(
        "{}: fp16's losses within {:.3g}, gradient norms within {:.3g} of bf16's", model.name, loss, norm);
    MESSAGE(what);
    CHECK_MESSAGE(loss <= 0x1p-8, what);
    CHECK_MESSAGE(norm <= 0x1p-5, what);
    CHECK_MESSAGE(loss > 0, what);
  }
}

// The scale that a run has come down to is in the checkpoint.
TEST_CASE("gpu fp16 model: a resumed run goes on with its loss scale") {
  const Model& model = Models()[0];
  const data::TempDir folder;
  const World before(model.model, With(model.sets, kFp16));
  std::int64_t steps = 0;
  double scale = 0;
  for (int i = 0; i < 30; ++i) {
    const auto result = before.Iterate(i, i);
    Must(result.status());
    steps = result->steps;
    scale = result->loss_scale;
  }
  REQUIRE(steps > 0);
  const World after(model.model, With(model.sets, kFp16));
  after.Load(before.Save(folder / "root", 30));
  Must(after.rank().SetSteps(steps));
  const auto next = after.Iterate(30, 30);
  const auto undisturbed = before.Iterate(30, 30);
  Must(next.status());
  Must(undisturbed.status());
  CHECK(scale < 0x1p32);
  CHECK(next->loss_scale == undisturbed->loss_scale);
  CHECK(next->skipped == undisturbed->skipped);
  CHECK(next->steps == undisturbed->steps);
  CHECK(next->sums[0] == undisturbed->sums[0]);
  CHECK(next->grad_norm == undisturbed->grad_norm);
}

// -------------------------------------------------------------------------------------------------- --check

TEST_CASE("gpu model: the check names the instruction that first makes a NaN") {
  const Model& model = Models()[0];
  const auto complaint = [&](const Sets& sets, const char* parameter) {
    const World world(model.model, With(model.sets, sets), true, {.check = true});
    Must(world.Iterate(0, 0).status());
    world.Poison(parameter);
    const auto result = world.Iterate(1, 1);
    REQUIRE(!result.ok());
    CHECK(absl::IsDataLoss(result.status()));
    return Message(result.status());
  };
  const auto names = [](const std::string& text, const std::string& name) {
    const size_t at = text.find(" is the first to make a number that is not finite");
    CHECK_MESSAGE((at != std::string::npos && text.find(name) < at), text);
  };
  names(complaint(kBf16, "layers.1.mlp.fc1.weight"), "layers.1.mlp.fc1 (linear_gelu) of microbatch 0");
  names(complaint(kBf16, "layers.2.attention.proj.bias"), "layers.2.attention.proj (linear) of microbatch 0");
  names(complaint(kFp8, "layers.1.mlp.fc1.bias"), "layers.1.mlp.fc1 (linear_fp8) of microbatch 0");
}

}  // namespace engine::gpu_test
