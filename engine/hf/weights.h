// How the tensors of a Hugging Face model and the engine's parameters are made of each other. A family says it once, as rows;
// import and export both follow from them.
//
// In a row's names {l} is the layer of a stack, counted from 0, and {e} an expert. Every kind of row cuts our tensor into boxes
// whose elements lie in theirs at a constant distance along each dim, so that any box of ours can be read from their files,
// and any rows of theirs made of ours, without a copy of either in between.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/shape.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/hf/folder.h"

namespace engine::hf {

// What the rows of a family are counted with: numbers of its config.
struct Sizes {
  std::int64_t hidden = 0;    // D
  std::int64_t vocab = 0;     // V, rows of their table
  std::int64_t heads = 0;     // H
  std::int64_t kv_heads = 0;  // K
  std::int64_t head_dim = 0;  // E
  std::int64_t ffn = 0;       // F
  std::int64_t experts = 0;   // X
  // Multi-head latent attention: widths of a head's rotated and other features.
  std::int64_t rope_dim = 0, nope_dim = 0, value_dim = 0;
};

enum class How : std::uint8_t {
  kSame,        // one tensor of theirs, of the same elements in the same order
  kTransposed,  // theirs is [in, out] (GPT-2's Conv1D); ours [out, in…]
  kStacked,     // theirs, one after another, are the planes of our first dim behind the expert: gate, up
  kHalves,  // one of theirs whose rows are those of kStacked, one after another (Phi-3's gate_up_proj): as kSame
  kQkv,     // theirs are q, k, v, [H·E, …], [K·E, …], [K·E, …]; ours [K, H/K + 2, E, …]
  kQkvRows,     // one of theirs, rows all q, all k, all v (Phi-3)
  kQkvColumns,  // the same, transposed (GPT-2's c_attn.weight); of a bias, rows
  kRopeLast,  // ours [H, E, …]; rows of a head: theirs has rotated features last (DeepSeek's q_b_proj), ours first
  kAllExperts,  // ours [X, out…, in], theirs one tensor [X, out, in] of all experts (transformers 5)
  kHeadRows,  // ours [H, n, …] are rows `slice` of each head of theirs (DeepSeek's kv_b_proj: keys, then values)
};

// Where ours is not all of theirs: rows [begin, begin + count) of their first dim; of kHeadRows, of each head's.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t count = 0;  // 0: all
};

struct WeightRow {
  std::string ours;  // "layers.{l}.attention.qkv.weight"
  std::vector<std::string>
      theirs;  // "model.layers.{l}.self_attn.q_proj.weight", …; with {e}, one for each plane of our dim 0
  How how = How::kSame;
  Slice slice = {};  // of theirs
  std::int64_t first_layer =
      0;  // their number of our layer 0 (DeepSeek's stack of experts begins at first_k_dense_replace)
};

// What of a parameter one of their tensors has: element i (an index in ours, relative to `box`) is theirs[their_begin + Σ i_k ·
// their_stride_k], counted in elements of their whole row-major tensor.
struct Part {
  std::string tensor;  // theirs
  Shape shape;  // that theirs must have; with `some_rows`, of dim 0 the rows up to where this part ends
  bool some_rows = false;
  checkpoint::Box box;  // of ours
  std::int64_t their_begin = 0;
  Shape their_stride;  // of each dim of ours
};
struct Mapping {
  std::string parameter;
  Shape shape;  // logical, without padding of a vocabulary
  std::vector<Part> parts;
};

// The parts of every parameter (name, logical shape) by the rows; each element of a parameter is in one part. Errors, Internal
// or InvalidArgument: a parameter that no row is of, and a row whose sizes do not come to the parameter's shape.
absl::StatusOr<std::vector<Mapping>> MappingsOf(const std::vector<WeightRow>& rows, const Sizes& sizes,
                                                const std::vector<checkpoint::TensorInfo>& parameters);

// One of their tensors, and which parts of ours it consists of: each element is in one.
struct TheirTensor {
  std::string name;
  Shape shape;
  std::vector<std::pair<int, int>> parts;  // mapping, and part of it
};
// In the order of the mappings. Errors, InvalidArgument: parts that do not make up a tensor, since elements of it are in none or in
// two, or since they speak of different shapes.
absl::StatusOr<std::vector<TheirTensor>> TheirTensors(const std::vector<Mapping>& mappings);

// A folder's weights under the engine's names, in f32, whatever they are stored as: f64, f32, f16 and bf16; FP8 (e4m3) with
// scales of blocks of 128 × 128 beside it (NAME_scale_inv). `ignored`: patterns of names of tensors that are no weights of
// the model. A head in the folder of a model whose head is the table of tokens (lm_head.weight, embed_out.weight) is passed
// over if it has the table's bytes.
// Errors, InvalidArgument, with the folder and all that does not fit, at most five by name: tensors that are missing, have
// another shape or no floating-point type; tensors that no mapping has a use for.
absl::StatusOr<std::unique_ptr<checkpoint::TensorSource>> OpenWeights(
    Folder folder, std::vector<Mapping> mappings, const std::vector<std::string>& ignored = {});

}  // namespace engine::hf
