#include "engine/executor/memory_checkpoint.h"

#include <utility>

#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/plan/snapshot.h"

namespace engine::executor {

MemoryCheckpoint::MemoryCheckpoint(backend::Backend& backend, const std::vector<StatePart>& parts)
    : backend_(backend), parts_(parts) {
  for (const StatePart& part : parts_) copy_bytes_ += RoundUp(part.copy.bytes, plan::kSnapshotAlignment);
}

MemoryCheckpoint::~MemoryCheckpoint() {
  AwaitWhole();
  if (copies_) backend_.UnpinSnapshot();
}

void MemoryCheckpoint::AwaitWhole() const {
  if (whole_.valid()) whole_.wait();
}

absl::Status MemoryCheckpoint::Open(int file, const std::string& tag, std::int64_t keep) {
  ASSIGN_OR_RETURN(MemoryCopies copies, MemoryCopies::Open(file, tag, copy_bytes_));
  copies.ForgetAllBut(keep);
  copies_.emplace(std::move(copies));
  return backend_.PinSnapshot(copies_->MemoryOf(0), 2 * copies_->copy_bytes());
}

std::vector<backend::SnapshotCopy> MemoryCheckpoint::CopiesOf(int place, bool at_once) const {
  std::vector<backend::SnapshotCopy> copies;
  std::byte* memory = copies_->MemoryOf(place);
  for (const StatePart& part : parts_) {
    if (part.at_once == at_once)
      copies.push_back({.host = memory, .arena = part.copy.arena, .bytes = part.copy.bytes});
    memory += RoundUp(part.copy.bytes, plan::kSnapshotAlignment);
  }
  return copies;
}

absl::Status MemoryCheckpoint::Begin(const Kept& kept, OnWhole on_whole) {
  if (whole_.valid()) RETURN_IF_ERROR(whole_.get());
  const int place = copies_->Begin(kept);
  RETURN_IF_ERROR(backend_.BeginSnapshot(CopiesOf(place, true), CopiesOf(place, false)));
  whole_ = std::async(std::launch::async, [this, place, on_whole = std::move(on_whole)]() -> absl::Status {
    RETURN_IF_ERROR(backend_.FinishSnapshot());
    copies_->Finish(place);
    return on_whole == nullptr ? absl::OkStatus() : on_whole(*copies_, place);
  });
  return absl::OkStatus();
}

void MemoryCheckpoint::HandOn(OnWhole on_whole) {
  whole_ = std::async(std::launch::async, [this, place = *copies_->Find(), on_whole = std::move(on_whole)] {
    return on_whole(*copies_, place);
  });
}

absl::Status MemoryCheckpoint::Restore() {
  const std::optional<int> place = copies_->Find();
  if (!place) return Internal("there is no copy of the state in the host's memory");
  for (const bool at_once : {true, false}) {
    for (const backend::SnapshotCopy& copy : CopiesOf(*place, at_once))
      RETURN_IF_ERROR(backend_.Upload(const_cast<std::byte*>(copy.arena), copy.host, copy.bytes));
  }
  return absl::OkStatus();
}

}  // namespace engine::executor
