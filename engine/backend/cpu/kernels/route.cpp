#include <absl/container/inlined_vector.h>

#include <numeric>
#include <vector>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/backend/cpu/kernels/router_score.h"
#include "engine/base/philox.h"

namespace engine::backend::cpu {
namespace {

template <typename T>
using Row = absl::InlinedVector<T, 64>;

struct Routing {
  explicit Routing(const graph::Attributes& attributes)
      : k(attributes.Int("k")),
        groups(attributes.Int("groups", 1)),
        kept(attributes.Int("kept", 1)),
        best(attributes.Int("best", 1)),
        score(RouterScoreOf(attributes)),
        normalize(attributes.Int("normalize") != 0),
        even(attributes.Has("force") && attributes.String("force") == "even"),
        zipf(attributes.Has("force") && attributes.String("force") == "zipf"),
        by_rank(attributes.Has("select")),
        scale(attributes.Float("scale", 1)) {}
  std::int64_t k, groups, kept, best;
  RouterScore score;
  bool normalize, even, zipf;
  bool by_rank;  // input 1 has what is chosen by; else it is the experts' bias
  double scale;
};

template <typename T>
void Scores(const Routing& routing, const T* logits, Row<T>* scores) {
  const auto experts = static_cast<std::int64_t>(scores->size());
  if (routing.score != RouterScore::kSoftmax) {
    for (std::int64_t e = 0; e < experts; ++e)
      (*scores)[static_cast<size_t>(e)] = ScoreAlone(routing.score, logits[e]);
    return;
  }
  const T most = MaxOf(experts, logits);
  const T sum = SumOf<T>(experts, [&](std::int64_t e) { return Exp(logits[e] - most); });
  for (std::int64_t e = 0; e < experts; ++e) (*scores)[static_cast<size_t>(e)] = Exp(logits[e] - most) / sum;
}

// The `count` largest, in falling order; of equals the smaller index first.
template <typename T>
Row<std::int32_t> Largest(const Row<T>& values, std::int64_t count) {
  Row<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](std::int32_t a, std::int32_t b) {
    const T x = values[static_cast<size_t>(a)];
    const T y = values[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

template <typename T>
void ForbidOtherGroups(const Routing& routing, Row<T>* ranks) {
  if (routing.groups == 1) return;
  const size_t size = ranks->size() / static_cast<size_t>(routing.groups);
  Row<T> of_group(static_cast<size_t>(routing.groups));
  for (size_t g = 0; g < of_group.size(); ++g) {
    const Row<T> members(ranks->begin() + static_cast<std::ptrdiff_t>(g * size),
                         ranks->begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    for (const std::int32_t e : Largest(members, routing.best))
      of_group[g] += members[static_cast<size_t>(e)];
  }
  Row<bool> kept(of_group.size(), false);
  for (const std::int32_t g : Largest(of_group, routing.kept)) kept[static_cast<size_t>(g)] = true;
  for (size_t e = 0; e < ranks->size(); ++e) {
    if (!kept[e / size]) (*ranks)[e] = -std::numeric_limits<T>::infinity();
  }
}

// Makes the choices of attribute force, which do not depend on the logits and are for measurements alone
// (ops/route.cpp): an expert of a larger rank is chosen first.
template <typename T>
void Force(const Routing& routing, std::uint64_t seed, std::int64_t token, Row<T>* ranks) {
  const auto experts = static_cast<std::int64_t>(ranks->size());
  const PhiloxKey key = MakePhiloxKey(seed, "route");
  for (std::int64_t e = 0; e < experts; ++e) {
    T& rank = (*ranks)[static_cast<size_t>(e)];
    if (routing.even) {
      const std::int64_t from = ((e - token * routing.k) % experts + experts) % experts;
      rank = static_cast<T>(-from);
    } else {
      const std::uint32_t word = PhiloxWord(key, static_cast<std::uint64_t>(token * experts + e));
      const double draw = -std::log(std::max<double>(UniformFromWord(word), 1e-12));
      rank = static_cast<T>(-draw * std::pow(static_cast<double>(e + 1), 0.7));
    }
  }
}

// The logical number of a token, of which dims hold what is here.
std::int64_t LogicalToken(const TensorView& logits, std::int64_t local) {
  if (logits.extent.dims.empty()) return local;
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (int dim = logits.shape.rank() - 2; dim >= 0; --dim) {
    index += LogicalIndex(logits.extent.dims[static_cast<size_t>(dim)], local % logits.shape[dim]) * stride;
    local /= logits.shape[dim];
    stride *= logits.logical[dim];
  }
  return index;
}

}  // namespace

template <typename T>
void Route(const KernelArgs& args) {
  const TensorView& logits = args.inputs[0];
  const std::int64_t experts = logits.shape[logits.shape.rank() - 1];
  const Routing routing(*args.attributes);
  const T* other = args.inputs.size() == 2 ? args.inputs[1].as<T>() : nullptr;
  const T* bias = routing.by_rank ? nullptr : other;
  auto* choice = args.outputs[0].as<std::int32_t>();
  T* weight = args.outputs[1].as<T>();
  ForEachBlock(args, logits.shape.elements() / experts, 256, [&](std::int64_t first, std::int64_t last) {
    Row<T> scores(static_cast<size_t>(experts));
    for (std::int64_t token = first; token < last; ++token) {
      Scores(routing, logits.as<T>() + token * experts, &scores);
      Row<T> ranks = scores;
      for (std::int64_t e = 0; bias != nullptr && e < experts; ++e) ranks[static_cast<size_t>(e)] += bias[e];
      if (routing.by_rank) std::copy_n(other + token * experts, experts, ranks.begin());
      ForbidOtherGroups(routing, &ranks);
      if (routing.even || routing.zipf)
        Force(routing, args.context->seed, LogicalToken(logits, token), &ranks);
      const Row<std::int32_t> chosen = Largest(ranks, routing.k);
      T sum = 0;
      for (const std::int32_t e : chosen) sum += scores[static_cast<size_t>(e)];
      const T factor =
          static_cast<T>(routing.scale) / (routing.normalize ? GuardedSum(routing.score, sum) : T(1));
      for (std::int64_t j = 0; j < routing.k; ++j) {
        choice[token * routing.k + j] = chosen[static_cast<size_t>(j)];
        weight[token * routing.k + j] = factor * scores[static_cast<size_t>(chosen[static_cast<size_t>(j)])];
      }
    }
  });
}

// With Z the sum of the chosen scores s (1 where they are not normalised): d_s = scale/Z · (d_w − Σ_j d_w_j s_j/Z), then
// through the score.
template <typename T>
void RouteGrad(const KernelArgs& args) {
  const TensorView& logits = args.inputs[0];
  const std::int64_t experts = logits.shape[logits.shape.rank() - 1];
  const Routing routing(*args.attributes);
  const auto* choice = args.inputs[1].as<std::int32_t>();
  const T* d_weight = args.inputs[2].as<T>();
  T* d_logits = args.outputs[0].as<T>();
  ForEachBlock(args, logits.shape.elements() / experts, 256, [&](std::int64_t first, std::int64_t last) {
    Row<T> scores(static_cast<size_t>(experts));
    for (std::int64_t token = first; token < last; ++token) {
      Scores(routing, logits.as<T>() + token * experts, &scores);
      const std::int32_t* chosen = choice + token * routing.k;
      const T* d = d_weight + token * routing.k;
      T sum = 0;
      T mean = 0;
      for (std::int64_t j = 0; j < routing.k; ++j) {
        sum += scores[static_cast<size_t>(chosen[j])];
        mean += d[j] * scores[static_cast<size_t>(chosen[j])];
      }
      sum = GuardedSum(routing.score, sum);
      mean = routing.normalize ? mean / sum : T(0);
      const T factor = static_cast<T>(routing.scale) / (routing.normalize ? sum : T(1));
      T* out = d_logits + token * experts;
      std::fill_n(out, experts, T(0));
      for (std::int64_t j = 0; j < routing.k; ++j) out[chosen[j]] = factor * (d[j] - mean);
      if (routing.score != RouterScore::kSoftmax) {
        for (std::int64_t e = 0; e < experts; ++e)
          out[e] *= SlopeAlone(routing.score, scores[static_cast<size_t>(e)]);
        continue;
      }
      const T inner =
          SumOf<T>(experts, [&](std::int64_t e) { return out[e] * scores[static_cast<size_t>(e)]; });
      for (std::int64_t e = 0; e < experts; ++e) out[e] = scores[static_cast<size_t>(e)] * (out[e] - inner);
    }
  });
}

template <typename T>
void RouteLoad(const KernelArgs& args) {
  const auto* choice = args.inputs[0].as<std::int32_t>();
  const std::int64_t choices = args.inputs[0].shape.elements();
  const std::int64_t experts = args.outputs[0].shape[0];
  T* load = args.outputs[0].as<T>();
  std::vector<std::int64_t> count(static_cast<size_t>(experts), 0);
  for (std::int64_t c = 0; c < choices; ++c) ++count[static_cast<size_t>(choice[c])];
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t more = experts * count[static_cast<size_t>(e)] - choices;
    load[e] = (Accumulates(args, 0) ? load[e] : T(0)) + static_cast<T>(more);
  }
}

template <typename T>
void RouteCount(const KernelArgs& args) {
  const auto* choice = args.inputs[0].as<std::int32_t>();
  auto* count = args.outputs[0].as<double>();
  if (!Accumulates(args, 0)) std::fill_n(count, args.outputs[0].shape[0], 0.0);
  for (std::int64_t c = 0; c < args.inputs[0].shape.elements(); ++c) count[choice[c]] += 1;
}

template void RouteCount<float>(const KernelArgs&);
template void RouteCount<double>(const KernelArgs&);
template void RouteLoad<float>(const KernelArgs&);
template void RouteLoad<double>(const KernelArgs&);
template void Route<float>(const KernelArgs&);
template void Route<double>(const KernelArgs&);
template void RouteGrad<float>(const KernelArgs&);
template void RouteGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu
