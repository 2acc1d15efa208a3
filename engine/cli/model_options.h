// The model that `engine generate` and `engine serve` ask, and the device that it runs on.
#pragma once

#include <absl/status/statusor.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "engine/cli/device.h"
#include "engine/generate/trained_model.h"

namespace engine::cli {

struct ModelArguments {
  std::string folder;
  generate::ModelShape shape;
  DeviceChoice device;
  generate::TokenizerFiles files;
};

// The folder, --context, --dp, --tp, --pp, --cp, --ep, --invariant, --cache-dtype, --device, --threads, --vocab and --merges.
void AddModelOptions(CLI::App* command, ModelArguments* arguments);

// The model of the folder: one checkpoint, a run (its newest whole checkpoint) or a Hugging Face model.
absl::StatusOr<generate::ModelSource> FindModel(const ModelArguments& arguments);

// Its weights on the device. Where --device leaves the choice and the recipe's GPU is not here, on the CPU, with a note.
absl::StatusOr<std::unique_ptr<generate::LoadedModel>> LoadModel(const generate::ModelSource& source,
                                                                 DeviceChoice choice, std::int64_t slots);

}  // namespace engine::cli
