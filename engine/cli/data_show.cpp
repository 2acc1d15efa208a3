// `engine data show`: a sample as training sees it, with what of it is learned.
#include "engine/cli/data_show.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "engine/base/print.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/cli/color.h"
#include "engine/cli/recipe_options.h"
#include "engine/data/chat_build.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/indexed_format.h"
#include "engine/data/source.h"
#include "engine/model/load.h"
#include "engine/storage/storage.h"

namespace engine::cli {
namespace {

struct ShownSample {
  std::string title;  // "PREFIX, sequence 3 of 10"
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> counts;  // of each token, whether it counts in the loss as what is predicted
  std::vector<std::int32_t> starts = {0};  // of documents
};

absl::StatusOr<bool> IsThere(const std::string& name) {
  const absl::Status opened = storage::Open(name).status();
  if (opened.ok() || absl::IsNotFound(opened)) return opened.ok();
  return opened;
}

absl::StatusOr<ShownSample> SequenceOf(const std::string& prefix, std::int64_t index) {
  ASSIGN_OR_RETURN(const data::IndexedDataset dataset, data::IndexedDataset::Open(prefix));
  if (index >= dataset.sequences())
    return InvalidArgument("{} has {} sequences; --sample goes from 0 to {}", prefix, dataset.sequences(),
                           dataset.sequences() - 1);
  ShownSample sample{.title = fmt::format("{}, sequence {} of {}", prefix, index, dataset.sequences()),
                     .tokens = {},
                     .counts = {}};
  sample.tokens.resize(static_cast<std::size_t>(dataset.lengths()[static_cast<std::size_t>(index)]));
  RETURN_IF_ERROR(dataset.Read(index, 0, sample.tokens));
  sample.counts.assign(sample.tokens.size(), 1);
  const std::string mask_prefix = data::LossMaskPrefix(prefix);
  ASSIGN_OR_RETURN(const bool has_mask, IsThere(mask_prefix + ".idx"));
  if (has_mask) {
    ASSIGN_OR_RETURN(const data::IndexedDataset mask, data::IndexedDataset::Open(mask_prefix));
    if (!std::equal(mask.lengths().begin(), mask.lengths().end(), dataset.lengths().begin(),
                    dataset.lengths().end()))
      return InvalidArgument("{} is not the mask of {}: its sequences have other lengths", mask_prefix,
                             prefix);
    std::vector<std::int32_t> counts(sample.tokens.size());
    RETURN_IF_ERROR(mask.Read(index, 0, counts));
    std::transform(counts.begin(), counts.end(), sample.counts.begin(),
                   [](std::int32_t one) { return one != 0 ? 1 : 0; });
  }
  return sample;
}

// As training takes it: the first token is never predicted.
absl::StatusOr<ShownSample> SampleOf(const recipe::Recipe& recipe, data::Split split, std::int64_t index) {
  ASSIGN_OR_RETURN(const data::Source source, data::Source::Open(recipe));
  if (index >= source.size(split))
    return InvalidArgument("the {} split has {} samples; --sample goes from 0 to {}", Name(split),
                           source.size(split), source.size(split) - 1);
  ShownSample sample{.title = fmt::format("{} sample {} of {}", Name(split), index, source.size(split)),
                     .tokens = {},
                     .counts = {}};
  ASSIGN_OR_RETURN(data::SampleTokens read, source.Read(split, index));
  sample.tokens = std::move(read.tokens);
  sample.starts = std::move(read.starts);
  sample.counts.assign(sample.tokens.size(), 1);
  std::copy(read.targets.begin(), read.targets.end(), sample.counts.begin());
  sample.counts.front() = 0;
  return sample;
}

// The text with its ends of lines shown, and nothing that a terminal would obey.
std::string Visible(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      shown += "⏎\n";
    } else if (c == '\t') {
      shown += "⇥";
    } else if (byte < 0x20 || byte == 0x7F) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += c;
    }
  }
  return shown;
}

class Printer {
 public:
  Printer(const ShownSample& sample, const data::Tokenizer* tokenizer)
      : sample_(sample), tokenizer_(tokenizer), colors_(UsesColor(stdout)) {}

  absl::Status Print() {
    const auto counted = std::count(sample_.counts.begin(), sample_.counts.end(), 1);
    const std::size_t size = sample_.tokens.size();
    engine::Print(stdout, "{}: {} tokens, {} of them learned ({:.1f} %), shown {}\n", sample_.title,
                  WithThousands(static_cast<std::int64_t>(size)), WithThousands(counted),
                  size == 0 ? 0.0 : 100.0 * static_cast<double>(counted) / static_cast<double>(size),
                  colors_ ? "in green" : "as ⟦…⟧");
    for (std::size_t begin = 0; begin < size;) {
      const bool is_start = std::find(sample_.starts.begin(), sample_.starts.end(),
                                      static_cast<std::int32_t>(begin)) != sample_.starts.end();
      if (is_start && sample_.starts.size() > 1) Border(begin);
      std::size_t end = begin + 1;
      while (end < size && sample_.counts[end] == sample_.counts[begin] &&
             std::find(sample_.starts.begin(), sample_.starts.end(), static_cast<std::int32_t>(end)) ==
                 sample_.starts.end())
        ++end;
      RETURN_IF_ERROR(Run(begin, end));
      begin = end;
    }
    if (!line_is_empty_) engine::Print(stdout, "\n");
    return absl::OkStatus();
  }

 private:
  void Border(std::size_t place) {
    engine::Print(stdout, "{}{}── document from token {} on ──{}\n", line_is_empty_ ? "" : "\n",
                  colors_ ? "\033[36m" : "", place, colors_ ? "\033[0m" : "");
    line_is_empty_ = true;
  }

  absl::Status Run(std::size_t begin, std::size_t end) {
    const bool counts = sample_.counts[begin] != 0;
    ASSIGN_OR_RETURN(const std::string text, TextOf(begin, end));
    line_is_empty_ = text.ends_with('\n') && colors_;
    if (colors_) {
      engine::Print(stdout, "{}{}\033[0m", counts ? "\033[32m" : "\033[2m", text);
    } else {
      engine::Print(stdout, "{}{}{}", counts ? "⟦" : "", text, counts ? "⟧" : "");
      line_is_empty_ = !counts && text.ends_with('\n');
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> TextOf(std::size_t begin, std::size_t end) {
    const std::span<const std::int32_t> all = sample_.tokens;
    if (tokenizer_ == nullptr)
      return fmt::format("{}{}", begin == 0 ? "" : " ", fmt::join(all.subspan(begin, end - begin), " "));
    // The end of a document, which is no text, has a mark; what a run adds to the text before it is its text.
    std::string shown;
    for (std::size_t at = begin; at < end;) {
      std::size_t stop = at;
      while (stop < end && all[stop] != tokenizer_->end_of_document()) ++stop;
      ASSIGN_OR_RETURN(std::string whole, tokenizer_->Decode(all.first(stop)));
      if (whole.starts_with(text_)) {
        shown += Visible(std::string_view(whole).substr(text_.size()));
      } else {
        ASSIGN_OR_RETURN(const std::string alone, tokenizer_->Decode(all.subspan(at, stop - at)));
        shown += Visible(alone);
      }
      text_ = std::move(whole);
      if (stop < end) shown += "<end of document>";
      at = stop + (stop < end ? 1 : 0);
    }
    return shown;
  }

  const ShownSample& sample_;
  const data::Tokenizer* tokenizer_;
  bool colors_;
  bool line_is_empty_ = true;
  std::string text_;  // of all tokens so far
};

bool IsRecipe(const std::string& name) {
  std::error_code error;
  return name.starts_with("engine:") || name.ends_with(".toml") ||
         (std::filesystem::is_regular_file(name, error) && !std::filesystem::exists(name + ".idx", error));
}

absl::StatusOr<std::unique_ptr<data::Tokenizer>> TokenizerFor(const recipe::Tokenizer& description) {
  if (description.kind == "none") return std::unique_ptr<data::Tokenizer>();
  return data::MakeTokenizer(description);
}

absl::Status ShowChecked(const ShowArguments& arguments, const recipe::LoadResult* loaded) {
  recipe::Tokenizer description = arguments.tokenizer;
  ShownSample sample;
  if (loaded == nullptr) {
    ASSIGN_OR_RETURN(sample, SequenceOf(arguments.what, arguments.sample));
  } else {
    description = loaded->recipe.data.tokenizer;
    const auto* split = std::find_if(data::kSplits.begin(), data::kSplits.end(),
                                     [&](data::Split one) { return Name(one) == arguments.split; });
    ASSIGN_OR_RETURN(sample, SampleOf(loaded->recipe, *split, arguments.sample));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<data::Tokenizer> tokenizer, TokenizerFor(description));
  return Printer(sample, tokenizer.get()).Print();
}

}  // namespace

absl::StatusOr<int> Show(const ShowArguments& arguments) {
  if (!IsRecipe(arguments.what)) {
    RETURN_IF_ERROR(ShowChecked(arguments, nullptr));
    return 0;
  }
  const recipe::LoadResult loaded = model::Load(arguments.what, arguments.load);
  PrintDiagnostics(loaded.diagnostics);
  if (!loaded.ok()) return 1;
  RETURN_IF_ERROR(ShowChecked(arguments, &loaded));
  return 0;
}

}  // namespace engine::cli
