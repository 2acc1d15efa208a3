// Copies of ranks' states in memory, read as a checkpoint is.
#include "engine/state/copied_state.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/executor/memory_checkpoint.h"
#include "engine/state/tensors.h"
#include "tests/state/memory_device.h"
#include "tests/state/world.h"

namespace engine::train::testing {
namespace {

const std::string kCopyTag(MemoryCopies::kTagBytes, 't');

// Copies of the states of all ranks of a world, each in a file.
struct CopiesOfAll {
  explicit CopiesOfAll(const World& world) : files(world.plan.mesh.world()) {
    for (const auto& rank : world.ranks->executors()) {
      executor::MemoryCheckpoint& memory = rank->memory_checkpoint();
      Must(memory.Open(files.numbers[static_cast<size_t>(rank->rank())], kCopyTag, -1));
      Must(memory.Begin({2, "a note"}, [](const MemoryCopies&, int) { return absl::OkStatus(); }));
      memory.AwaitWhole();
    }
  }
  state::CopiedState::ReadCopy Reader() {
    return [this](std::int64_t rank, std::int64_t offset, std::span<std::byte> out) {
      {
        const std::lock_guard<std::mutex> lock(mutex);  // ranks are threads, and read at the same time
        read.push_back(rank);
      }
      return MemoryCopies::ReadAt(files.numbers[static_cast<size_t>(rank)], kCopyTag, 2, offset, out);
    };
  }

  const MemoryFiles files;
  std::mutex mutex;
  std::vector<std::int64_t> read;  // ranks, of each part that was read
};

std::vector<std::int64_t> AllRanks(const plan::Plan& plan) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < plan.mesh.world(); ++rank) ranks.push_back(rank);
  return ranks;
}

std::vector<char> Whole(const checkpoint::TensorSource& source, const checkpoint::TensorInfo& tensor) {
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes()), 99);
  Must(source.Read(tensor.name, checkpoint::WholeBox(tensor.shape), bytes.data()));
  return bytes;
}

// The copies have what the checkpoint has.
void CheckAsSaved(const World& world) {
  const TempDir folder;
  const auto saved = checkpoint::Reader::Open(world.Save(folder / "checkpoints"));
  Must(saved.status());
  CopiesOfAll copies(world);
  const auto copied = state::CopiedState::Make(world.plan, AllRanks(world.plan), copies.Reader());
  Must(copied.status());
  REQUIRE(copied->tensors().size() == saved->tensors().size());
  for (const checkpoint::TensorInfo& tensor : saved->tensors()) {
    const checkpoint::TensorInfo* found = copied->Find(tensor.name);
    REQUIRE_MESSAGE(found != nullptr, tensor.name);
    CHECK(found->shape == tensor.shape);
    CHECK(found->dtype == tensor.dtype);
    CHECK_MESSAGE(Whole(*copied, *found) == Whole(*saved, tensor), tensor.name);
  }
}

// Numbers of 4 or 2 bytes that differ from element to element, as an update may have left them; none is infinite or no number.
void FillStates(const World& world) {
  Must(world.ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
    for (const executor::OptimizerRange& range : rank.OptimizerState()) {
      std::uint32_t of_state = 0;
      for (const auto& [data, dtype] : range.states) {
        ++of_state;
        for (std::int64_t i = 0; i < range.end - range.begin; ++i) {
          const auto at = static_cast<std::uint32_t>(range.begin + i + std::int64_t{1000} * range.parameter);
          const std::uint32_t word = (at * 2654435761U + of_state) & 0x3F7F3F7FU;
          std::memcpy(data + i * SizeOf(dtype), &word, static_cast<size_t>(SizeOf(dtype)));
        }
      }
    }
    return rank.SetSteps(2);
  }));
}

}  // namespace

TEST_CASE("copied state: copies of every layout have the bits of the checkpoint of the same iteration") {
  std::vector<std::vector<std::string>> layouts = kLayouts;
  layouts.push_back({"parallelism.dp=2", "training.micro_batch=2"});
  for (const std::vector<std::string>& layout : layouts) {
    std::string text;
    for (const std::string& set : layout) text += set + " ";
    INFO(text);
    const World world(layout);
    world.Initialize();
    world.Train(0, 2);
    CheckAsSaved(world);
  }
}

TEST_CASE("copied state: what is kept in 16 bits is widened as in a checkpoint") {
  const std::vector<std::vector<std::string>> precisions = {
      {"precision.compute=bf16"},
      {"precision.compute=bf16", "parallelism.zero_stage=1"},
      {"precision.compute=fp16", "parallelism.zero_stage=1"},
      {"precision.compute=bf16", "precision.master_dtype=bf16", "parallelism.zero_stage=3"},
      {"precision.compute=bf16", "optimizer.moment_dtype=bf16", "parallelism.zero_stage=1"}};
  for (std::vector<std::string> sets : precisions) {
    sets.insert(sets.end(), {"parallelism.dp=2", "training.micro_batch=4", "model.layers=3"});
    std::string text;
    for (const std::string& set : sets) text += set + " ";
    INFO(text);
    const World world(sets, {}, MemoryDevice());
    world.Initialize();
    FillStates(world);
    CheckAsSaved(world);
  }
}

TEST_CASE("copied state: a run of fewer ranks goes on to the bits of one that goes on from the checkpoint") {
  const World before({"parallelism.dp=4", "parallelism.zero_stage=1", "training.micro_batch=2"});
  before.Initialize();
  before.Train(0, 2);
  const TempDir folder;
  const std::string saved = before.Save(folder / "checkpoints");
  CopiesOfAll copies(before);
  const auto copied = state::CopiedState::Make(before.plan, AllRanks(before.plan), copies.Reader());
  Must(copied.status());
  const std::vector<std::string> smaller = {"parallelism.dp=2", "parallelism.zero_stage=2",
                                            "training.micro_batch=2"};
  const World from_disk(smaller);
  from_disk.Load(saved);
  const World from_memory(smaller);
  Must(from_memory.ranks->Run([&](executor::RankExecutor& rank) {
    return state::LoadCheckpoint(from_memory.plan, *copied, true, rank);
  }));
  CHECK(from_memory.Train(2, 5) == from_disk.Train(2, 5));
  for (const plan::PlanParameter& parameter : from_disk.plan.parameters)
    CHECK_MESSAGE(from_memory.Weight(parameter.name) == from_disk.Weight(parameter.name), parameter.name);
}

TEST_CASE(
    "copied state: a rank's copy may be missing where another one is equal, and its name is told else") {
  const World plain({"parallelism.dp=4", "training.micro_batch=2"});
  plain.Initialize();
  CopiesOfAll copies(plain);
  // The first that there is.
  const auto copied = state::CopiedState::Make(plain.plan, {2, 1}, copies.Reader());
  Must(copied.status());
  Whole(*copied, copied->tensors()[0]);
  CHECK(!copies.read.empty());
  CHECK(std::all_of(copies.read.begin(), copies.read.end(), [](std::int64_t rank) { return rank == 2; }));

  const World sharded({"parallelism.dp=4", "parallelism.zero_stage=1", "training.micro_batch=2"});
  const auto missing = state::CopiedState::Make(sharded.plan, {0, 1, 3}, copies.Reader());
  CHECK(absl::IsNotFound(missing.status()));
  CHECK(Message(missing.status()) == "there is no copy of the state of rank 2");
}

}  // namespace engine::train::testing
