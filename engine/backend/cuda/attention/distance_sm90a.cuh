// Trained biases of attention on Hopper (AttentionProblem::biases): what they add to scores, and the gradient of those by distance. Most blocks
// of scores are far from the diagonal, where all pairs have the first bias of distance or the last one.
#pragma once

#include "engine/backend/cuda/attention/sm90a.cuh"
#include "engine/backend/cuda/kernels/mma.cuh"

namespace engine::backend::cuda::attention_sm90a {

// The biases of a head, around that of distance 0.
template <typename T>
struct BiasesByDistance {
  const T* of_zero;
  int farthest;

  __device__ __forceinline__ BiasesByDistance(const Common& c, int head)
      : of_zero(static_cast<const T*>(c.biases) + head * (2 * c.distance + 1) + c.distance),
        farthest(c.distance) {}
  __device__ __forceinline__ float At(int distance) const {
    return ToFloat(__ldg(of_zero + min(max(distance, -farthest), farthest)));
  }
  // Times log2(e).
  __device__ __forceinline__ float Log2At(int distance) const { return At(distance) * kLog2E; }
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

// The distances that have biases: how far a key stands behind its query, from −farthest to farthest. Under a causal mask no query sees a key
// behind it (none_behind): the gradient then has the distances up to 0 alone, and what higher ones gather is 0.
struct Distances {
  int farthest;
  bool none_behind;
  __host__ __device__ __forceinline__ int rows() const { return (none_behind ? 1 : 2) * farthest + 1; }
  // From it on all distances have one sum.
  __device__ __forceinline__ int high() const { return none_behind ? 1 : farthest; }
};
__host__ __device__ __forceinline__ Distances DistancesOf(const Common& c) {
  return {c.distance, c.causal != 0};
}

// The gradient of a head's biases, of the keys of one warp: it alone adds to its `sums`, so that their order is fixed. It has
// no more registers than it needs between tiles: its callers say where its sums are, and which distance is the farthest.
template <typename T, int kScoreQueries>
struct DistanceSums {
  static constexpr int kEights = kScoreQueries / 8;

  // Summed over a warp's threads, `low` is four times what the first bias has gathered, and `high` four times that of the last one.
  float low = 0, high = 0;

  static __device__ __forceinline__ bool IsLow(int corner, const Distances& distances) {
    return corner + 15 <= -distances.farthest;
  }
  static __device__ __forceinline__ bool IsHigh(int corner, const Distances& distances) {
    return corner - (kScoreQueries - 1) >= distances.high();
  }

  // `scores`: gradients of the scores of 16 keys and kScoreQueries queries, pairs as a product's second operand from registers
  // has them; `corner`: how far behind the first query the first key stands. Where all pairs have the first bias or the last one, they are
  // added to what that has gathered: tensor cores multiply rows by ones.
  __device__ __forceinline__ void AddFar(const std::uint32_t (&scores)[kScoreQueries / 4], int corner,
                                         const Distances& distances) {
    const std::uint32_t ones = PairFromFloat(T(), 1.0F, 1.0F);
    constexpr int kSums =
        kScoreQueries > 64 ? 2 : 1;  // each product waits for the last one that adds to the same
    float sums[kSums][4] = {};
#pragma unroll
    for (int i = 0; i < kScoreQueries / 4; i += 4)
      MultiplyTile(T(), sums[i / 4 % kSums], {scores[i], scores[i + 1], scores[i + 2], scores[i + 3]}, ones,
                   ones);
    float sum = 0;
#pragma unroll
    for (const float(&of_rows)[4] : sums) sum += of_rows[0] + of_rows[2];
    if (IsLow(corner, distances)) low += sum;
    if (IsHigh(corner, distances)) high += sum;
    asm volatile("" : "+f"(low), "+f"(high)::"memory");
  }
  // Elsewhere, they are added to sums_of(): this head's sums.
  template <typename SumsOf>
  __device__ __forceinline__ void AddNear(const std::uint32_t (&scores)[kScoreQueries / 4], int corner,
                                          const Distances& distances, const SumsOf& sums_of) {
    if (IsLow(corner, distances) || IsHigh(corner, distances)) return;
    constexpr int kDiagonals = kEights + 2;  // of squares: distances corner + 8 · (n − kEights) + 0 to 7
    __syncwarp();
    AddDiagonals<0, kDiagonals>(scores, corner, distances, sums_of());
    __syncwarp();
  }

  // Adds what the warp's threads have gathered of the first and the last bias to the sums, and begins anew. All of its threads call it.
  __device__ __forceinline__ void Finish(const Distances& distances, float* sums) {
    low = WarpSum(low);
    high = WarpSum(high);
    if (threadIdx.x % kWarp == 0) {
      AddTo(sums, low / 4);
      if (!distances.none_behind) AddTo(sums + 2 * distances.farthest, high / 4);
    }
    __syncwarp();
    low = high = 0;
  }

 private:
  // The sums of one warp's threads, of which the one that adds changes from tile to tile.
  static __device__ __forceinline__ void AddTo(float* sum, float value) { atomicAdd(sum, value); }

  // Sums over two lanes of kCount numbers, of which the lane keeps those whose lowest bit is `bit`, and its partner the others.
  template <int kCount>
  static __device__ __forceinline__ void SumHalves(const float (&x)[kCount], bool bit, int partner,
                                                   float (&kept)[(kCount + 1) / 2]) {
#pragma unroll
    for (int i = 0; i < (kCount + 1) / 2; ++i) {
      const float low = x[2 * i];
      const float high = 2 * i + 1 < kCount ? x[2 * i + 1] : 0.0F;
      kept[i] = (bit ? high : low) + __shfl_sync(kAllLanes, bit ? low : high, partner);
    }
  }

  // Sums of the two squares of a warp's rows that are on diagonal n.
  static __device__ __forceinline__ float2 OfSquares(const std::uint32_t (&scores)[kScoreQueries / 4],
                                                     int n) {
    float2 sum = {0, 0};
    const int i = kEights - n;  // the square of the first rows, −1 of it that of the last ones
    if (i >= 0 && i < kEights) sum = PairToFloat(T(), scores[2 * i]);
    if (i + 1 >= 0 && i + 1 < kEights) {
      const float2 other = PairToFloat(T(), scores[2 * (i + 1) + 1]);
      sum.x += other.x;
      sum.y += other.y;
    }
    return sum;
  }

  // A thread has pairs of row r = lane / 4, c = 2 · (lane % 4) and c + 1 of each square of 8 × 8. What is of one distance lies on
  // a diagonal: of squares, and within them. Eight diagonals of squares at a time, the rows' lanes add up what they have of them, and
  // row r keeps that of the r-th: with each exchange a lane keeps half of them.
  template <int kFirst, int kDiagonals>
  __device__ __forceinline__ void AddDiagonals(const std::uint32_t (&scores)[kScoreQueries / 4], int corner,
                                               const Distances& distances, float* sums) {
    constexpr int kCount = kDiagonals - kFirst < 8 ? kDiagonals - kFirst : 8;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int row = lane / 4;
    const int column = lane % 4;
    const bool odd = row % 2 != 0;
    const int k = row / 2;
    // Numbers of distance 2s, mod 8 in the square, where s = k − column (mod 4), and those of distance 2s − 1, where s is that of the
    // column before it in odd rows.
    float even[kCount];
    float below[kCount];
    float2 above = OfSquares(scores, kFirst);
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const float2 at = above;
      above = OfSquares(scores, kFirst + n + 1);
      // Where the key stands behind the query within the square, this diagonal of squares counts, elsewhere the next one.
      const float first = row >= 2 * column ? at.x : above.x;
      const float second = row >= 2 * column + 1 ? at.y : above.y;
      even[n] = odd ? second : first;
      below[n] = odd ? first : second;
    }
    // Lanes of the same s, in the row beside this one, in the next pair of rows, and in the next four.
    const int beside = lane ^ 4;
    const int beside_below = (beside & ~3) | ((odd ? column - 1 : column + 1) & 3);
    const int to_one = ((k ^ 1) << 3) | (lane & 4) | ((column + (k ^ 1) - k) & 3);
    const int to_two = ((k ^ 2) << 3) | (lane & 4) | ((column + 2) & 3);
    constexpr int kHalf = (kCount + 1) / 2;
    constexpr int kQuarter = (kHalf + 1) / 2;
    constexpr int kEighth = (kQuarter + 1) / 2;
    static_assert(kEighth == 1);
    float even_half[kHalf];
    float below_half[kHalf];
    SumHalves(even, odd, beside, even_half);
    SumHalves(below, odd, beside_below, below_half);
    float even_quarter[kQuarter];
    float below_quarter[kQuarter];
    SumHalves(even_half, (k & 1) != 0, to_one, even_quarter);
    SumHalves(below_half, (k & 1) != 0, to_one, below_quarter);
    float even_kept[1];
    float below_kept[1];
    SumHalves(even_quarter, (k & 2) != 0, to_two, even_kept);
    SumHalves(below_quarter, (k & 2) != 0, to_two, below_kept);

    const auto add = [&](int distance, float value) {
      if (distance <= -distances.farthest) {
        low += 4 * value;
      } else if (distance >= distances.high()) {
        high += 4 * value;
      } else {
        AddTo(sums + distance + distances.farthest, value);
      }
    };
    if (row < kCount) {
      const int first = corner + 8 * (kFirst + row - kEights);
      add(first + 2 * ((k - column) & 3), even_kept[0]);
      add(first + ((2 * (k - column + (odd ? 1 : 0)) - 1) & 7), below_kept[0]);
    }
    if constexpr (kFirst + 8 < kDiagonals)
      AddDiagonals<kFirst + 8, kDiagonals>(scores, corner, distances, sums);
  }
};

}  // namespace engine::backend::cuda::attention_sm90a
