// Documents rearranged so that a model learns to fill in their middle (Bavarian et al., "Efficient Training of Language Models to
// Fill in the Middle", arXiv:2207.14255): a document's text is cut at two places into prefix, middle and suffix, whose
// tokens become
//   PSM: [prefix_token] prefix [suffix_token] suffix [middle_token] middle
//   SPM: [prefix_token] [suffix_token] suffix [middle_token] prefix middle
// as Megatron-LM's fim_dataset.py writes them. A document with split tokens in it, such as a repository's files in one text, is
// rearranged fragment by fragment between them. What is drawn is a pure function of seed, split, sample, the document's number in it
// and the fragment's in the document, where Megatron-LM draws from one generator in the order of access: so a run goes on from any
// sample.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/split.h"
#include "engine/data/tokenizer.h"
#include "engine/recipe/recipe.h"

namespace engine::data {

class MiddleFiller {
 public:
  // Reads the recipe's tokenizer (data.tokenizer, of a file) and finds in it the tokens that [data.fim] names. An error says
  // which key is wrong in `key`.
  static absl::StatusOr<std::unique_ptr<MiddleFiller>> Make(const recipe::Recipe& recipe, std::string* key);

  // The tokens of a document, without the end-of-document token, rearranged where the draw says so: with probability
  // data.fim.rate. Both cuts are uniform over the places between its characters, both ends included. They may become more or
  // fewer. Where data.fim.split_token is in it, the draw says so of the document, and then, with probability data.fim.fragment_rate,
  // of each fragment; split tokens stay where they are, and so does the token that begins a document (engine data build --prepend-bos). A document or fragment stays as it is if its text begins with data.fim.no_prefix,
  // and unless the tokenizer makes the same tokens of its decoded text: not where it begins or ends within a
  // character, has another special token inside, or is more than the tokenizer can take. Safe to call from many threads.
  void Rearrange(Split split, std::int64_t sample, std::int64_t document,
                 std::vector<std::int32_t>* ids) const;

  // The three tokens: of prefix, middle and suffix.
  std::int32_t prefix() const { return prefix_; }
  std::int32_t middle() const { return middle_; }
  std::int32_t suffix() const { return suffix_; }

 private:
  using Words = std::array<std::uint32_t, 4>;  // of a draw: whether, in which order, and the two cuts

  MiddleFiller() = default;
  // The same of a document without the token that begins it.
  void RearrangeText(Split split, std::int64_t sample, std::int64_t document,
                     std::vector<std::int32_t>* ids) const;
  // What becomes of a fragment, or of a document without fragments; `rate`: the probability that it is rearranged.
  void RearrangeFragment(const Words& words, double rate, std::vector<std::int32_t>* ids) const;

  std::unique_ptr<Tokenizer> tokenizer_;
  std::uint64_t seed_ = 0;
  double rate_ = 0, spm_rate_ = 0, fragment_rate_ = 0;
  std::int32_t prefix_ = 0, middle_ = 0, suffix_ = 0;
  std::optional<std::int32_t> split_;
  std::string no_prefix_;  // empty: none
};

}  // namespace engine::data
