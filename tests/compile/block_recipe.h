// A model of one block, for tests of how its steps are placed.
#pragma once

#include <string>
#include <vector>

#include "engine/model/load.h"
#include "engine/recipe/load.h"

namespace engine::compile {

// The tables of a recipe beside its model: 8 samples of 64 random tokens an iteration, and an evaluation.
inline constexpr const char* kOtherTables = R"(
    [data]
    source = "random"
    sequence_length = 64
    [optimizer]
    learning_rate = 1e-3
    [training]
    global_batch = 8
    micro_batch = 2
    iterations = 5
    [evaluation]
    interval = 5
    iterations = 1
  )";

// A model of one block of these steps, of x[B, S, D].
inline recipe::LoadResult LoadBlock(const std::string& block, const std::vector<std::string>& sets) {
  return model::LoadText(R"(
    [model]
    dims = { D = 32, L = 2, H = 8, K = 4, E = 8, C = 48, F = 64, V = 256 }
    inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
    main = [
      { do = "embedding", as = "emb", of = "tokens", rows = "V", width = "D" },
      { do = "stack", as = "layers", repeat = "L", layer = ["b"] },
      { do = "linear", as = "head", out = ["V"] },
      { do = "cross_entropy", as = "loss" },
    ]
    [block.b]
    steps = [
)" + block + "]" + kOtherTables,
                         "block.toml", {.sets = sets, .root = ""});
}

}  // namespace engine::compile
