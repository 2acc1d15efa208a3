#include "engine/data/tokenizer.h"

#include "engine/base/status.h"
#include "engine/data/gpt2_bpe.h"

namespace engine::data {
namespace {

// Ids 0 to 255 are the bytes, 256 is the end of a document.
class ByteTokenizer final : public Tokenizer {
 public:
  absl::Status EncodeTo(std::string_view text, std::vector<std::int32_t>* ids) const override {
    ids->reserve(ids->size() + text.size());
    for (char c : text) ids->push_back(static_cast<unsigned char>(c));
    return absl::OkStatus();
  }

  std::string Decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (std::int32_t id : ids) {
      if (id >= 0 && id < kBytes) {
        text += static_cast<char>(id);
      } else if (id != kBytes) {
        text += kReplacementCharacter;
      }
    }
    return text;
  }

  std::int64_t vocab_size() const override { return kBytes + 1; }
  std::int32_t end_of_document() const override { return kBytes; }

 private:
  static constexpr std::int32_t kBytes = 256;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const recipe::Tokenizer& description) {
  if (description.kind == "byte") return std::make_unique<ByteTokenizer>();
  if (description.kind == "none") {
    return FailedPrecondition(
        "the recipe has no tokenizer (data.tokenizer.kind = \"none\"), so text cannot become tokens here");
  }
  if (description.kind != "gpt2") {
    return InvalidArgument("tokenizer \"{}\" is unknown; there are byte, gpt2 and none", description.kind);
  }
  if (description.vocab_file.empty() || description.merges_file.empty()) {
    return InvalidArgument(
        "the gpt2 tokenizer needs a vocabulary (vocab.json) and merges (merges.txt); {} is not given",
        description.vocab_file.empty() ? "the vocabulary" : "merges");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Gpt2Bpe> bpe,
                   Gpt2Bpe::Load(description.vocab_file, description.merges_file));
  return bpe;
}

}  // namespace engine::data
