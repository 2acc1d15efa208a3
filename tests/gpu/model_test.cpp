// Small models on the GPU: against the CPU executor in fp32, and against themselves in bf16.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <map>

#include "engine/model/load.h"
#include "tests/gpu/world.h"

namespace engine::gpu_test {
namespace {

Curve OnGpu(const char* model, const Sets& sets, int iterations,
            const executor::ExecutorOptions& options = {}) {
  return World(model, sets, true, options).TrainAll(iterations);
}

void CheckClose(const std::string& what, double expected, double actual, double bound) {
  const double error = std::fabs(actual - expected);
  CHECK_MESSAGE(error <= bound,  // false for NaN
                fmt::format("{}: {:.12g}, expected {:.12g}: error {:.3g}, bound {:.3g}", what, actual,
                            expected, error, bound));
}

// -------------------------------------------------------------------------------------------- against the
// CPU

// How the CPU's own numbers answer to one rounding error in every weight is measured: a second run starts
// with each weight one ulp off. The GPU's sums are in another order, which costs a value on its way through
// the model √(300 · 40) ≈ 110 roundings, and 4 times that for cancellation (tests/train/layout_test.cpp). So
// a bound is 4 · 110 times what one ulp has made so far, but at least one ε.
void CheckAgainstCpu(const char* name, const recipe::Recipe& recipe) {
  constexpr int kIterations = 20;
  constexpr double kFactor = 4 * 110;
  constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
  const World cpu(recipe, false);
  const Curve expected = cpu.TrainAll(kIterations);
  const World nudged(recipe, false);
  nudged.Nudge();
  const Curve off = nudged.TrainAll(kIterations);
  const Curve actual = World(recipe, true).TrainAll(kIterations);
  double loss_growth = 0;
  double norm_growth = 0;
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    loss_growth = std::max(loss_growth, std::fabs(off.losses[i] - expected.losses[i]) / expected.losses[i]);
    norm_growth = std::max(norm_growth, std::fabs(off.norms[i] - expected.norms[i]) / expected.norms[i]);
    CheckClose(fmt::format("{}: loss of iteration {}", name, i), expected.losses[i], actual.losses[i],
               kFactor * std::max(kEpsilon, loss_growth) * expected.losses[i]);
    CheckClose(fmt::format("{}: gradient norm of iteration {}", name, i), expected.norms[i], actual.norms[i],
               kFactor * std::max(kEpsilon, norm_growth) * expected.norms[i]);
  }
  loss_growth = std::max(loss_growth, std::fabs(off.evaluation - expected.evaluation) / expected.evaluation);
  CheckClose(fmt::format("{}: evaluation", name), expected.evaluation, actual.evaluation,
             kFactor * std::max(kEpsilon, loss_growth) * expected.evaluation);
  for (size_t p = 0; p < expected.weights.size(); ++p) {
    double growth = 0;
    double scale = 0;
    size_t worst = 0;
    const auto error = [&](size_t i) { return std::fabs(actual.weights[p][i] - expected.weights[p][i]); };
    for (size_t i = 0; i < expected.weights[p].size(); ++i) {
      growth = std::max<double>(growth, std::fabs(off.weights[p][i] - expected.weights[p][i]));
      scale = std::max<double>(scale, std::fabs(expected.weights[p][i]));
      if (!(error(i) <= error(worst))) worst = i;
    }
    CheckClose(fmt::format("{}: weight {} of {}", name, worst, cpu.plan().parameters[p].name),
               expected.weights[p][worst], actual.weights[p][worst],
               kFactor * std::max(growth, kEpsilon * scale));
  }
  MESSAGE(fmt::format(
      "{}: one ulp in the weights moves losses by {:.2g}, gradient norms by {:.2g} in {} iterations", name,
      loss_growth, norm_growth, kIterations));
}

void CheckAgainstCpu(const char* name, const char* model) {
  CheckAgainstCpu(name, train::testing::MakeRecipe(model, {"precision.compute=fp32"}));
}

// Logits with a bias, scaled and capped, and a loss with all its terms.
constexpr const char* kCapped = R"(
[model]
dims = { D = 32, L = 2, F = 48, V = 300 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]" }
vocab_multiple = 16
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["mlp as mlp"] },
  { do = "rms_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"], bias = true },
  { do = "scale", as = "head.scale", by = 1.5 },
  { do = "softcap", as = "head.cap", cap = 2.0 },
  { do = "cross_entropy", as = "loss", smoothing = 0.1, z_loss = 1e-3 },
]
[block.mlp]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "fc1", out = [2, "F"] },
  { do = "gate", as = "activation", act = "silu" },
  { do = "linear", as = "fc2", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "fc2"], to = "x" },
]
)";

recipe::Recipe TextRecipe(const std::string& model, const Sets& sets, const std::string& more = "") {
  const recipe::LoadResult loaded =
      model::LoadText(model + train::testing::kCommon + train::testing::kAdamW + more, "test.toml",
                      {.sets = sets, .root = ""});
  std::string errors;
  for (const Diagnostic& diagnostic : loaded.diagnostics) errors += Format(diagnostic);
  REQUIRE_MESSAGE(loaded.ok(), errors);
  return loaded.recipe;
}

// `frozen`: the head's weight and bias.
recipe::Recipe CappedRecipe(bool frozen) {
  const std::string group = frozen ? "[[optimizer.group]]\nmatch = \"head.*\"\nfrozen = true\n" : "";
  return TextRecipe(kCapped, {"precision.compute=fp32"}, group);
}

// Positions by biases alone, of one table.
constexpr const char* kBiased = R"(
[model]
dims = { D = 128, L = 2, H = 2, E = 64, F = 256, V = 300 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
vocab_multiple = 64
init_std = 0.1
main = [
  { do = "embedding", as = "embedding.tokens", of = "tokens", rows = "V", width = "D" },
  { do = "relative_bias", as = "distances", heads = "H", buckets = 16, max_distance = 40 },
  { do = "stack", as = "layers", of = { x = "embedding.tokens", bias = "distances" }, repeat = "L", layer = ["attention", "mlp"] },
  { do = "rms_norm", as = "final_norm" },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
]
[block.attention]
steps = [
  { do = "rms_norm", as = "attention.norm", of = "x" },
  { do = "linear", as = "qkv", out = ["H", 3, "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"] },
  { do = "attention", as = "core", of = ["q", "k", "v"], bias = "bias" },
  { do = "linear", as = "proj", out = ["D"], init = "branch" },
  { do = "residual", as = "attention.residual", of = ["x", "proj"], to = "x" },
]
[block.mlp]
steps = [
  { do = "rms_norm", as = "norm", of = "x" },
  { do = "linear", as = "fc1", out = [2, "F"] },
  { do = "gate", as = "activation", act = "silu" },
  { do = "linear", as = "fc2", out = ["D"], init = "branch" },
  { do = "residual", as = "residual", of = ["x", "fc2"], to = "x" },
]
)";
const Sets kBiasedSets = {"data.sequence_length=128", "optimizer.learning_rate=1e-3"};

// -------------------------------------------------------------------------------------------- against itself

// Large enough for the fused products and, without dropout, for cuDNN's attention. The learning rate is that
// of real runs: bf16's noise must not grow by itself.
const Sets kGptSets = {"precision.compute=bf16",   "model.hidden=128",
                       "model.mlp.hidden=512",     "model.attention.heads=2",
                       "model.vocab_multiple=64",  "model.max_positions=128",
                       "data.sequence_length=128", "optimizer.learning_rate=1e-3"};
const Sets kLlamaSets = {
    "precision.compute=bf16",  "model.hidden=256",           "model.mlp.hidden=384",
    "model.attention.heads=4", "model.attention.kv_heads=2", "model.vocab_multiple=64",
    "model.max_positions=128", "data.sequence_length=128",   "optimizer.learning_rate=1e-3"};
// Every head its own key and value: the packed form, with rotary in place.
const Sets kPackedSets = {"model.attention.kv_heads=4"};

const Sets kDocumentSets = {"data.documents=masked", "data.tokenizer.kind=none"};

const std::vector<Model>& Models() {
  static const std::vector<Model> models = {
      {"gpt", kGptLike, kGptSets},
      {"gpt without dropout", kGptLike,
       With(kGptSets, {"model.dropout.embedding=0", "model.dropout.hidden=0", "model.dropout.attention=0"})},
      {"llama", kLlamaLike, kLlamaSets},
      {"llama without groups", kLlamaLike, With(kLlamaSets, kPackedSets)},
      {"gpt of documents", kGptLike, With(kGptSets, kDocumentSets)},
      {"llama of documents", kLlamaLike, With(kLlamaSets, kDocumentSets)}};
  return models;
}

// Two ways to compute the same model that round to bf16 at different places. Logits of at most 4 are off by
// 2⁻⁸ of themselves, which puts a token's loss off by up to 2·4·2⁻⁸ = 2⁻⁵; over 1024 tokens with random signs
// that is 2⁻¹⁰ of the mean loss; activations before have been through some 16 roundings of that size, √16:
// 2⁻⁸; a factor 4 for what eight iterations' weights differ: 2⁻⁶ of a mean loss that is near 5.7 and falls
// slowly: 2⁻⁸ relative. The gradient norm is a sum over all parameters of terms with a few 2⁻⁸ each: 2⁻⁵
// relative.
void WithinNoise(const std::string& what, const Curve& a, const Curve& b, double times = 1) {
  REQUIRE(a.losses.size() == b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i) {
    CheckClose(fmt::format("{}: loss of iteration {}", what, i), a.losses[i], b.losses[i],
               times * 0x1p-8 * a.losses[i]);
    CheckClose(fmt::format("{}: gradient norm of iteration {}", what, i), a.norms[i], b.norms[i],
               times * 0x1p-5 * a.norms[i]);
  }
  CheckClose(what + ": evaluation", a.evaluation, b.evaluation, times * 0x1p-8 * a.evaluation);
}

// Weights in bf16 without a master are off by up to an ulp, 2⁻⁷, at random after each step, where rounding
// the masters is off by half of that once: after eight steps √8 · 2 = 6 times it, or 2⁻⁵·⁵ of a weight. So of
// the bound's 16 roundings of 2⁻⁸ and 2⁻⁸ for the logits, of weights and activations in equal parts, one part
// is 6 times as large: √((1 + 36)/2) = 4.3.
constexpr double kWithoutMasters = 4.3;

constexpr int kIterations = 8;

// One run of the model as it is, recorded: what the other runs are compared with. Opening a GPU and its
// libraries costs more than the iterations.
const Curve& Base(const Model& model) {
  static std::map<std::string, Curve> curves;
  const auto found = curves.find(model.name);
  if (found != curves.end()) return found->second;
  return curves[model.name] = OnGpu(model.model, model.sets, kIterations);
}

}  // namespace

TEST_CASE("gpu model: gpt in fp32 follows the CPU") { CheckAgainstCpu("gpt", kGptLike); }
TEST_CASE("gpu model: llama in fp32 follows the CPU") { CheckAgainstCpu("llama", kLlamaLike); }

TEST_CASE("gpu model: models of documents in fp32 follow the CPU") {
  for (const char* model : {kGptLike, kLlamaLike}) {
    const Sets sets = With(kDocumentSets, {"precision.compute=fp32"});
    CheckAgainstCpu(model == kGptLike ? "gpt of documents" : "llama of documents",
                    train::testing::MakeRecipe(model, sets));
  }
}

TEST_CASE("gpu model: a head with bias, scale and soft cap in fp32 follows the CPU") {
  CheckAgainstCpu("capped", CappedRecipe(/*frozen=*/false));
  CheckAgainstCpu("capped and frozen", CappedRecipe(/*frozen=*/true));
}

TEST_CASE("gpu model: positions by biases by distance follow the CPU in fp32, and in bf16 that") {
  const recipe::Recipe wide = TextRecipe(kBiased, With(kBiasedSets, {"precision.compute=fp32"}));
  CheckAgainstCpu("biased", wide);
  const recipe::Recipe narrow = TextRecipe(kBiased, With(kBiasedSets, {"precision.compute=bf16"}));
  const Curve first = World(narrow, true).TrainAll(kIterations);
  WithinNoise("biased: bf16 against fp32", World(wide, true).TrainAll(kIterations), first);
  SameBits("biased: two runs", first, World(narrow, true).TrainAll(kIterations));
}

// The first microbatch overwrites the sums of gradients, the others add to them.
TEST_CASE("gpu model: four microbatches in fp32 follow the CPU's one") {
  constexpr double kBound = 4 * 110 * std::numeric_limits<float>::epsilon();  // as CheckAgainstCpu
  for (const char* model : {kGptLike, kLlamaLike}) {
    const char* name = model == kGptLike ? "gpt" : "llama";
    const Curve expected = World(model, {"precision.compute=fp32"}, false).TrainAll(3);
    const Curve actual = OnGpu(model, {"precision.compute=fp32", "training.micro_batch=2"}, 3);
    for (size_t i = 0; i < expected.losses.size(); ++i) {
      CheckClose(fmt::format("{}: loss of iteration {}", name, i), expected.losses[i], actual.losses[i],
                 kBound * expected.losses[i]);
      CheckClose(fmt::format("{}: gradient norm of iteration {}", name, i), expected.norms[i],
                 actual.norms[i], kBound * expected.norms[i]);
    }
  }
}

// With the same weights, rounded to bf16.
TEST_CASE("gpu model: bf16 follows fp32") {
  for (const Model& model : Models()) {
    const Curve wide = OnGpu(model.model, With(model.sets, {"precision.compute=fp32"}), kIterations);
    WithinNoise(fmt::format("{}: bf16 against fp32", model.name), wide, Base(model));
  }
}

TEST_CASE("gpu model: a second run gives the same bits") {
  for (const Model& model : Models()) {
    const World world(model.model, model.sets, true);
    SameBits(fmt::format("{}: two runs", model.name), Base(model), world.TrainAll(kIterations));
  }
}

TEST_CASE("gpu model: recorded and launch by launch give the same bits") {
  for (const Model& model : Models()) {
    const World world(model.model, model.sets, true, {.record = false});
    SameBits(fmt::format("{}: recorded, not recorded", model.name), Base(model), world.TrainAll(kIterations));
  }
  const Model& model = Models()[0];
  const Sets sets = With(model.sets, {"training.micro_batch=2"});
  const World world(model.model, sets, true, {.record = false});
  SameBits(fmt::format("{}, four microbatches: recorded, not recorded", model.name),
           OnGpu(model.model, sets, kIterations), world.TrainAll(kIterations));
}

// Whatever is checked after each launch changes nothing; all numbers are finite.
TEST_CASE("gpu model: checked launch by launch gives the same bits") {
  for (const Model& model : Models()) {
    const World world(model.model, model.sets, true, {.check = true});
    SameBits(fmt::format("{}: unchecked, checked", model.name), Base(model), world.TrainAll(kIterations));
  }
}

TEST_CASE("gpu model: four microbatches are one within the noise") {
  for (const Model& model : Models()) {
    WithinNoise(fmt::format("{}: four microbatches", model.name), Base(model),
                OnGpu(model.model, With(model.sets, {"training.micro_batch=2"}), kIterations));
  }
}

// Not bit by bit: what is recomputed decides what is fused. Without recomputation dgrad and the gradient of
// gelu are one product in fp32, and a norm is one kernel with the addition before it; a recomputed activation
// or norm stands alone, and its gradient reads a dy rounded to bf16.
TEST_CASE("gpu model: recomputation changes nothing beyond the noise") {
  for (const Model& model : Models()) {
    for (const char* granularity : {"cheap", "selective", "full"}) {
      const Sets sets = With(model.sets, {std::string("recompute.granularity=") + granularity});
      WithinNoise(fmt::format("{}: recompute {}", model.name, granularity), Base(model),
                  OnGpu(model.model, sets, kIterations));
    }
  }
}

TEST_CASE("gpu model: with all layers recomputed a second run gives the same bits") {
  for (size_t m : {0, 2}) {
    const Model& model = Models()[m];
    const Sets sets = With(model.sets, {"recompute.granularity=full"});
    const World world(model.model, sets, true);
    SameBits(fmt::format("{}: recompute full, two runs", model.name), OnGpu(model.model, sets, kIterations),
             world.TrainAll(kIterations));
  }
}

// Copies beside computation: what overwrites a layer's place too soon, or reads it too soon, gives other bits.
TEST_CASE("gpu model: with layers in the host's memory the bits are the same") {
  for (size_t m : {0, 2}) {
    const Model& model = Models()[m];
    const Sets kept = With(model.sets, {"model.layers=8", "training.micro_batch=2"});
    const Curve expected = OnGpu(model.model, kept, kIterations);
    for (const char* layers : {"offload.activation_layers=3", "offload.activation_layers=6"}) {
      const Sets sent = With(kept, {layers});
      SameBits(fmt::format("{}: {}", model.name, layers), expected, OnGpu(model.model, sent, kIterations));
      const World world(model.model, sent, true, {.record = false});
      SameBits(fmt::format("{}: {}, launch by launch", model.name, layers), expected,
               world.TrainAll(kIterations));
    }
  }
}

// What is kept in bf16: sums of gradients over four microbatches (each sum is off by 2⁻⁹ of itself, at
// random, where a term is off by more); the weights; all of it.
const std::vector<Sets> kNarrowed = {
    {"precision.gradient_dtype=bf16"},
    {"precision.master_dtype=bf16"},
    {"precision.gradient_dtype=bf16", "precision.master_dtype=bf16", "optimizer.moment_dtype=bf16"}};

TEST_CASE("gpu model: gradients, weights and moments in bf16 follow fp32's") {
  for (const Model& model : Models()) {
    const Sets sets = With(model.sets, {"training.micro_batch=2"});
    const Curve wide = OnGpu(model.model, sets, kIterations);
    for (size_t n = 0; n < kNarrowed.size(); ++n) {
      const Curve narrow = OnGpu(model.model, With(sets, kNarrowed[n]), kIterations);
      CHECK(narrow.losses != wide.losses);
      WithinNoise(fmt::format("{}: narrowed {}", model.name, n), wide, narrow, n == 0 ? 1 : kWithoutMasters);
    }
  }
}

TEST_CASE(
    "gpu model: gradients, weights and moments in bf16: two runs, and a resumed one, give the same bits") {
  constexpr int kSaved = 3;
  for (size_t m : {0, 2}) {
    const Model& model = Models()[m];
    for (size_t n = 0; n < kNarrowed.size(); ++n) {
      const Sets sets = With(With(model.sets, {"training.micro_batch=2"}), kNarrowed[n]);
      const Curve undisturbed = OnGpu(model.model, sets, kIterations);
      {
        const World again(model.model, sets, true, {.record = false});
        SameBits(fmt::format("{}: narrowed {}, two runs", model.name, n), undisturbed,
                 again.TrainAll(kIterations));
      }
      const data::TempDir folder;
      Curve resumed;
      std::string saved;
      {
        const World before(model.model, sets, true);
        before.Train(0, kSaved, &resumed);
        saved = before.Save(folder / "root", kSaved);
      }
      const World after(model.model, sets, true);
      after.Load(saved);
      after.Train(kSaved, kIterations, &resumed);
      after.Finish(&resumed);
      SameBits(fmt::format("{}: narrowed {}, resumed after {}", model.name, n, kSaved), undisturbed, resumed);
    }
  }
}

TEST_CASE("gpu model: a resumed run gives the bits of the undisturbed one") {
  constexpr int kSaved = 3;
  for (const Model& model : Models()) {
    const data::TempDir folder;
    Curve resumed;
    std::string saved;
    {
      const World before(model.model, model.sets, true);
      before.Train(0, kSaved, &resumed);
      saved = before.Save(folder / "root", kSaved);
    }
    const World after(model.model, model.sets, true);
    after.Load(saved);
    after.Train(kSaved, kIterations, &resumed);
    after.Finish(&resumed);
    SameBits(fmt::format("{}: undisturbed, resumed after {}", model.name, kSaved), Base(model), resumed);
  }
}

TEST_CASE("gpu model: a checkpoint that is written beside training has the state of when it was begun") {
  constexpr int kSaved = 3;
  for (const Model& model : Models()) {
    const data::TempDir folder;
    Curve before;
    std::string plain;
    {
      const World world(model.model, model.sets, true);
      world.Train(0, kSaved, &before);
      plain = world.Save(folder / "plain", kSaved);
    }
    for (const bool record : {true, false}) {
      const World world(model.model, model.sets, true, {.record = record});
      Must(world.rank().snapshot().Reserve());
      Curve curve;
      world.Train(0, kSaved, &curve);
      Must(state::BeginSave(world.ranks()));
      world.Train(kSaved, kIterations, &curve);
      const std::string beside = world.WriteSaved(folder / fmt::format("beside-{}", record), kSaved);
      for (const char* file : {"rank_00000.h5", "index.h5"}) {
        CHECK_MESSAGE(data::ReadFile(std::filesystem::path(beside) / file) ==
                          data::ReadFile(std::filesystem::path(plain) / file),
                      fmt::format("{}: {}, {}", model.name, file, record ? "recorded" : "launch by launch"));
      }
      world.Finish(&curve);
      SameBits(fmt::format("{}: undisturbed, saved beside", model.name), Base(model), curve);
    }
  }
}

TEST_CASE("gpu model: a run that goes on from the host's memory gives the bits of the undisturbed one") {
  constexpr int kKept = 3;
  const std::string tag(32, 'a');
  for (const Model& model : Models()) {
    for (const bool record : {true, false}) {
      const int file = memfd_create("state", MFD_CLOEXEC);
      REQUIRE(file >= 0);
      Curve curve;
      {
        const World before(model.model, model.sets, true, {.record = record});
        Must(before.rank().memory_checkpoint().Open(file, tag, -1));
        for (int iteration = 0; iteration < kKept; ++iteration) {
          before.Train(iteration, iteration + 1, &curve);
          Must(before.rank().memory_checkpoint().Begin({iteration + 1, "note"}));
        }
        Curve lost;
        before.Train(kKept, kKept + 1, &lost);
      }
      const World after(model.model, model.sets, true, {.record = record});
      Must(after.rank().memory_checkpoint().Open(file, tag, kKept));
      Must(after.rank().memory_checkpoint().Restore());
      after.Train(kKept, kIterations, &curve);
      after.Finish(&curve);
      SameBits(fmt::format("{}: undisturbed, from memory", model.name), Base(model), curve);
      close(file);
    }
  }
}

}  // namespace engine::gpu_test
