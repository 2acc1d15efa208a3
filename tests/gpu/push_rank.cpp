#include "tests/gpu/push_rank.h"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "engine/backend/cpu/world.h"
#include "engine/backend/cuda/kernels/exchange.h"
#include "engine/backend/cuda/libraries/libraries.h"
#include "engine/base/half.h"
#include "tests/data/temp_dir.h"
#include "tests/gpu/world.h"

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
constexpr std::int64_t kMostBytes = std::int64_t{2} << 20;  // of an output

void MustSucceed(cudaError_t error) { REQUIRE_MESSAGE(error == cudaSuccess, cudaGetErrorString(error)); }

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

}  // namespace

std::string Trial::name() const {
  return fmt::format("{}{}{} of {} {} from {} to {}", plan::Name(instruction.collective()),
                     log_sum_exp() ? " (log-sum-exp)" : "",
                     direct     ? " (read by its reader)"
                     : unsummed ? " (left to its reader)"
                                : "",
                     Name(dtype), c.shape.ToString(), c.from.ToString(), c.to.ToString());
}

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

Rank::Rank(bool stages)
    : rank_(std::stoll(Variable("ENGINE_PUSH_RANK"))),
      ranks_(std::stoll(Variable("ENGINE_PUSH_RANKS"))),
      store_(std::make_unique<FileStore>(Variable("ENGINE_PUSH_FOLDER"),
                                         rank_ == 0 ? Variable("ENGINE_PUSH_HIDDEN") : "")) {
  backend::cuda::DeviceOptions options;
  options.index = static_cast<int>(rank_);
  auto opened = CudaBackend::Create(options);
  Must(opened.status());
  backend_ = std::move(*opened);
  Must(backend::cuda::LoadNccl().status());
  const auto arena = backend_->AllocateArena(kPushArenaBytes + (stages ? rank_ : 0) * kMostBytes);
  Must(arena.status());
  free_ = *arena;
  const std::string left_out = Variable("ENGINE_PUSH_LEFT_OUT");
  communicator_ = std::make_unique<PushCommunicator>(
      backend_.get(), store_.get(), rank_,
      backend::cuda::PushOptions{.ready = left_out != "ready", .release = left_out != "release"});
  MustSucceed(cudaMallocHost(reinterpret_cast<void**>(&sent_), kSets * kMostBytes));
  MustSucceed(cudaMallocHost(reinterpret_cast<void**>(&received_), kRounds * kMostBytes));
}

Rank::~Rank() {
  launches_.clear();
  static_cast<void>(backend_->Synchronize());
  static_cast<void>(store_->Set(fmt::format("end/{}", rank_), ""));
  for (std::int64_t rank = 0; rank < ranks_; ++rank)
    static_cast<void>(store_->Get(fmt::format("end/{}", rank)));
  communicator_.reset();
  cudaFreeHost(sent_);
  cudaFreeHost(received_);
}

void Rank::Add(const Case& c, DType dtype, bool direct) {
  launches_.push_back(std::make_unique<Trial>());
  Trial& trial = *launches_.back();
  const std::size_t number = launches_.size();
  trial.c = c;
  trial.dtype = dtype;
  trial.instruction = backend::cpu::InstructionOf(c);
  trial.instruction.name = fmt::format("trial {}", number);
  trial.instruction.AsExchange()->push = true;
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
  // The CPU, which says what is right, adds up in order of rank.
  const auto members = static_cast<std::int64_t>(trial.args.group.size());
  const bool sums = c.reduction == Reduction::kSum &&
                    (c.collective == Collective::kAllReduce || c.collective == Collective::kReduceScatter);
  if (sums && !trial.unsummed && (members > 2 || number % 2 == 0))
    trial.instruction.AsConversion()->addition = plan::Addition::kInOrder;
  const std::int64_t scratch =
      backend_->Profile().exchange_bytes(*trial.instruction.AsConversion(), {trial.args.input.shape, dtype},
                                         {trial.args.output.shape, dtype}, members);
  trial.args.scratch = {Take(scratch), static_cast<std::size_t>(scratch)};
  if (!trial.takes_part) return;
  for (std::size_t set = 0; set < kSets; ++set) {
    if (dtype == DType::kF64) {
      MakeSet<double>(rank_, number, &trial, set);
    } else {
      MakeSet<float>(rank_, number, &trial, set);
    }
  }
  if (trial.unsummed) {
    trial.instruction.AsConversion()->addition =
        trial.direct ? plan::Addition::kByDirectReader : plan::Addition::kByReader;
  }
  auto launch = communicator_->Prepare(trial.args);
  Must(launch.status());
  trial.launch = std::move(*launch);
}

void Rank::Connect() {
  Must(communicator_->Connect());
  Must(backend_->ClearArena());
}

int Rank::WrongRounds(Trial& trial, int rounds, bool recorded, const std::function<int(bool before)>& delay) {
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
    MustSucceed(cudaMemcpyAsync(received_ + round * kMostBytes, trial.result,
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

void Rank::CheckOneGraph(const std::function<int(bool before)>& delay) {
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
      MustSucceed(cudaMemsetAsync(trial->result, 0xFF, static_cast<std::size_t>(trial->output_bytes()),
                                  backend_->device().compute()));
      const RawBytes& input = trial->inputs[static_cast<std::size_t>(round) % kSets];
      FromHost(trial->args.input.data, input.data(), trial->input_bytes());
    }
    Sleep(delay(true));
    Must((*graph)->Run({}));
  }
  for (const auto& trial : launches_) {
    if (!trial->takes_part) continue;
    Must(backend_->Download(received_, static_cast<const std::byte*>(trial->result), trial->output_bytes()));
    CHECK_MESSAGE(IsRight(*trial, (kRounds - 1) % kSets, received_), trial->name() << ": in one graph");
  }
}

int Rank::WrongTransfers(int rounds, bool recorded, const std::function<int(bool before)>& delay) {
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
    MustSucceed(cudaMemcpyAsync(received_ + round * kMostBytes, in, kMostBytes, cudaMemcpyDeviceToHost,
                                backend_->device().compute()));
  }
  Must(backend_->Synchronize());
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    bool right = true;
    for (std::int64_t i = 0; i < kMostBytes && right; ++i) {
      right = received_[round * kMostBytes + i] == content(peer, static_cast<std::size_t>(round) % kSets, i);
    }
    wrong += right ? 0 : 1;
  }
  return wrong;
}

void Rank::PrepareTransfers() {
  const bool first = rank_ == 0;
  for (const std::int32_t stream :
       {first ? plan::kSendNext : plan::kSendPrevious, first ? plan::kReceiveNext : plan::kReceivePrevious}) {
    Must(communicator_->PrepareTransfer(1 - rank_, stream, true));
  }
}

std::byte* Rank::Take(std::int64_t bytes) {
  std::byte* const taken = free_;
  free_ += (bytes + 255) / 256 * 256;
  REQUIRE(free_ - backend_->arena().data() <= kPushArenaBytes);
  return taken;
}

absl::Status Rank::Launch(Trial& trial, const std::function<int(bool before)>& delay) {
  RETURN_IF_ERROR(Exchange(trial));
  if (!trial.unsummed) return absl::OkStatus();
  if (trial.direct) Sleep(delay(true));
  const std::byte* const part = trial.direct ? trial.launch->OtherPart() : trial.args.scratch.data();
  REQUIRE(backend::cuda::SumParts(trial.args.output.data, part, trial.output_bytes(), 2, trial.args.index,
                                  trial.dtype, trial.args.output.shape.elements(), trial.result,
                                  backend_->device().compute()));
  return trial.direct ? trial.launch->Release() : absl::OkStatus();
}

absl::Status Rank::Exchange(Trial& trial) {
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

void Rank::FromHost(void* to, const void* from, std::int64_t bytes) {
  MustSucceed(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice,
                              backend_->device().compute()));
}

void Rank::Sleep(std::intptr_t time) {
  if (time == 0) return;
  const auto sleep = [](void* us) {
    std::this_thread::sleep_for(microseconds(reinterpret_cast<std::intptr_t>(us)));
  };
  MustSucceed(cudaLaunchHostFunc(backend_->device().compute(), sleep, reinterpret_cast<void*>(time)));
}

bool Rank::IsRight(const Trial& trial, std::size_t set, const std::byte* got) const {
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

}  // namespace engine::gpu_test
