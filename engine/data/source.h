// The samples of a training run: every data set of the recipe, opened and checked before the first iteration,
// in an order that depends on the recipe alone; or random tokens (random_tokens.h). So the position in the
// data is one integer, the number of samples consumed.
//
// Splits are ranges of the same data sets (data.paths and data.split), or have data sets of their own, used whole
// ([data.train], [data.validation], [data.test]). The order of one data set is sample_index.h's, and blend.h's deals
// several out.
//
// A data set PREFIX may have a mask of the loss beside it, the data set PREFIX_loss_mask of the type uint8, whose sequences are as long
// as its own: 1 where a token counts in the loss as what is predicted, 0 where it does not.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/blend.h"
#include "engine/data/fill_in_middle.h"
#include "engine/data/fingerprint.h"
#include "engine/data/index_cache.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/sample_index.h"
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

// What a sample consists of.
struct SampleTokens {
  // sequence_length() + 1: inputs are all but the last, labels all but the first.
  std::vector<std::int32_t> tokens;
  // Where documents begin: ascending places of `tokens`, the first of them 0, but not the last place, which is a label alone. A
  // document ends where a sequence of the data set does, and behind each end-of-document token of the recipe's tokenizer, where it has
  // one; that token belongs to the document that it ends. Padding is a document too. A sample of random tokens is one document, and so is
  // every sample where documents are not masked (data.documents).
  std::vector<std::int32_t> starts = {0};
  // Of each token, whether it counts in the loss as what is predicted: not where a mask of the loss says so, behind an
  // end-of-document token (data.mask_end_of_document_loss), at the beginning of a packed document, in padding. Empty: all do.
  std::vector<std::uint8_t> targets;
  // Of a packed sample: where what was put together begins, ascending places. No token of one piece is predicted from another.
  // Empty of other samples.
  std::vector<std::int32_t> pieces;

  // What place `place` of the inputs is to predict, `ahead` tokens further on (1: the next): −1 where that does not count, or is
  // beyond the sample.
  std::int32_t Label(std::int64_t place, std::int64_t ahead) const;
};

class Source {
 public:
  // Opens [data] of the recipe. Checks all index files, that every token is below model.vocab (one pass over
  // the .bin files where these have less than 1 GiB together; else each sample is checked when it is read), and that each
  // split that will be used has its samples:
  // train: Recipe::samples; validation: (iterations / evaluation.interval + 1) ×
  // evaluation.iterations × global_batch, or 0 without evaluation; test: evaluation.iterations ×
  // global_batch, or 0 without evaluation or where the split has too little text. A failure is located at the
  // recipe's key. Random tokens (data.source) need no files, and every split has as many as are asked for.
  // `index_folder`: where indices are kept (index_cache.h), if data.index_cache names none; empty: nowhere.
  static absl::StatusOr<Source> Open(const recipe::Recipe& recipe, const std::string& index_folder = "");

  // Sample `index` of [0, size(split)). A pure function; safe to call from many threads. An error is one of the
  // data: a token outside of the vocabulary, a mask that is neither 0 nor 1.
  absl::StatusOr<SampleTokens> Read(Split split, std::int64_t index) const;

  // Its tokens alone, sequence_length() + 1.
  absl::Status Sample(Split split, std::int64_t index, std::span<std::int32_t> out) const;
  // Sample `index` will be read: what of it lies on a server is asked for, before or behind what is already to be asked for. Returns
  // at once; an index outside of the split is none.
  void Prefetch(Split split, std::int64_t index, storage::When when) const;

  // How many labels of samples [first, first + count) count in the loss, of count × sequence_length(). Reads them all where
  // more than packing decides, on several threads; those on a server many at a time. Of several errors the first sample's is told.
  absl::StatusOr<std::int64_t> CountedLabels(Split split, std::int64_t first, std::int64_t count) const;

  std::int64_t size(Split split) const { return order(split).size; }
  std::int64_t sequence_length() const { return sequence_length_; }
  bool masks_documents() const { return masks_documents_; }
  // Whether some labels may not count.
  bool masks_loss() const { return masks_loss_; }

  // Nats per token of the unigram distribution of the train split (of a blend: of the mixture): what a model
  // that knows only the frequencies of tokens would lose. Computed from the data set; ln(vocab) of random
  // tokens.
  absl::StatusOr<double> UnigramEntropy() const;

  // One fingerprint for each file of the data sets and their masks, and the token behind which documents end where that
  // matters.
  Fingerprints Fingerprint() const;

  // A few lines for people: data sets, splits, epochs.
  std::string Summary() const;

 private:
  struct Member {  // one data set
    IndexedDataset dataset;
    std::optional<IndexedDataset> mask;  // of the loss
    std::array<SequenceRange, 3> ranges;
    bool mask_is_forbidden = false;  // its server says so, as some do of what is not there
  };
  struct Order {  // of one split
    std::int64_t size = 0;
    std::vector<std::size_t> members;  // that it draws from
    std::vector<SampleIndex> indices;  // one per member, as all below
    std::vector<double> shares;        // of the mixture, summing to 1
    std::unique_ptr<Blend> blend;      // which member's sample; null: the only member's, in order
  };
  // How much of a data set an index is built for: so many samples, or epochs.
  struct Extent {
    std::optional<std::int64_t> samples;
    std::int64_t epochs = 1;
  };

  absl::Status SetEndOfDocument(const recipe::Recipe& recipe);
  absl::Status OpenMembers(const recipe::Recipe& recipe, Split split);
  absl::StatusOr<std::size_t> OpenMember(const recipe::Recipe& recipe, const std::string& key,
                                         const std::string& prefix);
  absl::Status OpenMask(const recipe::Recipe& recipe, const std::string& key, Member* member) const;
  absl::Status CheckVocabulary(const recipe::Recipe& recipe) const;
  absl::Status BuildOrder(const recipe::Recipe& recipe, Split split, std::int64_t size);
  absl::Status BuildIndices(const recipe::Recipe& recipe, Split split, std::span<const Extent> extents);
  bool HasOneSample(Split split) const;
  // Which member of the split the sample is of, and its number there.
  std::pair<std::size_t, std::int64_t> Locate(const Order& order, std::int64_t index) const;
  absl::Status AppendPiece(const Member& member, const PackedPiece& piece, SampleTokens* sample) const;
  // How many labels of the sample count, where its index says it; nullopt: its tokens or its mask say it.
  std::optional<std::int64_t> CountedByIndex(Split split, std::int64_t index) const;
  absl::StatusOr<std::int64_t> CountedOfSample(Split split, std::int64_t index) const;
  void FillInMiddle(Split split, std::int64_t index, SampleTokens* sample) const;
  void MaskTargets(SampleTokens* sample) const;
  const Order& order(Split split) const { return orders_[static_cast<std::size_t>(split)]; }
  Order& order(Split split) { return orders_[static_cast<std::size_t>(split)]; }

  std::int64_t sequence_length_ = 0;
  std::int64_t vocab_ = 0;
  bool masks_documents_ = false;
  bool has_remote_ = false;             // some data set is read from a server
  bool masks_end_of_document_ = false;  // in the loss
  bool masks_loss_ = false;
  bool packs_ = false;
  bool drops_long_ = false;                      // documents that no packed sample holds
  std::string index_folder_;                     // empty: none
  std::string index_note_;                       // of index_cache.h
  std::optional<std::int32_t> end_of_document_;  // where it matters; nullopt: no token is one
  std::unique_ptr<MiddleFiller> filler_;         // null: documents stay as they are
  std::optional<std::uint64_t> random_seed_;     // of random tokens; then there are no members
  std::vector<Member> members_;
  std::array<Order, 3> orders_;
};

}  // namespace engine::data
