// The two interfaces between a plan and the machine: Backend (memory and kernels of one rank) and
// Communicator (one rank's end of every exchange). Implementations are leaves: backend/cpu, backend/cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/kernel.h"
#include "engine/base/status.h"
#include "engine/plan/plan.h"

namespace engine::backend {

// Moments of an iteration that its executor asks for.
enum Stamp : std::int32_t {
  kIterationBegins,
  kUpdateBegins,  // the passes are done
  kIterationEnds,
  kStamps
};

// A launch whose every argument but the context is fixed: prepared once, run each iteration.
class Launch {
 public:
  virtual ~Launch() = default;
  // Errors: a collective that was aborted because another rank failed.
  virtual absl::Status Run(const KernelContext& context) = 0;
  // Of an exchange: what is left to compute before anything reads what it made, on the computation's stream,
  // which waits for Run's part to end. Called after each Run, at once or when the result is wanted.
  virtual absl::Status Finish() { return absl::OkStatus(); }
  // Of a direct sum (plan::Addition), between Run and Release: where its reader finds the other rank's
  // part, in that rank's memory, or in the scratch if it had to be brought.
  virtual const std::byte* OtherPart() const { return nullptr; }
  // Behind its reader: both ranks have read.
  virtual absl::Status Release() { return Internal("a launch that lets nobody read is released"); }
};

// A launch around another one, which does all that the outer one does not.
class LaunchAround : public Launch {
 public:
  explicit LaunchAround(std::unique_ptr<Launch> inner) : inner_(std::move(inner)) {}
  absl::Status Run(const KernelContext& context) override { return inner_->Run(context); }
  absl::Status Finish() override { return inner_->Finish(); }
  const std::byte* OtherPart() const override { return inner_->OtherPart(); }
  absl::Status Release() override { return inner_->Release(); }

 private:
  const std::unique_ptr<Launch> inner_;
};

struct LaunchArgs {
  const plan::Instruction* instruction = nullptr;
  std::uint32_t accumulate =
      0;  // bit i: add into output i (the instruction's, less what a first microbatch overwrites)
  std::vector<TensorView> inputs;
  // Bit i: input i is a parameter, and no instruction of the plan writes parameters: it may be read before the instructions in
  // front have run.
  std::uint32_t constant_inputs = 0;
  std::vector<TensorView> outputs;
  std::span<std::byte> scratch;
  // To be added to input `instruction->AddedInput()`, of its type and shape; empty: nothing.
  std::span<const std::byte> part = {};
  // Of an instruction that reads directly: the sum's launch, which says when it runs where the part is.
  const Launch* direct = nullptr;
  // When it runs; null: nothing is added.
  const std::byte* PartAddress() const { return direct != nullptr ? direct->OtherPart() : part.data(); }
};

// A copy between the arena and the host's memory of a rank (plan::HostCopy). Its addresses are fixed.
struct HostCopyArgs {
  plan::HostCopy::Direction direction = plan::HostCopy::Direction::kToHost;
  std::byte* arena = nullptr;
  std::byte* host = nullptr;
  std::int64_t bytes = 0;
};

// A copy of a part of a rank's state to the host's memory.
struct SnapshotCopy {
  std::byte* host = nullptr;
  const std::byte* arena = nullptr;
  std::int64_t bytes = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Facts that the planner needs. The same for every rank of a run.
  virtual plan::DeviceProfile Profile() const = 0;

  // The rank's one allocation: called once. Prepare may use it to try kernels on.
  virtual absl::StatusOr<std::byte*> AllocateArena(std::int64_t bytes) = 0;
  // Zeroes the arena, after the last Prepare.
  virtual absl::Status ClearArena() { return absl::OkStatus(); }

  // The host's memory in which a rank's activations wait: called once, where the plan has such (StagePlan::host_bytes).
  virtual absl::StatusOr<std::byte*> AllocateHost(std::int64_t bytes) = 0;
  // Runs on plan::kHostStream.
  virtual std::unique_ptr<Launch> PrepareHostCopy(const HostCopyArgs& args) = 0;

  // The host's memory for copies of the rank's state that are made beside computation: called once, before the first launch.
  // Error: the host has not so much.
  virtual absl::StatusOr<std::byte*> AllocateSnapshot(std::int64_t bytes) = 0;
  // Makes memory that is there already fit for such copies; before the first launch. Error: the system does not let it be pinned.
  virtual absl::Status PinSnapshot(std::byte* memory, std::int64_t bytes) = 0;
  // Before that memory goes; no copy is under way.
  virtual void UnpinSnapshot() {}
  // Copies the state that all launches so far leave: `at_once` before what is launched next, `beside` while that runs. It is not
  // called while launches that wait for copies (AwaitSnapshot) are under way; copies of several calls are made in their order.
  virtual absl::Status BeginSnapshot(std::span<const SnapshotCopy> at_once,
                                     std::span<const SnapshotCopy> beside) = 0;
  // Makes what is launched from now on wait until all copies that were begun are done. The wait may be recorded.
  virtual absl::Status AwaitSnapshot() = 0;
  // Returns when all copies that were begun are done. It may be called from any thread.
  virtual absl::Status FinishSnapshot() = 0;

  // Error: there is no kernel of that name for these dtypes.
  virtual absl::StatusOr<std::unique_ptr<Launch>> Prepare(LaunchArgs args) = 0;

  // Host memory to and from the arena. Complete on return.
  virtual absl::Status Upload(std::byte* arena, const void* host, std::int64_t bytes) = 0;
  virtual absl::Status Download(void* host, const std::byte* arena, std::int64_t bytes) = 0;

  // Waits for everything launched so far. An error that any of it left is returned here.
  virtual absl::Status Synchronize() = 0;

  // Order between the streams of a program (plan::Stream), which a backend that runs everything in turn has
  // not. Signal: a ticket for all that has been enqueued on `stream` so far. Await: what is enqueued on
  // `stream` from now on starts after that. Tickets hold until the next program.
  virtual absl::StatusOr<std::int64_t> Signal(std::int32_t stream) {
    (void)stream;
    return 0;
  }
  virtual absl::Status Await(std::int32_t stream, std::int64_t ticket) {
    (void)stream;
    (void)ticket;
    return absl::OkStatus();
  }

  // Whether launches return before they have run. Then the calls below are what keeps the host out of the
  // way; all of them are in order with launches and with each other.
  virtual bool asynchronous() const { return false; }
  // At most 64 bytes of host memory, free again on return.
  virtual absl::Status Write(std::byte* arena, const void* host, std::int64_t bytes) = 0;
  virtual absl::Status Copy(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  // Host memory into the arena beside the launches, after earlier Stage calls and the last TakeStaged; `host`
  // is free again on return. May be called from another thread than the launches, one at a time.
  virtual absl::Status Stage(std::byte* arena, const void* host, std::int64_t bytes) = 0;
  // Copy of what was staged, after all Stage calls that have returned.
  virtual absl::Status TakeStaged(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  // A few numbers, or some thousands, to the host. Read returns at once; WaitRead waits for the ticket's bytes alone. At
  // most eight tickets are open at a time.
  virtual absl::StatusOr<std::int64_t> Read(const std::byte* arena, std::int64_t bytes) = 0;
  // Notes the time at which all that was launched so far has run; may be recorded. ReadTimes: Read of the
  // noted times, int64[kStamps], nanoseconds since a moment of the device's own.
  virtual absl::Status NoteTime(Stamp stamp) = 0;
  virtual absl::StatusOr<std::int64_t> ReadTimes() = 0;
  virtual absl::Status WaitRead(std::int64_t ticket, void* host) = 0;
  // 64-bit hashes of what lies in the arena, to compare two runs of one program on this backend. PrepareHashes: there are so many
  // places for them; called once, before the first launch. Hash: of what is there when all has run that was enqueued on `stream` so far.
  // ReadHashes: Read of the first `count` places, uint64 each.
  virtual absl::Status PrepareHashes(std::int64_t places) = 0;
  virtual absl::Status Hash(std::span<const std::byte> bytes, std::int32_t stream, std::int64_t place) = 0;
  virtual absl::StatusOr<std::int64_t> ReadHashes(std::int64_t count) = 0;
  // Runs `body`, recording its launches instead of running them; the result replays them all. Null where the
  // backend does not record.
  virtual absl::StatusOr<std::unique_ptr<Launch>> Record(const std::function<absl::Status()>& body) {
    (void)body;
    return std::unique_ptr<Launch>();
  }

  // For looking inside; these wait. Whether all elements of a floating-point tensor are finite.
  virtual absl::StatusOr<bool> AllFinite(const TensorView& view) = 0;
  // A point in time between launches of a stream (plan::Stream), and the milliseconds from one to a later one
  // (waits for that one).
  virtual absl::StatusOr<std::int64_t> Mark(std::int32_t stream) = 0;
  virtual absl::StatusOr<double> ElapsedMs(std::int64_t from, std::int64_t to) = 0;
};

struct CollectiveArgs {
  const plan::Instruction* instruction = nullptr;
  std::vector<std::int64_t> group;  // ranks, ascending
  std::int64_t index = 0;           // of this rank in the group
  TensorView input;
  TensorView output;
  // Of each member's input and output, for conversions; empty for flat collectives.
  std::vector<Extent> member_inputs, member_outputs;
  std::span<std::byte> scratch;  // what DeviceProfile::exchange_bytes asked for
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  // Every member of the group must prepare and run its collectives in the same order.
  virtual absl::StatusOr<std::unique_ptr<Launch>> Prepare(CollectiveArgs args) = 0;
  // Bytes will be exchanged with `peer` on a stream of pipeline traffic (plan::Stream), `push`: straight into
  // its arena (plan::Transfer).
  virtual absl::Status PrepareTransfer(std::int64_t peer, std::int32_t stream, bool push) {
    (void)peer;
    (void)stream;
    (void)push;
    return absl::OkStatus();
  }
  // Makes the connections, after the last Prepare. Every rank of the run calls it.
  virtual absl::Status Connect() { return absl::OkStatus(); }
  // Whether what is enqueued here may be recorded (Backend::Record).
  virtual bool recordable() const { return false; }
  // What this rank's device is at, in words, where launches return before they are done; else empty. Safe
  // from any thread after Connect.
  virtual std::string At() const { return ""; }

  // Sends and receives belong to a stream of the program; on an asynchronous backend they are enqueued there
  // and return at once, and WaitSent does nothing: Backend::Await is what waits for them.
  //
  // Offers bytes to `peer` on a channel (the transfer's index) and returns at once; the ticket is for
  // WaitSent. The bytes must stay as they are until then. `there`: where they go, from the beginning of the
  // peer's arena.
  virtual absl::StatusOr<std::int64_t> Send(std::int64_t peer, std::int32_t channel, const std::byte* data,
                                            std::int64_t bytes, std::int32_t stream, std::int64_t there) = 0;
  // Blocks until the peer has taken the bytes.
  virtual absl::Status WaitSent(std::int64_t peer, std::int32_t channel, std::int64_t ticket) = 0;
  // Blocks until the next bytes of that channel are here. Error, where bytes go through the communicator and
  // are not pushed: another size than was sent.
  virtual absl::Status Receive(std::int64_t peer, std::int32_t channel, std::byte* data, std::int64_t bytes,
                               std::int32_t stream) = 0;
};

}  // namespace engine::backend
