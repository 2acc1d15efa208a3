// The engine against PyTorch: logits, loss, all gradients and five AdamW iterations of four small decoders.
#include "tests/train/oracle_file.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/train/testing.h"

namespace engine::train::testing {
namespace {

// A float32 evaluation is off from the true value by its roundings. PyTorch's own float32 run shows their
// size for each result (float32_max_error: the largest of a tensor); the engine sums in other orders, so it
// draws other roundings from the same distribution. The largest of two such draws differ by a small factor, 4
// here. A tensor of few elements may have been lucky, so a floor is added: one product of length n is off by
// about √n·ε of the terms' size, the longest here has n = 128 (ffn), and some 16 such products lie between a
// parameter and the loss in 3 blocks (4 in a block and the head, forward, and as many again backward are
// already in the gradient's own distribution): √(128·16)·ε.
constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
const double kFloor = std::sqrt(128.0 * 16.0) * kEpsilon;

double Bound(double float32_max_error, double scale) { return 4 * float32_max_error + kFloor * scale; }

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

// The engine on one rank with the oracle's weights, tokens and labels.
class Engine {
 public:
  explicit Engine(const OracleGroup& group) : recipe_(RecipeOf(group)), device_(CpuDevice()) {
    absl::StatusOr<plan::Plan> plan =
        driver::CompileRecipe(recipe_, {.profile = device_.profile, .keep_logits = true});
    REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
    plan_ = *std::move(plan);
    auto ranks = state::Ranks::Create(plan_, device_, 0);
    REQUIRE_MESSAGE(ranks.ok(), Message(ranks.status()));
    ranks_ = *std::move(ranks);
    for (const executor::LocalTensor& tensor : rank().Parameters()) {
      const std::vector<float> values = group.Floats("parameters/" + Name(tensor.parameter));
      REQUIRE(static_cast<std::int64_t>(values.size()) ==
              Parameter(tensor.parameter).logical_shape.elements());
      REQUIRE(rank()
                  .backend()
                  .Upload(static_cast<std::byte*>(tensor.view.data), values.data(),
                          static_cast<std::int64_t>(values.size() * sizeof(float)))
                  .ok());
    }
    feed_ = [tokens = group.Integers("tokens"), labels = group.Integers("labels")](
                const std::string& input, std::int64_t, const backend::TensorView& host) -> absl::Status {
      for (std::int64_t i = 0; i < host.shape.elements(); ++i) {
        const auto at = static_cast<size_t>(i);
        host.as<std::int32_t>()[i] = input == model::kPositions ? static_cast<std::int32_t>(i % host.shape[1])
                                     : input == model::kLabels  ? labels[at]
                                                                : tokens[at];
      }
      return absl::OkStatus();
    };
  }

  executor::RankExecutor& rank() { return *ranks_->executors()[0]; }
  std::int32_t parameters() const { return static_cast<std::int32_t>(plan_.parameters.size()); }
  const plan::PlanParameter& Parameter(std::int32_t p) const {
    return plan_.parameters[static_cast<size_t>(p)];
  }
  const std::string& Name(std::int32_t p) const { return Parameter(p).name; }
  double tokens() const { return static_cast<double>(plan_.global_batch * plan_.sequence); }

  double Evaluate() {
    const absl::StatusOr<executor::IterationResult> result = rank().Evaluate(feed_);
    REQUIRE_MESSAGE(result.ok(), Message(result.status()));
    return result->sums[0] / tokens();
  }
  executor::IterationResult Train(int iteration) {
    absl::StatusOr<executor::IterationResult> result =
        rank().Train(iteration, iteration + 1, recipe_.optimizer.learning_rate, feed_);
    REQUIRE_MESSAGE(result.ok(), Message(result.status()));
    return *result;
  }
  // [batch, sequence, vocab], the padded classes cut off.
  std::vector<float> Logits() {
    std::vector<float> logits;
    const float* row = rank().Logits().as<float>();
    for (std::int64_t token = 0; token < static_cast<std::int64_t>(tokens());
         ++token, row += plan_.vocab_rows) {
      logits.insert(logits.end(), row, row + plan_.vocab);
    }
    return logits;
  }
  std::vector<float> Gradient(std::int32_t parameter) {
    std::vector<float> out;
    REQUIRE(state::GatherGradient(plan_, *ranks_, parameter, &out).ok());
    return out;
  }
  std::vector<float> Weight(std::int32_t parameter) {
    std::vector<float> out;
    REQUIRE(state::GatherParameter(plan_, *ranks_, parameter, &out).ok());
    return out;
  }

 private:
  recipe::Recipe recipe_;
  state::Device device_;
  plan::Plan plan_;
  std::unique_ptr<state::Ranks> ranks_;
  executor::FeedFunction feed_;
};

double LargestOf(const std::vector<float>& values) {
  double largest = 0;
  for (float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

void CheckClose(const std::vector<float>& expected, const std::vector<float>& actual, double bound) {
  REQUIRE(expected.size() == actual.size());
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    // A NaN compares false everywhere, so it is counted as endless.
    const double difference = std::abs(static_cast<double>(expected[i]) - actual[i]);
    largest = difference <= largest ? largest : std::isnan(difference) ? HUGE_VAL : difference;
  }
  CHECK(largest <= bound);
}

double ErrorOf(const OracleGroup& group, const std::string& name) {
  return group.Number(name, "float32_max_error");
}

void CheckForwardAndBackward(const OracleGroup& group) {
  Engine engine(group);
  const double loss = group.Doubles("loss")[0];
  CHECK(std::abs(engine.Evaluate() - loss) <= Bound(ErrorOf(group, "loss"), loss));
  const std::vector<float> logits = group.Floats("logits");
  CheckClose(logits, engine.Logits(), Bound(ErrorOf(group, "logits"), LargestOf(logits)));
  engine.Train(0);
  REQUIRE(static_cast<size_t>(engine.parameters()) == group.NamesIn("gradients").size());
  for (std::int32_t p = 0; p < engine.parameters(); ++p) {
    const std::string name = "gradients/" + engine.Name(p);
    INFO(name);
    const std::vector<float> expected = group.Floats(name);
    CheckClose(expected, engine.Gradient(p), Bound(ErrorOf(group, name), LargestOf(expected)));
  }
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

void CheckWeights(const OracleGroup& group, Engine& engine, std::int32_t p) {
  const std::string& name = engine.Name(p);
  INFO(name);
  const std::vector<float> expected = group.Floats("adamw/parameters/" + name);
  const std::vector<float> actual = engine.Weight(p);
  const std::vector<float> gradient = group.Floats("gradients/" + name);
  REQUIRE(expected.size() == actual.size());
  const double error = Bound(ErrorOf(group, "gradients/" + name), LargestOf(gradient));
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
  Engine engine(group);
  const std::vector<double> losses = group.Doubles("adamw/losses");
  const std::vector<double> norms = group.Doubles("adamw/grad_norms");
  for (int i = 0; i < static_cast<int>(losses.size()); ++i) {
    INFO("iteration " << i);
    const auto at = static_cast<size_t>(i);
    const executor::IterationResult result = engine.Train(i);
    CHECK(std::abs(result.sums[0] / engine.tokens() - losses[at]) <=
          Bound(ErrorOf(group, "adamw/losses"), losses[at]));
    CHECK(std::abs(result.grad_norm - norms[at]) <= Bound(ErrorOf(group, "adamw/grad_norms"), norms[at]));
  }
  for (std::int32_t p = 0; p < engine.parameters(); ++p) CheckWeights(group, engine, p);
}

}  // namespace

TEST_CASE("four decoders give PyTorch's logits, loss and gradients") {
  for (const std::string name : {"gpt2", "gpt2_erf", "llama", "llama_scaled"}) {
    INFO(name);
    CheckForwardAndBackward(OracleGroup(ENGINE_SOURCE_DIR "/tests/oracles/decoder.h5", name));
  }
}

TEST_CASE("four decoders take PyTorch's five AdamW steps") {
  for (const std::string name : {"gpt2", "gpt2_erf", "llama", "llama_scaled"}) {
    INFO(name);
    CheckAdamW(OracleGroup(ENGINE_SOURCE_DIR "/tests/oracles/decoder.h5", name));
  }
}

}  // namespace engine::train::testing
