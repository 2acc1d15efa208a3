// Data, documents and tokenizers of Megatron-LM's scripts.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/import/megatron_convert.h"
#include "engine/import/megatron_import.h"
#include "tests/import/megatron_script.h"

namespace engine::import {

TEST_CASE("megatron: data, evaluation, checkpoints") {
  const std::vector<std::string> data = {"data.paths", "data.weights"};
  CHECK(Values({{"--data-path", "0.3 a 0.7 b"}}, data) == "[\"a\", \"b\"] [0.3, 0.7]");
  CHECK(Values({{"--data-path", "a b c"}}, data) == "[\"a\", \"b\", \"c\"] []");
  CHECK(Values({{"--data-path", "a b"}}, data) == "[\"a\", \"b\"] []");
  CHECK(Values({{"--data-path", "1 a"}}, data) == "[\"a\"] [1.0]");
  const std::vector<std::string> evaluation = {"evaluation.interval", "evaluation.iterations",
                                               "checkpoint.interval"};
  CHECK(Values({{"--eval-interval", "50"}, {"--save", "x"}, {"--save-interval", "20"}}, evaluation) ==
        "50 100 20");
  CHECK(Values({{"--eval-interval", "50"}, {"--eval-iters", "0"}, {"--save-interval", "20"}}, evaluation) ==
        "0 10 0");
  CHECK(Values({{"--eval-interval", "50"}, {"--split", "100,0,0"}}, evaluation) == "0 10 0");
  const std::vector<std::string> memory = {"checkpoint.memory", "checkpoint.memory_interval"};
  CHECK(Values({{"--non-persistent-ckpt-type", "local"}, {"--non-persistent-save-interval", "20"}}, memory) ==
        "true 20");
  CHECK(Values({{"--save", "x"}, {"--save-interval", "20"}}, memory) == "false 0");
}

TEST_CASE("megatron: data sets of each split") {
  const std::vector<std::string> keys = {"data.paths",
                                         "data.train.paths",
                                         "data.train.weights",
                                         "data.validation.paths",
                                         "data.validation.weights",
                                         "data.test.paths",
                                         "evaluation.interval"};
  Flags flags = {{"--data-path", "-"},
                 {"--train-data-path", "0.3 a 0.7 b"},
                 {"--valid-data-path", "c"},
                 {"--test-data-path", "d e"},
                 {"--eval-interval", "50"}};
  CHECK(Values(flags, keys) == "[] [\"a\", \"b\"] [0.3, 0.7] [\"c\"] [] [\"d\", \"e\"] 50");
  flags["--valid-data-path"] = "-";
  CHECK(Values(flags, keys) == "[] [\"a\", \"b\"] [0.3, 0.7] [] [] [\"d\", \"e\"] 0");
  CHECK(Import(Script(flags)).recipe.find("# no --valid-data-path: never") != std::string::npos);
  flags["--train-data-path"] = "-";
  CHECK(ErrorOf(flags) == "--train-data-path is missing | hint: --mock-data trains on random tokens");
  CHECK(ErrorOf({{"--valid-data-path", "c"}}) ==
        "--data-path and --valid-data-path contradict each other | hint: keep one of them");
  CHECK(ErrorOf({{"--data-path", "-"}, {"--train-data-path", "a"}, {"--split", "9,1,0"}}) ==
        "--split and --train-data-path contradict each other | hint: keep one of them");
  CHECK(ErrorOf({{"--data-path", "-"}, {"--train-data-path", "0.5 a b c"}}) ==
        "--train-data-path mixes weighted paths with others | hint: a weight before each path, or none");
}

namespace {

const Flags kLlama = {{"--tokenizer-type", "HuggingFaceTokenizer"}, {"--tokenizer-model", "llama"}};

}  // namespace

TEST_CASE("megatron: tokenizers of a file or folder") {
  const std::vector<std::string> keys = {"data.tokenizer.kind", "data.tokenizer.path"};
  for (const char* type : {"HuggingFaceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"})
    CHECK(Values({{"--tokenizer-type", type}, {"--tokenizer-model", "m"}}, keys) == "\"file\" \"m\"");
  CHECK(Values(With(kLlama, {{"--reset-attention-mask", ""}, {"--reset-position-ids", ""}}), keys) ==
        "\"file\" \"llama\"");
  CHECK(Values({{"--tokenizer-type", "TikTokenizer"}, {"--tokenizer-model", "m"}}, keys) == "\"byte\" \"\"");
  CHECK(Import(Script({{"--tokenizer-type", "TikTokenizer"}, {"--tokenizer-model", "m"}}))
            .recipe.find(
                "# --tokenizer-model: of a tokenizer whose files are not read; data sets may be of any\n"
                "# --tokenizer-type: its files are not read; data sets may be of any tokenizer\n") !=
        std::string::npos);
  CHECK(Import(Script({{"--tokenizer-type", "HuggingFaceTokenizer"}}))
            .recipe.find(
                "# --tokenizer-type: no --tokenizer-model says where its files are; data sets may be of "
                "any\n") != std::string::npos);
}

TEST_CASE("megatron: what is taken for a tokenizer that the script only names is noted") {
  const auto notes = [](const std::string& type, const std::string& model, const Flags& more = {}) {
    return Messages(
        Import(Script(With({{"--tokenizer-type", type}, {"--tokenizer-model", model}}, more))).diagnostics);
  };
  const std::string hub =
      ": note: meta-llama/Llama-3-8B reads like a name at Hugging Face's hub, and nothing is fetched from "
      "there: "
      "it counts as the path of a folder with the tokenizer's files\n";
  const std::string noted = notes("HuggingFaceTokenizer", "meta-llama/Llama-3-8B");
  CHECK_MESSAGE(noted.ends_with(hub), noted);
  CHECK(noted.find('\n') + 1 == noted.size());
  for (const char* path : {"/m/llama", "./llama", "../llama", "llama", "a/b/llama", "m/tokenizer.json"})
    CHECK(notes("HuggingFaceTokenizer", path) == "");
  CHECK(notes("GPTSentencePieceTokenizer", "a/b") == "");

  const std::string taken = notes("Llama2Tokenizer", "m", {{"--vocab-size", "-"}});
  CHECK_MESSAGE(
      taken.ends_with(": note: the vocabulary is taken to be the 32000 tokens of Llama 2's; --vocab-size N "
                      "says another one, without padding\n"),
      taken);
  CHECK(notes("Llama2Tokenizer", "m") == "");  // --vocab-size says it
}

TEST_CASE("megatron: which token ends a document is said where Megatron-LM takes another one") {
  constexpr const char* kComment = "Megatron-LM ends documents with eos_token;";
  const Flags file = {{"--tokenizer-type", "HuggingFaceTokenizer"}, {"--tokenizer-model", "m"}};
  const Flags masked = {{"--eod-mask-loss", ""}};
  const Flags restarted = {{"--reset-attention-mask", ""}, {"--reset-position-ids", ""}};
  for (const Flags& flags : {masked, restarted})
    CHECK(Import(Script(With(file, flags))).recipe.find(kComment) != std::string::npos);
  CHECK(Import(Script(file)).recipe.find(kComment) == std::string::npos);
}

TEST_CASE("megatron: a loss without what stands behind an end of a document needs a tokenizer that has one") {
  const std::vector<std::string> keys = {"data.mask_end_of_document_loss", "data.documents"};
  const Flags masked = With(kLlama, {{"--eod-mask-loss", ""}});
  CHECK(Values(masked, keys) == "true \"across\"");
  constexpr const char* kComment = "# all labels that count weigh alike; in Megatron-LM all microbatches do";
  CHECK(Import(Script(masked)).recipe.find(kComment) != std::string::npos);
  const std::string same = Import(Script(With(masked, {{"--calculate-per-token-loss", ""}}))).recipe;
  CHECK(same.find("mask_end_of_document_loss = true") != std::string::npos);
  CHECK(same.find(kComment) == std::string::npos);
  CHECK(ErrorOf({{"--eod-mask-loss", ""}}) ==
        "--eod-mask-loss goes by the tokenizer's end-of-document token, which is not known here | hint: "
        "--tokenizer-type GPT2BPETokenizer with its files, or HuggingFaceTokenizer with --tokenizer-model");
  CHECK(Import(Script(With(masked, {{"--mock-data", ""}})))
            .recipe.find("# --eod-mask-loss: a sample of random tokens is one document\n") !=
        std::string::npos);
}

TEST_CASE("megatron: filling in the middle") {
  const std::vector<std::string> keys = {
      "data.fim.rate",          "data.fim.spm_rate",     "data.fim.prefix_token",
      "data.fim.middle_token",  "data.fim.suffix_token", "data.fim.split_token",
      "data.fim.fragment_rate", "data.fim.no_prefix",    "data.tokenizer.end_of_document"};
  const Flags defaults = With(kLlama, {{"--fim-data", ""}});
  CHECK(Values(defaults, keys) ==
        "0.5 0.5 \"<fim_prefix>\" \"<fim_middle>\" \"<fim_suffix>\" \"\" 1.0 \"\" \"\"");
  CHECK(Values(With(defaults, {{"--fim-rate", "0.9"},
                               {"--fim-spm-rate", "0.25"},
                               {"--fim-prefix-token", "p"},
                               {"--fim-middle-token", "m"},
                               {"--fim-suffix-token", "s"},
                               {"--fim-pad-token", "x"},
                               {"--fim-split-sample", "f"},
                               {"--fim-fragment-rate", "0.75"},
                               {"--fim-no-prefix", "n"},
                               {"--fim-eod-token", "e"}}),
               keys) == "0.9 0.25 \"p\" \"m\" \"s\" \"f\" 0.75 \"n\" \"e\"");
  CHECK(ErrorOf(With(defaults, {{"--fim-split-sample", "f"}})) ==
        "--fim-split-sample needs --fim-fragment-rate | hint: --fim-fragment-rate 0.5, or what share of the "
        "parts of a document is to be rearranged");
  CHECK(Import(Script(With(defaults, {{"--fim-fragment-rate", "0.5"}})))
            .recipe.find("# --fim-fragment-rate: no effect without --fim-split-sample\n") !=
        std::string::npos);
  const std::string without = Import(Script({{"--fim-rate", "0.5"}, {"--fim-eod-token", "e"}})).recipe;
  CHECK(without.find("# --fim-eod-token, --fim-rate: no effect without --fim-data\n") != std::string::npos);
  CHECK(without.find("data.fim") == std::string::npos);
  CHECK(ErrorOf({{"--fim-data", ""}}).find("filling in the middle needs tokens") == 0);
}

TEST_CASE("megatron: documents that are masked have positions of their own, and one alone is refused") {
  const auto recipe = [](Flags flags) {
    flags["--data-path"] = "a";
    return Import(Script(flags)).recipe;
  };
  const Flags both = {{"--reset-attention-mask", ""}, {"--reset-position-ids", ""}};
  const std::string masked = recipe(both);
  CHECK(masked.find("documents = \"masked\"") != std::string::npos);
  CHECK(masked.find("kind = \"none\"") != std::string::npos);
  CHECK(recipe({}).find("documents") == std::string::npos);
  CHECK(Messages(Import(Script(both)).diagnostics).find("documents end at rows of the .idx alone") !=
        std::string::npos);
  Flags gpt2 = both;
  gpt2["--tokenizer-type"] = "GPT2BPETokenizer";
  gpt2["--vocab-file"] = "v";
  gpt2["--merge-file"] = "m";
  CHECK(recipe(gpt2).find("kind = \"gpt2\"") != std::string::npos);
  for (const char* alone : {"--reset-attention-mask", "--reset-position-ids"}) {
    CAPTURE(alone);
    const std::string errors = Messages(Import(Script({{alone, ""}, {"--data-path", "a"}})).diagnostics);
    CHECK(errors.find(fmt::format("error: {} without --reset-", alone)) != std::string::npos);
    CHECK(errors.find("data.documents = \"masked\" is both") != std::string::npos);
  }
}

TEST_CASE("megatron: --mock-data is random tokens, and nothing of files") {
  const recipe::Source source("run.sh", Script({{"--mock-data", ""},
                                                {"--split", "99,1,0"},
                                                {"--tokenizer-type", "GPT2BPETokenizer"},
                                                {"--vocab-file", "v"},
                                                {"--merge-file", "m"},
                                                {"--vocab-size", "-"}}));
  std::vector<Diagnostic> diagnostics;
  const ShellScript shell = ReadShell(source, {}, {}, &diagnostics);
  const std::optional<MegatronCommand> command = FindMegatronCommand(source, shell, {}, &diagnostics);
  REQUIRE(command);
  MegatronRemarks remarks;
  MegatronModelChanges changes;
  const MegatronSettings settings =
      ConvertMegatron(MegatronArguments(source, *command, &diagnostics), &remarks, &changes);
  CHECK(Messages(diagnostics).empty());
  std::string data;
  for (const auto& [key, setting] : settings) {
    if (key.starts_with("data.")) data += key + " = " + recipe::ToToml(setting.value) + "\n";
  }
  CHECK(data == "data.sequence_length = 32\ndata.source = \"random\"\n");
  CHECK(recipe::ToToml(settings.at("model.vocab").value) == "50257");
  for (const char* flag : {"--data-path", "--split", "--tokenizer-type", "--vocab-file", "--merge-file"}) {
    CHECK(remarks.at(flag).text == "random tokens are of no file");
  }
}

TEST_CASE("megatron: pretrain_gpt.py's default is GPT-2's tokenizer") {
  const std::vector<std::string> keys = {"data.tokenizer.kind", "data.tokenizer.vocab_file", "model.vocab"};
  const Flags files = {{"--vocab-size", "-"}, {"--vocab-file", "v.json"}, {"--merge-file", "m.txt"}};
  CHECK(Values(files, keys) == "\"gpt2\" \"v.json\" 50257");
  CHECK(Import(Script(files)).recipe.find("  # pretrain_gpt.py's default\n") != std::string::npos);
  Flags other = files;
  other["--tokenizer-type"] = "Llama2Tokenizer";
  CHECK(Values(other, keys) == "\"byte\" \"\" 32000");
  CHECK(Import(Script(other))
            .recipe.find("# --merge-file, --vocab-file: of the tokenizer, which is another one here\n") !=
        std::string::npos);
  CHECK(Values({}, keys) == "\"byte\" \"\" 1000");  // --vocab-size alone
}

}  // namespace engine::import
