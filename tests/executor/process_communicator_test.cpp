// Ranks that are processes, here threads with a connection each, against ranks that share memory: bit by bit.
#include "engine/backend/cpu/process_communicator.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "engine/backend/cpu/world.h"
#include "engine/base/memory_store.h"
#include "tests/executor/conversion_cases.h"

namespace engine::backend::cpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

void OnEachRank(std::int64_t ranks, const std::function<void(std::int64_t)>& body) {
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

using Worlds = std::vector<std::unique_ptr<ProcessWorld>>;

Worlds Connected(std::int64_t ranks) {
  MemoryStore store;
  Worlds worlds(static_cast<size_t>(ranks));
  std::vector<absl::Status> statuses(worlds.size());
  OnEachRank(ranks, [&](std::int64_t rank) {
    auto world = ProcessWorld::Connect({.rank = rank, .ranks = ranks}, &store);
    statuses[static_cast<size_t>(rank)] = world.status();
    if (world.ok()) worlds[static_cast<size_t>(rank)] = std::move(*world);
  });
  for (const absl::Status& status : statuses) REQUIRE_MESSAGE(status.ok(), Message(status));
  return worlds;
}

template <typename T>
using Buffers = std::vector<std::vector<T>>;  // by rank

template <typename T>
std::vector<T> Numbers(std::int64_t count, Random& random) {
  std::vector<T> numbers(static_cast<size_t>(count));
  for (T& number : numbers) {
    if constexpr (std::is_integral_v<T>) {
      number = static_cast<T>(Draw(random, -1'000'000, 1'000'000));
    } else {  // of many magnitudes: another order of summation rounds otherwise
      number =
          std::ldexp(std::uniform_real_distribution<T>(-1, 1)(random), static_cast<int>(Draw(random, -9, 9)));
    }
  }
  return numbers;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
constexpr DType kTypeOf = std::is_same_v<T, float>    ? DType::kF32
                          : std::is_same_v<T, double> ? DType::kF64
                                                      : DType::kI32;

// Makes rank's communicator, and says how many ranks there are.
struct Ranks {
  std::int64_t count;
  std::function<std::unique_ptr<Communicator>(std::int64_t rank)> make;
};

Ranks Threads(World* world, std::int64_t count) {
  return {count, [world](std::int64_t rank) { return std::make_unique<CpuCommunicator>(world, rank); }};
}
Ranks Processes(const Worlds& worlds, std::int64_t count) {
  return {count, [&](std::int64_t rank) {
            return std::make_unique<ProcessCommunicator>(worlds[static_cast<size_t>(rank)].get());
          }};
}

// Runs the collective twice on every rank: args(rank) without data. Outputs start as zeros; without `outputs`
// it is in place.
template <typename T>
void RunAll(const Ranks& ranks, const std::function<CollectiveArgs(std::int64_t)>& args, Buffers<T>* inputs,
            Buffers<T>* outputs) {
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks.count));
  OnEachRank(ranks.count, [&](std::int64_t rank) {
    const auto r = static_cast<size_t>(rank);
    CollectiveArgs mine = args(rank);
    mine.input.dtype = mine.output.dtype = kTypeOf<T>;
    mine.input.data = mine.output.data = (*inputs)[r].data();
    if (outputs != nullptr) {
      (*outputs)[r].assign(static_cast<size_t>(mine.output.shape.elements()), T(0));
      mine.output.data = (*outputs)[r].data();
    }
    const std::unique_ptr<Communicator> communicator = ranks.make(rank);
    const auto launch = communicator->Prepare(std::move(mine));
    statuses[r] = launch.status();
    for (int repeat = 0; repeat < 2 && statuses[r].ok(); ++repeat) statuses[r] = (*launch)->Run({});
  });
  for (const absl::Status& status : statuses) REQUIRE_MESSAGE(status.ok(), Message(status));
}

template <typename T>
void CheckConversion(const Case& c, const Worlds& worlds, Random& random) {
  const plan::Instruction instruction = InstructionOf(c);
  const auto args = [&](std::int64_t rank) { return ArgsOf(c, instruction, rank); };
  Buffers<T> inputs, of_threads(static_cast<size_t>(c.mesh.world())), of_processes = of_threads;
  for (std::int64_t rank = 0; rank < c.mesh.world(); ++rank) {
    inputs.push_back(Numbers<T>(args(rank).input.shape.elements(), random));
  }
  World world;
  RunAll<T>(Threads(&world, c.mesh.world()), args, &inputs, &of_threads);
  RunAll<T>(Processes(worlds, c.mesh.world()), args, &inputs, &of_processes);
  for (size_t rank = 0; rank < inputs.size(); ++rank) CHECK(SameBits(of_threads[rank], of_processes[rank]));
}

template <typename T>
void CheckFlat(Collective collective, Reduction reduction, std::int64_t members, std::int64_t elements,
               const Worlds& worlds, Random& random) {
  INFO(std::string(plan::Name(collective)) << " of " << elements << " elements by " << members);
  const plan::Instruction instruction = FlatOf(collective, reduction);
  const auto args = [&](std::int64_t rank) {
    CollectiveArgs mine;
    mine.instruction = &instruction;
    for (std::int64_t member = 0; member < members; ++member) mine.group.push_back(member);
    mine.index = rank;
    mine.input.shape = mine.output.shape = {elements};
    return mine;
  };
  Buffers<T> of_threads;
  for (std::int64_t rank = 0; rank < members; ++rank) of_threads.push_back(Numbers<T>(elements, random));
  Buffers<T> of_processes = of_threads;
  World world;
  RunAll<T>(Threads(&world, members), args, &of_threads, nullptr);
  RunAll<T>(Processes(worlds, members), args, &of_processes, nullptr);
  for (size_t rank = 0; rank < of_threads.size(); ++rank) {
    CHECK(SameBits(of_threads[rank], of_processes[rank]));
  }
}

// An all-reduce of one element, ready to run.
struct OneElement {
  OneElement(ProcessWorld* world, std::vector<std::int64_t> group, std::int64_t index) : communicator(world) {
    instruction = FlatOf(Collective::kAllReduce);
    CollectiveArgs args;
    args.instruction = &instruction;
    args.group = std::move(group);
    args.index = index;
    args.input.shape = {1};
    args.input.data = &value;
    args.output = args.input;
    launch = std::move(communicator.Prepare(std::move(args))).value();
  }
  float value = 1;
  plan::Instruction instruction;
  ProcessCommunicator communicator;
  std::unique_ptr<Launch> launch;
};

absl::Status ReceiveByte(ProcessWorld* world, std::int64_t peer) {
  std::byte got{};
  return ProcessCommunicator(world).Receive(peer, 0, &got, 1, 0);
}

absl::Status SendByte(ProcessWorld* world, std::int64_t peer) {
  const std::byte sent{};
  ProcessCommunicator communicator(world);
  ASSIGN_OR_RETURN(const std::int64_t ticket, communicator.Send(peer, 0, &sent, 1, 0, 0));
  return communicator.WaitSent(peer, 0, ticket);
}

// Runs `fail` while `wait` waits; how `wait` ended, at most a second after that.
absl::Status Interrupted(const std::function<absl::Status()>& wait, const std::function<void()>& fail,
                         milliseconds pause = milliseconds(50)) {
  absl::Status status;
  steady_clock::time_point end;
  std::thread waiting([&] {
    status = wait();
    end = steady_clock::now();
  });
  std::this_thread::sleep_for(pause);
  const steady_clock::time_point begin = steady_clock::now();
  fail();
  const steady_clock::time_point failed = steady_clock::now();
  waiting.join();
  CHECK(end > begin);
  CHECK(end - failed < std::chrono::seconds(1));
  return status;
}

}  // namespace

TEST_CASE("processes: every conversion gives the bits that threads give") {
  constexpr std::int64_t kRanks = 6;
  const Worlds worlds = Connected(kRanks);
  Random random(5);
  for (Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                Collective::kAllToAll, Collective::kSlice}) {
    for (int i = 0; i < 12; ++i) {
      Case c = DrawCase(collective, random, kRanks);
      INFO(std::string(plan::Name(collective))
           << " of " << c.shape.ToString() << " from " << c.from.ToString() << " to " << c.to.ToString());
      CheckConversion<float>(c, worlds, random);
      CheckConversion<double>(c, worlds, random);
      if (c.reduction == Reduction::kSum) CheckConversion<std::int32_t>(c, worlds, random);
    }
  }
}

TEST_CASE("processes: flat collectives give the bits that threads give") {
  const Worlds worlds = Connected(4);
  Random random(6);
  const std::pair<Collective, Reduction> kinds[] = {{Collective::kAllReduce, Reduction::kSum},
                                                    {Collective::kAllReduce, Reduction::kMax},
                                                    {Collective::kReduceScatter, Reduction::kSum},
                                                    {Collective::kAllGather, Reduction::kSum}};
  for (const auto& [collective, reduction] : kinds) {
    for (std::int64_t members : {1, 2, 3, 4}) {
      for (std::int64_t elements : {0, 1, 3, 4097, 50'001}) {  // fewer than members, no multiple of them
        CheckFlat<float>(collective, reduction, members, elements, worlds, random);
        CheckFlat<double>(collective, reduction, members, elements, worlds, random);
        CheckFlat<std::int32_t>(collective, reduction, members, elements, worlds, random);
      }
    }
  }
}

TEST_CASE("processes: groups that overlap, prepared in another order on every rank") {
  constexpr std::int64_t kRanks = 4;
  constexpr int kRounds = 60;
  const std::vector<std::vector<std::int64_t>> groups = {{0, 1}, {2, 3},    {0, 2},       {1, 3},
                                                         {0, 3}, {0, 1, 2}, {0, 1, 2, 3}, {2}};
  const Worlds worlds = Connected(kRanks);
  std::vector<std::array<float, 8>> values(kRanks);
  std::vector<std::array<float, 8>> expected(kRanks);
  for (size_t rank = 0; rank < kRanks; ++rank) values[rank].fill(static_cast<float>(rank + 1));
  expected = values;
  const plan::Instruction instruction = FlatOf(Collective::kAllReduce);
  std::atomic<int> errors{0};
  OnEachRank(kRanks, [&](std::int64_t rank) {
    ProcessCommunicator communicator(worlds[static_cast<size_t>(rank)].get());
    std::vector<std::unique_ptr<Launch>> launches(groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      const size_t g = (i * 3 + static_cast<size_t>(rank)) % groups.size();
      const auto place = std::find(groups[g].begin(), groups[g].end(), rank);
      if (place == groups[g].end()) continue;
      CollectiveArgs args;
      args.instruction = &instruction;
      args.group = groups[g];
      args.index = place - groups[g].begin();
      args.input.shape = {1};
      args.input.data = &values[static_cast<size_t>(rank)][g];
      args.output = args.input;
      auto launch = communicator.Prepare(std::move(args));
      if (launch.ok()) launches[g] = std::move(*launch);
    }
    for (int round = 0; round < kRounds; ++round) {
      for (size_t g = 0; g < groups.size(); ++g) {
        float& value = values[static_cast<size_t>(rank)][g];
        if (launches[g] == nullptr) continue;
        if (!launches[g]->Run({}).ok()) ++errors;
        value /= static_cast<float>(groups[g].size());
      }
    }
  });
  CHECK(errors == 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    float mean = 0;
    for (std::int64_t rank : groups[g]) mean += static_cast<float>(rank + 1);
    mean /= static_cast<float>(groups[g].size());  // 1.5, 3.5, 2, …: exact, so later rounds change nothing
    for (std::int64_t rank : groups[g]) CHECK(values[static_cast<size_t>(rank)][g] == mean);
  }
}

TEST_CASE("processes: all send before any receives, on channels that do not mix") {
  constexpr std::int64_t kRanks = 4;
  constexpr size_t kBytes = 3'000'001;  // more than a socket holds
  const Worlds worlds = Connected(kRanks);
  std::atomic<int> wrong{0};
  OnEachRank(kRanks, [&](std::int64_t rank) {
    ProcessCommunicator communicator(worlds[static_cast<size_t>(rank)].get());
    const auto content = [](std::int64_t from, std::int64_t to, std::int32_t channel) {
      return static_cast<std::byte>(from * 16 + to * 4 + channel);
    };
    std::map<std::pair<std::int64_t, std::int32_t>, std::pair<std::vector<std::byte>, std::int64_t>> sent;
    for (std::int64_t peer = 0; peer < kRanks; ++peer) {
      for (std::int32_t channel = 0; channel < 2 && peer != rank; ++channel) {
        auto& [bytes, ticket] = sent[{peer, channel}];
        bytes.assign(kBytes, content(rank, peer, channel));
        const auto offered =
            communicator.Send(peer, channel, bytes.data(), static_cast<std::int64_t>(kBytes), 0, 0);
        if (!offered.ok()) ++wrong;
        ticket = offered.value_or(0);
      }
    }
    std::vector<std::byte> got(kBytes);
    for (std::int32_t channel : {1, 0}) {
      for (std::int64_t peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        if (!communicator.Receive(peer, channel, got.data(), static_cast<std::int64_t>(kBytes), 0).ok())
          ++wrong;
        if (!SameBits(got, std::vector<std::byte>(kBytes, content(peer, rank, channel)))) ++wrong;
      }
    }
    for (const auto& [key, offer] : sent) {
      if (!communicator.WaitSent(key.first, key.second, offer.second).ok()) ++wrong;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("processes: a channel keeps the order, and a sender may wait for each of its offers") {
  constexpr int kOffers = 300;
  const Worlds worlds = Connected(2);
  std::vector<int> sent(kOffers);
  std::atomic<int> wrong{0};
  std::thread sending([&] {
    ProcessCommunicator communicator(worlds[0].get());
    std::int64_t ticket = 0;
    for (int i = 0; i < kOffers; ++i) {
      int& number = sent[static_cast<size_t>(i)];
      number = i;
      const auto offered =
          communicator.Send(1, 3, reinterpret_cast<std::byte*>(&number), i == 7 ? 0 : sizeof(int), 0, 0);
      if (!offered.ok() || *offered <= ticket) ++wrong;
      ticket = offered.value_or(0);
      if (i % 3 != 0) continue;
      if (!communicator.WaitSent(1, 3, ticket).ok()) ++wrong;
      number = -1;  // the bytes may change now
    }
    if (!communicator.WaitSent(1, 3, ticket).ok() || !communicator.WaitSent(1, 3, 1).ok()) ++wrong;
  });
  ProcessCommunicator communicator(worlds[1].get());
  for (int i = 0; i < kOffers; ++i) {
    int got = 7;
    const auto status =
        communicator.Receive(0, 3, reinterpret_cast<std::byte*>(&got), i == 7 ? 0 : sizeof(int), 0);
    if (!status.ok() || got != i) ++wrong;
  }
  sending.join();
  CHECK(wrong == 0);
}

TEST_CASE("processes: bytes of another size than expected, a type that is not exchanged, missing elements") {
  const Worlds worlds = Connected(2);
  ProcessCommunicator zero(worlds[0].get());
  ProcessCommunicator one(worlds[1].get());
  const std::array<std::byte, 3> bytes{};
  REQUIRE(zero.Send(1, 0, bytes.data(), 3, 0, 0).ok());
  std::array<std::byte, 2> small{};
  CHECK(Message(one.Receive(0, 0, small.data(), 2, 0)) == "3 bytes were sent where 2 are expected");
  plan::Instruction instruction = FlatOf(Collective::kAllReduce);
  instruction.name = "grad";
  CollectiveArgs args;
  args.instruction = &instruction;
  args.group = {0, 1};
  args.input.dtype = DType::kBF16;
  CHECK(Message(zero.Prepare(args).status()) == "the CPU executor exchanges no bf16 (grad)");
  Case c;
  c.mesh.sizes[static_cast<size_t>(Axis::kTp)] = 2;
  c.shape = {4};
  c.from.Set(Axis::kTp, Placement::S(0));
  instruction = InstructionOf(c);
  instruction.name = "gather";
  CHECK(Message(zero.Prepare(ArgsOf(c, instruction, 0)).status()) ==
        "gather: its group holds 2 of the 4 elements that rank 0 needs");
}

TEST_CASE("processes: a lost peer ends what waits for it, and nothing else") {
  for (const int what : {0, 1, 2}) {
    INFO("wait " << what);
    Worlds worlds = Connected(3);
    OneElement collective(worlds[0].get(), {0, 1}, 0);
    const auto wait = [&] {
      if (what == 0) return ReceiveByte(worlds[0].get(), 1);
      if (what == 1) return SendByte(worlds[0].get(), 1);
      return collective.launch->Run({});
    };
    const absl::Status status = Interrupted(wait, [&] { worlds[1].reset(); });
    CHECK(absl::IsUnavailable(status));
    CHECK(Message(status).starts_with("rank 1 was lost: Connection closed by peer"));
    CHECK(absl::IsUnavailable(ReceiveByte(worlds[0].get(), 1)));
    CHECK(absl::IsUnavailable(SendByte(worlds[0].get(), 1)));
    absl::Status of_sender;
    std::thread sender([&] { of_sender = SendByte(worlds[2].get(), 0); });
    CHECK(ReceiveByte(worlds[0].get(), 2).ok());
    sender.join();
    CHECK(of_sender.ok());
  }
}

// The keys of two processes, each of which sets one and gets the other's.
class PairStore final : public Store {
 public:
  explicit PairStore(int socket) : socket_(socket) {}
  absl::Status Set(const std::string&, std::string value) override {
    if (write(socket_, value.data(), value.size()) == static_cast<ssize_t>(value.size()))
      return absl::OkStatus();
    return absl::InternalError("write");
  }
  absl::StatusOr<std::string> Get(const std::string&) override {
    std::string value(4096, '\0');
    const ssize_t bytes = read(socket_, value.data(), value.size());
    if (bytes <= 0) return absl::InternalError("read");
    return value.substr(0, static_cast<size_t>(bytes));
  }

 private:
  int socket_;
};

TEST_CASE("processes: a peer that is killed when half of its bytes are here") {
  std::vector<std::byte> memory(size_t{1} << 28);
  const auto size = static_cast<std::int64_t>(memory.size());
  std::array<int, 2> sockets{};
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets.data()) == 0);
  const pid_t child = fork();
  const std::int64_t rank = child == 0 ? 1 : 0;
  PairStore store(sockets[static_cast<size_t>(rank)]);
  auto world = ProcessWorld::Connect({.rank = rank, .ranks = 2}, &store);
  if (child == 0) {
    std::fill(memory.begin(), memory.end(), std::byte{1});
    ProcessCommunicator communicator(world->get());
    const auto ticket = communicator.Send(0, 0, memory.data(), size, 0, 0);
    _exit(ticket.ok() && communicator.WaitSent(0, 0, *ticket).ok() ? 0 : 1);
  }
  REQUIRE_MESSAGE(world.ok(), Message(world.status()));
  const auto kill_sender = [&] {
    const volatile std::byte* first = memory.data();
    while (*first == std::byte{0}) std::this_thread::yield();
    kill(child, SIGKILL);
    int ended = 0;
    CHECK(waitpid(child, &ended, 0) == child);
    CHECK(WIFSIGNALED(ended));
  };
  const auto receive = [&] {
    return ProcessCommunicator(world->get()).Receive(1, 0, memory.data(), size, 0);
  };
  const absl::Status status = Interrupted(receive, kill_sender, milliseconds(0));
  CHECK(memory.back() == std::byte{0});  // not all had come
  CHECK(absl::IsUnavailable(status));
  for (int socket : sockets) close(socket);
}

TEST_CASE("processes: abort ends every wait with its reason, now and later") {
  for (const int what : {0, 1, 2}) {
    INFO("wait " << what);
    const Worlds worlds = Connected(2);
    OneElement collective(worlds[0].get(), {0, 1}, 0);
    const auto wait = [&] {
      if (what == 0) return ReceiveByte(worlds[0].get(), 1);
      if (what == 1) return SendByte(worlds[0].get(), 1);
      return collective.launch->Run({});
    };
    const absl::Status status = Interrupted(wait, [&] {
      worlds[0]->Abort(absl::AbortedError("rank 7 ran out of memory"));
      worlds[0]->Abort(absl::AbortedError("rank 8 heard of it"));
    });
    CHECK(status == absl::AbortedError("rank 7 ran out of memory"));
    CHECK(wait() == status);
  }
}

TEST_CASE("processes: an address that is not this machine's, a peer that does not answer") {
  MemoryStore store;
  const auto elsewhere =
      ProcessWorld::Connect({.rank = 0, .ranks = 2, .address = "203.0.113.1"}, &store).status();
  CHECK(absl::IsUnavailable(elsewhere));
  CHECK(Message(elsewhere).starts_with("rank 0 cannot listen on 203.0.113.1: "));

  // Rank 1 says where it listens and goes away.
  class Vanished final : public Store {
   public:
    absl::Status Set(const std::string&, std::string) override { return absl::OkStatus(); }
    absl::StatusOr<std::string> Get(const std::string&) override {
      Remember other;
      ProcessWorld::Connect({.rank = 1, .ranks = 2}, &other).status().IgnoreError();
      return other.value;
    }

   private:
    struct Remember final : Store {
      absl::Status Set(const std::string&, std::string text) override {
        value = std::move(text);
        return absl::OkStatus();
      }
      absl::StatusOr<std::string> Get(const std::string&) override { return absl::AbortedError("gone"); }
      std::string value;
    };
  } vanished;
  const auto alone =
      ProcessWorld::Connect({.rank = 0, .ranks = 2, .connect_timeout = milliseconds(500)}, &vanished)
          .status();
  CHECK(absl::IsUnavailable(alone));
  CHECK(Message(alone).starts_with("rank 0 cannot connect to rank 1: "));
}

}  // namespace engine::backend::cpu
