// What a run says of a device that fails while it works beside the host.
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

}  // namespace engine::train::testing
