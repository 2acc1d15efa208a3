#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

// Samples of one microbatch over all ranks that split the batch; -1 on overflow.
std::int64_t MicrobatchSamples(const Recipe& r) {
  return ProductOrOverflow({r.training.micro_batch, r.parallelism.dp, r.parallelism.ep});
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
    c.Error({"training.micro_batch", "parallelism.dp"}, product + " does not fit in 63 bits");
  } else if (t.global_batch % step != 0) {
    c.Error({"training.global_batch", "training.micro_batch", "parallelism.dp"},
            fmt::format("global_batch {} is not a multiple of {} = {}", t.global_batch, product, step),
            c.WaysOut({GlobalBatch(t.global_batch, step)}));
  }
}

// The program is unrolled over microbatches and chunks, so a slip of the pen must not make it fill the
// memory.
void ProgramIsOfSensibleLength(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const Training& t = c.recipe.training;
  const std::int64_t step = MicrobatchSamples(c.recipe);
  if (step < 0 || t.global_batch % step != 0) return;
  const std::int64_t microbatches = t.global_batch / step;
  const std::int64_t turns = ProductOrOverflow({microbatches, p.pp, p.virtual_stages});
  if (turns >= 0 && turns <= kMostTurns) return;
  c.Error({"training.global_batch", "training.micro_batch", "parallelism.pp"},
          fmt::format("an iteration of {} microbatches × pp {} × virtual_stages {} has more than {} turns",
                      microbatches, p.pp, p.virtual_stages, kMostTurns),
          "a larger micro_batch; or a smaller global_batch");
}

void InterleavedMicrobatchesFillPipeline(const RuleContext& c) {
  const Parallelism& p = c.recipe.parallelism;
  const Training& t = c.recipe.training;
  const std::int64_t step = MicrobatchSamples(c.recipe);
  if (p.virtual_stages == 1 || p.pp == 1 || step < 0 || t.global_batch % step != 0) return;
  const std::int64_t microbatches = t.global_batch / step;
  if (microbatches % p.pp == 0) return;
  const std::int64_t group = ProductOrOverflow({step, p.pp});
  c.Error({"training.global_batch", "parallelism.pp"},
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

// Sample indices are 32-bit numbers, as Megatron-LM's are.
void SamplesFitAnIndex(const RuleContext& c) {
  constexpr std::int64_t kMostSamples = (std::int64_t{1} << 32) - 3;
  const Training& t = c.recipe.training;
  if (t.samples > kMostSamples) {
    c.Error({"training.samples"},
            fmt::format("{} samples are more than an index of samples holds ({})", t.samples, kMostSamples),
            fmt::format("samples {}", kMostSamples / t.global_batch * t.global_batch));
  }
  const std::int64_t samples = ProductOrOverflow({t.iterations, t.global_batch});
  if (samples <= kMostSamples) return;  // -1: too long by another rule
  c.Error({"training.iterations", "training.global_batch"},
          fmt::format("{} iterations of {} samples are more than an index of samples holds ({})",
                      t.iterations, t.global_batch, kMostSamples),
          fmt::format("at most {} iterations", kMostSamples / t.global_batch));
}

void LengthIsWholeBatches(const RuleContext& c) {
  const Training& t = c.recipe.training;
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
  if (lengths.decay == 0) lengths.decay = samples(r.training.iterations, r.training.samples);
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

void ReserveFitsMemory(const RuleContext& c) {
  const Cluster& cluster = c.recipe.cluster;
  if (cluster.memory_bytes == 0 || cluster.reserved_bytes < cluster.memory_bytes) return;
  c.Error({"cluster.reserved_bytes", "cluster.memory_bytes"},
          fmt::format("reserved_bytes {} leaves nothing of memory_bytes {}", cluster.reserved_bytes,
                      cluster.memory_bytes));
}

}  // namespace

std::vector<Rule> BatchRules() {
  const std::vector<std::string> batch = {"training.global_batch", "training.micro_batch", "parallelism.dp",
                                          "parallelism.ep"};
  std::vector<std::string> pipeline = batch;
  pipeline.insert(pipeline.end(), {"parallelism.pp", "parallelism.virtual_stages"});
  return {
      {batch, BatchIsWholeMicrobatches},
      {{"training.global_batch", "training.micro_batch", "parallelism"}, ProgramIsOfSensibleLength},
      {pipeline, InterleavedMicrobatchesFillPipeline},
      {{"training.iterations", "training.samples"}, LengthIsSaidOnce},
      {{"training.iterations", "training.samples", "training.global_batch"}, SamplesFitAnIndex},
      {{"training.iterations", "training.samples", "training.global_batch"}, LengthIsWholeBatches},
      {{"cluster.memory_bytes", "cluster.reserved_bytes"}, ReserveFitsMemory},
  };
}

std::vector<Rule> ScheduleRules() {
  const std::vector<std::string> lengths = {"schedule", "training.iterations", "training.samples",
                                            "training.global_batch"};
  return {
      {{"schedule"}, WarmupIsSaidOnce},
      {{"schedule"}, DecayIsSaidOnce},
      {lengths, WarmupEndsBeforeDecay},
      {lengths, WsdSaysItsDecay},
      {{"schedule", "optimizer.learning_rate"}, RatesAreOrdered},
  };
}

}  // namespace engine::recipe
