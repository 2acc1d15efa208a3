// Weights of 16 bits and their fp32 masters, in memory and through checkpoints. Nothing is computed: the CPU
// has no kernels for these types.
#include "engine/state/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "engine/base/half.h"
#include "tests/state/memory_device.h"
#include "tests/state/world.h"

namespace engine::train::testing {
namespace {

struct NarrowWorld {
  // Three layers: the shards of ZeRO-1 then end inside of a parameter.
  explicit NarrowWorld(std::vector<std::string> sets) : device(MemoryDevice()) {
    sets.emplace_back("model.layers=3");
    recipe = MakeRecipe(kGptLike, sets);
    absl::StatusOr<plan::Plan> compiled = driver::CompileRecipe(recipe, {.profile = device.profile});
    Must(compiled.status());
    plan = *std::move(compiled);
    auto created = state::Ranks::Create(plan, device, 7);
    Must(created.status());
    ranks = *std::move(created);
  }
  void Initialize() const {
    Must(
        ranks->Run([&](executor::RankExecutor& rank) { return state::InitializeParameters(plan, 7, rank); }));
  }
  // Moments that differ from element to element and from each other; bf16 would lose their last bits.
  void FillMoments() const {
    for (const auto& rank : ranks->executors()) {
      for (const executor::OptimizerRange& range : rank->OptimizerState()) {
        REQUIRE(range.states.size() == 2);
        for (const auto& [data, dtype] : range.states) REQUIRE(dtype == DType::kF32);
        for (std::int64_t i = 0; i < range.end - range.begin; ++i) {
          const double at = 1e3 * range.parameter + static_cast<double>(range.begin + i);
          reinterpret_cast<float*>(range.states[0].data)[i] = static_cast<float>(std::sin(at));
          reinterpret_cast<float*>(range.states[1].data)[i] = static_cast<float>(1 + std::cos(at));
        }
      }
    }
  }
  std::string Save(const std::string& root) const {
    Must(state::SaveCheckpoint(plan, root, MetadataAfterTwo(plan, recipe.parallelism), *ranks));
    return checkpoint::IterationPath(root, 2);
  }
  bool masters() const { return recipe.precision.master_dtype == "fp32"; }
  void Load(const std::string& folder) const {
    const auto reader = checkpoint::Reader::Open(folder);
    Must(reader.status());
    Must(ranks->Run(
        [&](executor::RankExecutor& rank) { return state::LoadCheckpoint(plan, *reader, true, rank); }));
  }

  recipe::Recipe recipe;
  state::Device device;
  plan::Plan plan;
  std::unique_ptr<state::Ranks> ranks;
};

// The initial value of element i of a parameter of the GPT-like model, in fp32.
float Initial(const plan::PlanParameter& parameter, std::int64_t i) {
  if (i >= parameter.logical_shape.elements()) return 0.0F;  // padding: rows of the vocabulary
  if (parameter.initializer.kind == graph::Initializer::Kind::kOnes) return 1.0F;
  if (parameter.initializer.kind == graph::Initializer::Kind::kZeros) return 0.0F;
  return static_cast<float>(parameter.initializer.std *
                            PhiloxNormal(MakePhiloxKey(7, parameter.name), static_cast<std::uint64_t>(i)));
}

std::uint16_t Narrow(DType dtype, float value) {
  return dtype == DType::kBF16 ? BFloat16FromFloat(value) : HalfFromFloat(value);
}

// Of ranks that each have whole parameters: the parameters are the rounded values, all masters of all ranks
// together each of them in fp32, once.
void CheckWeights(const NarrowWorld& world, DType dtype) {
  std::set<std::pair<std::int32_t, std::int64_t>> covered;
  for (const auto& rank : world.ranks->executors()) {
    for (const executor::LocalTensor& tensor : rank->Parameters()) {
      const auto& parameter = world.plan.parameters[static_cast<size_t>(tensor.parameter)];
      REQUIRE(tensor.view.dtype == dtype);
      int wrong = 0;
      for (std::int64_t i = 0; i < tensor.view.shape.elements(); ++i)
        wrong += tensor.view.as<std::uint16_t>()[i] == Narrow(dtype, Initial(parameter, i)) ? 0 : 1;
      CHECK_MESSAGE(wrong == 0, parameter.name << ": " << wrong << " weights of rank " << rank->rank());
    }
    for (const executor::OptimizerRange& range : rank->OptimizerState()) {
      const auto& parameter = world.plan.parameters[static_cast<size_t>(range.parameter)];
      REQUIRE((range.master != nullptr) == (world.masters() || !parameter.weight_decay));
      if (range.master == nullptr) continue;
      int wrong = 0;
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        const float master = reinterpret_cast<const float*>(range.master)[i - range.begin];
        wrong += std::bit_cast<std::uint32_t>(master) == std::bit_cast<std::uint32_t>(Initial(parameter, i))
                     ? 0
                     : 1;
        wrong += covered.insert({range.parameter, i}).second ? 0 : 1;
      }
      CHECK_MESSAGE(wrong == 0, parameter.name << ": " << wrong << " masters of rank " << rank->rank());
    }
  }
  std::int64_t elements = 0;
  for (const executor::LocalTensor& tensor : world.ranks->executors()[0]->Parameters()) {
    const bool decayed = world.plan.parameters[static_cast<size_t>(tensor.parameter)].weight_decay;
    if (world.masters() || !decayed) elements += tensor.view.shape.elements();
  }
  CHECK(static_cast<std::int64_t>(covered.size()) == elements);
}

const std::vector<std::string> kSharded = {"precision.compute=bf16", "parallelism.dp=2",
                                           "parallelism.zero_stage=1", "training.micro_batch=4"};

}  // namespace

TEST_CASE("weights: numbers go up rounded to nearest even and come down as they lie") {
  MemoryBackend backend;
  const auto arena = backend.AllocateArena(4096);
  Must(arena.status());
  const std::vector<float> host = {1.0F, -0.1F, 1.00390625F, 1.01171875F, 3e-5F, 0.0F, 65504.0F};
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    CAPTURE(Name(dtype));
    std::memset(*arena, 0xFF, 4096);
    Must(state::UploadFloats(host, *arena + 64, dtype, backend));
    const auto bytes = static_cast<std::int64_t>(host.size()) * SizeOf(dtype);
    CHECK(*(*arena + 63) == std::byte{0xFF});
    CHECK(*(*arena + 64 + bytes) == std::byte{0xFF});
    std::vector<float> back(host.size(), 99.0F);
    Must(state::DownloadFloats(*arena + 64, dtype, backend, back));
    for (size_t i = 0; i < host.size(); ++i) {
      const float expected = dtype == DType::kF32    ? host[i]
                             : dtype == DType::kBF16 ? FloatFromBFloat16(BFloat16FromFloat(host[i]))
                                                     : FloatFromHalf(HalfFromFloat(host[i]));
      CHECK(back[i] == expected);
    }
    if (dtype == DType::kBF16) CHECK(back[2] == 1.0F);  // halfway between 1 and 1 + 2⁻⁷
    if (dtype == DType::kBF16) CHECK(back[3] == 1.015625F);
  }
}

TEST_CASE("weights: parameters are rounded, masters are not") {
  for (const char* compute : {"bf16", "fp16"}) {
    const NarrowWorld world({std::string("precision.compute=") + compute});
    world.Initialize();
    CheckWeights(world, std::string(compute) == "bf16" ? DType::kBF16 : DType::kF16);
  }
}

TEST_CASE("weights: with ZeRO-1 each rank has its part of the masters and all parameters") {
  const NarrowWorld world(kSharded);
  world.Initialize();
  CheckWeights(world, DType::kBF16);
  bool cut = false;
  for (const auto& rank : world.ranks->executors()) {
    CHECK(!rank->OptimizerState().empty());
    for (const executor::OptimizerRange& range : rank->OptimizerState()) cut = cut || range.begin > 0;
  }
  CHECK(cut);
}

// Longer than what is made at once, and the ranks' masters end elsewhere.
TEST_CASE("weights: a parameter of several stretches") {
  std::vector<std::string> sets = kSharded;
  sets.emplace_back("model.vocab=600001");
  const NarrowWorld world(sets);
  world.Initialize();
  const auto& parameters = world.plan.parameters;
  const auto longest = std::max_element(
      parameters.begin(), parameters.end(),
      [](const auto& a, const auto& b) { return a.logical_shape.elements() < b.logical_shape.elements(); });
  const auto index = static_cast<std::int32_t>(longest - parameters.begin());
  REQUIRE(longest->logical_shape.elements() > state::ParameterStretch::kMostElements);
  std::vector<float> expected(static_cast<size_t>(longest->logical_shape.elements()));
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = Initial(*longest, static_cast<std::int64_t>(i));
  const auto at = [&](std::int64_t i) {
    return i < static_cast<std::int64_t>(expected.size()) ? expected[static_cast<size_t>(i)] : 0.0F;
  };
  std::int64_t masters = 0;
  std::int64_t wrong = 0;
  for (const auto& rank : world.ranks->executors()) {
    for (const executor::LocalTensor& tensor : rank->Parameters()) {
      if (tensor.parameter != index) continue;
      for (std::int64_t i = 0; i < tensor.view.shape.elements(); ++i)
        wrong += tensor.view.as<std::uint16_t>()[i] == BFloat16FromFloat(at(i)) ? 0 : 1;
    }
    for (const executor::OptimizerRange& range : rank->OptimizerState()) {
      if (range.parameter != index) continue;
      for (std::int64_t i = range.begin; i < range.end; ++i)
        wrong += reinterpret_cast<const float*>(range.master)[i - range.begin] == at(i) ? 0 : 1;
      masters += range.end - range.begin;
    }
  }
  CHECK(wrong == 0);
  CHECK(masters >= static_cast<std::int64_t>(expected.size()));
}

TEST_CASE("weights: where parameters are fp32 there are no masters") {
  const NarrowWorld world({"parallelism.dp=2", "parallelism.zero_stage=1", "training.micro_batch=4"});
  world.Initialize();
  for (const auto& rank : world.ranks->executors()) {
    for (const plan::Bucket& bucket : rank->stage().buckets) CHECK(!state::HasMaster(bucket));
    for (const executor::OptimizerRange& range : rank->OptimizerState()) CHECK(range.master == nullptr);
  }
}

// One parameter alone, cut between two ranks.
TEST_CASE(
    "weights: state::UploadParameter writes one parameter and its part of the masters, and nothing else") {
  const NarrowWorld world(kSharded);
  world.Initialize();
  for (const auto& rank : world.ranks->executors()) {
    const std::vector<executor::OptimizerRange> ranges = rank->OptimizerState();
    const std::vector<executor::LocalTensor> tensors = rank->Parameters();
    for (const executor::LocalTensor& tensor : tensors) {
      const auto& parameter = world.plan.parameters[static_cast<size_t>(tensor.parameter)];
      std::vector<float> host(static_cast<size_t>(tensor.view.shape.elements()));
      for (size_t i = 0; i < host.size(); ++i)
        host[i] = 2 * Initial(parameter, static_cast<std::int64_t>(i)) + 3;
      Must(state::UploadParameter(host, tensor, ranges, rank->backend()));
      int wrong = 0;
      for (const executor::OptimizerRange& range : ranges) {
        for (std::int64_t i = range.begin; i < range.end; ++i) {
          const float master = reinterpret_cast<const float*>(range.master)[i - range.begin];
          const auto& of = world.plan.parameters[static_cast<size_t>(range.parameter)];
          const float expected =
              range.parameter == tensor.parameter ? host[static_cast<size_t>(i)] : Initial(of, i);
          wrong += master == expected ? 0 : 1;
        }
      }
      CHECK_MESSAGE(wrong == 0, parameter.name << ": " << wrong << " masters");
      for (size_t i = 0; i < host.size(); ++i) host[i] = Initial(parameter, static_cast<std::int64_t>(i));
      Must(state::UploadParameter(host, tensor, ranges, rank->backend()));
    }
  }
  CheckWeights(world, DType::kBF16);
}

// What is saved is the masters; what is loaded is masters and, rounded, parameters.
TEST_CASE("weights: checkpoints of bf16 plans keep masters and moments bit for bit, in any layout") {
  const std::vector<std::vector<std::string>> layouts = {
      {"precision.compute=bf16"},
      kSharded,
      {"precision.compute=bf16", "parallelism.tp=2", "parallelism.dp=2", "parallelism.zero_stage=1",
       "training.micro_batch=4"},
      {"precision.compute=bf16", "parallelism.pp=2", "training.micro_batch=4"},
      {"precision.compute=fp32"},  // masters become the parameters
  };
  const TempDir folder;
  const NarrowWorld first(kSharded);
  first.Initialize();
  first.FillMoments();
  const std::string saved = first.Save(folder / "first");
  const auto tensors = Tensors(saved);
  for (const plan::PlanParameter& parameter : first.plan.parameters) {
    const std::vector<float>& values = tensors.at(parameter.name);
    REQUIRE(static_cast<std::int64_t>(values.size()) == parameter.logical_shape.elements());
    int wrong = 0;
    for (size_t i = 0; i < values.size(); ++i)
      wrong += values[i] == Initial(parameter, static_cast<std::int64_t>(i)) ? 0 : 1;
    CHECK_MESSAGE(wrong == 0, parameter.name);
    CHECK(tensors.at("adam.m/" + parameter.name) != tensors.at("adam.v/" + parameter.name));
  }
  for (size_t to = 0; to < layouts.size(); ++to) {
    INFO("layout " << to);
    const NarrowWorld world(layouts[to]);
    world.Load(saved);
    CHECK((Tensors(world.Save(folder / ("again" + std::to_string(to)))) == tensors));
    if (to < 2) CheckWeights(world, DType::kBF16);
  }
}

// What is saved is the parameters, in fp32; into a plan without masters they come rounded, once.
TEST_CASE("weights: checkpoints of plans without masters") {
  const TempDir folder;
  std::vector<std::string> bare = kSharded;
  bare.emplace_back("precision.master_dtype=bf16");
  const NarrowWorld wide(kSharded);
  wide.Initialize();
  wide.FillMoments();
  const std::string with_masters = wide.Save(folder / "wide");
  const NarrowWorld narrow(bare);
  narrow.Load(with_masters);
  CheckWeights(narrow, DType::kBF16);
  const std::string saved = narrow.Save(folder / "narrow");
  const auto tensors = Tensors(saved);
  for (const plan::PlanParameter& parameter : narrow.plan.parameters) {
    const std::vector<float>& values = tensors.at(parameter.name);
    REQUIRE(static_cast<std::int64_t>(values.size()) == parameter.logical_shape.elements());
    int wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const float initial = Initial(parameter, static_cast<std::int64_t>(i));
      const float expected = parameter.weight_decay ? FloatFromBFloat16(BFloat16FromFloat(initial)) : initial;
      wrong += values[i] == expected ? 0 : 1;
    }
    CHECK_MESSAGE(wrong == 0, parameter.name << ": " << wrong << " of " << values.size());
  }
  // Resumed with or without masters: the same numbers.
  for (const std::vector<std::string>& sets : {bare, kSharded, {"precision.compute=fp32"}}) {
    const NarrowWorld again(sets);
    again.Load(saved);
    CHECK((Tensors(again.Save(folder / ("again" + std::to_string(sets.size())))) == tensors));
  }
}

}  // namespace engine::train::testing
