#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/base/file.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/read_files.h"
#include "engine/data/tokenizer/read_model.h"

namespace engine::tokenizer {
namespace {

constexpr std::int64_t kMostModelBytes = std::int64_t{1} << 30;

// A field of a protobuf message: its number, and its value as the wire has it.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t value = 0;      // of a varint, or four or eight bytes
  std::string_view bytes = {};  // of what has a length
  bool has_bytes = false;
};

// Reads the fields of a message one by one (protobuf's encoding).
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  bool at_end() const { return rest_.empty(); }

  absl::StatusOr<Field> Next() {
    Field field;
    ASSIGN_OR_RETURN(const std::uint64_t tag, Varint());
    field.number = tag >> 3;
    switch (tag & 7) {
      case 0: {
        ASSIGN_OR_RETURN(field.value, Varint());
        return field;
      }
      case 1:
      case 5: {
        const std::size_t width = (tag & 7) == 1 ? 8 : 4;
        if (rest_.size() < width) return DataLoss("the file ends inside of a number");
        std::memcpy(&field.value, rest_.data(), width);
        rest_.remove_prefix(width);
        return field;
      }
      case 2: {
        ASSIGN_OR_RETURN(const std::uint64_t length, Varint());
        if (length > rest_.size())
          return DataLoss("a field of {} bytes, but {} are there", length, rest_.size());
        field.bytes = rest_.substr(0, length);
        field.has_bytes = true;
        rest_.remove_prefix(length);
        return field;
      }
      default:
        return DataLoss("a field of the unknown kind {}", tag & 7);
    }
  }

 private:
  absl::StatusOr<std::uint64_t> Varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return DataLoss("the file ends inside of a number");
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return DataLoss("a number of more than ten bytes");
  }

  std::string_view rest_;
};

enum ModelType { kUnigram = 1, kBpe = 2, kWords = 3, kCharacters = 4 };
enum PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct Piece {
  std::string_view text;
  float score = 0;
  std::uint64_t type = kNormal;
};

// What of sentencepiece_model.proto is used, with its defaults.
struct ModelProto {
  std::vector<Piece> pieces;
  std::uint64_t model_type = kUnigram;
  bool treat_whitespace_as_suffix = false;
  bool byte_fallback = false;
  std::int32_t unknown = 0;
  std::int32_t beginning = 1;
  std::int32_t end = 2;
  std::string_view charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

absl::Status ForFields(std::string_view message, const auto& visit) {
  for (FieldReader reader(message); !reader.at_end();) {
    ASSIGN_OR_RETURN(const Field field, reader.Next());
    visit(field);
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelProto> ParseModelProto(std::string_view file) {
  ModelProto proto;
  for (FieldReader reader(file); !reader.at_end();) {
    ASSIGN_OR_RETURN(const Field part, reader.Next());
    if (part.number >= 1 && part.number <= 3 && !part.has_bytes)
      return DataLoss("field {} must be a message", part.number);
    if (part.number == 1) {
      Piece piece;
      RETURN_IF_ERROR(ForFields(part.bytes, [&](const Field& field) {
        if (field.number == 1) piece.text = field.bytes;
        if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
        if (field.number == 3) piece.type = field.value;
      }));
      proto.pieces.push_back(piece);
    } else if (part.number == 2) {
      RETURN_IF_ERROR(ForFields(part.bytes, [&](const Field& field) {
        if (field.number == 3) proto.model_type = field.value;
        if (field.number == 24) proto.treat_whitespace_as_suffix = field.value != 0;
        if (field.number == 35) proto.byte_fallback = field.value != 0;
        if (field.number == 40) proto.unknown = static_cast<std::int32_t>(field.value);
        if (field.number == 41) proto.beginning = static_cast<std::int32_t>(field.value);
        if (field.number == 42) proto.end = static_cast<std::int32_t>(field.value);
      }));
    } else if (part.number == 3) {
      RETURN_IF_ERROR(ForFields(part.bytes, [&](const Field& field) {
        if (field.number == 2) proto.charsmap = field.bytes;
        if (field.number == 3) proto.add_dummy_prefix = field.value != 0;
        if (field.number == 4) proto.remove_extra_whitespaces = field.value != 0;
        if (field.number == 5) proto.escape_whitespaces = field.value != 0;
      }));
    } else if (part.number == 5) {
      std::string_view charsmap;
      RETURN_IF_ERROR(ForFields(part.bytes, [&](const Field& field) {
        if (field.number == 2) charsmap = field.bytes;
      }));
      if (!charsmap.empty())
        return Unimplemented("the model changes characters when it decodes, which is not supported");
    }
  }
  return proto;
}

absl::Status CheckPieces(const ModelProto& proto, Vocabulary* vocabulary) {
  if (proto.pieces.empty()) return DataLoss("it has no pieces; is it a SentencePiece model?");
  if (proto.pieces.size() > kMostTokenId) return Unimplemented("{} pieces are too many", proto.pieces.size());
  vocabulary->Reserve(proto.pieces.size(), 16 * proto.pieces.size());
  bool has_unknown = false;
  for (std::size_t i = 0; i < proto.pieces.size(); ++i) {
    const Piece& piece = proto.pieces[i];
    if (piece.text.empty() || ValidUtf8Prefix(piece.text) != piece.text.size()) {
      return DataLoss("piece {} \"{}\" is empty or no UTF-8", i, Shown(piece.text));
    }
    if (piece.type < kNormal || piece.type > kByte)
      return DataLoss("piece {} is of the unknown type {}", i, piece.type);
    if (!std::isfinite(piece.score)) return DataLoss("the score of piece {} is no number", i);
    if (!vocabulary->Add(piece.text, static_cast<std::int32_t>(i)))
      return DataLoss("piece {} \"{}\" stands twice", i, Shown(piece.text));
    if (piece.type != kUnknown) continue;
    if (has_unknown || static_cast<std::int32_t>(i) != proto.unknown) {
      return DataLoss("piece {} is the unknown one, but the model says that it is piece {}", i,
                      proto.unknown);
    }
    has_unknown = true;
  }
  if (!has_unknown) return DataLoss("it has no unknown piece");
  for (int byte = 0; proto.byte_fallback && byte < 256; ++byte) {
    const std::int32_t id = vocabulary->Find(ByteToken(static_cast<unsigned char>(byte)));
    if (id == kNoToken || proto.pieces[static_cast<std::size_t>(id)].type != kByte) {
      return DataLoss("it falls back to bytes, but has no piece for byte {}", byte);
    }
  }
  return absl::OkStatus();
}

// Whether pieces of the type are found in text by the model itself.
bool IsOfText(const Piece& piece) { return piece.type == kNormal || piece.type == kUnused; }

// Pieces merge by their scores, the highest first; equal scores from left to right.
void AddMerges(const ModelProto& proto, BpeModel* model) {
  std::vector<std::size_t> order(proto.pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return proto.pieces[a].score > proto.pieces[b].score;
  });
  std::vector<std::int32_t> rank_of(proto.pieces.size(), -1);
  std::int32_t rank = -1;
  float last = 0;
  for (const std::size_t id : order) {
    const Piece& piece = proto.pieces[id];
    if (!IsOfText(piece)) continue;
    if (rank < 0 || piece.score != last) ++rank;
    last = piece.score;
    rank_of[id] = rank;
  }
  AddAllMerges(rank_of, model);
}

// A model of characters is a BPE without merges.
BpeModel BpeOfPieces(const ModelProto& proto, Vocabulary vocabulary) {
  BpeModel model;
  model.vocabulary = std::move(vocabulary);
  if (proto.model_type == kBpe) {
    AddMerges(proto, &model);
    const auto is_unused = [](const Piece& piece) { return piece.type == kUnused; };
    if (std::any_of(proto.pieces.begin(), proto.pieces.end(), is_unused)) {
      for (const Piece& piece : proto.pieces) model.unused.push_back(is_unused(piece));
    }
  }
  model.unknown = proto.unknown;
  model.fuse_unknown = true;
  model.byte_fallback = proto.byte_fallback;
  return model;
}

UnigramModel UnigramOfPieces(const ModelProto& proto, Vocabulary vocabulary) {
  UnigramModel model;
  model.vocabulary = std::move(vocabulary);
  model.unknown = proto.unknown;
  model.byte_fallback = proto.byte_fallback;
  model.single_precision = true;
  float least = 0;
  float most = 0;
  bool is_first = true;
  for (const Piece& piece : proto.pieces) {
    if (piece.type != kNormal) continue;
    least = is_first ? piece.score : std::min(least, piece.score);
    most = is_first ? piece.score : std::max(most, piece.score);
    is_first = false;
  }
  for (const Piece& piece : proto.pieces) {
    // A user-defined piece outdoes whatever else could stand in its place.
    const double bonus = static_cast<double>(static_cast<float>(piece.text.size()) * most) - 0.1;
    model.scores.push_back(piece.type == kUserDefined ? bonus : static_cast<double>(piece.score));
    model.never.push_back(piece.type != kNormal && piece.type != kUserDefined);
  }
  constexpr float kUnknownPenalty = 10;
  model.unknown_score = least - kUnknownPenalty;
  return model;
}

// Words that are user-defined or unused are words as others.
WordLevelModel WordsOfPieces(const ModelProto& proto, Vocabulary vocabulary) {
  WordLevelModel model;
  model.vocabulary = std::move(vocabulary);
  model.unknown = proto.unknown;
  model.cuts_at_blanks = true;
  model.byte_fallback = proto.byte_fallback;
  for (const Piece& piece : proto.pieces)
    model.never.push_back(!IsOfText(piece) && piece.type != kUserDefined);
  return model;
}

Model ModelOfPieces(const ModelProto& proto, Vocabulary vocabulary) {
  if (proto.model_type == kUnigram) return UnigramOfPieces(proto, std::move(vocabulary));
  if (proto.model_type == kWords) return WordsOfPieces(proto, std::move(vocabulary));
  return BpeOfPieces(proto, std::move(vocabulary));
}

}  // namespace

absl::StatusOr<Description> ReadSentencePiece(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string file, ReadRegular(path, kMostModelBytes));
  const auto located = [&path](const absl::Status& status) {
    return absl::Status(status.code(), fmt::format("{}: error: {}", ShownPath(path), Message(status)));
  };
  const absl::StatusOr<ModelProto> parsed = ParseModelProto(file);
  if (!parsed.ok()) return located(parsed.status());
  const ModelProto& proto = *parsed;
  Vocabulary vocabulary;
  if (const absl::Status status = CheckPieces(proto, &vocabulary); !status.ok()) return located(status);

  Description description;
  SentencePieceNormalize rules{.charsmap = std::string(proto.charsmap),
                               .add_dummy_prefix = proto.add_dummy_prefix,
                               .remove_extra_whitespaces = proto.remove_extra_whitespaces,
                               .escape_whitespaces = proto.escape_whitespaces,
                               .whitespace_is_suffix = proto.treat_whitespace_as_suffix,
                               .user_defined = {}};
  constexpr std::array kKinds = {"Unigram", "BPE", "words", "characters"};  // from kUnigram on
  if (proto.model_type < kUnigram || proto.model_type > kCharacters)
    return located(DataLoss("the model is of the unknown type {}; there are 1 to 4", proto.model_type));
  const bool finds_own = proto.model_type == kBpe || proto.model_type == kCharacters;
  for (std::size_t i = 0; i < proto.pieces.size(); ++i) {
    const Piece& piece = proto.pieces[i];
    const bool is_own = piece.type == kUserDefined;
    if (is_own) rules.user_defined.emplace_back(piece.text);
    if (!(is_own && finds_own) && piece.type != kControl && piece.type != kUnknown) continue;
    description.added_tokens.push_back({.id = static_cast<std::int32_t>(i),
                                        .content = std::string(piece.text),
                                        .normalized = is_own,
                                        .special = !is_own});
  }
  description.normalizers = {std::move(rules)};
  description.model = ModelOfPieces(proto, std::move(vocabulary));
  description.has_decoder = true;
  description.decoders = {Replace{{"\u2581", false}, " "}, JoinByteTokens{}, Fuse{}};
  if (proto.add_dummy_prefix && !proto.treat_whitespace_as_suffix)
    description.decoders.push_back(StripCharacters{" ", 1, 0});
  const auto is_control = [&proto](std::int32_t id) {
    return id >= 0 && static_cast<std::size_t>(id) < proto.pieces.size() &&
           proto.pieces[static_cast<std::size_t>(id)].type == kControl;
  };
  if (is_control(proto.beginning)) {
    description.beginning_of_document = proto.beginning;
    description.beginning_of_document_from = "the model's beginning of a sentence";
  }
  if (is_control(proto.end)) {
    description.end_of_document = proto.end;
    description.end_of_document_from = "the model's end of a sentence";
  }
  description.source =
      fmt::format("{} (SentencePiece, {})", ShownPath(path), kKinds[proto.model_type - kUnigram]);
  return description;
}

}  // namespace engine::tokenizer
