#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/import/megatron_writer.h"

namespace engine::import {
namespace {

constexpr const char* kGpt2Tokenizer = "GPT2BPETokenizer";

std::optional<double> AsNumber(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The tokenizer, and the size of the vocabulary that it and the flags give the model.
class TokenizerConverter : MegatronWriter {
 public:
  TokenizerConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks)
      : MegatronWriter(arguments, settings, remarks) {}

  void Convert() {
    const std::string tokenizer = TokenizerType();
    const bool gpt2 = tokenizer == kGpt2Tokenizer;
    const bool named = a_.Has("--tokenizer-type");
    const bool files = a_.Has("--vocab-file") || a_.Has("--merge-file");
    if (gpt2 && !named && !files && !a_.Has("--mock-data")) {
      a_.Error(
          "--tokenizer-type", "pretrain_gpt.py's default tokenizer, GPT2BPETokenizer, has no files here",
          "--vocab-file and --merge-file; or --vocab-size N, without padding, where the data is of another");
      return;
    }
    const std::string comment = named ? "" : "pretrain_gpt.py's default";
    const char* flag = named ? "--tokenizer-type" : a_.Has("--vocab-file") ? "--vocab-file" : "--merge-file";
    if (gpt2) {
      Set("data.tokenizer.kind", std::string("gpt2"), comment, flag);
    } else if (named) {
      Remark("--tokenizer-type", "the tokenizers are bytes and GPT-2's; data sets may be of any");
      settings_.erase("data.tokenizer.vocab_file");
      settings_.erase("data.tokenizer.merges_file");
      for (const char* file : {"--vocab-file", "--merge-file"})
        if (a_.Has(file)) Remark(file, "of the tokenizer, which is another one here");
    }
    VocabularySize(tokenizer, comment, flag);
  }

 private:
  // The tokenizer that the script names; where it names none, the default of pretrain_gpt.py.
  std::string TokenizerType() const {
    if (const std::optional<std::string> type = a_.Text("--tokenizer-type")) return *type;
    const bool files = a_.Has("--vocab-file") || a_.Has("--merge-file");
    const bool size_alone = a_.Has("--vocab-size") && !files;
    return a_.Has("--tokenizer-type") || size_alone ? "" : kGpt2Tokenizer;
  }

  // Of the tokenizer, where the script does not say it. `comment`, `flag`: of GPT-2's.
  void VocabularySize(const std::string& tokenizer, const std::string& comment, const char* flag) {
    const bool named = a_.Has("--tokenizer-type");
    if (const std::optional<std::int64_t> size = a_.Int("--vocab-size")) {
      const bool null = tokenizer == "NullTokenizer";
      Set("model.vocab", null && *size < kMostSize ? *size + 1 : *size,
          null ? "NullTokenizer adds the end of a document" : "", "--vocab-size");
    } else if (tokenizer == kGpt2Tokenizer) {
      Set("model.vocab", std::int64_t{50257},
          named ? "GPT2BPETokenizer's" : fmt::format("GPT2BPETokenizer's, {}", comment), flag);
    } else if (tokenizer == "Llama2Tokenizer") {
      Set("model.vocab", std::int64_t{32000}, "Llama2Tokenizer's", "--tokenizer-type");
    } else if (!a_.Has("--vocab-size") && !tokenizer.empty()) {
      a_.Error("--tokenizer-type",
               fmt::format("how large {}'s vocabulary is, its files say", Shown(tokenizer)),
               "add --vocab-size N, without padding");
    }
  }
};

// Where the tokens come from: data sets, with their weights in a blend, or a random generator.
class DataConverter : MegatronWriter {
 public:
  DataConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks)
      : MegatronWriter(arguments, settings, remarks) {}

  // A list of prefixes, or of weights and prefixes in turns.
  void Convert() {
    Documents();
    if (a_.Has("--mock-data")) return RandomTokens();
    const std::vector<std::string> list = a_.List("--data-path");
    if (list.empty()) return;
    std::vector<std::string> paths;
    std::vector<double> weights;
    for (std::size_t i = 0; i + 1 < list.size(); i += 2) {
      if (const std::optional<double> weight = AsNumber(list[i])) weights.push_back(*weight);
    }
    if (list.size() % 2 == 1 || weights.empty()) {
      paths = list;
      weights.clear();
    } else if (weights.size() * 2 != list.size()) {
      a_.Error("--data-path", "--data-path mixes weighted paths with others",
               "a weight before each path, or none");
      return;
    }
    for (std::size_t i = 1; !weights.empty() && i < list.size(); i += 2) paths.push_back(list[i]);
    Set("data.paths", std::move(paths), "", "--data-path");
    Surplus(!weights.empty());
    if (!weights.empty()) Set("data.weights", std::move(weights), "", "--data-path");
  }

 private:
  // Megatron-LM masks what stands before an end of document, begins positions again there, or does both; here both go together.
  void Documents() {
    constexpr const char* kMask = "--reset-attention-mask";
    constexpr const char* kPositions = "--reset-position-ids";
    if (a_.Has(kMask) != a_.Has(kPositions)) {
      const char* given = a_.Has(kMask) ? kMask : kPositions;
      const char* other = a_.Has(kMask) ? kPositions : kMask;
      a_.Error(given, fmt::format("{} without {}: data.documents = \"masked\" is both", given, other),
               fmt::format("add {}, or leave {} out", other, given));
      return;
    }
    if (!a_.Has(kMask)) return;
    if (a_.Has("--mock-data")) {
      for (const char* flag : {kMask, kPositions}) Remark(flag, "a sample of random tokens is one document");
      return;
    }
    Set("data.documents", std::string("masked"), "they end at rows of the .idx, too", kMask);
    if (settings_.count("data.tokenizer.kind") != 0) return;
    Set("data.tokenizer.kind", std::string("none"), "of which no token ends a document", kMask);
    Warn(
        kMask,
        "this tokenizer's end-of-document token is not known here, so that documents end at rows of the .idx "
        "alone");
  }

  void RandomTokens() {
    for (const char* key :
         {"data.split", "data.tokenizer.kind", "data.tokenizer.vocab_file", "data.tokenizer.merges_file"}) {
      settings_.erase(key);
    }
    for (const char* flag : {"--data-path", "--split", "--tokenizer-type", "--vocab-file", "--merge-file",
                             "--mid-level-dataset-surplus"}) {
      if (a_.Has(flag)) Remark(flag, "random tokens are of no file");
    }
    Set("data.source", std::string("random"), "", "--mock-data");
  }

  void Surplus(bool blends) {
    constexpr const char* kFlag = "--mid-level-dataset-surplus";
    constexpr double kSurplus = 0.005;  // data/blend.cpp
    if (!a_.Has(kFlag)) return;
    if (!blends) {
      Remark(kFlag, "no effect without a blend");
    } else if (a_.Number(kFlag).value_or(kSurplus) == kSurplus) {
      Remark(kFlag, "as it is here");
    } else {
      Warn(kFlag,
           "a blend's data sets are built for 0.005 more samples than it takes, and another number shuffles "
           "them in another way");
    }
  }
};

}  // namespace

void ConvertMegatronTokenizer(const MegatronArguments& arguments, MegatronSettings* settings,
                              MegatronRemarks* remarks) {
  TokenizerConverter(arguments, settings, remarks).Convert();
}

void ConvertMegatronData(const MegatronArguments& arguments, MegatronSettings* settings,
                         MegatronRemarks* remarks) {
  DataConverter(arguments, settings, remarks).Convert();
}

}  // namespace engine::import
