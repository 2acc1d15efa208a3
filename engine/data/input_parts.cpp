#include "engine/data/input_parts.h"

#include <limits>
#include <utility>

#include "engine/base/status.h"
#include "engine/data/file_stream.h"
#include "engine/data/text_parts.h"

namespace engine::data {
namespace {

// Where plain text may be cut: behind a separator's line. Without a separator a file is one document.
CutText CutOf(const InputOptions& options) {
  if (options.format == InputFormat::kJsonLines) return BehindLastLine;
  return [separator = options.document_separator](std::string_view text) -> std::size_t {
    if (separator.empty()) return 0;
    for (std::size_t end = BehindLastLine(text); end > 0;) {
      const std::size_t begin = BehindLastLine(text.substr(0, end - 1));
      std::string_view line = text.substr(begin, end - 1 - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line == separator) return end;
      end = begin;
    }
    return 0;
  };
}

class TextInput : public InputParts {
 public:
  TextInput(const std::string& path, const InputOptions& options, TextParts parts)
      : path_(path),
        options_(options),
        cut_(CutOf(options)),
        shared_(std::make_shared<const Shared>(path, options)),
        parts_(std::move(parts)) {}

  absl::Status SkipTo(const InputPosition& position) override {
    ASSIGN_OR_RETURN(const std::string fingerprint, FingerprintOfFile(path_, position.file_bytes));
    bool same = fingerprint == position.fingerprint;
    if (same) {
      ASSIGN_OR_RETURN(same, parts_.SkipTo(position.at, position.line));
    }
    return same ? absl::OkStatus()
                : FailedPrecondition("{} has changed in its first {} bytes", path_, position.file_bytes);
  }

  absl::StatusOr<std::optional<InputPart>> Next() override {
    ASSIGN_OR_RETURN(TextPart text, parts_.Next(options_.part_bytes, cut_));
    if (text.text.empty()) return std::nullopt;
    InputPart part;
    part.text_bytes = static_cast<std::int64_t>(text.text.size());
    part.end = {.at = parts_.text_bytes(),
                .line = parts_.line(),
                .file_bytes = parts_.file_bytes(),
                .fingerprint = parts_.FileFingerprint()};
    part.visit = [shared = shared_, text = std::move(text)](const KeyVisitor& visit) {
      return Visit(*shared, text, visit);
    };
    return part;
  }

  std::string Fingerprint() const override { return parts_.FileFingerprint(); }

 private:
  struct Shared {  // by the parts, which may live longer
    Shared(std::string path, const InputOptions& options) : path(std::move(path)), options(options) {}
    const std::string path;
    const InputOptions options;
  };
  static absl::Status Visit(const Shared& input, const TextPart& part, const KeyVisitor& visit) {
    const InputOptions& options = input.options;
    if (options.format == InputFormat::kJsonLines)
      return VisitJsonLines({input.path, part.first_line}, part.text, options.keys, visit);
    const absl::Status status =
        VisitPlainText(part.text, options.document_separator,
                       [&](std::span<const std::string_view> texts) { return visit(0, texts); });
    return status.ok() ? status : WithContext(status, input.path);
  }

  const std::string path_;
  const InputOptions options_;
  const CutText cut_;
  const std::shared_ptr<const Shared> shared_;
  TextParts parts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<InputParts>> InputParts::Open(const std::string& path,
                                                             const InputOptions& options) {
  ASSIGN_OR_RETURN(TextParts parts, TextParts::Open(path));
  return std::make_unique<TextInput>(path, options, std::move(parts));
}

absl::StatusOr<std::string> FingerprintOfInput(const std::string& path) {
  return FingerprintOfFile(path, std::numeric_limits<std::int64_t>::max());
}

}  // namespace engine::data
