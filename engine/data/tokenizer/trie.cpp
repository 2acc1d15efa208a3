#include "engine/data/tokenizer/trie.h"

#include <algorithm>

namespace engine::tokenizer {

Trie::Trie(std::vector<std::pair<std::string_view, std::int32_t>> strings) {
  root_.fill(kNone);
  std::sort(strings.begin(), strings.end());
  // Nodes level by level: each stands for a range of strings that agree up to its depth.
  struct Range {
    std::size_t begin;
    std::size_t end;
    std::size_t depth;
    std::uint32_t node;
  };
  std::vector<Range> queue;
  const auto byte_at = [&](std::size_t i, std::size_t depth) {
    return static_cast<unsigned char>(strings[i].first[depth]);
  };
  const auto add_children = [&](const Range& range) {
    std::size_t begin = range.begin;
    const auto first = static_cast<std::uint32_t>(nodes_.size());
    std::uint16_t count = 0;
    while (begin < range.end) {
      const unsigned char byte = byte_at(begin, range.depth);
      std::size_t end = begin + 1;
      while (end < range.end && byte_at(end, range.depth) == byte) ++end;
      const auto node = static_cast<std::uint32_t>(nodes_.size());
      Node made;
      made.byte = byte;
      if (strings[begin].first.size() == range.depth + 1) made.value = strings[begin].second;
      nodes_.push_back(made);
      queue.push_back({begin + (made.value >= 0 ? 1 : 0), end, range.depth + 1, node});
      if (range.node == kNone) root_[byte] = node;
      ++count;
      begin = end;
    }
    if (range.node != kNone) {
      nodes_[range.node].first_child = first;
      nodes_[range.node].children = count;
    }
  };
  add_children({0, strings.size(), 0, kNone});
  for (std::size_t i = 0; i < queue.size(); ++i) add_children(Range(queue[i]));
}

}  // namespace engine::tokenizer
