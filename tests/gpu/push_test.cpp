// Exchange by copy engines between processes with a GPU each, against the CPU's collectives, bit by bit. The
// processes are runs of this program with one of the skipped test cases below; they meet in a folder.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/backend/cpu/world.h"
#include "engine/backend/cuda/kernels/exchange.h"
#include "engine/backend/cuda/libraries.h"
#include "engine/backend/cuda/push_communicator.h"
#include "engine/base/half.h"
#include "tests/cli/run_binary.h"
#include "tests/data/temp_dir.h"
#include "tests/executor/conversion_cases.h"

namespace engine::gpu_test {
namespace {

using backend::CollectiveArgs;
using backend::cpu::Case;
using backend::cuda::CudaBackend;
using backend::cuda::PushCommunicator;
using graph::Axis;
using graph::Reduction;
using plan::Collective;
using std::chrono::microseconds;
using RawBytes = std::vector<std::byte>;

constexpr std::int64_t kPushArenaBytes = std::int64_t{512} << 20;
constexpr std::size_t kSets = 3;  // of inputs, in turns: what one round leaves behind is wrong in the next
constexpr int kRounds = 50;
constexpr std::int64_t kMostBytes = std::int64_t{2} << 20;  // of an output

void Must(const absl::Status& status) { REQUIRE_MESSAGE(status.ok(), Message(status)); }
void Must(cudaError_t error) { REQUIRE_MESSAGE(error == cudaSuccess, cudaGetErrorString(error)); }

int Gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  REQUIRE_MESSAGE(value != nullptr, name << " is not set: this case is started by another");
  return value;
}

// A file for each key.
class FileStore final : public Store {
 public:
  // What is asked for under `hidden` is empty.
  FileStore(std::string folder, std::string hidden)
      : folder_(std::move(folder)), hidden_(std::move(hidden)) {}

  absl::Status Set(const std::string& key, std::string value) override {
    const std::string path = PathOf(key);
    const std::string unfinished = fmt::format("{}.{}", path, getpid());
    data::WriteFile(unfinished, value);
    std::filesystem::rename(unfinished, path);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key) override {
    const std::string path = PathOf(key);
    for (int i = 0; i < 60'000; ++i) {
      if (std::filesystem::exists(path)) return key == hidden_ ? "" : data::ReadFile(path);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return absl::DeadlineExceededError(key);
  }

 private:
  std::string PathOf(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '_');
    return folder_ + "/" + key;
  }
  const std::string folder_, hidden_;
};

// One conversion, this rank's end of it, and what it must give.
struct Trial {
  Case c;
  DType dtype = DType::kF32;
  plan::Instruction instruction;
  bool takes_part = true;
  bool in_place = false;
  bool unsummed = false;  // the sum is left to its reader, which SumParts stands for
  bool direct = false;    // and read from the other rank's memory
  CollectiveArgs args;
  void* result = nullptr;  // the output, but for a direct sum, whose place the other rank reads
  std::unique_ptr<backend::Launch> launch;
  std::array<RawBytes, kSets> inputs, expected;

  std::int64_t input_bytes() const { return args.input.shape.elements() * SizeOf(dtype); }
  std::int64_t output_bytes() const { return args.output.shape.elements() * SizeOf(dtype); }
  bool log_sum_exp() const { return instruction.reduction == Reduction::kLogSumExp; }
  std::string name() const {
    return fmt::format("{}{}{} of {} {} from {} to {}", plan::Name(instruction.collective),
                       log_sum_exp() ? " (log-sum-exp)" : "",
                       direct     ? " (read by its reader)"
                       : unsummed ? " (left to its reader)"
                                  : "",
                       Name(dtype), c.shape.ToString(), c.from.ToString(), c.to.ToString());
  }
};

template <typename T>
T RoundedTo(DType dtype, T x) {
  if (dtype == DType::kBF16) return FloatFromBFloat16(BFloat16FromFloat(static_cast<float>(x)));
  if (dtype == DType::kF16) return FloatFromHalf(HalfFromFloat(static_cast<float>(x)));
  return x;
}

template <typename T>
RawBytes Packed(DType dtype, const std::vector<T>& numbers) {
  RawBytes bytes(numbers.size() * static_cast<std::size_t>(SizeOf(dtype)));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (dtype == DType::kBF16 || dtype == DType::kF16) {
      const auto x = static_cast<float>(numbers[i]);
      const std::uint16_t bits = dtype == DType::kF16 ? HalfFromFloat(x) : BFloat16FromFloat(x);
      std::memcpy(bytes.data() + i * sizeof(bits), &bits, sizeof(bits));
    } else {
      std::memcpy(bytes.data() + i * sizeof(T), &numbers[i], sizeof(T));
    }
  }
  return bytes;
}

// The set's inputs of all ranks, and from them by the CPU's collectives what this rank gets. The CPU adds up
// in T, in order of rank.
template <typename T>
void MakeSet(std::int64_t rank, std::uint64_t seed, Trial* trial, std::size_t set) {
  const auto world = static_cast<std::size_t>(trial->c.mesh.world());
  std::vector<std::vector<T>> inputs(world), outputs(world);
  backend::cpu::World meeting;
  std::vector<std::thread> threads;
  std::vector<absl::Status> statuses(world);
  for (std::size_t r = 0; r < world; ++r) {
    CollectiveArgs args = ArgsOf(trial->c, trial->instruction, static_cast<std::int64_t>(r));
    std::mt19937_64 random(seed * 1000 + set * 100 + r);
    std::uniform_real_distribution<T> uniform(-4, 4);
    inputs[r].resize(static_cast<std::size_t>(args.input.shape.elements()));
    for (T& x : inputs[r]) x = RoundedTo(trial->dtype, uniform(random));
    outputs[r].resize(static_cast<std::size_t>(args.output.shape.elements()));
    args.input.dtype = args.output.dtype = sizeof(T) == 8 ? DType::kF64 : DType::kF32;
    args.input.data = inputs[r].data();
    args.output.data = outputs[r].data();
    threads.emplace_back([&meeting, &statuses, r, args = std::move(args)] {
      backend::cpu::CpuCommunicator communicator(&meeting, static_cast<std::int64_t>(r));
      const auto launch = communicator.Prepare(args);
      statuses[r] = launch.ok() ? (*launch)->Run({}) : launch.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) Must(status);
  const auto r = static_cast<std::size_t>(rank);
  trial->inputs[set] = Packed(trial->dtype, inputs[r]);
  trial->expected[set] = Packed(trial->dtype, outputs[r]);
}

// Of all ranks along tp.
Case Along(std::int64_t ranks, Collective collective, Reduction reduction, const Shape& shape, int a, int b) {
  Case c;
  c.mesh.sizes[static_cast<std::size_t>(Axis::kTp)] = ranks;
  c.shape = shape;
  c.collective = collective;
  c.reduction = reduction;
  const auto [before, after] = backend::cpu::PlacementsOf(collective, reduction, a, b);
  REQUIRE(c.from.Set(Axis::kTp, before));
  REQUIRE(c.to.Set(Axis::kTp, after));
  return c;
}

// This process as a rank: its GPU, what it has prepared, and pinned memory for what comes and goes.
class Rank {
 public:
  // `stages`: each of another length of arena.
  explicit Rank(bool stages = false)
      : rank_(std::stoll(Variable("ENGINE_PUSH_RANK"))),
        ranks_(std::stoll(Variable("ENGINE_PUSH_RANKS"))),
        store_(Variable("ENGINE_PUSH_FOLDER"), rank_ == 0 ? Variable("ENGINE_PUSH_HIDDEN") : "") {
    backend::cuda::DeviceOptions options;
    options.index = static_cast<int>(rank_);
    auto opened = CudaBackend::Create(options);
    Must(opened.status());
    backend_ = std::move(*opened);
    Must(backend::cuda::LoadNccl().status());
    const auto arena = backend_->AllocateArena(kPushArenaBytes + (stages ? rank_ : 0) * kMostBytes);
    Must(arena.status());
    free_ = *arena;
    communicator_ = std::make_unique<PushCommunicator>(
        backend_.get(), &store_, rank_,
        backend::cuda::PushOptions{.ready = Variable("ENGINE_PUSH_READY") == "1"});
    Must(cudaMallocHost(reinterpret_cast<void**>(&sent_), kSets * kMostBytes));
    Must(cudaMallocHost(reinterpret_cast<void**>(&received_), kRounds * kMostBytes));
  }
  // No rank takes its memory away while another still runs.
  ~Rank() {
    launches_.clear();
    static_cast<void>(backend_->Synchronize());
    static_cast<void>(store_.Set(fmt::format("end/{}", rank_), ""));
    for (std::int64_t rank = 0; rank < ranks_; ++rank)
      static_cast<void>(store_.Get(fmt::format("end/{}", rank)));
    communicator_.reset();
    cudaFreeHost(sent_);
    cudaFreeHost(received_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  std::int64_t rank() const { return rank_; }
  std::int64_t ranks() const { return ranks_; }

  void Add(const Case& c, DType dtype, bool direct = false) {
    launches_.push_back(std::make_unique<Trial>());
    Trial& trial = *launches_.back();
    const std::size_t number = launches_.size();
    trial.c = c;
    trial.dtype = dtype;
    trial.instruction = backend::cpu::InstructionOf(c);
    trial.instruction.name = fmt::format("trial {}", number);
    trial.instruction.push = true;
    trial.direct = direct;
    trial.instruction.stream = direct || number % 2 == 0 ? plan::kComputeStream : plan::kExchangeStream;
    trial.takes_part = rank_ < c.mesh.world();
    trial.in_place =
        c.collective == Collective::kAllReduce && !trial.log_sum_exp() && (direct || number % 4 < 2);
    trial.args = ArgsOf(c, trial.instruction, std::min(rank_, c.mesh.world() - 1));
    trial.args.input.dtype = trial.args.output.dtype = dtype;
    REQUIRE(std::max(trial.input_bytes(), trial.output_bytes()) <= kMostBytes);
    const bool scatters = c.collective == Collective::kReduceScatter && c.axis == Axis::kTp &&
                          2 * trial.args.output.shape[0] == trial.args.input.shape[0];
    trial.unsummed = c.mesh.world() == 2 && !trial.log_sum_exp() &&
                     (direct || scatters || (trial.in_place && number % 8 < 2));
    trial.args.input.data = Take(trial.input_bytes());
    if (trial.unsummed && scatters) {
      trial.args.output.data = trial.args.input.as<std::byte>() + trial.args.index * trial.output_bytes();
    } else {
      trial.args.output.data = trial.in_place ? trial.args.input.data : Take(trial.output_bytes());
    }
    trial.result = direct ? Take(trial.output_bytes()) : trial.args.output.data;
    const std::int64_t scratch = backend_->Profile().exchange_bytes(
        c.collective, c.reduction, {trial.args.input.shape, dtype}, {trial.args.output.shape, dtype}, c.axis,
        static_cast<std::int64_t>(trial.args.group.size()), true);
    trial.args.scratch = {Take(scratch), static_cast<std::size_t>(scratch)};
    if (!trial.takes_part) return;
    for (std::size_t set = 0; set < kSets; ++set) {
      if (dtype == DType::kF64) {
        MakeSet<double>(rank_, number, &trial, set);
      } else {
        MakeSet<float>(rank_, number, &trial, set);
      }
    }
    trial.instruction.unsummed = trial.unsummed;
    trial.instruction.direct = trial.direct;
    auto launch = communicator_->Prepare(trial.args);
    Must(launch.status());
    trial.launch = std::move(*launch);
  }

  void Connect() {
    Must(communicator_->Connect());
    Must(backend_->ClearArena());
  }

  // Rounds of a trial, one after the other without a wait of the host: inputs, the launch, results; `delay`
  // in microseconds before and after it. Wrong rounds.
  int WrongRounds(Trial& trial, int rounds, bool recorded, const std::function<int(bool before)>& delay) {
    std::unique_ptr<backend::Launch> graph;
    if (recorded) {
      auto made = backend_->Record([&] { return Launch(trial, delay); });
      Must(made.status());
      graph = std::move(*made);
    }
    for (std::size_t set = 0; set < kSets; ++set)
      std::memcpy(sent_ + set * kMostBytes, trial.inputs[set].data(), trial.inputs[set].size());
    for (int round = 0; round < rounds; ++round) {
      const auto set = static_cast<std::size_t>(round) % kSets;
      FromHost(trial.args.input.data, sent_ + set * kMostBytes, trial.input_bytes());
      Sleep(delay(true));
      Must(recorded ? graph->Run({}) : Launch(trial, delay));
      Sleep(delay(false));
      Must(cudaMemcpyAsync(received_ + round * kMostBytes, trial.result,
                           static_cast<std::size_t>(trial.output_bytes()), cudaMemcpyDeviceToHost,
                           backend_->device().compute()));
    }
    Must(backend_->Synchronize());
    int wrong = 0;
    for (int round = 0; round < rounds; ++round) {
      const auto set = static_cast<std::size_t>(round) % kSets;
      const std::byte* const got = received_ + round * kMostBytes;
      const bool same =
          round < static_cast<int>(kSets) ||
          std::memcmp(got, got - kSets * kMostBytes, static_cast<std::size_t>(trial.output_bytes())) == 0;
      wrong += same && IsRight(trial, set, got) ? 0 : 1;
    }
    return wrong;
  }

  // All trials in one graph, on two streams.
  void CheckOneGraph(const std::function<int(bool before)>& delay) {
    auto graph = backend_->Record([&]() -> absl::Status {
      for (const auto& trial : launches_) {
        if (trial->takes_part) RETURN_IF_ERROR(Launch(*trial, delay));
      }
      return absl::OkStatus();
    });
    Must(graph.status());
    for (int round = 0; round < kRounds; ++round) {
      for (const auto& trial : launches_) {
        if (!trial->takes_part) continue;
        Must(cudaMemsetAsync(trial->result, 0xFF, static_cast<std::size_t>(trial->output_bytes()),
                             backend_->device().compute()));
        const RawBytes& input = trial->inputs[static_cast<std::size_t>(round) % kSets];
        FromHost(trial->args.input.data, input.data(), trial->input_bytes());
      }
      Sleep(delay(true));
      Must((*graph)->Run({}));
    }
    for (const auto& trial : launches_) {
      if (!trial->takes_part) continue;
      Must(
          backend_->Download(received_, static_cast<const std::byte*>(trial->result), trial->output_bytes()));
      CHECK_MESSAGE(IsRight(*trial, (kRounds - 1) % kSets, received_), trial->name() << ": in one graph");
    }
  }

  const std::vector<std::unique_ptr<Trial>>& trials() const { return launches_; }

  // Rounds of what two stages of a pipeline do: each sends to the other and receives, on streams of their
  // own, between places that differ from rank to rank. Wrong rounds.
  int WrongTransfers(int rounds, bool recorded, const std::function<int(bool before)>& delay) {
    const std::int64_t peer = 1 - rank_;
    const bool first = rank_ == 0;
    const auto inbox = [](std::int64_t rank) { return rank == 0 ? kMostBytes : 2 * kMostBytes; };
    std::byte* const out = backend_->arena().data() + (first ? 0 : 3 * kMostBytes);
    std::byte* const in = backend_->arena().data() + inbox(rank_);
    const std::int32_t send = first ? plan::kSendNext : plan::kSendPrevious;
    const std::int32_t receive = first ? plan::kReceiveNext : plan::kReceivePrevious;
    const auto content = [](std::int64_t rank, std::size_t set, std::int64_t i) {
      return static_cast<std::byte>((i * 7 + static_cast<std::int64_t>(set) * 31 + rank * 101) >> (i % 3));
    };
    const auto body = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(const std::int64_t begun, backend_->Signal(plan::kComputeStream));
      for (const std::int32_t stream : {send, receive}) RETURN_IF_ERROR(backend_->Await(stream, begun));
      RETURN_IF_ERROR(communicator_->Send(peer, 0, out, kMostBytes, send, inbox(peer)).status());
      RETURN_IF_ERROR(communicator_->Receive(peer, 1, in, kMostBytes, receive));
      for (const std::int32_t stream : {send, receive}) {
        ASSIGN_OR_RETURN(const std::int64_t ended, backend_->Signal(stream));
        RETURN_IF_ERROR(backend_->Await(plan::kComputeStream, ended));
      }
      return absl::OkStatus();
    };
    std::unique_ptr<backend::Launch> graph;
    if (recorded) {
      auto made = backend_->Record(body);
      Must(made.status());
      graph = std::move(*made);
    }
    for (std::size_t set = 0; set < kSets; ++set) {
      for (std::int64_t i = 0; i < kMostBytes; ++i) sent_[set * kMostBytes + i] = content(rank_, set, i);
    }
    for (int round = 0; round < rounds; ++round) {
      FromHost(out, sent_ + static_cast<std::size_t>(round) % kSets * kMostBytes, kMostBytes);
      Sleep(delay(true));
      Must(recorded ? graph->Run({}) : body());
      Sleep(delay(false));
      Must(cudaMemcpyAsync(received_ + round * kMostBytes, in, kMostBytes, cudaMemcpyDeviceToHost,
                           backend_->device().compute()));
    }
    Must(backend_->Synchronize());
    int wrong = 0;
    for (int round = 0; round < rounds; ++round) {
      bool right = true;
      for (std::int64_t i = 0; i < kMostBytes && right; ++i) {
        right =
            received_[round * kMostBytes + i] == content(peer, static_cast<std::size_t>(round) % kSets, i);
      }
      wrong += right ? 0 : 1;
    }
    return wrong;
  }

  void PrepareTransfers() {
    const bool first = rank_ == 0;
    for (const std::int32_t stream : {first ? plan::kSendNext : plan::kSendPrevious,
                                      first ? plan::kReceiveNext : plan::kReceivePrevious}) {
      Must(communicator_->PrepareTransfer(1 - rank_, stream, true));
    }
  }

 private:
  std::byte* Take(std::int64_t bytes) {
    std::byte* const taken = free_;
    free_ += (bytes + 255) / 256 * 256;
    REQUIRE(free_ - backend_->arena().data() <= kPushArenaBytes);
    return taken;
  }
  // `delay` before the reader of a direct sum.
  absl::Status Launch(Trial& trial, const std::function<int(bool before)>& delay) {
    RETURN_IF_ERROR(Exchange(trial));
    if (!trial.unsummed) return absl::OkStatus();
    if (trial.direct) Sleep(delay(true));
    const std::byte* const part = trial.direct ? trial.launch->OtherPart() : trial.args.scratch.data();
    REQUIRE(backend::cuda::SumParts(trial.args.output.data, part, trial.output_bytes(), 2, trial.args.index,
                                    trial.dtype, trial.args.output.shape.elements(), trial.result,
                                    backend_->device().compute()));
    return trial.direct ? trial.launch->Release() : absl::OkStatus();
  }
  absl::Status Exchange(Trial& trial) {
    const std::int32_t stream = trial.instruction.stream;
    if (stream == plan::kComputeStream) {
      RETURN_IF_ERROR(trial.launch->Run({}));
      return trial.launch->Finish();
    }
    ASSIGN_OR_RETURN(const std::int64_t begun, backend_->Signal(plan::kComputeStream));
    RETURN_IF_ERROR(backend_->Await(stream, begun));
    RETURN_IF_ERROR(trial.launch->Run({}));
    ASSIGN_OR_RETURN(const std::int64_t ended, backend_->Signal(stream));
    RETURN_IF_ERROR(backend_->Await(plan::kComputeStream, ended));
    return trial.launch->Finish();
  }
  void FromHost(void* to, const void* from, std::int64_t bytes) {
    Must(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice,
                         backend_->device().compute()));
  }
  // Of the stream, not of the host.
  void Sleep(std::intptr_t time) {
    if (time == 0) return;
    const auto sleep = [](void* us) {
      std::this_thread::sleep_for(microseconds(reinterpret_cast<std::intptr_t>(us)));
    };
    Must(cudaLaunchHostFunc(backend_->device().compute(), sleep, reinterpret_cast<void*>(time)));
  }
  // Bit by bit; a log-sum-exp, which the CPU computes otherwise, within roundings: numbers below 8 in the
  // difference from the largest, in exp, log and the sum.
  bool IsRight(const Trial& trial, std::size_t set, const std::byte* got) const {
    const RawBytes& expected = trial.expected[set];
    if (!trial.log_sum_exp()) return std::memcmp(got, expected.data(), expected.size()) == 0;
    constexpr float kBound = 8 * 8 * 0x1p-24F;
    for (std::size_t i = 0; i < expected.size(); i += sizeof(float)) {
      float a = 0;
      float b = 0;
      std::memcpy(&a, got + i, sizeof(a));
      std::memcpy(&b, expected.data() + i, sizeof(b));
      if (!(std::abs(a - b) <= kBound)) return false;
    }
    return true;
  }

  const std::int64_t rank_, ranks_;
  FileStore store_;
  std::unique_ptr<CudaBackend> backend_;
  std::unique_ptr<PushCommunicator> communicator_;
  std::byte* free_ = nullptr;  // of the arena
  std::byte* sent_ = nullptr;
  std::byte* received_ = nullptr;
  std::vector<std::unique_ptr<Trial>> launches_;
};

constexpr DType kSummed[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64};

// Sizes that are not whole words, and one that takes a while, of each form.
void AddFixed(Rank* rank, DType dtype) {
  const std::int64_t n = rank->ranks();
  constexpr Reduction kSum = Reduction::kSum;
  rank->Add(Along(n, Collective::kAllReduce, kSum, {7, 13, 3}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kAllReduce, kSum, {16}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kAllReduce, kSum, {3}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kAllReduce, kSum, {131'071}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kReduceScatter, kSum, {n, 13, 3}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kReduceScatter, kSum, {5, n * 3, 7}, 1, 0), dtype);
  rank->Add(Along(n, Collective::kReduceScatter, kSum, {4, n * 64, 160}, 1, 0), dtype);
  rank->Add(Along(n, Collective::kAllGather, kSum, {n, 13, 3}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kAllGather, kSum, {5, n * 3, 7}, 1, 0), dtype);
  rank->Add(Along(n, Collective::kAllGather, kSum, {3, 5, n}, 2, 0), dtype);
  rank->Add(Along(n, Collective::kAllGather, kSum, {4, n * 64, 160}, 1, 0), dtype);
  rank->Add(Along(n, Collective::kAllToAll, kSum, {n * 3, n * 5, 7}, 0, 1), dtype);
  rank->Add(Along(n, Collective::kAllToAll, kSum, {2, n * 32, n * 4, 40}, 1, 2), dtype);
}

void AddDirect(Rank* rank, DType dtype) {
  if (rank->ranks() != 2) return;
  constexpr Reduction kSum = Reduction::kSum;
  rank->Add(Along(2, Collective::kAllReduce, kSum, {7, 13, 3}, 0, 0), dtype, true);
  rank->Add(Along(2, Collective::kAllReduce, kSum, {131'072}, 0, 0), dtype, true);
  rank->Add(Along(2, Collective::kReduceScatter, kSum, {2, 13, 3}, 0, 0), dtype, true);
  rank->Add(Along(2, Collective::kReduceScatter, kSum, {512, 160}, 0, 0), dtype, true);
}

void AddRandom(Rank* rank) {
  std::mt19937_64 random(17);  // the same cases on every rank
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather, Collective::kAllToAll}) {
    for (std::size_t i = 0; i < 8; ++i) {
      Case c = backend::cpu::DrawCase(collective, random, rank->ranks());
      while (c.reduction != Reduction::kSum) c = backend::cpu::DrawCase(collective, random, rank->ranks());
      rank->Add(c, kSummed[i % std::size(kSummed)]);
    }
  }
}

// Now and then up to 2 ms.
std::function<int(bool)> AtRandom(std::int64_t rank) {
  return [random = std::mt19937(static_cast<unsigned>(rank))](bool) mutable {
    return random() % 4 == 0 ? static_cast<int>(random() % 2000) : 0;
  };
}

struct Setting {
  int ranks = 2;
  bool ready = true;
  std::string hidden;  // from rank 0, of what ranks tell each other
};

// This program again as that many ranks, with that test case alone. What all of them wrote.
cli::ProgramResult RunRanks(const std::string& test_case, const Setting& setting) {
  const data::TempDir folder;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string command = fmt::format(
      "export CUDA_DEVICE_MAX_CONNECTIONS=32 ENGINE_PUSH_RANKS={} ENGINE_PUSH_READY={} ENGINE_PUSH_HIDDEN={} "
      "ENGINE_PUSH_FOLDER='{}'; failed=0; ranks=; ",
      setting.ranks, setting.ready ? 1 : 0, setting.hidden, folder.path());
  for (int rank = 0; rank < setting.ranks; ++rank) {
    command += fmt::format(
        "ENGINE_PUSH_RANK={} timeout -k 5 150 '{}' --no-skip --test-case='{}' > '{}/{}.txt' 2>&1 & "
        "ranks=\"$ranks $!\"; ",
        rank, self, test_case, folder.path(), rank);
  }
  command += fmt::format("for rank in $ranks; do wait $rank || failed=1; done; cat '{}'/*.txt; exit $failed",
                         folder.path());
  return cli::RunShell(command);
}

constexpr const char* kEveryForm = "gpu child: every pushed conversion";
constexpr const char* kTransfers = "gpu child: transfers between two stages";
constexpr const char* kSlowPeer = "gpu child: pushes to a slow peer";
constexpr const char* kByNccl = "exchange by NCCL, not by copy engines";

bool Skipped(int needed) {
  if (Gpus() >= needed) return false;
  MESSAGE("skipped: " << (Gpus() == 1 ? "one GPU" : "too few GPUs") << ", " << needed << " are needed");
  return true;
}

}  // namespace

TEST_CASE("gpu child: every pushed conversion" * doctest::skip()) {
  Rank rank;
  for (const DType dtype : kSummed) AddFixed(&rank, dtype);
  for (const std::int64_t size : {1, 1001, 40'000}) {
    rank.Add(Along(rank.ranks(), Collective::kAllReduce, Reduction::kLogSumExp, {size}, 0, 0), DType::kF32);
  }
  AddRandom(&rank);
  for (const DType dtype : kSummed) AddDirect(&rank, dtype);
  rank.Connect();
  const auto delay = AtRandom(rank.rank());
  for (const auto& trial : rank.trials()) {
    if (!trial->takes_part) continue;
    for (const bool recorded : {false, true}) {
      const int rounds = recorded ? kRounds : 7;
      const int wrong = rank.WrongRounds(*trial, rounds, recorded, delay);
      CHECK_MESSAGE(wrong == 0, trial->name() << (recorded ? ", replayed: " : ": ") << wrong << " of "
                                              << rounds << " rounds are wrong");
    }
  }
  rank.CheckOneGraph(delay);
}

TEST_CASE("gpu child: transfers between two stages" * doctest::skip()) {
  Rank rank(/*stages=*/true);
  rank.PrepareTransfers();
  rank.Connect();
  const auto delay = AtRandom(rank.rank());
  for (const bool recorded : {false, true}) {
    const int wrong = rank.WrongTransfers(kRounds, recorded, delay);
    CHECK_MESSAGE(wrong == 0, (recorded ? "replayed: " : "launched: ") << wrong << " rounds are wrong");
  }
}

// Rank 1 reads what it was given late: until then nobody may push the next.
TEST_CASE("gpu child: pushes to a slow peer" * doctest::skip()) {
  Rank rank;
  rank.Add(Along(rank.ranks(), Collective::kAllGather, Reduction::kSum, {rank.ranks(), 1 << 17}, 0, 0),
           DType::kF32);
  rank.Connect();
  const bool slow = rank.rank() == 1;
  const int wrong =
      rank.WrongRounds(*rank.trials()[0], 20, false, [&](bool before) { return slow && !before ? 3000 : 0; });
  CHECK_MESSAGE(wrong == 0, wrong << " of 20 rounds are wrong on rank " << rank.rank());
}

TEST_CASE("gpu push: two ranks get what the CPU's collectives give, launched and replayed") {
  if (Skipped(2)) return;
  const cli::ProgramResult result = RunRanks(kEveryForm, {});
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  CHECK(cli::Contains(result.output, "1 passed"));
  CHECK_MESSAGE(result.output.find(kByNccl) == std::string::npos, result.output);
}

TEST_CASE("gpu push: two stages of a pipeline, pushed and by NCCL") {
  if (Skipped(2)) return;
  for (const char* hidden : {"", "push/memory/1"}) {
    const cli::ProgramResult result = RunRanks(kTransfers, {.ranks = 2, .ready = true, .hidden = hidden});
    CHECK_MESSAGE(result.exit_code == 0, result.output);
    CHECK(cli::Contains(result.output, "1 passed"));
    CHECK((result.output.find(kByNccl) != std::string::npos) == (*hidden != '\0'));
  }
}

TEST_CASE("gpu push: more than two ranks add up in parts") {
  if (Skipped(3)) return;
  const cli::ProgramResult result =
      RunRanks(kEveryForm, {.ranks = std::min(Gpus(), 4), .ready = true, .hidden = ""});
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  CHECK(cli::Contains(result.output, "1 passed"));
  CHECK_MESSAGE(result.output.find(kByNccl) == std::string::npos, result.output);
}

TEST_CASE("gpu push: a peer is pushed to when it is ready, and would get wrong numbers else") {
  if (Skipped(2)) return;
  cli::ProgramResult result = RunRanks(kSlowPeer, {});
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  result = RunRanks(kSlowPeer, {.ranks = 2, .ready = false, .hidden = ""});
  CHECK(result.exit_code != 0);
  CHECK(cli::Contains(result.output, "of 20 rounds are wrong on rank 1"));
}

TEST_CASE("gpu push: ranks that do not reach each other's memory exchange by NCCL, all of them") {
  if (Skipped(2)) return;
  const cli::ProgramResult result =
      RunRanks(kEveryForm, {.ranks = 2, .ready = true, .hidden = "push/memory/1"});
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  CHECK(cli::Contains(result.output, "1 passed"));
  CHECK(cli::Contains(result.output,
                      fmt::format("note: ranks 0, 1 {}: rank 0 does not reach the memory of rank 1: it "
                                  "cannot share its memory",
                                  kByNccl)));
}

}  // namespace engine::gpu_test
