#include "engine/base/diagnostic.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace engine {
namespace {

std::string_view Word(Severity severity) {
  switch (severity) {
    case Severity::kError:
      return "error";
    case Severity::kWarning:
      return "warning";
    case Severity::kNote:
      return "note";
  }
  return "error";
}

// Parameters of the terminal's escape "select graphic rendition" (ECMA-48, 8.3.117).
constexpr const char* kBold = "1";
constexpr const char* kGreen = "1;32";
constexpr const char* kCyan = "1;36";

const char* ColorOf(Severity severity) {
  switch (severity) {
    case Severity::kError:
      return "1;31";
    case Severity::kWarning:
      return "1;33";
    case Severity::kNote:
      return kCyan;
  }
  return kBold;
}

std::string Location(const SourceSpan& span) {
  if (span.line == 0) return span.file;
  if (span.column == 0) return fmt::format("{}:{}", span.file, span.line);
  return fmt::format("{}:{}:{}", span.file, span.line, span.column);
}

bool Has(const std::vector<Diagnostic>& diagnostics, Severity severity) {
  return std::any_of(diagnostics.begin(), diagnostics.end(),
                     [&](const Diagnostic& d) { return d.severity == severity; });
}

int EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> cost(a.size() + 1, std::vector<int>(b.size() + 1, 0));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substitution = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string Format(const Diagnostic& diagnostic, bool colors) {
  const auto paint = [&](const char* color, std::string_view text) {
    return colors ? fmt::format("\x1b[{}m{}\x1b[0m", color, text) : std::string(text);
  };
  std::string text =
      fmt::format("{} {} {}{}\n", paint(kBold, Location(diagnostic.span) + ":"),
                  paint(ColorOf(diagnostic.severity), fmt::format("{}:", Word(diagnostic.severity))),
                  paint(kBold, diagnostic.message),
                  diagnostic.severity == Severity::kError || diagnostic.code.empty()
                      ? ""
                      : fmt::format(" [{}]", diagnostic.code));
  if (!diagnostic.source_line.empty() && diagnostic.span.column > 0) {
    constexpr size_t kMaxShown = 160;  // a line of megabytes is not worth showing
    const std::string line = diagnostic.source_line.substr(0, kMaxShown);
    const size_t column = static_cast<size_t>(diagnostic.span.column - 1);
    if (column <= line.size()) {
      std::string pad;
      for (size_t i = 0; i < column; ++i) pad += line[i] == '\t' ? '\t' : ' ';
      const size_t room = std::max<size_t>(1, line.size() - column);
      const size_t length = std::clamp<size_t>(static_cast<size_t>(diagnostic.span.length), 1, room);
      text += fmt::format("    {}\n    {}{}\n", line, pad, paint(kGreen, "^" + std::string(length - 1, '~')));
    }
  }
  if (!diagnostic.hint.empty()) text += fmt::format("    {} {}\n", paint(kCyan, "hint:"), diagnostic.hint);
  return text;
}

absl::Status ErrorOf(const std::vector<Diagnostic>& diagnostics) {
  std::string errors;
  for (const Diagnostic& diagnostic : diagnostics) errors += Format(diagnostic);
  if (errors.empty()) return absl::OkStatus();
  errors.pop_back();  // the last line's end
  return absl::InvalidArgumentError(errors);
}

void SortAndUnique(std::vector<Diagnostic>* diagnostics) {
  const auto key = [](const Diagnostic& d) {
    return std::tie(d.span.file, d.span.line, d.span.column, d.message);
  };
  std::stable_sort(diagnostics->begin(), diagnostics->end(),
                   [&](const Diagnostic& a, const Diagnostic& b) { return key(a) < key(b); });
  diagnostics->erase(std::unique(diagnostics->begin(), diagnostics->end(),
                                 [&](const Diagnostic& a, const Diagnostic& b) { return key(a) == key(b); }),
                     diagnostics->end());
}

bool HasErrors(const std::vector<Diagnostic>& diagnostics) { return Has(diagnostics, Severity::kError); }

bool HasWarnings(const std::vector<Diagnostic>& diagnostics) { return Has(diagnostics, Severity::kWarning); }

std::string NearestWord(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestWord = 64;  // longer is not a typing error, and the table is quadratic
  if (word.size() > kLongestWord) return "";
  std::string best;
  int best_distance = 1 << 20;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(word, candidate);
    const int limit = std::max<int>(1, static_cast<int>(std::max(word.size(), candidate.size())) / 3);
    if (distance <= limit && distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace engine
