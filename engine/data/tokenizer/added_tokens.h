// Finds added tokens in a text.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/description.h"

namespace engine::tokenizer {

// A part of a text: an added token, or what lies between two.
struct Segment {
  std::string_view text;
  std::int32_t id = kNoToken;  // of an added token
};

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // The tokens by the text with which they are found, none of it empty.
  explicit AddedTokenFinder(const std::vector<std::pair<std::string, AddedToken>>& tokens);

  // Appends the parts of `text`, which together are all of it but white space that a token takes: of all places where
  // tokens stand the leftmost, and there the longest, and so on behind it. Special tokens are text unless `special`.
  // Linear in the text, whatever the tokens.
  void Cut(std::string_view text, bool special, std::vector<Segment>* segments) const;

 private:
  // The automaton of Aho and Corasick (1975) over the reversed strings reads the text from its end, so that at each byte
  // it knows the longest token that begins there.
  std::uint32_t Step(std::uint32_t state, unsigned char byte) const;
  static constexpr std::size_t kFewLastBytes = 4;
  std::size_t LastPlace(std::string_view text, std::size_t from, std::span<std::size_t> places) const;
  void FindLongest(std::string_view text, std::vector<std::pair<std::uint32_t, std::uint32_t>>* found) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::uint32_t> lengths_;
  bool has_ordinary_ = false;  // a token that is not special
  std::array<bool, 256> is_last_byte_ = {};
  std::string last_bytes_;  // the same bytes
  std::bitset<std::size_t{1} << 16>
      is_last_pair_;  // the last two bytes of a token, or any byte and a token of one
  // What follows a state by a byte: of the first state, and of the others by (state, byte). No state is followed by the
  // first one.
  std::array<std::uint32_t, 256> first_ = {};
  absl::flat_hash_map<std::uint64_t, std::uint32_t> next_;
  std::vector<std::uint32_t> fallback_;  // by state
  std::vector<std::int32_t> longest_;    // by state: the token, or -1
};

}  // namespace engine::tokenizer
