// The samples of a training run: every data set of the recipe, opened and checked before the first iteration,
// in an order that depends on the recipe alone; or random tokens (random_tokens.h). So the position in the
// data is one integer, the number of samples consumed.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/data/blend.h"
#include "engine/data/fingerprint.h"
#include "engine/data/gpt_index.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/split.h"
#include "engine/recipe/recipe.h"

namespace engine::data {

// First of the `micro_batch` consecutive samples that data-parallel rank `rank` (of `replicas` = dp × ep)
// takes for microbatch `microbatch` of the iteration whose first sample is `iteration_base`: chunks of
// micro_batch × replicas samples are dealt to the ranks in turn (Megatron's "single" sampler).
constexpr std::int64_t FirstSample(std::int64_t iteration_base, std::int64_t microbatch, std::int64_t rank,
                                   std::int64_t micro_batch, std::int64_t replicas) {
  return iteration_base + (microbatch * replicas + rank) * micro_batch;
}

class Source {
 public:
  // Opens [data] of the recipe. Checks all index files, that every token is below model.vocab (one pass over
  // the .bin files; tokens of remote ones are checked when Sample reads them), and that each split that will be used has its samples:
  // train: Recipe::samples; validation: (iterations / evaluation.interval + 1) ×
  // evaluation.iterations × global_batch, or 0 without evaluation; test: evaluation.iterations ×
  // global_batch, or 0 without evaluation or where the split has too little text. A failure is located at the
  // recipe's key. Random tokens (data.source) need no files, and every split has as many as are asked for.
  static absl::StatusOr<Source> Open(const recipe::Recipe& recipe);

  // Writes sample `index` of [0, size(split)) to `out`, sequence_length() + 1 tokens: inputs are all but the
  // last, labels all but the first. A pure function; safe to call from many threads.
  absl::Status Sample(Split split, std::int64_t index, std::span<std::int32_t> out) const;
  // Sample `index` will be read: what of it lies on a server is asked for, before or behind what is already to be asked for. Returns
  // at once; an index outside of the split is none.
  void Prefetch(Split split, std::int64_t index, storage::When when) const;

  // Where documents begin in a sample: ascending places of its tokens, the first of them 0. A document ends where a
  // sequence of the data set does, and behind each end-of-document token of the recipe's tokenizer, where it has one; that
  // token belongs to the document that it ends. A sample of random tokens is one document, and so is every sample where
  // documents are not masked (data.documents). `sample` are the tokens that Sample wrote.
  std::vector<std::int32_t> DocumentStarts(Split split, std::int64_t index,
                                           std::span<const std::int32_t> sample) const;

  std::int64_t size(Split split) const { return order(split).size; }
  std::int64_t sequence_length() const { return sequence_length_; }
  bool masks_documents() const { return masks_documents_; }

  // Nats per token of the unigram distribution of the train split (of a blend: of the mixture): what a model
  // that knows only the frequencies of tokens would lose. Computed from the data set; ln(vocab) of random
  // tokens.
  absl::StatusOr<double> UnigramEntropy() const;

  // One fingerprint for each file of the data sets, and the token behind which documents end where they are masked.
  Fingerprints Fingerprint() const;

  // A few lines for people: data sets, splits, epochs.
  std::string Summary() const;

 private:
  struct Member {  // one data set
    IndexedDataset dataset;
    std::array<SequenceRange, 3> ranges;
  };
  struct Order {  // of one split
    std::int64_t size = 0;
    std::vector<GptIndex> indices;    // one per member
    std::vector<double> shares;       // of the mixture, one per member, summing to 1
    std::optional<BlendIndex> blend;  // which member's sample; nullopt: the only member's, in order
  };

  // A piece of a sample that is of one sequence of a data set.
  struct Piece {
    const IndexedDataset* dataset;
    std::int64_t sequence, offset;
    std::size_t tokens;
  };

  // Those of a sample of `tokens` tokens, which is not random.
  std::vector<Piece> PiecesOf(Split split, std::int64_t index, std::size_t tokens) const;
  // That all tokens of a piece are below model.vocab.
  absl::Status CheckPiece(const Piece& piece, std::span<const std::int32_t> tokens) const;
  absl::Status SetEndOfDocument(const recipe::Recipe& recipe);
  absl::Status OpenMembers(const recipe::Recipe& recipe);
  absl::Status BuildOrder(const recipe::Recipe& recipe, Split split, std::int64_t size);
  absl::Status BuildIndices(const recipe::Recipe& recipe, Split split,
                            std::span<const std::optional<std::int64_t>> sizes);
  bool HasOneSample(Split split) const;
  const Order& order(Split split) const { return orders_[static_cast<std::size_t>(split)]; }
  Order& order(Split split) { return orders_[static_cast<std::size_t>(split)]; }

  std::int64_t sequence_length_ = 0;
  std::int64_t vocab_ = 0;
  bool masks_documents_ = false;
  bool has_remote_ = false;                      // some data set is read from a server
  std::optional<std::int32_t> end_of_document_;  // where documents are masked; nullopt: no token is one
  std::optional<std::uint64_t> random_seed_;     // of random tokens; then there are no members
  std::vector<Member> members_;
  std::array<Order, 3> orders_;
};

}  // namespace engine::data
