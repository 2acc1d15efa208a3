// `engine export`: a run's weights in the form of other programs.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/cli/commands.h"
#include "engine/hf/family.h"
#include "engine/train/hf_export.h"

namespace engine::cli {
namespace {

struct ExportArguments {
  std::string run;
  std::string out;
  std::string shard_size = "50GB";
  std::int64_t iteration = -1;
  train::HfExportOptions options;
};

absl::Status RunExport(const ExportArguments& arguments) {
  train::HfExportOptions options = arguments.options;
  ASSIGN_OR_RETURN(options.shard_bytes, hf::ParseShardBytes(arguments.shard_size));
  if (arguments.iteration >= 0) options.iteration = arguments.iteration;
  ASSIGN_OR_RETURN(const train::HfExport exported, train::ExportHf(arguments.run, arguments.out, options));
  for (const std::string& note : exported.notes) Print(stderr, "note: {}\n", note);
  Print(stdout, "{} as {} in {}: {} tensors, {} of {}\n", exported.checkpoint, exported.family, arguments.out,
        exported.tensors, FormatBytes(exported.bytes), exported.dtype);
  return absl::OkStatus();
}

}  // namespace

void AddExportCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("export", "Write a run's weights in the form of other programs");
  command->require_subcommand(1);
  CLI::App* hf = command->add_subcommand(
      "hf",
      "Write the folder of a Hugging Face model: config.json, *.safetensors, and the tokenizer's files");
  const auto arguments = std::make_shared<ExportArguments>();
  hf->add_option("run", arguments->run, "A run's folder, or one checkpoint; or s3://BUCKET/KEY")
      ->required()
      ->type_name("DIR");
  hf->add_option("--out", arguments->out, "The folder: a new one, or an earlier export, which is replaced")
      ->required()
      ->type_name("DIR");
  hf->add_option(
        "--dtype", arguments->options.dtype,
        "Type of the weights, rounded to nearest even; default: that of the model that was imported, "
        "or bf16, if it says every value exactly")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  hf->add_option("--max-shard-size", arguments->shard_size, "Of a file of weights: 50GB, 500MB, 4GiB")
      ->capture_default_str()
      ->type_name("SIZE");
  hf->add_option("--family", arguments->options.family,
                 "The family that it is to be; default: the one that expresses the recipe exactly")
      ->type_name("NAME");
  CLI::Option* merge = hf->add_flag("--merge", arguments->options.merge,
                                    "Of a run with [lora]: weights with the adapters added");
  hf->add_flag(
        "--adapter", arguments->options.adapter,
        "Of a run with [lora]: the adapters alone, as PEFT has them, in fp32 unless --dtype says otherwise")
      ->excludes(merge);
  hf->add_option("--iteration", arguments->iteration, "That of the checkpoint; default: the newest whole one")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000'000'000}))
      ->type_name("N");
  hf->footer("Exit codes: 0 written; 1 not; 2 wrong options");
  hf->callback([arguments, exit_code] {
    const absl::Status status = RunExport(*arguments);
    if (!status.ok()) Print(stderr, "engine export: {}\n", Message(status));
    *exit_code = status.ok() ? 0 : 1;
  });
}

}  // namespace engine::cli
