#include "engine/plan/interleave.h"

#include <algorithm>
#include <array>

#include "engine/ops/ops.h"

namespace engine::plan {
namespace {

// Where a cluster file says nothing: those of an H200. What counts is their proportion.
constexpr Rates kUsual = {.matmul_flops = 668e12, .memory_bandwidth = 4.3e12, .link_bandwidth = 360e9};
constexpr double kExchangeStart = 15e-6;  // seconds: two hand-shakes, or the launch of a collective
constexpr double kLaunch = 3e-6;
constexpr double kLocalCopies = 230e9;  // bytes a second, measured on an H200 beside kernels that fill it
constexpr std::int64_t kLanes = 2;

bool Attends(const Instruction& instruction) { return instruction.kernel.starts_with("attention"); }

double Seconds(const Instruction& instruction, const Rates& rates) {
  const auto rate = [](double given, double usual) { return given > 0 ? given : usual; };
  if (instruction.stream == kExchangeStream) {
    // As it was when the orders of halves were measured: what a rank keeps of its own was copied meanwhile,
    // by an engine that is slow at pieces.
    const bool keeps = instruction.push && instruction.collective == Collective::kAllToAll;
    const std::int64_t own = keeps ? instruction.inputs[0].bytes() - instruction.wire_bytes : 0;
    return kExchangeStart + std::max(static_cast<double>(instruction.wire_bytes) /
                                         rate(rates.link_bandwidth, kUsual.link_bandwidth),
                                     static_cast<double>(own) / kLocalCopies);
  }
  double bytes = 0;
  for (const auto* refs : {&instruction.inputs, &instruction.outputs}) {
    for (const BufferRef& ref : *refs) bytes += static_cast<double>(ref.bytes());
  }
  const double slowdown = Attends(instruction) ? rates.attention_slowdown : 1;
  return kLaunch + std::max(slowdown * instruction.flops / rate(rates.matmul_flops, kUsual.matmul_flops),
                            bytes / rate(rates.memory_bandwidth, kUsual.memory_bandwidth));
}

struct Lane {
  size_t next = 0;
  double ready = 0;  // when what its next computation waits for has been exchanged
};

}  // namespace

Interleaving Interleave(const Segment& segment, const Rates& rates) {
  const size_t count = segment.instructions.size();
  std::vector<double> seconds;
  for (const Instruction& instruction : segment.instructions) seconds.push_back(Seconds(instruction, rates));
  // Computation from each instruction to the next exchange that its lane waits for.
  std::vector<double> ahead(count + 1, 0.0);
  for (size_t i = count; i-- > 0;) {
    const Instruction& instruction = segment.instructions[i];
    const bool exchanges = instruction.stream == kExchangeStream;
    ahead[i] = exchanges ? (instruction.detached ? ahead[i + 1] : 0) : seconds[i] + ahead[i + 1];
  }
  Interleaving result;
  std::array<Lane, kLanes> lanes;
  double computed = 0;
  double exchanged = 0;
  const auto done = [&](const Lane& lane) { return lane.next == count; };
  // Exchange is handed over as soon as it is next, and costs computation nothing.
  const auto take_exchanges = [&](size_t l) {
    Lane& lane = lanes[l];
    for (; !done(lane) && segment.instructions[lane.next].stream == kExchangeStream; ++lane.next) {
      if (l > 0 && lane.next >= lanes[0].next) return;
      const Instruction& instruction = segment.instructions[lane.next];
      result.order.push_back(static_cast<std::uint8_t>(l));
      if ((instruction.last_only && l == 0) || instruction.first_only) continue;  // most pairs have none
      exchanged = std::max(exchanged, computed) + seconds[lane.next];
      if (!instruction.detached) lane.ready = exchanged;
    }
  };
  while (!done(lanes[0]) || !done(lanes[1])) {
    for (size_t l = 0; l < kLanes; ++l) take_exchanges(l);
    const auto may = [&](size_t l) { return !done(lanes[l]) && (l == 0 || lanes[l].next < lanes[0].next); };
    if (!may(0) && !may(1)) continue;  // the first lane's exchange has just let the second go on
    const auto start = [&](size_t l) { return std::max(computed, lanes[l].ready); };
    size_t l = may(0) ? 0 : 1;
    if (may(0) && may(1)) {
      const bool sooner = start(1) < start(0);
      const bool shorter = start(1) == start(0) && ahead[lanes[1].next] < ahead[lanes[0].next];
      l = sooner || shorter ? 1 : 0;
    }
    Lane& lane = lanes[l];
    result.order.push_back(static_cast<std::uint8_t>(l));
    result.exposed_s += start(l) - computed;
    result.compute_s += seconds[lane.next];
    computed = start(l) + seconds[lane.next];
    ++lane.next;
  }
  result.exposed_s += std::max(0.0, std::max(lanes[0].ready, lanes[1].ready) - computed);
  return result;
}

}  // namespace engine::plan
