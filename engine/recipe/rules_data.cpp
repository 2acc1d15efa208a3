#include <fmt/format.h>

#include <array>
#include <string>

#include "engine/base/status.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/rules.h"
#include "engine/recipe/source.h"
#include "engine/recipe/split.h"
#include "engine/storage/location.h"

namespace engine::recipe {
namespace {

void PathsAreGiven(const RuleContext& c) {
  if (c.recipe.data.paths.empty()) {
    c.Error({"data.paths"}, "data.paths is empty", "at least one prefix; or data.source = \"random\"");
  }
}

void PathsAreNames(const RuleContext& c) {
  for (const std::string& path : c.recipe.data.paths) {
    if (const absl::Status status = storage::CheckPrefix(path); !status.ok())
      c.Error({"data.paths"}, Message(status),
              "a prefix as a path, as s3://BUCKET/PREFIX or as https://HOST/PREFIX");
  }
}

void WeightsMatchPaths(const RuleContext& c) {
  const Data& d = c.recipe.data;
  if (d.weights.empty()) return;
  if (d.weights.size() != d.paths.size()) {
    c.Error({"data.weights", "data.paths"},
            fmt::format("{} for {}", Counted(static_cast<std::int64_t>(d.weights.size()), "weight"),
                        Counted(static_cast<std::int64_t>(d.paths.size()), "path")),
            "one weight a path, or none");
    return;
  }
  double sum = 0;
  for (const double weight : d.weights) sum += weight;
  if (sum == 0) c.Error({"data.weights"}, "the weights add up to 0");
}

void SplitHasShares(const RuleContext& c) {
  const Data& d = c.recipe.data;
  const absl::StatusOr<std::array<double, 3>> shares = ParseSplit(d.split);
  if (!shares.ok()) {
    c.Error({"data.split"}, fmt::format("split \"{}\": {}", Shown(d.split), Message(shares.status())),
            "shares of training, validation and test, such as \"969,30,1\"");
    return;
  }
  if ((*shares)[0] == 0) {
    c.Error({"data.split"}, fmt::format("split \"{}\" leaves nothing for training", Shown(d.split)));
  }
  if (c.recipe.evaluation.interval > 0 && (*shares)[1] == 0) {
    c.Error({"evaluation.interval", "data.split"},
            fmt::format("evaluation.interval {} needs validation data, but split \"{}\" leaves none",
                        c.recipe.evaluation.interval, Shown(d.split)),
            "a second share; or interval 0");
  }
}

void Gpt2TokenizerHasFiles(const RuleContext& c) {
  const Tokenizer& t = c.recipe.data.tokenizer;
  if (t.kind != "gpt2" || (!t.vocab_file.empty() && !t.merges_file.empty())) return;
  const bool both = t.vocab_file.empty() && t.merges_file.empty();
  c.Error({"data.tokenizer.kind"},
          fmt::format("tokenizer \"gpt2\" needs {}", both                   ? "vocab_file and merges_file"
                                                     : t.vocab_file.empty() ? "vocab_file"
                                                                            : "merges_file"),
          "GPT-2's vocab.json and merges.txt");
}

void FileTokenizerHasPath(const RuleContext& c) {
  const Tokenizer& t = c.recipe.data.tokenizer;
  const bool is_file = t.kind == "file";
  if (is_file && t.path.empty()) {
    c.Error({"data.tokenizer.kind"}, "tokenizer \"file\" needs path",
            "a tokenizer.json, a SentencePiece model, or a Hugging Face folder");
  }
  for (const char* key : {"data.tokenizer.path", "data.tokenizer.end_of_document"}) {
    if (is_file || Get(*FindField(key), c.recipe) == DefaultOf(*FindField(key))) continue;
    c.Error({key}, fmt::format("{} is of the tokenizer \"file\", and kind is \"{}\"", key, t.kind),
            "data.tokenizer.kind = \"file\"");
  }
}

void VocabHoldsBytes(const RuleContext& c) {
  constexpr std::int64_t kByteIds = 257;  // 256 bytes and the end of a document
  const std::int64_t vocab = c.recipe.model.vocab;
  if (c.recipe.data.tokenizer.kind != "byte" || vocab >= kByteIds) return;
  c.Error({"model.vocab", "data.tokenizer.kind"},
          fmt::format("vocab {} is less than the {} ids of the byte tokenizer", vocab, kByteIds),
          fmt::format("vocab at least {}", kByteIds));
}

// The default is one of the tokenizers: of data that it did not make, its id would be a word.
void MaskedDocumentsHaveTokenizer(const RuleContext& c) {
  if (c.recipe.data.documents != "masked" || !c.IsDefault("data.tokenizer.kind")) return;
  c.Error({"data.documents"},
          "documents \"masked\" end behind the tokenizer's end-of-document token too, and "
          "data.tokenizer.kind is not "
          "said",
          "data.tokenizer.kind = \"byte\", \"gpt2\" or \"file\"; or \"none\": where sequences of the data "
          "set end, and "
          "nowhere else");
}

// Random tokens come from no file, so that rules of files do not hold for them.
template <void (*rule)(const RuleContext&)>
void OfFiles(const RuleContext& c) {
  if (!c.recipe.data.is_random()) rule(c);
}

void RandomTokensUseNoFiles(const RuleContext& c) {
  if (!c.recipe.data.is_random()) return;
  std::string unused;
  for (const char* key :
       {"data.paths", "data.weights", "data.split", "data.tokenizer.kind", "data.tokenizer.vocab_file",
        "data.tokenizer.merges_file", "data.tokenizer.path", "data.tokenizer.end_of_document"}) {
    const Field& field = *FindField(key);
    if (field.key == "data.tokenizer.kind" && c.recipe.data.tokenizer.kind == "none") continue;
    if (Get(field, c.recipe) != DefaultOf(field)) unused += (unused.empty() ? "" : ", ") + field.key;
  }
  if (c.recipe.data.documents == "masked")
    c.Note({"data.documents", "data.source"}, "each sample of random tokens is one document");
  if (unused.empty()) return;
  c.Note({"data.source"}, fmt::format("data.source \"{}\" does not use {}", c.recipe.data.source, unused));
}

}  // namespace

std::vector<Rule> DataRules() {
  return {
      {{"data.source", "data.paths"}, OfFiles<PathsAreGiven>},
      {{"data.source", "data.paths"}, OfFiles<PathsAreNames>},
      {{"data.source", "data.paths", "data.weights"}, OfFiles<WeightsMatchPaths>},
      {{"data.source", "data.split", "evaluation.interval"}, OfFiles<SplitHasShares>},
      {{"data.source", "data.tokenizer"}, OfFiles<Gpt2TokenizerHasFiles>},
      {{"data.source", "data.tokenizer"}, OfFiles<FileTokenizerHasPath>},
      {{"data.source", "model.vocab", "data.tokenizer.kind"}, OfFiles<VocabHoldsBytes>},
      {{"data.source", "data.documents", "data.tokenizer.kind"}, OfFiles<MaskedDocumentsHaveTokenizer>},
      {{"data"}, RandomTokensUseNoFiles},
  };
}

}  // namespace engine::recipe
