#include <array>

#include "engine/base/file.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/data/tokenizer/byte_characters.h"
#include "engine/data/tokenizer/json_place.h"
#include "engine/data/tokenizer/read_files.h"
#include "engine/data/tokenizer/read_model.h"

namespace engine::tokenizer {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr std::int64_t kMostMergesBytes = std::int64_t{1} << 30;

absl::Status ReadGpt2Vocabulary(const std::string& path, Vocabulary* vocabulary) {
  ASSIGN_OR_RETURN(const std::unique_ptr<JsonFile> file, JsonFile::Open(path));
  const JsonPlace root = file->Root();
  simdjson::dom::object object;
  if (!root.is_object() || root.value().get(object) != simdjson::SUCCESS) {
    root.Fail("must be an object from token to id");
    return file->status();
  }
  std::int64_t count = 0;
  for ([[maybe_unused]] const simdjson::dom::key_value_pair field : object) ++count;
  for (const simdjson::dom::key_value_pair field : object) {
    std::int64_t id = 0;
    if (field.value.get(id) != simdjson::SUCCESS || id < 0 || id >= count || id > kMostTokenId) {
      root.Fail("the id of \"{}\" is {}; {} tokens have ids 0 to {}", Shown(field.key),
                Shown(simdjson::minify(field.value), 40), count, count - 1);
      return file->status();
    }
    if (vocabulary->Add(field.key, static_cast<std::int32_t>(id))) continue;
    root.Fail("the id {} of \"{}\" is another token's too, or the token stands twice", id, Shown(field.key));
    return file->status();
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    AppendByteCharacter(static_cast<unsigned char>(byte), &token);
    if (vocabulary->Find(token) != kNoToken) continue;
    root.Fail("has no token \"{}\" for byte {}; all 256 bytes need one", token, byte);
    return file->status();
  }
  if (vocabulary->Find(kEndOfText) == kNoToken)
    root.Fail("has no token \"{}\", which ends a document", kEndOfText);
  return file->status();
}

absl::Status AddMergeLine(std::string_view line, MergeBuilder* builder) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string_view::npos || blank == 0 || blank + 1 == line.size() ||
      line.find(' ', blank + 1) != std::string_view::npos) {
    return InvalidArgument("\"{}\" must be two tokens with one blank between them", Shown(line));
  }
  return builder->Add(line.substr(0, blank), line.substr(blank + 1));
}

}  // namespace

absl::StatusOr<Description> ReadGpt2Files(const std::string& vocab_file, const std::string& merges_file) {
  Description description;
  BpeModel model;
  RETURN_IF_ERROR(ReadGpt2Vocabulary(vocab_file, &model.vocabulary));
  model.in_rounds = true;
  ASSIGN_OR_RETURN(const std::string merges, ReadRegular(merges_file, kMostMergesBytes));
  MergeBuilder builder(&model);
  builder.RefuseRepeated();
  std::string_view text = merges;
  for (int line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const bool is_version = line_number == 1 && line.starts_with("#version");
    if (is_version || (line.empty() && text.empty())) continue;
    if (const absl::Status status = AddMergeLine(line, &builder); !status.ok()) {
      return InvalidArgument("{}:{}: error: {}", ShownPath(merges_file), line_number, Message(status));
    }
  }
  const std::int32_t end = model.vocabulary.Find(kEndOfText);
  description.source = fmt::format("{} and {} (GPT-2)", ShownPath(vocab_file), ShownPath(merges_file));
  description.added_tokens.push_back({.id = end, .content = std::string(kEndOfText), .special = true});
  description.pre_tokenizers = {SplitBytes{.add_prefix_space = false, .use_regex = true}};
  description.beginning_of_document = end;  // GPT-2 has one token for both
  description.beginning_of_document_from = fmt::format("the name \"{}\"", kEndOfText);
  description.end_of_document = end;
  description.end_of_document_from = fmt::format("the name \"{}\"", kEndOfText);
  description.has_decoder = true;
  description.decoders = {JoinBytes{}};
  description.model = std::move(model);
  return description;
}

}  // namespace engine::tokenizer
