#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/import/megatron_writer.h"

namespace engine::import {
namespace {

constexpr const char* kGpt2Tokenizer = "GPT2BPETokenizer";
// Their --tokenizer-model is a Hugging Face folder or a SentencePiece model.
constexpr const char* kHuggingFace = "HuggingFaceTokenizer";
constexpr std::array<std::string_view, 3> kFileTokenizers = {kHuggingFace, "GPTSentencePieceTokenizer",
                                                             "Llama2Tokenizer"};

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
      settings_.erase("data.tokenizer.vocab_file");
      settings_.erase("data.tokenizer.merges_file");
      for (const char* file : {"--vocab-file", "--merge-file"})
        if (a_.Has(file)) Remark(file, "of the tokenizer, which is another one here");
    }
    Files(tokenizer);
    VocabularySize(tokenizer, comment, flag);
  }

 private:
  // The file or folder of a tokenizer that is not GPT-2's.
  void Files(const std::string& tokenizer) {
    constexpr const char* kModel = "--tokenizer-model";
    const bool reads =
        std::find(kFileTokenizers.begin(), kFileTokenizers.end(), tokenizer) != kFileTokenizers.end();
    if (!reads || !a_.Has(kModel)) {
      if (a_.Has(kModel)) Remark(kModel, "of a tokenizer whose files are not read; data sets may be of any");
      if (tokenizer != kGpt2Tokenizer && a_.Has("--tokenizer-type")) {
        Remark("--tokenizer-type",
               reads ? "no --tokenizer-model says where its files are; data sets may be of any"
                     : "its files are not read; data sets may be of any tokenizer");
      }
      return;
    }
    const bool ends_matter =
        a_.Has("--eod-mask-loss") || a_.Has("--reset-attention-mask") || a_.Has("--reset-position-ids");
    const char* which_end =
        "Megatron-LM ends documents with eos_token; engine tokenizer info says which token it is here, and "
        "data.tokenizer.end_of_document names another";
    Set("data.tokenizer.kind", std::string("file"), tokenizer == kHuggingFace && ends_matter ? which_end : "",
        "--tokenizer-type");
    if (const std::optional<std::string> path = a_.Text(kModel)) {
      Set("data.tokenizer.path", *path, "", kModel);
      if (tokenizer == kHuggingFace && IsHubName(*path) && !a_.Has("--mock-data")) {
        a_.Note(
            kModel,
            fmt::format("{} reads like a name at Hugging Face's hub, and nothing is fetched from there: it "
                        "counts as the path of a folder with the tokenizer's files",
                        Shown(*path)));
      }
    }
  }

  // "meta-llama/Llama-3-8B": an owner and a model, as far as the text can tell.
  static bool IsHubName(const std::string& path) {
    const bool is_relative = !path.empty() && std::string_view("/.~").find(path[0]) == std::string_view::npos;
    return is_relative && std::count(path.begin(), path.end(), '/') == 1 && !path.ends_with('/') &&
           !path.ends_with(".json") && !path.ends_with(".model");
  }

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
      a_.Note("--tokenizer-type",
              "the vocabulary is taken to be the 32000 tokens of Llama 2's; --vocab-size N says another one, "
              "without "
              "padding");
    } else if (!a_.Has("--vocab-size") && !tokenizer.empty()) {
      a_.Error("--tokenizer-type",
               fmt::format("how large {}'s vocabulary is, its files say", Shown(tokenizer)),
               "add --vocab-size N, without padding");
    }
  }
};

// Where the tokens come from: data sets, with their weights in a blend, or a random generator.
class DataConverter : MegatronWriter {
  static constexpr std::array kFileFlags = {
      "--data-path",  "--train-data-path",          "--valid-data-path", "--test-data-path",
      "--split",      "--tokenizer-type",           "--tokenizer-model", "--vocab-file",
      "--merge-file", "--mid-level-dataset-surplus"};
  static constexpr std::array kDocumentFlags = {"--reset-attention-mask", "--reset-position-ids",
                                                "--eod-mask-loss"};
  static constexpr std::array kFimFlags = {"--fim-data",         "--fim-rate",          "--fim-spm-rate",
                                           "--fim-prefix-token", "--fim-middle-token",  "--fim-suffix-token",
                                           "--fim-split-sample", "--fim-fragment-rate", "--fim-no-prefix",
                                           "--fim-eod-token"};

 public:
  DataConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks)
      : MegatronWriter(arguments, settings, remarks) {}

  void Convert() {
    if (a_.Has("--mock-data")) return RandomTokens();
    MaskedLoss();
    Documents();
    FillInMiddle();
    bool blends = false;
    for (const auto& [flag, paths, weights] :
         {std::tuple("--data-path", "data.paths", "data.weights"),
          std::tuple("--train-data-path", "data.train.paths", "data.train.weights"),
          std::tuple("--valid-data-path", "data.validation.paths", "data.validation.weights"),
          std::tuple("--test-data-path", "data.test.paths", "data.test.weights")}) {
      blends = DataSets(flag, paths, weights) || blends;
    }
    Surplus(blends);
  }

 private:
  // A list of prefixes, or of weights and prefixes in turns. Returns whether it has weights.
  bool DataSets(const char* flag, const char* paths_key, const char* weights_key) {
    const std::vector<std::string> list = a_.List(flag);
    if (list.empty()) return false;
    std::vector<std::string> paths;
    std::vector<double> weights;
    for (std::size_t i = 0; i + 1 < list.size(); i += 2) {
      if (const std::optional<double> weight = AsNumber(list[i])) weights.push_back(*weight);
    }
    if (list.size() % 2 == 1 || weights.empty()) {
      Set(paths_key, list, "", flag);
      return false;
    }
    if (weights.size() * 2 != list.size()) {
      a_.Error(flag, fmt::format("{} mixes weighted paths with others", flag),
               "a weight before each path, or none");
      return false;
    }
    for (std::size_t i = 1; i < list.size(); i += 2) paths.push_back(list[i]);
    Set(paths_key, std::move(paths), "", flag);
    Set(weights_key, std::move(weights), "", flag);
    return true;
  }

  void MaskedLoss() {
    constexpr const char* kFlag = "--eod-mask-loss";
    if (!a_.Has(kFlag)) return;
    if (settings_.count("data.tokenizer.kind") == 0) {
      a_.Error(
          kFlag, "--eod-mask-loss goes by the tokenizer's end-of-document token, which is not known here",
          "--tokenizer-type GPT2BPETokenizer with its files, or HuggingFaceTokenizer with --tokenizer-model");
      return;
    }
    Set("data.mask_end_of_document_loss", true,
        a_.Has("--calculate-per-token-loss")
            ? ""
            : "all labels that count weigh alike; in Megatron-LM all microbatches do",
        kFlag);
  }

  // Megatron-LM draws from one generator in the order of reading; the recipe's draws are by sample.
  void FillInMiddle() {
    constexpr const char* kFlag = "--fim-data";
    constexpr std::array kNumbers = {std::tuple("--fim-rate", "data.fim.rate", 0.5),
                                     std::tuple("--fim-spm-rate", "data.fim.spm_rate", 0.5)};
    constexpr std::array kTokens = {std::tuple("--fim-prefix-token", "data.fim.prefix_token", "<fim_prefix>"),
                                    std::tuple("--fim-middle-token", "data.fim.middle_token", "<fim_middle>"),
                                    std::tuple("--fim-suffix-token", "data.fim.suffix_token", "<fim_suffix>"),
                                    std::tuple("--fim-split-sample", "data.fim.split_token", ""),
                                    std::tuple("--fim-no-prefix", "data.fim.no_prefix", ""),
                                    std::tuple("--fim-eod-token", "data.tokenizer.end_of_document", "")};
    constexpr const char* kFragments = "--fim-fragment-rate";
    if (!a_.Has(kFlag)) {
      Unused(kFimFlags, "no effect without --fim-data");
      return;
    }
    for (const auto& [flag, key, otherwise] : kNumbers) {
      const bool given = a_.Has(flag);
      Set(key, a_.Number(flag).value_or(otherwise), given ? "" : kDefault, given ? flag : kFlag);
    }
    for (const auto& [flag, key, otherwise] : kTokens) {
      const bool given = a_.Has(flag);
      const std::string token = a_.Text(flag).value_or(otherwise);
      if (!token.empty()) Set(key, token, given ? "" : kDefault, given ? flag : kFlag);
    }
    if (!a_.Has("--fim-split-sample")) {
      if (a_.Has(kFragments)) Remark(kFragments, "no effect without --fim-split-sample");
    } else if (const std::optional<double> rate = a_.Number(kFragments)) {
      Set("data.fim.fragment_rate", *rate, "", kFragments);
    }
  }

  void Unused(std::span<const char* const> flags, const char* why) {
    for (const char* flag : flags) {
      if (a_.Has(flag)) Remark(flag, why);
    }
  }

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
    Set("data.documents", std::string("masked"), "they end at rows of the .idx, too", kMask);
    if (settings_.count("data.tokenizer.kind") != 0) return;
    Set("data.tokenizer.kind", std::string("none"), "of which no token ends a document", kMask);
    Warn(
        kMask,
        "this tokenizer's end-of-document token is not known here, so that documents end at rows of the .idx "
        "alone");
  }

  void RandomTokens() {
    for (const char* key : {"data.split", "data.tokenizer.kind", "data.tokenizer.vocab_file",
                            "data.tokenizer.merges_file", "data.tokenizer.path"}) {
      settings_.erase(key);
    }
    Unused(kFileFlags, "random tokens are of no file");
    Unused(kFimFlags, "random tokens are of no file");
    Unused(kDocumentFlags, "a sample of random tokens is one document");
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
