#include "engine/data/parquet/numbers.h"

#include <algorithm>
#include <limits>

namespace engine::parquet {
namespace {

std::optional<std::uint64_t> TakeVarint(std::string_view* bytes) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<std::uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if ((byte & 0x80U) == 0) return value;
  }
  return std::nullopt;
}

std::uint64_t UnZigZag(std::uint64_t value) { return (value >> 1) ^ (~(value & 1) + 1); }

// Bits [first, first + width) of the bytes, the low ones first; width is at most 64 and the bits are there.
std::uint64_t BitsAt(std::string_view bytes, std::uint64_t first, unsigned width) {
  std::uint64_t value = 0;
  for (unsigned done = 0; done < width;) {
    const std::uint64_t bit = first + done;
    const auto byte = static_cast<std::uint8_t>(bytes[bit / 8]);
    const auto from = static_cast<unsigned>(bit % 8);
    const unsigned taken = std::min(8 - from, width - done);
    value |= (std::uint64_t{byte} >> from & ((1U << taken) - 1)) << done;
    done += taken;
  }
  return value;
}

}  // namespace

HybridReader HybridReader::OfPackedBits(std::string_view bytes) {
  HybridReader bits({}, 1);
  bits.packed_ = true;
  bits.run_ = bytes;
  bits.left_ = 8 * bytes.size();
  return bits;
}

bool HybridReader::BeginRun() {
  const std::optional<std::uint64_t> header = TakeVarint(&bytes_);
  if (!header.has_value() || width_ > 32) return false;
  packed_ = (*header & 1) != 0;
  left_ = *header >> 1;
  if (packed_) {  // in groups of eight; the last group may be cut off behind the last number that counts
    if (left_ > std::numeric_limits<std::int32_t>::max()) return false;
    left_ *= 8;
    const std::uint64_t size = std::min<std::uint64_t>(left_ / 8 * width_, bytes_.size());
    run_ = bytes_.substr(0, size);
    run_bit_ = 0;
    bytes_.remove_prefix(size);
  } else {
    const std::size_t size = (width_ + 7) / 8;
    if (bytes_.size() < size) return false;
    value_ = static_cast<std::uint32_t>(BitsAt(bytes_, 0, static_cast<unsigned>(8 * size)));
    bytes_.remove_prefix(size);
    if (width_ < 32 && value_ >> width_ != 0) return false;
  }
  return true;
}

std::optional<std::uint32_t> HybridReader::Next() {
  while (left_ == 0)
    if (!BeginRun()) return std::nullopt;
  --left_;
  if (!packed_) return value_;
  if (run_bit_ + width_ > 8 * run_.size()) return std::nullopt;
  const std::uint64_t value = BitsAt(run_, run_bit_, width_);
  run_bit_ += width_;
  return static_cast<std::uint32_t>(value);
}

std::optional<std::vector<std::int64_t>> TakeDeltas(std::string_view* bytes, std::int64_t most) {
  const std::optional<std::uint64_t> block = TakeVarint(bytes);
  const std::optional<std::uint64_t> parts = TakeVarint(bytes);  // of a block
  const std::optional<std::uint64_t> count = TakeVarint(bytes);
  const std::optional<std::uint64_t> first = TakeVarint(bytes);
  constexpr std::uint64_t kMostBlock = 1U << 20;
  if (!block || !parts || !count || !first || *parts == 0 || *block == 0 || *block > kMostBlock ||
      *block % *parts != 0 || *block / *parts % 8 != 0 || *count > static_cast<std::uint64_t>(most)) {
    return std::nullopt;
  }
  const std::uint64_t part = *block / *parts;
  std::vector<std::int64_t> numbers;
  std::uint64_t value = UnZigZag(*first);
  if (*count > 0) numbers.push_back(static_cast<std::int64_t>(value));
  while (numbers.size() < *count) {
    const std::optional<std::uint64_t> least = TakeVarint(bytes);
    if (!least || bytes->size() < *parts) return std::nullopt;
    const std::string_view widths = bytes->substr(0, *parts);
    bytes->remove_prefix(*parts);
    for (const char c : widths) {
      const unsigned width = static_cast<std::uint8_t>(c);
      if (numbers.size() == *count) break;  // parts behind the last number have no bytes
      if (width > 64 || bytes->size() < part * width / 8) return std::nullopt;
      for (std::uint64_t i = 0; i < part && numbers.size() < *count; ++i) {
        value += UnZigZag(*least) + BitsAt(*bytes, i * width, width);
        numbers.push_back(static_cast<std::int64_t>(value));
      }
      bytes->remove_prefix(part * width / 8);
    }
  }
  return numbers;
}

}  // namespace engine::parquet
