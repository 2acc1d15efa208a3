// Work on threads whose results come in the order of the work.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace engine::data {

// Push and Pop are for one thread. The destructor waits for what is being worked on, and drops the rest.
template <typename Item, typename Result>
class OrderedWorkers {
 public:
  // `work` is called by many threads at once.
  OrderedWorkers(int threads, std::function<Result(const Item&)> work) : work_(std::move(work)) {
    threads_.reserve(static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~OrderedWorkers() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  void Push(Item item) {
    {
      const std::lock_guard lock(mutex_);
      slots_.push_back({std::move(item), std::nullopt});
    }
    changed_.notify_all();
  }
  // Of the oldest item, of which there must be one: waits for it.
  Result Pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return slots_.front().result.has_value(); });
    Result result = *std::move(slots_.front().result);
    slots_.pop_front();
    --next_;
    return result;
  }
  // Pushed, and not popped.
  std::size_t size() const { return slots_.size(); }

 private:
  struct Slot {
    Item item;
    std::optional<Result> result;
  };

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ends_ || next_ < slots_.size(); });
      if (ends_) return;
      Slot& slot =
          slots_[next_++];  // a deque's elements stay where they are while others come and go at its ends
      lock.unlock();
      std::optional<Result> result;
      {
        const Item item = std::move(slot.item);  // whose memory is free before the result waits for its turn
        result = work_(item);
      }
      lock.lock();
      slot.result = std::move(result);
      changed_.notify_all();
    }
  }

  const std::function<Result(const Item&)> work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slot> slots_;
  std::size_t next_ = 0;  // the first one that nobody works on
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace engine::data
