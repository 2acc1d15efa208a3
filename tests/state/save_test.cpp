// Checkpoints that are written while training goes on: what they hold is the state at the moment they were begun.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <future>
#include <span>
#include <vector>

#include "engine/plan/control.h"
#include "engine/plan/snapshot.h"
#include "tests/state/world.h"

namespace engine::train::testing {
namespace {

// Copies beside computation as late as it may: what changes before an update is then copied too late.
class LateBackend final : public backend::cpu::CpuBackend {
 public:
  LateBackend() : CpuBackend(1) {}
  absl::Status BeginSnapshot(std::span<const backend::SnapshotCopy> at_once,
                             std::span<const backend::SnapshotCopy> beside) override {
    RETURN_IF_ERROR(CpuBackend::BeginSnapshot(at_once, {}));
    late_.assign(beside.begin(), beside.end());
    return absl::OkStatus();
  }
  absl::Status AwaitSnapshot() override {
    for (const backend::SnapshotCopy& copy : late_)
      std::memcpy(copy.host, copy.arena, static_cast<size_t>(copy.bytes));
    late_.clear();
    return absl::OkStatus();
  }
  absl::Status FinishSnapshot() override { return AwaitSnapshot(); }

 private:
  std::vector<backend::SnapshotCopy> late_;
};

state::Device LateDevice() {
  state::Device device = CpuDevice();
  device.make_backend = [](std::int64_t, std::int64_t) { return std::make_unique<LateBackend>(); };
  return device;
}

void Reserve(const World& world) {
  Must(world.ranks->Run([](executor::RankExecutor& rank) { return rank.snapshot().Reserve(); }));
}

// Every file of a folder, by name, but what tells when it was written.
std::map<std::string, std::string> FilesOf(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename()] = data::ReadFile(entry.path());
  return files;
}

// The state after two iterations, saved in one go.
std::map<std::string, std::string> FilesAfterTwo(const std::vector<std::string>& layout) {
  const TempDir folder;
  const World world(layout);
  world.Initialize();
  world.Train(0, 2);
  return FilesOf(world.Save(folder / "plain"));
}

}  // namespace

TEST_CASE("a checkpoint that is written beside an iteration is that of the moment when it was begun") {
  for (const bool late : {true, false}) {
    for (const std::vector<std::string>& layout : kLayouts) {
      INFO((late ? "late, " : "") << (layout.empty() ? "one rank" : layout[0]));
      const TempDir folder;
      const World world(layout, {}, late ? LateDevice() : CpuDevice());
      world.Initialize();
      Reserve(world);
      world.Train(0, 2);
      Must(state::BeginSave(*world.ranks));
      std::future<absl::Status> written;
      const auto write = [&]() -> absl::Status {
        ASSIGN_OR_RETURN(const state::Saved saved,
                         state::WriteSaved(world.plan, folder / "beside", world.MetadataOf(), "a key",
                                           *world.ranks, nullptr));
        return saved.failure;
      };
      if (!late) written = std::async(std::launch::async, write);
      world.Train(2, 3);
      Must(late ? write() : written.get());
      CHECK(FilesOf(checkpoint::IterationPath(folder / "beside", 2)) == FilesAfterTwo(layout));
    }
  }
}

TEST_CASE("the control block is copied before the next iteration begins") {
  const World world({}, {}, LateDevice());
  world.Initialize();
  Reserve(world);
  world.Train(0, 2);
  executor::RankExecutor& rank = *world.ranks->executors()[0];
  const auto* const control = static_cast<const double*>(rank.Control().data);
  const std::vector<double> before(control, control + plan::kControlNumbers);
  Must(state::BeginSave(*world.ranks));
  world.Train(2, 3);
  Must(rank.snapshot().Finish());
  const std::byte* const copy = rank.snapshot().Of(reinterpret_cast<const std::byte*>(control));
  CHECK(std::memcmp(copy, before.data(), before.size() * sizeof(double)) == 0);
  CHECK(control[plan::kIteration] != before[plan::kIteration]);
}

TEST_CASE("the plan says how much of the host's memory copies of the state take") {
  for (const std::vector<std::string>& layout : kLayouts) {
    INFO((layout.empty() ? "one rank" : layout[0]));
    const World world(layout);
    std::int64_t most = 0;
    for (const auto& rank : world.ranks->executors()) most = std::max(most, rank->snapshot().bytes());
    CHECK(plan::SnapshotBytes(world.plan) == most);
  }
}

}  // namespace engine::train::testing
