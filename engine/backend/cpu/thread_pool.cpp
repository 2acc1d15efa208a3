#include "engine/backend/cpu/thread_pool.h"

namespace engine::backend::cpu {

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::TakeTasks(const std::function<void(std::int64_t)>& body, std::int64_t tasks) {
  for (;;) {
    const std::int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks) return;
    body(task);
  }
}

void ThreadPool::ParallelFor(std::int64_t tasks, const std::function<void(std::int64_t)>& body) {
  if (threads_.empty() || tasks <= 1) {
    for (std::int64_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    body_ = &body;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    busy_ = static_cast<int>(threads_.size());
    ++generation_;
  }
  wake_.notify_all();
  TakeTasks(body, tasks);
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

void ThreadPool::Work() {
  std::int64_t seen = 0;
  for (;;) {
    const std::function<void(std::int64_t)>* body = nullptr;
    std::int64_t tasks = 0;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      body = body_;
      tasks = tasks_;
    }
    TakeTasks(*body, tasks);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      --busy_;
    }
    done_.notify_one();
  }
}

}  // namespace engine::backend::cpu
