#include "engine/data/tokenizer.h"

#include <algorithm>
#include <mutex>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/data/tokenizer/pipeline.h"
#include "engine/data/tokenizer/read_files.h"
#include "engine/data/tokenizer/token_places.h"

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

  absl::Status EncodeMarked(std::string_view text, std::span<const std::pair<std::size_t, std::size_t>> spans,
                            std::vector<std::int32_t>* ids, std::vector<std::uint8_t>* marks) const override {
    ids->clear();
    marks->assign(text.size(), 0);
    for (const auto& [begin, end] : spans)
      std::fill(marks->begin() + static_cast<std::ptrdiff_t>(begin),
                marks->begin() + static_cast<std::ptrdiff_t>(end), 1);
    return EncodeTo(text, ids);
  }

  absl::StatusOr<std::string> Decode(std::span<const std::int32_t> ids) const override {
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

// Special tokens in a text are characters: a document that speaks of "<|endoftext|>" does not end there.
class PipelineTokenizer final : public Tokenizer {
 public:
  // The description of the pipeline has a token that ends a document.
  explicit PipelineTokenizer(std::unique_ptr<tokenizer::Pipeline> pipeline)
      : pipeline_(std::move(pipeline)) {}

  absl::Status EncodeTo(std::string_view text, std::vector<std::int32_t>* ids) const override {
    return pipeline_->Encode(text, {}, ids);
  }
  absl::Status EncodeMarked(std::string_view text, std::span<const std::pair<std::size_t, std::size_t>> spans,
                            std::vector<std::int32_t>* ids, std::vector<std::uint8_t>* marks) const override {
    std::call_once(places_once_,
                   [this] { places_ = tokenizer::TokenPlaces::Make(pipeline_->description()); });
    RETURN_IF_ERROR(places_.status());
    ids->clear();
    RETURN_IF_ERROR(pipeline_->Encode(text, {.special_tokens = true}, ids));
    return places_->Mark(text, *ids, spans, marks);
  }
  absl::StatusOr<std::string> Decode(std::span<const std::int32_t> ids) const override {
    return pipeline_->Decode(ids, /*skip_special=*/false, end_of_document());
  }
  absl::Status EncodeWith(const tokenizer::EncodeOptions& options, std::string_view text,
                          std::vector<std::int32_t>* ids) const override {
    return pipeline_->Encode(text, options, ids);
  }
  std::string Written(std::int32_t id) const override {
    const tokenizer::Description& description = pipeline_->description();
    for (const tokenizer::AddedToken& token : description.added_tokens) {
      if (token.id == id) return token.content;
    }
    return std::string(tokenizer::VocabularyOf(description.model).Token(id));
  }
  std::int64_t vocab_size() const override { return pipeline_->vocab_size(); }
  std::int32_t end_of_document() const override { return *pipeline_->description().end_of_document; }
  std::optional<std::int32_t> end_of_turn() const override { return pipeline_->description().end_of_turn; }
  std::optional<std::int32_t> beginning_of_document() const override {
    return pipeline_->description().beginning_of_document;
  }
  std::string why_no_beginning() const override {
    return beginning_of_document() ? "" : pipeline_->description().beginning_of_document_from;
  }

 private:
  std::unique_ptr<tokenizer::Pipeline> pipeline_;
  mutable std::once_flag places_once_;  // few data sets need them
  mutable absl::StatusOr<tokenizer::TokenPlaces> places_ = absl::UnknownError("not made yet");
};

// Puts the token of that name, unless it is empty, into the place of the one that the files tell. `does`: "end".
absl::Status SetToken(const tokenizer::Description& description, std::string_view name, std::string_view does,
                      std::optional<std::int32_t>* token) {
  if (name.empty()) return absl::OkStatus();
  *token = tokenizer::FindToken(description, name);
  if (**token != tokenizer::kNoToken) return absl::OkStatus();
  return InvalidArgument("{}: has no token \"{}\" to {} a document", description.source, Shown(name), does);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakePipelineTokenizer(tokenizer::Description description,
                                                                 const recipe::Tokenizer& wanted) {
  RETURN_IF_ERROR(
      SetToken(description, wanted.beginning_of_document, "begin", &description.beginning_of_document));
  RETURN_IF_ERROR(SetToken(description, wanted.end_of_document, "end", &description.end_of_document));
  if (!description.end_of_document.has_value()) {
    return InvalidArgument(
        "{}: which token ends a document is not known; data.tokenizer.end_of_document (--end-of-document) "
        "names it",
        description.source);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<tokenizer::Pipeline> pipeline,
                   tokenizer::Pipeline::Make(std::move(description)));
  return std::make_unique<PipelineTokenizer>(std::move(pipeline));
}

}  // namespace

std::vector<std::string> FilesOf(const recipe::Tokenizer& description) {
  std::vector<std::string> files = {description.vocab_file, description.merges_file};
  if (!description.path.empty()) {
    const std::vector<std::string> more = tokenizer::TokenizerFiles(description.path);
    files.insert(files.end(), more.begin(), more.end());
  }
  std::erase(files, "");
  return files;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const recipe::Tokenizer& description) {
  if (description.kind == "byte") return std::make_unique<ByteTokenizer>();
  if (description.kind == "none") {
    return FailedPrecondition(
        "the recipe has no tokenizer (data.tokenizer.kind = \"none\"), so text cannot become tokens here");
  }
  if (description.kind == "file") {
    if (description.path.empty()) {
      return InvalidArgument("the tokenizer of a file needs data.tokenizer.path (--tokenizer-path)");
    }
    ASSIGN_OR_RETURN(tokenizer::Description read, tokenizer::ReadTokenizer(description.path));
    return MakePipelineTokenizer(std::move(read), description);
  }
  if (description.kind != "gpt2") {
    return InvalidArgument("tokenizer \"{}\" is unknown; there are byte, gpt2, file and none",
                           description.kind);
  }
  if (description.vocab_file.empty() || description.merges_file.empty()) {
    return InvalidArgument(
        "the gpt2 tokenizer needs a vocabulary (vocab.json) and merges (merges.txt); {} is not given",
        description.vocab_file.empty() ? "the vocabulary" : "merges");
  }
  ASSIGN_OR_RETURN(tokenizer::Description read,
                   tokenizer::ReadGpt2Files(description.vocab_file, description.merges_file));
  return MakePipelineTokenizer(std::move(read), {});
}

}  // namespace engine::data
