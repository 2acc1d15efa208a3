// Small models on the GPU: against the CPU executor in fp32, and against themselves in bf16.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>

#include "engine/checkpoint/layout.h"
#include "engine/cli/cuda_device.h"
#include "tests/data/temp_dir.h"
#include "tests/train/testing.h"

namespace engine::gpu_test {
namespace {

using train::testing::kGptLike;
using train::testing::kLlamaLike;
using Sets = std::vector<std::string>;

void Must(const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), Message(status)); }

// What a run gives.
struct Curve {
  std::vector<double> losses;  // sums over the tokens of the global batch
  std::vector<double> norms;
  std::vector<std::vector<float>> weights;  // by parameter, at the end
  double evaluation = 0;
};

// Hands everything on, and learns what is allocated.
class CountingBackend final : public backend::Backend {
 public:
  CountingBackend(std::unique_ptr<backend::Backend> backend, std::vector<std::int64_t>* arenas)
      : backend_(std::move(backend)), arenas_(*arenas) {}

  plan::DeviceProfile Profile() const override { return backend_->Profile(); }
  absl::StatusOr<std::byte*> AllocateArena(std::int64_t bytes) override {
    arenas_.push_back(bytes);
    return backend_->AllocateArena(bytes);
  }
  absl::Status ClearArena() override { return backend_->ClearArena(); }
  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::LaunchArgs args) override {
    return backend_->Prepare(std::move(args));
  }
  absl::Status Upload(std::byte* arena, const void* host, std::int64_t bytes) override {
    return backend_->Upload(arena, host, bytes);
  }
  absl::Status Download(void* host, const std::byte* arena, std::int64_t bytes) override {
    return backend_->Download(host, arena, bytes);
  }
  absl::Status Synchronize() override { return backend_->Synchronize(); }
  bool asynchronous() const override { return backend_->asynchronous(); }
  absl::Status Write(std::byte* arena, const void* host, std::int64_t bytes) override {
    return backend_->Write(arena, host, bytes);
  }
  absl::Status Copy(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    return backend_->Copy(to, from, bytes);
  }
  absl::Status Stage(std::byte* arena, const void* host, std::int64_t bytes) override {
    return backend_->Stage(arena, host, bytes);
  }
  absl::Status TakeStaged(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    return backend_->TakeStaged(to, from, bytes);
  }
  absl::StatusOr<std::int64_t> Read(const std::byte* arena, std::int64_t bytes) override {
    return backend_->Read(arena, bytes);
  }
  absl::Status WaitRead(std::int64_t ticket, void* host) override { return backend_->WaitRead(ticket, host); }
  absl::StatusOr<std::unique_ptr<backend::Launch>> Record(
      const std::function<absl::Status()>& body) override {
    return backend_->Record(body);
  }
  absl::StatusOr<bool> AllFinite(const backend::TensorView& view) override {
    return backend_->AllFinite(view);
  }
  absl::StatusOr<std::int64_t> Mark() override { return backend_->Mark(); }
  absl::StatusOr<double> ElapsedMs(std::int64_t from, std::int64_t to) override {
    return backend_->ElapsedMs(from, to);
  }

 private:
  std::unique_ptr<backend::Backend> backend_;
  std::vector<std::int64_t>& arenas_;
};

// One rank of a model, on the GPU or on the CPU.
class World {
 public:
  World(const char* model, const Sets& sets, bool gpu, const executor::ExecutorOptions& options = {})
      : recipe_(train::testing::MakeRecipe(model, sets)) {
    if (gpu) {
      absl::StatusOr<train::Device> device = cli::MakeCudaDevice(recipe_, {});
      Must(device.status());
      device_ = *std::move(device);
      device_.make_backend = [this, make = device_.make_backend](std::int64_t rank, std::int64_t world) {
        return std::make_unique<CountingBackend>(make(rank, world), &arenas_);
      };
    } else {
      device_ = train::testing::CpuDevice(8);
    }
    absl::StatusOr<plan::Plan> compiled = train::CompileRecipe(recipe_, {.profile = device_.profile});
    Must(compiled.status());
    plan_ = *std::move(compiled);
    auto created = train::Ranks::Create(plan_, device_, seed(), options);
    Must(created.status());
    ranks_ = *std::move(created);
    if (gpu) {  // the arena is what the plan says, to the byte
      CHECK(arenas_.size() == 1);
      CHECK(arenas_[0] == plan_.stages[0].arena_bytes);
      CHECK(arenas_[0] == plan_.stages[0].memory.total());
    }
    Must(train::InitializeParameters(plan_, seed(), rank()));
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  executor::RankExecutor& rank() const { return *ranks_->executors()[0]; }
  const plan::Plan& plan() const { return plan_; }

  void Train(int begin, int end, Curve* curve) const {
    for (int i = begin; i < end; ++i) {
      const auto result = rank().Train(i, i + 1, recipe_.optimizer.learning_rate,
                                       train::testing::CounterFeed(plan_, i * plan_.global_batch));
      Must(result.status());
      curve->losses.push_back(result->loss_sum);
      curve->norms.push_back(result->grad_norm);
    }
  }
  void Finish(Curve* curve) const {
    curve->weights.resize(plan_.parameters.size());
    for (size_t p = 0; p < plan_.parameters.size(); ++p)
      Must(train::GatherParameter(plan_, *ranks_, static_cast<std::int32_t>(p), &curve->weights[p]));
    for (int i = 0; i < 3; ++i) {  // run, recorded, replayed
      const auto result = rank().Evaluate(train::testing::CounterFeed(plan_, 1000));
      Must(result.status());
      if (i > 0) CHECK(result->loss_sum == curve->evaluation);
      curve->evaluation = result->loss_sum;
    }
  }
  Curve TrainAll(int iterations) const {
    Curve curve;
    Train(0, iterations, &curve);
    Finish(&curve);
    return curve;
  }

  // Every weight of a CPU rank one ulp up or down, in turns.
  void Nudge() const {
    std::int64_t count = 0;
    for (const executor::LocalTensor& tensor : rank().Parameters()) {
      for (std::int64_t i = 0; i < tensor.view.shape.elements(); ++i) {
        float& weight = tensor.view.as<float>()[i];
        if (weight != 0.0F) weight = std::nextafter(weight, ++count % 2 != 0 ? INFINITY : -INFINITY);
      }
    }
  }

  // The folder of a checkpoint after `iterations`.
  std::string Save(const std::string& root, int iterations) const {
    Must(train::SaveCheckpoint(plan_, root,
                               {.iteration = iterations,
                                .consumed_samples = iterations * plan_.global_batch,
                                .seed = static_cast<std::int64_t>(seed()),
                                .adam_step = iterations,
                                .plan_hash = plan_.hash,
                                .recipe_toml = "",
                                .engine_version = "test",
                                .mesh = {{"dp", 1}, {"tp", 1}, {"pp", 1}, {"cp", 1}, {"ep", 1}}},
                               *ranks_));
    return checkpoint::IterationPath(root, iterations);
  }
  void Load(const std::string& folder) const {
    const auto reader = checkpoint::Reader::Open(folder);
    Must(reader.status());
    Must(train::LoadCheckpoint(plan_, *reader, true, rank()));
  }

 private:
  std::uint64_t seed() const { return static_cast<std::uint64_t>(recipe_.training.seed); }

  recipe::Recipe recipe_;
  std::vector<std::int64_t> arenas_;
  train::Device device_;
  plan::Plan plan_;
  std::unique_ptr<train::Ranks> ranks_;
};

Curve OnGpu(const char* model, const Sets& sets, int iterations,
            const executor::ExecutorOptions& options = {}) {
  return World(model, sets, true, options).TrainAll(iterations);
}

Sets With(Sets sets, const Sets& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

void SameBits(const std::string& what, const World& world, const Curve& a, const Curve& b) {
  REQUIRE(a.losses.size() == b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i) {
    CHECK_MESSAGE(a.losses[i] == b.losses[i], fmt::format("{}: loss of iteration {} is {:.17g}, then {:.17g}",
                                                          what, i, a.losses[i], b.losses[i]));
    CHECK_MESSAGE(a.norms[i] == b.norms[i],
                  fmt::format("{}: gradient norm of iteration {} is {:.17g}, then {:.17g}", what, i,
                              a.norms[i], b.norms[i]));
  }
  CHECK_MESSAGE(a.evaluation == b.evaluation,
                fmt::format("{}: evaluation {:.17g}, then {:.17g}", what, a.evaluation, b.evaluation));
  for (size_t p = 0; p < a.weights.size(); ++p) {
    size_t differ = 0;
    for (size_t i = 0; i < a.weights[p].size(); ++i) differ += a.weights[p][i] != b.weights[p][i] ? 1 : 0;
    CHECK_MESSAGE(differ == 0, fmt::format("{}: {} of {} weights of {} differ", what, differ,
                                           a.weights[p].size(), world.plan().parameters[p].name));
  }
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
void CheckAgainstCpu(const char* name, const char* model) {
  constexpr int kIterations = 20;
  constexpr double kFactor = 4 * 110;
  constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
  const Sets sets = {"precision.compute=fp32"};
  const World cpu(model, sets, false);
  const Curve expected = cpu.TrainAll(kIterations);
  const World nudged(model, sets, false);
  nudged.Nudge();
  const Curve off = nudged.TrainAll(kIterations);
  const Curve actual = OnGpu(model, sets, kIterations);
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

struct Model {
  const char* name;
  const char* model;
  Sets sets;
};
const std::vector<Model>& Models() {
  static const std::vector<Model> models = {
      {"gpt", kGptLike, kGptSets},
      {"gpt without dropout", kGptLike,
       With(kGptSets, {"model.dropout.embedding=0", "model.dropout.hidden=0", "model.dropout.attention=0"})},
      {"llama", kLlamaLike, kLlamaSets},
      {"llama without groups", kLlamaLike, With(kLlamaSets, kPackedSets)}};
  return models;
}

// Two ways to compute the same model that round to bf16 at different places. Logits of at most 4 are off by
// 2⁻⁸ of themselves, which puts a token's loss off by up to 2·4·2⁻⁸ = 2⁻⁵; over 1024 tokens with random signs
// that is 2⁻¹⁰ of the mean loss; activations before have been through some 16 roundings of that size, √16:
// 2⁻⁸; a factor 4 for what eight iterations' weights differ: 2⁻⁶ of a mean loss that is near 5.7 and falls
// slowly: 2⁻⁸ relative. The gradient norm is a sum over all parameters of terms with a few 2⁻⁸ each: 2⁻⁵
// relative.
void WithinNoise(const std::string& what, const Curve& a, const Curve& b) {
  REQUIRE(a.losses.size() == b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i) {
    CheckClose(fmt::format("{}: loss of iteration {}", what, i), a.losses[i], b.losses[i],
               0x1p-8 * a.losses[i]);
    CheckClose(fmt::format("{}: gradient norm of iteration {}", what, i), a.norms[i], b.norms[i],
               0x1p-5 * a.norms[i]);
  }
  CheckClose(what + ": evaluation", a.evaluation, b.evaluation, 0x1p-8 * a.evaluation);
}

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
    SameBits(fmt::format("{}: two runs", model.name), world, Base(model), world.TrainAll(kIterations));
  }
}

TEST_CASE("gpu model: recorded and launch by launch give the same bits") {
  for (const Model& model : Models()) {
    const World world(model.model, model.sets, true, {.record = false});
    SameBits(fmt::format("{}: recorded, not recorded", model.name), world, Base(model),
             world.TrainAll(kIterations));
  }
  const Model& model = Models()[0];
  const Sets sets = With(model.sets, {"training.micro_batch=2"});
  const World world(model.model, sets, true, {.record = false});
  SameBits(fmt::format("{}, four microbatches: recorded, not recorded", model.name), world,
           OnGpu(model.model, sets, kIterations), world.TrainAll(kIterations));
}

// Whatever is checked after each launch changes nothing; all numbers are finite.
TEST_CASE("gpu model: checked launch by launch gives the same bits") {
  for (const Model& model : Models()) {
    const World world(model.model, model.sets, true, {.check = true});
    SameBits(fmt::format("{}: unchecked, checked", model.name), world, Base(model),
             world.TrainAll(kIterations));
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
    SameBits(fmt::format("{}: recompute full, two runs", model.name), world,
             OnGpu(model.model, sets, kIterations), world.TrainAll(kIterations));
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
    SameBits(fmt::format("{}: undisturbed, resumed after {}", model.name, kSaved), after, Base(model),
             resumed);
  }
}

}  // namespace engine::gpu_test
