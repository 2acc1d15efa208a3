#include <doctest/doctest.h>

#include <string>

#include "tests/cli/run_binary.h"
#include "tests/data/temp_dir.h"

namespace engine::cli {
namespace {

std::string Gpt2Folder() { return std::string(ENGINE_SOURCE_DIR) + "/tests/tokenizer/gpt2"; }
std::string BpeModel() { return std::string(ENGINE_SOURCE_DIR) + "/tests/tokenizer/sentencepiece/bpe.model"; }

}  // namespace

TEST_CASE("tokenize: text becomes ids, and ids that text again") {
  const data::TempDir dir;
  const std::string text = "the cat's hat,  1234\n\n\u4F60";
  data::WriteFile(dir / "in.txt", text);
  const ProgramResult ids = RunProgram("tokenize " + Gpt2Folder() + " --input " + dir / "in.txt");
  CHECK(ids.exit_code == 0);
  data::WriteFile(dir / "ids.txt", ids.output);
  const ProgramResult back = RunProgram("tokenize " + Gpt2Folder() + " --decode --input " + dir / "ids.txt");
  CHECK(back.exit_code == 0);
  CHECK(back.output == text);
  const ProgramResult none = RunProgram("tokenize " + Gpt2Folder() + " --template --input " + dir / "in.txt");
  CHECK(none.output.find("note: " + Gpt2Folder() + " has no template: nothing is put around a text\n") !=
        std::string::npos);
  CHECK(
      RunProgram("tokenize " + Gpt2Folder() + " --template --decode --input " + dir / "ids.txt").exit_code ==
      2);
}

TEST_CASE("tokenize: lines of JSON, and mistakes with their place") {
  const data::TempDir dir;
  data::WriteFile(dir / "in.jsonl", "\"the engine\"\n\"\"\n\"a\\nb\"\n");
  const ProgramResult ids =
      RunProgram("tokenize " + BpeModel() + " --format jsonl --input " + dir / "in.jsonl");
  CHECK(ids.exit_code == 0);
  data::WriteFile(dir / "ids.jsonl", ids.output);
  const ProgramResult back =
      RunProgram("tokenize " + BpeModel() + " --decode --format jsonl --input " + dir / "ids.jsonl");
  CHECK(back.output == "\"the engine\"\n\"\"\n\"a\\nb\"\n");
  data::WriteFile(dir / "bad.jsonl", "\"a\"\n[1]\n");
  const ProgramResult bad =
      RunProgram("tokenize " + BpeModel() + " --format jsonl --input " + dir / "bad.jsonl");
  CHECK(bad.exit_code == 1);
  CHECK(bad.output.find("bad.jsonl:2: error: must be a string, and is a list") != std::string::npos);
  data::WriteFile(dir / "bad.ids", "[1]\n[1, 99999]\n");
  const ProgramResult beyond =
      RunProgram("tokenize " + BpeModel() + " --decode --format jsonl --input " + dir / "bad.ids");
  CHECK(beyond.exit_code == 1);
  CHECK(beyond.output.find("bad.ids:2:5: error: id 99999 is outside") != std::string::npos);
}

TEST_CASE("tokenizer info: what it is made of; what is none is an error") {
  const ProgramResult info = RunProgram("tokenizer info " + BpeModel());
  CHECK(info.exit_code == 0);
  CHECK(
      info.output.find(
          "(SentencePiece, BPE)\nvocabulary       700 ids, 700 of the model, 4 added tokens (3 special)\n") !=
      std::string::npos);
  CHECK(info.output.find("beginning        1 <s>, by the model's beginning of a sentence\n") !=
        std::string::npos);
  CHECK(info.output.find("end of document  2 </s>, by the model's end of a sentence\n") != std::string::npos);
  const ProgramResult none = RunProgram("tokenizer info " + std::string(ENGINE_SOURCE_DIR) + "/docs");
  CHECK(none.exit_code == 1);
  CHECK(none.output.find("has no tokenizer: no tokenizer.json, tokenizer.model") != std::string::npos);
}

TEST_CASE("data build: with the tokenizer of a file") {
  const data::TempDir dir;
  data::WriteFile(dir / "in.jsonl", "{\"text\": \"the engine trains\"}\n");
  const std::string build =
      "data build --input " + dir / "in.jsonl" + " --output-prefix " + dir / "out" + " --append-eod";
  const ProgramResult good = RunProgram(build + " --tokenizer file --tokenizer-path " + BpeModel());
  CHECK(good.exit_code == 0);
  CHECK(good.output.starts_with("1 documents, 1 sequences, "));
  const ProgramResult unnamed = RunProgram(build + " --tokenizer-path " + BpeModel());
  CHECK(unnamed.exit_code == 1);
  CHECK(unnamed.output.find(
            "--tokenizer-path, --beginning-of-document and --end-of-document are for --tokenizer file") !=
        std::string::npos);
  const ProgramResult other =
      RunProgram(build + " --tokenizer file --end-of-document nothing --tokenizer-path " + BpeModel());
  CHECK(other.exit_code == 1);
  CHECK(other.output.find("has no token \"nothing\" to end a document") != std::string::npos);
  const ProgramResult begins = RunProgram(build +
                                          " --prepend-bos --beginning-of-document '<pad>' --tokenizer file "
                                          "--tokenizer-path " +
                                          BpeModel());
  CHECK(begins.exit_code == 1);
  CHECK(begins.output.find("has no token \"<pad>\" to begin a document") != std::string::npos);
}

}  // namespace engine::cli
