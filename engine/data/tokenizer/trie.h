// Strings by their common beginnings: finds all of a set that a text begins with, in one pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace engine::tokenizer {

class Trie {
 public:
  Trie() { root_.fill(kNone); }
  // Strings, none of them empty or twice, with their values.
  explicit Trie(std::vector<std::pair<std::string_view, std::int32_t>> strings);

  // Calls visit(length, value) for each string that `text` begins with, the shorter first.
  template <typename Visit>
  void ForPrefixes(std::string_view text, Visit visit) const {
    if (text.empty()) return;
    std::uint32_t node = root_[static_cast<unsigned char>(text[0])];
    for (std::size_t at = 1; node != kNone; ++at) {
      if (nodes_[node].value >= 0) visit(at, nodes_[node].value);
      if (at == text.size()) return;
      node = Child(nodes_[node], static_cast<unsigned char>(text[at]));
    }
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  struct Node {
    std::uint32_t first_child = 0;  // children are neighbours, in the order of their bytes
    std::uint16_t children = 0;
    unsigned char byte = 0;
    std::int32_t value = -1;
  };
  std::uint32_t Child(const Node& node, unsigned char byte) const {
    std::uint32_t low = node.first_child;
    std::uint32_t count = node.children;
    while (count > 1) {
      const std::uint32_t half = count / 2;
      if (nodes_[low + half].byte <= byte) low += half;
      count -= half;
    }
    return count == 1 && nodes_[low].byte == byte ? low : kNone;
  }

  std::array<std::uint32_t, 256> root_;
  std::vector<Node> nodes_;
};

}  // namespace engine::tokenizer
