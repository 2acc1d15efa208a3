// Compiled for AVX2 and BMI, where the compiler and the processor family are such.
#include "engine/data/tokenizer/block_scanner.h"

#if defined(__AVX2__) && defined(__BMI2__)
#include <immintrin.h>

#include "engine/data/tokenizer/block_scanner_words.h"
#include "engine/data/tokenizer/nibble_kinds.h"

namespace engine::tokenizer {
namespace {

struct Half {
  __m256i bytes;
  __m256i kinds;
};

inline Half HalfOf(const char* at) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  const auto table = [](const NibbleTable& t) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(t.bits)));
  };
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
  return {bytes, _mm256_and_si256(_mm256_shuffle_epi8(table(kLowNibbles), bytes),
                                  _mm256_shuffle_epi8(table(kHighNibbles), high))};
}

inline Mask Join(int first, int second) {
  return static_cast<std::uint32_t>(first) | Mask{static_cast<std::uint32_t>(second)} << 32;
}

// A mask of the bytes that have this bit.
template <int bit>
inline Mask Having(__m256i first, __m256i second) {
  constexpr int kShift = bit == 128  ? 0
                         : bit == 64 ? 1
                         : bit == 32 ? 2
                         : bit == 16 ? 3
                         : bit == 8  ? 4
                         : bit == 4  ? 5
                         : bit == 2  ? 6
                                     : 7;
  return Join(_mm256_movemask_epi8(_mm256_slli_epi16(first, kShift)),
              _mm256_movemask_epi8(_mm256_slli_epi16(second, kShift)));
}

inline Kinds KindsOf(const char* at, std::size_t count) {
  char padded[64] = {};
  if (count < 64) {
    for (std::size_t i = 0; i < count; ++i) padded[i] = at[i];
    at = padded;
  }
  const Half a = HalfOf(at);
  const Half b = HalfOf(at + 32);
  Kinds k;
  k.letter = Having<kLetterKinds & 1>(a.kinds, b.kinds) | Having<kLetterKinds & 2>(a.kinds, b.kinds);
  k.capital = k.letter & ~Having<0x20>(a.bytes, b.bytes);
  k.digit = Having<kDigitKind>(a.kinds, b.kinds);
  k.space = Having<kSpaceKind>(a.kinds, b.kinds);
  k.blank = k.space | Having<kTabKind>(a.kinds, b.kinds);
  k.newline = Having<kNewlineKind>(a.kinds, b.kinds);
  k.quote = Having<kQuoteKind>(a.kinds, b.kinds);
  k.slash = Having<kSlashKind>(a.kinds, b.kinds);
  k.foreign = Having<128>(a.bytes, b.bytes);
  const auto is_low = [](__m256i bytes) {
    return _mm256_movemask_epi8(_mm256_or_si256(_mm256_cmpgt_epi8(_mm256_set1_epi8(0x20), bytes),
                                                _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(0x7F))));
  };
  k.control = Join(is_low(a.bytes), is_low(b.bytes)) & Below(count) & ~k.foreign & ~k.blank & ~k.newline;
  return k;
}

inline std::uint32_t* PutBits(Mask bits, std::uint32_t base, std::uint32_t* out) {
  std::uint32_t* const behind = out + __builtin_popcountll(bits);
  // Eight at a time, some of which may be none: fewer branches that cannot be foreseen. Of no bits the place is 64.
  for (; bits != 0; out += 8) {
    for (int i = 0; i < 8; ++i) {
      out[i] = base + static_cast<std::uint32_t>(_tzcnt_u64(bits));
      bits &= bits - 1;
    }
  }
  return behind;
}

}  // namespace

BlockScanner BlockScannerOfAvx2(Scanner scanner) { return ScannerHere(scanner); }

}  // namespace engine::tokenizer

#else

namespace engine::tokenizer {

BlockScanner BlockScannerOfAvx2(Scanner /*scanner*/) { return nullptr; }

}  // namespace engine::tokenizer

#endif
