#include "engine/data/tokenizer/vocabulary.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace engine::tokenizer {
namespace {

std::uint64_t HashOf(std::string_view token) { return XXH3_64bits(token.data(), token.size()); }

std::uint32_t TagOf(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

}  // namespace

void Vocabulary::Reserve(std::size_t tokens, std::size_t bytes) {
  bytes_.reserve(bytes);
  spans_.reserve(tokens);
  Grow(std::bit_ceil(std::max<std::size_t>(16, 2 * tokens)));
}

bool Vocabulary::Add(std::string_view token, std::int32_t id) {
  if (id < 0 || id > kMostTokenId || token.size() >= (1U << 24) || Has(id)) return false;
  if (slots_.size() < 2 * (static_cast<std::size_t>(tokens_) + 1)) {
    Grow(std::max<std::size_t>(16, 2 * slots_.size()));
  }
  const std::uint64_t hash = HashOf(token);
  Slot& slot = slots_[SlotOf(token, hash)];
  if (slot.id_plus_1 != 0) return false;
  if (id >= size()) spans_.resize(Index(id) + 1);
  Span& span = spans_[Index(id)];
  span.begin = bytes_.size();
  span.length = token.size();
  span.is_used = 1;
  bytes_ += token;
  slot = {id + 1, TagOf(hash)};
  ++tokens_;
  return true;
}

std::int32_t Vocabulary::Find(std::string_view token) const {
  return slots_.empty() ? kNoToken : slots_[SlotOf(token, HashOf(token))].id_plus_1 - 1;
}

// Where the token is, or would be put.
std::size_t Vocabulary::SlotOf(std::string_view token, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  const std::uint32_t tag = TagOf(hash);
  std::size_t slot = hash & mask;
  while (slots_[slot].id_plus_1 != 0 &&
         (slots_[slot].tag != tag || Token(slots_[slot].id_plus_1 - 1) != token))
    slot = (slot + 1) & mask;
  return slot;
}

void Vocabulary::Grow(std::size_t slots) {
  if (slots <= slots_.size()) return;
  slots_ = PageArray<Slot>(slots);
  for (std::int32_t id = 0; id < size(); ++id) {
    if (!Has(id)) continue;
    const std::uint64_t hash = HashOf(Token(id));
    slots_[SlotOf(Token(id), hash)] = {id + 1, TagOf(hash)};
  }
}

Vocabulary::Tables Vocabulary::GetTables() const {
  const auto bytes_of = [](const auto& list) {
    return std::string_view(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(list[0]));
  };
  return {bytes_, bytes_of(spans_), bytes_of(slots_)};
}

bool Vocabulary::SetTables(const Tables& tables) {
  const std::size_t spans = tables.spans.size() / sizeof(Span);
  const std::size_t slots = tables.slots.size() / sizeof(Slot);
  if (tables.spans.size() % sizeof(Span) != 0 || tables.slots.size() % sizeof(Slot) != 0 ||
      spans > std::size_t{kMostTokenId} + 1 || !std::has_single_bit(slots))
    return false;
  Vocabulary made;
  made.spans_.resize(spans);
  if (spans > 0)
    std::memcpy(static_cast<void*>(made.spans_.data()), tables.spans.data(), tables.spans.size());
  for (const Span& span : made.spans_) {
    if (span.begin + span.length > tables.tokens.size()) return false;
    made.tokens_ += span.is_used;
  }
  made.slots_ = PageArray<Slot>(slots);
  std::memcpy(made.slots_.data(), tables.slots.data(), tables.slots.size());
  std::size_t full = 0;
  for (std::size_t i = 0; i < slots; ++i) {
    const std::int32_t id_plus_1 = made.slots_[i].id_plus_1;
    if (id_plus_1 < 0 || static_cast<std::size_t>(id_plus_1) > spans) return false;
    full += id_plus_1 != 0;
  }
  if (full != static_cast<std::size_t>(made.tokens_) || slots < 2 * full) return false;
  made.bytes_ = tables.tokens;
  *this = std::move(made);
  return true;
}

}  // namespace engine::tokenizer
