#include "engine/data/parquet/column_reader.h"

#include <bit>
#include <cstring>
#include <utility>

#include "engine/base/status.h"

namespace engine::parquet {
namespace {

// A text behind its length, which is a u32; nullopt: it is not whole.
std::optional<std::string_view> TakeText(std::string_view* bytes) {
  std::uint32_t size = 0;
  if (bytes->size() < sizeof size) return std::nullopt;
  std::memcpy(&size, bytes->data(), sizeof size);
  bytes->remove_prefix(sizeof size);
  if (bytes->size() < size) return std::nullopt;
  const std::string_view text = bytes->substr(0, size);
  bytes->remove_prefix(size);
  return text;
}

unsigned WidthOf(unsigned level) { return static_cast<unsigned>(std::bit_width(level)); }

}  // namespace

struct ColumnReader::LoadedPage {
  Bytes bytes;         // as in the file, where these are not compressed
  Bytes decompressed;  // else what they hold
  std::int64_t begin = 0;
  std::int64_t left = 0;  // entries
  HybridReader definitions;
  HybridReader repetitions;
  Encoding encoding = Encoding::kPlain;
  std::string_view values;             // those that are to come
  HybridReader indices;                // into the dictionary; or booleans
  std::vector<std::int64_t> prefixes;  // lengths that are shared with the text before
  std::vector<std::int64_t> numbers;   // lengths of what stands in `values`; or the values, of integers
  std::size_t next_number = 0;
  std::string last;  // text, of delta byte arrays
};

absl::Status ColumnReader::Damaged(std::string_view what) const {
  return table_->Error("row {} (from 0): column \"{}\": {}", row_, column_.name, what);
}

void ColumnReader::Release() {
  held_.clear();
  built_.clear();
}

absl::Status ColumnReader::NextRow(std::vector<std::string_view>* texts) {
  texts->clear();
  Release();
  RETURN_IF_ERROR(AppendTexts(texts));
  ++row_;
  return absl::OkStatus();
}

absl::StatusOr<std::string_view> ColumnReader::Take() {
  Release();
  const Levels levels = *std::exchange(peeked_, std::nullopt);
  if (levels.definition < column_.definition) return std::string_view();
  return NextValue();
}

absl::Status ColumnReader::SkipRow() {
  ASSIGN_OR_RETURN(std::optional<Levels> levels, Peek());
  if (!levels.has_value()) return Damaged("the column ends before this row");
  do {
    RETURN_IF_ERROR(Take().status());
    ASSIGN_OR_RETURN(levels, Peek());
  } while (levels.has_value() && levels->repetition > 0);
  EndRow();
  return absl::OkStatus();
}

absl::Status ColumnReader::CheckEnd() {
  ASSIGN_OR_RETURN(const std::optional<Levels> entry, Peek());
  return entry.has_value() ? Damaged("the column goes on behind the last row") : absl::OkStatus();
}

absl::Status ColumnReader::AppendTexts(std::vector<std::string_view>* texts) {
  ASSIGN_OR_RETURN(std::optional<Levels> entry, Peek());
  if (!entry.has_value()) return Damaged("the column ends before this row");
  if (entry->repetition != 0) return Damaged("the row begins in the middle of a list");
  peeked_.reset();
  const bool is_list = column_.repetition > 0;
  if (is_list && entry->definition + 1 == column_.list_element) return absl::OkStatus();  // an empty one
  while (true) {
    if (entry->definition != column_.definition) {
      return Damaged(!is_list ? "is null, and must be a string"
                     : entry->definition < column_.list_element
                         ? "is null, and must be a list of strings"
                         : "the list holds null, and must hold strings");
    }
    ASSIGN_OR_RETURN(texts->emplace_back(), NextValue());
    if (!is_list) return absl::OkStatus();
    ASSIGN_OR_RETURN(entry, Peek());
    if (!entry.has_value() || entry->repetition == 0) return absl::OkStatus();
    peeked_.reset();
  }
}

absl::StatusOr<std::optional<ColumnReader::Levels>> ColumnReader::Peek() {
  if (peeked_.has_value()) return peeked_;
  while (page_ == nullptr || page_->left == 0) {
    if (next_page_ == pages_.data.size()) return std::nullopt;
    if (page_ != nullptr) held_.push_back(std::move(page_));
    RETURN_IF_ERROR(Load(pages_.data[next_page_++]));
  }
  --page_->left;
  Levels entry;
  if (column_.repetition > 0) {
    const std::optional<std::uint32_t> level = page_->repetitions.Next();
    if (!level.has_value() || *level > column_.repetition) return Damaged("repetition levels are damaged");
    entry.repetition = *level;
  }
  if (column_.definition > 0) {
    const std::optional<std::uint32_t> level = page_->definitions.Next();
    if (!level.has_value() || *level > column_.definition) return Damaged("definition levels are damaged");
    entry.definition = *level;
  }
  peeked_ = entry;
  return peeked_;
}

absl::Status ColumnReader::Load(const Page& page) {
  auto loaded = std::make_shared<LoadedPage>();
  loaded->begin = page.begin;
  loaded->left = page.header.values;
  ASSIGN_OR_RETURN(Bytes bytes, table_->ReadPage(page));
  absl::Status status = Split(page.header, std::move(bytes), loaded.get());
  if (status.ok()) status = BeginValues(page.header, loaded.get());
  if (!status.ok()) return Damaged(fmt::format("the page at byte {}: {}", page.begin, Message(status)));
  page_ = std::move(loaded);
  return absl::OkStatus();
}

// Levels and values of a page.
absl::Status ColumnReader::Split(const PageHeader& header, Bytes bytes, LoadedPage* loaded) {
  loaded->bytes = std::move(bytes);
  std::string_view rest = loaded->bytes.view();
  const auto take = [&](std::int64_t size) {
    const std::string_view taken = rest.substr(0, static_cast<std::size_t>(size));
    rest.remove_prefix(taken.size());
    return taken;
  };
  const auto decompress = [&](std::int64_t size) -> absl::Status {
    if (pages_.codec == Codec::kUncompressed || !header.is_compressed)
      return static_cast<std::int64_t>(rest.size()) == size
                 ? absl::OkStatus()
                 : InvalidArgument("{} bytes of {}", rest.size(), size);
    loaded->decompressed = Bytes(static_cast<std::size_t>(size));
    RETURN_IF_ERROR(
        Decompress(pages_.codec, rest, loaded->decompressed.data(), static_cast<std::size_t>(size)));
    rest = loaded->decompressed.view();
    return absl::OkStatus();
  };
  if (header.type == PageType::kDataV2) {
    const std::string_view repetitions = take(header.repetition_bytes);
    const std::string_view definitions = take(header.definition_bytes);
    RETURN_IF_ERROR(
        decompress(header.uncompressed_bytes - header.repetition_bytes - header.definition_bytes));
    loaded->repetitions = HybridReader(repetitions, WidthOf(column_.repetition));
    loaded->definitions = HybridReader(definitions, WidthOf(column_.definition));
  } else {
    RETURN_IF_ERROR(decompress(header.uncompressed_bytes));
    const auto levels = [&](unsigned most, Encoding encoding, HybridReader* reader) -> absl::Status {
      if (most == 0) return absl::OkStatus();
      if (encoding != Encoding::kRle)
        return Unimplemented("levels of the encoding {}", static_cast<int>(encoding));
      const std::optional<std::string_view> bytes_of_levels = TakeText(&rest);
      if (!bytes_of_levels.has_value()) return InvalidArgument("levels are cut off");
      *reader = HybridReader(*bytes_of_levels, WidthOf(most));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(levels(column_.repetition, header.repetition_encoding, &loaded->repetitions));
    RETURN_IF_ERROR(levels(column_.definition, header.definition_encoding, &loaded->definitions));
  }
  loaded->values = rest;
  return absl::OkStatus();
}

absl::Status ColumnReader::BeginValues(const PageHeader& header, LoadedPage* loaded) {
  loaded->encoding = header.encoding;
  const bool is_text = column_.type == PhysicalType::kByteArray;
  const bool is_boolean = column_.type == PhysicalType::kBoolean;
  const bool is_integer = column_.type == PhysicalType::kInt32 || column_.type == PhysicalType::kInt64;
  const auto deltas = [&](std::vector<std::int64_t>* numbers) {
    if (loaded->values.empty()) return absl::OkStatus();  // all are null
    std::optional<std::vector<std::int64_t>> taken = TakeDeltas(&loaded->values, header.values);
    if (!taken.has_value())
      return InvalidArgument("{} are damaged", is_text ? "lengths of texts" : "numbers");
    *numbers = *std::move(taken);
    return absl::OkStatus();
  };
  switch (header.encoding) {
    case Encoding::kPlain:
      if (is_boolean) loaded->indices = HybridReader::OfPackedBits(loaded->values);
      return absl::OkStatus();
    case Encoding::kPlainDictionary:
    case Encoding::kRleDictionary: {
      RETURN_IF_ERROR(LoadDictionary());
      loaded->encoding = Encoding::kRleDictionary;
      if (loaded->values.empty()) return absl::OkStatus();  // all are null
      const auto width = static_cast<std::uint8_t>(loaded->values.front());
      loaded->indices = HybridReader(loaded->values.substr(1), width);
      return absl::OkStatus();
    }
    case Encoding::kRle:
      if (!is_boolean) break;
      if (loaded->values.empty()) return absl::OkStatus();  // all are null
      if (const std::optional<std::string_view> bits = TakeText(&loaded->values); bits.has_value()) {
        loaded->indices = HybridReader(*bits, 1);
        return absl::OkStatus();
      }
      return InvalidArgument("booleans are cut off");
    case Encoding::kDeltaBinaryPacked:
      if (!is_integer) break;
      return deltas(&loaded->numbers);
    case Encoding::kDeltaByteArray:
      if (!is_text) break;
      RETURN_IF_ERROR(deltas(&loaded->prefixes));
      RETURN_IF_ERROR(deltas(&loaded->numbers));
      if (loaded->prefixes.size() != loaded->numbers.size())
        return InvalidArgument("{} prefixes of {} texts", loaded->prefixes.size(), loaded->numbers.size());
      return absl::OkStatus();
    case Encoding::kDeltaLengthByteArray:
      if (!is_text) break;
      return deltas(&loaded->numbers);
    default:
      break;
  }
  return Unimplemented(
      "the encoding {} is not read: plain and dictionary are, of texts delta length and delta byte array, of "
      "integers delta binary packed, of booleans runs",
      static_cast<int>(header.encoding));
}

absl::Status ColumnReader::LoadDictionary() {
  if (dictionary_.has_value()) return absl::OkStatus();
  if (!pages_.dictionary.has_value()) return InvalidArgument("there is no dictionary");
  const PageHeader& header = pages_.dictionary->header;
  if (header.encoding != Encoding::kPlain && header.encoding != Encoding::kPlainDictionary)
    return Unimplemented("a dictionary of the encoding {}", static_cast<int>(header.encoding));
  ASSIGN_OR_RETURN(Bytes bytes, table_->ReadPage(*pages_.dictionary));
  if (pages_.codec != Codec::kUncompressed) {
    Bytes decompressed(static_cast<std::size_t>(header.uncompressed_bytes));
    RETURN_IF_ERROR(Decompress(pages_.codec, bytes.view(), decompressed.data(), decompressed.size()));
    bytes = std::move(decompressed);
  }
  std::string_view rest = bytes.view();
  for (std::int64_t i = 0; i < header.values; ++i) {
    const std::optional<std::string_view> word = TakePlain(&rest);
    if (!word.has_value())
      return InvalidArgument("the dictionary ends after {} of {} values", i, header.values);
    words_.push_back(*word);
  }
  dictionary_ = std::move(bytes);
  return absl::OkStatus();
}

std::optional<std::string_view> ColumnReader::TakePlain(std::string_view* bytes) const {
  if (column_.type == PhysicalType::kByteArray) return TakeText(bytes);
  const bool is_short = column_.type == PhysicalType::kInt32 || column_.type == PhysicalType::kFloat;
  const std::size_t size = is_short ? 4 : 8;
  if (column_.type == PhysicalType::kBoolean || bytes->size() < size) return std::nullopt;
  const std::string_view value = bytes->substr(0, size);
  bytes->remove_prefix(size);
  return value;
}

absl::StatusOr<std::string_view> ColumnReader::NextValue() {
  LoadedPage& page = *page_;
  const bool is_boolean = column_.type == PhysicalType::kBoolean;
  if (page.encoding == Encoding::kRle || (page.encoding == Encoding::kPlain && is_boolean)) {
    const std::optional<std::uint32_t> bit = page.indices.Next();
    if (!bit.has_value()) return Damaged("the value is not there");
    return built_.emplace_back(1, static_cast<char>(*bit));
  }
  if (page.encoding == Encoding::kPlain) {
    const std::optional<std::string_view> value = TakePlain(&page.values);
    if (!value.has_value()) return Damaged("the value is not whole");
    return *value;
  }
  if (page.encoding == Encoding::kRleDictionary) {
    const std::optional<std::uint32_t> index = page.indices.Next();
    if (!index.has_value() || *index >= words_.size()) return Damaged("the value is not in the dictionary");
    return words_[*index];
  }
  if (page.next_number == page.numbers.size()) return Damaged("the value is not there");
  if (page.encoding != Encoding::kDeltaBinaryPacked) return NextDeltaText();
  const std::int64_t number = page.numbers[page.next_number++];
  // Little-endian: the first four bytes are the number of 32 bits.
  const std::size_t size = column_.type == PhysicalType::kInt32 ? 4 : 8;
  return built_.emplace_back(reinterpret_cast<const char*>(&number), size);
}

absl::StatusOr<std::string_view> ColumnReader::NextDeltaText() {
  LoadedPage& page = *page_;
  const std::int64_t prefix = page.prefixes.empty() ? 0 : page.prefixes[page.next_number];
  const std::int64_t length = page.numbers[page.next_number++];
  if (prefix < 0 || length < 0 || static_cast<std::size_t>(length) > page.values.size() ||
      static_cast<std::size_t>(prefix) > page.last.size()) {
    return Damaged("the text's length is damaged");
  }
  const std::string_view own = page.values.substr(0, static_cast<std::size_t>(length));
  page.values.remove_prefix(own.size());
  if (page.encoding == Encoding::kDeltaLengthByteArray) return own;
  page.last.resize(static_cast<std::size_t>(prefix));
  page.last += own;
  return built_.emplace_back(page.last);
}

}  // namespace engine::parquet
