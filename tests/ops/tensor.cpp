#include "tests/ops/tensor.h"

#include <array>
#include <thread>

#include "engine/backend/cpu/kernel_table.h"
#include "engine/base/e4m3.h"
#include "engine/plan/control.h"

namespace engine::ops_test {
namespace {

void RunOnThreads(int threads, std::int64_t tasks, const std::function<void(std::int64_t)>& body) {
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      for (std::int64_t i = tasks - 1 - t; i >= 0; i -= threads) body(i);
    });
  }
  for (std::thread& thread : pool) thread.join();
}

}  // namespace

Tensor::Tensor(const graph::TensorType& type, Extent extent, Shape logical)
    : type_(type),
      extent_(std::move(extent)),
      logical_(std::move(logical)),
      bytes_(static_cast<size_t>(type.shape.elements() * SizeOf(type.dtype)), std::byte{0xFF}) {}

double Tensor::Get(std::int64_t i) const {
  const auto at = static_cast<size_t>(i);
  if (type_.dtype == DType::kF32) return reinterpret_cast<const float*>(bytes_.data())[at];
  if (type_.dtype == DType::kF64) return reinterpret_cast<const double*>(bytes_.data())[at];
  if (type_.dtype == DType::kE4M3) return FloatFromE4M3(reinterpret_cast<const E4M3*>(bytes_.data())[at]);
  return reinterpret_cast<const std::int32_t*>(bytes_.data())[at];
}

void Tensor::Set(std::int64_t i, double value) {
  const auto at = static_cast<size_t>(i);
  if (type_.dtype == DType::kF32) {
    reinterpret_cast<float*>(bytes_.data())[at] = static_cast<float>(value);
  } else if (type_.dtype == DType::kF64) {
    reinterpret_cast<double*>(bytes_.data())[at] = value;
  } else if (type_.dtype == DType::kE4M3) {
    reinterpret_cast<E4M3*>(bytes_.data())[at] = E4M3FromFloat(static_cast<float>(value));
  } else {
    reinterpret_cast<std::int32_t*>(bytes_.data())[at] = static_cast<std::int32_t>(value);
  }
}

backend::TensorView Tensor::View() const {
  return {const_cast<std::byte*>(bytes_.data()), type_.dtype, type_.shape, extent_, logical_};
}

Tensor Tensor::Widened() const {
  if (type_.dtype != DType::kF32) return *this;
  Tensor wide({type_.shape, DType::kF64}, extent_, logical_);
  for (std::int64_t i = 0; i < elements(); ++i) wide.Set(i, Get(i));
  return wide;
}

std::vector<graph::TensorType> TypesOf(const Tensors& tensors) {
  std::vector<graph::TensorType> types;
  for (const Tensor& tensor : tensors) types.push_back(tensor.type());
  return types;
}

void RunInto(std::string_view op, const graph::Attributes& attributes, const Tensors& inputs,
             Tensors* outputs, const RunOptions& options) {
  const backend::cpu::KernelEntry* entry = backend::cpu::FindKernel(op);
  ENGINE_CHECK(entry != nullptr, "no kernel {}", op);
  std::vector<backend::TensorView> in;
  std::vector<backend::TensorView> out;
  for (const Tensor& input : inputs) in.push_back(input.View());
  for (const Tensor& output : *outputs) out.push_back(output.View());
  if (options.in_place_input >= 0) in[static_cast<size_t>(options.in_place_input)].data = out[0].data;
  std::vector<std::byte> scratch;
  if (entry->scratch_bytes != nullptr) {
    const auto bytes = entry->scratch_bytes(TypesOf(inputs), TypesOf(*outputs), attributes);
    scratch.assign(static_cast<size_t>(bytes), std::byte{0xFF});
  }
  const backend::ParallelFor parallel_for = [&](std::int64_t tasks, const auto& body) {
    RunOnThreads(options.threads, tasks, body);
  };
  std::array<double, plan::kControlNumbers> control{};
  control[plan::kLossScale] = options.loss_scale;
  control[plan::kLabelFactor] = 1;
  const backend::KernelContext context = {.control = control.data(),
                                          .seed = kSeed,
                                          .iteration = kIteration,
                                          .first_sample = kFirstSample,
                                          .parallel_for = options.threads > 1 ? &parallel_for : nullptr};
  backend::cpu::KernelFor(*entry, in, out)({.inputs = in,
                                            .outputs = out,
                                            .attributes = &attributes,
                                            .accumulate = options.accumulate,
                                            .scratch = scratch,
                                            .context = &context});
}

Tensors RunOp(const graph::OpDef& op, const graph::Attributes& attributes, const Tensors& inputs,
              const RunOptions& options) {
  const auto types = op.infer(TypesOf(inputs), attributes);
  ENGINE_CHECK(types.ok(), "{}: {}", op.name, Message(types.status()));
  Tensors outputs;
  for (const graph::TensorType& type : *types) outputs.emplace_back(type);
  RunInto(op.name, attributes, inputs, &outputs, options);
  return outputs;
}

}  // namespace engine::ops_test
