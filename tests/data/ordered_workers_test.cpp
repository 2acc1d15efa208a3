#include "engine/data/ordered_workers.h"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

namespace engine::data {

TEST_CASE("results come in the order of the work, whoever is done first") {
  OrderedWorkers<int, int> workers(3, [](const int& item) {
    std::this_thread::sleep_for(std::chrono::microseconds(item % 5 == 0 ? 300 : 0));
    return item * item;
  });
  int popped = 0;
  for (int i = 0; i < 200; ++i) {
    workers.Push(i);
    while (workers.size() > 6) {
      REQUIRE(workers.Pop() == popped * popped);
      ++popped;
    }
  }
  for (; workers.size() > 0; ++popped) REQUIRE(workers.Pop() == popped * popped);
  CHECK(popped == 200);
}

TEST_CASE("an item is gone while its result waits") {
  auto item = std::make_shared<const int>(7);
  const std::weak_ptr<const int> seen = item;
  OrderedWorkers<std::shared_ptr<const int>, int> workers(
      1, [](const std::shared_ptr<const int>& number) { return *number; });
  workers.Push(std::move(item));
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!seen.expired() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK(seen.expired());
  CHECK(workers.Pop() == 7);
}

}  // namespace engine::data
