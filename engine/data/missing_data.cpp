#include "engine/data/missing_data.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <system_error>

#include "engine/data/indexed_format.h"
#include "engine/storage/location.h"

namespace engine::data {
namespace {

namespace fs = std::filesystem;

// The folder from which the relative prefix names a data set: the recipe's or one above, such as its
// repository's.
std::optional<fs::path> FolderOf(const recipe::Recipe& recipe, const std::string& prefix) {
  std::error_code error;
  if (recipe.path.empty() || fs::path(prefix).is_absolute()) return std::nullopt;
  for (fs::path folder = fs::weakly_canonical(recipe.path, error).parent_path(); !folder.empty();
       folder = folder.parent_path()) {
    if (fs::is_regular_file(folder / IdxPath(prefix), error)) return folder;
    if (folder == folder.parent_path()) break;
  }
  return std::nullopt;
}

std::string BuildCommand(const recipe::Tokenizer& tokenizer, const std::string& prefix) {
  constexpr std::string_view kEnding = "_text_document";  // that the command gives the name
  const bool can_be_made = prefix.ends_with(kEnding);
  std::string command = "engine data build --input TEXT.jsonl --append-eod --output-prefix ";
  command += can_be_made ? prefix.substr(0, prefix.size() - kEnding.size()) : "PREFIX";
  if (tokenizer.kind == "none")
    return "the model's own tokenizer has to make it, as Megatron-LM's .bin and .idx";
  if (tokenizer.kind == "file") {
    command += fmt::format(" --tokenizer file --tokenizer-path {}", tokenizer.path);
    if (!tokenizer.beginning_of_document.empty())
      command += fmt::format(" --prepend-bos --beginning-of-document '{}'", tokenizer.beginning_of_document);
    if (!tokenizer.end_of_document.empty())
      command += fmt::format(" --end-of-document '{}'", tokenizer.end_of_document);
  } else if (tokenizer.kind != "byte") {
    command += fmt::format(" --tokenizer {} --vocab-file {} --merges-file {}", tokenizer.kind,
                           tokenizer.vocab_file.empty() ? "vocab.json" : tokenizer.vocab_file,
                           tokenizer.merges_file.empty() ? "merges.txt" : tokenizer.merges_file);
  }
  return fmt::format("`{}` makes {}", command, can_be_made ? "it" : "one, PREFIX_text_document");
}

}  // namespace

std::string HintForMissingData(const recipe::Recipe& recipe, const std::string& prefix) {
  std::error_code error;
  if (storage::IsUrl(prefix)) return BuildCommand(recipe.data.tokenizer, prefix);
  if (fs::is_regular_file(IdxPath(prefix), error)) {
    return fmt::format("{} is there: put {} of the same data set beside it, or build both anew",
                       IdxPath(prefix), BinPath(prefix));
  }
  const std::string here = fs::current_path(error).string();
  if (const std::optional<fs::path> folder = FolderOf(recipe, prefix)) {
    return fmt::format(
        "data paths are relative to the working directory, {}: run in {}, where {} is, or give the absolute "
        "path",
        here, folder->string(), IdxPath(prefix));
  }
  return fmt::format(
      "{}{}; --set data.source=random tries the recipe without data",
      BuildCommand(recipe.data.tokenizer, prefix),
      fs::path(prefix).is_absolute() ? "" : fmt::format(", in the working directory {}", here));
}

}  // namespace engine::data
