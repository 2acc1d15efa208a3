// A walk through the segments of a stage, instruction by instruction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/verify/contents.h"
#include "engine/verify/persistent.h"
#include "engine/verify/stage_arena.h"
#include "engine/verify/sums.h"
#include "engine/verify/waits.h"

namespace engine::verify {

// Of a microbatch, or of both halves.
inline std::int64_t SlotBytes(const plan::Plan& plan, const plan::Chunk& chunk) {
  return plan.halves * chunk.slot_bytes;
}

// Shows that every read of a segment finds the value that it names, written before and not overwritten since, and
// that instructions write only where they may. It keeps what the bytes of the arena, of one microbatch's slot and of what
// the host keeps of it hold; the caller says what is there before a segment runs, and asks for what must be there behind it.
class SegmentWalk {
 public:
  // The segments are of programs of the arena's form. All references outlive the walk.
  SegmentWalk(const plan::Plan& plan, std::int32_t stage, const PersistentPlaces& places,
              const StageArena& arena)
      : plan_(plan), index_(stage), places_(places), stage_arena_(arena) {}
  SegmentWalk(const SegmentWalk&) = delete;
  SegmentWalk& operator=(const SegmentWalk&) = delete;

  // Another microbatch begins: nothing is known of its slot, of what the host keeps of it, or of the arena.
  void ForgetAll() {
    slot_ = {};
    arena_ = {};
    host_ = {};
  }
  // Other segments run in between; only the slot is this microbatch's.
  void ForgetArena() { arena_ = {}; }

  // Notes a value that is there before the chunk's segment runs.
  absl::Status Fill(const plan::Chunk& chunk, const plan::BufferRef& ref, plan::Half half);
  // Walks a segment of a microbatch whose slot has so many bytes (0: it may write to none).
  absl::Status Walk(const plan::Segment& segment, std::int64_t slot_bytes);
  // Walks the ops at the start of an iteration; returns the values that they make, in order.
  absl::StatusOr<std::vector<std::int32_t>> Prepare(const plan::Segment& segment);
  // Whether the value of a half (KeyOf) is where `reader`, behind instructions of the segment, looks for it.
  absl::Status Find(const plan::BufferRef& ref, std::int32_t key, const plan::Segment& segment,
                    const std::string& reader) const;

 private:
  enum class Phase { kTraining, kEvaluation, kPreparing };

  bool Training() const { return phase_ == Phase::kTraining; }
  bool Halves() const { return Training() && plan_.halves > 1; }

  std::string WrittenBy(const plan::Segment& segment, const Contents::Cell& cell) const;
  absl::Status Step(const plan::Segment& segment, std::size_t i, std::int64_t slot_bytes);
  absl::Status Reads(const plan::Segment& segment, std::size_t i) const;
  absl::Status ReadsValue(const plan::Segment& segment, std::size_t i, const plan::BufferRef& input) const;
  absl::Status Writes(const plan::Instruction& instruction, std::int32_t writer, std::int64_t slot_bytes);
  absl::Status CopiesHost(const plan::Segment& segment, std::size_t i);
  std::int64_t HostBytes(std::int32_t chunk) const;  // of a microbatch
  absl::Status InsidePass(const plan::BufferRef& ref) const;
  absl::Status MayWrite(const plan::Instruction& instruction, std::size_t k, std::int64_t slot_bytes) const;
  absl::Status MayAdd(const plan::Instruction& instruction, std::size_t k) const;
  absl::Status MayMake(const plan::Instruction& instruction, const plan::BufferRef& output,
                       std::int64_t slot_bytes) const;

  const plan::Plan& plan_;
  const std::int32_t index_;
  const PersistentPlaces& places_;
  const StageArena& stage_arena_;
  Phase phase_ = Phase::kEvaluation;  // of the segment that is walked
  Contents slot_;
  Contents host_;  // of what the host keeps of the microbatch
  Contents arena_;
  LeftSums sums_{plan_, &arena_, &slot_};
  ConversionsUnderWay under_way_{plan_};
};

}  // namespace engine::verify
