// What a resumed run makes of a folder in which something has changed since the last one.
#include "engine/train/resume.h"

#include <sys/stat.h>

#include <functional>

#include "engine/checkpoint/manifest.h"
#include "tests/train/documents.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

namespace fs = std::filesystem;

struct ShortRun : TempDir {
  ShortRun() { WriteDataset(*this / "text", 60); }

  // The rate does not depend on the length of the training.
  recipe::Recipe Recipe(std::int64_t iterations, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"training.iterations=" + std::to_string(iterations), "training.micro_batch=4",
                               "checkpoint.interval=1", "schedule.kind=constant"});
    return RunRecipe(*this, more);
  }
  std::string Checkpoint(std::int64_t iteration) const {
    return checkpoint::IterationPath(CheckpointRoot(out), iteration);
  }

  std::string out = *this / "out";
};

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// All that a run printed, which must end well.
std::string Said(const recipe::Recipe& recipe, const std::string& out) {
  const RunResult result = MustRunAndNote(recipe, out);
  return result.notes + result.output;
}

}  // namespace

TEST_CASE("a renamed checkpoint is not used, not deleted, and costs no other its place") {
  const ShortRun run;
  MustRun(run.Recipe(6, {"checkpoint.interval=3"}), run.out);
  REQUIRE((Checkpoints(run.out) == std::vector<std::int64_t>{3, 6}));
  fs::rename(run.Checkpoint(6), run.Checkpoint(99));
  const std::string output = Said(run.Recipe(8, {"checkpoint.keep=1"}), run.out);
  CHECK(Contains(output, "iteration_0000099 is named for iteration 99, but its manifest is of iteration 6"));
  CHECK(Contains(output, "resumed from " + run.Checkpoint(3) + " after iteration 3"));
  CHECK((Checkpoints(run.out) == std::vector<std::int64_t>{8, 99}));
  CHECK(Contains(MustRun(run.Recipe(9, {"checkpoint.keep=1"}), run.out), "after iteration 8"));
  CHECK((Checkpoints(run.out) == std::vector<std::int64_t>{9, 99}));

  fs::rename(run.Checkpoint(9), run.Checkpoint(100));
  const RunResult none = RunCaught(run.Recipe(9), run.out);
  CHECK(none.status.code() == absl::StatusCode::kDataLoss);
  CHECK(Contains(Message(none.status), "give it the name iteration_0000009 back"));
}

TEST_CASE(
    "a run with adapters goes on with the same ones alone: others would lose, or scale, what is trained") {
  const ShortRun run;
  MustRun(run.Recipe(2, {"lora.rank=2"}), run.out);
  const auto refused = [&](const char* change) {
    const RunResult result = RunCaught(run.Recipe(3, {"lora.rank=2", change}), run.out);
    CHECK(result.status.code() == absl::StatusCode::kFailedPrecondition);
    return Message(result.status);
  };
  CHECK(Contains(refused("lora.alpha=64"), "lora.alpha: 16.0 → 64.0"));
  CHECK(Contains(refused("lora.targets=[\"*.qkv\"]"), "lora.targets: [\"*\"] → [\"*.qkv\"]"));
  CHECK(Contains(refused("lora.rank=0"), "lora.rank: 2 → 0"));
  CHECK(Contains(MustRun(run.Recipe(3, {"lora.rank=2"}), run.out), "after iteration 2"));
  CHECK((Checkpoints(run.out).back() == 3));

  // Without adapters their other keys say nothing.
  const ShortRun plain;
  MustRun(plain.Recipe(2), plain.out);
  CHECK(Contains(MustRun(plain.Recipe(3, {"lora.rank=0", "lora.alpha=64"}), plain.out), "after iteration 2"));
  CHECK(Contains(Message(RunCaught(plain.Recipe(4, {"lora.rank=2"}), plain.out).status), "lora.rank: 0 → 2"));
}

TEST_CASE("data and tokenizer files that have another content under the same name are told") {
  const ShortRun run;
  data::WriteFile(run / "vocab.json", "{}");
  const std::vector<std::string> tokenizer = {"data.tokenizer.kind=gpt2",
                                              "data.tokenizer.vocab_file=" + run / "vocab.json",
                                              "data.tokenizer.merges_file=" + run / "absent.txt"};
  MustRun(run.Recipe(1, tokenizer), run.out);
  const std::string same = Said(run.Recipe(2, tokenizer), run.out);
  CHECK(Contains(same, "changed since the checkpoint: training.iterations: 1 → 2"));
  CHECK(Count(same, "changed since the checkpoint") == 1);

  std::fstream bin(run / "text.bin", std::ios::binary | std::ios::in | std::ios::out);
  bin.seekp(100);
  bin.put('a');  // as any other token; the size stays
  bin.seekp(102);
  bin.put('b');
  bin.close();
  data::WriteFile(run / "vocab.json", "{ }");
  const std::string changed = Said(run.Recipe(3, tokenizer), run.out);
  CHECK(Contains(changed, "note: data " + run / "text.bin changed since the checkpoint: "));
  CHECK(Contains(changed,
                 "note: tokenizer " + run / "vocab.json changed since the checkpoint: 2 bytes, xxh3_128 "));
  CHECK(Contains(changed, " → 3 bytes, xxh3_128 "));
  CHECK(Count(changed, "changed since the checkpoint") == 3);

  WriteDataset(run / "text", 70);
  const std::string longer = Said(run.Recipe(4, tokenizer), run.out);
  CHECK(Contains(longer, "note: data " + run / "text.idx changed since the checkpoint: "));
  CHECK(Contains(longer, "note: data " + run / "text.bin changed since the checkpoint: "));
}

TEST_CASE("a mask of the loss that has come or gone is told, and what older versions did not note is not") {
  const ShortRun run;
  WriteDocuments(run / "text", false);
  const auto said = [&](std::int64_t iteration) { return Said(run.Recipe(iteration), run.out); };
  const std::string mask = run / "text_loss_mask.bin";
  said(1);
  CHECK(Count(said(2), "changed since the checkpoint") == 1);  // the length
  WriteDocuments(run / "text", true);
  const std::string came = said(3);
  CHECK(Contains(came, "note: data " + mask + " changed since the checkpoint: not there → "));
  CHECK(Count(came, "changed since the checkpoint") == 2);
  CHECK(Count(said(4), "changed since the checkpoint") == 1);
  fs::remove(mask);
  fs::remove(run / "text_loss_mask.idx");
  const std::string went = said(5);
  CHECK(Contains(went, "note: data " + mask + " changed since the checkpoint: "));
  CHECK(Contains(went, " → not there\n"));
  CHECK(Count(went, "changed since the checkpoint") == 2);
  // An entry that only newer versions keep, and one that only an older one did.
  const std::string path = run.Checkpoint(5) + "/manifest.json";
  absl::StatusOr<checkpoint::Manifest> manifest = checkpoint::ParseManifest(data::ReadFile(path));
  REQUIRE(manifest.ok());
  CHECK(manifest->metadata.fingerprints.erase("data " + (run / "text.idx")) == 1);
  manifest->metadata.fingerprints["data " + (run / "text.json")] = "2 bytes";
  data::WriteFile(path, *checkpoint::FormatManifest(*manifest));
  CHECK(Count(said(6), "changed since the checkpoint") == 1);
  // Of another data set it is no news that it has a mask: that the data set is another is said.
  WriteDocuments(run / "other", true);
  const std::string other = Said(run.Recipe(7, {"data.paths=[\"" + (run / "other") + "\"]"}), run.out);
  CHECK(Contains(other, "data.paths: "));
  CHECK(Count(other, "changed since the checkpoint") == 2);
}

TEST_CASE("a run that goes on with other draws of dropout says so, where there is any") {
  const std::string of_attention =
      "dropout of attention draws other numbers than before the checkpoint: those of version 2, not 1";
  const std::string outside =
      "dropout outside attention draws other numbers than before the checkpoint: those of version 2, not 1";
  struct Drops {
    std::string attention, hidden, embedding;
  };
  for (const Drops& drops :
       {Drops{"0.1", "0", "0"}, Drops{"0", "0.1", "0"}, Drops{"0", "0", "0.1"}, Drops{"0", "0", "0"}}) {
    CAPTURE(drops.attention);
    CAPTURE(drops.hidden);
    CAPTURE(drops.embedding);
    const ShortRun run;
    const std::vector<std::string> sets = {"model.dropout.attention=" + drops.attention,
                                           "model.dropout.hidden=" + drops.hidden,
                                           "model.dropout.embedding=" + drops.embedding};
    MustRun(run.Recipe(1, sets), run.out);
    CHECK(!Contains(Said(run.Recipe(2, sets), run.out), "draws other numbers"));
    const std::string path = run.Checkpoint(2) + "/manifest.json";
    absl::StatusOr<checkpoint::Manifest> manifest = checkpoint::ParseManifest(data::ReadFile(path));
    REQUIRE(manifest.ok());
    CHECK(manifest->metadata.attention_draws == 2);
    CHECK(manifest->metadata.dropout_draws == 2);
    manifest->metadata.attention_draws = 1;  // as before they were kept
    manifest->metadata.dropout_draws = 1;
    data::WriteFile(path, *checkpoint::FormatManifest(*manifest));
    const std::string said = Said(run.Recipe(3, sets), run.out);
    CHECK(Contains(said, of_attention) == (drops.attention != "0"));
    CHECK(Contains(said, outside) == (drops.hidden != "0" || drops.embedding != "0"));
  }
}

TEST_CASE("a checkpoint without fingerprints, as older ones are, is resumed without a word of them") {
  const ShortRun run;
  MustRun(run.Recipe(1), run.out);
  const std::string path = run.Checkpoint(1) + "/manifest.json";
  absl::StatusOr<checkpoint::Manifest> manifest = checkpoint::ParseManifest(data::ReadFile(path));
  REQUIRE(manifest.ok());
  CHECK(manifest->metadata.fingerprints.size() == 2);
  manifest->metadata.fingerprints.clear();
  data::WriteFile(path, *checkpoint::FormatManifest(*manifest));
  WriteDataset(run / "text", 70);
  const std::string output = Said(run.Recipe(2), run.out);
  CHECK(Contains(output, "after iteration 1"));
  CHECK(Count(output, "changed since the checkpoint") == 1);  // the length
}

TEST_CASE("a run's files in whose place there is something else are refused at once, with what it is") {
  const ShortRun run;
  MustRun(run.Recipe(1), run.out);
  for (const std::string name :
       {"metrics.jsonl", "resolved.toml", "resolved.toml.new", "plan.json", "plan.json.new", "origin.json"}) {
    const std::string path = run.out + "/" + name;
    const std::string content = data::ReadFile(path);
    const std::vector<std::pair<std::string, std::function<void()>>> cases = {
        {"a named pipe", [&] { REQUIRE(mkfifo(path.c_str(), 0600) == 0); }},
        {"a device", [&] { fs::create_symlink("/dev/full", path); }},
        {"a folder", [&] { fs::create_directory(path); }}};
    for (const auto& [kind, make] : cases) {
      CAPTURE(path);
      CAPTURE(kind);
      fs::remove(path);
      make();
      const RunResult result = RunCaught(run.Recipe(2), run.out);
      CHECK(!result.status.ok());
      const bool is_link = kind == "a device" && name.ends_with(".new");
      CHECK(Contains(Message(result.status),
                     path + " is " + (is_link ? "a symbolic link" : kind) + ", not a regular file"));
      CHECK((Checkpoints(run.out) == std::vector<std::int64_t>{1}));
    }
    fs::remove(path);
    if (!content.empty()) data::WriteFile(path, content);
  }
  MustRun(run.Recipe(2), run.out);
  CHECK(IterationMetrics(run.out).size() == 2);
}

TEST_CASE("a folder that may not be written is an error with the system's reason") {
  const ShortRun run;
  data::WriteFile(run.out, "a file");  // root may write everywhere else
  CHECK(Contains(Message(RunCaught(run.Recipe(1), run.out + "/below").status), "Not a directory"));
}

}  // namespace engine::train::testing
