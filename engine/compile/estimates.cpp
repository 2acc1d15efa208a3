#include "engine/compile/estimates.h"

#include <algorithm>

namespace engine::compile {
namespace {

// Where a cluster file says nothing: those of an H200. What counts is their proportion.
constexpr Rates kUsual = {.matmul_flops = 668e12, .memory_bandwidth = 4.3e12, .link_bandwidth = 360e9};
constexpr double kExchangeStart = 15e-6;  // seconds: two hand-shakes, or the launch of a collective
constexpr double kLaunch = 3e-6;
constexpr double kLocalCopies = 230e9;  // bytes a second, measured on an H200 beside kernels that fill it

}  // namespace

double EstimateSeconds(const plan::Instruction& instruction, const Rates& rates) {
  const auto rate = [](double given, double usual) { return given > 0 ? given : usual; };
  if (plan::IsBehind(instruction.stream)) {
    // What a rank keeps of its own is taken to be copied by an engine that is slow at pieces. The executor copies it by a
    // kernel by now (predict/cost.h knows); the orders of halves that follow from this were measured, and stay.
    const bool keeps = instruction.push() && instruction.collective() == plan::Collective::kAllToAll;
    const std::int64_t own = keeps ? instruction.inputs[0].bytes() - instruction.wire_bytes() : 0;
    return kExchangeStart + std::max(static_cast<double>(instruction.wire_bytes()) /
                                         rate(rates.link_bandwidth, kUsual.link_bandwidth),
                                     static_cast<double>(own) / kLocalCopies);
  }
  double bytes = 0;
  for (const auto* refs : {&instruction.inputs, &instruction.outputs}) {
    for (const plan::BufferRef& ref : *refs) bytes += static_cast<double>(ref.bytes());
  }
  const double slowdown = instruction.family() == graph::Family::kAttention ? rates.attention_slowdown : 1;
  const bool masked = instruction.slow().kind == plan::SlowPath::Kind::kMasked;
  const double flops = masked ? instruction.slow().flops : instruction.work().flops;
  return kLaunch + std::max(slowdown * flops / rate(rates.matmul_flops, kUsual.matmul_flops),
                            bytes / rate(rates.memory_bandwidth, kUsual.memory_bandwidth));
}

}  // namespace engine::compile
