#include "engine/backend/cpu/conversion.h"

#include <utility>

namespace engine::backend::cpu {
namespace {

using plan::Collective;

template <typename T>
class Slice final : public Launch {
 public:
  Slice(CollectiveArgs args, std::vector<RunCopy> runs) : args_(std::move(args)), runs_(std::move(runs)) {}

  absl::Status Run(const KernelContext&) override {
    TakeRuns(args_.input.as<T>(), runs_, args_.output.as<T>(), /*add=*/false, args_.instruction->reduction());
    return absl::OkStatus();
  }

 private:
  CollectiveArgs args_;
  std::vector<RunCopy> runs_;
};

}  // namespace

std::vector<RunCopy> CommonRuns(const Extent& from, const Shape& from_shape, const Extent& to,
                                const Shape& to_shape) {
  std::vector<RunCopy> runs = {{0, 0, 1}};
  for (int dim = 0; dim < to_shape.rank(); ++dim) {
    const auto d = static_cast<size_t>(dim);
    const std::vector<RunCopy> along = backend::CommonRuns(from.dims[d], to.dims[d]);
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

bool Sums(const plan::Instruction& instruction) {
  return instruction.collective() == Collective::kAllReduce ||
         instruction.collective() == Collective::kReduceScatter;
}

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

absl::StatusOr<std::unique_ptr<Launch>> PrepareSlice(CollectiveArgs args, std::int64_t rank) {
  args.member_inputs = {args.input.extent};
  ASSIGN_OR_RETURN(std::vector<std::vector<RunCopy>> runs, RunsOf(args, rank));
  return ForElementType(args, [&]<typename T>() -> absl::StatusOr<std::unique_ptr<Launch>> {
    return std::make_unique<Slice<T>>(std::move(args), std::move(runs[0]));
  });
}

}  // namespace engine::backend::cpu
