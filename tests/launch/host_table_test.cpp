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
  // `min_nodes`: 0: as many as there are places.
  explicit TestTable(std::int64_t nodes, std::int64_t hosts, std::int64_t min_nodes = 0)
      : table(Options(nodes, hosts, min_nodes)) {
    std::set<std::int64_t> expected;
    for (std::int64_t node = 0; node < nodes; ++node) expected.insert(node);
    table.Take(0, expected, now + std::chrono::seconds(10), now);
  }
  HostTable::Options Options(std::int64_t nodes, std::int64_t hosts, std::int64_t min_nodes) {
    return {.nodes = nodes,
            .hosts = hosts,
            .min_nodes = min_nodes == 0 ? nodes : min_nodes,
            .dp = 2 * nodes,
            .last_call = std::chrono::seconds(3),
            .patience = std::chrono::seconds(10),
            .settling = std::chrono::seconds(4),
            .lost_code = kLost,
            .judge =
                [this](std::int64_t attempts, const std::vector<HostEnd>& ends) {
                  judged.push_back(ends.size());
                  Sequel next = sequel;
                  next.text = "attempt " + std::to_string(attempts);
                  return next;
                },
            .fit =
                [this](std::int64_t here, std::int64_t fewest) {
                  asked.push_back(here);
                  least = fewest;
                  return fits;
                },
            .begins = [this](bool is_from_disk) { from_disk = is_from_disk; }};
  }
  // Of a host that has failed for good.
  static HostEnd Suspect() {
    HostEnd end = EndOf(4);
    end.is_suspect = true;
    return end;
  }
  void Come(std::int64_t host, std::int64_t generation = 0, std::int64_t node = -1, AttemptSize of = {}) {
    table.Come(host,
               {.process = "p" + std::to_string(host),
                .successor_at = "s" + std::to_string(host),
                .ranks_at = "r" + std::to_string(host),
                .generation = generation,
                .node = node,
                .size = of,
                .copies_at = host == 2 ? "" : "c" + std::to_string(host)},
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
    size = news->size;
    copies_at = news->copies_at;
    CHECK(news->from_disk == from_disk);
    return news->nodes;
  }
  bool IsQuiet() { return !table.Decide(now).has_value(); }
  void Wait(std::chrono::milliseconds time) { now += time; }

  Clock::time_point now = Clock::now();
  Sequel sequel;
  std::vector<std::size_t> judged;
  std::optional<AttemptSize> fits;  // what there is for fewer hosts
  std::vector<std::int64_t> asked;  // for so many
  std::int64_t least = 0;           // and at least on so many
  bool from_disk = false;
  std::string text, ranks_at, copies_at;
  AttemptSize size;
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
  t.Come(1, 1, 1, t.size);
  t.Wait(std::chrono::seconds(5));
  CHECK(t.IsQuiet());
  t.table.End(1, 0, t.EndOf(0), "");  // of no attempt that counts
  t.End(0, t.EndOf(0));
  t.table.Go(0, t.now);
  t.Come(0, 1, 0, t.size);
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
  SUBCASE("its device") { t.End(1, t.Suspect()); }
  CHECK(t.PlacesNow() == Places{{0, 0}, {2, 1}});
  // The only one that is left for a lost host is taken, whoever is to blame.
  t.table.Go(0, t.now);
  t.End(2, t.EndOf(kLost));
  t.Wait(std::chrono::seconds(1));
  CHECK(t.PlacesNow() == Places{{1, 0}, {2, 1}});
}

TEST_CASE("host table: another process with the number of a host to blame is not to blame") {
  TestTable t(2, 3);
  for (const int host : {0, 1, 2}) t.Come(host);
  t.PlacesNow();
  t.End(0, t.EndOf(kLost));
  t.End(1, t.Suspect());
  CHECK(t.PlacesNow() == Places{{0, 0}, {2, 1}});
  CHECK(t.table.IsSpare(1));
  CHECK(!t.table.IsSpare(2));
  t.table.Go(1, t.now);
  SUBCASE("its connection alone was lost") {
    t.Come(1, 2, -1, t.size);
    t.End(0, t.EndOf(kLost));
    t.End(2, t.Suspect());
    CHECK(t.PlacesNow() == Places{{0, 0}, {2, 1}});
  }
  SUBCASE("a replacement") {
    t.table.Come(1, {.process = "another", .successor_at = "s1", .ranks_at = "r1"}, t.now);
    t.End(0, t.EndOf(kLost));
    t.End(2, t.Suspect());
    CHECK(t.PlacesNow() == Places{{0, 0}, {1, 1}});
  }
}

TEST_CASE("host table: a spare stands in for a host that never came") {
  TestTable t(2, 3);
  t.Come(0);
  t.Come(2);
  CHECK(t.IsQuiet());
  t.Wait(std::chrono::seconds(11));
  CHECK(t.PlacesNow() == Places{{0, 0}, {2, 1}});
}

TEST_CASE("host table: without a spare the run goes on with fewer data-parallel ranks, after a last call") {
  TestTable t(4, 4, 3);
  for (const int host : {0, 1, 2, 3}) t.Come(host);
  CHECK(t.PlacesNow().size() == 4);
  CHECK(t.size == AttemptSize{.nodes = 4, .dp = 8});
  t.table.Go(1, t.now);
  for (const int host : {0, 2, 3}) t.End(host, t.EndOf(kLost));
  t.Wait(std::chrono::seconds(1));  // its connection alone may have been lost
  CHECK(t.IsQuiet());
  t.Wait(std::chrono::milliseconds(2900));
  CHECK(t.IsQuiet());
  CHECK(t.asked.empty());
  SUBCASE("it comes back") {
    t.Come(1);
    CHECK(t.PlacesNow() == Places{{0, 0}, {1, 1}, {2, 2}, {3, 3}});
    CHECK(!t.from_disk);
  }
  SUBCASE("it does not") {
    t.Wait(std::chrono::milliseconds(200));
    CHECK(t.IsQuiet());  // the layout is looked for
    CHECK(t.asked == std::vector<std::int64_t>{3});
    SUBCASE("there is no layout") {
      SUBCASE("which is known soon") {
        t.fits = AttemptSize{};
        t.Wait(std::chrono::seconds(9));
        CHECK(t.IsQuiet());
        t.Wait(std::chrono::seconds(1));
      }
      SUBCASE("which is known long after hosts could come") {
        t.Wait(std::chrono::seconds(60));
        CHECK(t.IsQuiet());
        t.fits = AttemptSize{};
      }
      const std::optional<HostTable::News> news = t.table.Decide(t.now);
      REQUIRE(news);
      CHECK(news->over);
      CHECK(news->text ==
            "3 of 4 hosts are here, and no layout with fewer data-parallel ranks fits 2 or more of them");
    }
    SUBCASE("there is one") {
      t.fits = AttemptSize{.nodes = 3, .dp = 6};
      CHECK(t.PlacesNow() == Places{{0, 0}, {3, 1}, {2, 2}});
      CHECK(!t.from_disk);
      CHECK(t.copies_at == "c0,c3");  // of those that are here and keep any
      CHECK(t.size == *t.fits);
      CHECK(
          t.text ==
          "attempt 1; on 3 hosts instead of 4, with dp 6 instead of 8 and the same global batch; host 3 (p3) "
          "has place 1");
      // Its end is that of its three places.
      t.End(0, t.EndOf(kLost));
      t.End(2, t.EndOf(kLost));
      CHECK(t.IsQuiet());
      SUBCASE("the next failure does not wait for the host that is long lost") {
        t.End(3, t.EndOf(137, "killed"));
        CHECK(t.PlacesNow() == Places{{0, 0}, {3, 1}, {2, 2}});
        CHECK(!t.from_disk);
        CHECK(t.text == "attempt 2");
      }
      SUBCASE("with a host that has come meanwhile the run has all of its ranks again") {
        t.Come(1);
        CHECK(t.IsQuiet());
        t.End(3, t.EndOf(137, "killed"));
        CHECK(t.PlacesNow() == Places{{0, 0}, {3, 1}, {2, 2}, {1, 3}});
        CHECK(!t.from_disk);
        CHECK(t.copies_at == "c0,c1,c3");
        CHECK(t.size == AttemptSize{.nodes = 4, .dp = 8});
        CHECK(t.text ==
              "attempt 2; on 4 hosts instead of 3, with dp 8 instead of 6 and the same global batch; host 1 "
              "(p1) has place 3");
      }
      SUBCASE("half of the hosts do not go on") {
        t.fits = AttemptSize{.nodes = 2, .dp = 4};
        t.table.Go(3, t.now);
        t.Wait(std::chrono::seconds(4));
        CHECK(t.IsQuiet());
        t.Wait(std::chrono::seconds(14));
        const std::optional<HostTable::News> news = t.table.Decide(t.now);
        REQUIRE(news);
        CHECK(news->over);
        CHECK(news->text == "3 hosts are needed, and 2 are here");
      }
    }
  }
}

TEST_CASE("host table: a run begins with all of its hosts, whatever it may go on with") {
  TestTable t(4, 4, 3);
  for (const int host : {0, 1, 3}) t.Come(host);
  t.fits = AttemptSize{.nodes = 3, .dp = 6};
  t.Wait(std::chrono::seconds(11));
  const std::optional<HostTable::News> news = t.table.Decide(t.now);
  REQUIRE(news);
  CHECK(news->over);
  CHECK(news->text == "4 hosts are needed, and 3 are here");
}

TEST_CASE("host table: hosts that are too few to begin an attempt are too few to hold all places of one") {
  TestTable t(8, 11, 6);
  for (const int host : {0, 1, 2, 3, 4, 5, 6, 7}) t.Come(host);
  t.PlacesNow();
  t.table.Go(7, t.now);
  for (const int host : {0, 1, 2, 3, 4, 5, 6}) t.End(host, t.EndOf(kLost));
  t.Wait(std::chrono::seconds(1));
  CHECK(t.IsQuiet());
  t.Wait(std::chrono::seconds(4));
  t.fits = AttemptSize{.nodes = 6, .dp = 6};
  CHECK(t.PlacesNow().size() == 6);
  CHECK(t.asked.back() == 7);
  CHECK(t.least == 6);  // of the eleven hosts six have to be here, and the other five hold no whole attempt
}

TEST_CASE("host table: a host to blame is left out at once where the run may go on without it") {
  TestTable t(4, 4, 3);
  for (const int host : {0, 1, 2, 3}) t.Come(host);
  t.PlacesNow();
  for (const int host : {0, 1, 3}) t.End(host, t.EndOf(kLost));
  t.End(2, t.Suspect());
  // A layout on two of the three: the third has no place.
  t.fits = AttemptSize{.nodes = 2, .dp = 4};
  CHECK(t.PlacesNow() == Places{{0, 0}, {1, 1}});
  // Where two are to blame, fewer are left than the run needs, and all are taken.
  t.End(0, t.EndOf(kLost));
  t.End(1, t.Suspect());
  CHECK(t.PlacesNow().size() == 4);
  CHECK(t.asked == std::vector<std::int64_t>{3});
}

TEST_CASE("host table: whoever leads on has the size of the attempt from the hosts") {
  TestTable t(4, 4, 3);
  t.table.Take(7, {1, 2, 3}, t.now + std::chrono::seconds(4), t.now);
  const AttemptSize smaller{.nodes = 3, .dp = 6};
  t.Come(1, 7, 1, smaller);
  t.Come(2, 7, 2, smaller);
  t.Come(3, 7, 0, smaller);
  for (const int host : {1, 2, 3}) t.End(host, t.EndOf(kLost));
  t.fits = smaller;
  CHECK(t.PlacesNow() == Places{{3, 0}, {1, 1}, {2, 2}});
  CHECK(!t.from_disk);
}

TEST_CASE("host table: whoever leads on takes the places from the hosts themselves") {
  TestTable t(3, 4);
  const AttemptSize whole{.nodes = 3, .dp = 6};
  t.table.Take(7, {1, 2, 3}, t.now + std::chrono::seconds(4), t.now);
  t.Come(1, 7, 1, whole);
  t.Come(3, 7, -1, whole);
  t.End(1, t.EndOf(kLost));
  CHECK(t.IsQuiet());  // host 2 is on its way
  t.Come(2, 7, 2, whole);
  CHECK(t.IsQuiet());  // its ranks have not ended
  t.End(2, t.EndOf(kLost));
  CHECK(t.PlacesNow() == Places{{1, 1}, {2, 2}, {3, 0}});
  CHECK(t.text == "attempt 7; host 3 (p3) has place 0");
  CHECK(t.table.generation() == 8);
}

TEST_CASE("host table: a host 0 that is started anew, and that others come to, has the places from them") {
  TestTable t(2, 3);
  const AttemptSize whole{.nodes = 2, .dp = 4};
  t.Come(0);
  t.Come(2, 3, 0, whole);
  t.End(2, t.EndOf(kLost));
  CHECK(t.IsQuiet());  // host 1 may be on its way
  SUBCASE("it is") {
    t.Come(1, 3, 1, whole);
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
