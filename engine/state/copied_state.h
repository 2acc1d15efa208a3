// The state of a run as copies of its ranks' states in memory (executor/memory_checkpoint.h), read as a checkpoint is: by ranks of any layout.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/piece_reader.h"
#include "engine/plan/plan.h"

namespace engine::state {

class CopiedState : public checkpoint::PieceReader {
 public:
  // Fills `out` from byte `offset` on of the copy of that rank.
  using ReadCopy =
      std::function<absl::Status(std::int64_t rank, std::int64_t offset, std::span<std::byte> out)>;

  // `plan`: of the ranks that have made the copies. `kept`: the ranks whose copies there are, all of one iteration; of copies that are equal
  // the first is read. Error: NotFound, with the first rank whose state is in none of them.
  static absl::StatusOr<CopiedState> Make(const plan::Plan& plan, const std::vector<std::int64_t>& kept,
                                          ReadCopy read);

  std::string Name() const override { return "copy of the state in the hosts' memory"; }

 private:
  absl::StatusOr<ReadAt> OpenFile(int file) const override;
  DType StoredAs(const checkpoint::TensorInfo& tensor) const override;

  ReadCopy read_;
  std::vector<std::int64_t> ranks_;  // whose copy is the file of that number
  std::vector<DType> stored_as_;     // of each tensor
};

}  // namespace engine::state
