// What a run says when the GPU has too little memory or fails, and the program's exit codes. The GPU fails in
// a child, a run of this program with one of the skipped test cases below: its context is of no use
// afterwards.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "engine/cli/device.h"
#include "engine/train/run.h"
#include "tests/cli/run_binary.h"
#include "tests/train/run_testing.h"

namespace engine::gpu_test {
namespace {

using cli::Contains;
using cli::ProgramResult;
using data::TempDir;
using Sets = std::vector<std::string>;

constexpr const char* kHint = "\n    hint: the same run with --check --no-graphs names the instruction";

// 4 layers of 12 · 1536² parameters, of 16 bytes each with gradient and moments: 1.8 GB.
const Sets kLarge = {"model.hidden=1536", "model.mlp.hidden=6144", "model.attention.heads=12"};

recipe::Recipe GpuRecipe(const TempDir& folder, const Sets& more) {
  train::testing::WriteDataset(folder / "text", 60);
  Sets sets = {"precision.compute=fp32", "training.iterations=3", "checkpoint.interval=0",
               "evaluation.interval=0", "logging.interval=1"};
  sets.insert(sets.end(), more.begin(), more.end());
  return train::testing::RunRecipe(folder, sets);
}

// All of GPU 0's memory but 1.25 GiB, for as long as it lives: a child's context fits beside it, its arena
// does not.
class MemoryHog {
 public:
  MemoryHog() {
    std::size_t free = 0;
    std::size_t total = 0;
    REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
    constexpr std::size_t kLeft = std::size_t{5} << 28;
    REQUIRE(free > kLeft);
    REQUIRE(cudaMalloc(&memory_, free - kLeft) == cudaSuccess);
  }
  ~MemoryHog() { cudaFree(memory_); }
  MemoryHog(const MemoryHog&) = delete;
  MemoryHog& operator=(const MemoryHog&) = delete;

 private:
  void* memory_ = nullptr;
};

// Launches a kernel that ends the context, on a stream of its own.
cudaError_t Trap() {
  constexpr const char* kTrap = R"(
.version 7.0
.target sm_80
.address_size 64
.visible .entry fail() { trap; }
)";
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  cudaStream_t stream = nullptr;
  for (const cudaError_t error :
       {cudaSetDevice(0), cudaLibraryLoadData(&library, kTrap, nullptr, nullptr, 0, nullptr, nullptr, 0),
        cudaLibraryGetKernel(&kernel, library, "fail"),
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaLaunchKernel(static_cast<const void*>(kernel), dim3(1), dim3(1), nullptr, 0, stream);
}

std::int64_t LinesOf(const std::string& path) {
  std::ifstream file(path);
  return std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n');
}

// A run whose GPU fails at some time after the fifth iteration.
absl::Status RunUntilTrapped(const Sets& sets, const executor::ExecutorOptions& options) {
  const TempDir folder;
  const recipe::Recipe recipe = GpuRecipe(folder, sets);
  absl::StatusOr<state::Device> device = cli::MakeDevice(recipe, {.kind = "cuda"});
  REQUIRE_MESSAGE(device.ok(), Message(device.status()));
  cudaError_t launched = cudaErrorNotReady;
  std::jthread trap([&](const std::stop_token& stop) {
    while (LinesOf(folder / "run/metrics.jsonl") < 5) {
      if (stop.stop_requested()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    launched = Trap();
  });
  absl::Status status = train::Run(recipe, {.out = folder / "run", .executor = options}, *device).status();
  trap.request_stop();
  trap.join();
  REQUIRE_MESSAGE(launched == cudaSuccess, cudaGetErrorString(launched));
  return status;
}

// This program again, with that test case alone.
void RunChild(const std::string& test_case) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const ProgramResult child = cli::RunShell("'" + self + "' --no-skip --test-case='" + test_case + "'");
  CHECK_MESSAGE(child.exit_code == 0, child.output);
  CHECK(Contains(child.output, "1 passed"));
}

std::string Program() {
  const char* program = std::getenv("ENGINE_BINARY");
  return program != nullptr ? program : ENGINE_BINARY;
}

// `engine run` of a tiny model on the GPU.
ProgramResult RunEngine(const TempDir& folder, const std::string& more, const std::string& environment = "") {
  train::testing::WriteDataset(folder / "text", 60);
  std::ofstream(folder / "tiny.toml")
      << train::testing::kGptLike << train::testing::kCommon << train::testing::kAdamW;
  return cli::RunShell(
      environment + " '" + Program() + "' run '" + folder / "tiny.toml" + "' --device cuda --out '" +
      folder / "run" + "' --set 'data.paths=[\"" + folder / "text" +
      "\"]' --set 'data.split=\"8,2,0\"' --set precision.compute=fp32 " +
      "--set checkpoint.interval=0 --set evaluation.interval=0 --set training.iterations=3 " + more);
}

}  // namespace

TEST_CASE("gpu errors: an arena larger than the free memory is itemised before anything starts") {
  const TempDir folder;
  const recipe::Recipe recipe = GpuRecipe(folder, kLarge);
  const MemoryHog hog;
  const absl::StatusOr<state::Device> device = cli::MakeDevice(recipe, {.kind = "cuda"});
  REQUIRE_MESSAGE(device.ok(), Message(device.status()));
  const absl::Status status = train::Run(recipe, {.out = folder / "run"}, *device).status();
  CHECK(absl::IsResourceExhausted(status));
  CHECK(cli::ExitCodeOf(status) == cli::kFailed);
  for (const char* part :
       {"one rank needs an arena of 1.", ", but this machine has ",
        " of memory for the cuda executor; on stage 0, the arena is parameters ", ", gradients ",
        ", optimizer ", "; parameters, gradients and optimizer state shrink with tp and pp"}) {
    CHECK(Contains(Message(status), part));
  }
  CHECK(!std::filesystem::exists(folder / "run"));
}

TEST_CASE("gpu errors: the same run goes on where the memory is there") {
  const TempDir folder;
  const recipe::Recipe recipe = GpuRecipe(folder, kLarge);
  const absl::StatusOr<state::Device> device = cli::MakeDevice(recipe, {.kind = "cuda"});
  REQUIRE_MESSAGE(device.ok(), Message(device.status()));
  const absl::Status status = train::Run(recipe, {.out = folder / "run"}, *device).status();
  CHECK_MESSAGE(status.ok(), Message(status));
}

TEST_CASE("gpu child: a kernel that traps" * doctest::skip()) {
  const absl::Status status = RunUntilTrapped({"training.iterations=20000"}, {});
  const std::string message = Message(status);
  INFO(message);
  CHECK(absl::IsInternal(status));
  CHECK(cli::ExitCodeOf(status) == cli::kDeviceFailed);
  CHECK(message.starts_with("iteration "));
  CHECK(message.find(" (cudaError") != std::string::npos);
  CHECK(message.ends_with(kHint));
}

// Of so many instructions that the time between iterations, when there is none to name, is nothing beside
// theirs.
TEST_CASE("gpu child: a kernel that traps under --check" * doctest::skip()) {
  const absl::Status status =
      RunUntilTrapped({"training.iterations=2000", "model.layers=16", "training.micro_batch=1"},
                      {.record = false, .check = true});
  const std::string message = Message(status);
  INFO(message);
  CHECK(absl::IsInternal(status));
  CHECK(message.starts_with("iteration "));
  CHECK(message.find(": rank 0, ") != std::string::npos);
  CHECK(message.find(" of microbatch ") != std::string::npos);
  CHECK(message.find(kHint) == std::string::npos);
}

TEST_CASE("gpu errors: a kernel that traps is an error of the iterations under way") {
  RunChild("gpu child: a kernel that traps");
}

TEST_CASE("gpu errors: with --check it is one of an instruction") {
  RunChild("gpu child: a kernel that traps under --check");
}

TEST_CASE("gpu errors: exit codes of the program") {
  if (!std::filesystem::exists(Program())) {
    MESSAGE("skipped: no program at " << Program() << "; ENGINE_BINARY says where it is");
    return;
  }
  const TempDir folder;
  const std::string run = folder / "run";
  ProgramResult result = RunEngine(folder, "", "CUDA_VISIBLE_DEVICES=");
  CHECK_MESSAGE(result.exit_code == cli::kNoDevice, result.output);
  CHECK(!std::filesystem::exists(run));
  result = RunEngine(folder, "--no-such-option");
  CHECK_MESSAGE(result.exit_code == cli::kUsage, result.output);
  result = RunEngine(folder, "--set 'data.paths=[\"/nowhere/text\"]'");
  CHECK_MESSAGE(result.exit_code == cli::kFailed, result.output);
  {
    const MemoryHog hog;
    std::string sets;
    for (const std::string& set : kLarge) sets += " --set " + set;
    result = RunEngine(folder, sets);
    CHECK_MESSAGE(result.exit_code == cli::kFailed, result.output);
    CHECK(Contains(result.output, "one rank needs an arena of 1."));
    CHECK(!std::filesystem::exists(run));
  }
  result = RunEngine(folder, "");
  CHECK_MESSAGE(result.exit_code == 0, result.output);
}

}  // namespace engine::gpu_test
