// The steps from scores to probabilities in attention's forward pass on Hopper: caps, biases and masks, the softmax, draws, and the pairs that
// multiply values.
#pragma once

#include "engine/backend/cuda/attention/forward_form_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

template <typename Form>
struct ForwardState {
  static constexpr int kScores = Form::kKeys / 2;
  static constexpr int kValues = Form::kU / 2;
  float o[kValues];
  float scores[kScores];
  std::uint32_t probabilities[kScores / 2];
  float top[2], sum[2];
};

template <typename Form>
__device__ __forceinline__ void IssueValues(const std::uint32_t (&probabilities)[Form::kKeys / 4],
                                            std::uint32_t v, float (&o)[Form::kU / 2], bool add) {
#pragma unroll
  for (int step = 0; step < Form::kKeys / 16; ++step) {
    hopper::Product<typename Form::T, Form::kU>::template Add<true>(
        probabilities[4 * step], probabilities[4 * step + 1], probabilities[4 * step + 2],
        probabilities[4 * step + 3], Form::V::StepOfRows(v, step), o, step > 0 || add);
  }
  hopper::EndProducts();
}

// The softmax takes factor · score + bias for a thread's score, in units of ln 2.
struct ScoreUnit {
  float factor, bias;
};
template <typename Form>
__device__ __forceinline__ float FactorOf(const Common& c) {
  return Form::kCapped ? c.softcap * kLog2E : c.scale_log2;
}

// The 64 queries of a warpgroup.
struct ForwardRows {
  int position;     // of this thread's first query; the other one stands 8 behind it
  Sight sight;      // keys that all queries see
  int first, last;  // with kPassesBy: blocks of keys that one of them sees; none where last < first
  // With linear biases: the head's slope, as it is added to scores before their factor (ScoreUnit). With biases by distance: the bias
  // of all keys that are too far before their query to have one of their own.
  float bias;
};
template <typename Form>
__device__ __forceinline__ ForwardRows RowsOf(const Common& c, const ForwardItem& item) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int first = static_cast<int>(threadIdx.x) / kWarpgroup * 64;
  const auto sight = [&](int row) {
    const int at = min(row, item.tile.rows - 1);
    return SightOf(c, item.sample, item.tile.row + at, item.tile.position + at);
  };
  Sight blocks = {0, 0};
  if constexpr (Form::kPassesBy) {
    if (first < item.tile.rows) {
      blocks = {max(0, sight(first).from) / Form::kKeys,
                (sight(first + 63).below + Form::kKeys - 1) / Form::kKeys};
    }
  }
  float bias = 0;
  if constexpr (Form::kBiases == Biases::kLinear) bias = SlopeOf(c, item.head) / FactorOf<Form>(c);
  if constexpr (Form::kBiases == Biases::kByDistance)
    bias = BiasesByDistance<typename Form::T>(c, item.head).Log2At(-c.distance);
  return {item.tile.position + first + thread / kWarp * 16 + thread % kWarp / 4,
          {sight(first + 63).from, sight(first).below},
          blocks.from,
          blocks.below - 1,
          bias};
}

// Scores of products q·k: scale · product + bias of the pair. `boxed`: where the biases of this warpgroup's queries are in shared
// memory; 0: they are read from where they are.
template <typename Form>
__device__ __forceinline__ void AddPairBiases(const Common& c, int head, int position, int block,
                                              std::uint32_t boxed, float (&scores)[Form::kKeys / 2]) {
  using T = typename Form::T;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float scale = c.scale_log2 * (1.0F / kLog2E);
  const auto add = [&](int at, float2 bias) {
    scores[at] = fmaf(scores[at], scale, bias.x);
    scores[at + 1] = fmaf(scores[at + 1], scale, bias.y);
  };
  if (boxed != 0) {
    const int row = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < Form::kKeys / 16; ++step) {
      std::uint32_t pairs[4];
      Form::PairBiases::LoadPairs(boxed, row, step, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) add(8 * step + 2 * i, PairToFloat(T(), pairs[i]));
    }
    return;
  }
  const BiasesByPair<T> biases(c, head);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const T* row = biases.RowOf(position + 8 * half);
#pragma unroll
    for (int eight = 0; eight < Form::kKeys / 8; ++eight)
      add(4 * eight + 2 * half, biases.TwoAt(row, block * Form::kKeys + lane % 4 * 2 + 8 * eight));
  }
}

// Applies cap and biases to the products q·k of a block, as far as they differ from score to score of a thread. The rest of them, and
// the scale, is the factor and the bias that are returned: the softmax applies these in an operation that it makes anyway.
// `boxed`: as of AddPairBiases.
template <typename Form>
__device__ __forceinline__ ScoreUnit BendScores(const Common& c, const ForwardItem& item,
                                                const ForwardRows& rows, int block, std::uint32_t boxed,
                                                float (&scores)[Form::kKeys / 2]) {
  constexpr int kScores = Form::kKeys / 2;
  const float factor = FactorOf<Form>(c);
  if constexpr (Form::kCapped) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] = Tanh(scores[i] * c.bent_scale);
  }
  [[maybe_unused]] const int lane = static_cast<int>(threadIdx.x) % kWarp;
  [[maybe_unused]] const int first = block * Form::kKeys + lane % 4 * 2;  // key of scores[0]
  // How far scores[i] stands from scores[0] behind its query.
  [[maybe_unused]] const auto behind = [](int i) { return i / 4 * 8 + i % 2 - i / 2 % 2 * 8; };
  if constexpr (Form::kBiases == Biases::kOfPairs) {
    AddPairBiases<Form>(c, item.head, rows.position, block, boxed, scores);
    return {kLog2E, 0};
  } else if constexpr (Form::kBiases == Biases::kLinear) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] = fmaf(rows.bias, static_cast<float>(behind(i)), scores[i]);
    return {factor, -rows.bias * factor * static_cast<float>(rows.position - first)};
  } else if constexpr (Form::kBiases == Biases::kByDistance) {
    const int corner = block * Form::kKeys - (rows.position - lane / 4);  // of the warp's first query
    if (corner + Form::kKeys - 1 <= -c.distance) return {factor, rows.bias};
    const BiasesByDistance<typename Form::T> biases(c, item.head);
    if (corner - 15 >= c.distance) return {factor, biases.Log2At(corner)};
    const int distance = first - rows.position;
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      scores[i] = fmaf(scores[i], factor, biases.Log2At(distance + behind(i)));
    return {1, 0};
  }
  return {factor, 0};
}

// Sets what stands for keys of a block that a query does not see to `hidden`. False: all queries see all of them.
template <typename Form>
__device__ __forceinline__ bool Hide(const Common& c, const ForwardItem& item, const ForwardRows& rows,
                                     int block, float hidden, float (&scores)[Form::kKeys / 2]) {
  const int first = block * Form::kKeys + static_cast<int>(threadIdx.x) % 4 * 2;  // key of scores[0]
  const bool has_below = (block + 1) * Form::kKeys > rows.sight.below;
  const bool has_from = block * Form::kKeys < rows.sight.from;
  if (!has_below && !has_from) return false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = min(rows.position + half * 8 - item.tile.position, item.tile.rows - 1);
    const Sight sight = SightOf(c, item.sample, item.tile.row + at, item.tile.position + at);
    const auto hide = [&](const auto& is_hidden) {
#pragma unroll
      for (int i = 0; i < Form::kKeys / 4; ++i) {
        if (is_hidden(i / 2 * 8 + i % 2)) scores[i / 2 * 4 + half * 2 + i % 2] = hidden;
      }
    };
    // Few blocks have both: a comparison each where there is one.
    if (has_below) hide([below = sight.below - first](int key) { return key >= below; });
    if (has_from) hide([from = sight.from - first](int key) { return key < from; });
  }
  return true;
}

// Probabilities of a block, in place of its products q·k, where there is no largest score to subtract (ForwardForm::kBounded). One loop
// brings each score through all that is done to it, so that the operations of several are under way at once.
template <typename Form>
__device__ __forceinline__ void BoundedSoftmax(const Common& c, const ForwardItem& item,
                                               const ForwardRows& rows, int block, ForwardState<Form>& s) {
  const float factor = FactorOf<Form>(c);
  float sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < Form::kKeys / 2; ++i) {
    float& score = s.scores[i];
    const float tanh = Tanh(score * c.bent_scale);
    const bool by_polynomial = Form::kPolynomial > 0 && i % Form::kPolynomial == 0;
    score = by_polynomial ? BoundedExp2ByPolynomial(tanh, factor) : Exp2(tanh * factor);
    sum[i / 2 % 2] += score;
  }
  if (Hide<Form>(c, item, rows, block, /*hidden=*/0, s.scores)) {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < Form::kKeys / 2; ++i) sum[i / 2 % 2] += s.scores[i];
  }
  s.sum[0] += sum[0];
  s.sum[1] += sum[1];
}

// Probabilities of a block, in place of its scores; what sums so far are to be multiplied by.
template <typename Form>
__device__ __forceinline__ void Softmax(const ScoreUnit& unit, ForwardState<Form>& s, float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < Form::kKeys / 8; ++i)
      top = fmaxf(top, fmaxf(s.scores[4 * i + 2 * half], s.scores[4 * i + 2 * half + 1]));
    top = fmaf(top, unit.factor, unit.bias);
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    top = fmaxf(top, s.top[half]);
    const float zero = top == -INFINITY ? 0.0F : top;
    shrink[half] = Exp2(s.top[half] - zero);
    s.top[half] = top;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Form::kKeys / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = s.scores[4 * i + 2 * half + e];
        const float power = fmaf(score, unit.factor, unit.bias - zero);
        score = Exp2Of<Form::kPolynomial>(power, 2 * i + e);
        sum += score;
      }
    }
    s.sum[half] = s.sum[half] * shrink[half] + sum;
  }
}

template <typename Form>
__device__ __forceinline__ void Drop(const Common& c, int position, int block, std::uint32_t head,
                                     std::uint32_t epoch, float (&scores)[Form::kKeys / 2]) {
  const std::uint32_t lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = 0; step < Form::kKeys / 16; ++step) {
    const Draws draws = Draw(c, static_cast<std::uint32_t>(block * Form::kKeys / 16 + step) * 32 + lane,
                             static_cast<std::uint32_t>(position) / 16, head, epoch);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      // Word 2·(query/8) + key/8; scores are in the other order.
      float* pair = &scores[8 * step + word % 2 * 4 + word / 2 * 2];
      if (draws.words[word] << 16 < c.drop_below_high) pair[0] = 0;
      if (draws.words[word] < c.drop_below_high) pair[1] = 0;
    }
  }
}

template <typename Form>
__device__ __forceinline__ void Pack(const float (&scores)[Form::kKeys / 2],
                                     std::uint32_t (&probabilities)[Form::kKeys / 4]) {
#pragma unroll
  for (int i = 0; i < Form::kKeys / 4; ++i)
    probabilities[i] = PairFromFloat(typename Form::T(), scores[2 * i], scores[2 * i + 1]);
}

}  // namespace engine::backend::cuda::attention_sm90a
