// A data set and a recipe for the program, made by the program.
#pragma once

#include <filesystem>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/data/temp_dir.h"

namespace engine::cli {

// DIR/tiny.toml trains in DIR/run on text of DIR/text_text_document, 8 iterations of 4 samples.
struct TinyRun {
  TinyRun() {
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text += "{\"text\": \"" + std::to_string(i * i) + " bottles of beer on the wall, " + std::to_string(i) +
              "\"}\n";
    }
    data::WriteFile(folder / "text.jsonl", text);
    const ProgramResult built = RunProgram("data build --input " + folder / "text.jsonl" +
                                           " --output-prefix " + folder / "text" + " --append-eod");
    REQUIRE_MESSAGE(built.exit_code == 0, built.output);
    data::WriteFile(recipe, R"([model]
layers = 2
hidden = 16
vocab = 257
vocab_multiple = 8
max_positions = 16
attention = { heads = 2, position = "learned", bias = true }
mlp = { hidden = 32 }
[data]
paths = [")" + folder / "text_text_document" +
                                R"("]
split = "9,1,0"
sequence_length = 16
[optimizer]
learning_rate = 1e-2
[schedule]
kind = "constant"
[training]
global_batch = 4
micro_batch = 2
iterations = 8
[checkpoint]
interval = 4
)");
  }

  data::TempDir folder;
  std::string recipe = folder / "tiny.toml";
  std::string out = folder / "run";
};

}  // namespace engine::cli
