// Collectives of virtual ranks. A conversion between placements is one rule: my output element is the sum (or
// log-sum-exp) of, or a copy from, the members' inputs that hold that logical element. Which runs of which
// member that are is worked out once, from the extents.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/backend/cpu/world.h"

namespace engine::backend::cpu {
namespace {

using graph::Reduction;
using plan::Collective;

// `length` consecutive elements of a member's input and of my output.
struct RunCopy {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t length = 0;
};

// Runs of local indices along one dim that mean the same logical indices in both extents.
std::vector<RunCopy> CommonRuns(const DimExtent& from, const DimExtent& to) {
  std::vector<RunCopy> runs;
  std::int64_t to_local = 0;
  for (const Interval& mine : to) {
    std::int64_t from_local = 0;
    for (const Interval& theirs : from) {
      const std::int64_t begin = std::max(mine.start, theirs.start);
      const std::int64_t end = std::min(mine.start + mine.length, theirs.start + theirs.length);
      if (begin < end) {
        runs.push_back({from_local + begin - theirs.start, to_local + begin - mine.start, end - begin});
      }
      from_local += theirs.length;
    }
    to_local += mine.length;
  }
  return runs;
}

// Runs of whole tensors: the product over the dims, joined where they are consecutive in both.
std::vector<RunCopy> CommonRuns(const Extent& from, const Shape& from_shape, const Extent& to,
                                const Shape& to_shape) {
  std::vector<RunCopy> runs = {{0, 0, 1}};
  for (int dim = 0; dim < to_shape.rank(); ++dim) {
    const auto d = static_cast<size_t>(dim);
    const std::vector<RunCopy> along = CommonRuns(from.dims[d], to.dims[d]);
    const bool whole =
        along.size() == 1 && along[0].length == from_shape[dim] && along[0].length == to_shape[dim];
    std::vector<RunCopy> next;
    for (const RunCopy& run : runs) {
      if (whole) {
        next.push_back({run.from * from_shape[dim], run.to * to_shape[dim], run.length * to_shape[dim]});
        continue;
      }
      for (std::int64_t i = 0; i < run.length; ++i) {
        for (const RunCopy& part : along) {
          next.push_back({(run.from + i) * from_shape[dim] + part.from,
                          (run.to + i) * to_shape[dim] + part.to, part.length});
        }
      }
    }
    runs = std::move(next);
  }
  return runs;
}

template <typename T>
void Accumulate(const T* from, T* to, std::int64_t length, Reduction reduction) {
  if (reduction == Reduction::kSum) {
    for (std::int64_t i = 0; i < length; ++i) to[i] += from[i];
    return;
  }
  for (std::int64_t i = 0; i < length; ++i) {
    if (from[i] != from[i] || to[i] != to[i]) {  // std::max would drop a NaN
      to[i] = from[i] + to[i];
      continue;
    }
    const T high = std::max(from[i], to[i]);
    const T low = std::min(from[i], to[i]);
    if (!std::isinf(low))
      to[i] = high + std::log1p(std::exp(low - high));
    else
      to[i] = high;
  }
}

bool Sums(const plan::Instruction& instruction) {
  return instruction.collective == Collective::kAllReduce ||
         instruction.collective == Collective::kReduceScatter;
}

// What each member gives to my output. Error: they do not hold all of it (of a sum: each of them).
absl::StatusOr<std::vector<std::vector<RunCopy>>> RunsOf(const CollectiveArgs& args, std::int64_t rank) {
  std::vector<std::vector<RunCopy>> runs;
  std::int64_t held = 0;
  for (const Extent& member : args.member_inputs) {
    runs.push_back(CommonRuns(member, args.input.shape, args.output.extent, args.output.shape));
    std::int64_t elements = 0;
    for (const RunCopy& run : runs.back()) elements += run.length;
    held = Sums(*args.instruction) && runs.size() > 1 ? std::min(held, elements) : held + elements;
  }
  const std::int64_t needed = args.output.shape.elements();
  if (held == needed) return runs;
  return Internal("{}: its group holds {} of the {} elements that rank {} needs", args.instruction->name,
                  held, needed, rank);
}

template <typename T>
class Conversion final : public Launch {
 public:
  Conversion(CollectiveArgs args, std::vector<std::vector<RunCopy>> runs, Meeting* meeting)
      : args_(std::move(args)), meeting_(meeting), runs_(std::move(runs)) {}

  absl::Status Run(const KernelContext&) override {
    if (meeting_ != nullptr) {
      meeting_->Show(args_.index, args_.input.data);
      RETURN_IF_ERROR(meeting_->Wait());
    }
    const bool sum = Sums(*args_.instruction);
    for (size_t member = 0; member < runs_.size(); ++member) {
      const T* from = meeting_ == nullptr
                          ? args_.input.as<T>()
                          : static_cast<const T*>(meeting_->Shown(static_cast<std::int64_t>(member)));
      for (const RunCopy& run : runs_[member]) {
        T* to = args_.output.as<T>() + run.to;
        if (sum && member > 0) {
          Accumulate(from + run.from, to, run.length, args_.instruction->reduction);
        } else {
          std::memcpy(to, from + run.from, static_cast<size_t>(run.length) * sizeof(T));
        }
      }
    }
    return meeting_ == nullptr ? absl::OkStatus() : meeting_->Wait();
  }

 private:
  CollectiveArgs args_;
  Meeting* meeting_;                        // null: a local slice
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
    const Collective collective = args_.instruction->collective;
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
  std::int64_t Begin(std::int64_t member) const { return args_.input.shape.elements() * member / members(); }

  // My part of everyone's buffer, summed in order of rank, into my buffer: nobody else reads that part of it.
  void SumPart() {
    const std::int64_t begin = Begin(args_.index);
    const std::int64_t end = Begin(args_.index + 1);
    constexpr std::int64_t kBlock = 2048;
    T sum[kBlock];
    for (std::int64_t at = begin; at < end; at += kBlock) {
      const std::int64_t length = std::min(kBlock, end - at);
      for (std::int64_t member = 0; member < members(); ++member) {
        const T* from = static_cast<const T*>(meeting_->Shown(member)) + at;
        if (member == 0) {
          std::copy(from, from + length, sum);
        } else {
          Accumulate(from, sum, length, args_.instruction->reduction);
        }
      }
      std::copy(sum, sum + length, args_.output.as<T>() + at);
    }
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

template <typename T>
absl::StatusOr<std::unique_ptr<Launch>> Make(CollectiveArgs args, Meeting* meeting, std::int64_t rank) {
  if (args.instruction->flat) return std::make_unique<FlatCollective<T>>(std::move(args), meeting);
  ASSIGN_OR_RETURN(std::vector<std::vector<RunCopy>> runs, RunsOf(args, rank));
  return std::make_unique<Conversion<T>>(std::move(args), std::move(runs), meeting);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Launch>> CpuCommunicator::Prepare(CollectiveArgs args) {
  const bool local = args.instruction->collective == Collective::kSlice;
  if (local) args.member_inputs = {args.input.extent};
  Meeting* meeting = local ? nullptr : world_.MeetingOf(args.group);
  switch (args.input.dtype) {
    case DType::kF32:
      return Make<float>(std::move(args), meeting, rank_);
    case DType::kF64:
      return Make<double>(std::move(args), meeting, rank_);
    case DType::kI32:
      return Make<std::int32_t>(std::move(args), meeting, rank_);
    default:
      return Internal("the CPU executor exchanges no {} ({})", Name(args.input.dtype),
                      args.instruction->name);
  }
}

}  // namespace engine::backend::cpu
