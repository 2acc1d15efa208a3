#include "engine/data/tokenizer/compiled_model.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "engine/base/file_io.h"
#include "engine/data/tokenizer/file_view.h"

namespace engine::tokenizer {
namespace {

// The first bytes of the file; the last two digits are the version of all that is behind them.
constexpr std::array<char, 8> kMagic = {'E', 'N', 'G', 'T', 'O', 'K', '0', '2'};

struct Header {
  std::array<char, 8> magic;
  XXH128_hash_t contents;  // of the tokenizer.json
  std::uint64_t contents_bytes;
  std::uint64_t body_bytes;  // of all behind the header
  std::uint64_t body_hash;
};

void Append(std::string* to, std::string_view bytes) {
  const std::uint64_t size = bytes.size();
  to->append(reinterpret_cast<const char*>(&size), sizeof size);
  to->append(bytes);
}

// What Append put at the beginning of `from`; false where it is cut off.
bool Take(std::string_view* from, std::string_view* bytes) {
  std::uint64_t size = 0;
  if (from->size() < sizeof size) return false;
  std::memcpy(&size, from->data(), sizeof size);
  from->remove_prefix(sizeof size);
  if (size > from->size()) return false;
  *bytes = from->substr(0, size);
  from->remove_prefix(size);
  return true;
}

// False where there is none of a vocabulary of this size.
bool TakeMerges(std::string_view bytes, std::int32_t vocabulary, MergeTable* merges) {
  const auto is_token = [vocabulary](std::int32_t id) { return id >= 0 && id < vocabulary; };
  merges->Reserve(bytes.size() / sizeof(Merge));
  for (; !bytes.empty(); bytes.remove_prefix(sizeof(Merge))) {
    Merge merge;
    std::memcpy(&merge, bytes.data(), sizeof merge);
    if (!is_token(merge.left) || !is_token(merge.right) || !is_token(merge.product) || !merges->Put(merge))
      return false;
  }
  return true;
}

}  // namespace

Contents::Contents(std::string_view text) : bytes(text.size()) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  low = hash.low64;
  high = hash.high64;
}

std::string CompiledFile(const std::string& folder, const Contents& contents) {
  return (std::filesystem::path(folder) / "tokenizers" /
          fmt::format("{:016x}{:016x}.bin", contents.high, contents.low))
      .string();
}

std::optional<CompiledModel> ReadCompiled(const std::string& file, const Contents& contents) {
  const absl::StatusOr<FileView> view = FileView::Open(file);
  if (!view.ok() || view->bytes().size() < sizeof(Header)) return std::nullopt;
  std::string_view body = view->bytes();
  Header header;
  std::memcpy(&header, body.data(), sizeof header);
  body.remove_prefix(sizeof header);
  if (header.magic != kMagic || header.contents.low64 != contents.low ||
      header.contents.high64 != contents.high || header.contents_bytes != contents.bytes ||
      header.body_bytes != body.size() || header.body_hash != XXH3_64bits(body.data(), body.size()))
    return std::nullopt;
  CompiledModel model;
  Vocabulary::Tables tables;
  std::string_view rest;
  std::string_view merges;
  if (!Take(&body, &rest) || !Take(&body, &tables.tokens) || !Take(&body, &tables.spans) ||
      !Take(&body, &tables.slots) || !Take(&body, &merges) || !body.empty() ||
      merges.size() % sizeof(Merge) != 0 || !model.vocabulary.SetTables(tables))
    return std::nullopt;
  model.rest = rest;
  return TakeMerges(merges, model.vocabulary.size(), &model.merges) ? std::optional(std::move(model))
                                                                    : std::nullopt;
}

void WriteCompiled(const std::string& file, const Contents& contents, std::string_view rest,
                   const BpeModel& model) {
  const Vocabulary::Tables tables = model.vocabulary.GetTables();
  std::string text(sizeof(Header), '\0');
  text.reserve(text.size() + rest.size() + tables.tokens.size() + tables.spans.size() + tables.slots.size() +
               model.merges.size() * sizeof(Merge) + 5 * sizeof(std::uint64_t));
  for (const std::string_view bytes : {rest, tables.tokens, tables.spans, tables.slots}) Append(&text, bytes);
  std::vector<Merge> merges;  // in the order of their places, which are then filled one behind the other
  merges.reserve(model.merges.size());
  model.merges.ForEach([&merges](const Merge& merge) { merges.push_back(merge); });
  Append(&text, {reinterpret_cast<const char*>(merges.data()), merges.size() * sizeof(Merge)});
  const std::string_view body = std::string_view(text).substr(sizeof(Header));
  Header header = {};
  header.magic = kMagic;
  header.contents = {.low64 = contents.low, .high64 = contents.high};
  header.contents_bytes = contents.bytes;
  header.body_bytes = body.size();
  header.body_hash = XXH3_64bits(body.data(), body.size());
  std::memcpy(text.data(), &header, sizeof header);
  // A name of its own, so that processes which do this at once do not write into each other's file.
  const std::string temporary = fmt::format("{}.{}", file, getpid());
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), error);
  if (!error && WriteWholeFile(temporary, text).ok() && Rename(temporary, file).ok()) return;
  std::filesystem::remove(temporary, error);
}

}  // namespace engine::tokenizer
