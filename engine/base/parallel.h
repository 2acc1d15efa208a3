// A loop on several threads, for host work outside of the training step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace engine {

// body(first, last) for consecutive pieces of [0, count) of at most `grain` each, in any order, on so many
// threads.
inline void ParallelPieces(int threads, size_t count, size_t grain,
                           const std::function<void(size_t first, size_t last)>& body) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t first = next.fetch_add(grain); first < count; first = next.fetch_add(grain)) {
      body(first, std::min(count, first + grain));
    }
  };
  const size_t pieces = (count + grain - 1) / grain;
  std::vector<std::thread> pool;
  for (size_t t = 1; t < std::min(pieces, static_cast<size_t>(std::max(1, threads))); ++t)
    pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
}

}  // namespace engine
