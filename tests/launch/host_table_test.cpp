// Which host has which place, attempt by attempt.
#include "engine/launch/host_table.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

namespace engine::launch {
namespace {

constexpr int kLost = 5;
using Places = std::map<std::int64_t, std::int64_t>;  // host → place

// A table at a time that the test moves, and what it was asked to judge.
struct TestTable {
  explicit TestTable(std::int64_t nodes, std::int64_t hosts) : table(Options(nodes, hosts)) {
    std::set<std::int64_t> expected;
    for (std::int64_t node = 0; node < nodes; ++node) expected.insert(node);
    table.Take(0, expected, now + std::chrono::seconds(10), now);
  }
  HostTable::Options Options(std::int64_t nodes, std::int64_t hosts) {
    return {.nodes = nodes,
            .hosts = hosts,
            .patience = std::chrono::seconds(10),
            .settling = std::chrono::seconds(4),
            .lost_code = kLost,
            .judge = [this](std::int64_t attempts, const std::vector<HostEnd>& ends) {
              judged.push_back(ends.size());
              Sequel next = sequel;
              next.text = "attempt " + std::to_string(attempts);
              return next;
            }};
  }
  void Come(std::int64_t host, std::int64_t generation = 0, std::int64_t node = -1) {
    table.Come(host,
               {.process = "p" + std::to_string(host),
                .successor_at = "s" + std::to_string(host),
                .ranks_at = "r" + std::to_string(host),
                .generation = generation,
                .node = node},
               now);
  }
  void End(std::int64_t host, const HostEnd& end) {
    table.End(host, table.generation(), end, "r" + std::to_string(host));
  }
  static HostEnd EndOf(int code, const std::string& verdict = "") {
    HostEnd end;
    end.code = code;
    end.verdict = verdict;
    return end;
  }
  Places PlacesNow() {
    const std::optional<HostTable::News> news = table.Decide(now);
    REQUIRE(news);
    REQUIRE(!news->over);
    text = news->text;
    ranks_at = news->ranks_at;
    return news->nodes;
  }
  bool IsQuiet() { return !table.Decide(now).has_value(); }
  void Wait(std::chrono::milliseconds time) { now += time; }

  Clock::time_point now = Clock::now();
  Sequel sequel;
  std::vector<std::size_t> judged;
  std::string text, ranks_at;
  HostTable table;
};

}  // namespace

TEST_CASE(
    "host table: an attempt begins when all hosts with a place are here; a spare takes that of a lost one") {
  TestTable t(2, 3);
  t.Come(2);
  t.Come(0);
  CHECK(t.IsQuiet());
  t.Come(1);
  CHECK(t.PlacesNow() == Places{{0, 0}, {1, 1}});
  CHECK(t.ranks_at == "r0");
  CHECK(t.text.empty());
  CHECK(t.IsQuiet());

  t.table.Go(0, t.now);
  t.End(1, t.EndOf(kLost));
  CHECK(t.IsQuiet());  // host 0 may come back
  t.Wait(std::chrono::seconds(1));
  CHECK(t.PlacesNow() == Places{{1, 1}, {2, 0}});
  CHECK(t.ranks_at == "r2");
  CHECK(t.text == "attempt 1; host 2 (p2) has place 0");
  CHECK(t.judged == std::vector<std::size_t>{1});

  t.Come(0);  // as a spare
  t.End(1, t.EndOf(kLost));
  CHECK(t.IsQuiet());
  t.End(2, t.EndOf(4));
  CHECK(t.PlacesNow() == Places{{1, 1}, {2, 0}});
  CHECK(t.judged.back() == 2);
}

TEST_CASE("host table: a connection alone that is lost, and comes again, changes nothing") {
  TestTable t(2, 2);
  t.Come(0);
  t.Come(1);
  t.PlacesNow();
  t.table.Go(1, t.now);
  t.Come(1, 1, 1);
  t.Wait(std::chrono::seconds(5));
  CHECK(t.IsQuiet());
  t.table.End(1, 0, t.EndOf(0), "");  // of no attempt that counts
  t.End(0, t.EndOf(0));
  t.table.Go(0, t.now);
  t.Come(0, 1, 0);
  CHECK(t.IsQuiet());
  t.End(1, t.EndOf(0));
  t.sequel.ends = true;
  const std::optional<HostTable::News> news = t.table.Decide(t.now);
  REQUIRE(news);
  CHECK(news->over);
  CHECK(t.IsQuiet());
}

TEST_CASE("host table: a host that was not reached when an attempt began hears of it when it comes again") {
  TestTable t(2, 3);
  t.Come(0);
  t.Come(1);
  CHECK(t.PlacesNow() == Places{{0, 0}, {1, 1}});
  t.table.Go(1, t.now);
  t.Come(1, 0);
  CHECK(t.PlacesNow() == Places{{0, 0}, {1, 1}});
  CHECK(t.table.generation() == 1);
  t.Wait(std::chrono::seconds(5));
  CHECK(t.IsQuiet());
  CHECK(t.judged.empty());
  t.End(0, t.EndOf(kLost));
  CHECK(t.IsQuiet());  // it still has its place
}

TEST_CASE(
    "host table: without a spare a lost host is waited for, and the run is over where it does not come") {
  TestTable t(2, 2);
  t.Come(0);
  t.Come(1);
  t.PlacesNow();
  t.table.Go(1, t.now);
  t.End(0, t.EndOf(kLost));
  t.Wait(std::chrono::seconds(1));
  CHECK(t.IsQuiet());
  SUBCASE("it comes") {
    t.Come(1);
    CHECK(t.PlacesNow() == Places{{0, 0}, {1, 1}});
  }
  SUBCASE("it does not") {
    t.Wait(std::chrono::seconds(11));
    const std::optional<HostTable::News> news = t.table.Decide(t.now);
    REQUIRE(news);
    CHECK(news->over);
    CHECK(news->code == kLost);
    CHECK(news->text == "2 hosts are needed, and 1 is here");
  }
}

TEST_CASE("host table: a host that is to blame makes place for a spare, while there is one") {
  TestTable t(2, 3);
  for (const int host : {0, 1, 2}) t.Come(host);
  t.PlacesNow();
  t.End(0, t.EndOf(kLost));
  t.End(1, t.EndOf(137, "rank 1 was killed"));  // once may be chance
  CHECK(t.PlacesNow() == Places{{0, 0}, {1, 1}});
  t.End(0, t.EndOf(kLost));
  SUBCASE("its second failure") { t.End(1, t.EndOf(137, "rank 1 was killed")); }
  SUBCASE("its device") {
    HostEnd end = t.EndOf(4);
    end.is_suspect = true;
    t.End(1, end);
  }
  CHECK(t.PlacesNow() == Places{{0, 0}, {2, 1}});
  // The only one that is left for a lost host is taken, whoever is to blame.
  t.table.Go(0, t.now);
  t.End(2, t.EndOf(kLost));
  t.Wait(std::chrono::seconds(1));
  CHECK(t.PlacesNow() == Places{{1, 0}, {2, 1}});
}

TEST_CASE("host table: a spare stands in for a host that never came") {
  TestTable t(2, 3);
  t.Come(0);
  t.Come(2);
  CHECK(t.IsQuiet());
  t.Wait(std::chrono::seconds(11));
  CHECK(t.PlacesNow() == Places{{0, 0}, {2, 1}});
}

TEST_CASE("host table: whoever leads on takes the places from the hosts themselves") {
  TestTable t(3, 4);
  t.table.Take(7, {1, 2, 3}, t.now + std::chrono::seconds(4), t.now);
  t.Come(1, 7, 1);
  t.Come(3, 7, -1);
  t.End(1, t.EndOf(kLost));
  CHECK(t.IsQuiet());  // host 2 is on its way
  t.Come(2, 7, 2);
  CHECK(t.IsQuiet());  // its ranks have not ended
  t.End(2, t.EndOf(kLost));
  CHECK(t.PlacesNow() == Places{{1, 1}, {2, 2}, {3, 0}});
  CHECK(t.text == "attempt 7; host 3 (p3) has place 0");
  CHECK(t.table.generation() == 8);
}

TEST_CASE("host table: a host 0 that is started anew, and that others come to, has the places from them") {
  TestTable t(2, 3);
  t.Come(0);
  t.Come(2, 3, 0);
  t.End(2, t.EndOf(kLost));
  CHECK(t.IsQuiet());  // host 1 may be on its way
  SUBCASE("it is") {
    t.Come(1, 3, 1);
    CHECK(t.IsQuiet());
    t.End(1, t.EndOf(kLost));
    CHECK(t.PlacesNow() == Places{{1, 1}, {2, 0}});
  }
  SUBCASE("it is lost") {
    t.Wait(std::chrono::seconds(5));
    CHECK(t.PlacesNow() == Places{{0, 1}, {2, 0}});
  }
  CHECK(t.table.generation() == 4);
}

TEST_CASE("host table: a stop between attempts ends the run; a pause is kept") {
  TestTable t(2, 2);
  t.Come(0);
  t.Come(1);
  t.PlacesNow();
  t.sequel.pause = std::chrono::seconds(2);
  t.End(0, t.EndOf(kLost));
  t.End(1, t.EndOf(137, "killed"));
  CHECK(t.IsQuiet());
  t.Wait(std::chrono::seconds(1));
  CHECK(t.IsQuiet());
  SUBCASE("no stop") {
    t.Wait(std::chrono::seconds(2));
    CHECK(t.PlacesNow().size() == 2);
  }
  SUBCASE("a stop") {
    HostEnd stop = t.EndOf(6);
    stop.asked_to_stop = true;
    t.End(1, stop);
    const std::optional<HostTable::News> news = t.table.Decide(t.now);
    REQUIRE(news);
    CHECK(news->over);
    CHECK(news->code == 6);
  }
}

}  // namespace engine::launch
