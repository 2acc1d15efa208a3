// A run's folder with made-up numbers, as this program writes them: 4 ranks, 100 iterations planned, evaluations every 20 and
// checkpoints every 25 iterations.
#pragma once

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/data/temp_dir.h"

namespace engine::view::testing {

inline constexpr double kBegin = 1'790'000'000;  // 2026-09-21 14:13:20 UTC

inline std::string Stamp(double unix_s) {
  const auto ms = static_cast<std::int64_t>(std::llround(unix_s * 1e3));
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(ms / 1000)),
                     ms % 1000);
}

inline constexpr const char* kRecipe = R"([model]
layers = 2
hidden = 16
vocab = 257
max_positions = 16
attention = { heads = 2 }
mlp = { hidden = 32 }
[data]
source = \"random\"
sequence_length = 16
[training]
global_batch = 8
micro_batch = 2
iterations = 100
[schedule]
kind = \"constant\"
[optimizer]
learning_rate = 1e-2
)";

// `recipe`: as inside of a JSON string.
inline std::string PlanJson(std::string recipe = kRecipe) {
  for (std::size_t at = 0; (at = recipe.find('\n', at)) != std::string::npos;) recipe.replace(at, 1, "\\n");
  const char* stage = R"({"flops": 1e6, "chunks": [{}], "communication": [], "memory": {"parameters": 1024,
    "gradients": 1024, "optimizer": 2048, "control": 64, "activations": 4096, "communication": 0, "transients": 512,
    "evaluation": 0, "total": 8768}})";
  return fmt::format(
      R"({{"hash": "0123456789abcdef0123456789abcdef", "parameters": 1234567, "compute": "fp32",
    "mesh": {{"dp": 2, "tp": 1, "pp": 2, "cp": 1, "ep": 1, "world": 4}}, "global_batch": 8, "sequence": 16,
    "microbatches": 2, "stages": [{}, {}], "schedule": {{"kind": "1f1b", "bubble": 0.2}},
    "prediction": {{"iteration_s": 0.45, "tokens_per_s": 280, "mfu": 0.4, "bubble": 0.2, "exposed": 0.05,
    "missing": []}}, "recipe": "{}"}})",
      stage, stage, recipe);
}

// Half a second an iteration; of the 10th 50 ms are a wait for data. Evaluations take 1 s, checkpoints 2 s.
class MetricsText {
 public:
  // Until the iteration, with the evaluation and the checkpoint that are due after it.
  MetricsText& RunTo(std::int64_t iteration) {
    while (iteration_ < iteration) Step();
    return *this;
  }
  // Nothing is written for so long.
  MetricsText& Pause(double seconds) {
    now_ += seconds;
    return *this;
  }
  const std::string& text() const { return text_; }
  double now() const { return now_; }  // when the last record was written

 private:
  void Step() {
    now_ += 0.5;
    const auto i = static_cast<double>(++iteration_);
    text_ += fmt::format(
        R"({{"iteration":{},"timestamp":"{}","loss":{},"grad_norm":{},"learning_rate":0.01,"loss_scale":1.0,)"
        R"("global_batch":8,"consumed_samples":{},"consumed_tokens":{},"skipped_iterations":0,"nan_iterations":0,)"
        R"("elapsed_ms":500.0,"data_wait_ms":{},"tokens_per_second":256.0,"tflops_per_device":0.5,"mfu":0.35,)"
        R"("arena_bytes":8768,"memory_bytes":1048576,"rank_busy_ms":[400.0,410.0,480.0,405.0]}})"
        "\n",
        iteration_, Stamp(now_), 2 + 3 * std::exp(-i / 20), 1 / (1 + i / 10), 8 * iteration_,
        128 * iteration_, iteration_ == 10 ? 50.0 : 0.0);
    if (iteration_ % 20 == 0) {
      now_ += 1;
      text_ += fmt::format(R"({{"iteration":{},"timestamp":"{}","validation_loss":{},"elapsed_ms":1000.0}})"
                           "\n",
                           iteration_, Stamp(now_), 2.1 + 3 * std::exp(-i / 20));
    }
    if (iteration_ % 25 == 0) {
      now_ += 2;
      text_ += fmt::format(R"({{"iteration":{},"timestamp":"{}","save_seconds":2.0,"stall_seconds":2.0}})"
                           "\n",
                           iteration_, Stamp(now_));
    }
  }

  std::int64_t iteration_ = 0;
  double now_ = kBegin;
  std::string text_;
};

struct MadeUpRun {
  explicit MadeUpRun(const std::string& name = "made-up") : folder(parent / name) {
    std::filesystem::create_directories(folder + "/checkpoints/iteration_0000050");
    data::WriteFile(folder + "/plan.json", PlanJson());
    data::WriteFile(folder + "/origin.json",
                    R"({"recipe": "/recipes/made-up.toml", "recipe_from_here": "x"})");
  }

  void Write(const std::string& name, const std::string& text) const {
    data::WriteFile(folder + "/" + name, text);
  }

  // Times of files would count as signs of life that are newer than the made-up records.
  void MakeOld() const {
    for (const char* name : {"plan.json", "metrics.jsonl"}) {
      const timespec times[2] = {{0, UTIME_OMIT}, {1'000'000, 0}};
      utimensat(AT_FDCWD, (folder + "/" + name).c_str(), times, 0);
    }
  }

  data::TempDir parent{data::MemoryFolder()};
  std::string folder;
};

}  // namespace engine::view::testing
