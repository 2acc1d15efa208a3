#include "engine/data/indexed_dataset.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "engine/base/status.h"
#include "engine/data/indexed_format.h"

namespace engine::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

template <typename T>
T Load(const std::byte* from) {  // the arrays of .idx are not aligned
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Calls visit(TokenOfThatType*) with a typed view of `bytes`.
template <typename Visitor>
auto VisitTokens(TokenType type, const std::byte* bytes, Visitor visit) {
  switch (type) {
    case TokenType::kU8:
      return visit(reinterpret_cast<const std::uint8_t*>(bytes));
    case TokenType::kI8:
      return visit(reinterpret_cast<const std::int8_t*>(bytes));
    case TokenType::kI16:
      return visit(reinterpret_cast<const std::int16_t*>(bytes));
    case TokenType::kI32:
      return visit(reinterpret_cast<const std::int32_t*>(bytes));
    case TokenType::kI64:
      return visit(reinterpret_cast<const std::int64_t*>(bytes));
    case TokenType::kU16:
      break;
  }
  return visit(reinterpret_cast<const std::uint16_t*>(bytes));
}

}  // namespace

std::string_view Name(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "uint8";
    case TokenType::kI8:
      return "int8";
    case TokenType::kI16:
      return "int16";
    case TokenType::kI32:
      return "int32";
    case TokenType::kI64:
      return "int64";
    case TokenType::kU16:
      return "uint16";
  }
  return "?";
}

std::int64_t SizeOf(TokenType type) {
  return VisitTokens(type, nullptr, [](auto* token) { return static_cast<std::int64_t>(sizeof *token); });
}

TokenType ChooseTokenType(std::int64_t vocab_size) {
  constexpr std::int64_t kUint16Below = 65500;
  return vocab_size < kUint16Below ? TokenType::kU16 : TokenType::kI32;
}

absl::StatusOr<IndexedDataset> IndexedDataset::Open(const std::string& prefix) {
  RETURN_IF_ERROR(storage::CheckPrefix(prefix));
  absl::StatusOr<MappedFile> idx = MappedFile::Open(IdxPath(prefix));
  if (!idx.ok() && absl::IsNotFound(idx.status())) {
    return NotFound("{}; a data set is named by its prefix, without .bin or .idx", Message(idx.status()));
  }
  RETURN_IF_ERROR(idx.status());
  ASSIGN_OR_RETURN(TokenBytes bin, TokenBytes::Open(BinPath(prefix)));
  IndexedDataset dataset(prefix, *std::move(idx), std::move(bin));
  RETURN_IF_ERROR(dataset.ParseHeader());
  RETURN_IF_ERROR(dataset.ParseSequences());
  RETURN_IF_ERROR(dataset.CheckDocuments());
  return dataset;
}

absl::Status IndexedDataset::ParseHeader() {
  const std::string path = IdxPath(prefix_);
  const std::span<const std::byte> bytes = idx_.bytes();
  if (bytes.size() < kHeaderBytes) {
    return DataLoss("{}: {} bytes, an index has at least {}", path, bytes.size(), kHeaderBytes);
  }
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return DataLoss("{}: is not an index, it does not start with MMIDIDX", path);
  }
  const auto version = Load<std::uint64_t>(bytes.data() + kVersionAt);
  if (version != kVersion) return DataLoss("{}: version {}, only {} is known", path, version, kVersion);
  const auto code = Load<std::uint8_t>(bytes.data() + kTypeAt);
  if (code == 6 || code == 7) return DataLoss("{}: token type {} is floating point", path, code);
  if ((code < 1 || code > 5) && code != 8) return DataLoss("{}: token type {} is unknown", path, code);
  type_ = static_cast<TokenType>(code);

  const auto sequences = Load<std::uint64_t>(bytes.data() + kSequencesAt);
  const auto boundaries = Load<std::uint64_t>(bytes.data() + kDocumentsAt);
  const std::uint64_t body = bytes.size() - kHeaderBytes;
  // Bounds first, so that the products below cannot overflow.
  if (sequences > body / kSequenceBytes || boundaries > body / kDocumentBytes ||
      sequences * kSequenceBytes + boundaries * kDocumentBytes > body) {
    return DataLoss("{}: {} bytes are too few for the {} sequences and {} document entries of its header",
                    path, bytes.size(), sequences, boundaries);
  }
  const std::uint64_t rest = body - sequences * kSequenceBytes - boundaries * kDocumentBytes;
  if (rest == sequences && rest > 0) {
    return Unimplemented("{}: has sequence modes (a multimodal data set), which are not supported", path);
  }
  if (rest > 0) {
    return DataLoss("{}: {} bytes, {} more than its {} sequences and {} document entries take", path,
                    bytes.size(), rest, sequences, boundaries);
  }
  if (boundaries == 0) return DataLoss("{}: has no document entries, at least 1 is needed", path);
  lengths_.resize(sequences);
  documents_ = static_cast<std::int64_t>(boundaries) - 1;
  return absl::OkStatus();
}

absl::Status IndexedDataset::ParseSequences() {
  const std::string path = IdxPath(prefix_);
  if (!lengths_.empty()) {
    std::memcpy(lengths_.data(), idx_.bytes().data() + kHeaderBytes, lengths_.size() * sizeof(std::int32_t));
  }
  const std::int64_t token_bytes = SizeOf(type_);
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    if (lengths_[i] < 0) return DataLoss("{}: sequence {} has length {}", path, i, lengths_[i]);
    const std::int64_t at = pointer(static_cast<std::int64_t>(i));
    if (at != tokens_ * token_bytes) {
      return DataLoss(
          "{}: sequence {} is said to start at byte {}, but the lengths before it sum to {} bytes", path, i,
          at, tokens_ * token_bytes);
    }
    tokens_ += lengths_[i];
  }
  if (tokens_ * token_bytes != bin_bytes()) {
    return DataLoss(
        "{} has {} bytes, but the {} {} tokens of {} take {}; the two files are not of one data set",
        BinPath(prefix_), bin_bytes(), tokens_, Name(type_), path, tokens_ * token_bytes);
  }
  return absl::OkStatus();
}

absl::Status IndexedDataset::CheckDocuments() const {
  const std::string path = IdxPath(prefix_);
  if (first_sequence(0) != 0) return DataLoss("{}: document entry 0 is {}, not 0", path, first_sequence(0));
  for (std::int64_t i = 1; i <= documents_; ++i) {
    if (first_sequence(i) < first_sequence(i - 1)) {
      return DataLoss("{}: document entry {} is {}, below the {} before it", path, i, first_sequence(i),
                      first_sequence(i - 1));
    }
  }
  if (first_sequence(documents_) != sequences()) {
    return DataLoss("{}: the last document ends at sequence {}, but there are {} sequences", path,
                    first_sequence(documents_), sequences());
  }
  return absl::OkStatus();
}

std::int64_t IndexedDataset::pointer(std::int64_t sequence) const {
  return Load<std::int64_t>(idx_.bytes().data() + kHeaderBytes + 4 * lengths_.size() + 8 * sequence);
}

std::int64_t IndexedDataset::first_sequence(std::int64_t document) const {
  return Load<std::int64_t>(idx_.bytes().data() + kHeaderBytes + kSequenceBytes * lengths_.size() +
                            kDocumentBytes * document);
}

absl::Status IndexedDataset::Read(std::int64_t sequence, std::int64_t offset,
                                  std::span<std::int32_t> out) const {
  ENGINE_CHECK(sequence >= 0 && sequence < sequences(), "sequence {} of {}", sequence, sequences());
  const auto count = static_cast<std::int64_t>(out.size());
  ENGINE_CHECK(offset >= 0 && offset + count <= lengths_[sequence], "tokens [{}, {}) of {}", offset,
               offset + count, lengths_[sequence]);
  if (count == 0) return absl::OkStatus();
  const std::int64_t token_bytes = SizeOf(type_);
  auto to = out.begin();
  return bin_.Visit(
      pointer(sequence) + offset * token_bytes, count * token_bytes, [&](std::span<const std::byte> piece) {
        VisitTokens(type_, piece.data(), [&](auto* tokens) {
          to = std::transform(tokens, tokens + static_cast<std::int64_t>(piece.size()) / token_bytes, to,
                              [](auto token) { return static_cast<std::int32_t>(token); });
        });
      });
}

void IndexedDataset::Prefetch(std::int64_t sequence, std::int64_t offset, std::size_t tokens,
                              storage::When when) const {
  const std::int64_t token_bytes = SizeOf(type_);
  bin_.Prefetch(pointer(sequence) + offset * token_bytes, static_cast<std::int64_t>(tokens) * token_bytes,
                when);
}

absl::StatusOr<TokenScan> IndexedDataset::Scan() const {
  TokenScan scan;
  std::int64_t seen = 0;
  RETURN_IF_ERROR(bin_.Visit(0, bin_.size(), [&](std::span<const std::byte> piece) {
    const std::int64_t count = static_cast<std::int64_t>(piece.size()) / SizeOf(type_);
    if (count == 0) return;
    VisitTokens(type_, piece.data(), [&](auto* tokens) {
      // Positions are looked up afterwards: the pass over all tokens stays two reductions.
      auto min = tokens[0];
      auto max = tokens[0];
      for (std::int64_t i = 0; i < count; ++i) {
        min = std::min(min, tokens[i]);
        max = std::max(max, tokens[i]);
      }
      const TokenScan here = {.min = static_cast<std::int64_t>(min),
                              .max = static_cast<std::int64_t>(max),
                              .first_max = seen + (std::find(tokens, tokens + count, max) - tokens),
                              .first_min = seen + (std::find(tokens, tokens + count, min) - tokens)};
      if (seen == 0 || here.min < scan.min) {
        scan.min = here.min;
        scan.first_min = here.first_min;
      }
      if (seen == 0 || here.max > scan.max) {
        scan.max = here.max;
        scan.first_max = here.first_max;
      }
    });
    seen += count;
  }));
  return scan;
}

Fingerprints IndexedDataset::Fingerprint(std::size_t blocks) const {
  return {{"data " + IdxPath(prefix_), FingerprintOfAll(idx_.bytes())},
          {"data " + BinPath(prefix_), bin_.Fingerprint(blocks)}};
}

std::int64_t IndexedDataset::SequenceOfToken(std::int64_t position) const {
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < sequences(); ++i) {
    end += lengths_[i];
    if (position < end) return i;
  }
  return sequences();
}

absl::Status IndexedDataset::CountTokens(std::int64_t begin, std::int64_t end,
                                         std::span<std::int64_t> counts) const {
  std::int64_t count = 0;
  for (std::int64_t i = begin; i < end; ++i) count += lengths_[i];
  if (count == 0) return absl::OkStatus();
  const std::int64_t token_bytes = SizeOf(type_);
  return bin_.Visit(pointer(begin), count * token_bytes, [&](std::span<const std::byte> piece) {
    VisitTokens(type_, piece.data(), [&](auto* tokens) {
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(piece.size()) / token_bytes; ++i) {
        const auto token =
            static_cast<std::int64_t>(tokens[i]);  // NOLINT(bugprone-signed-char-misuse): a number
        ENGINE_CHECK(token >= 0 && token < static_cast<std::int64_t>(counts.size()), "token {} of {}", token,
                     counts.size());
        ++counts[static_cast<std::size_t>(token)];
      }
    });
  });
}

}  // namespace engine::data
