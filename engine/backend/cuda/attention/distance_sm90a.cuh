// Trained biases of attention on Hopper (AttentionProblem::biases): what they add to scores, and the gradient of those by distance. Most blocks
// of scores are far from the diagonal, where all pairs have the first bias of distance or the last one.
#pragma once

#include "engine/backend/cuda/attention/sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

// The biases of a head, around that of distance 0, times log2(e).
template <typename T>
struct BiasesByDistance {
  const T* of_zero;
  int farthest;

  __device__ __forceinline__ BiasesByDistance(const Common& c, int head)
      : of_zero(static_cast<const T*>(c.biases) + head * (2 * c.distance + 1) + c.distance),
        farthest(c.distance) {}
  __device__ __forceinline__ float At(int distance) const {
    return ToFloat(__ldg(of_zero + min(max(distance, -farthest), farthest))) * kLog2E;
  }
};

// The biases of a head's pairs. What is behind the last place has some other bias: it is masked, or no row of the problem.
template <typename T>
struct BiasesByPair {
  const T* of_head;
  int places;

  __device__ __forceinline__ BiasesByPair(const Common& c, int head)
      : of_head(static_cast<const T*>(c.biases) + static_cast<std::int64_t>(head) * c.pairs * c.pairs),
        places(c.pairs) {}
  __device__ __forceinline__ const T* RowOf(int query) const {
    return of_head + min(query, places - 1) * places;
  }
  __device__ __forceinline__ float At(const T* row, int key) const {
    return ToFloat(__ldg(row + min(key, places - 1)));
  }
  // The biases of an even key and of the key behind it, in a query's row.
  __device__ __forceinline__ float2 TwoAt(const T* row, int key) const {
    if (places % 2 != 0) return {At(row, key), At(row, key + 1)};
    return PairToFloat(T(), __ldg(reinterpret_cast<const std::uint32_t*>(row + min(key, places - 2))));
  }
};

// ------------------------------------------------------------------------------------------------------ gradient

// The gradient of a head's biases, of the keys of one warp: it alone adds to its `sums`, so that their order is fixed. It has
// no more registers than it needs between tiles: its callers say where its sums are, and which distance is the farthest.
template <typename T, int kScoreQueries>
struct DistanceSums {
  static constexpr int kEights = kScoreQueries / 8;

  float low = 0, high = 0;  // a thread's part of what the first bias and the last one have gathered

  // `scores`: gradients of the scores of 16 keys and kScoreQueries queries, pairs as a product's second operand from registers
  // has them; `corner`: how far behind the first query the first key stands; sums_of(): this head's sums.
  template <typename SumsOf>
  __device__ __forceinline__ void Add(const std::uint32_t (&scores)[kScoreQueries / 4], int corner,
                                      int farthest, const SumsOf& sums_of) {
    if (corner + 15 <= -farthest) {
      low += SumOf(scores);
    } else if (corner - (kScoreQueries - 1) >= farthest) {
      high += SumOf(scores);
    } else {
      AddNear(scores, corner, farthest, sums_of());
    }
  }

  // Adds what the warp's threads have gathered of the first and the last bias to the sums, and begins anew. All of its threads call it.
  __device__ __forceinline__ void Finish(int farthest, float* sums) {
    low = WarpSum(low);
    high = WarpSum(high);
    if (threadIdx.x % kWarp == 0) {
      AddTo(sums, low);
      AddTo(sums + 2 * farthest, high);
    }
    __syncwarp();
    low = high = 0;
  }

 private:
  // The sums of one warp's threads, of which the one that adds changes from tile to tile.
  static __device__ __forceinline__ void AddTo(float* sum, float value) { atomicAdd(sum, value); }

  static __device__ __forceinline__ float SumOf(const std::uint32_t (&scores)[kScoreQueries / 4]) {
    float2 sum = {0, 0};
#pragma unroll
    for (const std::uint32_t pair : scores) {
      const float2 two = PairToFloat(T(), pair);
      sum.x += two.x;
      sum.y += two.y;
    }
    return sum.x + sum.y;
  }

  // A thread has pairs of row r = lane / 4, c = 2 · (lane % 4) and c + 1 of each square of 8 × 8. What is of one distance lies on
  // a diagonal: of squares, and within them.
  __device__ __forceinline__ void AddNear(const std::uint32_t (&scores)[kScoreQueries / 4], int corner,
                                          int farthest, float* sums) {
    constexpr int kDiagonals = kEights + 2;  // of squares: distances corner + 8 · (n − kEights) + 0 to 7
    constexpr int kKept = (kDiagonals + 7) / 8;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int row = lane / 4;
    const int column = lane % 4;
    const bool odd = row % 2 != 0;
    const int k = row / 2;
    // Sums of the two squares of a warp's rows that are on diagonal n.
    const auto of_squares = [&](int n) -> float2 {
      float2 sum = {0, 0};
      const int i = kEights - n;  // the square of the first rows, −1 of it that of the last ones
      if (i >= 0 && i < kEights) sum = PairToFloat(T(), scores[2 * i]);
      if (i + 1 >= 0 && i + 1 < kEights) {
        const float2 other = PairToFloat(T(), scores[2 * (i + 1) + 1]);
        sum.x += other.x;
        sum.y += other.y;
      }
      return sum;
    };
    const int to_next = (lane & ~3) | ((column + 1) & 3);
    const int to_one = ((k ^ 1) << 3) | (lane & 4) | ((column + (k ^ 1) - k) & 3);
    const int to_two = ((k ^ 2) << 3) | (lane & 4) | ((column + 2) & 3);
    float2 kept[kKept];
#pragma unroll
    for (int i = 0; i < kKept; ++i) kept[i] = {0, 0};
    float2 above = of_squares(0);
#pragma unroll
    for (int n = 0; n < kDiagonals; ++n) {
      const float2 at = above;
      above = of_squares(n + 1);
      // Where the key stands behind the query within the square, this diagonal of squares counts, elsewhere the next one.
      const float first = row >= 2 * column ? at.x : above.x;
      const float second = row >= 2 * column + 1 ? at.y : above.y;
      // Lanes exchange so that `even` is a part of the sum of distance 2s and `below` of 2s − 1 (mod 8) in the square, where s =
      // k − column (mod 4).
      const float moved = __shfl_sync(kAllLanes, first, to_next);
      float even = odd ? second : first;
      float below = odd ? moved : second;
      even += __shfl_xor_sync(kAllLanes, even, 4);
      below += __shfl_xor_sync(kAllLanes, below, 4);
      even += __shfl_sync(kAllLanes, even, to_one);
      below += __shfl_sync(kAllLanes, below, to_one);
      even += __shfl_sync(kAllLanes, even, to_two);
      below += __shfl_sync(kAllLanes, below, to_two);
      if (row == n % 8) kept[n / 8] = {even, below};
    }
    const int s = (k - column) & 3;
    const auto add = [&](int distance, float value) {
      if (distance <= -farthest) {
        low += value;
      } else if (distance >= farthest) {
        high += value;
      } else {
        AddTo(sums + distance + farthest, value);
      }
    };
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int n = 8 * i + row;
      if (n >= kDiagonals) break;
      const int first = corner + 8 * (n - kEights);
      add(first + 2 * s, kept[i].x);
      add(first + ((2 * s - 1) & 7), kept[i].y);
    }
    __syncwarp();
  }
};

}  // namespace engine::backend::cuda::attention_sm90a
