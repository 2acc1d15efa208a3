#include "engine/data/preprocess.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/status.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

std::unique_ptr<Tokenizer> Bytes() { return *MakeTokenizer({}); }

struct Built {
  BuildResult result;
  std::vector<std::vector<std::int32_t>> sequences;
  std::vector<std::int64_t> documents;
};

Built BuildAndRead(const PreprocessOptions& options, std::size_t key = 0) {
  absl::StatusOr<BuildResult> result = Preprocess(options, *Bytes());
  REQUIRE_MESSAGE(result.ok(), Message(result.status()));
  const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(result->datasets.at(key).prefix);
  REQUIRE_MESSAGE(dataset.ok(), Message(dataset.status()));
  Built built = {*result, {}, {}};
  for (std::int64_t i = 0; i < dataset->sequences(); ++i) {
    built.sequences.emplace_back(static_cast<std::size_t>(dataset->lengths()[i]));
    REQUIRE(dataset->Read(i, 0, built.sequences.back()).ok());
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

TEST_CASE(
    "each document with tokens begins with the tokenizer's token for that, once, and says so where there is "
    "none") {
  const TempDir dir(MemoryFolder());
  WriteFile(dir / "in", "{\"text\":\"ab\"}\n{\"text\":\"\"}\n{\"text\":[\"\",\"c\",\"de\"]}\n");
  const std::string folder = ENGINE_SOURCE_DIR "/tests/tokenizer/";
  PreprocessOptions options = Options(dir);
  options.prepend_bos = true;
  CHECK(Message(Preprocess(options, *Bytes()).status()) ==
        "the tokenizer \"byte\" has no token that begins a document, for --prepend-bos");
  CHECK(dir.entries() == 1);
  options.tokenizer = {.kind = "file", .path = folder + "sentencepiece/bpe.model"};
  const std::unique_ptr<Tokenizer> tokenizer = *MakeTokenizer(options.tokenizer);
  for (const bool append_eod : {false, true}) {
    options.append_eod = append_eod;
    REQUIRE(Preprocess(options, *tokenizer).ok());
    const IndexedDataset dataset = *IndexedDataset::Open(dir / "out_text_document");
    CHECK(dataset.documents() == 3);
    REQUIRE(dataset.sequences() == 3);
    std::vector<std::vector<std::int32_t>> wanted(3);
    const char* texts[] = {"ab", "c", "de"};
    for (std::size_t i = 0; i < 3; ++i) {
      if (i < 2)
        wanted[i].push_back(1);  // <s>, at the beginning of a document and not of its second sequence
      REQUIRE(tokenizer->EncodeTo(texts[i], &wanted[i]).ok());
      if (append_eod && i != 1) wanted[i].push_back(2);
      std::vector<std::int32_t> ids(static_cast<std::size_t>(dataset.lengths()[i]));
      REQUIRE(dataset.Read(static_cast<std::int64_t>(i), 0, ids).ok());
      CHECK(ids == wanted[i]);
    }
  }
  WriteFile(
      dir / "tokenizer.json",
      R"({"added_tokens": [], "model": {"type": "BPE", "vocab": {"</s>": 0, "a": 1, "b": 2}, "merges": []}})");
  options.tokenizer.path = dir / "tokenizer.json";
  CHECK(Message(Preprocess(options, **MakeTokenizer(options.tokenizer)).status()) ==
        options.tokenizer.path +
            ": error: which token begins a document, for --prepend-bos, is not known; bos_token "
            "of a tokenizer_config.json beside it names one, and so does --beginning-of-document");
  // A mistake in the file that would name it is told to those who ask for the token, and to no one else.
  WriteFile(dir / "tokenizer_config.json", R"({"bos_token": 5})");
  CHECK(Message(Preprocess(options, **MakeTokenizer(options.tokenizer)).status()) ==
        dir / "tokenizer_config.json" + ": error: bos_token must be a string, and is a number");
  WriteFile(dir / "tokenizer_config.json", R"({"bos_token": null})");
  CHECK(Message(Preprocess(options, **MakeTokenizer(options.tokenizer)).status()) ==
        dir / "tokenizer_config.json" +
            ": error: bos_token is null, so the tokenizer has no token that begins a document; "
            "--beginning-of-document names one");
  WriteFile(dir / "tokenizer_config.json", R"({"bos_token": "</s>"})");
  options.append_eod = true;
  CHECK(Message(Preprocess(options, **MakeTokenizer(options.tokenizer)).status()) ==
        "--prepend-bos and --append-eod write one token, 0, between two documents twice, since it both "
        "begins and ends "
        "one: leave one of them out");
}

TEST_CASE("JSON lines with ends of documents: lists are sequences, empty documents stay and get no end") {
  const TempDir dir(MemoryFolder());
  WriteFile(dir / "in",
            "{\"text\":\"ab\"}\n{\"text\":\"\"}\n{\"text\":[\"c\",\"\",\"de\"]}\n{\"text\":[]}\n");
  PreprocessOptions options = Options(dir);
  options.append_eod = true;
  const Built built = BuildAndRead(options);
  CHECK(built.sequences == std::vector<std::vector<std::int32_t>>{{97, 98, 256}, {99}, {100, 101, 256}});
  CHECK(built.documents == std::vector<std::int64_t>{0, 1, 1, 3, 3});
  CHECK(built.result.datasets[0].prefix == dir / "out_text_document");
  CHECK(built.result.type == TokenType::kU16);
  CHECK(built.result.datasets[0].documents == 4);
  CHECK(built.result.datasets[0].sequences == 3);
  CHECK(built.result.datasets[0].tokens == 7);
}

TEST_CASE("without ends of documents, another key") {
  const TempDir dir(MemoryFolder());
  WriteFile(dir / "in", "{\"body\":\"ab\"}\n");
  PreprocessOptions options = Options(dir);
  options.json_keys = {"body"};
  const Built built = BuildAndRead(options);
  CHECK(built.sequences == std::vector<std::vector<std::int32_t>>{{97, 98}});
  CHECK(built.result.datasets[0].prefix == dir / "out_body_document");
}

TEST_CASE("plain text from several files") {
  const TempDir dir(MemoryFolder());
  WriteFile(dir / "in", "a\n%\nb\n%\n");
  WriteFile(dir / "in2", "c");
  PreprocessOptions options = Options(dir);
  options.inputs.push_back(dir / "in2");
  options.format = InputFormat::kText;
  options.document_separator = "%";
  const Built built = BuildAndRead(options);
  CHECK(built.sequences == std::vector<std::vector<std::int32_t>>{{97, 10}, {98, 10}, {99}});
  CHECK(built.result.inputs.size() == 2);
  CHECK(built.result.inputs[0].bytes == 8);
  CHECK(built.result.passed_over.total() == 0);
  WriteFile(dir / "in", "a\n%\n\nb\n\n");
  options.document_separator = "";
  for (const std::size_t part_bytes : {std::size_t{1}, std::size_t{1000}}) {
    options.part_bytes = part_bytes;
    CHECK(BuildAndRead(options).sequences ==
          std::vector<std::vector<std::int32_t>>{{97, 10, 37, 10}, {98, 10}, {99}});
  }
  options.document_separator = "%";
  // A mark of UTF-8 at a file's beginning is none of its text, before a separator or not.
  WriteFile(dir / "in", "\xEF\xBB\xBF%\na\n%\n\xEF\xBB\xBF");
  WriteFile(dir / "in2",
            "\xEF\xBB\xBF"
            "c");
  CHECK(BuildAndRead(options).sequences ==
        std::vector<std::vector<std::int32_t>>{{97, 10}, {0xEF, 0xBB, 0xBF}, {99}});
  std::filesystem::create_directory(dir / "texts");
  for (const char* name : {"texts/a", "texts/.b", "texts/c.dat"}) WriteFile(dir / name, "a");
  options.inputs = {dir / "texts"};
  CHECK(BuildAndRead(options).result.passed_over.total() == 2);
}

TEST_CASE("each key of JSON makes a data set") {
  const TempDir dir(MemoryFolder());
  WriteFile(dir / "in", "{\"q\":\"ab\",\"m\":{\"a\":[\"c\",\"d\"]}}\n{\"q\":\"\",\"m\":{\"a\":\"e\"}}\n");
  PreprocessOptions options = Options(dir);
  options.json_keys = {"q", "m.a"};
  const Built first = BuildAndRead(options, 0);
  const Built second = BuildAndRead(options, 1);
  CHECK(first.sequences == std::vector<std::vector<std::int32_t>>{{97, 98}});
  CHECK(first.documents == std::vector<std::int64_t>{0, 1, 1});
  CHECK(second.sequences == std::vector<std::vector<std::int32_t>>{{99}, {100}, {101}});
  CHECK(second.documents == std::vector<std::int64_t>{0, 2, 3});
  CHECK(second.result.datasets[1].prefix == dir / "out_m.a_document");
  options.json_keys = {"q", "q"};
  CHECK(Message(Preprocess(options, *Bytes()).status()) == "a key of JSON is named twice");
  options.json_keys = {"q", "m.a"};
  options.format = InputFormat::kText;
  CHECK(Message(Preprocess(options, *Bytes()).status()) == "plain text makes one data set, and 2 are named");
}

TEST_CASE(
    "documents that stood before are counted, and left out where that is asked for; the manifest says of "
    "which inputs") {
  const TempDir dir(MemoryFolder());
  WriteFile(dir / "in",
            "{\"a\":\"x\",\"b\":\"1\"}\n{\"a\":\"\",\"b\":[]}\n{\"a\":\"x\",\"b\":\"2\"}\n{\"a\":\"x\",\"b\":"
            "\"1\"}\n");
  WriteFile(dir / "later",
            "{\"a\":\"x\",\"b\":[\"1\"]}\n{\"a\":\"\",\"b\":[]}\n{\"a\":\"x\",\"b\":[\"1\",\"\"]}\n{\"a\":["
            "\"x\",\"2\"],\"b\":[]}\n");
  PreprocessOptions options = Options(dir);
  options.inputs.push_back(dir / "later");
  options.json_keys = {"a", "b"};
  const Built all = BuildAndRead(options, 1);
  CHECK(all.documents == std::vector<std::int64_t>{0, 1, 1, 2, 3, 4, 4, 5, 5});
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20}) {
    options.part_bytes = bytes;
    options.drop_duplicates = true;
    const Built some = BuildAndRead(options, 1);
    CHECK(some.documents == std::vector<std::int64_t>{0, 1, 1, 2, 2, 3, 3});
    CHECK(some.sequences == std::vector<std::vector<std::int32_t>>{{49}, {50}, {49}});
    CHECK(BuildAndRead(options, 0).sequences ==
          std::vector<std::vector<std::int32_t>>{{120}, {120}, {120}, {120}, {50}});
    REQUIRE(some.result.inputs.size() == 2);
    CHECK(some.result.inputs[0].documents == 4);
    CHECK(some.result.inputs[0].duplicates == 1);
    CHECK(some.result.inputs[1].duplicates == 1);
  }
  std::ifstream file(ManifestPath(dir / "out"));
  const nlohmann::json manifest = nlohmann::json::parse(file);
  CHECK(manifest["inputs"][1]["path"] == dir / "later");
  CHECK(manifest["inputs"][1]["duplicates"] == 1);
  CHECK(manifest["inputs"][0]["content"].get<std::string>().find(" bytes, xxh3_128 ") != std::string::npos);
  CHECK(manifest["datasets"][1]["prefix"] == dir / "out_b_document");
  CHECK(manifest["datasets"][1]["documents"] == 6);
  CHECK(manifest["drop_duplicates"] == true);
}

// Lines of 0 to 60 bytes with their numbers.
std::string ManyLines(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i)
    text += fmt::format("{{\"text\":\"{} {}\"}}\n", i, std::string(i * 7 % 50, 'x'));
  return text;
}

TEST_CASE("any number of workers and any size of parts make the same data set") {
  const TempDir dir(MemoryFolder());
  WriteFile(dir / "in", ManyLines(3000));
  PreprocessOptions options = Options(dir);
  options.append_eod = true;
  const Built one = BuildAndRead(options);
  CHECK(one.result.datasets[0].documents == 3000);
  for (const int workers : {1, 2, 7}) {
    for (const std::size_t bytes : {1, 100, 5000}) {
      options.workers = workers;
      options.part_bytes = bytes;
      const Built other = BuildAndRead(options);
      CHECK(other.sequences == one.sequences);
      CHECK(other.documents == one.documents);
    }
  }
}

TEST_CASE("the first mistake of a text is told, whichever worker finds one") {
  const TempDir dir(MemoryFolder());
  PreprocessOptions options = Options(dir);
  options.part_bytes = 200;
  options.workers = 8;
  std::string text = ManyLines(2000);
  text.insert(text.find("{\"text\":\"700 "), "{oops\n");
  text.insert(text.find("{\"text\":\"705 "), "[1]\n");
  WriteFile(dir / "in", text);
  WriteFile(dir / "later", "{\"text\":1}\n");
  options.inputs.push_back(dir / "later");
  for (int i = 0; i < 20; ++i)
    CHECK(Message(Preprocess(options, *Bytes()).status()).starts_with((dir / "in") + ":701:2: error: "));
  CHECK(dir.entries() == 3);  // the first 700 lines are kept
  options.restart = true;
  // A line, then what is behind the compressed text.
  options.workers = 1;
  options.inputs = {dir / "in.gz"};
  text = ManyLines(2000);
  text.insert(text.find("{\"text\":\"1990 "), "{oops\n");
  gzFile file = gzopen((dir / "in.gz").c_str(), "wb");
  REQUIRE(gzwrite(file, text.data(), static_cast<unsigned>(text.size())) == static_cast<int>(text.size()));
  REQUIRE(gzclose(file) == Z_OK);
  std::ofstream(dir / "in.gz", std::ios::app) << "x";
  CHECK(Message(Preprocess(options, *Bytes()).status()).starts_with((dir / "in.gz") + ":1991:2: error: "));
  std::filesystem::remove(dir / "in.gz");
}

TEST_CASE("rows of Parquet make the data set that lines of JSON make, in parts of any size, stopped or not") {
  const TempDir dir(MemoryFolder());
  const std::string folder = ENGINE_SOURCE_DIR "/tests/parquet/";
  PreprocessOptions options = Options(dir);
  options.json_keys = {"text", "list", "meta.body"};
  options.append_eod = true;
  const auto made = [&] {
    std::string all;
    for (const std::string& key : options.json_keys) {
      for (const char* ending : {".bin", ".idx"})
        all += ReadFile(dir / "out_" + key + "_document" + ending) + "|";
    }
    return all;
  };
  options.inputs = {folder + "rows.jsonl"};
  REQUIRE(Preprocess(options, *Bytes()).ok());
  const std::string wanted = made();
  for (const char* name : {"rust_v1_zstd", "rust_v2_uncompressed", "rust_v2_plain"}) {
    CAPTURE(name);
    options.inputs = {folder + name + ".parquet"};
    for (const std::size_t bytes : {1, 2000, 1 << 20}) {
      for (const InputFormat format : {InputFormat::kJsonLines, InputFormat::kParquet}) {
        options.format = format;
        options.part_bytes = bytes;
        options.workers = format == InputFormat::kParquet ? 3 : 1;
        std::int64_t parts = 0;
        int stops = 0;
        while (true) {
          int done = 0;
          options.stopped = [&] { return ++parts > 0 && bytes == 2000 && ++done == 2; };
          const absl::StatusOr<BuildResult> result = Preprocess(options, *Bytes());
          if (result.ok()) break;
          REQUIRE_MESSAGE(absl::IsCancelled(result.status()), Message(result.status()));
          ++stops;
        }
        CHECK(made() == wanted);
        // Pages of version 1 do not tell their rows where there are lists: a row group is a part.
        const bool by_pages = std::string(name).find("v2") != std::string::npos;
        if (bytes == 1) CHECK((parts > 10) == by_pages);
        if (bytes == 1 << 20) CHECK(parts == 4);
        CHECK((stops > 0) == (bytes == 2000));
      }
    }
  }
  options.inputs = {dir / "in"};
  WriteFile(dir / "in", "{\"text\":\"ab\"}\n");
  CHECK(Message(Preprocess(options, *Bytes()).status()) == (dir / "in") + ": error: is no Parquet file");
  options.inputs = {folder + "rust_v1_zstd.parquet"};
  options.json_keys = {"text"};
  options.format = InputFormat::kText;
  CHECK(Message(Preprocess(options, *Bytes()).status()) ==
        folder + "rust_v1_zstd.parquet: error: is a Parquet file, and no plain text");
}

TEST_CASE("nothing is written on an error") {
  const TempDir dir(MemoryFolder());
  PreprocessOptions options = Options(dir);
  WriteFile(dir / "in", "{\"text\":\"ab\"}\n{oops\n");
  CHECK(Message(Preprocess(options, *Bytes()).status()).starts_with((dir / "in") + ":2:2: error: "));
  CHECK(dir.entries() == 1);
  WriteFile(dir / "in", "\n\n");
  CHECK(Message(Preprocess(options, *Bytes()).status()) ==
        "no documents in 1 files, the first of which is " + (dir / "in"));
  CHECK(dir.entries() == 1);
  options.output_prefix = dir / "in/out";  // in a file
  CHECK(Message(Preprocess(options, *Bytes()).status()).starts_with("cannot create "));
}

TEST_CASE("the folder of a data set is made where there is none") {
  const TempDir dir(MemoryFolder());
  WriteFile(dir / "in", "{\"text\":\"ab\"}\n");
  PreprocessOptions options = Options(dir);
  options.output_prefix = dir / "no/such/out";
  const absl::StatusOr<BuildResult> made = Preprocess(options, *Bytes());
  REQUIRE_MESSAGE(made.ok(), Message(made.status()));
  CHECK(IndexedDataset::Open(dir / "no/such/out_text_document")->documents() == 1);
}

}  // namespace engine::data
