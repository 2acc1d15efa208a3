#include "engine/data/gpt2_bpe.h"

#include <functional>
#include <limits>
#include <queue>

#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/data/mapped_file.h"
#include "engine/data/tokenizer/utf8.h"

namespace engine::data {

using namespace ::engine::tokenizer;  // NOLINT
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

// The character that shows a byte: itself where it is printable Latin-1, else U+0100 and on in byte order.
std::array<char32_t, 256> MakeByteCharacters() {
  std::array<char32_t, 256> characters = {};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    characters[byte] = printable ? byte : next++;
  }
  return characters;
}

// Bytes that a token string shows; a string with other characters in it stands for itself.
std::string BytesOfToken(std::string_view token) {
  static const auto kByteOf = [] {
    absl::flat_hash_map<char32_t, char> map;
    const std::array<char32_t, 256> characters = MakeByteCharacters();
    for (std::size_t byte = 0; byte < 256; ++byte) map[characters[byte]] = static_cast<char>(byte);
    return map;
  }();
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    char32_t character = 0;
    const std::size_t length = DecodeUtf8(token.substr(at), &character);
    const auto found = kByteOf.find(character);
    if (length == 0 || found == kByteOf.end()) return std::string(token);
    bytes += found->second;
    at += length;
  }
  return bytes;
}

std::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

absl::StatusOr<std::unordered_map<std::string, std::int32_t>> ReadVocabulary(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::string_view text = TextOf(file);
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, path));
  if (!json.is_object()) {
    return InvalidArgument("{}: is {}, and must be an object from token to id", path, TypeOf(json));
  }
  std::unordered_map<std::string, std::int32_t> vocabulary;
  std::vector<bool> used(json.size(), false);
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_integer() || id < 0 || id >= json.size()) {
      return InvalidArgument("{}: the id of \"{}\" is {}; {} tokens have ids 0 to {}", path, Shown(token),
                             Shown(id.dump()), json.size(), json.size() - 1);
    }
    const auto number = id.get<std::int32_t>();
    if (used[static_cast<std::size_t>(number)]) {
      return InvalidArgument("{}: the id {} of \"{}\" is another token's too", path, number, Shown(token));
    }
    used[static_cast<std::size_t>(number)] = true;
    vocabulary[token] = number;
  }
  return vocabulary;
}

}  // namespace

struct Gpt2Bpe::Workspace {
  struct Symbol {
    std::int32_t id;
    std::int32_t previous;
    std::int32_t next;
    std::int32_t rank;  // of merging with the next symbol; kNoMerge if they do not
  };
  static constexpr std::int32_t kNoMerge = -1;
  using Candidate = std::pair<std::int32_t, std::int32_t>;  // rank, position of the left symbol

  std::vector<Symbol> symbols;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  std::vector<std::int32_t> round;  // positions
};

absl::StatusOr<std::unique_ptr<Gpt2Bpe>> Gpt2Bpe::Load(const std::string& vocab_file,
                                                       const std::string& merges_file) {
  ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::Create());
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(vocab_file));
  std::unique_ptr<Gpt2Bpe> bpe(new Gpt2Bpe(std::move(pretokenizer)));
  RETURN_IF_ERROR(bpe->UseVocabulary(vocab_file, vocabulary));
  RETURN_IF_ERROR(bpe->LoadMerges(merges_file, vocabulary));
  return bpe;
}

absl::Status Gpt2Bpe::UseVocabulary(const std::string& path, const Vocabulary& vocabulary) {
  bytes_of_id_.resize(vocabulary.size());
  for (const auto& [token, id] : vocabulary) bytes_of_id_[static_cast<std::size_t>(id)] = BytesOfToken(token);
  const std::array<char32_t, 256> characters = MakeByteCharacters();
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string token;
    AppendUtf8(characters[byte], &token);
    const auto found = vocabulary.find(token);
    if (found == vocabulary.end()) {
      return InvalidArgument("{}: has no token \"{}\" for byte {}; all 256 bytes need one", path, token,
                             byte);
    }
    id_of_byte_[byte] = found->second;
  }
  const auto end = vocabulary.find(std::string(kEndOfText));
  if (end == vocabulary.end()) {
    return InvalidArgument("{}: has no token \"{}\", which ends a document", path, kEndOfText);
  }
  end_of_document_ = end->second;
  bytes_of_id_[static_cast<std::size_t>(end_of_document_)].clear();
  return absl::OkStatus();
}

absl::Status Gpt2Bpe::LoadMerges(const std::string& path, const Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  std::string_view text = TextOf(file);
  for (int line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const bool is_version = line_number == 1 && line.starts_with("#version");
    if (is_version || (line.empty() && text.empty())) continue;
    if (absl::Status status = AddMerge(line, vocabulary); !status.ok()) {
      return InvalidArgument("{}:{}: error: {}", path, line_number, Message(status));
    }
  }
  return absl::OkStatus();
}

absl::Status Gpt2Bpe::AddMerge(std::string_view line, const Vocabulary& vocabulary) {
  const std::size_t blank = line.find(' ');
  const bool has_two = blank != std::string_view::npos && blank > 0 && blank + 1 < line.size();
  if (!has_two || line.find(' ', blank + 1) != std::string_view::npos) {
    return InvalidArgument("\"{}\" is not a merge, which is two tokens with one blank between them",
                           Shown(line));
  }
  std::array<std::int32_t, 3> ids = {};  // left, right, joined
  const std::array<std::string, 3> tokens = {
      std::string(line.substr(0, blank)), std::string(line.substr(blank + 1)),
      std::string(line.substr(0, blank)) + std::string(line.substr(blank + 1))};
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto found = vocabulary.find(tokens[i]);
    if (found == vocabulary.end()) {
      return InvalidArgument("\"{}\" {} is not in the vocabulary; are the two files of one tokenizer?",
                             Shown(tokens[i]), i == 2 ? "(the result of the merge)" : "(of the merge)");
    }
    ids[i] = found->second;
  }
  const std::uint64_t key = (static_cast<std::uint64_t>(ids[0]) << 32) | static_cast<std::uint64_t>(ids[1]);
  const Merge merge = {static_cast<std::int32_t>(merges_.size()), ids[2]};
  if (!merges_.emplace(key, merge).second) {
    return InvalidArgument("the merge \"{}\" appears a second time", Shown(line));
  }
  return absl::OkStatus();
}

absl::Status Gpt2Bpe::EncodeTo(std::string_view text, std::vector<std::int32_t>* ids) const {
  std::vector<std::string_view> pieces;
  RETURN_IF_ERROR(pretokenizer_.Split(text, &pieces));
  Workspace work;
  for (std::string_view piece : pieces) {
    if (piece.size() > std::numeric_limits<std::int32_t>::max()) {
      return InvalidArgument("a word of {} bytes is too long", piece.size());
    }
    EncodePiece(piece, &work, ids);
  }
  return absl::OkStatus();
}

const Gpt2Bpe::Merge* Gpt2Bpe::FindMerge(std::int32_t left, std::int32_t right) const {
  const auto found =
      merges_.find((static_cast<std::uint64_t>(left) << 32) | static_cast<std::uint64_t>(right));
  return found == merges_.end() ? nullptr : &found->second;
}

// Rounds: each merges all occurrences of the strongest pair, left to right. Merging in (rank, position) order
// without rounds would differ where a merge makes a pair that is stronger than itself. O(n log n) in the
// piece's bytes.
void Gpt2Bpe::EncodePiece(std::string_view piece, Workspace* work, std::vector<std::int32_t>* ids) const {
  std::vector<Workspace::Symbol>& symbols = work->symbols;
  const auto consider = [&](std::int32_t at) {  // the pair that starts at symbol `at`
    Workspace::Symbol& symbol = symbols[static_cast<std::size_t>(at)];
    const auto next = static_cast<std::size_t>(symbol.next);
    const Merge* merge = next < symbols.size() ? FindMerge(symbol.id, symbols[next].id) : nullptr;
    symbol.rank = merge != nullptr ? merge->rank : Workspace::kNoMerge;
    if (merge != nullptr) work->candidates.emplace(merge->rank, at);
  };
  symbols.clear();
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const auto at = static_cast<std::int32_t>(i);
    symbols.push_back(
        {id_of_byte_[static_cast<unsigned char>(piece[i])], at - 1, at + 1, Workspace::kNoMerge});
  }
  for (std::size_t i = 0; i < piece.size(); ++i) consider(static_cast<std::int32_t>(i));
  while (!work->candidates.empty()) {
    const std::int32_t rank = work->candidates.top().first;
    work->round.clear();
    for (; !work->candidates.empty() && work->candidates.top().first == rank; work->candidates.pop()) {
      work->round.push_back(work->candidates.top().second);
    }
    for (const std::int32_t at : work->round) {
      Workspace::Symbol& left = symbols[static_cast<std::size_t>(at)];
      if (left.rank != rank) continue;  // an earlier merge took one of the two
      Workspace::Symbol& right = symbols[static_cast<std::size_t>(left.next)];
      left.id = FindMerge(left.id, right.id)->id;
      left.next = right.next;
      right.rank = Workspace::kNoMerge;
      if (static_cast<std::size_t>(left.next) < symbols.size()) symbols[left.next].previous = at;
      consider(at);
      if (left.previous >= 0) consider(left.previous);
    }
  }
  for (std::size_t at = 0; at < symbols.size(); at = static_cast<std::size_t>(symbols[at].next)) {
    ids->push_back(symbols[at].id);
  }
}

std::string Gpt2Bpe::Decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (std::int32_t id : ids) {
    if (id >= 0 && id < vocab_size()) {
      text += bytes_of_id_[static_cast<std::size_t>(id)];
    } else {
      text += kReplacementCharacter;
    }
  }
  return text;
}

}  // namespace engine::data
