#include "engine/data/chat_build.h"

#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/base/write_file.h"
#include "engine/data/file_stream.h"
#include "engine/data/indexed_format.h"
#include "engine/data/jinja/json.h"
#include "engine/data/ordered_workers.h"
#include "engine/data/parquet/table.h"
#include "engine/data/text_parts.h"

namespace engine::data {
namespace {

struct ChatPart {
  std::size_t input = 0;  // of ChatBuildResult::inputs
  std::string path;
  TextPart text;
};
struct EncodedChats {
  std::size_t input = 0;
  absl::Status status;
  EncodedDocuments tokens;
  EncodedDocuments mask;
  std::int64_t learned = 0;
  std::int64_t nothing_to_learn = 0;
};

// A line of JSON as a value. InvalidArgument is located, "file:line:column: error: …".
absl::StatusOr<jinja::Value> ReadLine(std::string_view line, const std::string& path, std::int64_t number,
                                      simdjson::dom::parser* parser) {
  simdjson::dom::element element;
  simdjson::error_code error = parser->allocate(std::max<std::size_t>(line.size(), 32), kMostJsonDepth);
  if (error == simdjson::SUCCESS) error = parser->parse(line.data(), line.size()).get(element);
  if (error == simdjson::SUCCESS) {
    absl::StatusOr<jinja::Value> value = jinja::FromJson(element);
    if (value.ok()) return value;
    return InvalidArgument("{}:{}: error: {}", path, number, Message(value.status()));
  }
  RETURN_IF_ERROR(ParseJson(line, path, number).status());  // says more
  return InvalidArgument("{}:{}: error: {}", path, number, simdjson::error_message(error));
}

// The message of a status that may be located, as a part of one that is.
std::string Inner(const absl::Status& status) {
  std::string message = Message(status);
  constexpr std::string_view kError = ": error: ";
  if (const std::size_t at = message.find(kError); at != std::string::npos)
    message.replace(at, kError.size(), ": ");
  return message;
}

class ChatEncoder {
 public:
  ChatEncoder(const ChatBuildOptions& options, const ChatTemplate& chat, const Tokenizer& tokenizer,
              TokenType type)
      : options_(options), chat_(chat), tokenizer_(tokenizer), type_(type) {}

  EncodedChats Encode(const ChatPart& part) const {
    EncodedChats encoded{.input = part.input, .status = {}, .tokens = {}, .mask = {}};
    simdjson::dom::parser parser;
    std::string_view rest = part.text.text;
    for (std::int64_t number = part.text.first_line; !rest.empty() && encoded.status.ok(); ++number) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const absl::StatusOr<jinja::Value> record = ReadLine(line, part.path, number, &parser);
      encoded.status = record.status();
      if (!record.ok()) break;
      if (const absl::Status status = Add(*record, &encoded); !status.ok())
        encoded.status = InvalidArgument("{}:{}: error: {}", part.path, number, Inner(status));
    }
    return encoded;
  }

 private:
  absl::Status Add(const jinja::Value& record, EncodedChats* encoded) const {
    ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(record, options_.keys));
    ASSIGN_OR_RETURN(const ChatText text, chat_.Render(conversation, options_.loss_on));
    ASSIGN_OR_RETURN(ChatTokens tokens,
                     TokenizeChat(text, tokenizer_, options_.append_eod, options_.loss_on));
    if (tokens.ids.empty()) return InvalidArgument("the template makes no text of it");
    const std::int64_t learned = std::count(tokens.counts.begin(), tokens.counts.end(), 1);
    encoded->learned += learned;
    encoded->nothing_to_learn += learned == 0 ? 1 : 0;
    const std::vector<std::int32_t> mask(tokens.counts.begin(), tokens.counts.end());
    RETURN_IF_ERROR(EncodeDocument(type_, {&tokens.ids, 1}, &encoded->tokens));
    return EncodeDocument(TokenType::kU8, {&mask, 1}, &encoded->mask);
  }

  const ChatBuildOptions& options_;
  const ChatTemplate& chat_;
  const Tokenizer& tokenizer_;
  const TokenType type_;
};

absl::Status WriteManifest(const ChatBuildOptions& options, const ChatTemplate& chat,
                           const ChatBuildResult& result) {
  nlohmann::ordered_json inputs = nlohmann::ordered_json::array();
  for (const ReadInput& input : result.inputs)
    inputs.push_back({{"path", input.path}, {"content", input.fingerprint}, {"documents", input.documents}});
  nlohmann::ordered_json tokenizer = {{"kind", options.tokenizer.kind}};
  if (!options.tokenizer.path.empty()) tokenizer["path"] = options.tokenizer.path;
  const MadeDataset& made = result.made;
  const nlohmann::ordered_json manifest = {{"format", 1},
                                           {"tokenizer", tokenizer},
                                           {"chat_template", chat.source()},
                                           {"loss_on", options.loss_on == LossOn::kAll ? "all" : "assistant"},
                                           {"token_type", Name(result.type)},
                                           {"append_eod", options.append_eod},
                                           {"datasets",
                                            {{{"prefix", made.prefix},
                                              {"loss_mask", LossMaskPrefix(made.prefix)},
                                              {"documents", made.documents},
                                              {"sequences", made.sequences},
                                              {"tokens", made.tokens},
                                              {"learned_tokens", result.learned}}}},
                                           {"inputs", inputs}};
  // Names of files may be no UTF-8.
  return WriteFile(ManifestPath(options.output_prefix),
                   manifest.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace

absl::StatusOr<ChatTokens> TokenizeChat(const ChatText& text, const Tokenizer& tokenizer, bool append_eod,
                                        LossOn loss_on) {
  ChatTokens tokens;
  RETURN_IF_ERROR(tokenizer.EncodeMarked(text.text, text.learned, &tokens.ids, &tokens.counts));
  const bool has_end = !tokens.ids.empty() && tokens.ids.back() == tokenizer.end_of_document();
  if (append_eod && !has_end && !tokens.ids.empty()) {
    tokens.ids.push_back(tokenizer.end_of_document());
    tokens.counts.push_back(loss_on == LossOn::kAll ? 1 : 0);
  }
  return tokens;
}

absl::StatusOr<ChatBuildResult> BuildConversations(const ChatBuildOptions& options, const ChatTemplate& chat,
                                                   const Tokenizer& tokenizer) {
  ChatBuildResult result;
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ListInputs(options.inputs, &result.passed_over));
  result.type = ChooseTokenType(tokenizer.vocab_size());
  result.made.prefix = options.output_prefix;
  ASSIGN_OR_RETURN(const std::unique_ptr<IndexedDatasetWriter> tokens,
                   IndexedDatasetWriter::Create(options.output_prefix, result.type));
  ASSIGN_OR_RETURN(const std::unique_ptr<IndexedDatasetWriter> mask,
                   IndexedDatasetWriter::Create(LossMaskPrefix(options.output_prefix), TokenType::kU8));
  const ChatEncoder encoder(options, chat, tokenizer, result.type);
  const std::size_t most_waiting = 2 * static_cast<std::size_t>(options.workers) + 2;
  OrderedWorkers<ChatPart, EncodedChats> workers(options.workers,
                                                 [&](const ChatPart& part) { return encoder.Encode(part); });
  const auto write = [&](const EncodedChats& part) {
    RETURN_IF_ERROR(part.status);
    result.inputs[part.input].documents += static_cast<std::int64_t>(part.tokens.sequences.size());
    result.learned += part.learned;
    result.nothing_to_learn += part.nothing_to_learn;
    RETURN_IF_ERROR(tokens->Add(part.tokens));
    return mask->Add(part.mask);
  };
  for (const std::string& path : files) {
    ASSIGN_OR_RETURN(const FileStamp stamp, StampOf(path));
    ASSIGN_OR_RETURN(TextParts parts, TextParts::Open(path));
    result.inputs.push_back({.path = path, .bytes = stamp.bytes, .fingerprint = ""});
    while (true) {
      absl::StatusOr<TextPart> part = parts.Next(options.part_bytes, BehindLastLine);
      if (part.ok() && part->text.empty()) break;
      if (part.ok() && part->first_line == 1 && parquet::IsParquet(part->text))
        part =
            InvalidArgument("{}: error: is a Parquet file; conversations are read from lines of JSON", path);
      // The first mistake of the text is told, whoever finds it.
      while (workers.size() > 0 && (!part.ok() || workers.size() >= most_waiting))
        RETURN_IF_ERROR(write(workers.Pop()));
      RETURN_IF_ERROR(part.status());
      workers.Push({result.inputs.size() - 1, path, *std::move(part)});
    }
    result.inputs.back().fingerprint = parts.FileFingerprint();
  }
  while (workers.size() > 0) RETURN_IF_ERROR(write(workers.Pop()));
  if (tokens->documents() == 0)
    return InvalidArgument("no conversations in {} files, the first of which is {}", files.size(),
                           files.empty() ? "missing" : files.front());
  // The mask comes first, since a data set without it would be learned whole, and never beside an older data set.
  std::error_code error;
  std::filesystem::remove(options.output_prefix + ".idx", error);
  if (error) return Unavailable("cannot replace {}.idx: {}", options.output_prefix, error.message());
  RETURN_IF_ERROR(mask->Finish());
  RETURN_IF_ERROR(tokens->Finish());
  result.made.documents = tokens->documents();
  result.made.sequences = tokens->sequences();
  result.made.tokens = tokens->tokens();
  RETURN_IF_ERROR(WriteManifest(options, chat, result));
  return result;
}

}  // namespace engine::data
