// Small models for the tests that run whole iterations: one rank on the GPU or on the CPU, what a run of it
// gives, and whether two runs gave the same bits.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/base/half.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/cli/cuda_device.h"
#include "tests/data/temp_dir.h"
#include "tests/train/testing.h"

namespace engine::gpu_test {

using train::testing::kGptLike;
using train::testing::kLlamaLike;
using Sets = std::vector<std::string>;

inline void Must(const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), Message(status)); }

// What a run gives.
struct Curve {
  std::vector<double> losses;  // sums over the tokens of the global batch
  std::vector<double> norms;
  std::vector<std::vector<float>> weights;  // by parameter, at the end
  std::vector<std::string> names;           // of the parameters
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
  absl::StatusOr<std::byte*> AllocateHost(std::int64_t bytes) override {
    return backend_->AllocateHost(bytes);
  }
  std::unique_ptr<backend::Launch> PrepareHostCopy(const backend::HostCopyArgs& args) override {
    return backend_->PrepareHostCopy(args);
  }
  absl::StatusOr<std::byte*> AllocateSnapshot(std::int64_t bytes) override {
    return backend_->AllocateSnapshot(bytes);
  }
  absl::Status PinSnapshot(std::byte* memory, std::int64_t bytes) override {
    return backend_->PinSnapshot(memory, bytes);
  }
  absl::Status BeginSnapshot(std::span<const backend::SnapshotCopy> at_once,
                             std::span<const backend::SnapshotCopy> beside) override {
    return backend_->BeginSnapshot(at_once, beside);
  }
  absl::Status AwaitSnapshot() override { return backend_->AwaitSnapshot(); }
  absl::Status FinishSnapshot() override { return backend_->FinishSnapshot(); }
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
  absl::StatusOr<std::int64_t> Signal(std::int32_t stream) override { return backend_->Signal(stream); }
  absl::Status Await(std::int32_t stream, std::int64_t ticket) override {
    return backend_->Await(stream, ticket);
  }
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
  absl::Status PrepareHashes(std::int64_t places) override { return backend_->PrepareHashes(places); }
  absl::Status Hash(std::span<const std::byte> bytes, std::int32_t stream, std::int64_t place) override {
    return backend_->Hash(bytes, stream, place);
  }
  absl::StatusOr<std::int64_t> ReadHashes(std::int64_t count) override { return backend_->ReadHashes(count); }
  absl::Status NoteTime(backend::Stamp stamp) override { return backend_->NoteTime(stamp); }
  absl::StatusOr<std::int64_t> ReadTimes() override { return backend_->ReadTimes(); }
  absl::StatusOr<std::unique_ptr<backend::Launch>> Record(
      const std::function<absl::Status()>& body) override {
    return backend_->Record(body);
  }
  absl::StatusOr<bool> AllFinite(const backend::TensorView& view) override {
    return backend_->AllFinite(view);
  }
  absl::StatusOr<std::int64_t> Mark(std::int32_t stream) override { return backend_->Mark(stream); }
  absl::StatusOr<double> ElapsedMs(std::int64_t from, std::int64_t to) override {
    return backend_->ElapsedMs(from, to);
  }

 private:
  std::unique_ptr<backend::Backend> backend_;
  std::vector<std::int64_t>& arenas_;
};

struct Model {
  const char* name;
  const char* model;
  Sets sets;
};

// One rank of a model, on the GPU or on the CPU.
class World {
 public:
  World(const char* model, const Sets& sets, bool gpu = true, const executor::ExecutorOptions& options = {})
      : World(train::testing::MakeRecipe(model, sets), gpu, options) {}
  World(recipe::Recipe recipe, bool gpu, const executor::ExecutorOptions& options = {})
      : recipe_(std::move(recipe)) {
    if (gpu) {
      absl::StatusOr<state::Device> device = cli::MakeCudaDevice(recipe_, {});
      Must(device.status());
      device_ = *std::move(device);
      device_.make_backend = [this, make = device_.make_backend](std::int64_t rank, std::int64_t world) {
        return std::make_unique<CountingBackend>(make(rank, world), &arenas_);
      };
    } else {
      device_ = train::testing::CpuDevice(8);
    }
    absl::StatusOr<plan::Plan> compiled = driver::CompileRecipe(recipe_, {.profile = device_.profile});
    Must(compiled.status());
    plan_ = *std::move(compiled);
    auto created = state::Ranks::Create(plan_, device_, seed(), options);
    Must(created.status());
    ranks_ = *std::move(created);
    if (gpu) {  // the arena is what the plan says, to the byte
      CHECK(arenas_.size() == 1);
      CHECK(arenas_[0] == plan_.stages[0].arena_bytes);
      CHECK(arenas_[0] == plan_.stages[0].memory.total());
    }
    Must(state::InitializeParameters(plan_, seed(), rank()));
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  executor::RankExecutor& rank() const { return *ranks_->executors()[0]; }
  const plan::Plan& plan() const { return plan_; }

  // Iteration `iteration` on the samples of batch `batch`. Steps are the device's own count.
  absl::StatusOr<executor::IterationResult> Iterate(int iteration, int batch) const {
    RETURN_IF_ERROR(rank().Launch(iteration, recipe_.optimizer.learning_rate,
                                  train::testing::CounterFeed(plan_, batch * plan_.global_batch)));
    return rank().Wait();
  }
  void Train(int begin, int end, Curve* curve) const {
    for (int i = begin; i < end; ++i) {
      const auto result = rank().Train(i, i + 1, recipe_.optimizer.learning_rate,
                                       train::testing::CounterFeed(plan_, i * plan_.global_batch));
      Must(result.status());
      curve->losses.push_back(result->sums[0]);
      curve->norms.push_back(result->grad_norm);
    }
  }
  std::vector<std::vector<float>> Weights() const {
    std::vector<std::vector<float>> weights(plan_.parameters.size());
    for (size_t p = 0; p < weights.size(); ++p)
      Must(state::GatherParameter(plan_, *ranks_, static_cast<std::int32_t>(p), &weights[p]));
    return weights;
  }
  // The fp32 masters and moments of this rank.
  std::vector<std::vector<float>> OptimizerState() const {
    std::vector<std::vector<float>> state;
    for (const executor::OptimizerRange& range : rank().OptimizerState()) {
      std::vector<const std::byte*> buffers = {range.master};
      for (const auto& [data, dtype] : range.states) {
        REQUIRE(dtype == DType::kF32);
        buffers.push_back(data);
      }
      for (const std::byte* buffer : buffers) {
        std::vector<float>& host = state.emplace_back(static_cast<size_t>(range.end - range.begin));
        Must(rank().backend().Download(host.data(), buffer,
                                       static_cast<std::int64_t>(host.size() * sizeof(float))));
      }
    }
    return state;
  }
  // Element 5 of a parameter becomes NaN.
  void Poison(const std::string& name) const {
    for (const executor::LocalTensor& tensor : rank().Parameters()) {
      if (plan_.parameters[static_cast<size_t>(tensor.parameter)].name != name) continue;
      const float nan = std::numeric_limits<float>::quiet_NaN();
      const std::uint16_t bits =
          tensor.view.dtype == DType::kF16 ? HalfFromFloat(nan) : BFloat16FromFloat(nan);
      Must(rank().backend().Upload(tensor.view.as<std::byte>() + 5 * sizeof(bits), &bits, sizeof(bits)));
      return;
    }
    FAIL("no parameter " << name);
  }
  void Finish(Curve* curve) const {
    curve->weights = Weights();
    for (const plan::PlanParameter& parameter : plan_.parameters) curve->names.push_back(parameter.name);
    for (int i = 0; i < 3; ++i) {  // run, recorded, replayed
      const auto result = rank().Evaluate(train::testing::CounterFeed(plan_, 1000));
      Must(result.status());
      if (i > 0) CHECK(result->sums[0] == curve->evaluation);
      curve->evaluation = result->sums[0];
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

  checkpoint::Metadata MetadataAfter(int iterations) const {
    return {.iteration = iterations,
            .consumed_samples = iterations * plan_.global_batch,
            .seed = static_cast<std::int64_t>(seed()),
            .optimizer_steps = iterations,
            .plan_hash = plan_.hash,
            .recipe_toml = "",
            .engine_version = "test",
            .mesh = {{"dp", 1}, {"tp", 1}, {"pp", 1}, {"cp", 1}, {"ep", 1}}};
  }
  // The folder of a checkpoint after `iterations`.
  std::string Save(const std::string& root, int iterations) const {
    Must(state::SaveCheckpoint(plan_, root, MetadataAfter(iterations), *ranks_));
    return checkpoint::IterationPath(root, iterations);
  }
  // The same of the state that BeginSave has copied.
  std::string WriteSaved(const std::string& root, int iterations) const {
    const absl::StatusOr<state::Saved> saved =
        state::WriteSaved(plan_, root, MetadataAfter(iterations), "key", *ranks_, nullptr);
    Must(saved.status());
    Must(saved->failure);
    return checkpoint::IterationPath(root, iterations);
  }
  state::Ranks& ranks() const { return *ranks_; }
  void Load(const std::string& folder) const {
    const auto reader = checkpoint::Reader::Open(folder);
    Must(reader.status());
    Must(state::LoadCheckpoint(plan_, *reader, true, rank()));
  }

 private:
  std::uint64_t seed() const { return static_cast<std::uint64_t>(recipe_.training.seed); }

  recipe::Recipe recipe_;
  std::vector<std::int64_t> arenas_;
  state::Device device_;
  plan::Plan plan_;
  std::unique_ptr<state::Ranks> ranks_;
};

inline Sets With(Sets sets, const Sets& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

inline void SameBits(const std::string& what, const Curve& a, const Curve& b) {
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
                                           a.weights[p].size(), a.names[p]));
  }
}

}  // namespace engine::gpu_test
