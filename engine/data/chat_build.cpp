#include "engine/data/chat_build.h"

#include <algorithm>
#include <utility>

#include "engine/base/file_io.h"
#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/data/indexed_format.h"
#include "engine/data/records.h"

namespace engine::data {
namespace {

std::string_view NameOf(LossOn loss_on) { return loss_on == LossOn::kAll ? "all" : "assistant"; }

// Two conversations are duplicates if their rendered texts are the same and the same places of them are learned; this hash tells.
Hash128 HashOfChat(const ChatText& chat) {
  const std::string_view places(reinterpret_cast<const char*>(chat.learned.data()),
                                chat.learned.size() * sizeof chat.learned[0]);
  const Hash128 hashes[] = {HashOf(chat.text), HashOf(places)};
  return HashOf({reinterpret_cast<const char*>(hashes), sizeof hashes});
}

class ChatEncoder {
 public:
  ChatEncoder(const ChatBuildOptions& options, const ChatTemplate& chat, const Tokenizer& tokenizer,
              TokenType type, std::optional<std::int32_t> beginning)
      : options_(options), chat_(chat), tokenizer_(tokenizer), type_(type), beginning_(beginning) {}

  EncodedPart Encode(const InputPart& part) const {
    EncodedPart encoded;
    encoded.of_datasets.resize(2);
    // As long as they will be, since lists that grow step by step leave holes in the heap: a token of 16 bits for each byte, or one of
    // 32 bits for two.
    encoded.of_datasets[0].tokens.reserve(2 * static_cast<std::size_t>(part.text_bytes));
    encoded.of_datasets[1].tokens.reserve(static_cast<std::size_t>(part.text_bytes));
    encoded.status = part.visit_records([&](const jinja::Value& record) { return Add(record, &encoded); });
    encoded.tokens = static_cast<std::int64_t>(encoded.of_datasets[1].tokens.size());  // a byte each
    return encoded;
  }

 private:
  absl::Status Add(const jinja::Value& record, EncodedPart* encoded) const {
    ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(record, options_.keys));
    ASSIGN_OR_RETURN(const ChatText text, chat_.Render(conversation, options_.loss_on));
    ASSIGN_OR_RETURN(ChatTokens tokens,
                     TokenizeChat(text, tokenizer_, beginning_, options_.append_eod, options_.loss_on));
    if (tokens.ids.empty()) return InvalidArgument("the template makes no text of it");
    const std::vector<std::int32_t> mask(tokens.counts.begin(), tokens.counts.end());
    encoded->hashes.push_back(HashOfChat(text));
    RETURN_IF_ERROR(EncodeDocument(type_, {&tokens.ids, 1}, &encoded->of_datasets[0]));
    return EncodeDocument(TokenType::kU8, {&mask, 1}, &encoded->of_datasets[1]);
  }

  const ChatBuildOptions& options_;
  const ChatTemplate& chat_;
  const Tokenizer& tokenizer_;
  const TokenType type_;
  const std::optional<std::int32_t> beginning_;
};

// Counts of a mask, which is read piece by piece: it may be larger than the memory.
absl::Status CountLearned(const MadeDataset& mask, ChatBuildResult* result) {
  constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
  constexpr std::int64_t kItem = sizeof(std::int32_t);
  ASSIGN_OR_RETURN(const File bin, OpenForReading(BinPath(mask.prefix)));
  ASSIGN_OR_RETURN(const File idx, OpenForReading(IdxPath(mask.prefix)));
  std::vector<std::int32_t> lengths;
  std::string counts;
  std::int64_t at = 0;  // in `bin`
  for (std::int64_t done = 0; done < mask.sequences; done += static_cast<std::int64_t>(lengths.size())) {
    lengths.resize(static_cast<std::size_t>(std::min(mask.sequences - done, kBlockBytes / kItem)));
    const auto bytes = static_cast<std::int64_t>(lengths.size()) * kItem;
    RETURN_IF_ERROR(
        idx.ReadAt(lengths.data(), bytes, static_cast<std::int64_t>(kHeaderBytes) + done * kItem));
    for (const std::int32_t length : lengths) {
      counts.resize(static_cast<std::size_t>(length));
      RETURN_IF_ERROR(bin.ReadAt(counts.data(), length, at));
      at += length;
      const std::int64_t learned = std::count(counts.begin(), counts.end(), 1);
      result->learned += learned;
      result->nothing_to_learn += learned == 0 ? 1 : 0;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatTokens> TokenizeChat(const ChatText& text, const Tokenizer& tokenizer,
                                        std::optional<std::int32_t> beginning, bool append_eod,
                                        LossOn loss_on) {
  ChatTokens tokens;
  RETURN_IF_ERROR(tokenizer.EncodeMarked(text.text, text.learned, &tokens.ids, &tokens.counts));
  const std::uint8_t counts = loss_on == LossOn::kAll ? 1 : 0;
  if (beginning.has_value() && !tokens.ids.empty() && tokens.ids.front() != *beginning) {
    tokens.ids.insert(tokens.ids.begin(), *beginning);
    tokens.counts.insert(tokens.counts.begin(), counts);
  }
  const bool has_end = !tokens.ids.empty() && tokens.ids.back() == tokenizer.end_of_document();
  if (append_eod && !has_end && !tokens.ids.empty()) {
    tokens.ids.push_back(tokenizer.end_of_document());
    tokens.counts.push_back(counts);
  }
  return tokens;
}

absl::StatusOr<ChatBuildResult> BuildConversations(const ChatBuildOptions& options, const ChatTemplate& chat,
                                                   const Tokenizer& tokenizer) {
  const TokenType type = ChooseTokenType(tokenizer.vocab_size());
  ASSIGN_OR_RETURN(const std::optional<std::int32_t> beginning, BeginningOf(options, tokenizer));
  const ChatEncoder encoder(options, chat, tokenizer, type, beginning);
  const std::string mask = LossMaskPrefix(options.output_prefix);
  ChatBuildResult result;
  const auto complete = [&](const BuildResult& made, nlohmann::ordered_json* manifest) -> absl::Status {
    RETURN_IF_ERROR(CountLearned(made.datasets[1], &result));
    (*manifest)["chat_template"] = chat.source();
    (*manifest)["loss_on"] = NameOf(options.loss_on);
    nlohmann::ordered_json tokens = (*manifest)["datasets"][0];
    tokens["loss_mask"] = mask;
    tokens["learned_tokens"] = result.learned;
    (*manifest)["datasets"] = {tokens};
    return absl::OkStatus();
  };
  const BuildKind kind = {.input = {.format = InputFormat::kRecords,
                                    .keys = RecordMembers(options.keys),
                                    .null_members = ContentPaths(options.keys),
                                    .document_separator = std::nullopt},
                          .datasets = {{options.output_prefix, type}, {mask, TokenType::kU8}},
                          .encode = [&](const InputPart& part) { return encoder.Encode(part); },
                          .what = {{"format", "chat"},
                                   {"chat-key", SetKeys(options.keys)},
                                   {"chat-template", chat.identity()},
                                   {"chat-time", chat.time()},
                                   {"loss-on", NameOf(options.loss_on)}},
                          .complete_manifest = complete};
  ASSIGN_OR_RETURN(static_cast<BuildResult&>(result), BuildDatasets(options, kind));
  return result;
}

}  // namespace engine::data
