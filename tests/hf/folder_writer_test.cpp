#include "engine/hf/folder_writer.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/hf/folder.h"
#include "tests/hf/raw_files.h"

namespace engine::hf {
namespace {

using data::ReadFile;
using data::TempDir;
using data::WriteFile;

TensorDeclaration Bytes(const std::string& name, std::int64_t bytes) {
  return {name, StoredType::kU8, Shape{bytes}};
}

// Every byte is the last one of the tensor's name.
absl::Status FillNamed(const TensorDeclaration& tensor, std::int64_t /*row*/, std::int64_t /*rows*/,
                       std::span<std::byte> out) {
  std::fill(out.begin(), out.end(), static_cast<std::byte>(tensor.name.back()));
  return absl::OkStatus();
}

std::vector<std::string> ListedFiles(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status WriteModel(const std::string& folder, const std::vector<TensorDeclaration>& tensors,
                        std::int64_t most) {
  absl::StatusOr<FolderWriter> writer = FolderWriter::Create(folder);
  REQUIRE_MESSAGE(writer.ok(), Message(writer.status()));
  absl::Status status = writer->AddText("config.json", "{}\n");
  if (status.ok()) status = writer->AddWeights(tensors, most, FillNamed);
  if (status.ok()) status = writer->Finish();
  return status;
}

TEST_CASE("sizes of shards are read with their units") {
  CHECK(*ParseShardBytes("50GB") == kDefaultShardBytes);
  CHECK(*ParseShardBytes("5MB") == 5'000'000);
  CHECK(*ParseShardBytes("1KiB") == 1024);
  CHECK(*ParseShardBytes("17") == 17);
  for (const char* text : {"", "GB", "0", "0GB", "-1GB", "5 parsecs", "1e30GB", "nan"}) {
    CAPTURE(text);
    Says(ParseShardBytes(text).status(), "is no size of a shard: a number above 0 and KB, MB, GB");
  }
}

TEST_CASE("a shard begins where the next tensor would pass the limit; a larger one is alone") {
  using Shards = std::vector<std::vector<int>>;
  const auto shards = [](const std::vector<std::int64_t>& sizes, std::int64_t most) {
    std::vector<TensorDeclaration> tensors;
    for (const std::int64_t size : sizes) tensors.push_back(Bytes(fmt::format("{}", tensors.size()), size));
    return ShardsOf(tensors, most);
  };
  CHECK(shards({4, 6, 1, 9, 10}, 10) == Shards{{0, 1}, {2, 3}, {4}});
  CHECK(shards({4, 4, 4}, 10) == Shards{{0, 1}, {2}});
  CHECK(shards({4, 11, 4, 4}, 10) == Shards{{1}, {0, 2}, {3}});
  CHECK(shards({11, 12}, 10) == Shards{{0}, {1}});
  CHECK(shards({1, 2}, 10) == Shards{{0, 1}});
  CHECK(shards({0, 10, 0}, 10) == Shards{{0, 1, 2}});
  CHECK(shards({}, 10) == Shards{{}});
}

TEST_CASE("a model is one file, or shards with an index, and either replaces the other") {
  const TempDir dir;
  const std::string model = dir / "new/model";
  const std::vector<TensorDeclaration> tensors = {Bytes("c", 4), Bytes("b\u00e9\x7f", 6), Bytes("a", 8)};
  const auto check = [&] {
    const absl::StatusOr<Folder> folder = Folder::Open(model);
    REQUIRE_MESSAGE(folder.ok(), Message(folder.status()));
    CHECK(folder->bytes() == 18);
    for (const TensorDeclaration& tensor : tensors) {
      const std::optional<Folder::Entry> entry = folder->Find(tensor.name);
      REQUIRE(entry.has_value());
      for (const std::byte byte : entry->file->DataOf(*entry->tensor))
        CHECK(byte == std::byte(tensor.name.back()));
      CHECK(entry->file->metadata() == kPtMetadata);
    }
  };
  REQUIRE(WriteModel(model, tensors, 100).ok());
  check();
  CHECK(ListedFiles(model) == std::vector<std::string>{"config.json", "model.safetensors"});

  REQUIRE(WriteModel(model, tensors, 10).ok());
  check();
  CHECK(ListedFiles(model) == std::vector<std::string>{"config.json", "model-00001-of-00002.safetensors",
                                                       "model-00002-of-00002.safetensors",
                                                       "model.safetensors.index.json"});
  CHECK(ReadFile(model + "/model.safetensors.index.json") == R"({
  "metadata": {
    "total_parameters": 18,
    "total_size": 18
  },
  "weight_map": {
    "a": "model-00002-of-00002.safetensors",
    "b\u00e9\u007f": "model-00001-of-00002.safetensors",
    "c": "model-00001-of-00002.safetensors"
  }
}
)");

  // Files of other names, some of them nearly those of shards, are not the writer's.
  const std::vector<std::string> others = {"model-0001-of-00002.safetensors",
                                           "model-00001-of-00002.safetensors.bak",
                                           "model-00001-of-0000x.safetensors", "tokenizer.json"};
  for (const std::string& name : others) WriteFile(model + "/" + name, "kept");
  REQUIRE(WriteModel(model, tensors, 4).ok());
  check();
  CHECK(!std::filesystem::exists(model + "/model-00001-of-00002.safetensors"));
  CHECK(std::filesystem::exists(model + "/model-00003-of-00003.safetensors"));
  REQUIRE(WriteModel(model, tensors, 18).ok());
  check();
  std::vector<std::string> left = others;
  left.insert(left.end(), {"config.json", "model.safetensors"});
  std::sort(left.begin(), left.end());
  CHECK(ListedFiles(model) == left);
}

TEST_CASE("what is not finished leaves no trace") {
  const TempDir dir;
  const std::string model = dir / "model";
  {
    absl::StatusOr<FolderWriter> writer = FolderWriter::Create(model + "//");
    REQUIRE(writer.ok());
    REQUIRE(writer->AddText("config.json", "{}").ok());
    CHECK(std::filesystem::exists(model));
  }
  CHECK(!std::filesystem::exists(model));

  REQUIRE(WriteModel(model, {Bytes("a", 4)}, 100).ok());
  const std::string before = ReadFile(model + "/model.safetensors");
  {
    absl::StatusOr<FolderWriter> writer = FolderWriter::Create(model);
    REQUIRE(writer.ok());
    REQUIRE(writer->AddText("config.json", "other").ok());
    const absl::Status status = writer->AddWeights(
        {Bytes("a", 8), Bytes("b", 8)}, 8, [](const TensorDeclaration& tensor, auto, auto, auto) {
          return tensor.name == "b" ? absl::DataLossError("no rows") : absl::OkStatus();
        });
    Says(status, "no rows");
    CHECK(ListedFiles(model).size() == 3);
  }
  CHECK(ListedFiles(model) == std::vector<std::string>{"config.json", "model.safetensors"});
  CHECK(ReadFile(model + "/config.json") == "{}\n");
  CHECK(ReadFile(model + "/model.safetensors") == before);
}

TEST_CASE("leftovers of dead writers go, and those of living ones stay") {
  const TempDir dir;
  std::filesystem::create_directory(dir / ".writing-dead");
  WriteFile(dir / ".writing-dead/model.safetensors", "half");
  absl::StatusOr<FolderWriter> first = FolderWriter::Create(dir.path());
  REQUIRE(first.ok());
  CHECK(!std::filesystem::exists(dir / ".writing-dead"));
  REQUIRE(WriteModel(dir.path(), {Bytes("a", 1)}, 10).ok());
  CHECK(ListedFiles(dir.path()).size() == 3);
  REQUIRE(first->AddText("config.json", "first").ok());
  REQUIRE(first->Finish().ok());
  first = absl::CancelledError();
  CHECK(ListedFiles(dir.path()) == std::vector<std::string>{"config.json", "model.safetensors"});
  CHECK(ReadFile(dir / "config.json") == "first");
}

TEST_CASE("files are copied, and odd names and places refused") {
  const TempDir dir;
  WriteFile(dir / "blob", "{\"model\":1}");
  std::filesystem::create_symlink("blob", dir / "tokenizer.json");
  absl::StatusOr<FolderWriter> writer = FolderWriter::Create(dir / "model");
  REQUIRE(writer.ok());
  REQUIRE(writer->AddCopy("tokenizer.json", dir / "tokenizer.json").ok());
  CHECK(absl::IsNotFound(writer->AddCopy("merges.txt", dir / "merges.txt")));
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  Says(writer->AddCopy("vocab.json", dir / "pipe"), "is a named pipe");
  for (const char* name : {"", ".", "..", ".hidden", "a/b", "/a"})
    Says(writer->AddText(name, ""), "is no name of a file");
  Says(writer->AddText("tokenizer.json", ""), "tokenizer.json is written twice");
  Says(writer->AddWeights({Bytes("a", 1), Bytes("a", 2)}, 1, FillNamed), "tensor \"a\" is there twice");
  std::filesystem::create_directory(dir / "model/config.json");
  REQUIRE(writer->AddText("config.json", "").ok());
  Says(writer->Finish(), "/model/config.json is a folder");
  CHECK(!std::filesystem::exists(dir / "model/tokenizer.json"));
  std::filesystem::remove(dir / "model/config.json");
  Says(FolderWriter::Create(dir / "blob").status(), "cannot ");
  Says(FolderWriter::Create(dir / "blob/model").status(), "cannot ");
}

}  // namespace
}  // namespace engine::hf
