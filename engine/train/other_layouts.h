// Copies in the hosts' memory that ranks of another layout have made, before the run had fewer hosts, or more.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "engine/plan/plan.h"
#include "engine/state/copied_state.h"
#include "engine/train/position.h"
#include "engine/train/run_context.h"

namespace engine::train {

// What of a run's recipe differs between its attempts.
struct Layout {
  std::int64_t dp = 0;
  std::int64_t nodes = 0;  // cluster.nodes
  bool pad_batch = false;  // training.pad_batch
};

// The tag of copies in memory (base/memory_copies.h): runs whose copies fit each other's arenas, and that mean the same.
std::string TagOf(const RunContext& run, const recipe::Recipe& recipe, const plan::Plan& plan);
// The note of a copy in memory: Position::FromText reads it, and which layout has made it can be read from it as well.
std::string NoteOf(const RunContext& run, const Position& position);

// The state of such ranks, of which every part is in some host's memory.
class OtherLayout {
 public:
  // The newest that there is, of iteration `least` or a later one; the same in all processes. Null: there is none; then all copies of
  // other layouts are forgotten.
  static absl::StatusOr<std::unique_ptr<OtherLayout>> Agree(const RunContext& run, std::int64_t least);
  ~OtherLayout();
  OtherLayout(const OtherLayout&) = delete;
  OtherLayout& operator=(const OtherLayout&) = delete;

  const Layout& layout() const { return layout_; }
  // Without what the guard remembers (train/guard_notes.h).
  const Position& position() const { return position_; }
  const state::CopiedState& state() const;  // until Finish
  // This rank has read what it needs. Returns when all have, and the copies are forgotten, so that their memory can be used.
  absl::Status Finish(const RunContext& run);

 private:
  struct Hosts;
  OtherLayout(Layout layout, Position position);
  using Plans = std::map<std::string, plan::Plan>;  // by the tag of copies that their ranks have made
  static absl::StatusOr<std::unique_ptr<OtherLayout>> Open(const RunContext& run, const std::string& text,
                                                           Plans* plans);

  const Layout layout_;
  const Position position_;
  std::shared_ptr<Hosts> hosts_;
  std::unique_ptr<state::CopiedState> state_;
};

}  // namespace engine::train
