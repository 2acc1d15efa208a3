// A data set of short documents, with a mask of the loss beside it or without.
#pragma once

#include <string>
#include <vector>

#include "tests/train/run_testing.h"

namespace engine::train::testing {

// 80 documents of 2 to 15 letters, a token 256 (the byte tokenizer's end of a document) within some and at the end of others; half of
// their letters count where there is a mask.
inline void WriteDocuments(const std::string& prefix, bool with_mask) {
  auto writer = data::IndexedDatasetWriter::Create(prefix, data::TokenType::kU16);
  auto mask = data::IndexedDatasetWriter::Create(prefix + "_loss_mask", data::TokenType::kU8);
  REQUIRE(writer.ok());
  REQUIRE(mask.ok());
  const PhiloxKey key = MakePhiloxKey(3, "documents");
  std::uint64_t at = 0;
  for (int document = 0; document < 80; ++document) {
    std::vector<std::int32_t> tokens(2 + PhiloxWord(key, at++) % 14);
    std::vector<std::int32_t> counts(tokens.size());
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const std::uint32_t word = PhiloxWord(key, at++);
      tokens[t] = word % 9 == 0 ? 256 : static_cast<std::int32_t>('a' + word % 26);
      counts[t] = static_cast<std::int32_t>(word >> 16 & 1U);
    }
    REQUIRE((*writer)->AddDocument({&tokens, 1}).ok());
    REQUIRE((*mask)->AddDocument({&counts, 1}).ok());
  }
  REQUIRE((*writer)->Finish().ok());
  if (with_mask) REQUIRE((*mask)->Finish().ok());
}

}  // namespace engine::train::testing
