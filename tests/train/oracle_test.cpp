// The engine against PyTorch: logits, loss, all gradients and five AdamW iterations of four small decoders.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/train/oracle_engine.h"

namespace engine::train::testing {
namespace {

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
// The longest product is over 128 (ffn), and some 16 products lie between a parameter and the loss in 3 blocks: 4 in a
// block, and the head.
constexpr OracleBound kDecoderBound{.longest_product = 128, .products = 16};

recipe::Recipe RecipeOf(const OracleGroup& group) {
  const auto integer = [&](const char* name) { return static_cast<std::int64_t>(group.Number(name)); };
  recipe::Recipe recipe = MakeRecipe(kGptLike, {});
  recipe::Model& model = recipe.model;
  model = {};
  model.layers = integer("layers");
  model.hidden = integer("hidden");
  model.vocab = integer("vocab");
  model.vocab_multiple = 16;  // 61 → 64 rows: padding must not show
  model.max_positions = integer("max_positions");
  model.attention = {.heads = integer("heads"),
                     .kv_heads = integer("kv_heads"),
                     .head_dim = integer("head_dim"),
                     .position = group.Text("position"),
                     .rope_base = group.Number("rope_base"),
                     .rope_scaling = {.factor = group.Number("rope_factor"),
                                      .low_frequency_factor = group.Number("rope_low"),
                                      .high_frequency_factor = group.Number("rope_high"),
                                      .original_max_positions = integer("rope_original")},
                     .window = integer("window"),
                     .bias = group.Number("bias") != 0};
  model.mlp = {
      .hidden = integer("ffn"), .activation = group.Text("activation"), .bias = group.Number("bias") != 0};
  model.norm = {.kind = group.Text("norm"), .epsilon = group.Number("epsilon")};
  model.tied_embeddings = group.Number("tied_embeddings") != 0;
  recipe.data.sequence_length = integer("sequence");
  recipe.training.global_batch = recipe.training.micro_batch = integer("batch");
  const auto adamw = [&](const char* name) { return group.Number("adamw", name); };
  recipe.optimizer.learning_rate = adamw("learning_rate");
  recipe.optimizer.beta1 = adamw("beta1");
  recipe.optimizer.beta2 = adamw("beta2");
  recipe.optimizer.epsilon = adamw("epsilon");
  recipe.optimizer.weight_decay = adamw("weight_decay");
  recipe.optimizer.clip_grad_norm = adamw("clip");
  return recipe;
}

// How far an element's five AdamW updates may be off where its gradients are off by at most `error` and the
// first one is `gradient`. Over the five steps √v̂ stays at least |gradient|·√(β2⁴(1 − β2)/(1 − β2⁵)) =
// 0.42·|gradient|; m̂ and √v̂ are off by `error` at most and |m̂| is at most about √v̂, so one update m̂/√v̂ is off
// by 2·error/(0.42·|gradient|) < 5 error/|gradient|. It is never off by more than 2, which is all that can be
// said where the true gradient is 0, as of the key biases without rotary positions (they do not change the
// softmax, and Adam blows up their rounding).
double UpdatesBound(double rate, double error, double gradient) {
  constexpr double kSteps = 5;
  return kSteps * rate * std::min(2.0, 5 * error / std::abs(gradient));
}

void CheckWeights(const OracleGroup& group, OracleEngine& engine, std::int32_t p) {
  const std::string& name = engine.Name(p);
  INFO(name);
  const std::vector<float> expected = group.Floats("adamw/parameters/" + name);
  const std::vector<float> actual = engine.Weight(p);
  const std::vector<float> gradient = group.Floats("gradients/" + name);
  REQUIRE(expected.size() == actual.size());
  const double error = kDecoderBound.Of(ErrorOf(group, "gradients/" + name), LargestOf(gradient));
  const double rate = group.Number("adamw", "learning_rate");
  double worst = 0;  // difference / bound
  for (size_t i = 0; i < expected.size(); ++i) {
    // Each of five updates is rounded at the size of the weight, and so is what the oracle stores.
    const double rounding =
        6 * kEpsilon / 2 * std::abs(static_cast<double>(expected[i])) + 5 * kEpsilon * rate;
    const double difference = std::abs(static_cast<double>(expected[i]) - actual[i]);
    const double ratio =
        difference / (UpdatesBound(rate, error, static_cast<double>(gradient[i])) + rounding);
    worst = ratio <= worst ? worst : std::isnan(ratio) ? HUGE_VAL : ratio;
  }
  CHECK(worst <= 1);
}

void CheckAdamW(const OracleGroup& group) {
  OracleEngine engine(RecipeOf(group), group);
  const std::vector<double> losses = group.Doubles("adamw/losses");
  const std::vector<double> norms = group.Doubles("adamw/grad_norms");
  for (int i = 0; i < static_cast<int>(losses.size()); ++i) {
    INFO("iteration " << i);
    const auto at = static_cast<size_t>(i);
    const executor::IterationResult result = engine.Train(i);
    CHECK(std::abs(result.sums[0] / engine.tokens() - losses[at]) <=
          kDecoderBound.Of(ErrorOf(group, "adamw/losses"), losses[at]));
    CHECK(std::abs(result.grad_norm - norms[at]) <=
          kDecoderBound.Of(ErrorOf(group, "adamw/grad_norms"), norms[at]));
  }
  for (std::int32_t p = 0; p < engine.parameters(); ++p) CheckWeights(group, engine, p);
}

}  // namespace

TEST_CASE("four decoders give PyTorch's logits, loss and gradients") {
  for (const std::string name : {"gpt2", "gpt2_erf", "llama", "llama_scaled"}) {
    INFO(name);
    const OracleGroup group(ENGINE_SOURCE_DIR "/tests/oracles/decoder.h5", name);
    OracleEngine engine(RecipeOf(group), group);
    CheckForwardAndBackward(group, kDecoderBound, &engine);
  }
}

TEST_CASE("four decoders take PyTorch's five AdamW steps") {
  for (const std::string name : {"gpt2", "gpt2_erf", "llama", "llama_scaled"}) {
    INFO(name);
    CheckAdamW(OracleGroup(ENGINE_SOURCE_DIR "/tests/oracles/decoder.h5", name));
  }
}

}  // namespace engine::train::testing
