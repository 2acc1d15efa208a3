// The threads that look after connections, one each: a connection that says nothing has a thread, too, so there are as many as
// come, up to a bound.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace engine::serve {

class ConnectionThreads {
 public:
  explicit ConnectionThreads(std::size_t most) : most_(most) {}
  ~ConnectionThreads() { End(); }
  ConnectionThreads(const ConnectionThreads&) = delete;
  ConnectionThreads& operator=(const ConnectionThreads&) = delete;

  // Runs `connection` on a thread that has nothing to do, or on a new one. Where `most` are there, or the system gives no more,
  // it waits for one, in order.
  void Run(std::function<void()> connection);
  // Returns when all connections have ended, those that wait, too.
  void End();

 private:
  void StartThread();
  void Work();

  const std::size_t most_;
  std::mutex mutex_;  // of what follows
  std::condition_variable wakes_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;  // threads without a connection
  bool ends_ = false;
};

}  // namespace engine::serve
