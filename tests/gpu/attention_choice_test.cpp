// The choice of attention's kernels by timing, and `engine doctor --attention`.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/backend/cuda/launch/attention_choice.h"
#include "engine/backend/cuda/launch/cuda_backend.h"
#include "engine/backend/cuda/profile/choice_file.h"
#include "engine/base/half.h"
#include "engine/base/philox.h"
#include "engine/ops/ops.h"
#include "engine/plan/control.h"
#include "tests/cli/run_binary.h"
#include "tests/data/temp_dir.h"
#include "tests/gpu/gpu.h"

namespace engine::gpu_test {
namespace {

using backend::TensorView;
using backend::cuda::CudaBackend;

bool HasOwnKernels() {
  if (Gpu().device().properties().major == 9) return true;
  MESSAGE("not a GPU of compute capability 9.0: it has no kernels of our own");
  return false;
}

// An attention's forward pass, or gradient, on numbers of its own, by a backend with this file of choices. `kernel` asks for
// kernels, "" for none. The bits of its first output.
std::vector<std::uint16_t> BitsOf(const std::string& choices, const std::string& kernel, bool backward) {
  // So many that cuDNN's gradient has room for a sample at a time in what our own works in.
  constexpr std::int64_t kBatch = 8;
  constexpr std::int64_t kLength = 512;
  constexpr std::int64_t kHeads = 8;
  constexpr std::int64_t kHead = 64;
  backend::cuda::DeviceOptions options;
  options.choices = choices;
  auto opened = CudaBackend::Create(options);
  REQUIRE_MESSAGE(opened.ok(), Message(opened.status()));
  CudaBackend& gpu = **opened;
  const Shape of_q = {kBatch, kLength, kHeads, kHead};
  const Shape of_rows = {kBatch, kLength, kHeads};
  const graph::OpDef& op = backward ? ops::kAttentionGrad : ops::kAttention;
  std::vector<graph::TensorType> inputs = {
      {of_q, DType::kBF16}, {of_q, DType::kBF16}, {of_q, DType::kBF16}, {{kBatch, kLength}, DType::kI32}};
  if (backward) {
    inputs.push_back({of_q, DType::kBF16});
    inputs.push_back({of_rows, DType::kF32});
    inputs.push_back({of_q, DType::kBF16});
  }
  plan::Kernel described{.name = std::string(op.name), .op = &op};
  described.attributes = {{"scale", 0.125}, {"window", std::int64_t{0}}, {"dropout", 0.0}};
  if (!kernel.empty()) described.attributes.Set("kernel", kernel);
  const std::vector<graph::TensorType> outputs = *op.infer(inputs, described.attributes);
  const std::int64_t scratch = gpu.Profile().scratch_bytes(op.name, inputs, outputs, described.attributes);
  plan::Instruction instruction;
  instruction.name = "attention";
  instruction.what = std::move(described);

  constexpr std::int64_t kArenaBytes = std::int64_t{1} << 28;
  auto arena = gpu.AllocateArena(kArenaBytes);
  REQUIRE(arena.ok());
  std::int64_t used = 256;  // the control block
  const auto view = [&](const graph::TensorType& type) {
    const std::int64_t at = used;
    used += (type.shape.elements() * SizeOf(type.dtype) + 255) / 256 * 256;
    return TensorView{*arena + at, type.dtype, type.shape, Extent::Whole(type.shape), type.shape};
  };
  backend::LaunchArgs args;
  args.instruction = &instruction;
  for (const graph::TensorType& type : inputs) args.inputs.push_back(view(type));
  for (const graph::TensorType& type : outputs) args.outputs.push_back(view(type));
  args.scratch = {*arena + used, static_cast<std::size_t>(scratch)};
  REQUIRE(used + scratch <= kArenaBytes);
  auto launch = gpu.Prepare(args);
  REQUIRE_MESSAGE(launch.ok(), Message(launch.status()));
  REQUIRE(gpu.ClearArena().ok());

  const PhiloxKey key = MakePhiloxKey(3, "choice");
  std::uint64_t drawn = 0;
  for (const TensorView& input : args.inputs) {
    const std::int64_t elements = input.shape.elements();
    std::vector<std::uint16_t> halves;
    std::vector<std::int32_t> positions;
    for (std::int64_t i = 0; i < elements; ++i) {
      halves.push_back(
          BFloat16FromFloat(static_cast<float>(2 * UniformFromWord(PhiloxWord(key, drawn++)) - 1)));
      positions.push_back(static_cast<std::int32_t>(i % kLength));
    }
    const std::vector<float> lse(static_cast<std::size_t>(elements), 6.0F);
    const void* from = input.dtype == DType::kBF16  ? static_cast<const void*>(halves.data())
                       : input.dtype == DType::kI32 ? static_cast<const void*>(positions.data())
                                                    : static_cast<const void*>(lse.data());
    REQUIRE(gpu.Upload(static_cast<std::byte*>(input.data), from, elements * SizeOf(input.dtype)).ok());
  }
  REQUIRE((*launch)->Run({.control = reinterpret_cast<const double*>(*arena)}).ok());
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(of_q.elements()));
  REQUIRE(gpu.Download(bits.data(), static_cast<std::byte*>(args.outputs[0].data), of_q.elements() * 2).ok());
  return bits;
}

// KEY of the only line of a file of choices.
std::string OnlyKey(const std::string& path) {
  const std::string text = data::ReadFile(path);
  const std::size_t after_hash = text.find('\t') + 1;
  return text.substr(after_hash, text.rfind('\t') - after_hash);
}

nlohmann::json ContestOf(const std::string& shape) {
  const cli::ProgramResult result = cli::RunProgram("doctor --json --attention " + shape);
  CHECK(result.exit_code == 0);
  nlohmann::json json = nlohmann::json::parse(result.output, nullptr, false);
  REQUIRE_MESSAGE(json.is_object(), result.output);
  return json["contests"];
}

}  // namespace

TEST_CASE(
    "gpu attention choice: timed once and kept; what is kept is carried out, and without a file the rule") {
  if (!HasOwnKernels()) return;
  for (const bool backward : {false, true}) {
    CAPTURE(backward);
    const data::TempDir folder;
    const std::vector<std::uint16_t> own = BitsOf("", "own", backward);
    const std::vector<std::uint16_t> cudnn = BitsOf("", "cudnn", backward);
    REQUIRE(own != cudnn);  // else nothing would tell which has run
    CHECK(BitsOf("", "", backward) == (backward ? own : cudnn));
    const std::string timed = folder / "timed.txt";
    const std::vector<std::uint16_t> chosen = BitsOf(timed, "", backward);
    CHECK((chosen == own || chosen == cudnn));
    CHECK(backend::cuda::CountKeptAttentions(timed) == 1);
    const std::string text = data::ReadFile(timed);
    CHECK(BitsOf(timed, "", backward) == chosen);
    CHECK(data::ReadFile(timed) == text);
    const std::string key = OnlyKey(timed);
    for (const std::string choice : {"own", "cudnn"}) {
      const std::string path = folder / choice;
      REQUIRE(
          backend::cuda::ChoiceFile(path).Keep(key, choice, [](const std::string&) { return true; }).ok());
      CHECK(BitsOf(path, "", backward) == (choice == "own" ? own : cudnn));
    }
  }
}

TEST_CASE("gpu attention choice: the doctor times each kind of kernels, and says why others cannot") {
  const nlohmann::json contests = ContestOf(
      "batch=2,length=256,heads=2,head=64 "
      "batch=2,length=256,heads=4,kv_heads=2,head=64,dropout=0.1,softcap=30,alibi,"
      "sinks batch=2,length=256,heads=2,head=64,packed "
      "batch=1,length=128,keys=256,heads=2,head=128,dtype=fp16 "
      "length=300,heads=2,head=64,documents=100+17+183 --reference");
  REQUIRE(contests.size() == 10);
  for (const nlohmann::json& contest : contests) {
    CAPTURE(contest.dump());
    const bool backward = contest["pass"] == "backward";
    const std::string shape = contest["shape"];
    const std::string why_not_cudnn = shape.find("dropout") != std::string::npos ? "attention with dropout"
                                      : shape.find("documents") != std::string::npos
                                          ? "attention within documents"
                                          : "";
    CHECK(contest["kernels"].size() == (backward ? 4 : 3));
    int chosen = 0;
    for (const nlohmann::json& kernels : contest["kernels"]) {
      const std::string name = kernels["name"];
      if (!why_not_cudnn.empty() && name.find("cuDNN") == 0) {
        CHECK(kernels["why_not"] == why_not_cudnn);
        continue;
      }
      if (name == "own" && Gpu().device().properties().major != 9) continue;
      REQUIRE_MESSAGE(kernels.contains("ms"), kernels.dump());
      CHECK(kernels["ms"] > 0.0);
      CHECK(kernels["ms"] < 100.0);
      chosen += kernels["chosen"] ? 1 : 0;
    }
    CHECK(chosen == 1);
  }
}

}  // namespace engine::gpu_test
