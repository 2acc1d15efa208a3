// Token strings and their ids, both ways.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/page_array.h"

namespace engine::tokenizer {

inline constexpr std::int32_t kNoToken = -1;
inline constexpr std::int32_t kMostTokenId = (1 << 24) - 1;  // what the tables of encoders hold

// Ids may have gaps. A string has one id.
class Vocabulary {
 public:
  // Room for so many tokens of so many bytes altogether.
  void Reserve(std::size_t tokens, std::size_t bytes);
  // False if the string or the id is there already. `id` is from 0 to kMostTokenId.
  bool Add(std::string_view token, std::int32_t id);

  std::int32_t Find(std::string_view token) const;  // its id, or kNoToken
  bool Has(std::int32_t id) const { return id >= 0 && id < size() && spans_[Index(id)].is_used; }
  // Of an id that is not there: empty. Valid until the next Add.
  std::string_view Token(std::int32_t id) const {
    if (id < 0 || id >= size()) return {};
    const Span span = spans_[Index(id)];
    return std::string_view(bytes_).substr(span.begin, span.length);
  }
  std::int32_t size() const { return static_cast<std::int32_t>(spans_.size()); }  // the largest id plus 1
  std::int32_t tokens() const { return tokens_; }

  // All of it as bytes, to be kept and set again.
  struct Tables {
    std::string_view tokens;  // one behind the other
    std::string_view spans;   // by id
    std::string_view slots;
  };
  Tables GetTables() const;  // valid until the next Add
  // False, and nothing is set, where they are no tables of a vocabulary.
  bool SetTables(const Tables& tables);

 private:
  struct Span {
    std::uint64_t begin : 39 = 0;
    std::uint64_t length : 24 = 0;
    std::uint64_t is_used : 1 = 0;
  };
  struct Slot {
    std::int32_t id_plus_1;  // 0: none
    std::uint32_t tag;       // bits of the token's hash
  };
  static std::size_t Index(std::int32_t id) { return static_cast<std::size_t>(id); }
  std::size_t SlotOf(std::string_view token, std::uint64_t hash) const;
  void Grow(std::size_t slots);

  std::string bytes_;
  std::vector<Span> spans_;  // by id
  PageArray<Slot> slots_;    // open addressing; as many as a power of two, at most half of them full
  std::int32_t tokens_ = 0;
};

}  // namespace engine::tokenizer
