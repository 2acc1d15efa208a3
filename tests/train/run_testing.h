// Whole runs in a temporary folder: a data set, a recipe, what the run printed and left behind.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <doctest/doctest.h>
#include <stdio.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/philox.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/store.h"
#include "engine/data/indexed_dataset.h"
#include "engine/train/run.h"
#include "tests/data/temp_dir.h"
#include "tests/train/testing.h"

namespace engine::train::testing {

using data::TempDir;

// `documents` of 20 to 59 bytes each, drawn from a few letters; every text differs.
inline void WriteDataset(const std::string& prefix, int documents, std::int32_t highest_token = 0) {
  auto writer = data::IndexedDatasetWriter::Create(prefix, data::TokenType::kU16);
  REQUIRE(writer.ok());
  const PhiloxKey key = MakePhiloxKey(3, "text");
  std::uint64_t at = 0;
  for (int document = 0; document < documents; ++document) {
    std::vector<std::int32_t> tokens(20 + PhiloxWord(key, at++) % 40);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>('a' + PhiloxWord(key, at++) % 8);
    if (document == documents / 2 && highest_token > 0) tokens[7] = highest_token;
    REQUIRE((*writer)->AddDocument({&tokens, 1}).ok());
  }
  REQUIRE((*writer)->Finish().ok());
}

// A tiny GPT-like run with dropout on the data set DIR/text; `sets` are as of --set.
inline recipe::Recipe RunRecipe(const TempDir& folder, std::vector<std::string> sets,
                                const char* optimizer = kAdamW) {
  sets.insert(sets.begin(),
              {"data.paths=[\"" + folder / "text" + "\"]", "data.split=\"8,2,0\"", "model.layers=4",
               "model.hidden=16", "model.mlp.hidden=32", "logging.interval=1000"});
  return MakeRecipe(kGptLike, sets, optimizer);
}

// What is written to a stream while this lives.
class Caught {
 public:
  explicit Caught(std::FILE* stream) : stream_(stream) {
    std::fflush(stream_);
    saved_ = ::dup(::fileno(stream_));
    ::dup2(::fileno(file_), ::fileno(stream_));
  }
  ~Caught() { std::fclose(file_); }
  Caught(const Caught&) = delete;
  Caught& operator=(const Caught&) = delete;

  std::string End() {
    std::fflush(stream_);
    ::dup2(saved_, ::fileno(stream_));
    ::close(saved_);
    std::rewind(file_);
    std::string text;
    char buffer[4096];
    for (size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), file_)) > 0;) text.append(buffer, got);
    return text;
  }

 private:
  std::FILE* stream_;
  std::FILE* file_ = std::tmpfile();
  int saved_ = -1;
};

struct RunResult {
  absl::Status status;
  std::string output;  // what it printed: the log
  std::string notes;   // on standard error
};

inline RunResult RunCaught(const recipe::Recipe& recipe, const RunOptions& options,
                           const state::Device& device = CpuDevice()) {
  RunResult result;
  Caught output(stdout);
  Caught notes(stderr);
  result.status = Run(recipe, options, device).status();
  result.notes = notes.End();
  result.output = output.End();
  return result;
}

inline RunResult RunCaught(const recipe::Recipe& recipe, const std::string& out, bool fresh = false,
                           const state::Device& device = CpuDevice()) {
  return RunCaught(recipe, {.out = out, .fresh = fresh}, device);
}

// The same, which must end well.
inline RunResult MustRunAndNote(const recipe::Recipe& recipe, const std::string& out) {
  RunResult result = RunCaught(recipe, out);
  REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
  return result;
}

// What it printed.
inline std::string MustRun(const recipe::Recipe& recipe, const std::string& out) {
  return MustRunAndNote(recipe, out).output;
}

// Files that outlive ranks, as a supervisor has them.
struct MemoryFiles {
  explicit MemoryFiles(std::int64_t ranks) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) numbers.push_back(memfd_create("state", MFD_CLOEXEC));
  }
  ~MemoryFiles() {
    for (const int number : numbers) close(number);
  }
  std::vector<int> numbers;
};

inline std::vector<nlohmann::json> Metrics(const std::string& out) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(out + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// The lines of metrics.jsonl of iterations alone, without those of evaluations and checkpoints.
inline std::vector<nlohmann::json> IterationMetrics(const std::string& out) {
  std::vector<nlohmann::json> lines;
  for (nlohmann::json& line : Metrics(out)) {
    if (line.contains("loss")) lines.push_back(std::move(line));
  }
  return lines;
}

// The lines of iterations and evaluations. Those of checkpoints differ, as a run in pieces saves more often.
inline std::vector<nlohmann::json> LossMetrics(const std::string& out) {
  std::vector<nlohmann::json> lines;
  for (nlohmann::json& line : Metrics(out)) {
    if (!line.contains("save_seconds")) lines.push_back(std::move(line));
  }
  return lines;
}

// The same without what depends on the clock or tells of a resume; numbers in full precision.
inline std::string TimelessMetrics(const std::string& out) {
  std::string text;
  for (nlohmann::json& line : LossMetrics(out)) {
    for (const char* key :
         {"timestamp", "elapsed_ms", "data_wait_ms", "tokens_per_second", "tflops_per_device", "rank_busy_ms",
          "rank_clock_mhz", "rank_temperature_c", "resumed_iteration"})
      line.erase(key);
    text += line.dump() + "\n";
  }
  return text;
}

inline std::vector<std::int64_t> Checkpoints(const std::string& out) {
  const auto iterations = checkpoint::ListIterations(CheckpointRoot(out));
  REQUIRE(iterations.ok());
  return *iterations;
}

// Every tensor of a checkpoint, whole, but the control block of a run that skips updates, which is f64.
inline std::map<std::string, std::vector<float>> Tensors(const std::string& folder) {
  const auto reader = checkpoint::Reader::Open(folder);
  REQUIRE_MESSAGE(reader.ok(), Message(reader.status()));
  std::map<std::string, std::vector<float>> tensors;
  for (const checkpoint::TensorInfo& tensor : reader->tensors()) {
    if (tensor.dtype == DType::kF64) continue;
    std::vector<float>& values = tensors[tensor.name];
    values.resize(static_cast<size_t>(tensor.shape.elements()));
    REQUIRE(reader->Read(tensor.name, checkpoint::WholeBox(tensor.shape), values.data()).ok());
  }
  return tensors;
}

inline std::map<std::string, std::vector<float>> TensorsOf(const std::string& out, std::int64_t iteration) {
  return Tensors(checkpoint::IterationPath(CheckpointRoot(out), iteration));
}

inline bool Contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  MESSAGE("no '" << part << "' in: " << text);
  return false;
}

}  // namespace engine::train::testing
