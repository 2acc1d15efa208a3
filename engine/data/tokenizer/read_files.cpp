#include "engine/data/tokenizer/read_files.h"

#include <absl/strings/escaping.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>

#include "engine/base/cache_folder.h"
#include "engine/base/file.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/data/tokenizer/config_file.h"
#include "engine/data/tokenizer/read_json.h"

namespace engine::tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kLargeJson = std::uintmax_t{1}
                                      << 20;  // bytes from which a compiled copy is worth it

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// The first of these files that is in a folder, or "".
std::string FirstOf(const fs::path& folder, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (IsFile(folder / name)) return (folder / name).string();
  }
  return "";
}

absl::StatusOr<std::string> Beginning(const std::string& path) {
  ASSIGN_OR_RETURN(const int descriptor, OpenRegular(path, 0));
  std::string bytes(4096, '\0');
  const ssize_t count = ::read(descriptor, bytes.data(), bytes.size());
  const int error = errno;
  ::close(descriptor);
  if (count < 0) return SystemError("read", path, error);
  bytes.resize(static_cast<std::size_t>(count));
  return bytes;
}

bool IsRankLine(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  const std::size_t blank = line.find(' ');
  if (blank == std::string_view::npos || blank == 0 || blank + 1 == line.size()) return false;
  std::string bytes;
  const std::string_view rank = line.substr(blank + 1);
  return absl::Base64Unescape(absl::string_view(line.data(), blank), &bytes) &&
         std::all_of(rank.begin(), rank.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool IsVocabularyAlone(const fs::path& path) {
  return path.filename() == "vocab.json" || path.filename() == "encoder.json";
}

// A list of words has no mark of its own: vocab.txt, bert-base-uncased-vocab.txt.
bool IsBertVocabulary(const fs::path& path) { return path.filename().string().ends_with("vocab.txt"); }

absl::StatusOr<Description> ReadGpt2Beside(const std::string& vocab_file) {
  const fs::path folder = fs::path(vocab_file).parent_path();
  const std::string merges = FirstOf(folder, {"merges.txt", "vocab.bpe"});
  if (merges.empty()) {
    return NotFound("{}: error: is a vocabulary alone; its merges.txt (or vocab.bpe) is not beside it",
                    ShownPath(vocab_file));
  }
  return ReadGpt2Files(vocab_file, merges);
}

absl::StatusOr<Description> ReadOneFile(const std::string& path) {
  if (IsBertVocabulary(path)) return ReadBertVocabulary(path);
  ASSIGN_OR_RETURN(const std::string beginning, Beginning(path));
  const std::size_t first = beginning.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return InvalidArgument("{}: error: is empty", ShownPath(path));
  if (beginning[first] == '{') {
    if (IsVocabularyAlone(path)) return ReadGpt2Beside(path);
    std::error_code error;
    const bool is_large = fs::file_size(path, error) >= kLargeJson && !error;
    return ReadTokenizerJson(path, is_large ? CacheFolder() : "");
  }
  if (IsRankLine(beginning)) return ReadTiktoken(path);
  constexpr char kFirstPiece = 0x0A;  // field 1, which has a length
  if (beginning[0] == kFirstPiece) return ReadSentencePiece(path);
  return InvalidArgument(
      "{}: error: is no tokenizer.json, no SentencePiece model and no file of tiktoken's ranks",
      ShownPath(path));
}

absl::StatusOr<std::string> FileOfFolder(const std::string& folder) {
  std::string file = FirstOf(folder, {"tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json",
                                      "encoder.json", "vocab.txt"});
  if (!file.empty()) return file;
  std::vector<std::string> ranks;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".tiktoken" && IsFile(at->path())) ranks.push_back(at->path().string());
  }
  if (error) return NotFound("cannot read the folder {}: {}", ShownPath(folder), error.message());
  if (ranks.size() == 1) return ranks[0];
  if (ranks.size() > 1)
    return InvalidArgument("{}: error: has {} files *.tiktoken; name one of them", ShownPath(folder),
                           ranks.size());
  return NotFound(
      "{}: error: has no tokenizer: no tokenizer.json, tokenizer.model, spiece.model, vocab.json, "
      "encoder.json, vocab.txt or *.tiktoken",
      ShownPath(folder));
}

// A special token as the files beside a tokenizer name it.
struct Named {
  std::int32_t id = kNoToken;
  std::string from;       // "bos_token of tokenizer_config.json"
  std::string null_file;  // the file that says that there is none; empty: none says so
};

// `key`: "eos_token". Of the two files that may name it the first one that has the key counts.
absl::StatusOr<Named> NamedToken(const std::string& folder, const std::string& key,
                                 const Description& description) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string path = (fs::path(folder) / name).string();
    ASSIGN_OR_RETURN(const ConfigFile config, ConfigFile::Open(path));
    if (!config.root().contains(key)) continue;
    ASSIGN_OR_RETURN(const AddedToken token, config.Token(key, /*special=*/true));
    if (token.content.empty()) return Named{.id = kNoToken, .from = "", .null_file = path};
    return Named{.id = FindToken(description, token.content),
                 .from = fmt::format("{} of {}", key, name),
                 .null_file = ""};
  }
  return Named();
}

// The first special token that has one of these names. A vocabulary may have such a name as a word that stood in the
// texts it was made of, as Qwen's has "<s>": that is no special token.
std::int32_t FirstSpecial(const Description& description, std::span<const std::string_view> names,
                          std::string* from) {
  for (const std::string_view name : names) {
    for (const AddedToken& token : description.added_tokens) {
      if (!token.special || token.content != name) continue;
      *from = fmt::format("the name \"{}\"", name);
      return token.id;
    }
  }
  return kNoToken;
}

// eos_token is often the end of a turn in a chat; the end of a document has a name of its own then.
absl::Status FindEndOfDocument(const std::string& folder, Description* description) {
  if (description->end_of_document.has_value()) return absl::OkStatus();
  constexpr std::string_view kNames[] = {"<|endoftext|>", "<|end_of_text|>",
                                         "<\uFF5Cend\u2581of\u2581sentence\uFF5C>", "<eos>", "</s>"};
  std::string from;
  std::int32_t id = FirstSpecial(*description, kNames, &from);
  if (id == kNoToken) {
    ASSIGN_OR_RETURN(Named named, NamedToken(folder, "eos_token", *description));
    id = named.id;
    from = std::move(named.from);
    // Files that tell no special tokens at all, as old conversions, have the name among their words.
    for (const std::string_view name : kNames) {
      if (id != kNoToken || !named.null_file.empty()) break;
      id = FindToken(*description, name);
      from = fmt::format("the word \"{}\" of the vocabulary", name);
    }
  }
  if (id == kNoToken) return absl::OkStatus();
  description->end_of_document = id;
  description->end_of_document_from = std::move(from);
  return absl::OkStatus();
}

// What the template puts in front of a text is what the model was trained with.
void FindBeginningOfDocument(const std::string& folder, Description* description) {
  if (description->beginning_of_document.has_value()) return;
  constexpr std::string_view kNames[] = {"<|begin_of_text|>", "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>",
                                         "<bos>", "<s>"};
  std::string from = "the template";
  std::int32_t id = description->before.size() == 1 ? description->before.front() : kNoToken;
  if (id == kNoToken) {
    absl::StatusOr<Named> named = NamedToken(folder, "bos_token", *description);
    if (!named.ok()) {  // of those who need no such token nothing is asked
      description->beginning_of_document_from = Message(named.status());
      return;
    }
    if (!named->null_file.empty()) {
      description->beginning_of_document_from = fmt::format(
          "{}: error: bos_token is null, so the tokenizer has no token that begins a document; "
          "--beginning-of-document names one",
          ShownPath(named->null_file));
      return;
    }
    id = named->id;
    from = std::move(named->from);
  }
  if (id == kNoToken) id = FirstSpecial(*description, kNames, &from);
  if (id == kNoToken) return;
  description->beginning_of_document = id;
  description->beginning_of_document_from = std::move(from);
}

// A file with a mistake names no token here, and is no error: not everybody needs the token.
void FindEndOfTurn(const std::string& folder, Description* description) {
  const absl::StatusOr<Named> named = NamedToken(folder, "eos_token", *description);
  if (named.ok() && named->id != kNoToken) description->end_of_turn = named->id;
}

}  // namespace

absl::StatusOr<Description> ReadTokenizer(const std::string& path) {
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    ASSIGN_OR_RETURN(file, FileOfFolder(path));
  }
  ASSIGN_OR_RETURN(Description description, ReadOneFile(file));
  const std::string folder = fs::path(file).parent_path().string();
  FindBeginningOfDocument(folder, &description);
  RETURN_IF_ERROR(FindEndOfDocument(folder, &description));
  FindEndOfTurn(folder, &description);
  return description;
}

std::vector<std::string> TokenizerFiles(const std::string& path) {
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    absl::StatusOr<std::string> found = FileOfFolder(path);
    if (!found.ok()) return {};
    file = *std::move(found);
  }
  std::vector<std::string> files = {file};
  const fs::path folder = fs::path(file).parent_path();
  if (IsVocabularyAlone(file)) files.push_back(FirstOf(folder, {"merges.txt", "vocab.bpe"}));
  files.push_back(FirstOf(folder, {"special_tokens_map.json"}));
  if (IsBertVocabulary(file)) files.push_back(FirstOf(folder, {"added_tokens.json"}));
  files.push_back(FirstOf(folder, {"tokenizer_config.json"}));
  std::erase(files, "");
  return files;
}

}  // namespace engine::tokenizer
