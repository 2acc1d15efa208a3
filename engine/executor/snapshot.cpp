#include "engine/executor/snapshot.h"

#include <algorithm>
#include <new>

#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/plan/snapshot.h"

namespace engine::executor {

Snapshot::Snapshot(backend::Backend& backend, const std::vector<StatePart>& parts) : backend_(backend) {
  for (const StatePart& part : parts) {
    (part.at_once ? at_once_ : beside_).push_back(part.copy);
    bytes_ += RoundUp(part.copy.bytes, plan::kSnapshotAlignment);
  }
}

void Snapshot::PlaceAt(std::byte* memory) {
  by_address_.clear();
  for (std::vector<backend::SnapshotCopy>* copies : {&at_once_, &beside_}) {
    for (backend::SnapshotCopy& copy : *copies) {
      copy.host = memory;
      memory += RoundUp(copy.bytes, plan::kSnapshotAlignment);
      by_address_.push_back(copy);
    }
  }
  std::sort(by_address_.begin(), by_address_.end(),
            [](const auto& a, const auto& b) { return a.arena < b.arena; });
}

absl::Status Snapshot::Reserve() {
  if (bytes_ == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::byte* const memory, backend_.AllocateSnapshot(bytes_));
  PlaceAt(memory);
  reserved_ = true;
  return absl::OkStatus();
}

absl::Status Snapshot::Begin() {
  if (reserved_) return backend_.BeginSnapshot(at_once_, beside_);
  memory_.reset(new (std::nothrow) std::byte[static_cast<std::size_t>(bytes_)]);
  if (memory_ == nullptr) {
    return ResourceExhausted("a checkpoint needs {} of this host's memory, for a copy of a rank's state",
                             FormatBytes(bytes_));
  }
  PlaceAt(memory_.get());
  for (const backend::SnapshotCopy& copy : by_address_)
    RETURN_IF_ERROR(backend_.Download(copy.host, copy.arena, copy.bytes));
  return absl::OkStatus();
}

absl::Status Snapshot::Finish() { return reserved_ ? backend_.FinishSnapshot() : absl::OkStatus(); }

void Snapshot::Drop() { memory_.reset(); }

const std::byte* Snapshot::Of(const std::byte* arena) const {
  auto part =
      std::upper_bound(by_address_.begin(), by_address_.end(), arena,
                       [](const std::byte* address, const auto& copy) { return address < copy.arena; });
  ENGINE_CHECK(part != by_address_.begin(), "an address in front of all that is copied");
  --part;
  const std::ptrdiff_t offset = arena - part->arena;
  ENGINE_CHECK(offset < part->bytes, "byte {} of a part of {}", offset, part->bytes);
  return part->host + offset;
}

}  // namespace engine::executor
