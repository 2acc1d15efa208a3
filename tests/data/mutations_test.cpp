// Inputs and data sets that are cut off or changed anywhere: each is refused where it stands, or read, and all end.
#include <doctest/doctest.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>

#include "engine/base/status.h"
#include "engine/data/index_cache.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/indexed_format.h"
#include "engine/data/input_parts.h"
#include "engine/data/source.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

// How many of each kind.
int Mutations() {
  const char* number = std::getenv("ENGINE_TEST_MUTATIONS");
  return number != nullptr ? std::atoi(number) : 1000;
}

std::string Mutated(const std::string& whole, std::mt19937* random) {
  std::string changed = whole;
  for (unsigned times = 1 + (*random)() % 3; times > 0 && !changed.empty(); --times) {
    const std::size_t at = (*random)() % changed.size();
    switch ((*random)() % 6) {
      case 0:
        changed.resize(at);
        break;
      case 1:
        changed[at] = static_cast<char>((*random)());
        break;
      case 2:
        changed[at] = static_cast<char>(changed[at] ^ (1 << (*random)() % 8));
        break;
      case 3:
        changed.insert(at, std::string(1 + (*random)() % 9, static_cast<char>((*random)())));
        break;
      case 4:
        changed.erase(at, 1 + (*random)() % 9);
        break;
      default:
        changed.insert(at, changed.substr((*random)() % changed.size(), (*random)() % 40));
    }
  }
  return changed;
}

// The texts of all documents, one behind the other.
absl::StatusOr<std::string> ReadTexts(const std::string& path) {
  InputOptions options;
  options.part_bytes = 3000;
  ASSIGN_OR_RETURN(const std::unique_ptr<InputParts> parts, InputParts::Open(path, options));
  std::string all;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<InputPart> part, parts->Next());
    if (!part.has_value()) return all;
    RETURN_IF_ERROR(part->visit([&](std::size_t, std::span<const std::string_view> texts) {
      for (const std::string_view text : texts) all += fmt::format("{}\n", text);
      return absl::OkStatus();
    }));
  }
}

std::string SomeLines() {
  std::string lines;
  for (int i = 0; i < 150; ++i) {
    lines += fmt::format("{{\"id\":{},\"text\":[\"γ \\u00e9 {}\",\"{}\"],\"x\":{{\"y\":[1e5,null,true]}}}}\n",
                         i, i * i, std::string(static_cast<std::size_t>(i), 'z'));
  }
  return lines;
}

std::string Gzipped(const std::string& text) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstandard(const std::string& text) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as zstd(1) has it
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

}  // namespace

TEST_CASE("mutated text, plain and compressed, is refused at its place or read") {
  const TempDir dir(MemoryFolder());
  std::mt19937 random(1);
  const std::string path = dir / "f";
  const std::string lines = SomeLines();
  WriteFile(path, lines);
  const std::string texts = *ReadTexts(path);
  for (const auto& [name, whole] : std::initializer_list<std::pair<std::string, std::string>>{
           {"plain", lines}, {"gzip", Gzipped(lines)}, {"zstd", Zstandard(lines)}}) {
    CAPTURE(name);
    WriteFile(path, whole);
    REQUIRE(*ReadTexts(path) == texts);
    int refused = 0;
    for (int i = 0; i < Mutations(); ++i) {
      CAPTURE(i);
      WriteFile(path, Mutated(whole, &random));
      const absl::StatusOr<std::string> read = ReadTexts(path);
      if (!read.ok()) {
        ++refused;
        CHECK(Message(read.status()).starts_with(path + ":"));
        CHECK(Message(read.status()).find(" error: ") != std::string::npos);
      } else if (name != "plain" && !read->empty()) {
        CHECK(*read == texts);  // their checksums see what is changed
      }
    }
    CHECK(refused > Mutations() / 3);
  }
}

TEST_CASE("mutated data sets are refused, or read within their bytes") {
  const TempDir dir(MemoryFolder());
  std::mt19937 random(1);
  {
    const auto writer = IndexedDatasetWriter::Create(dir / "d", TokenType::kU16);
    for (int i = 0; i < 40; ++i)
      REQUIRE((*writer)->AddDocument(std::vector<std::vector<std::int32_t>>{{i, i + 1}, {7}}).ok());
    REQUIRE((*writer)->Finish().ok());
  }
  for (const char* ending : {"d.idx", "d.bin"}) {
    CAPTURE(ending);
    const std::string whole = ReadFile(dir / ending);
    int refused = 0;
    for (int i = 0; i < Mutations(); ++i) {
      CAPTURE(i);
      WriteFile(dir / ending, Mutated(whole, &random));
      const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(dir / "d");
      if (!dataset.ok()) {
        ++refused;
        CHECK(Message(dataset.status()).find(dir / "d") != std::string::npos);
        continue;
      }
      CHECK(dataset->tokens() == 120);
      CHECK(dataset->Scan().ok());
      for (std::int64_t document = 0; document < dataset->documents(); ++document) {
        for (std::int64_t s = dataset->first_sequence(document); s < dataset->first_sequence(document + 1);
             ++s) {
          std::vector<std::int32_t> ids(
              static_cast<std::size_t>(dataset->lengths()[static_cast<std::size_t>(s)]));
          CHECK(dataset->Read(s, 0, ids).ok());
        }
      }
    }
    CHECK(refused > Mutations() / 3);
    WriteFile(dir / ending, whole);
  }
}

TEST_CASE("mutated masks of the loss are refused where they stand, or used") {
  const TempDir dir(MemoryFolder());
  std::mt19937 random(2);
  const auto write = [&](const std::string& name, TokenType type) {
    const auto writer = IndexedDatasetWriter::Create(dir / name, type);
    for (int i = 0; i < 40; ++i)
      REQUIRE((*writer)->AddDocument(std::vector<std::vector<std::int32_t>>{{1, i % 2}, {1}}).ok());
    REQUIRE((*writer)->Finish().ok());
  };
  write("d", TokenType::kU16);
  write(LossMaskPrefix("d"), TokenType::kU8);
  recipe::Recipe recipe;
  recipe.path = "r.toml";
  recipe.model.vocab = 2;
  recipe.data.paths = {dir / "d"};
  recipe.data.split = "1";
  recipe.data.sequence_length = 7;
  recipe.training.global_batch = 17;
  recipe.training.iterations = 1;
  const std::string mask = dir / LossMaskPrefix("d");
  for (const std::string& path : {IdxPath(mask), BinPath(mask)}) {
    CAPTURE(path);
    const std::string whole = ReadFile(path);
    int refused = 0;
    for (int i = 0; i < Mutations(); ++i) {
      CAPTURE(i);
      WriteFile(path, Mutated(whole, &random));
      const absl::StatusOr<Source> source = Source::Open(recipe);
      absl::Status status = source.status();
      for (std::int64_t index = 0; status.ok() && index < 17; ++index) {
        const absl::StatusOr<SampleTokens> sample = source->Read(Split::kTrain, index);
        status = sample.status();
        if (!sample.ok()) continue;
        CHECK(sample->targets.size() == 8);
        CHECK(std::all_of(sample->targets.begin(), sample->targets.end(),
                          [](int counts) { return counts <= 1; }));
      }
      if (status.ok()) continue;
      ++refused;
      CHECK(Message(status).find(mask) != std::string::npos);
    }
    CHECK(refused > Mutations() / 3);
    WriteFile(path, whole);
  }
}

TEST_CASE("mutated orders of samples are made anew") {
  const TempDir dir(MemoryFolder());
  std::mt19937 random(3);
  std::string note;
  std::vector<std::int32_t> lengths(30000);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int32_t>(20 + i * i % 97);
  const auto same = [](const auto& a, const auto& b) {
    const auto bytes = [](const auto& span) { return std::as_bytes(std::span(span)); };
    return std::equal(bytes(a).begin(), bytes(a).end(), bytes(b).begin(), bytes(b).end());
  };
  // Whether what comes from the folder is what is built without one.
  const auto is_right = [&](const std::string& kind, const std::string& folder) {
    const SampleIndexOptions options = {.range = {0, 30000},
                                        .sequence_length = 24,
                                        .packs = kind == "packed",
                                        .num_samples = std::nullopt,
                                        .epochs = 1,
                                        .seed = 5};
    const absl::StatusOr<SampleIndex> kept = OpenSampleIndex(folder, lengths, options, &note);
    static std::map<std::string, SampleIndex> built;
    if (!built.contains(kind)) built[kind] = *BuildSampleIndex(lengths, options);
    const SampleIndex& right = built[kind];
    return kept.ok() && kept->packed == right.packed && kept->tokens_per_epoch == right.tokens_per_epoch &&
           kept->facts.tokens == right.facts.tokens && same(kept->shuffle, right.shuffle) &&
           same(kept->documents, right.documents) && same(kept->starts, right.starts) &&
           same(kept->pieces, right.pieces) && same(kept->packs, right.packs);
  };
  for (const std::string kind : {"samples", "packed"}) {
    CAPTURE(kind);
    const std::string folder = dir / kind;
    REQUIRE(is_right(kind, folder));
    std::string path;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().extension() == ".index") path = entry.path();
    const std::string whole = ReadFile(path);
    REQUIRE(whole.size() > 1 << 20);
    for (int i = 0; i < Mutations() / 10; ++i) {
      CAPTURE(i);
      // Half of them in the numbers at the beginning.
      WriteFile(path, i % 2 == 0 ? Mutated(whole, &random)
                                 : Mutated(whole.substr(0, 176), &random) + whole.substr(176));
      CHECK(is_right(kind, folder));
      CHECK(ReadFile(path) == whole);
    }
    CHECK(note.empty());
  }
}

}  // namespace engine::data
