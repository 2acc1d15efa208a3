// Compiled for AVX-512 (BW, VL, VBMI2), where the compiler and the processor family are such.
#include "engine/data/tokenizer/block_scanner.h"

#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VBMI2__) && defined(__BMI2__)
#include <immintrin.h>

#include "engine/data/tokenizer/block_scanner_words.h"
#include "engine/data/tokenizer/nibble_kinds.h"

namespace engine::tokenizer {
namespace {

inline Kinds KindsOf(const char* at, std::size_t count) {
  const __m512i bytes = _mm512_maskz_loadu_epi8(_bzhi_u64(~Mask{0}, static_cast<unsigned>(count)), at);
  const auto table = [](const NibbleTable& t) {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(t.bits)));
  };
  const __m512i high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15));
  const __m512i kinds = _mm512_and_si512(_mm512_shuffle_epi8(table(kLowNibbles), bytes),
                                         _mm512_shuffle_epi8(table(kHighNibbles), high));
  const auto any = [&](int bits) {
    return _mm512_test_epi8_mask(kinds, _mm512_set1_epi8(static_cast<char>(bits)));
  };
  const Mask here = _bzhi_u64(~Mask{0}, static_cast<unsigned>(count));
  Kinds k;
  k.letter = any(kLetterKinds);
  k.capital = k.letter & ~_mm512_test_epi8_mask(bytes, _mm512_set1_epi8(0x20));
  k.digit = any(kDigitKind);
  k.space = any(kSpaceKind);
  k.blank = any(kTabKind | kSpaceKind);
  k.newline = any(kNewlineKind);
  k.quote = any(kQuoteKind);
  k.slash = any(kSlashKind);
  k.foreign = _mm512_movepi8_mask(bytes);
  k.control = here & ~k.foreign & ~k.blank & ~k.newline &
              (_mm512_cmplt_epu8_mask(bytes, _mm512_set1_epi8(0x20)) |
               _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(0x7F)));
  return k;
}

inline std::uint32_t* PutBits(Mask bits, std::uint32_t base, std::uint32_t* out) {
  alignas(64) static constexpr unsigned char kPlaces[64] = {
      0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
      22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
      44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
  const __m512i places = _mm512_maskz_compress_epi8(bits, _mm512_load_si512(kPlaces));
  const __m512i from = _mm512_set1_epi32(static_cast<int>(base));
  const auto put = [&](std::uint32_t* to, __m128i sixteen) {
    _mm512_storeu_si512(to, _mm512_add_epi32(from, _mm512_cvtepu8_epi32(sixteen)));
  };
  const int count = __builtin_popcountll(bits);
  put(out, _mm512_castsi512_si128(places));
  put(out + 16, _mm512_extracti32x4_epi32(places, 1));
  if (count > 32) {
    put(out + 32, _mm512_extracti32x4_epi32(places, 2));
    put(out + 48, _mm512_extracti32x4_epi32(places, 3));
  }
  return out + count;
}

}  // namespace

BlockScanner BlockScannerOfAvx512(Scanner scanner) { return ScannerHere(scanner); }

}  // namespace engine::tokenizer

#else

namespace engine::tokenizer {

BlockScanner BlockScannerOfAvx512(Scanner /*scanner*/) { return nullptr; }

}  // namespace engine::tokenizer

#endif
