// How fast products of experts are beside one dense product of as many operations, which cuBLASLt carries out, and in FP8; and
// how fast their rows are quantised. By hand, as it takes two minutes and 16 GB: test_gpu -ns -tc="grouped bench*"
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/backend/cuda/gemm/gemm_tuner.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/base/half.h"
#include "engine/base/philox.h"
#include "engine/graph/rows.h"
#include "engine/ops/fp8.h"
#include "engine/ops/ops.h"
#include "tests/gpu/fp8_numbers.h"
#include "tests/gpu/gpu.h"

namespace engine::gpu_test::grouped_bench {
namespace {

using backend::TensorView;

class DeviceMemory {
 public:
  explicit DeviceMemory(std::int64_t bytes) : bytes_(bytes) {
    REQUIRE(cudaMalloc(&data_, static_cast<size_t>(bytes)) == cudaSuccess);
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

  void Put(const void* from, std::int64_t bytes) {
    REQUIRE(cudaMemcpy(data_, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  // Numbers like those of a run: with zeros a GPU needs less power, and its clock is higher.
  void FillWithNormals(double deviation) {
    Fill<std::uint16_t>(
        [&](double normal) { return BFloat16FromFloat(static_cast<float>(normal * deviation)); });
  }
  // In e4m3, where a largest of five deviations is the format's.
  void FillWithFp8Normals() {
    Fill<std::uint8_t>(
        [](double normal) { return Fp8FromFloat(static_cast<float>(normal * 448 / 5), DType::kE4M3); });
  }

 private:
  template <typename Number, typename Convert>
  void Fill(const Convert& convert) {
    std::vector<Number> numbers(std::size_t{1} << 22U);
    const PhiloxKey key = MakePhiloxKey(1, "bench");
    for (size_t i = 0; i < numbers.size(); ++i) {
      double sum = -6;  // of twelve uniform numbers: nearly normal
      for (std::uint64_t j = 0; j < 12; ++j) sum += UniformFromWord(PhiloxWord(key, 12 * i + j));
      numbers[i] = convert(sum);
    }
    const auto period = static_cast<std::int64_t>(numbers.size() * sizeof(numbers[0]));
    Put(numbers.data(), std::min(period, bytes_));
    for (std::int64_t at = period; at < bytes_; at += period) {
      const auto bytes = static_cast<size_t>(std::min(period, bytes_ - at));
      REQUIRE(cudaMemcpy(data() + at, data_, bytes, cudaMemcpyDeviceToDevice) == cudaSuccess);
    }
  }

  void* data_ = nullptr;
  std::int64_t bytes_;
};

struct Model {
  const char* name;
  std::int64_t tokens, k, experts, d, f, planes;
};

// One product of the model: w[E, out, in].
struct Layer {
  const char* name;
  std::int64_t out, in;
};

// Rows of each expert, as many in all as there are choices: like (i + 1)^−exponent, in another order.
std::vector<std::int32_t> Loads(const Model& model, double exponent) {
  std::vector<double> shares;
  for (std::int64_t e = 0; e < model.experts; ++e)
    shares.push_back(std::pow(static_cast<double>(1 + e * 37 % model.experts), -exponent));
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  const std::int64_t choices = model.tokens * model.k;
  std::vector<std::int32_t> loads;
  std::int64_t left = choices;
  for (const double share : shares) {
    const auto rows = static_cast<std::int64_t>(static_cast<double>(choices) * share / all);
    loads.push_back(static_cast<std::int32_t>(std::min(rows, model.tokens)));
    left -= loads.back();
  }
  for (size_t e = 0; left > 0; e = (e + 1) % loads.size()) {
    ++loads[e];
    --left;
  }
  return loads;
}

std::vector<std::int32_t> GroupsOf(const std::vector<std::int32_t>& loads) {
  std::vector<std::int32_t> groups;
  std::int32_t first = 0;
  constexpr auto kAlignment = static_cast<std::int32_t>(graph::kRowAlignment);
  for (const std::int32_t rows : loads) {
    groups.insert(groups.end(), {first, rows});
    first += (rows + kAlignment - 1) / kAlignment * kAlignment;
  }
  return groups;
}

using Work = std::function<absl::Status()>;

// Milliseconds of one execution, in a window long enough for the GPU's power limit to show.
double Time(const Work& work) {
  cudaStream_t stream = Gpu().device().compute();
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  REQUIRE(cudaEventCreate(&begin) == cudaSuccess);
  REQUIRE(cudaEventCreate(&end) == cudaSuccess);
  const auto run = [&](int times) {
    REQUIRE(cudaEventRecord(begin, stream) == cudaSuccess);
    for (int i = 0; i < times; ++i) REQUIRE(work().ok());
    REQUIRE(cudaEventRecord(end, stream) == cudaSuccess);
    REQUIRE(cudaEventSynchronize(end) == cudaSuccess);
    float ms = 0;
    REQUIRE(cudaEventElapsedTime(&ms, begin, end) == cudaSuccess);
    return static_cast<double>(ms) / times;
  };
  run(1);
  constexpr double kWindowMs = 120;
  const int times = std::max(2, static_cast<int>(kWindowMs / run(2)));
  run(times / 3 + 1);
  const double ms = run(times);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms;
}

struct Buffers {
  DeviceMemory rows, other, result, groups, scratch;
  DeviceMemory rows_fp8, other_fp8, states;  // two states
};
constexpr std::int64_t kStateBytes = ops::kScaleNumbers * 4;

TensorView ViewOf(std::byte* data, DType dtype, const Shape& shape) {
  return TensorView{data, dtype, shape, Extent::Whole(shape), shape};
}

Work Prepare(const graph::OpDef& op, graph::Attributes attributes, backend::LaunchArgs args) {
  static std::vector<std::unique_ptr<plan::Instruction>> instructions;  // live as long as what was prepared
  auto& instruction = *instructions.emplace_back(std::make_unique<plan::Instruction>());
  plan::Kernel kernel{.name = std::string(op.name), .op = &op, .attributes = std::move(attributes)};
  kernel.accumulate = op.accumulates;
  kernel.fresh = op.accumulates;
  instruction.what = std::move(kernel);
  args.instruction = &instruction;
  auto enqueue = backend::cuda::FindKernel(op.name)->prepare(Gpu().device(), args);
  REQUIRE_MESSAGE(enqueue.ok(), Message(enqueue.status()));
  return [enqueue = *enqueue] { return enqueue(Gpu().device().compute(), {}); };
}

const graph::OpDef& Fp8Of(const graph::OpDef& op) {
  for (const ops::Fp8Product& product : ops::Fp8Products()) {
    if (product.plain == &op) return *product.fp8;
  }
  FAIL("no FP8 form of " << op.name);
  return op;
}

// In bf16 or FP8.
Work GroupedWork(const graph::OpDef& op, bool fp8, const Model& model, const Layer& layer, std::int64_t bound,
                 const Buffers& memory) {
  const Shape of_in = {bound, layer.in};
  const Shape of_out = {bound, layer.out};
  const Shape matrices = {model.experts, layer.out, layer.in};
  const bool weights = &op == &ops::kGroupedLinearWgrad;
  const bool forward = &op == &ops::kGroupedLinear;
  const DType operands = fp8 ? DType::kE4M3 : DType::kBF16;
  backend::LaunchArgs args;
  args.inputs = {
      ViewOf((fp8 ? memory.rows_fp8 : memory.rows).data(), operands, forward ? of_in : of_out),
      ViewOf((fp8 ? memory.other_fp8 : memory.other).data(), operands, weights ? of_in : matrices)};
  for (std::int64_t state = 0; fp8 && state < 2; ++state)
    args.inputs.push_back(
        ViewOf(memory.states.data() + state * kStateBytes, DType::kF32, {ops::kScaleNumbers}));
  args.inputs.push_back(ViewOf(memory.groups.data(), DType::kI32, {model.experts, 2}));
  args.outputs = {weights   ? ViewOf(memory.result.data(), DType::kF32, matrices)
                  : forward ? ViewOf(memory.result.data(), DType::kBF16, of_out)
                            : ViewOf(memory.result.data(), DType::kBF16, of_in)};
  args.scratch = {memory.scratch.data(), static_cast<size_t>(backend::cuda::kGemmWorkspaceBytes)};
  return Prepare(fp8 ? Fp8Of(op) : op, {{"in_dims", kOne}}, std::move(args));
}

// rows[bound, columns] to FP8, as they lie and transposed.
Work QuantizeWork(const Model& model, std::int64_t bound, std::int64_t columns, const Buffers& memory) {
  const Shape shape = {bound, columns};
  backend::LaunchArgs args;
  args.inputs = {ViewOf(memory.rows.data(), DType::kBF16, shape),
                 ViewOf(memory.groups.data(), DType::kI32, {model.experts, 2}),
                 ViewOf(memory.states.data(), DType::kF32, {ops::kScaleNumbers})};
  args.outputs = {ViewOf(memory.result.data(), DType::kE4M3, shape),
                  ViewOf(memory.result.data() + bound * columns, DType::kE4M3, shape)};
  return Prepare(ops::kQuantizeRows, {{"dims", kOne}, {"format", std::int64_t{0}}}, std::move(args));
}

Work DenseWork(const graph::OpDef& op, const Model& model, const Layer& layer, const Buffers& memory) {
  const std::int64_t rows = model.tokens * model.k;
  backend::cuda::GemmSpec spec = {.m = rows, .n = layer.out, .k = layer.in, .transpose_b = true};
  if (&op == &ops::kGroupedLinearDgrad) spec = {.m = rows, .n = layer.in, .k = layer.out};
  if (&op == &ops::kGroupedLinearWgrad)
    spec = {.m = layer.out, .n = layer.in, .k = rows, .transpose_a = true, .d = CUDA_R_32F};
  auto gemm = Gpu().device().gemm_tuner().Prepare(spec);
  REQUIRE_MESSAGE(gemm.ok(), Message(gemm.status()));
  const backend::cuda::GemmOperands operands = {.a = memory.rows.data(),
                                                .b = memory.other.data(),
                                                .d = memory.result.data(),
                                                .workspace = memory.scratch.data()};
  return [gemm = *gemm, operands] { return gemm->Run(Gpu().device().compute(), operands); };
}

void BenchLayer(const Model& model, const Layer& layer) {
  const std::int64_t bound = graph::RowBound(model.tokens, model.k, model.experts);
  const std::int64_t row_bytes = bound * std::max(layer.in, layer.out) * 2;
  const std::int64_t matrix = model.experts * layer.out * layer.in;
  Buffers memory{DeviceMemory(row_bytes),
                 DeviceMemory(std::max(matrix * 2, row_bytes)),
                 DeviceMemory(std::max(matrix * 4, row_bytes)),
                 DeviceMemory(model.experts * 8),
                 DeviceMemory(backend::cuda::kGemmWorkspaceBytes),
                 DeviceMemory(row_bytes / 2),
                 DeviceMemory(std::max(matrix, row_bytes / 2)),
                 DeviceMemory(2 * kStateBytes)};
  memory.rows.FillWithNormals(1);
  memory.other.FillWithNormals(0.02);
  memory.rows_fp8.FillWithFp8Normals();
  memory.other_fp8.FillWithFp8Normals();
  const std::vector<float> ones(2 * ops::kScaleNumbers, 1.0F);
  memory.states.Put(ones.data(), 2 * kStateBytes);
  const double flops = 2.0 * static_cast<double>(model.tokens * model.k) * static_cast<double>(layer.out) *
                       static_cast<double>(layer.in);
  for (const graph::OpDef* op :
       {&ops::kGroupedLinear, &ops::kGroupedLinearDgrad, &ops::kGroupedLinearWgrad}) {
    const Work dense = DenseWork(*op, model, layer, memory);
    const Work grouped = GroupedWork(*op, false, model, layer, bound, memory);
    const Work fp8 = GroupedWork(*op, true, model, layer, bound, memory);
    for (const double exponent : {0.0, 0.7}) {
      const std::vector<std::int32_t> groups = GroupsOf(Loads(model, exponent));
      memory.groups.Put(groups.data(), model.experts * 8);
      double dense_ms = 0;
      double grouped_ms = 0;
      double fp8_ms = 0;
      constexpr int kTurns = 2;
      for (int turn = 0; turn < kTurns; ++turn) {
        dense_ms += Time(dense) / kTurns;
        grouped_ms += Time(grouped) / kTurns;
        fp8_ms += Time(fp8) / kTurns;
      }
      std::puts(fmt::format("{:<12} {:<3} {:<20} {:<8} {:8.3f} ms {:4.0f} TFLOP/s, dense {:4.0f}, {:.3f} of "
                            "it; FP8 {:8.3f} ms "
                            "{:4.0f} TFLOP/s, {:.2f} x bf16",
                            model.name, layer.name, op->name, exponent == 0 ? "even" : "zipf 0.7", grouped_ms,
                            flops / grouped_ms / 1e9, flops / dense_ms / 1e9, dense_ms / grouped_ms, fp8_ms,
                            flops / fp8_ms / 1e9, grouped_ms / fp8_ms)
                    .c_str());
      std::fflush(stdout);
    }
  }
  for (const std::int64_t columns : {layer.in, layer.out}) {
    const double ms = Time(QuantizeWork(model, bound, columns, memory));
    const auto bytes = static_cast<double>(4 * model.tokens * model.k * columns);
    std::puts(fmt::format("{:<12} {:<3} quantize_rows of {:<5} columns {:8.3f} ms {:5.2f} TB/s", model.name,
                          layer.name, columns, ms, bytes / ms / 1e9)
                  .c_str());
  }
}

}  // namespace

TEST_CASE("grouped bench: beside a dense product of as many operations" * doctest::skip()) {
  for (const Model& model :
       {Model{"mixtral-s", 32768, 2, 8, 4096, 14336, 2}, Model{"qwen3-moe-s", 32768, 8, 128, 2048, 768, 2},
        Model{"gpt2-moe", 16384, 2, 8, 1280, 5120, 1}}) {
    BenchLayer(model, {"fc1", model.planes * model.f, model.d});
    BenchLayer(model, {"fc2", model.d, model.f});
  }
}

}  // namespace engine::gpu_test::grouped_bench
