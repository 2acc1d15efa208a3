// Conversations to a tokenised data set with a mask of the loss.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/data/chat_template.h"
#include "engine/data/conversation.h"
#include "engine/data/dataset_build.h"
#include "engine/data/tokenizer.h"

namespace engine::data {

// prepend_bos and append_eod add their token to a conversation only where the template has not written it.
struct ChatBuildOptions : BuildOptions {
  ConversationKeys keys;
  LossOn loss_on = LossOn::kAssistant;
};

struct ChatBuildResult
    : BuildResult {  // data sets: the tokens, a document of one sequence for each conversation, and the mask
  std::int64_t learned = 0;           // tokens that count in the loss
  std::int64_t nothing_to_learn = 0;  // conversations of which none does
};

// One conversation as tokens and, of each, whether it counts. Special tokens in the text are tokens, since the template writes them.
// `beginning` is put in front if the text does not begin with it, and with `append_eod` the end of document behind if the text does not end
// with it. Tokens that were put there count only with LossOn::kAll.
struct ChatTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counts;
};
absl::StatusOr<ChatTokens> TokenizeChat(const ChatText& text, const Tokenizer& tokenizer,
                                        std::optional<std::int32_t> beginning, bool append_eod,
                                        LossOn loss_on);

// Makes the data sets OUTPUT_PREFIX and OUTPUT_PREFIX_loss_mask, and a manifest, as BuildDatasets does. Conversations are duplicates where
// the template makes the same text of them, of which the same is learned. The first mistake of the inputs is told: "file:line: error: …".
absl::StatusOr<ChatBuildResult> BuildConversations(const ChatBuildOptions& options, const ChatTemplate& chat,
                                                   const Tokenizer& tokenizer);

}  // namespace engine::data
