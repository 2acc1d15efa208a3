#include "engine/state/copied_state.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/executor/rank_state.h"
#include "engine/plan/snapshot.h"
#include "engine/state/tensors.h"

namespace engine::state {
namespace {

// Addresses for an arena of which there are no bytes: where things lie in it is known all the same.
class Addresses {
 public:
  explicit Addresses(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    memory_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Addresses() {
    if (begin() != nullptr) munmap(memory_, bytes_);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  // Null: the system has none.
  std::byte* begin() const { return memory_ == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory_); }

 private:
  std::size_t bytes_;
  void* memory_;
};

// Where parts of the arena lie in a copy of the rank's whole state (plan::StateOf).
class PlacesInCopy {
 public:
  explicit PlacesInCopy(const executor::RankState& rank) {
    std::int64_t offset = 0;
    for (const plan::SnapshotPart& part : plan::StateOf(rank.stage())) {
      parts_.push_back({rank.Address(part.buffer, nullptr, -1), part.buffer.bytes(), offset});
      offset += RoundUp(part.buffer.bytes(), plan::kSnapshotAlignment);
    }
    std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.arena < b.arena; });
  }
  std::int64_t Of(const std::byte* arena) const {
    auto part = std::upper_bound(parts_.begin(), parts_.end(), arena,
                                 [](const std::byte* address, const Part& p) { return address < p.arena; });
    ENGINE_CHECK(part != parts_.begin(), "an address in front of all that is copied");
    --part;
    ENGINE_CHECK(arena - part->arena < part->bytes, "byte {} of a part of {}", arena - part->arena,
                 part->bytes);
    return part->offset + (arena - part->arena);
  }

 private:
  struct Part {
    const std::byte* arena;
    std::int64_t bytes;
    std::int64_t offset;  // in the copy
  };
  std::vector<Part> parts_;
};

// The first of `kept` that is one of `equal`; -1: there is none.
std::int64_t FirstOf(const std::vector<std::int64_t>& equal, const std::vector<std::int64_t>& kept) {
  const auto found = std::find_first_of(kept.begin(), kept.end(), equal.begin(), equal.end());
  return found == kept.end() ? -1 : *found;
}

}  // namespace

absl::StatusOr<CopiedState> CopiedState::Make(const plan::Plan& plan, const std::vector<std::int64_t>& kept,
                                              ReadCopy read) {
  CopiedState state;
  state.read_ = std::move(read);
  checkpoint::Manifest manifest;
  manifest.tensors = TensorsOf(plan);
  manifest.pieces.resize(manifest.tensors.size());
  for (const checkpoint::TensorInfo& tensor : manifest.tensors) state.stored_as_.push_back(tensor.dtype);
  std::int64_t arena_bytes = 1;
  for (const plan::StagePlan& stage : plan.stages) arena_bytes = std::max(arena_bytes, stage.arena_bytes);
  const Addresses arena(arena_bytes);
  if (arena.begin() == nullptr)
    return ResourceExhausted("no addresses for an arena of {}: {}", FormatBytes(arena_bytes),
                             std::strerror(errno));
  for (std::int64_t rank = 0; rank < plan.mesh.world(); ++rank) {
    const executor::RankState of_rank(plan, rank, arena.begin());
    std::vector<ArenaPiece> pieces = PiecesOf(plan, manifest.tensors, of_rank);
    if (pieces.empty()) continue;
    const std::int64_t from = FirstOf(plan::RanksWithStateOf(plan, rank), kept);
    if (from < 0) return NotFound("there is no copy of the state of rank {}", rank);
    const int file = static_cast<int>(state.ranks_.size());
    state.ranks_.push_back(from);
    const PlacesInCopy places(of_rank);
    for (ArenaPiece& piece : pieces) {
      const auto tensor = static_cast<std::size_t>(piece.tensor);
      state.stored_as_[tensor] = piece.dtype;
      manifest.pieces[tensor].push_back(
          {.file = file, .dataset = "", .box = std::move(piece.box), .offset_bytes = places.Of(piece.data)});
    }
  }
  state.SetManifest(std::move(manifest));
  return state;
}

absl::StatusOr<checkpoint::PieceReader::ReadAt> CopiedState::OpenFile(int file) const {
  return [this, rank = ranks_[static_cast<std::size_t>(file)]](void* out, std::int64_t bytes,
                                                               std::int64_t offset) {
    return read_(rank, offset, {static_cast<std::byte*>(out), static_cast<std::size_t>(bytes)});
  };
}

DType CopiedState::StoredAs(const checkpoint::TensorInfo& tensor) const {
  return stored_as_[static_cast<std::size_t>(&tensor - tensors().data())];
}

}  // namespace engine::state
