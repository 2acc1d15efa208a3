#include "engine/launch/rendezvous.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "tests/launch/by_hand.h"
#include "tests/launch/rendezvous_world.h"

namespace engine::launch {
namespace {

// What is written to it from now on.
class StandardError {
 public:
  StandardError() : file_(tmpfile()), before_(dup(STDERR_FILENO)) { dup2(fileno(file_), STDERR_FILENO); }
  ~StandardError() { Restore(); }
  StandardError(const StandardError&) = delete;
  StandardError& operator=(const StandardError&) = delete;

  std::string Restore() {
    if (before_ < 0) return "";
    dup2(before_, STDERR_FILENO);
    close(std::exchange(before_, -1));
    std::string text(4096, ' ');
    text.resize(static_cast<std::size_t>(pread(fileno(file_), text.data(), text.size(), 0)));
    fclose(file_);
    return text;
  }

 private:
  std::FILE* file_;
  int before_;
};

std::vector<Member> Three(const Member& third) { return {MemberOf(0, 3), MemberOf(1, 3), third}; }

}  // namespace

TEST_CASE("rendezvous: values, waits, barriers, a clean end") {
  World world(4);
  world.JoinAll();
  std::atomic<int> arrived = 0;
  world.OnAll([&](Client& client, std::int64_t rank) {
    REQUIRE(client.Set(fmt::format("from {}", rank), std::string(rank + 1, '\0')).ok());
    const absl::StatusOr<std::string> value = client.Get(fmt::format("from {}", (rank + 1) % 4));
    REQUIRE(value.ok());
    CHECK(value->size() == static_cast<std::size_t>((rank + 1) % 4 + 1));
    for (int round = 0; round < 20; ++round) {
      ++arrived;
      REQUIRE(client.Barrier("b").ok());
      CHECK(arrived >= 4 * (round + 1));
      REQUIRE(client.Barrier("c").ok());
    }
  });
  Client& first = *world.clients[0].value();
  Client& second = *world.clients[1].value();
  REQUIRE(first.Set("once", "1").ok());
  CHECK(*second.Take("once") == "1");
  std::thread late([&] { CHECK(*second.Take("once") == "2"); });  // forgotten, so it waits for the next
  std::this_thread::sleep_for(Milliseconds(20));
  REQUIRE(first.Set("once", "2").ok());
  late.join();
  CHECK(Message(first.Set("large", std::string(kMostFrameBytes, 'x'))) ==
        "large: 1048576 bytes are too many for the rendezvous");
  world.OnAll([](Client& client, std::int64_t) { CHECK(client.Barrier("end").ok()); });
  world.clients.erase(world.clients.begin() + 2);  // says goodbye, and is not missed
  std::this_thread::sleep_for(Milliseconds(50));
  CHECK(first.status().ok());
  world.CheckAborts(0);
}

TEST_CASE("rendezvous: many values at once, whatever order they come in; the end of the run ends the wait") {
  World world(3);
  world.JoinAll();
  world.OnAll([](Client& client, std::int64_t rank) {
    if (rank != 0) {
      std::this_thread::sleep_for(Milliseconds(rank == 1 ? 40 : 0));
      CHECK(client.Set("of " + std::to_string(rank), std::to_string(10 * rank)).ok());
      return;
    }
    const auto values = client.TakeAll({"of 1", "of 2"});
    REQUIRE(values.ok());
    CHECK((*values == std::vector<std::string>{"10", "20"}));
    CHECK(client.TakeAll({}).value().empty());
  });
  Client& zero = **world.clients[0];
  CHECK(zero.Set("here", "1").ok());
  std::thread failing([&] {
    std::this_thread::sleep_for(Milliseconds(40));
    (void)world.clients[2].value()->Fail(absl::InternalError("broken"));
  });
  const auto values = zero.TakeAll({"here", "of 1"});  // the second was taken: it does not come again
  failing.join();
  CHECK(absl::IsAborted(values.status()));
}

TEST_CASE("rendezvous: members that do not fit end the run with the reason") {
  const auto refused = [](const std::function<void(Member&)>& change, const std::string& text) {
    World world(3, {.join_timeout = std::chrono::seconds(20)});
    Member third = MemberOf(2, 3);
    change(third);
    world.Join(Three(third));
    std::size_t told = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      INFO(world.ErrorOf(i));
      CHECK(absl::IsAborted(world.clients[i].status()));
      told += world.ErrorOf(i).find(text) != std::string::npos ? 1 : 0;
    }
    CHECK(told == 3);
  };
  refused([](Member& m) { m.world = 4; },
          "rank 2 (host, pid 102) is of a run of 4 ranks, but this one has 3");
  refused([](Member& m) { m.rank = 7; }, "rank 7 (host, pid 102) is not below the 3 ranks of this run");
  refused([](Member& m) { m.build = "b2"; },
          "rank 2 (host, pid 102) runs another build of the program: b2 against b1 of rank 0");
  refused([](Member& m) { m.plan_hash = "p2"; },
          "rank 2 (host, pid 102) runs another recipe: plan hash p2 against p1 of rank 0");
}

TEST_CASE("rendezvous: a rank or a device twice") {
  {
    World world(3, {.linger = kFast});
    Member second = MemberOf(1, 3);
    second.process = "other";
    world.Join({MemberOf(0, 3), MemberOf(1, 3), second});
    const std::string text = world.ErrorOf(0);
    INFO(text);
    CHECK(text.find("came, but that rank is here already (") != std::string::npos);
    CHECK(world.ErrorOf(1).find("rank is here already") != std::string::npos);
  }
  World world(3);
  Member second = MemberOf(2, 3);
  second.device = "device 1";
  world.Join(Three(second));
  for (std::size_t i = 0; i < 3; ++i) CHECK(world.ErrorOf(i).ends_with("are on one device: device 1"));
}

TEST_CASE("rendezvous: a failure is told to a server that listens at once and answers late") {
  Endpoint endpoint{"127.0.0.1", 0};
  absl::StatusOr<Descriptor> listener = Listen(endpoint);
  REQUIRE(listener.ok());
  endpoint.port = PortOf(*listener);
  bool reported = false;
  std::thread failing(
      [&] { reported = Client::ReportFailure(endpoint, "token", MemberOf(1, 2), {}, "failed: no data"); });
  std::this_thread::sleep_for(kStartSkew + Milliseconds(500));  // rank 0 opens its data
  const auto server = Server::Start(*std::move(listener), "token", MemberOf(0, 2), {});
  const Joined rank0 = Client::Join(endpoint, "token", MemberOf(0, 2), {}, [](const absl::Status&) {});
  failing.join();
  CHECK(reported);
  // Both may be there for a moment; the run has ended for rank 0 then.
  const absl::Status end = rank0.ok() ? (*rank0)->Barrier("never") : rank0.status();
  CHECK_MESSAGE(Message(end).find("failed: no data") != std::string::npos, Message(end));
}

TEST_CASE("rendezvous: missing ranks are named") {
  World world(5, {.join_timeout = kFast});
  world.Join({MemberOf(0, 5), MemberOf(2, 5), MemberOf(3, 5)});
  CHECK(world.ErrorOf(0) == world.At(0) + "ranks 1, 4 did not come within 0.4 s");
  CHECK(world.ErrorOf(1) == world.At(2) + "ranks 1, 4 did not come within 0.4 s");
  CHECK(world.ErrorOf(2) == world.At(3) + "ranks 1, 4 did not come within 0.4 s");
}

TEST_CASE("rendezvous: a rank that fails ends all, and their waits") {
  World world(3);
  world.JoinAll();
  std::thread waiting([&] {
    CHECK(Message((*world.clients[1])->Get("never").status()) ==
          "rank 2 (host, pid 102) failed: the disk is full");
  });
  std::thread at_barrier([&] { CHECK(absl::IsAborted((*world.clients[0])->Barrier("never"))); });
  std::this_thread::sleep_for(Milliseconds(20));
  const absl::Status error = ResourceExhausted("the disk is full");
  CHECK((*world.clients[2])->Fail(error) == error);
  waiting.join();
  at_barrier.join();
  world.CheckAborts(2);  // not the one that failed
  // Another rank's trouble because of it is not what counts.
  CHECK(Message((*world.clients[1])->Fail(absl::AbortedError("its socket closed"))) ==
        "rank 2 (host, pid 102) failed: the disk is full");
  CHECK(absl::IsAborted((*world.clients[1])->Set("x", "y")));
}

TEST_CASE("rendezvous: an error that is another rank's doing waits for that one's reason") {
  World world(2);
  world.JoinAll();
  std::thread consequence([&] {
    CHECK(Message((*world.clients[0])->Fail(absl::UnavailableError("rank 1: connection reset"))) ==
          "rank 1 (host, pid 101) failed: no memory");
  });
  std::this_thread::sleep_for(Milliseconds(200));
  CHECK(!(*world.clients[1])->Fail(ResourceExhausted("no memory")).ok());
  consequence.join();
}

TEST_CASE("rendezvous: a rank that fails before it joins is not waited for") {
  for (const std::int64_t failing : {1, 0}) {
    World world(2);
    std::thread failure([&] {
      Member member = MemberOf(failing, 2);
      member.plan_hash.clear();
      Client::ReportFailure(world.endpoint, "token", member, {}, "failed: no data");
    });
    const Clock::time_point begin = Clock::now();
    world.Join({MemberOf(1 - failing, 2)});
    failure.join();
    if (world.clients[0].ok()) {  // both were there for a moment
      const absl::Status end = (*world.clients[0])->Barrier("never");
      CHECK(Message(end) == fmt::format("rank {} (host, pid {}) failed: no data", failing, 100 + failing));
    } else {
      CHECK(world.ErrorOf(0).ends_with(
          fmt::format("rank {} (host, pid {}) failed: no data", failing, 100 + failing)));
    }
    CHECK(Clock::now() - begin < std::chrono::seconds(2));
  }
}

TEST_CASE("rendezvous: a host whose ranks have not been started, of a world that nobody knows") {
  World world(2);
  std::thread failure([&] {
    const Member node{
        .rank = -1, .world = 7, .build = "", .plan_hash = "", .device = "", .process = "node 1 (b)"};
    Client::ReportFailure(world.endpoint, "token", node, {}, "failed: no recipe");
  });
  world.Join({MemberOf(0, 2)});
  failure.join();
  CHECK(world.ErrorOf(0) == world.At(0) + "node 1 (b) failed: no recipe");
}

TEST_CASE("rendezvous: what is told of a rank that has joined ends no run") {
  World world(2);
  world.JoinAll();
  Member member = MemberOf(1, 2);
  member.plan_hash.clear();
  Client::ReportFailure(world.endpoint, "token", member, {}, "failed: no data");
  std::this_thread::sleep_for(Milliseconds(100));
  CHECK((*world.clients[0])->status().ok());
}

TEST_CASE("rendezvous: a run that has ended before it began says so to all that come, and waits for them") {
  Endpoint endpoint{"127.0.0.1", 0};
  absl::StatusOr<Descriptor> listener = Listen(endpoint);
  REQUIRE(listener.ok());
  endpoint.port = PortOf(*listener);
  RendezvousOptions options;
  options.linger = std::chrono::seconds(5);
  Joined joined = absl::UnknownError("");
  std::thread late([&] {
    std::this_thread::sleep_for(Milliseconds(300));
    joined = Client::Join(endpoint, "token", MemberOf(1, 2), {}, [](const absl::Status&) {});
  });
  const Clock::time_point begin = Clock::now();
  Server::Start(*std::move(listener), "token", MemberOf(0, 2), options, "rank 0 (a) failed: no data");
  const Clock::duration taken = Clock::now() - begin;
  late.join();
  CHECK(Message(joined.status()) ==
        fmt::format("rank 1 at {}: rank 0 (a) failed: no data", endpoint.ToString()));
  CHECK(taken > Milliseconds(300));
  CHECK(taken < std::chrono::seconds(4));  // there is nobody else who could come
}

TEST_CASE("rendezvous: a rank that vanishes is lost") {
  {  // a member that speaks the protocol and then closes without a goodbye
    World other(2);
    Joined first = absl::UnknownError("");
    std::thread join([&] { other.Join({MemberOf(0, 2)}); });
    FrameStream stream = ComeAs(other.endpoint, "token", {"1", "2", "b1", "p1", "d", "host, pid 9"});
    join.join();
    REQUIRE(other.clients[0].ok());
    stream = FrameStream(Descriptor());
    CHECK(other.EndOfAll() == "rank 1 (host, pid 9) was lost: connection closed");
    other.CheckAborts(1);
  }
  {  // one that is silent
    World other(2, {.heartbeat_timeout = kFast});
    std::thread join([&] { other.Join({MemberOf(0, 2)}); });
    FrameStream stream = ComeAs(other.endpoint, "token", {"1", "2", "b1", "p1", "d", "host, pid 9"});
    join.join();
    CHECK(other.EndOfAll() == "rank 1 (host, pid 9) was lost: not heard of for 0.4 s");
  }
}

TEST_CASE("rendezvous: rank 0 vanishes, or is silent") {
  for (const bool closes : {true, false}) {
    absl::StatusOr<Descriptor> listener = Listen({"127.0.0.1", 0});
    const Endpoint endpoint{"127.0.0.1", PortOf(*listener)};
    std::atomic<bool> done = false;
    std::thread server([&] {
      FrameStream stream = AcceptNext(*listener);
      Welcome(stream, "token", Challenge(stream));
      Transmit(stream, MessageKind::kStart, {"host, pid 8"});
      while (!closes && !done) std::this_thread::sleep_for(Milliseconds(5));
    });
    const Joined joined = Client::Join(endpoint, "token", MemberOf(1, 2), {.heartbeat_timeout = kFast},
                                       [](const absl::Status&) {});
    REQUIRE(joined.ok());
    const absl::Status lost = (*joined)->Get("never").status();
    CHECK(Message(lost) == (closes ? "rank 0 (host, pid 8) was lost: connection closed"
                                   : "rank 0 (host, pid 8) was lost: not heard of for 0.4 s"));
    done = true;
    server.join();
  }
}

TEST_CASE("rendezvous: a run that hangs is ended with what each rank is at") {
  World world(2, {.hang_timeout = kFast});
  world.JoinAll();
  Client& first = *world.clients[0].value();
  Client& second = *world.clients[1].value();
  StandardError error;
  first.Begin(Work::kIteration, "the first pass");
  first.Progress("all_reduce loss", /*waits=*/true);
  second.Begin(Work::kSaving, "saving");
  std::this_thread::sleep_for(Milliseconds(1200));
  CHECK(first.status().ok());  // the other one is only slow, which is said once
  const std::string waiting = error.Restore();
  CHECK_MESSAGE(waiting.starts_with("note: no rank got on for 0.4 s; waited for:\n    rank 1 (host, "
                                    "pid 101): for "),
                waiting);
  CHECK(waiting.ends_with(" at saving\n"));
  CHECK(std::count(waiting.begin(), waiting.end(), '\n') == 2);
  const Clock::time_point begin = Clock::now();
  while (Clock::now() - begin < Milliseconds(800)) {  // it gets on
    second.Begin(Work::kIteration, "send h");
    std::this_thread::sleep_for(Milliseconds(50));
  }
  CHECK(first.status().ok());
  second.Watch([] { return std::string("its GPU is in reduce h.3"); });
  world.AwaitEndOfAll();
  const std::string reason = Message(first.status());
  CHECK(
      reason.starts_with("the run hangs: no rank got on for 0.4 s; all others wait for rank 1 (host, pid 101)"
                         "\n    rank 0 (host, pid 100): for "));
  CHECK(reason.find(" at all_reduce loss\n    rank 1 (host, pid 101): for ") != std::string::npos);
  CHECK(reason.ends_with(" at send h; its GPU is in reduce h.3"));
  CHECK(Message(second.status()) ==
        "the run hangs: no rank got on for 0.4 s; all others wait for rank 1 (host, pid 101); rank 0 says "
        "what each is at");
}

TEST_CASE("rendezvous: of very many ranks that hang, those are named that have stood still longest") {
  World world(22, {.hang_timeout = kFast});
  world.JoinAll();
  world.OnAll([](Client& client, std::int64_t rank) {
    client.Begin(Work::kIteration, fmt::format("work {}", rank));
    std::this_thread::sleep_for(Milliseconds(200));
    if (rank < 2) client.Progress("late");
  });
  world.AwaitEndOfAll();
  const std::string reason = Message((*world.clients[0])->status());
  CHECK(reason.find("\n    rank 21 (host, pid 121): for ") != std::string::npos);
  CHECK(reason.find(" at late") == std::string::npos);
  CHECK(reason.ends_with("\n    and 2 others, for less long"));
}

TEST_CASE("rendezvous: each rank hears at once after which iteration all stop") {
  World world(3);
  world.JoinAll();
  std::atomic<std::int64_t> sum = 0;
  world.OnAll([&](Client& client, std::int64_t rank) {
    client.OnStop([&](std::int64_t last) { sum += last; });
    for (std::int64_t i = 0; i <= rank; ++i) CHECK(*client.MayBegin(i));  // in the middle of which they are
  });
  (*world.clients[1])->RequestStop();
  for (int i = 0; i < 2000 && sum < 6; ++i) std::this_thread::sleep_for(Milliseconds(5));
  CHECK(sum == 6);  // each of the three heard of iteration 2
  CHECK(*(*world.clients[0])->MayBegin(2));
  CHECK(!*(*world.clients[0])->MayBegin(3));
}

TEST_CASE("rendezvous: all ranks stop after the same iteration") {
  for (int round = 0; round < 20; ++round) {
    World world(4);
    world.JoinAll();
    std::vector<std::int64_t> last(4, -1);
    std::atomic<std::int64_t> furthest = 0;
    world.OnAll([&](Client& client, std::int64_t rank) {
      for (std::int64_t i = 0;; ++i) {
        if (rank == round % 4 && i == 5 * round) client.RequestStop();
        const absl::StatusOr<bool> may = client.MayBegin(i);
        REQUIRE(may.ok());
        if (!*may) break;
        last[rank] = i;
        if (i % 3 == 0) REQUIRE(client.Barrier(fmt::format("{}", i)).ok());  // as collectives tie them
      }
    });
    CHECK(last == std::vector<std::int64_t>(4, last[0]));
    CHECK(last[0] >= 5 * round - 1);
  }
}

}  // namespace engine::launch
