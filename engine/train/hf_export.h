// A run's weights as the folder of a Hugging Face model (`engine export hf`).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/hf/folder_writer.h"

namespace engine::train {

struct HfExportOptions {
  std::string dtype = {};                             // bf16, fp16 or fp32; empty: that of the model's source
  std::int64_t shard_bytes = hf::kDefaultShardBytes;  // of a file of weights, at most
  std::string family = {};                            // empty: the one that expresses the recipe exactly
  bool adapter = false;  // of a run with [lora]: its adapters alone, as PEFT has them; default type fp32
  bool merge = false;    // likewise: the weights with the adapters added
  std::optional<std::int64_t> iteration = {};  // nothing: that of the newest whole checkpoint
};

struct HfExport {
  std::string family;
  std::string dtype;
  std::string checkpoint;
  std::int64_t tensors = 0, bytes = 0;
  std::vector<std::string> notes;
};

// `run`: a run's folder, or that of a checkpoint. OUT gets config.json, the weights, and what the run was imported with beside
// them, or else the files of the tokenizer that its recipe names, with that one's tokens as bos_token_id and eos_token_id; an
// earlier export is replaced. Without a dtype nothing is rounded: FailedPrecondition names a tensor whose values the source's
// type cannot say. Other errors: no whole checkpoint; no family has this model (hf::ExportConfig); OUT holds other files, or is
// a folder that the weights (HfOrigin) or the tokenizer came from; the system's.
absl::StatusOr<HfExport> ExportHf(const std::string& run, const std::string& out,
                                  const HfExportOptions& options);

}  // namespace engine::train
