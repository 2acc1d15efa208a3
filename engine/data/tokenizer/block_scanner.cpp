#include "engine/data/tokenizer/block_scanner.h"

namespace engine::tokenizer {

ScannerSpeed FastestScanner() {
#if defined(__x86_64__)
  static const ScannerSpeed fastest = [] {
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                          __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi2");
    return has_avx512 ? ScannerSpeed::kAvx512 : has_avx2 ? ScannerSpeed::kAvx2 : ScannerSpeed::kPortable;
  }();
  return fastest;
#else
  return ScannerSpeed::kPortable;
#endif
}

BlockScanner BlockScannerOf(Scanner scanner, ScannerSpeed speed) {
  switch (speed) {
    case ScannerSpeed::kAvx512:
      return BlockScannerOfAvx512(scanner);
    case ScannerSpeed::kAvx2:
      return BlockScannerOfAvx2(scanner);
    case ScannerSpeed::kPortable:
      return nullptr;
  }
  return nullptr;
}

}  // namespace engine::tokenizer
