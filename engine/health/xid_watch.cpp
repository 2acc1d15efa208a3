#include "engine/health/xid_watch.h"

#include <chrono>
#include <utility>

namespace engine::health {

XidWatch::XidWatch(std::shared_ptr<Gpu> gpu, std::function<void(const Xid&)> on_xid)
    : gpu_(std::move(gpu)), on_xid_(std::move(on_xid)), thread_([this] { Loop(); }) {}

XidWatch::~XidWatch() {
  stopping_ = true;
  thread_.join();
}

void XidWatch::Loop() {
  constexpr auto kWithin = std::chrono::milliseconds(200);  // the end waits so long
  while (!stopping_) {
    const absl::StatusOr<std::optional<Xid>> xid = gpu_->WaitForXid(kWithin);
    if (!xid.ok()) return;
    if (*xid && !stopping_) on_xid_(**xid);
  }
}

}  // namespace engine::health
