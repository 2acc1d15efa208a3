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

// The keys of one list of data sets.
struct SetKeys {
  const char* table;
  const char *paths, *weights, *epochs;
  const DataSets& (*of)(const Data&);
};

constexpr std::array<SetKeys, 4> kSetKeys = {{
    {"data", "data.paths", "data.weights", "data.epochs", [](const Data& d) -> const DataSets& { return d; }},
    {"data.train", "data.train.paths", "data.train.weights", "data.train.epochs",
     [](const Data& d) -> const DataSets& { return d.train; }},
    {"data.validation", "data.validation.paths", "data.validation.weights", "data.validation.epochs",
     [](const Data& d) -> const DataSets& { return d.validation; }},
    {"data.test", "data.test.paths", "data.test.weights", "data.test.epochs",
     [](const Data& d) -> const DataSets& { return d.test; }},
}};

void PathsAreNames(const RuleContext& c) {
  for (const SetKeys& keys : kSetKeys) {
    for (const std::string& path : keys.of(c.recipe.data).paths) {
      if (const absl::Status status = storage::CheckPrefix(path); !status.ok())
        c.Error({keys.paths}, Message(status),
                "a prefix as a path, as s3://BUCKET/PREFIX or as https://HOST/PREFIX");
    }
  }
}

void PathsAreGiven(const RuleContext& c) {
  const Data& d = c.recipe.data;
  if (!d.per_split()) {
    if (d.paths.empty())
      c.Error({"data.paths"}, "data.paths is empty", "at least one prefix; or data.source = \"random\"");
    return;
  }
  if (!d.paths.empty()) {
    c.Error(
        {"data.paths", "data.train.paths", "data.validation.paths", "data.test.paths"},
        "data.paths is divided among the splits, and a split has data sets of its own",
        "data.paths = [] with paths in [data.train], [data.validation] and [data.test]; or data.paths alone");
    return;
  }
  if (d.train.paths.empty())
    c.Error({"data.train.paths", "data.validation.paths", "data.test.paths"},
            "data.train.paths is empty, and another split has data sets of its own",
            "the data sets of training in [data.train]");
  if (c.recipe.evaluation.interval > 0 && d.validation.paths.empty())
    c.Error({"evaluation.interval", "data.train.paths"},
            fmt::format("evaluation.interval {} needs validation data, and data.validation.paths is empty",
                        c.recipe.evaluation.interval),
            "data sets in [data.validation]; or interval 0");
}

// Each list of weights, and of epochs, goes with its paths.
void WeightsMatchPaths(const RuleContext& c) {
  for (const SetKeys& keys : kSetKeys) {
    const DataSets& sets = keys.of(c.recipe.data);
    const std::size_t paths = sets.paths.size();
    const auto count = [](std::size_t number, std::string_view noun) {
      return Counted(static_cast<std::int64_t>(number), noun);
    };
    if (!sets.weights.empty() && sets.weights.size() != paths) {
      c.Error({keys.weights, keys.paths},
              fmt::format("{} for {}", count(sets.weights.size(), "weight"), count(paths, "path")),
              "one weight a path, or none");
      continue;
    }
    double sum = 0;
    for (const double weight : sets.weights) sum += weight;
    if (!sets.weights.empty() && sum == 0) c.Error({keys.weights}, "the weights add up to 0");
    if (sets.epochs.empty()) continue;
    if (!sets.weights.empty()) {
      c.Error(
          {keys.epochs, keys.weights},
          fmt::format("{0}.weights and {0}.epochs both say how much of each data set is seen", keys.table),
          "one of the two");
    } else if (sets.epochs.size() != 1 && sets.epochs.size() != paths) {
      c.Error({keys.epochs, keys.paths},
              fmt::format("{} of epochs for {}", count(sets.epochs.size(), "number"), count(paths, "path")),
              "one number a path, or one for all");
    }
  }
}

void SplitHasShares(const RuleContext& c) {
  const Data& d = c.recipe.data;
  if (d.per_split()) {
    if (!c.IsDefault("data.split"))
      c.Note({"data.split"}, "data.split is not used: each split has data sets of its own");
    return;
  }
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
  for (const char* key :
       {"data.tokenizer.path", "data.tokenizer.beginning_of_document", "data.tokenizer.end_of_document"}) {
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

void PackedDocumentsAreMasked(const RuleContext& c) {
  const Data& d = c.recipe.data;
  if (!d.packs() || d.documents == "masked") return;
  c.Error(
      {"data.packing", "data.documents"},
      fmt::format("packing \"{}\" puts documents into a sample that have nothing to do with each other, and "
                  "documents = \"{}\" lets attention see them all",
                  d.packing, d.documents),
      "data.documents = \"masked\"");
}

// The default is one of the tokenizers, as of masked documents.
void MaskedLossHasTokenizer(const RuleContext& c) {
  const Data& d = c.recipe.data;
  if (!d.mask_end_of_document_loss) return;
  if (d.tokenizer.kind != "none" && !c.IsDefault("data.tokenizer.kind")) return;
  c.Error({"data.mask_end_of_document_loss", "data.tokenizer.kind"},
          fmt::format("mask_end_of_document_loss goes by the tokenizer's end-of-document token, and "
                      "data.tokenizer.kind is {}",
                      c.IsDefault("data.tokenizer.kind") ? "not said" : "\"none\""),
          "data.tokenizer.kind = \"byte\", \"gpt2\" or \"file\"");
}

void FillInMiddleHasTokens(const RuleContext& c) {
  const FillInMiddle& fim = c.recipe.data.fim;
  const Tokenizer& tokenizer = c.recipe.data.tokenizer;
  if (fim.rate == 0) return;
  if (tokenizer.kind != "file") {
    c.Error(
        {"data.fim.rate", "data.tokenizer.kind"},
        fmt::format("filling in the middle needs tokens that stand before prefix, middle and suffix, which "
                    "tokenizer \"{}\" has not",
                    tokenizer.kind),
        "data.tokenizer.kind = \"file\" with a tokenizer that has such tokens");
    return;
  }
  for (const auto& [key, token] : {std::pair("data.fim.prefix_token", fim.prefix_token),
                                   std::pair("data.fim.middle_token", fim.middle_token),
                                   std::pair("data.fim.suffix_token", fim.suffix_token)}) {
    if (!token.empty()) continue;
    c.Error({key, "data.fim.rate"}, fmt::format("data.fim.rate {} needs {}", fim.rate, key),
            "the token's text, such as \"<|fim_prefix|>\"");
  }
  if (fim.split_token.empty() && !c.IsDefault("data.fim.fragment_rate")) {
    c.Error({"data.fim.fragment_rate"},
            fmt::format("data.fim.fragment_rate {} is of the parts of a document, and no "
                        "data.fim.split_token makes them",
                        fim.fragment_rate),
            "data.fim.split_token, such as \"<|file_sep|>\"; or data.fim.rate, of whole documents");
  }
}

// Random tokens come from no file, so that rules of files do not hold for them.
template <void (*rule)(const RuleContext&)>
void OfFiles(const RuleContext& c) {
  if (!c.recipe.data.is_random()) rule(c);
}

void RandomTokensUseNoFiles(const RuleContext& c) {
  if (!c.recipe.data.is_random()) return;
  std::string unused;
  for (const char* key : {"data.paths", "data.weights", "data.epochs", "data.split", "data.train.paths",
                          "data.validation.paths", "data.test.paths", "data.mask_end_of_document_loss",
                          "data.packing", "data.fim.rate", "data.index_cache", "data.tokenizer.kind",
                          "data.tokenizer.vocab_file", "data.tokenizer.merges_file", "data.tokenizer.path",
                          "data.tokenizer.beginning_of_document", "data.tokenizer.end_of_document"}) {
    const Field& field = *FindField(key);
    if (field.key == "data.tokenizer.kind" && c.recipe.data.tokenizer.kind == "none") continue;
    // `engine generate` reads it, as of a run that `engine import hf` has made.
    if (field.key.starts_with("data.tokenizer.") && c.recipe.data.tokenizer.kind == "file") continue;
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
      {{"data.source", "data.paths", "data.train.paths", "data.validation.paths", "data.test.paths",
        "evaluation.interval"},
       OfFiles<PathsAreGiven>},
      {{"data.source", "data.paths", "data.train.paths", "data.validation.paths", "data.test.paths"},
       OfFiles<PathsAreNames>},
      {{"data.source", "data.paths", "data.weights", "data.epochs", "data.train", "data.validation",
        "data.test"},
       OfFiles<WeightsMatchPaths>},
      {{"data.source", "data.split", "data.paths", "data.train.paths", "data.validation.paths",
        "data.test.paths", "evaluation.interval"},
       OfFiles<SplitHasShares>},
      {{"data.source", "data.tokenizer"}, OfFiles<Gpt2TokenizerHasFiles>},
      {{"data.source", "data.tokenizer"}, OfFiles<FileTokenizerHasPath>},
      {{"data.source", "model.vocab", "data.tokenizer.kind"}, OfFiles<VocabHoldsBytes>},
      {{"data.source", "data.documents", "data.tokenizer.kind"}, OfFiles<MaskedDocumentsHaveTokenizer>},
      {{"data.source", "data.packing", "data.documents"}, OfFiles<PackedDocumentsAreMasked>},
      {{"data.source", "data.mask_end_of_document_loss", "data.tokenizer.kind"},
       OfFiles<MaskedLossHasTokenizer>},
      {{"data.source", "data.fim", "data.tokenizer.kind"}, OfFiles<FillInMiddleHasTokens>},
      {{"data"}, RandomTokensUseNoFiles},
  };
}

}  // namespace engine::recipe
