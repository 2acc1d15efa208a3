// The words of the known byte-level tokenizers, cut by hand-written code instead of a regular expression. Each scanner
// gives exactly the pieces of its pattern; tests/tokenizer/scanners_test.cpp compares them with PCRE2.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace engine::tokenizer {

enum class Scanner : std::uint8_t { kGpt2, kLlama3, kQwen, kO200k, kTekken, kDeepSeek };

// The pattern of a scanner as it stands in files; of DeepSeek-V3 the three patterns that apply one after the other.
std::span<const std::string_view> PatternsOf(Scanner scanner);

// The scanner whose only pattern has exactly this text.
std::optional<Scanner> ScannerOf(std::string_view pattern);

// How a scanner may be made: in any way, or with extensions of x86-64, the later the faster.
enum class ScannerSpeed : std::uint8_t { kPortable, kAvx2, kAvx512 };

// The fastest that this processor can do.
ScannerSpeed FastestScanner();

// Appends the ends of the words of `text`, which is UTF-8 of less than 4 GiB, in order; together they are all of it. They
// are the same at any speed, of which one that is compiled for no such processor is kPortable. Linear time.
void Scan(Scanner scanner, std::string_view text, std::vector<std::uint32_t>* ends,
          ScannerSpeed speed = FastestScanner());

}  // namespace engine::tokenizer
