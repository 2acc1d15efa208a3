#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "engine/recipe/batch_size.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

// Sample indices are 32-bit numbers, as Megatron-LM's are.
constexpr std::int64_t kMostSamples = (std::int64_t{1} << 32) - 3;

// Samples of one microbatch over all ranks that split the batch; -1 on overflow.
std::int64_t MicrobatchSamples(const Recipe& r) {
  return ProductOrOverflow({r.training.micro_batch, r.parallelism.dp, r.parallelism.ep});
}

// Whether so many samples are microbatches of `step`, the last of which may be padded.
bool IsWhole(const Training& t, std::int64_t samples, std::int64_t step) {
  return t.pad_batch || samples % step == 0;
}

Choice GlobalBatch(std::int64_t value, std::int64_t multiple_of) {
  return {
      .key = "training.global_batch", .name = "global_batch", .values = MultiplesAround(value, multiple_of)};
}

void BatchIsWholeMicrobatches(const RuleContext& c) {
  const Training& t = c.recipe.training;
  const Parallelism& p = c.recipe.parallelism;
  const std::int64_t step = MicrobatchSamples(c.recipe);
  const std::string product = fmt::format("micro_batch {} × dp {} × ep {}", t.micro_batch, p.dp, p.ep);
  if (step < 0) {
    c.Error({"training.micro_batch", "parallelism.dp", "parallelism.ep"},
            product + " does not fit in 63 bits");
  } else if (!IsWhole(t, t.global_batch, step)) {
    c.Error({"training.global_batch", "training.micro_batch", "parallelism.dp", "parallelism.ep"},
            fmt::format("global_batch {} is not a multiple of {} = {}", t.global_batch, product, step),
            c.WaysOut({GlobalBatch(t.global_batch, step)}));
  }
}

void PaddedBatchesCanBe(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  if (!c.recipe.training.pad_batch) return;
  if (Ramps(c.recipe.training) && p.virtual_stages > 1 && p.pp > 1) {
    c.Error({"training.pad_batch", "training.rampup"},
            "the interleaved schedule needs microbatches in groups of pp, which padded sizes of a growing "
            "batch may not be",
            "pad_batch = false; or virtual_stages 1");
  }
  if (c.recipe.model.experts == 0) return;
  c.Error({"training.pad_batch"},
          "routers and their losses would count the tokens of empty samples, which go to experts as all "
          "others do",
          "pad_batch = false");
}

// What routers count together lies on one rank.
void RanksHaveWholeGroups(const RuleContext& c) {
  const std::int64_t samples = c.recipe.training.micro_batch;
  const std::int64_t group = c.recipe.model.sample_group;
  if (samples % group == 0) return;
  c.Error(
      {"training.micro_batch"},
      fmt::format("micro_batch {} is not a multiple of the {} samples that aux_samples or capacity_samples "
                  "count together",
                  samples, group),
      fmt::format("micro_batch {}", group));
}

void TasksHaveATime(const RuleContext& c) {
  if (c.recipe.evaluation.tasks.empty() || c.recipe.evaluation.interval > 0) return;
  c.Error({"evaluation.tasks", "evaluation.interval"},
          "tasks are asked at evaluations, but evaluation.interval is 0, so there are none",
          "an evaluation.interval of some hundreds or thousands");
}

// The numbers of [training.rampup] lead from start to global_batch.
void RampupIsWhole(const RuleContext& c) {
  const Training& t = c.recipe.training;
  const Rampup& r = t.rampup;
  if (r.start == 0 && r.increment == 0 && r.samples == 0) return;
  const std::pair<const char*, std::int64_t> numbers[] = {
      {"start", r.start}, {"increment", r.increment}, {"samples", r.samples}};
  for (const auto& [name, value] : numbers) {
    if (value > 0) continue;
    c.Error({fmt::format("training.rampup.{}", name), "training.rampup.start", "training.rampup.increment",
             "training.rampup.samples"},
            fmt::format("the global batch grows by start {}, increment {} and samples {}: {} is missing",
                        r.start, r.increment, r.samples, name),
            "set all three of [training.rampup], or none");
    return;
  }
  if (r.start >= t.global_batch) {
    c.Error({"training.rampup.start", "training.global_batch"},
            fmt::format("rampup.start {} is not below global_batch {}", r.start, t.global_batch),
            "a smaller start, a larger global_batch, or no [training.rampup]");
    return;
  }
  const std::int64_t grows = t.global_batch - r.start;
  if (grows % r.increment != 0) {
    std::vector<std::int64_t> batches = MultiplesAround(grows, r.increment);
    for (std::int64_t& batch : batches) batch += r.start;
    c.Error(
        {"training.rampup.increment", "training.rampup.start", "training.global_batch"},
        fmt::format(
            "rampup.increment {} does not lead from start {} to global_batch {}: {} is no multiple of it",
            r.increment, r.start, t.global_batch, grows),
        c.WaysOut({{.key = "training.rampup.increment", .name = "increment", .values = Divisors(grows)},
                   {.key = "training.global_batch", .name = "global_batch", .values = std::move(batches)}}));
    return;
  }
  if (grows / r.increment >= kMostTurns) {
    c.Error({"training.rampup.increment", "training.rampup.start", "training.global_batch"},
            fmt::format(
                "the batch grows from rampup.start {} to global_batch {} through {} sizes, each with its own "
                "program: more than {}",
                r.start, t.global_batch, grows / r.increment + 1, kMostTurns),
            "a larger increment");
    return;
  }
  if (r.samples > kMostSamples) {
    c.Error({"training.rampup.samples"},
            fmt::format("rampup.samples {} are more than an index of samples holds ({})", r.samples,
                        kMostSamples),
            fmt::format("at most {}", kMostSamples));
  }
}

// Every size of the growing batch is whole microbatches, in groups of pp under the interleaved schedule, as its start and
// its steps are.
void WholeMicrobatches(const RuleContext& c, const char* name, std::int64_t value) {
  const Training& t = c.recipe.training;
  const Parallelism& p = c.recipe.parallelism;
  const bool groups = p.virtual_stages > 1 && p.pp > 1;
  const std::int64_t step = ProductOrOverflow({t.micro_batch, p.dp, p.ep, groups ? p.pp : std::int64_t{1}});
  if (!Ramps(t) || step < 0 || !IsWhole(t, t.global_batch, step)) return;  // other rules say so
  if (IsWhole(t, value, step)) return;
  const std::string key = fmt::format("training.rampup.{}", name);
  const auto of_groups = [&](std::string_view other) {  // a key that is counted in groups only
    return groups ? other : std::string_view(key);
  };
  std::string hint = c.WaysOut({{.key = key, .name = name, .values = MultiplesAround(value, step)}});
  if (hint.empty())
    hint = fmt::format("{} {}", name, NearestMultiples(value, step));  // with another start, or increment
  c.Error(
      {key, "training.rampup.start", "training.micro_batch", "parallelism.dp", "parallelism.ep",
       of_groups("parallelism.pp"), of_groups("parallelism.virtual_stages")},
      fmt::format("rampup.{} {} is not a multiple of micro_batch {} × dp {} × ep {}{} = {}", name, value,
                  t.micro_batch, p.dp, p.ep, groups ? fmt::format(" × pp {} (interleaved)", p.pp) : "", step),
      std::move(hint));
}
void RampupStartsWhole(const RuleContext& c) {
  WholeMicrobatches(c, "start", c.recipe.training.rampup.start);
}
void RampupGrowsWhole(const RuleContext& c) {
  WholeMicrobatches(c, "increment", c.recipe.training.rampup.increment);
}

// The programs, one a size of the batch, are unrolled over microbatches and chunks, so a slip of the pen must not make
// them fill the memory.
void ProgramIsOfSensibleLength(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const Training& t = c.recipe.training;
  const std::int64_t step = MicrobatchSamples(c.recipe);
  if (step < 0 || !IsWhole(t, t.global_batch, step)) return;
  if (Ramps(t)) {
    const std::int64_t sizes = (t.global_batch - t.rampup.start) / t.rampup.increment + 1;
    const std::int64_t mean = (t.rampup.start + t.global_batch) / step;
    const std::int64_t all = ProductOrOverflow({sizes, mean, p.pp, p.virtual_stages});
    if (all >= 0 && all / 2 <= kMostTurns) return;
    c.Error(
        {"training.rampup.increment", "training.rampup.start", "training.global_batch",
         "training.micro_batch", "parallelism.dp", "parallelism.ep", "parallelism.pp",
         "parallelism.virtual_stages"},
        fmt::format(
            "the {} sizes from rampup.start {} to global_batch {}, each with its own program, have together "
            "more than {} turns of microbatches × pp {} × virtual_stages {}",
            sizes, t.rampup.start, t.global_batch, kMostTurns, p.pp, p.virtual_stages),
        "a larger increment; or a larger micro_batch");
    return;
  }
  const std::int64_t microbatches = c.recipe.microbatches();
  const std::int64_t turns = ProductOrOverflow({microbatches, p.pp, p.virtual_stages});
  if (turns >= 0 && turns <= kMostTurns) return;
  c.Error({"training.global_batch", "training.micro_batch", "parallelism.dp", "parallelism.ep",
           "parallelism.pp", "parallelism.virtual_stages"},
          fmt::format("an iteration of {} microbatches × pp {} × virtual_stages {} has more than {} turns",
                      microbatches, p.pp, p.virtual_stages, kMostTurns),
          "a larger micro_batch; or a smaller global_batch");
}

void InterleavedMicrobatchesFillPipeline(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const Training& t = c.recipe.training;
  const std::int64_t step = MicrobatchSamples(c.recipe);
  if (p.virtual_stages == 1 || p.pp == 1 || step < 0 || !IsWhole(t, t.global_batch, step)) return;
  const std::int64_t microbatches = c.recipe.microbatches();
  if (microbatches % p.pp == 0) return;
  const std::int64_t group = ProductOrOverflow({step, p.pp});
  c.Error({"training.global_batch", "parallelism.pp", "parallelism.virtual_stages", "training.micro_batch",
           "parallelism.dp", "parallelism.ep"},
          fmt::format(
              "the interleaved schedule needs microbatches in groups of pp {}, but global_batch {} / {} = {}",
              p.pp, t.global_batch, step, microbatches),
          group < 0 ? "" : c.WaysOut({GlobalBatch(t.global_batch, group)}));
}

void LengthIsSaidOnce(const RuleContext& c) {
  const Training& t = c.recipe.training;
  if (t.iterations > 0 && t.samples > 0) {
    c.Error({"training.samples", "training.iterations"},
            fmt::format("iterations {} and samples {} both say how long the training is", t.iterations,
                        t.samples),
            "keep one, and set the other to 0");
  } else if (t.iterations == 0 && t.samples == 0) {
    c.Error({"training.iterations", "training.samples", "training.global_batch"},
            "nothing says how long the training is", "set training.iterations or training.samples");
  }
}

void SamplesFitAnIndex(const RuleContext& c) {
  const Training& t = c.recipe.training;
  const Progress most = RunOn(t, {}, kNoEnd, kMostSamples);
  if (t.samples > kMostSamples) {
    c.Error({"training.samples"},
            fmt::format("{} samples are more than an index of samples holds ({})", t.samples, kMostSamples),
            fmt::format("samples {}", most.samples));
  }
  const std::int64_t samples =
      Ramps(t) ? c.recipe.samples() : ProductOrOverflow({t.iterations, t.global_batch});
  if (t.iterations == 0 || samples <= kMostSamples) return;  // -1: too long by another rule
  c.Error({"training.iterations", "training.global_batch"},
          fmt::format("{} iterations of {} samples are more than an index of samples holds ({})",
                      t.iterations, t.global_batch, kMostSamples),
          fmt::format("at most {} iterations", most.iterations));
}

void LengthIsWholeBatches(const RuleContext& c) {
  const Training& t = c.recipe.training;
  if (Ramps(t)) {
    const Progress before = RunOn(t, {}, kNoEnd, t.samples);
    if (before.samples == t.samples) return;
    const std::int64_t after = before.samples + BatchAt(t, before.samples);
    c.Error(
        {"training.samples", "training.rampup.samples", "training.global_batch"},
        fmt::format(
            "samples {} do not end with an iteration: of the growing batch, {} iterations have {} and one "
            "more {}",
            t.samples, before.iterations, before.samples, after),
        c.WaysOut({{.key = "training.samples", .name = "samples", .values = {before.samples, after}}}));
    return;
  }
  if (t.samples % t.global_batch != 0) {
    c.Error({"training.samples", "training.global_batch"},
            fmt::format("samples {} is not a multiple of global_batch {}", t.samples, t.global_batch),
            c.WaysOut({{.key = "training.samples",
                        .name = "samples",
                        .values = MultiplesAround(t.samples, t.global_batch)}}));
  }
  if (ProductOrOverflow({t.iterations, t.global_batch}) < 0) {
    c.Error(
        {"training.iterations", "training.global_batch"},
        fmt::format("iterations {} × global_batch {} does not fit in 63 bits", t.iterations, t.global_batch));
  }
}

// The lengths that are set, by name: "warmup_iterations 10 and warmup_samples 20"; counts them.
struct Length {
  const char* name;
  double value;
};
std::string SetLengths(std::initializer_list<Length> lengths, int* count) {
  std::string text;
  *count = 0;
  for (const Length& length : lengths) {
    if (length.value == 0) continue;
    text += fmt::format("{}{} {}", (*count)++ == 0 ? "" : " and ", length.name, length.value);
  }
  return text;
}

void WarmupIsSaidOnce(const RuleContext& c) {
  const Schedule& s = c.recipe.schedule;
  int count = 0;
  const std::string set = SetLengths({{"warmup_iterations", static_cast<double>(s.warmup_iterations)},
                                      {"warmup_samples", static_cast<double>(s.warmup_samples)},
                                      {"warmup_fraction", s.warmup_fraction}},
                                     &count);
  if (count < 2) return;
  c.Error({"schedule.warmup_fraction", "schedule.warmup_samples", "schedule.warmup_iterations"},
          fmt::format("{} both say how long the warm-up is", set), "keep one, and set the others to 0");
}

void DecayIsSaidOnce(const RuleContext& c) {
  const Schedule& s = c.recipe.schedule;
  if (s.decay_iterations == 0 || s.decay_samples == 0) return;
  c.Error({"schedule.decay_samples", "schedule.decay_iterations"},
          fmt::format("decay_iterations {} and decay_samples {} both say how long the decay is",
                      s.decay_iterations, s.decay_samples),
          "keep one, and set the other to 0");
}

// Lengths of the schedule in samples. In float64: exact below 2^53, and no product overflows.
struct ScheduleSamples {
  double warmup = 0;
  double decay = 0;
  double wsd_decay = 0;
};
ScheduleSamples InSamples(const Recipe& r) {
  const Schedule& s = r.schedule;
  const auto batch = static_cast<double>(r.training.global_batch);
  const auto samples = [&](std::int64_t iterations, std::int64_t samples) {
    return iterations > 0 ? static_cast<double>(iterations) * batch : static_cast<double>(samples);
  };
  ScheduleSamples lengths;
  lengths.decay = samples(s.decay_iterations, s.decay_samples);
  if (lengths.decay == 0) {
    lengths.decay = Ramps(r.training) ? static_cast<double>(r.samples())
                                      : samples(r.training.iterations, r.training.samples);
  }
  lengths.warmup = s.warmup_fraction > 0 ? s.warmup_fraction * lengths.decay
                                         : samples(s.warmup_iterations, s.warmup_samples);
  lengths.wsd_decay = samples(s.wsd_decay_iterations, s.wsd_decay_samples);
  return lengths;
}

std::string DecayName(const Recipe& r) {
  if (r.schedule.decay_iterations > 0) return fmt::format("decay_iterations {}", r.schedule.decay_iterations);
  if (r.schedule.decay_samples > 0) return fmt::format("decay_samples {}", r.schedule.decay_samples);
  if (r.training.iterations > 0) return fmt::format("the training's iterations {}", r.training.iterations);
  return fmt::format("the training's samples {}", r.training.samples);
}

// Iterations of a growing batch are of several sizes: a length in iterations would not say how many samples it is.
void GrowingBatchHasLengthsInSamples(const RuleContext& c) {
  if (!Ramps(c.recipe.training)) return;
  const Schedule& s = c.recipe.schedule;
  const std::pair<const char*, std::int64_t> lengths[] = {
      {"warmup", s.warmup_iterations}, {"decay", s.decay_iterations}, {"wsd_decay", s.wsd_decay_iterations}};
  for (const auto& [name, iterations] : lengths) {
    if (iterations == 0) continue;
    c.Error(
        {fmt::format("schedule.{}_iterations", name), "training.rampup.start"},
        fmt::format(
            "{}_iterations {} is no length of the schedule where the global batch grows ([training.rampup]): "
            "the schedule counts samples",
            name, iterations),
        fmt::format("{}_samples; {} iterations of the whole global_batch are {}", name, iterations,
                    ProductOrOverflow({iterations, c.recipe.training.global_batch})));
  }
}

void WarmupEndsBeforeDecay(const RuleContext& c) {
  const Schedule& s = c.recipe.schedule;
  const ScheduleSamples lengths = InSamples(c.recipe);
  if (lengths.decay == 0 || lengths.warmup < lengths.decay) return;
  const std::string warmup = s.warmup_iterations > 0
                                 ? fmt::format("warmup_iterations {}", s.warmup_iterations)
                                 : fmt::format("warmup_samples {}", s.warmup_samples);
  c.Error({s.warmup_iterations > 0 ? "schedule.warmup_iterations" : "schedule.warmup_samples",
           "schedule.decay_iterations", "schedule.decay_samples", "training.iterations", "training.samples"},
          fmt::format("{} must end before the decay does, but that is {} ({:.0f} and {:.0f} samples)", warmup,
                      DecayName(c.recipe), lengths.warmup, lengths.decay),
          fmt::format("a warm-up of less than {:.0f} samples, {} of global_batch {}", lengths.decay,
                      Counted(static_cast<std::int64_t>(std::ceil(
                                  lengths.decay / static_cast<double>(c.recipe.training.global_batch))),
                              "iteration"),
                      c.recipe.training.global_batch));
}

void WsdSaysItsDecay(const RuleContext& c) {
  const Schedule& s = c.recipe.schedule;
  if (s.kind != "wsd") return;
  if ((s.wsd_decay_iterations > 0) == (s.wsd_decay_samples > 0)) {
    c.Error({"schedule.wsd_decay_samples", "schedule.wsd_decay_iterations", "schedule.kind"},
            fmt::format("wsd needs one of wsd_decay_iterations and wsd_decay_samples; they are {} and {}",
                        s.wsd_decay_iterations, s.wsd_decay_samples),
            "how long its last phase is");
    return;
  }
  const ScheduleSamples lengths = InSamples(c.recipe);
  if (lengths.decay == 0 || lengths.warmup + lengths.wsd_decay <= lengths.decay) return;
  c.Error(
      {s.wsd_decay_iterations > 0 ? "schedule.wsd_decay_iterations" : "schedule.wsd_decay_samples"},
      fmt::format(
          "wsd's last phase of {:.0f} samples and a warm-up of {:.0f} do not fit into {} ({:.0f} samples)",
          lengths.wsd_decay, lengths.warmup, DecayName(c.recipe), lengths.decay),
      fmt::format("a last phase of at most {:.0f} samples", std::max(0.0, lengths.decay - lengths.warmup)));
}

void RatesAreOrdered(const RuleContext& c) {
  const Schedule& s = c.recipe.schedule;
  const double highest = c.recipe.optimizer.learning_rate;
  if (s.min_learning_rate > highest) {
    c.Error({"schedule.min_learning_rate", "optimizer.learning_rate"},
            fmt::format("min_learning_rate {} is more than learning_rate {}", s.min_learning_rate, highest),
            fmt::format("min_learning_rate at most {}", highest));
  }
  if (s.warmup_init > highest) {
    c.Error({"schedule.warmup_init", "optimizer.learning_rate"},
            fmt::format("warmup_init {} is more than learning_rate {}", s.warmup_init, highest),
            fmt::format("warmup_init at most {}", highest));
  }
}

// What is said of an optimizer has an effect.
void KeysAreOfTheOptimizer(const RuleContext& c) {
  for (const Field& field : Fields()) {
    if (field.table() != "optimizer" || Applies(field, c.recipe) || c.IsDefault(field.key)) continue;
    const Condition* const condition = field.ConditionOn("optimizer.kind");
    if (condition == nullptr) continue;
    const std::string& kind = condition->word;
    c.Error({field.key},
            fmt::format("{} {} goes with kind \"{}\", not \"{}\"", field.name(), ToToml(Get(field, c.recipe)),
                        kind, c.recipe.optimizer.kind),
            fmt::format("remove {}; or kind = \"{}\"", field.name(), kind));
  }
}

void ReserveFitsMemory(const RuleContext& c) {
  const Cluster& cluster = c.recipe.cluster;
  if (cluster.memory_bytes == 0 || cluster.reserved_bytes < cluster.memory_bytes) return;
  c.Error({"cluster.reserved_bytes", "cluster.memory_bytes"},
          fmt::format("reserved_bytes {} leaves nothing of memory_bytes {}", cluster.reserved_bytes,
                      cluster.memory_bytes));
}

}  // namespace

std::vector<Rule> BatchRules() {
  const std::vector<std::string> batch = {"training.global_batch", "training.micro_batch",
                                          "training.pad_batch", "parallelism.dp", "parallelism.ep"};
  std::vector<std::string> pipeline = batch;
  pipeline.insert(pipeline.end(), {"parallelism.pp", "parallelism.virtual_stages"});
  std::vector<std::string> growing = pipeline;
  growing.emplace_back("training.rampup");
  const std::vector<std::string> length = {"training.iterations", "training.samples", "training.global_batch",
                                           "training.rampup"};
  return {
      {batch, BatchIsWholeMicrobatches},
      {{"training.micro_batch"}, RanksHaveWholeGroups},
      {{"training.rampup", "training.global_batch"}, RampupIsWhole},
      {{"evaluation.tasks", "evaluation.interval"}, TasksHaveATime},
      {growing, RampupStartsWhole},
      {growing, RampupGrowsWhole},
      {{"training.pad_batch", "training.rampup", "parallelism.pp", "parallelism.virtual_stages"},
       PaddedBatchesCanBe},
      {{"training.global_batch", "training.rampup", "training.micro_batch", "parallelism"},
       ProgramIsOfSensibleLength},
      {pipeline, InterleavedMicrobatchesFillPipeline},
      {{"training.iterations", "training.samples"}, LengthIsSaidOnce},
      {length, SamplesFitAnIndex},
      {length, LengthIsWholeBatches},
      {{"cluster.memory_bytes", "cluster.reserved_bytes"}, ReserveFitsMemory},
  };
}

std::vector<Rule> OptimizerRules() { return {{{"optimizer"}, KeysAreOfTheOptimizer}}; }

std::vector<Rule> ScheduleRules() {
  const std::vector<std::string> lengths = {"schedule", "training.iterations", "training.samples",
                                            "training.global_batch", "training.rampup"};
  return {
      {{"schedule", "training.rampup", "training.global_batch"}, GrowingBatchHasLengthsInSamples},
      {{"schedule"}, WarmupIsSaidOnce},
      {{"schedule"}, DecayIsSaidOnce},
      {lengths, WarmupEndsBeforeDecay},
      {lengths, WsdSaysItsDecay},
      {{"schedule", "optimizer.learning_rate"}, RatesAreOrdered},
  };
}

}  // namespace engine::recipe
