// Hosts that keep in touch, as threads of this process.
#include "engine/launch/roster.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/status.h"
#include "tests/launch/background.h"
#include "tests/launch/by_hand.h"

namespace engine::launch {
namespace {

constexpr int kLostHere = 5;
constexpr int kStoppedHere = 6;
constexpr auto kNo = [] { return false; };
constexpr auto kYes = [] { return true; };

// Hosts of a run that begins again as often as it may.
struct Rosters {
  Rosters(std::int64_t nodes, std::int64_t hosts) : endpoint{"127.0.0.1", FreePort()} {
    for (std::int64_t host = 0; host < hosts; ++host) hosts_here.push_back(nullptr);
    options.table = {.nodes = nodes,
                     .hosts = hosts,
                     .min_nodes = nodes,
                     .patience = std::chrono::seconds(20),
                     .settling = std::chrono::milliseconds(4800),
                     .lost_code = kLostHere,
                     .judge =
                         [](std::int64_t attempts, const std::vector<HostEnd>& ends) {
                           Sequel sequel;
                           sequel.text = fmt::format("attempt {} ended", attempts);
                           for (const HostEnd& end : ends) {
                             if (end.code != 0 && !end.asked_to_stop) continue;
                             sequel.ends = true;
                             sequel.code = end.code;
                           }
                           return sequel;
                         },
                     .fit = {},
                     .begins = {}};
    options.coordinator = endpoint;
    options.token = "token";
    options.heartbeat_timeout =
        std::chrono::milliseconds(1600);  // threads of a busy machine wait for most of a second
    options.stopped_code = kStoppedHere;
  }
  void Start(std::int64_t host, const std::string& process = "p") {
    Roster::Options own = options;
    own.host = host;
    own.process = process;
    own.copies_port = 7000 + static_cast<int>(host);
    Descriptor listener;
    if (host == 0) {
      absl::StatusOr<Descriptor> made = Listen(endpoint);
      REQUIRE_MESSAGE(made.ok(), Message(made.status()));
      listener = *std::move(made);
    }
    hosts_here[static_cast<std::size_t>(host)] =
        std::make_unique<Roster>(std::move(own), std::move(listener));
  }
  void StartAll() {
    for (std::size_t host = 0; host < hosts_here.size(); ++host) Start(static_cast<std::int64_t>(host));
  }
  void Lose(std::int64_t host) { hosts_here[static_cast<std::size_t>(host)].reset(); }
  std::future<Roster::Turn> Next(std::int64_t host, std::optional<int> code = std::nullopt) {
    Roster* roster = hosts_here[static_cast<std::size_t>(host)].get();
    return std::async(std::launch::async, [roster, code] {
      std::optional<HostEnd> end;
      if (code) end.emplace().code = *code;
      return roster->Next(end, kNo, kNo);
    });
  }

  Endpoint endpoint;
  Roster::Options options;
  std::vector<std::unique_ptr<Roster>> hosts_here;
};

}  // namespace

TEST_CASE("roster: a spare takes the place of a lost host, and the one that comes back is a spare") {
  Rosters run(2, 3);
  run.StartAll();
  std::future<Roster::Turn> spare = run.Next(2);
  const Roster::Turn first = run.Next(0).get();
  const Roster::Turn second = run.Next(1).get();
  CHECK(first.node == 0);
  CHECK(first.listener.open());
  CHECK(PortOf(first.listener) == first.ranks_at.port);
  CHECK(second.node == 1);
  CHECK(second.ranks_at.port == first.ranks_at.port);
  CHECK(!second.listener.open());

  run.Lose(1);
  std::future<Roster::Turn> again = run.Next(0, kLostHere);
  const Roster::Turn replaced = spare.get();
  CHECK(replaced.node == 1);
  CHECK(replaced.generation == 2);
  CHECK(replaced.text == "attempt 1 ended; host 2 (p) has place 1");
  const Roster::Turn kept = again.get();
  CHECK(kept.node == 0);
  CHECK(kept.ranks_at.port != first.ranks_at.port);
  CHECK(replaced.ranks_at.port == kept.ranks_at.port);

  run.Start(1, "another");
  std::future<Roster::Turn> waits = run.Next(1);
  CHECK(waits.wait_for(std::chrono::milliseconds(600)) == std::future_status::timeout);
  std::future<Roster::Turn> ends = run.Next(0, 0);
  std::future<Roster::Turn> too = run.Next(2, 0);
  CHECK(ends.get().over);
  CHECK(too.get().over);
  CHECK(waits.get().over);
}

TEST_CASE(
    "roster: where the host that leads is lost, the next one leads on, and it finds them when it comes "
    "back") {
  Rosters run(2, 4);
  run.StartAll();
  std::future<Roster::Turn> spare = run.Next(2);
  std::future<Roster::Turn> other_spare = run.Next(3);
  run.Next(0).get();
  run.Next(1).get();
  for (const auto& host : run.hosts_here) {  // a spare that has not met the others could not find them
    for (int i = 0; i < 2000 && host->hosts_here() < 4; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    REQUIRE(host->hosts_here() == 4);
  }
  run.Lose(0);
  std::future<Roster::Turn> again = run.Next(1, kLostHere);
  const Roster::Turn replaced = spare.get();
  CHECK(replaced.node == 0);
  CHECK(replaced.generation == 2);
  CHECK(replaced.listener.open());
  CHECK(again.get().ranks_at.port == replaced.ranks_at.port);

  // It leads again, with attempt and places from the others, and is a spare.
  run.Start(0, "another");
  std::future<Roster::Turn> back = run.Next(0);
  CHECK(back.wait_for(std::chrono::milliseconds(1500)) == std::future_status::timeout);
  std::future<Roster::Turn> first_end = run.Next(1, 0);
  std::future<Roster::Turn> second_end = run.Next(2, 0);
  for (std::future<Roster::Turn>* turn : {&back, &first_end, &second_end, &other_spare}) {
    const Roster::Turn over = turn->get();
    CHECK(over.over);
    CHECK(over.code == 0);
  }
}

TEST_CASE("roster: without a spare all hosts hear of a smaller attempt, and of the next one with all again") {
  Rosters run(3, 3);
  run.options.table.min_nodes = 2;
  run.options.table.dp = 6;
  run.options.table.last_call = std::chrono::milliseconds(100);
  run.options.table.fit = [](std::int64_t hosts, std::int64_t) {
    return std::optional<AttemptSize>({.nodes = hosts, .dp = 4});
  };
  run.StartAll();
  std::future<Roster::Turn> first = run.Next(0);
  std::future<Roster::Turn> second = run.Next(1);
  CHECK(run.Next(2).get().size == AttemptSize{.nodes = 3, .dp = 6});
  first.get();
  second.get();
  run.Lose(0);  // which leads
  first = run.Next(1, kLostHere);
  second = run.Next(2, kLostHere);
  const Roster::Turn smaller = first.get();
  CHECK(smaller.size == AttemptSize{.nodes = 2, .dp = 4});
  CHECK(!smaller.from_disk);
  CHECK(smaller.copies_at == "127.0.0.1:7001,127.0.0.1:7002");
  CHECK(second.get().size == smaller.size);

  run.Start(0, "another");
  std::future<Roster::Turn> back = run.Next(0);
  CHECK(back.wait_for(std::chrono::milliseconds(1500)) == std::future_status::timeout);
  first = run.Next(1, kLostHere);
  second = run.Next(2, kLostHere);
  for (std::future<Roster::Turn>* turn : {&back, &first, &second}) {
    const Roster::Turn whole = turn->get();
    CHECK(!whole.over);
    CHECK(whole.size == AttemptSize{.nodes = 3, .dp = 6});
  }
}

TEST_CASE("roster: a host of another run, another secret, or a number that is taken, is refused") {
  Rosters run(2, 2);
  run.StartAll();
  run.Next(0).get();
  run.Next(1).get();
  const auto refusal = [&](const auto& change) {
    Roster::Options other = run.options;
    other.host = 1;
    other.process = "q";
    change(other);
    const Roster::Turn turn = Roster(other, Descriptor()).Next(std::nullopt, kNo, kNo);
    CHECK(turn.over);
    CHECK(turn.code == kLostHere);
    return turn.text;
  };
  CHECK(refusal([](Roster::Options&) {}) == "host 1 came (q), but that host is here already (p)");
  CHECK(refusal([](Roster::Options& other) { other.table.hosts = 3; }) ==
        "host 1 (q) is of a run of 3 hosts with its spares, but this one has 2");
  CHECK(refusal([](Roster::Options& other) { other.token = "another"; }) ==
        "the process that listens there does not know the token of this run: --token-file, or ENGINE_TOKEN, "
        "must be the same on all hosts of a run");
}

TEST_CASE("roster: where a host is missing and one came with another token, the reason says so") {
  Rosters run(2, 2);
  run.options.table.patience = std::chrono::seconds(2);
  run.Start(0);
  std::future<Roster::Turn> first = run.Next(0);
  Roster::Options other = run.options;
  other.host = 1;
  other.process = "q";
  other.token = "another";
  CHECK(Roster(other, Descriptor()).Next(std::nullopt, kNo, kNo).over);
  const Roster::Turn end = first.get();
  CHECK(end.over);
  CHECK(end.text ==
        "2 hosts are needed, and 1 is here; somebody came with another token, and was refused: --token-file, "
        "or ENGINE_TOKEN, must be the same on all hosts of a run");
}

TEST_CASE(
    "roster: a stop while nothing runs ends the run where a host with a place is asked, not where a spare "
    "is") {
  Rosters run(2, 3);
  run.Start(0);
  run.Start(2);
  std::future<Roster::Turn> first = run.Next(0);
  const Roster::Turn spare = run.hosts_here[2]->Next(std::nullopt, kYes, kNo);
  CHECK(spare.over);
  CHECK(spare.code == kStoppedHere);
  run.Lose(2);
  run.Start(1);
  CHECK(first.get().node == 0);
  run.Next(1).get();
  run.Lose(1);
  std::future<Roster::Turn> waits = run.Next(0, kLostHere);
  CHECK(waits.wait_for(std::chrono::milliseconds(700)) == std::future_status::timeout);
  run.Start(2);
  const Roster::Turn replaced = run.Next(2).get();
  CHECK(replaced.node == 1);
  CHECK(waits.get().generation == 2);
  // Host 1 has lost its place, and is told of no attempt until the next one begins.
  run.Start(1, "another");
  const Roster::Turn leaves = run.hosts_here[1]->Next(std::nullopt, kYes, kNo);
  CHECK(leaves.over);
  CHECK(leaves.code == kStoppedHere);
  run.Lose(1);
  run.Lose(2);
  bool asked = false;
  HostEnd lost;
  lost.code = kLostHere;
  const Roster::Turn stopped = run.hosts_here[0]->Next(
      lost, [&] { return asked = true; }, kNo);
  CHECK(asked);
  CHECK(stopped.over);
  CHECK(stopped.code == kStoppedHere);
}

TEST_CASE("roster: a host that waits alone ends well once the run has come to its end without it") {
  Rosters run(2, 2);
  run.Start(0);
  const auto begin = Clock::now();
  const Roster::Turn turn = run.hosts_here[0]->Next(
      std::nullopt, kNo, [&] { return Clock::now() - begin > std::chrono::milliseconds(300); });
  CHECK(turn.over);
  CHECK(turn.code == 0);
  CHECK(turn.text == "the run has come to its end while this host was not there");
  CHECK(Clock::now() - begin < run.options.table.patience / 2);
}

}  // namespace engine::launch
