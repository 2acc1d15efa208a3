#include "engine/data/preprocess.h"

#include "engine/base/status.h"
#include "engine/data/mapped_file.h"

namespace engine::data {
namespace {

absl::Status AddDocument(std::span<const std::string_view> texts, const Tokenizer& tokenizer, bool append_eod,
                         IndexedDatasetWriter* writer) {
  std::vector<std::vector<std::int32_t>> sequences;
  for (std::string_view text : texts) {
    std::vector<std::int32_t> ids;
    RETURN_IF_ERROR(tokenizer.EncodeTo(text, &ids));
    if (!ids.empty()) sequences.push_back(std::move(ids));
  }
  if (append_eod && !sequences.empty()) sequences.back().push_back(tokenizer.end_of_document());
  return writer->AddDocument(sequences);
}

}  // namespace

absl::StatusOr<PreprocessResult> Preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer) {
  PreprocessResult result;
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ListInputs(options.inputs, &result.passed_over));
  result.prefix = fmt::format("{}_{}_document", options.output_prefix, options.json_key);
  result.type = ChooseTokenType(tokenizer.vocab_size());
  ASSIGN_OR_RETURN(const std::unique_ptr<IndexedDatasetWriter> writer,
                   IndexedDatasetWriter::Create(result.prefix, result.type));
  const auto add = [&](std::span<const std::string_view> texts) {
    return AddDocument(texts, tokenizer, options.append_eod, writer.get());
  };
  for (const std::string& path : files) {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    const std::string_view contents(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    if (options.format == InputFormat::kJsonLines) {
      RETURN_IF_ERROR(VisitJsonLines(path, contents, options.json_key, add));
    } else if (absl::Status status = VisitPlainText(contents, options.document_separator, add);
               !status.ok()) {
      return WithContext(status, path);
    }
    result.input_bytes += static_cast<std::int64_t>(contents.size());
  }
  if (writer->documents() == 0) {
    return InvalidArgument("no documents in {} files, the first of which is {}", files.size(),
                           files.empty() ? "missing" : files.front());
  }
  RETURN_IF_ERROR(writer->Finish());
  result.files = static_cast<std::int64_t>(files.size());
  result.documents = writer->documents();
  result.sequences = writer->sequences();
  result.tokens = writer->tokens();
  return result;
}

}  // namespace engine::data
