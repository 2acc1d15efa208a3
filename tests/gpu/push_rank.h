// A process as a rank of a test of pushed exchange (push_test.cpp): its GPU, its conversions, and what they
// must give.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cuda/exchange/push_communicator.h"
#include "engine/base/store.h"
#include "tests/executor/conversion_cases.h"

namespace engine::gpu_test {

constexpr std::size_t kSets = 3;  // of inputs, in turns: what one round leaves behind is wrong in the next
constexpr int kRounds = 50;

// One conversion, this rank's end of it, and what it must give.
struct Trial {
  backend::cpu::Case c;
  DType dtype = DType::kF32;
  plan::Instruction instruction;
  bool takes_part = true;
  bool in_place = false;
  bool unsummed = false;  // the sum is left to its reader, which SumParts stands for
  bool direct = false;    // and read from the other rank's memory
  backend::CollectiveArgs args;
  void* result = nullptr;  // the output, but for a direct sum, whose place the other rank reads
  std::unique_ptr<backend::Launch> launch;
  std::array<std::vector<std::byte>, kSets> inputs, expected;

  std::int64_t input_bytes() const { return args.input.shape.elements() * SizeOf(dtype); }
  std::int64_t output_bytes() const { return args.output.shape.elements() * SizeOf(dtype); }
  bool log_sum_exp() const { return instruction.reduction() == graph::Reduction::kLogSumExp; }
  std::string name() const;
};

// Of all ranks along tp.
backend::cpu::Case Along(std::int64_t ranks, plan::Collective collective, graph::Reduction reduction,
                         const Shape& shape, int a, int b);

// This process as a rank: its GPU, what it has prepared, and pinned memory for what comes and goes.
class Rank {
 public:
  // `stages`: each of another length of arena.
  explicit Rank(bool stages = false);
  // No rank takes its memory away while another still runs.
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  std::int64_t rank() const { return rank_; }
  std::int64_t ranks() const { return ranks_; }
  const std::vector<std::unique_ptr<Trial>>& trials() const { return launches_; }

  // `direct`: a sum of two that its reader reads from the other rank's memory.
  void Add(const backend::cpu::Case& c, DType dtype, bool direct = false);
  // Transfers to the other of two stages, and from it.
  void PrepareTransfers();
  void Connect();

  // Rounds of a trial, one after the other without a wait of the host: inputs, the launch, results; `delay`
  // in microseconds before and after it. Wrong rounds.
  int WrongRounds(Trial& trial, int rounds, bool recorded, const std::function<int(bool before)>& delay);

  // All trials in one graph, on two streams.
  void CheckOneGraph(const std::function<int(bool before)>& delay);

  // Rounds of what two stages of a pipeline do: each sends to the other and receives, on streams of their
  // own, between places that differ from rank to rank. Wrong rounds.
  int WrongTransfers(int rounds, bool recorded, const std::function<int(bool before)>& delay);

 private:
  std::byte* Take(std::int64_t bytes);
  // `delay` before the reader of a direct sum.
  absl::Status Launch(Trial& trial, const std::function<int(bool before)>& delay);
  absl::Status Exchange(Trial& trial);
  void FromHost(void* to, const void* from, std::int64_t bytes);
  // Of the stream, not of the host.
  void Sleep(std::intptr_t time);
  // Bit by bit; a log-sum-exp, which the CPU computes otherwise, within roundings: numbers below 8 in the
  // difference from the largest, in exp, log and the sum.
  bool IsRight(const Trial& trial, std::size_t set, const std::byte* got) const;

  const std::int64_t rank_, ranks_;
  const std::unique_ptr<engine::Store> store_;
  std::unique_ptr<backend::cuda::CudaBackend> backend_;
  std::unique_ptr<backend::cuda::PushCommunicator> communicator_;
  std::byte* free_ = nullptr;  // of the arena
  std::byte* sent_ = nullptr;
  std::byte* received_ = nullptr;
  std::vector<std::unique_ptr<Trial>> launches_;
};

}  // namespace engine::gpu_test
