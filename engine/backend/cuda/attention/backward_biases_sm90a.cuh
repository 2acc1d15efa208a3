// How both forms of attention's backward pass on Hopper come to the gradient of trained biases.
#pragma once

#include <type_traits>

#include "engine/backend/cuda/attention/backward_parts_sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

// The gradient of biases by distance, of a worker's warp: head by head, as the tiles come.
template <typename Form>
struct BiasGradients {
  DistanceSums<typename Form::T, Form::kScoreQueries> sums;
  int head = -1;  // that `sums` are of; −1: none yet
  int corner;     // of the step: how far behind its first query the warp's first key stands

  // Begins a block: the warp's sums of its keys are 0.
  __device__ __forceinline__ void Begin(const BackwardParams& p, std::uint32_t block_note) const {
    const int first = GetNote<BlockNote>(block_note).kv * p.common.group;
    const int rows = DistancesOf(p.common).rows();
    for (int g = 0; g < p.common.group; ++g) {
      float* const of_head = SumsOf(p, block_note, first + g);
      for (int row = static_cast<int>(threadIdx.x) % kWarp; row < rows; row += kWarp) of_head[row] = 0;
    }
    __syncwarp();
  }
  // Finds out where the step stands that is added next: it has the tile's queries from first_query on, and `key` is the first key of this
  // thread.
  __device__ __forceinline__ void Locate(const BackwardParams& p, std::uint32_t block_note,
                                         std::uint32_t tile_note, int first_query, int key) {
    const TileNote t = GetNote<TileNote>(tile_note);
    if (t.head_of_biases() != head) {
      Finish(p, block_note);
      head = t.head_of_biases();
    }
    corner = key - static_cast<int>(threadIdx.x) % kWarp / 4 - t.position - first_query;
    __syncwarp();  // all lanes have read the note before one of them gives it back
  }
  // Adds the step's gradients where all of them are of the first bias or the last one; Add does elsewhere. It has no branch, as products are
  // under way when it is called.
  __device__ __forceinline__ void AddFar(const BackwardParams& p,
                                         const std::uint32_t (&d_scores)[BackwardState<Form>::kScores / 2]) {
    sums.AddFar(d_scores, corner, DistancesOf(p.common));
  }
  __device__ __forceinline__ void Add(const BackwardParams& p, std::uint32_t block_note,
                                      const std::uint32_t (&d_scores)[BackwardState<Form>::kScores / 2]) {
    sums.AddNear(d_scores, corner, DistancesOf(p.common), [&] { return SumsOf(p, block_note, head); });
  }

  __device__ __forceinline__ void Finish(const BackwardParams& p, std::uint32_t block_note) {
    if (head >= 0) sums.Finish(DistancesOf(p.common), SumsOf(p, block_note, head));
    head = -1;
  }

 private:
  static __device__ __forceinline__ float* SumsOf(const BackwardParams& p, std::uint32_t block_note,
                                                  int of_head) {
    const BlockNote note = GetNote<BlockNote>(block_note);
    const std::int64_t block =
        (static_cast<std::int64_t>(note.sample) * p.common.heads + of_head) * p.blocks + note.block;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    return p.distance_sums + (block * kOwnKeyWarps + warp) * DistancesOf(p.common).rows();
  }
};
// An empty type, which stands in for BiasGradients in the forms that have no biases by distance.
struct NoBiasGradients {
  template <typename... Of>
  __device__ __forceinline__ void Begin(const Of&...) const {}
  template <typename... Of>
  __device__ __forceinline__ void Locate(const Of&...) {}
  template <typename... Of>
  __device__ __forceinline__ void AddFar(const Of&...) {}
  template <typename... Of>
  __device__ __forceinline__ void Add(const Of&...) {}
  template <typename... Of>
  __device__ __forceinline__ void Finish(const Of&...) {}
};

// The gradient of biases of pairs: at once, as no other block or tile of a sample has a head's pair.
template <typename Form>
struct PairGradients {
  int head, query, first_key;  // of the step: the head, and this thread's first query and key

  __device__ __forceinline__ void Locate(const BackwardParams&, std::uint32_t, std::uint32_t tile_note,
                                         int first_query, int key) {
    const TileNote t = GetNote<TileNote>(tile_note);
    head = t.head_of_biases();
    query = t.position + first_query + static_cast<int>(threadIdx.x) % 4 * 2;
    first_key = key;
    __syncwarp();  // all lanes have read the note before one of them gives it back
  }
  // Adds each gradient to its pair's sum, or writes it. Those of masked pairs, and of places behind the last one, are zero and
  // not added.
  __device__ __forceinline__ void Add(
      const BackwardParams& p, std::uint32_t,
      const std::uint32_t (&d_scores)[BackwardState<Form>::kScores / 2]) const {
    const int places = p.common.pairs;
    float* const sums =
        p.d_biases + static_cast<std::int64_t>(head) * places * places + query * places + first_key;
    const auto each = [&](const auto& take) {
#pragma unroll
      for (int i = 0; i < BackwardState<Form>::kScores / 2; ++i) {
        const float2 d = PairToFloat(typename Form::T(), d_scores[i]);
        float* const at = sums + i / 2 * 8 * places + i % 2 * 8;
        take(at, d.x, i / 2 * 8, i % 2 * 8);
        take(at + places, d.y, i / 2 * 8 + 1, i % 2 * 8);
      }
    };
    if (p.sets_biases) {
      each([&](float* at, float d, int of_query, int of_key) {
        if (query + of_query < places && first_key + of_key < places) __stcs(at, d);
      });
    } else {
      each([](float* at, float d, int, int) {
        if (d != 0) atomicAdd(at, d);
      });
    }
  }
  template <typename... Of>
  __device__ __forceinline__ void AddFar(const Of&...) {}
  __device__ __forceinline__ void Begin(const BackwardParams&, std::uint32_t) const {}
  __device__ __forceinline__ void Finish(const BackwardParams&, std::uint32_t) {}
};
template <typename Form>
using BiasGradientsOf = std::conditional_t<
    Form::kOfPairs, PairGradients<Form>,
    std::conditional_t<Form::kBiases == Biases::kByDistance, BiasGradients<Form>, NoBiasGradients>>;

}  // namespace engine::backend::cuda::attention_sm90a
