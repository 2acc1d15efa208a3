// Buckets of the distances between keys and queries, of the relative position bias of T5 (Raffel et al., arXiv:1910.10683;
// _relative_position_bucket of Hugging Face's T5, Megatron-LM's relative_pos_embedding.py).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace engine::graph {

// All that lies further than `distance` shares a bucket with it.
struct DistanceBuckets {
  std::int64_t buckets = 0;   // of both directions together
  std::int64_t distance = 0;  // M
  // Keys behind the query have buckets of their own; else they share that of the distance 0.
  bool both_ways = false;

  // As the ops relative_bias and relative_bias_grad have them: attributes buckets, distance, both_ways (0 or 1).
  // A template, so that device code need not know graphs.
  template <typename Attributes>
  static DistanceBuckets FromAttributes(const Attributes& attributes) {
    return {attributes.Int("buckets"), attributes.Int("distance"), attributes.Int("both_ways") != 0};
  }

  constexpr std::int64_t one_way() const { return both_ways ? buckets / 2 : buckets; }
  // Each of the distances below has a bucket of its own.
  constexpr std::int64_t exact() const { return one_way() / 2; }

  // Whether the formula of Of has a bucket for each distance.
  bool lawful() const {
    return buckets >= 2 && (!both_ways || buckets % 2 == 0) && exact() >= 1 && distance > exact();
  }

  // The bucket of a key that stands `behind` places behind the query (before it where that is negative). With n buckets in
  // one direction and e = ⌊n/2⌋, the distance d has the bucket d where d < e, and from there on
  // min(n − 1, e + ⌊ln(d/e) / ln(M/e) · (n − e)⌋); with both directions, + n for keys behind the query.
  // constexpr, so that device code may call it.
  constexpr std::int64_t Of(std::int64_t behind) const {
    const std::int64_t n = one_way();
    const std::int64_t first = both_ways && behind > 0 ? n : 0;
    const std::int64_t d = both_ways && behind > 0 ? behind : std::max<std::int64_t>(0, -behind);
    const std::int64_t e = exact();
    if (d < e) return first + d;
    if (d >= distance) return first + n - 1;
    const auto of = [&](std::int64_t places) {
      return std::log(static_cast<double>(places) / static_cast<double>(e));
    };
    const double step = of(d) / of(distance) * static_cast<double>(n - e);
    // Where the quotient is a whole number, as it is for powers of two, rounding must not make it less.
    constexpr double kRounding = 1e-10;
    return first + std::min(n - 1, e + static_cast<std::int64_t>(std::floor(step + kRounding)));
  }
};

}  // namespace engine::graph
