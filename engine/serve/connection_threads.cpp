#include "engine/serve/connection_threads.h"

#include <system_error>
#include <utility>

namespace engine::serve {

void ConnectionThreads::Run(std::function<void()> connection) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back(std::move(connection));
  if (waiting_.size() > idle_ && threads_.size() < most_) StartThread();
  wakes_.notify_one();
}

void ConnectionThreads::End() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  wakes_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ConnectionThreads::StartThread() {
  try {
    threads_.emplace_back([this] { Work(); });
    ++idle_;
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;  // nobody would ever look after the connection
  }
}

void ConnectionThreads::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wakes_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<void()> connection = std::move(waiting_.front());
    waiting_.pop_front();
    --idle_;
    lock.unlock();
    connection();
    lock.lock();
    ++idle_;
  }
}

}  // namespace engine::serve
