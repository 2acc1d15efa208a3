// Runs on a device that works beside the host: what is read ahead, and what they say of one that fails.
#include <memory>

#include "tests/executor/wrapped_backend.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

using executor::testing::Probe;
using executor::testing::ProbedDevice;

class BesideTheHost final : public backend::cpu::CpuBackend {
 public:
  // From the given read on (three an iteration: scalars, control block and times), every wait for one fails.
  explicit BesideTheHost(std::int64_t failing_read) : CpuBackend(1), failing_read_(failing_read) {}
  bool asynchronous() const override { return true; }
  absl::Status WaitRead(std::int64_t ticket, void* host) override {
    if (reads_++ >= failing_read_) return Internal("cudaEventSynchronize: an illegal memory access");
    return CpuBackend::WaitRead(ticket, host);
  }

 private:
  std::int64_t failing_read_;
  std::int64_t reads_ = 0;
};

absl::Status RunFailing(bool check) {
  const TempDir folder;
  WriteDataset(folder / "text", 60);
  std::vector<Probe> probes(1);
  state::Device device = ProbedDevice(&probes);
  device.make_backend = [](std::int64_t, std::int64_t) { return std::make_unique<BesideTheHost>(6); };
  const recipe::Recipe recipe =
      RunRecipe(folder, {"training.iterations=6", "checkpoint.interval=0", "evaluation.interval=0"});
  return Run(recipe, {.out = folder / "run", .executor = {.check = check}}, device).status();
}

}  // namespace

TEST_CASE("device failure: names the iterations on the device, and how to learn the instruction") {
  const absl::Status status = RunFailing(false);
  CHECK(absl::IsInternal(status));  // the program's exit code follows from it
  CHECK((Message(status) == "iteration 3 or 4: cudaEventSynchronize: an illegal memory access\n"
                            "    hint: the same run with --check --no-graphs names the instruction"));
}

TEST_CASE("device failure: with --check there is nothing more to advise") {
  CHECK((Message(RunFailing(true)) == "iteration 3 or 4: cudaEventSynchronize: an illegal memory access"));
}

// The next iteration's inputs are read while one is under way, into the memory that an evaluation reads its own into.
TEST_CASE("a device beside the host: an iteration after an evaluation trains on its own samples") {
  const TempDir folder;
  WriteDataset(folder / "text", 60);
  const recipe::Recipe recipe = RunRecipe(folder, {"training.iterations=7", "checkpoint.interval=0",
                                                   "evaluation.interval=2", "evaluation.iterations=1"});
  MustRun(recipe, folder / "waits");
  state::Device device = CpuDevice();
  device.make_backend = [](std::int64_t, std::int64_t) { return std::make_unique<BesideTheHost>(1'000'000); };
  const RunResult beside = RunCaught(recipe, folder / "beside", false, device);
  REQUIRE_MESSAGE(beside.status.ok(), Message(beside.status));
  CHECK(TimelessMetrics(folder / "beside") == TimelessMetrics(folder / "waits"));
}

}  // namespace engine::train::testing
