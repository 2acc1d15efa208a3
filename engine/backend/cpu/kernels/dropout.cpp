#include "engine/backend/cpu/kernels/keep_mask.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/logical_row.h"
#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

template <typename T>
void Dropout(const KernelArgs& args) {
  const TensorView& x = args.inputs[0];
  const std::int64_t columns = x.shape[x.shape.rank() - 1];
  const Dropping dropping = Dropping::Of(args.attributes->Float("p"));
  const PhiloxKey key = MakePhiloxKey(args.context->seed, args.attributes->String("stream"));
  T* y = args.outputs[0].as<T>();
  const std::int64_t rows = x.shape.elements() / columns;
  ForEachBlock(args, rows, std::max<std::int64_t>(1, kElementBlock / columns),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t row = first; row < last; ++row) {
                   const std::int64_t start = LogicalRow(x, row, args.context->first_sample);
                   const T* in = x.as<T>() + row * columns;
                   T* out = y + row * columns;
                   for (const Interval& interval : x.extent.dims[x.shape.rank() - 1]) {
                     ScaleKept(key, args.context->iteration,
                               static_cast<std::uint64_t>(start + interval.start), interval.length, dropping,
                               in, out);
                     in += interval.length;
                     out += interval.length;
                   }
                   std::fill(out, y + (row + 1) * columns, T(0));  // padding
                 }
               });
}

template void Dropout<float>(const KernelArgs&);
template void Dropout<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
