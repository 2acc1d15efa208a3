#include "tests/gpu/gpu.h"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/base/half.h"
#include "engine/plan/control.h"
#include "tests/gpu/fp8_numbers.h"

namespace engine::gpu_test {
namespace {

constexpr std::int64_t kArenaBytes = std::int64_t{1} << 30;
constexpr std::int64_t kGuardBytes = 256;

template <typename T>
void Store(std::byte* to, std::int64_t i, T value) {
  std::memcpy(to + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}
template <typename T>
T Load(const std::byte* from, std::int64_t i) {
  T value;
  std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

void Pack(std::byte* to, DType dtype, std::int64_t i, double value) {
  switch (dtype) {
    case DType::kF64:
      return Store(to, i, value);
    case DType::kF32:
      return Store(to, i, static_cast<float>(value));
    case DType::kBF16:
      return Store(to, i, BFloat16FromFloat(static_cast<float>(value)));
    case DType::kF16:
      return Store(to, i, HalfFromFloat(static_cast<float>(value)));
    case DType::kE4M3:
    case DType::kE5M2:
      return Store(to, i, Fp8FromFloat(static_cast<float>(value), dtype));
    default:
      return Store(to, i, static_cast<std::int32_t>(value));
  }
}

double Unpack(const std::byte* from, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::kF64:
      return Load<double>(from, i);
    case DType::kF32:
      return Load<float>(from, i);
    case DType::kBF16:
      return FloatFromBFloat16(Load<std::uint16_t>(from, i));
    case DType::kF16:
      return FloatFromHalf(Load<std::uint16_t>(from, i));
    case DType::kE4M3:
    case DType::kE5M2:
      return DoubleFromFp8(Load<std::uint8_t>(from, i), dtype);
    default:
      return Load<std::int32_t>(from, i);
  }
}

// What lies in the arena: the control block, inputs, outputs, each with a guard behind it, then scratch with
// a guard behind it.
class Image {
 public:
  struct Piece {
    std::string name;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    bool output = false;
  };

  // The piece's index.
  size_t Add(const std::string& name, std::int64_t bytes, bool output) {
    pieces_.push_back({name, static_cast<std::int64_t>(bytes_.size()), bytes, output});
    bytes_.resize(bytes_.size() + static_cast<size_t>((bytes + 255) / 256 * 256 + kGuardBytes),
                  std::byte{0xFF});
    return pieces_.size() - 1;
  }
  std::byte* At(size_t piece) { return bytes_.data() + pieces_[piece].offset; }
  Piece& piece(size_t i) { return pieces_[i]; }
  std::vector<std::byte>& bytes() { return bytes_; }

  // Whether all bytes but the outputs' are what they were; else what was written.
  absl::Status Untouched(const std::vector<std::byte>& after) const {
    std::int64_t from = 0;
    const Piece* before = nullptr;
    const auto check = [&](std::int64_t to) -> absl::Status {
      if (std::memcmp(bytes_.data() + from, after.data() + from, static_cast<size_t>(to - from)) == 0)
        return absl::OkStatus();
      std::int64_t at = from;
      while (bytes_[static_cast<size_t>(at)] == after[static_cast<size_t>(at)]) ++at;
      const std::int64_t end = before == nullptr ? 0 : before->offset + before->bytes;
      return Internal("wrote byte {} behind the {} bytes of {}", at - end,
                      before == nullptr ? 0 : before->bytes, before == nullptr ? "nothing" : before->name);
    };
    for (const Piece& piece : pieces_) {
      if (piece.output) {
        RETURN_IF_ERROR(check(piece.offset));
        from = piece.offset + piece.bytes;
      } else {
        RETURN_IF_ERROR(check(piece.offset));
        from = piece.offset;
        if (std::memcmp(bytes_.data() + from, after.data() + from, static_cast<size_t>(piece.bytes)) != 0)
          return Internal("wrote to {}, which is no output", piece.name);
        from += piece.bytes;
      }
      before = &piece;
    }
    return check(static_cast<std::int64_t>(bytes_.size()));
  }

 private:
  std::vector<Piece> pieces_;
  std::vector<std::byte> bytes_;
};

std::int64_t Bytes(const graph::TensorType& type) { return type.shape.elements() * SizeOf(type.dtype); }

std::byte* Arena() {
  static std::byte* const arena = [] {
    absl::StatusOr<std::byte*> allocated = Gpu().AllocateArena(kArenaBytes);
    REQUIRE_MESSAGE(allocated.ok(), Message(allocated.status()));
    REQUIRE(Gpu().ClearArena().ok());  // from here on no Prepare tries kernels on it
    return *allocated;
  }();
  return arena;
}

}  // namespace

backend::cuda::CudaBackend& Gpu() {
  // Never closed: when static objects die, the libraries that it uses may be gone.
  static backend::cuda::CudaBackend* const backend = [] {
    auto created = backend::cuda::CudaBackend::Create({});
    REQUIRE_MESSAGE(created.ok(), Message(created.status()));
    return created->release();
  }();
  return *backend;
}

absl::StatusOr<Outcome> Launch(const Problem& problem) {
  Image image;
  const size_t control = image.Add("the control block", plan::kControlNumbers * SizeOf(DType::kF64), false);
  for (std::int64_t i = 0; i < plan::kControlNumbers; ++i) Store(image.At(control), i, 0.0);
  Store(image.At(control), plan::kIteration, static_cast<double>(ops_test::kIteration));
  Store(image.At(control), plan::kLossScale, problem.loss_scale);
  Store(image.At(control), plan::kLabelFactor, problem.label_factor);

  std::vector<graph::TensorType> input_types;
  std::vector<size_t> input_pieces;
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    const Tensor& input = problem.inputs[i];
    input_types.push_back({input.type().shape, problem.input_dtypes[i]});
    input_pieces.push_back(image.Add(fmt::format("input {}", i), Bytes(input_types[i]), false));
    for (std::int64_t e = 0; e < input.elements(); ++e)
      Pack(image.At(input_pieces[i]), input_types[i].dtype, e, input.Get(e));
  }
  if (problem.state >= 0) image.piece(input_pieces[static_cast<size_t>(problem.state)]).output = true;
  size_t part = 0;
  if (problem.part_of >= 0) {
    const graph::TensorType& type = input_types[static_cast<size_t>(problem.part_of)];
    part = image.Add("the part", Bytes(type), false);
    for (std::int64_t e = 0; e < problem.part.elements(); ++e)
      Pack(image.At(part), type.dtype, e, problem.part.Get(e));
  }
  std::vector<graph::TensorType> output_types;
  std::vector<size_t> output_pieces;
  for (size_t o = 0; o < problem.outputs.size(); ++o) {
    const Output& output = problem.outputs[o];
    output_types.push_back(output.type);
    if (output.alias >= 0) {
      output_pieces.push_back(input_pieces[static_cast<size_t>(output.alias)]);
      image.piece(output_pieces[o]).output = true;
      continue;
    }
    output_pieces.push_back(image.Add(fmt::format("output {}", o), Bytes(output.type), true));
    if ((problem.accumulate >> o & 1U) == 0) continue;
    for (std::int64_t e = 0; e < output.type.shape.elements(); ++e)
      Pack(image.At(output_pieces[o]), output.type.dtype, e, Before(e));
  }

  backend::cuda::CudaBackend& gpu = Gpu();
  std::byte* const arena = Arena();
  const auto image_bytes = static_cast<std::int64_t>(image.bytes().size());
  const std::int64_t scratch = backend::cuda::CudaProfile().scratch_bytes(problem.kernel, input_types,
                                                                          output_types, problem.attributes);
  const std::int64_t behind = image_bytes + (scratch + 255) / 256 * 256;
  ENGINE_CHECK(behind + kGuardBytes <= kArenaBytes, "{} needs {} bytes", problem.where, behind);
  RETURN_IF_ERROR(gpu.Upload(arena, image.bytes().data(), image_bytes));
  cudaMemsetAsync(arena + image_bytes, problem.poison, static_cast<size_t>(behind - image_bytes),
                  gpu.device().compute());
  cudaMemsetAsync(arena + image_bytes + scratch, 0xA5,
                  static_cast<size_t>(behind + kGuardBytes - image_bytes - scratch), gpu.device().compute());

  plan::Instruction instruction;
  instruction.name = problem.where;
  plan::Kernel kernel{.name = problem.kernel, .op = problem.op, .attributes = problem.attributes};
  kernel.accumulate = problem.op != nullptr ? problem.op->accumulates : problem.accumulate;
  kernel.fresh = kernel.accumulate & ~problem.accumulate;
  if (problem.part_of >= 0) kernel.adds = {.input = problem.part_of, .place = {}};
  instruction.what = std::move(kernel);
  backend::LaunchArgs args;
  args.instruction = &instruction;
  args.accumulate = problem.accumulate;
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    backend::TensorView view = problem.inputs[i].View();
    view.dtype = input_types[i].dtype;
    view.data = arena + image.piece(input_pieces[i]).offset;
    args.inputs.push_back(view);
  }
  for (size_t o = 0; o < problem.outputs.size(); ++o) {
    const Output& output = problem.outputs[o];
    args.outputs.push_back({arena + image.piece(output_pieces[o]).offset, output.type.dtype,
                            output.type.shape, output.extent, output.logical});
  }
  args.scratch = {arena + image_bytes, static_cast<size_t>(scratch)};
  if (problem.part_of >= 0) {
    const std::int64_t bytes = Bytes(input_types[static_cast<size_t>(problem.part_of)]);
    args.part = {arena + image.piece(part).offset, static_cast<size_t>(bytes)};
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<backend::Launch> launch, gpu.Prepare(std::move(args)));
  RETURN_IF_ERROR(
      launch->Run({.control = reinterpret_cast<const double*>(arena + image.piece(control).offset),
                   .seed = ops_test::kSeed,
                   .iteration = ops_test::kIteration,
                   .first_sample = ops_test::kFirstSample}));
  RETURN_IF_ERROR(gpu.Synchronize());

  std::vector<std::byte> after(image.bytes().size());
  RETURN_IF_ERROR(gpu.Download(after.data(), arena, image_bytes));
  RETURN_IF_ERROR(image.Untouched(after));
  std::vector<std::byte> guard(static_cast<size_t>(behind + kGuardBytes - image_bytes - scratch));
  RETURN_IF_ERROR(
      gpu.Download(guard.data(), arena + image_bytes + scratch, static_cast<std::int64_t>(guard.size())));
  for (size_t i = 0; i < guard.size(); ++i) {
    if (guard[i] != std::byte{0xA5})
      return Internal("wrote byte {} behind its {} bytes of scratch", i, scratch);
  }

  Outcome outcome;
  const auto unpacked = [&](const graph::TensorType& type, size_t piece) {
    Tensor tensor({type.shape, type.dtype == DType::kI32 ? DType::kI32 : DType::kF64});
    const std::byte* from = after.data() + image.piece(piece).offset;
    for (std::int64_t e = 0; e < tensor.elements(); ++e) tensor.Set(e, Unpack(from, type.dtype, e));
    return tensor;
  };
  for (size_t o = 0; o < problem.outputs.size(); ++o) {
    const std::byte* from = after.data() + image.piece(output_pieces[o]).offset;
    outcome.outputs.push_back(unpacked(output_types[o], output_pieces[o]));
    outcome.bytes.emplace_back(from, from + Bytes(output_types[o]));
  }
  if (problem.state >= 0) {
    const auto state = static_cast<size_t>(problem.state);
    outcome.state = unpacked(input_types[state], input_pieces[state]);
  }
  return outcome;
}

Tensor Rounded(const Tensor& tensor, DType dtype) {
  if (tensor.type().dtype == DType::kI32) return tensor;
  Tensor rounded = tensor;
  std::byte number[8];
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    Pack(number, dtype, 0, tensor.Get(i));
    rounded.Set(i, Unpack(number, dtype, 0));
  }
  return rounded;
}

std::vector<std::byte> PackedBytes(const Tensor& tensor, DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.elements() * SizeOf(dtype)));
  for (std::int64_t i = 0; i < tensor.elements(); ++i) Pack(bytes.data(), dtype, i, tensor.Get(i));
  return bytes;
}

void Compare(const std::string& where, const Tensor& expected, const Tensor& actual, Tolerance tolerance) {
  if (expected.elements() != actual.elements()) {
    FAIL_CHECK(fmt::format("{}: {} elements, expected {}", where, actual.elements(), expected.elements()));
    return;
  }
  std::int64_t worst = -1;
  std::int64_t beyond = 0;
  std::int64_t nans = 0;
  double worst_ratio = 1;
  for (std::int64_t i = 0; i < expected.elements(); ++i) {
    const double bound = tolerance.relative * std::fabs(expected.Get(i)) + tolerance.absolute;
    double ratio = actual.Get(i) == expected.Get(i)
                       ? 0
                       : std::fabs(actual.Get(i) - expected.Get(i)) / std::max(bound, 1e-300);
    if (std::isnan(ratio)) {
      ratio = INFINITY;
      ++nans;
    }
    if (ratio <= 1) continue;
    ++beyond;
    if (ratio > worst_ratio) {
      worst = i;
      worst_ratio = ratio;
    }
  }
  const std::string text =
      worst < 0 ? where
                : fmt::format(
                      "{}: element {} of {} is {:.9g}, expected {:.9g}: error {:.3g}, tolerance {:.3g}; "
                      "{} elements of {} are beyond theirs, {} of them NaN",
                      where, worst, expected.type().shape.ToString(), actual.Get(worst), expected.Get(worst),
                      std::fabs(actual.Get(worst) - expected.Get(worst)),
                      tolerance.relative * std::fabs(expected.Get(worst)) + tolerance.absolute, beyond,
                      expected.elements(), nans);
  CHECK_MESSAGE(beyond == 0, text);
}

}  // namespace engine::gpu_test
