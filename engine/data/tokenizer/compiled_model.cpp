#include "engine/data/tokenizer/compiled_model.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/file_io.h"
#include "engine/data/tokenizer/file_view.h"

namespace engine::tokenizer {
namespace {

// The first bytes of the file; the last two digits are the version of all that is behind them.
constexpr std::array<char, 8> kMagic = {'E', 'N', 'G', 'T', 'O', 'K', '0', '3'};

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
  if (bytes.size() % sizeof(Merge) != 0) return false;
  const std::span list(reinterpret_cast<const Merge*>(bytes.data()), bytes.size() / sizeof(Merge));
  std::uint32_t largest = 0;  // of all ids; one below 0 is a large number
  for (const Merge& merge : list) {
    for (const std::int32_t id : {merge.left, merge.right, merge.product})
      largest = std::max(largest, static_cast<std::uint32_t>(id));
  }
  if (!list.empty() && largest >= static_cast<std::uint32_t>(vocabulary)) return false;
  merges->Fill(list);
  return true;
}

// An added token as it is kept, with its content behind it.
struct AddedTokenHead {
  std::int32_t id;
  std::uint32_t flags;  // bits: single_word, lstrip, rstrip, normalized, special
  std::uint64_t bytes;
};

std::string BytesOf(const std::vector<AddedToken>& tokens) {
  std::string bytes;
  for (const AddedToken& token : tokens) {
    std::uint32_t flags = 0;
    for (const bool flag : {token.special, token.normalized, token.rstrip, token.lstrip, token.single_word})
      flags = flags << 1 | static_cast<std::uint32_t>(flag);
    const AddedTokenHead head = {token.id, flags, token.content.size()};
    bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
    bytes += token.content;
  }
  return bytes;
}

bool TakeAddedTokens(std::string_view bytes, std::vector<AddedToken>* tokens) {
  while (!bytes.empty()) {
    AddedTokenHead head;
    if (bytes.size() < sizeof head) return false;
    std::memcpy(&head, bytes.data(), sizeof head);
    bytes.remove_prefix(sizeof head);
    if (head.id < 0 || head.id > kMostTokenId || head.bytes > bytes.size()) return false;
    tokens->push_back({.id = head.id,
                       .content = std::string(bytes.substr(0, head.bytes)),
                       .single_word = (head.flags & 1) != 0,
                       .lstrip = (head.flags & 2) != 0,
                       .rstrip = (head.flags & 4) != 0,
                       .normalized = (head.flags & 8) != 0,
                       .special = (head.flags & 16) != 0});
    bytes.remove_prefix(head.bytes);
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
  std::string_view added_tokens;
  if (!Take(&body, &merges) || !Take(&body, &rest) || !Take(&body, &tables.tokens) ||
      !Take(&body, &tables.spans) || !Take(&body, &tables.slots) || !Take(&body, &added_tokens) ||
      !body.empty() || !model.vocabulary.SetTables(tables) ||
      !TakeMerges(merges, model.vocabulary.size(), &model.merges) ||
      !TakeAddedTokens(added_tokens, &model.added_tokens))
    return std::nullopt;
  model.rest = rest;
  return model;
}

void WriteCompiled(const std::string& file, const Contents& contents, std::string_view rest,
                   const BpeModel& model, const std::vector<AddedToken>& added_tokens) {
  const Vocabulary::Tables tables = model.vocabulary.GetTables();
  std::vector<Merge> merges;  // in an order in which a table is filled fast
  merges.reserve(model.merges.size());
  model.merges.ForEach([&merges](const Merge& merge) { merges.push_back(merge); });
  const std::string tokens = BytesOf(added_tokens);
  std::string text(sizeof(Header), '\0');
  // Merges come first, so that they lie at a multiple of the size of their numbers.
  for (const std::string_view bytes :
       {std::string_view(reinterpret_cast<const char*>(merges.data()), merges.size() * sizeof(Merge)), rest,
        tables.tokens, tables.spans, tables.slots, std::string_view(tokens)})
    Append(&text, bytes);
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
