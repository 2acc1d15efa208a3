// Conversations to a tokenised data set with a mask of the loss.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/data/chat_template.h"
#include "engine/data/conversation.h"
#include "engine/data/preprocess.h"
#include "engine/data/tokenizer.h"

namespace engine::data {

struct ChatBuildOptions {
  std::vector<std::string> inputs;  // JSONL, as of PreprocessOptions
  std::string output_prefix;
  ConversationKeys keys;
  LossOn loss_on = LossOn::kAssistant;
  bool append_eod = false;  // the end-of-document token behind each conversation that does not end with it
  recipe::Tokenizer tokenizer;  // for the manifest
  int workers = 1;
  std::size_t part_bytes = std::size_t{1} << 20;
};

struct ChatBuildResult {
  TokenType type = TokenType::kU16;
  std::vector<ReadInput> inputs;
  PassedOver passed_over;
  MadeDataset made;                   // a document is one conversation, of one sequence
  std::int64_t learned = 0;           // tokens that count in the loss
  std::int64_t nothing_to_learn = 0;  // conversations of which none does
};

// One conversation as tokens and, of each, whether it counts. Special tokens in the text are tokens; none is put around it, since the template
// writes those itself. An end-of-document token that is appended counts with LossOn::kAll alone.
struct ChatTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counts;
};
absl::StatusOr<ChatTokens> TokenizeChat(const ChatText& text, const Tokenizer& tokenizer, bool append_eod,
                                        LossOn loss_on);

// Writes OUTPUT_PREFIX.bin and .idx, OUTPUT_PREFIX_loss_mask.bin and .idx, and OUTPUT_PREFIX.json, which says what was read and made. Nothing
// is written unless everything succeeds. The first mistake of the inputs is told: "file:line: error: …".
absl::StatusOr<ChatBuildResult> BuildConversations(const ChatBuildOptions& options, const ChatTemplate& chat,
                                                   const Tokenizer& tokenizer);

}  // namespace engine::data
