#include "engine/import/megatron_convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/import/megatron_writer.h"
#include "engine/recipe/batch_size.h"

namespace engine::import {
namespace {

// Flags that say a key's value as it is.
class DirectConverter : MegatronWriter {
 public:
  DirectConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks)
      : MegatronWriter(arguments, settings, remarks) {}

  void Convert() {
    for (const MegatronArgument& argument : a_.command().arguments) {
      if (argument.flag->fate == MegatronFlag::Fate::kDirect) Direct(*argument.flag);
    }
  }

 private:
  // A number written as "4", "1e-5" or text, as the recipe key wants it.
  void Direct(const MegatronFlag& flag) {
    const recipe::Field& field = *recipe::FindField(flag.text);
    const recipe::FieldValue kind = recipe::DefaultOf(field);
    if (std::holds_alternative<std::int64_t>(kind)) {
      if (const std::optional<std::int64_t> value = a_.Int(flag.name)) Set(flag.text, *value, "", flag.name);
    } else if (std::holds_alternative<double>(kind)) {
      if (const std::optional<double> value = a_.Number(flag.name)) Set(flag.text, *value, "", flag.name);
    } else if (const std::optional<std::string> value = a_.Text(flag.name)) {
      Set(flag.text, *value, "", flag.name);
    }
  }
};

// How long the run is, in how large batches, and on how many nodes.
class RunConverter : MegatronWriter {
 public:
  RunConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks)
      : MegatronWriter(arguments, settings, remarks) {}

  void Convert() {
    Length();
    Cluster();
  }

 private:
  void Length() {
    const std::int64_t micro = IntOf("training.micro_batch", 1);
    const std::int64_t dp = IntOf("parallelism.dp", 1) * IntOf("parallelism.ep", 1);  // theirs
    std::int64_t batch = 0;
    if (const std::optional<std::int64_t> given = a_.Int("--global-batch-size")) {
      batch = *given;
      Set("training.global_batch", batch, "", "--global-batch-size");
    } else if (!a_.Has("--global-batch-size") && micro > 0 && !__builtin_mul_overflow(micro, dp, &batch)) {
      Set("training.global_batch", batch, "Megatron-LM's default: micro_batch × dp", "--micro-batch-size");
    }
    const recipe::Rampup rampup = GrowingBatch();
    const std::optional<std::int64_t> samples = a_.Int("--train-samples");
    if (!samples || batch < 1) return;
    const recipe::Training training{.global_batch = batch, .rampup = rampup};
    const std::int64_t whole = recipe::RunOn(training, {}, recipe::kNoEnd, *samples).samples;
    Set("training.samples", whole,
        whole == *samples ? "" : fmt::format("of {}: whole batches are trained", *samples),
        "--train-samples");
    if (whole != *samples) {
      SetIfAbsent("schedule.decay_samples", *samples, "Megatron-LM's default: --train-samples");
    }
  }

  // Megatron-LM's START INCREMENT SAMPLES, which here as there grow the batch by the same formula.
  recipe::Rampup GrowingBatch() {
    constexpr const char* kFlag = "--rampup-batch-size";
    if (!a_.Has(kFlag)) return {};
    const std::vector<std::string> words = a_.List(kFlag);
    if (words.size() != a_.Find(kFlag)->values.size()) return {};  // the script does not say them
    recipe::Rampup rampup;
    std::int64_t* const numbers[] = {&rampup.start, &rampup.increment, &rampup.samples};
    bool good = words.size() == std::size(numbers);
    for (std::size_t i = 0; good && i < words.size(); ++i) {
      const std::string& word = words[i];
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *numbers[i]);
      good = error == std::errc() && end == word.data() + word.size() && *numbers[i] > 0;
    }
    if (!good) {
      a_.Error(kFlag,
               fmt::format("{} {} is not three numbers of samples", kFlag,
                           Shown(fmt::format("{}", fmt::join(words, " ")))),
               "START INCREMENT SAMPLES, each at least 1");
      return {};
    }
    Set("training.rampup.start", rampup.start, "", kFlag);
    Set("training.rampup.increment", rampup.increment, "", kFlag);
    Set("training.rampup.samples", rampup.samples, "", kFlag);
    return rampup;
  }

  void Cluster() {
    const MegatronWorld& world = a_.command().world;
    if (world.nodes == 0) {
      Set("cluster.nodes", std::int64_t{0}, "as many as the ranks need");
      return;
    }
    Set("cluster.nodes", world.nodes, world.launcher);
    Set("cluster.devices_per_node", world.ranks_per_node, world.launcher);
  }
};

}  // namespace

MegatronSettings ConvertMegatron(const MegatronArguments& arguments, MegatronRemarks* remarks,
                                 MegatronModelChanges* changes) {
  MegatronSettings settings;
  DirectConverter(arguments, &settings, remarks).Convert();
  ConvertMegatronModel(arguments, &settings, remarks);
  ConvertMegatronSteps(arguments, &settings, remarks, changes);
  ConvertMegatronLatents(arguments, &settings, remarks, changes);
  ConvertMegatronExperts(arguments, &settings, remarks, changes);
  ConvertMegatronTokenizer(arguments, &settings, remarks);
  ConvertMegatronParallelism(arguments, &settings, remarks);
  ConvertMegatronData(arguments, &settings, remarks);
  RunConverter(arguments, &settings, remarks).Convert();
  ConvertMegatronTraining(arguments, &settings, remarks);
  ConvertMegatronGroups(arguments, &settings, remarks, changes);
  return settings;
}

}  // namespace engine::import
