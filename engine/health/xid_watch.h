// A thread that waits for errors of a GPU while a rank runs on it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "engine/health/nvml.h"

namespace engine::health {

class XidWatch {
 public:
  // `on_xid` is called for each error, from a thread of its own, within a second of its report. A GPU that reports none is let be.
  XidWatch(std::shared_ptr<Gpu> gpu, std::function<void(const Xid&)> on_xid);
  ~XidWatch();  // on_xid is called no more
  XidWatch(const XidWatch&) = delete;
  XidWatch& operator=(const XidWatch&) = delete;

 private:
  void Loop();

  const std::shared_ptr<Gpu> gpu_;
  const std::function<void(const Xid&)> on_xid_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace engine::health
