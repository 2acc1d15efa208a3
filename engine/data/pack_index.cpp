#include "engine/data/pack_index.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/data/numpy_random.h"

namespace engine::data {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max() - 2;
constexpr std::int32_t kNone = -1;

// Packs by the room that is left in them: a set of numbers that finds the least one from a number on.
class Rooms {
 public:
  explicit Rooms(std::int64_t most)
      : words_(static_cast<std::size_t>(most / 64 + 1)),
        summary_(words_.size() / 64 + 1),
        first_(most + 1, kNone) {}

  // The last pack that was given so much room, or the least above it; kNone: there is none.
  std::int32_t Take(std::int64_t at_least, std::int64_t* room) {
    const std::int64_t found = Least(at_least);
    if (found < 0) return kNone;
    const auto f = static_cast<std::size_t>(found);
    const std::int32_t pack = first_[f];
    first_[f] = next_[static_cast<std::size_t>(pack)];
    if (first_[f] == kNone) {
      words_[f / 64] &= ~(std::uint64_t{1} << (f % 64));
      if (words_[f / 64] == 0) summary_[f / 4096] &= ~(std::uint64_t{1} << (f / 64 % 64));
    }
    *room = found;
    return pack;
  }

  void Put(std::int32_t pack, std::int64_t room) {
    const auto r = static_cast<std::size_t>(room);
    const auto p = static_cast<std::size_t>(pack);
    if (p >= next_.size()) next_.resize(p + 1, kNone);
    next_[p] = first_[r];
    first_[r] = pack;
    words_[r / 64] |= std::uint64_t{1} << (r % 64);
    summary_[r / 4096] |= std::uint64_t{1} << (r / 64 % 64);
  }

 private:
  // Of `word`, whose number is `w`, the first bit from `from` on; −1: there is none.
  static int BitFrom(std::uint64_t word, std::size_t from) {
    word &= from < 64 ? ~std::uint64_t{0} << from : 0;
    return word == 0 ? -1 : std::countr_zero(word);
  }

  std::int64_t Least(std::int64_t at_least) const {
    const auto from = static_cast<std::size_t>(at_least);
    if (from / 64 >= words_.size()) return -1;
    if (const int bit = BitFrom(words_[from / 64], from % 64); bit >= 0)
      return static_cast<std::int64_t>(from / 64 * 64) + bit;
    for (std::size_t s = from / 4096; s < summary_.size(); ++s) {
      const int word = BitFrom(summary_[s], s == from / 4096 ? from / 64 % 64 + 1 : 0);
      if (word < 0) continue;
      const std::size_t w = s * 64 + static_cast<std::size_t>(word);
      return static_cast<std::int64_t>(w * 64) + std::countr_zero(words_[w]);
    }
    return -1;
  }

  std::vector<std::uint64_t> words_, summary_;  // bit r: some pack has room r; bit w: words_[w] is not 0
  std::vector<std::int32_t> first_;             // by room
  std::vector<std::int32_t> next_;              // by pack
};

// The pieces to pack, in the order of the data set.
std::vector<PackedPiece> Pieces(std::span<const std::int32_t> lengths, const PackIndexOptions& options,
                                PackFacts* facts) {
  const std::int64_t room = options.sequence_length + 1;
  std::vector<PackedPiece> pieces;
  pieces.reserve(static_cast<std::size_t>(options.range.size()));
  for (std::int64_t s = options.range.begin; s < options.range.end; ++s) {
    const std::int64_t length = lengths[static_cast<std::size_t>(s)];
    if (length < 2 || (length > room && options.drops_long)) {
      ++facts->dropped;
      continue;
    }
    facts->cut += length > room ? 1 : 0;
    for (std::int64_t at = 0; length - at >= 2; at += options.sequence_length) {
      const std::int64_t tokens = std::min(room, length - at);
      pieces.push_back(
          {static_cast<std::int32_t>(s), static_cast<std::int32_t>(at), static_cast<std::int32_t>(tokens)});
      facts->tokens += tokens;
    }
  }
  facts->pieces = static_cast<std::int64_t>(pieces.size());
  return pieces;
}

// Sorts pieces from the longest to the shortest; equal ones keep their order.
void SortByLength(std::int64_t longest, std::vector<PackedPiece>* pieces) {
  std::vector<std::size_t> places(static_cast<std::size_t>(longest) + 1);
  for (const PackedPiece& piece : *pieces) ++places[static_cast<std::size_t>(longest - piece.tokens)];
  std::exclusive_scan(places.begin(), places.end(), places.begin(), std::size_t{0});
  std::vector<PackedPiece> sorted(pieces->size());
  for (const PackedPiece& piece : *pieces)
    sorted[places[static_cast<std::size_t>(longest - piece.tokens)]++] = piece;
  *pieces = std::move(sorted);
}

// Puts pieces[i] into the pack of that number, and says how many packs there are.
std::int32_t Pack(const std::vector<PackedPiece>& pieces, std::int64_t room,
                  std::vector<std::int32_t>* pack_of) {
  Rooms rooms(room);
  std::int32_t packs = 0;
  pack_of->reserve(pieces.size());
  for (const PackedPiece& piece : pieces) {
    std::int64_t left = room;
    std::int32_t pack = rooms.Take(piece.tokens, &left);
    if (pack == kNone) {
      left = room;
      pack = packs++;
    }
    pack_of->push_back(pack);
    rooms.Put(pack, left - piece.tokens);
  }
  return packs;
}

}  // namespace

absl::StatusOr<PackIndex> BuildPackIndex(std::span<const std::int32_t> lengths,
                                         const PackIndexOptions& options) {
  const SequenceRange range = options.range;
  ENGINE_CHECK(range.begin >= 0 && range.end <= static_cast<std::int64_t>(lengths.size()),
               "range [{}, {}) of {}", range.begin, range.end, lengths.size());
  if (options.sequence_length < 1 || options.sequence_length > std::numeric_limits<std::int32_t>::max() - 1)
    return InvalidArgument("sequence length is {}, and must be from 1 to 2^31 - 2", options.sequence_length);
  if (range.end > std::numeric_limits<std::int32_t>::max())
    return ResourceExhausted("{} sequences, an index numbers at most 2^31 - 1", range.end);
  const std::int64_t room = options.sequence_length + 1;
  PackIndex index;
  std::vector<PackedPiece> pieces = Pieces(lengths, options, &index.facts);
  if (pieces.empty()) {
    return InvalidArgument(
        "none of {} sequences can be packed: {}; use more text, another split{}", range.size(),
        options.drops_long ? fmt::format("all have less than 2 or more than {} tokens", room)
                           : std::string("all have less than 2 tokens"),
        options.drops_long ? ", a longer sequence, or data.long_documents = \"cut\"" : "");
  }
  if (static_cast<std::int64_t>(pieces.size()) > std::numeric_limits<std::int32_t>::max())
    return ResourceExhausted("{} pieces of documents, an index numbers at most 2^31 - 1", pieces.size());
  SortByLength(room, &pieces);
  std::vector<std::int32_t> pack_of;
  const std::int32_t packs = Pack(pieces, room, &pack_of);

  index.packs.resize(static_cast<std::size_t>(packs) + 1);
  for (const std::int32_t pack : pack_of) ++index.packs[static_cast<std::size_t>(pack) + 1];
  std::inclusive_scan(index.packs.begin(), index.packs.end(), index.packs.begin());
  std::vector<std::uint32_t> places(index.packs.begin(), index.packs.end() - 1);
  index.pieces.resize(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i)
    index.pieces[places[static_cast<std::size_t>(pack_of[i])]++] = pieces[i];

  const std::int64_t wanted = options.num_samples.value_or(0);
  if (wanted < 0 || wanted > kMost)
    return InvalidArgument("{} samples asked for, an index holds at most {}", WithThousands(wanted),
                           WithThousands(kMost));
  index.epochs =
      options.num_samples ? std::max<std::int64_t>(1, CeilDiv(wanted, std::int64_t{packs})) : options.epochs;
  if (index.epochs > kMost / packs) {
    return ResourceExhausted(
        "{} epochs of {} packed samples do not fit an index of {} positions; ask for fewer", index.epochs,
        packs, kMost);
  }
  index.shuffle.resize(static_cast<std::size_t>(index.epochs * packs));
  NumpyRandom random(options.seed);
  for (std::int64_t epoch = 0; epoch < index.epochs; ++epoch) {
    const std::span<std::uint32_t> part =
        std::span(index.shuffle)
            .subspan(static_cast<std::size_t>(epoch * packs), static_cast<std::size_t>(packs));
    std::iota(part.begin(), part.end(), 0U);
    random.Shuffle(part);
  }
  return index;
}

}  // namespace engine::data
