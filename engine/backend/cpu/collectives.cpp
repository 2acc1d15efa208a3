// Collectives of virtual ranks: everyone shows an address, waits for the others, reads theirs.
#include <algorithm>
#include <utility>

#include "engine/backend/cpu/conversion.h"
#include "engine/backend/cpu/world.h"

namespace engine::backend::cpu {
namespace {

using plan::Collective;

template <typename T>
class Conversion final : public Launch {
 public:
  Conversion(CollectiveArgs args, std::vector<std::vector<RunCopy>> runs, Meeting* meeting)
      : args_(std::move(args)), meeting_(meeting), runs_(std::move(runs)) {}

  absl::Status Run(const KernelContext&) override {
    meeting_->Show(args_.index, args_.input.data);
    RETURN_IF_ERROR(meeting_->Wait());
    if (args_.instruction->direct()) return absl::OkStatus();
    for (size_t member = 0; member < runs_.size(); ++member) {
      const T* from = static_cast<const T*>(meeting_->Shown(static_cast<std::int64_t>(member)));
      if (args_.instruction->LeavesAddition()) {
        if (static_cast<std::int64_t>(member) == args_.index) continue;
        TakeRuns(from, runs_[member], reinterpret_cast<T*>(args_.scratch.data()), false,
                 args_.instruction->reduction());
        continue;
      }
      TakeRuns(from, runs_[member], args_.output.as<T>(), member > 0 && Sums(*args_.instruction),
               args_.instruction->reduction());
    }
    return meeting_->Wait();
  }

  // Where this rank has its own part of the sum.
  const std::byte* OtherPart() const override {
    const auto* const other = static_cast<const std::byte*>(meeting_->Shown(1 - args_.index));
    return other + (args_.output.as<std::byte>() - args_.input.as<std::byte>());
  }
  absl::Status Release() override { return meeting_->Wait(); }

 private:
  CollectiveArgs args_;
  Meeting* meeting_;
  std::vector<std::vector<RunCopy>> runs_;  // by member
};

// In place over one flat buffer, cut into one part per member.
template <typename T>
class FlatCollective final : public Launch {
 public:
  FlatCollective(CollectiveArgs args, Meeting* meeting) : args_(std::move(args)), meeting_(meeting) {}

  absl::Status Run(const KernelContext&) override {
    meeting_->Show(args_.index, args_.input.data);
    RETURN_IF_ERROR(meeting_->Wait());
    const Collective collective = args_.instruction->collective();
    if (collective != Collective::kAllGather) {
      SumPart();
      RETURN_IF_ERROR(meeting_->Wait());
    }
    if (collective == Collective::kReduceScatter) return absl::OkStatus();
    CopyOtherParts();
    return meeting_->Wait();
  }

 private:
  std::int64_t members() const { return static_cast<std::int64_t>(args_.group.size()); }
  std::int64_t Begin(std::int64_t member) const {
    return PartBegin(args_.input.shape.elements(), member, members());
  }

  // My part of everyone's buffer, summed into my buffer: nobody else reads that part of it.
  void SumPart() {
    const std::int64_t begin = Begin(args_.index);
    std::vector<const T*> parts;
    for (std::int64_t member = 0; member < members(); ++member) {
      parts.push_back(static_cast<const T*>(meeting_->Shown(member)) + begin);
    }
    SumInOrder<T>(parts, args_.output.as<T>() + begin, Begin(args_.index + 1) - begin,
                  args_.instruction->reduction());
  }

  void CopyOtherParts() {
    for (std::int64_t member = 0; member < members(); ++member) {
      if (member == args_.index) continue;
      const T* from = static_cast<const T*>(meeting_->Shown(member));
      std::copy(from + Begin(member), from + Begin(member + 1), args_.output.as<T>() + Begin(member));
    }
  }

  CollectiveArgs args_;
  Meeting* meeting_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Launch>> CpuCommunicator::Prepare(CollectiveArgs args) {
  if (args.instruction->collective() == Collective::kSlice) return PrepareSlice(std::move(args), rank_);
  Meeting* meeting = world_.MeetingOf(args.group);
  return ForElementType(args, [&]<typename T>() -> absl::StatusOr<std::unique_ptr<Launch>> {
    if (args.instruction->IsBucketExchange())
      return std::make_unique<FlatCollective<T>>(std::move(args), meeting);
    ASSIGN_OR_RETURN(std::vector<std::vector<RunCopy>> runs, RunsOf(args, rank_));
    return std::make_unique<Conversion<T>>(std::move(args), std::move(runs), meeting);
  });
}

}  // namespace engine::backend::cpu
