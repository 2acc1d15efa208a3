#include "engine/data/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "engine/base/utf8.h"
#include "engine/data/tokenizer/unicode.h"

namespace engine::tokenizer {
namespace {

std::size_t PairOf(char before, char last) {
  return std::size_t{static_cast<unsigned char>(before)} << 8 | static_cast<unsigned char>(last);
}

std::uint64_t EdgeKey(std::uint32_t state, unsigned char byte) { return std::uint64_t{state} << 8 | byte; }

// The last character of a text that is not empty, and where it begins.
std::pair<char32_t, std::size_t> LastCharacter(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  char32_t c = 0;
  if (DecodeUtf8(text.substr(at), &c) != text.size() - at) c = 0xFFFFFFFF;  // of no class
  return {c, at};
}

bool EndsWithWord(std::string_view text) { return !text.empty() && Is(LastCharacter(text).first, kWord); }

bool BeginsWithWord(std::string_view text) {
  char32_t c = 0;
  return !text.empty() && DecodeUtf8(text, &c) > 0 && Is(c, kWord);
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<std::pair<std::string, AddedToken>>& tokens) {
  fallback_ = {0};
  longest_ = {-1};
  std::vector<std::pair<std::uint32_t, unsigned char>> parent = {{0, 0}};  // by state
  std::size_t bytes = 0;
  std::size_t longest = 0;
  for (const auto& [text, token] : tokens) {
    bytes += text.size();
    longest = std::max(longest, text.size());
  }
  next_.reserve(bytes);
  for (const auto& [text, token] : tokens) {
    has_ordinary_ |= !token.special;
    bool& is_last = is_last_byte_[static_cast<unsigned char>(text.back())];
    if (!is_last) last_bytes_ += text.back();
    is_last = true;
    if (text.size() > 1) {
      is_last_pair_[PairOf(text[text.size() - 2], text.back())] = true;
    } else {
      for (int byte = 0; byte < 256; ++byte) is_last_pair_[PairOf(static_cast<char>(byte), text[0])] = true;
    }
    std::uint32_t state = 0;
    for (std::size_t i = text.size(); i-- > 0;) {
      const auto byte = static_cast<unsigned char>(text[i]);
      std::uint32_t& next = state == 0 ? first_[byte] : next_[EdgeKey(state, byte)];
      if (next == 0) {
        next = static_cast<std::uint32_t>(longest_.size());
        longest_.push_back(-1);
        parent.emplace_back(state, byte);
      }
      state = next;
    }
    if (longest_[state] < 0)
      longest_[state] = static_cast<std::int32_t>(tokens_.size());  // the first of equals
    lengths_.push_back(static_cast<std::uint32_t>(text.size()));
    tokens_.push_back(token);
  }
  // By depth: a state's fallback is that of its parent, gone on by its byte.
  std::vector<std::vector<std::uint32_t>> of_depth(1 + longest);
  std::vector<std::uint32_t> depth(longest_.size(), 0);
  for (std::uint32_t s = 1; s < depth.size(); ++s) {
    depth[s] = depth[parent[s].first] + 1;  // parents are made before their children
    of_depth[depth[s]].push_back(s);
  }
  fallback_.assign(longest_.size(), 0);
  for (std::size_t d = 2; d < of_depth.size(); ++d) {
    for (const std::uint32_t state : of_depth[d]) {
      fallback_[state] = Step(fallback_[parent[state].first], parent[state].second);
      if (longest_[state] < 0) longest_[state] = longest_[fallback_[state]];
    }
  }
}

std::uint32_t AddedTokenFinder::Step(std::uint32_t state, unsigned char byte) const {
  while (state != 0) {
    const auto edge = next_.find(EdgeKey(state, byte));
    if (edge != next_.end()) return edge->second;
    state = fallback_[state];
  }
  return first_[byte];
}

// The last place up to `from` where a byte stands that is the last of a token, or npos. `places`: of each of few such
// bytes the last place that was found, so that each byte is looked at once.
std::size_t AddedTokenFinder::LastPlace(std::string_view text, std::size_t from,
                                        std::span<std::size_t> places) const {
  if (last_bytes_.size() > kFewLastBytes) {
    while (!is_last_byte_[static_cast<unsigned char>(text[from])]) {
      if (from-- == 0) return std::string_view::npos;
    }
    return from;
  }
  std::size_t last = 0;  // plus 1
  for (std::size_t k = 0; k < last_bytes_.size(); ++k) {
    if (places[k] > from + 1) {
      const auto* const found = static_cast<const char*>(memrchr(text.data(), last_bytes_[k], from + 1));
      places[k] = found == nullptr ? 0 : static_cast<std::size_t>(found - text.data()) + 1;
    }
    last = std::max(last, places[k]);
  }
  return last - 1;
}

// Appends (begin, token) of the longest token that begins at each place, from the last place to the first.
void AddedTokenFinder::FindLongest(std::string_view text,
                                   std::vector<std::pair<std::uint32_t, std::uint32_t>>* found) const {
  std::uint32_t state = 0;
  std::array<std::size_t, kFewLastBytes> places;
  places.fill(std::string_view::npos);
  for (std::size_t i = text.size(); i-- > 0;) {
    if (state == 0) {
      i = LastPlace(text, i, places);
      if (i == std::string_view::npos) return;
      if (i > 0 && !is_last_pair_[PairOf(text[i - 1], text[i])]) continue;
    }
    state = Step(state, static_cast<unsigned char>(text[i]));
    if (longest_[state] >= 0)
      found->emplace_back(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(longest_[state]));
  }
}

void AddedTokenFinder::Cut(std::string_view text, bool special, std::vector<Segment>* segments) const {
  std::size_t behind = 0;  // the last token, with its white space
  if (!tokens_.empty() && (special || has_ordinary_)) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
    FindLongest(text, &found);
    std::size_t searched = 0;  // a match that is none all the same is passed over whole
    for (std::size_t i = found.size(); i-- > 0;) {
      const auto [at, index] = found[i];
      if (at < searched) continue;
      const AddedToken& token = tokens_[index];
      std::size_t begin = at;
      std::size_t end = at + lengths_[index];
      searched = end;
      if (token.special && !special) continue;
      if (token.single_word && (EndsWithWord(text.substr(0, begin)) || BeginsWithWord(text.substr(end))))
        continue;
      begin = std::max(begin, behind);
      while (token.lstrip && begin > behind) {
        const auto [c, where] = LastCharacter(text.substr(0, begin));
        if (!Is(c, kWhiteSpace) || where < behind) break;
        begin = where;
      }
      while (token.rstrip && end < text.size()) {
        char32_t c = 0;
        const std::size_t length = DecodeUtf8(text.substr(end), &c);
        if (length == 0 || !Is(c, kWhiteSpace)) break;
        end += length;
      }
      if (end <= behind) continue;  // the token before took it as its white space
      if (begin > behind) segments->push_back({text.substr(behind, begin - behind)});
      segments->push_back({text.substr(begin, end - begin), token.id});
      behind = end;
    }
  }
  if (behind < text.size()) segments->push_back({text.substr(behind)});
}

}  // namespace engine::tokenizer
