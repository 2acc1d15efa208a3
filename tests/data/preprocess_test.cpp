#include "engine/data/preprocess.h"

#include <doctest/doctest.h>

#include "engine/base/status.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

std::unique_ptr<Tokenizer> Bytes() { return *MakeTokenizer({}); }

struct Built {
  PreprocessResult result;
  std::vector<std::vector<std::int32_t>> sequences;
  std::vector<std::int64_t> documents;
};

Built BuildAndRead(const PreprocessOptions& options) {
  absl::StatusOr<PreprocessResult> result = Preprocess(options, *Bytes());
  REQUIRE_MESSAGE(result.ok(), Message(result.status()));
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(result->prefix);
  REQUIRE_MESSAGE(dataset.ok(), Message(dataset.status()));
  Built built = {*result, {}, {}};
  for (std::int64_t i = 0; i < dataset->sequences(); ++i) {
    built.sequences.emplace_back(static_cast<std::size_t>(dataset->lengths()[i]));
    dataset->Read(i, 0, built.sequences.back());
  }
  for (std::int64_t i = 0; i <= dataset->documents(); ++i)
    built.documents.push_back(dataset->first_sequence(i));
  return built;
}

PreprocessOptions Options(const TempDir& dir) {
  PreprocessOptions options;
  options.inputs = {dir / "in"};
  options.output_prefix = dir / "out";
  return options;
}

}  // namespace

TEST_CASE("JSON lines with ends of documents: lists are sequences, empty documents stay and get no end") {
  const TempDir dir;
  WriteFile(dir / "in",
            "{\"text\":\"ab\"}\n{\"text\":\"\"}\n{\"text\":[\"c\",\"\",\"de\"]}\n{\"text\":[]}\n");
  PreprocessOptions options = Options(dir);
  options.append_eod = true;
  const Built built = BuildAndRead(options);
  CHECK(built.sequences == std::vector<std::vector<std::int32_t>>{{97, 98, 256}, {99}, {100, 101, 256}});
  CHECK(built.documents == std::vector<std::int64_t>{0, 1, 1, 3, 3});
  CHECK(built.result.prefix == dir / "out_text_document");
  CHECK(built.result.type == TokenType::kU16);
  CHECK(built.result.documents == 4);
  CHECK(built.result.sequences == 3);
  CHECK(built.result.tokens == 7);
}

TEST_CASE("without ends of documents, another key") {
  const TempDir dir;
  WriteFile(dir / "in", "{\"body\":\"ab\"}\n");
  PreprocessOptions options = Options(dir);
  options.json_key = "body";
  const Built built = BuildAndRead(options);
  CHECK(built.sequences == std::vector<std::vector<std::int32_t>>{{97, 98}});
  CHECK(built.result.prefix == dir / "out_body_document");
}

TEST_CASE("plain text from several files") {
  const TempDir dir;
  WriteFile(dir / "in", "a\n%\nb\n%\n");
  WriteFile(dir / "in2", "c");
  PreprocessOptions options = Options(dir);
  options.inputs.push_back(dir / "in2");
  options.format = InputFormat::kText;
  options.document_separator = "%";
  const Built built = BuildAndRead(options);
  CHECK(built.sequences == std::vector<std::vector<std::int32_t>>{{97, 10}, {98, 10}, {99}});
  CHECK(built.result.files == 2);
  CHECK(built.result.input_bytes == 9);
  CHECK(built.result.passed_over.total() == 0);
  std::filesystem::create_directory(dir / "texts");
  for (const char* name : {"texts/a", "texts/.b", "texts/c.dat"}) WriteFile(dir / name, "a");
  options.inputs = {dir / "texts"};
  CHECK(BuildAndRead(options).result.passed_over.total() == 2);
}

TEST_CASE("nothing is written on an error") {
  const TempDir dir;
  PreprocessOptions options = Options(dir);
  WriteFile(dir / "in", "{\"text\":\"ab\"}\n{oops\n");
  CHECK(Message(Preprocess(options, *Bytes()).status()).starts_with((dir / "in") + ":2:2: error: "));
  CHECK(dir.entries() == 1);
  WriteFile(dir / "in", "\n\n");
  CHECK(Message(Preprocess(options, *Bytes()).status()) ==
        "no documents in 1 files, the first of which is " + (dir / "in"));
  CHECK(dir.entries() == 1);
  options.output_prefix = dir / "no/such/out";
  CHECK(Message(Preprocess(options, *Bytes()).status()).starts_with("cannot create "));
}

}  // namespace engine::data
