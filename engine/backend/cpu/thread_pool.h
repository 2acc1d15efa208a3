// The threads of one rank. ParallelFor hands out task numbers; which thread runs which task never changes a
// result, since tasks are cut by shape alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace engine::backend::cpu {

class ThreadPool {
 public:
  // `threads` ≥ 1 in all, the caller's included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Runs body(i) for i in [0, tasks) and returns when all are done. One caller at a time.
  void ParallelFor(std::int64_t tasks, const std::function<void(std::int64_t)>& body);

 private:
  void Work();
  void TakeTasks(const std::function<void(std::int64_t)>& body, std::int64_t tasks);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(std::int64_t)>* body_ = nullptr;
  std::int64_t tasks_ = 0;
  std::atomic<std::int64_t> next_{0};
  std::int64_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace engine::backend::cpu
