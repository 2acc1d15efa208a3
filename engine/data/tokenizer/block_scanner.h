// Scanners (scanners.h) that look at 64 bytes at once: each byte's kind becomes a bit of a mask, and where words begin
// follows from shifts and sums of masks (as simdjson does with JSON: Langdale and Lemire 2019). They know ASCII alone and
// leave to scanners.cpp each word whose end depends on another character, or lies beyond 64 bytes.
#pragma once

#include <cstdint>

#include "engine/data/tokenizer/scanners.h"

namespace engine::tokenizer {

// Writes the ends of words, as distances from `text`, from out[0] on; the first word begins at *at, where a word begins
// indeed, and `end` is the end of the text. Stops at the end, or before a word whose end it does not see, or once `full`
// is reached, behind which it may write 64 ends. Moves *at behind the last word and returns where the next end belongs.
using BlockScanner = std::uint32_t* (*)(const char* text, const char** at, const char* end,
                                        std::uint32_t* out, const std::uint32_t* full);

// Null where there is none: for kPortable, and on other processors.
BlockScanner BlockScannerOf(Scanner scanner, ScannerSpeed speed);

// Of one file each, which is compiled for that extension; null where the compiler does not know it.
BlockScanner BlockScannerOfAvx2(Scanner scanner);
BlockScanner BlockScannerOfAvx512(Scanner scanner);

}  // namespace engine::tokenizer
