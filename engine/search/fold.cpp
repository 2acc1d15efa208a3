#include "engine/search/fold.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/flat_exchange.h"
#include "engine/compile/stage.h"
#include "engine/driver/compile_recipe.h"
#include "engine/model/decoder.h"
#include "engine/ops/fp8.h"
#include "engine/plan/arena.h"
#include "engine/plan/control.h"
#include "engine/predict/cost.h"
#include "engine/search/chunk_facts.h"
#include "engine/search/pass_schedule.h"
#include "engine/search/stage_states.h"

namespace engine::search {
namespace {

using plan::Aligned;
using plan::Plan;

// Blocks of the chunks that are tried as ones from which on chunks grow evenly; where none does, chunks of
// the length itself are compiled.
constexpr std::int64_t kLengths[] = {1, 2, 3, 5, 8};

enum Kind : std::uint8_t { kFirst, kMiddle, kLast, kWhole, kKinds };

// The first half of what tells apart layouts that share probes.
std::string ParameterKey(const recipe::Recipe& recipe) {
  const recipe::Parallelism& p = recipe.parallelism;
  return fmt::format("{} {} {} {}", p.tp, p.cp, p.sequence_parallel, p.pp > 1);
}

std::string ProbeKey(const recipe::Recipe& recipe, std::int64_t halves) {
  const recipe::Recompute& again = recipe.recompute;
  const bool deferred = recipe.parallelism.schedule == plan::kZeroBubble;
  std::string key = fmt::format("{} {} {} {} {} {}", ParameterKey(recipe), recipe.training.micro_batch,
                                halves, deferred, recipe.world_size(), again.granularity);
  if (again.granularity == "selective") {
    for (const std::string& module : again.modules) key += " " + module;
  }
  return key;
}

// The key of layouts in which a block takes equally long for a sample, if micro-batch and the cut into halves
// are the same, too.
std::string BlockKey(const recipe::Recipe& recipe) {
  const recipe::Recompute& again = recipe.recompute;
  return fmt::format(
      "{} {} {} {}", ParameterKey(recipe), recipe.world_size(), again.granularity,
      again.granularity == "selective" ? fmt::format("{}", fmt::join(again.modules, " ")) : "");
}

std::string EvaluationKey(const recipe::Recipe& recipe, std::int64_t halves) {
  return fmt::format("{} {} {}", ParameterKey(recipe), recipe.training.micro_batch / halves,
                     recipe.world_size());
}

}  // namespace

class Folder::Impl {
  using Blocks = std::vector<std::int64_t>;  // of each chunk

 public:
  explicit Impl(compile::CompileOptions options) : options_(std::move(options)) { options_.hash = false; }

  std::int64_t probes() const { return probes_ + (whole_ != nullptr ? whole_->probes() : 0); }

  absl::StatusOr<std::int64_t> LeastBytes(const recipe::Recipe& recipe) {
    ASSIGN_OR_RETURN(const compile::FlatExchange exchange, compile::ExchangeOf(recipe, options_));
    const Blocks& lengths = BlocksOf(recipe);
    const std::vector<StageShape> shapes = ShapesOf(recipe, lengths);
    const PassSchedule& schedule = ScheduleOf(recipe);
    const std::int64_t input_bytes = BlockInputBytes(recipe);
    std::vector<std::int64_t> bytes(shapes.size(), 0);
    for (size_t c = 0; c < lengths.size(); ++c)
      bytes[c % shapes.size()] += schedule.slots[c] * lengths[c] * input_bytes;
    std::int64_t most = 0;
    for (size_t s = 0; s < shapes.size(); ++s) {
      ASSIGN_OR_RETURN(const StageStates* states, StatesOf(recipe, exchange, shapes[s]));
      most = std::max(most, states->memory.total() + bytes[s]);
    }
    return most;
  }

  double LeastSeconds(const recipe::Recipe& recipe) {
    const std::int64_t halves = compile::Halves(recipe, options_);
    const double seconds = LeastSecondsInHalves(recipe, halves);
    if (halves == 1 || !compile::MayHoldUpHalves(recipe, options_)) return seconds;
    return std::min(seconds, LeastSecondsInHalves(recipe, 1));
  }

  // As CompileUnverified chooses: without halves where these are held up and that takes less time.
  absl::StatusOr<Estimate> Fold(const recipe::Recipe& recipe, double slow_s) {
    constexpr double kHardly = 0.05;  // of an iteration
    const bool may_hold_up = compile::MayHoldUpHalves(recipe, options_);
    absl::StatusOr<Estimate> halves =
        FoldAsSaid(recipe, may_hold_up ? std::numeric_limits<double>::infinity() : slow_s);
    const bool refused = halves.ok() && halves->halves_refused;
    if (!refused && (!halves.ok() || !may_hold_up || halves->held_up_s < kHardly * halves->iteration_s))
      return halves;
    if (whole_ == nullptr) {
      compile::CompileOptions options = options_;
      options.halves = false;
      whole_ = std::make_unique<Impl>(std::move(options));
    }
    ASSIGN_OR_RETURN(const Estimate whole, whole_->FoldAsSaid(recipe, slow_s));
    return refused || whole.iteration_s < halves->iteration_s ? whole : *halves;
  }

 private:
  // Facts of a layout's chunks: chunks that are alike share them.
  struct Chunks {
    std::vector<std::pair<std::pair<Kind, std::int64_t>, std::unique_ptr<ChunkFacts>>> distinct;
    std::vector<const ChunkFacts*> facts;  // by chunk
    bool refused = false;                  // Estimate::halves_refused
    const ChunkFacts& operator[](size_t c) const { return *facts[c]; }
    size_t size() const { return facts.size(); }
  };

  absl::StatusOr<Chunks> ChunksOf(const recipe::Recipe& recipe, std::int64_t halves, const Blocks& lengths) {
    Chunks chunks;
    for (size_t c = 0; c < lengths.size(); ++c) {
      const std::pair key(KindOf(c, lengths.size()), lengths[c]);
      auto known = std::find_if(chunks.distinct.begin(), chunks.distinct.end(),
                                [&](const auto& entry) { return entry.first == key; });
      if (known == chunks.distinct.end()) {
        ASSIGN_OR_RETURN(const ChunkFacts facts,
                         FactsFor(recipe, halves, key.first, key.second, &chunks.refused));
        chunks.distinct.emplace_back(key, std::make_unique<ChunkFacts>(facts));
        known = chunks.distinct.end() - 1;
      }
      chunks.facts.push_back(known->second.get());
    }
    return chunks;
  }

  absl::StatusOr<std::vector<const StageStates*>> StatesOfAll(const recipe::Recipe& recipe,
                                                              const compile::FlatExchange& exchange,
                                                              const std::vector<StageShape>& shapes) {
    std::vector<const StageStates*> states;
    for (size_t s = 0; s < shapes.size(); ++s) {
      if (s > 0 && shapes[s] == shapes[s - 1]) {
        states.push_back(states.back());
        continue;
      }
      ASSIGN_OR_RETURN(const StageStates* of, StatesOf(recipe, exchange, shapes[s]));
      states.push_back(of);
    }
    return states;
  }

  absl::StatusOr<Estimate> FoldAsSaid(const recipe::Recipe& recipe, double slow_s) {
    ASSIGN_OR_RETURN(const compile::FlatExchange exchange, compile::ExchangeOf(recipe, options_));
    const Blocks& lengths = BlocksOf(recipe);
    const std::int64_t halves = compile::Halves(recipe, options_);
    const PassSchedule& schedule = ScheduleOf(recipe);
    Estimate estimate;
    ASSIGN_OR_RETURN(const Chunks facts, ChunksOf(recipe, halves, lengths));
    estimate.halves_refused = facts.refused;
    if (facts.refused) return estimate;
    ASSIGN_OR_RETURN(const std::vector<const StageStates*> states,
                     StatesOfAll(recipe, exchange, ShapesOf(recipe, lengths)));
    for (size_t s = 0; s < states.size(); ++s) {
      const plan::MemoryBreakdown memory = MemoryOf(recipe, halves, *states[s], schedule, facts, s);
      if (memory.total() <= estimate.arena_bytes) continue;
      estimate.memory = memory;
      estimate.arena_bytes = memory.total();
      estimate.stage = static_cast<std::int32_t>(s);
    }
    RETURN_IF_ERROR(TimeIteration(recipe, exchange, lengths, facts, states, schedule, slow_s, &estimate));
    return estimate;
  }

  struct Probe {
    std::int64_t blocks = 0;
    bool refused = false;  // its microbatches cannot be cut into halves: no facts
    std::array<ChunkFacts, kKinds> facts;
    std::array<ChunkFacts, 3> longer;  // of a middle chunk, kMore longer
    std::int64_t send_bytes = 0,
                 send_back_bytes = 0;  // between stages, of a microbatch
  };

  static Kind KindOf(size_t chunk, size_t chunks) {
    if (chunks == 1) return kWhole;
    if (chunk == 0) return kFirst;
    return chunk + 1 == chunks ? kLast : kMiddle;
  }

  // Microbatches of the recipe, which may be cut into halves.
  static std::int64_t Microbatches(const recipe::Recipe& recipe) { return recipe.microbatches(); }

  const Blocks& BlocksOf(const recipe::Recipe& recipe) {
    const recipe::Parallelism& p = recipe.parallelism;
    const auto [known, fresh] =
        layers_.try_emplace(std::tuple(p.tp, p.pp * p.virtual_stages, p.layers_per_stage));
    if (!fresh) return known->second;
    if (!p.layers_per_stage.empty()) return known->second = p.layers_per_stage;
    auto graph = graphs_.find(p.tp);
    if (graph == graphs_.end()) {
      // Costs of layers relate to each other as they do for any micro-batch.
      const model::BuildOptions build{.batch = 1,
                                      .sequence = recipe.data.sequence_length,
                                      .vocab_rows = recipe.padded_vocab(),
                                      .dtype = DType::kBF16,
                                      .dropout = false,
                                      .global_tokens = 1};
      graph = graphs_.emplace(p.tp, model::BuildDecoder(recipe, build)).first;
    }
    known->second = compile::BalancedBlocks(p.pp * p.virtual_stages, graph->second, options_.profile);
    return known->second;
  }

  static std::vector<StageShape> ShapesOf(const recipe::Recipe& recipe, const Blocks& lengths) {
    std::vector<StageShape> shapes(static_cast<size_t>(recipe.parallelism.pp));
    for (size_t c = 0; c < lengths.size(); ++c) shapes[c % shapes.size()].blocks += lengths[c];
    shapes.front().embedding = true;
    shapes.back().head = true;
    return shapes;
  }

  const PassSchedule& ScheduleOf(const recipe::Recipe& recipe) {
    const recipe::Parallelism& p = recipe.parallelism;
    const bool deferred = p.schedule == plan::kZeroBubble;
    const auto [known, fresh] =
        schedules_.try_emplace(std::tuple(p.pp, p.virtual_stages, deferred, Microbatches(recipe)));
    if (fresh) known->second = MakeSchedule(p, Microbatches(recipe));
    return known->second;
  }

  // The recipe with chunks of so few blocks, one a stage.
  recipe::Recipe Reduced(const recipe::Recipe& recipe, std::int64_t halves,
                         const std::vector<std::int64_t>& blocks) const {
    recipe::Recipe reduced = recipe;
    recipe::Parallelism& p = reduced.parallelism;
    p.pp = static_cast<std::int64_t>(blocks.size());
    p.dp = 2;  // gradients are partial over dp, whether there is one or not
    p.virtual_stages = 1;
    p.layers_per_stage = blocks;
    p.zero_stage = 0;
    if (p.schedule != plan::kZeroBubble) p.schedule = "auto";
    if (halves == 1) p.overlap = "off";  // no reduction within the passes
    reduced.model.layers = 0;
    for (std::int64_t n : blocks) reduced.model.layers += n;
    reduced.training.global_batch = reduced.training.micro_batch * p.dp * 2;
    reduced.training.rampup = {};
    return reduced;
  }

  struct Compiled {
    Plan plan;
    bool refused = false;
    std::vector<ChunkFacts> facts;  // by stage
  };

  // What evaluation takes depends neither on what is computed again nor on the schedule: of the first plan
  // of such chunks it is known for the others.
  absl::StatusOr<Compiled> CompileChunks(const recipe::Recipe& recipe, std::int64_t halves,
                                         const std::vector<std::int64_t>& blocks) {
    ++probes_;
    std::vector<ChunkFacts::Evaluation>& known = evaluations_[{EvaluationKey(recipe, halves), blocks}];
    compile::CompileOptions options = options_;
    options.evaluation = known.empty();
    ASSIGN_OR_RETURN(compile::Compiled as_said,
                     driver::CompileAsSaid(Reduced(recipe, halves, blocks), options));
    RememberParameters(recipe, as_said.plan);
    Compiled compiled{
        .plan = std::move(as_said.plan), .refused = !as_said.halves_refused.empty(), .facts = {}};
    compiled.facts.resize(compiled.plan.stages.size());
    if (compiled.refused) return compiled;
    compiled.facts = FactsOf(compiled.plan, recipe.cluster);
    for (size_t s = 0; s < compiled.facts.size(); ++s) {
      if (options.evaluation) known.push_back(compiled.facts[s].evaluation);
      compiled.facts[s].evaluation = known[s];
    }
    return compiled;
  }

  // Chunks of n blocks of each kind, and as long, and of kMore blocks longer; `even`: of another length.
  absl::StatusOr<Probe> MakeProbe(const recipe::Recipe& recipe, std::int64_t halves, std::int64_t n,
                                  const Probe* even) {
    Probe probe;
    probe.blocks = n;
    if (even != nullptr) probe.longer = even->longer;
    if (recipe.parallelism.pp == 1) {
      for (size_t more = 0; more < (even != nullptr ? 1 : 3); ++more) {
        ASSIGN_OR_RETURN(const Compiled compiled, CompileChunks(recipe, halves, {n + kMore[more]}));
        probe.refused = probe.refused || compiled.refused;
        if (more == 0) probe.facts[kWhole] = compiled.facts[0];
        if (even == nullptr) probe.longer[more] = compiled.facts[0];
      }
      return probe;
    }
    const std::vector<std::int64_t> cut =
        even != nullptr ? std::vector<std::int64_t>{n, n, n}
                        : std::vector<std::int64_t>{n, n, n + kMore[1], n + kMore[2], n};
    ASSIGN_OR_RETURN(const Compiled compiled, CompileChunks(recipe, halves, cut));
    const auto& [plan, refused, facts] = compiled;
    probe.refused = refused;
    for (size_t more = 0; more < 3 && even == nullptr; ++more) probe.longer[more] = facts[1 + more];
    probe.facts[kFirst] = facts.front();
    probe.facts[kMiddle] = facts[1];
    probe.facts[kLast] = facts.back();
    for (const plan::Step& step : plan.stages[1].programs[0]) {
      if (step.kind != plan::StepKind::kSend || step.microbatch >= plan.halves) continue;
      const std::int64_t bytes = plan.transfers[static_cast<size_t>(step.transfer)].bytes;
      (step.stream == plan::kSendNext ? probe.send_bytes : probe.send_back_bytes) += bytes;
    }
    return probe;
  }

  absl::StatusOr<const Probe*> Known(const std::string& key, const recipe::Recipe& recipe,
                                     std::int64_t halves, std::int64_t n, const Probe* even = nullptr) {
    const auto [known, fresh] = probe_of_.try_emplace(std::pair(key, n));
    if (fresh) {
      known->second = std::make_unique<absl::StatusOr<Probe>>(MakeProbe(recipe, halves, n, even));
      if (known->second->ok() && !(*known->second)->refused) RememberBlock(recipe, halves, **known->second);
    }
    if (!known->second->ok()) return known->second->status();
    return &**known->second;
  }

  // A probe whose chunks are as long, or shorter and grow evenly.
  absl::StatusOr<const Probe*> ProbeOf(const recipe::Recipe& recipe, std::int64_t halves,
                                       std::int64_t blocks) {
    const std::string key = ProbeKey(recipe, halves);
    const Probe* probe = nullptr;
    for (const std::int64_t length : kLengths) {
      if (halves > 1 && length == 1 && blocks > 1) continue;  // halves of one block alone take other turns
      const std::int64_t n = std::min(blocks, length);
      ASSIGN_OR_RETURN(probe, Known(key, recipe, halves, n));
      const auto& [a, b, c] = probe->longer;
      if (n == blocks || GrowsEvenly(a, b, c)) return probe;
    }
    return Known(key, recipe, halves, blocks, probe);
  }

  absl::StatusOr<ChunkFacts> FactsFor(const recipe::Recipe& recipe, std::int64_t halves, Kind kind,
                                      std::int64_t blocks, bool* refused) {
    ASSIGN_OR_RETURN(const Probe* probe, ProbeOf(recipe, halves, blocks));
    *refused = *refused || probe->refused;
    return Longer(probe->facts[kind], blocks - probe->blocks, probe->longer[0], probe->longer[1]);
  }

  void RememberBlock(const recipe::Recipe& recipe, std::int64_t halves, const Probe& probe) {
    if (recipe.parallelism.schedule == plan::kZeroBubble) return;
    const std::int64_t samples = recipe.training.micro_batch;
    const double each = 1 / static_cast<double>(samples);
    const auto& [less, more, most] = probe.longer;
    block_times_[BlockKey(recipe)][{samples, halves}] = {
        .forward_s = (more.forward - less.forward).seconds() * each,
        .backward_s = (more.backward - less.backward).seconds() * each};
  }

  void RememberParameters(const recipe::Recipe& recipe, const Plan& probe) {
    const auto [known, fresh] = parameters_.try_emplace(ParameterKey(recipe));
    if (!fresh) return;
    ModelParameters& all = *(known->second = std::make_unique<ModelParameters>());
    const std::int32_t layers = static_cast<std::int32_t>(recipe.model.layers);
    const std::vector<graph::Unit>& units = probe.units;
    all.plan.units = {units.front()};
    all.plan.units.insert(all.plan.units.end(), recipe.model.layers, {"", graph::Unit::Kind::kBlock});
    all.plan.units.push_back(units.back());
    const auto value = [&](std::int32_t id) {
      plan::LocalValue copy = probe.values[static_cast<size_t>(id)];
      copy.parameter = static_cast<std::int32_t>(all.plan.parameters.size());
      all.plan.values.push_back(std::move(copy));
      return static_cast<std::int32_t>(all.plan.values.size() - 1);
    };
    const auto add = [&](const plan::PlanParameter& parameter, std::int32_t unit) {
      plan::PlanParameter copy = parameter;
      copy.value = value(parameter.value);
      copy.gradient = value(parameter.gradient);
      all.plan.parameters.push_back(std::move(copy));
      all.units.push_back(unit);
    };
    for (const plan::PlanParameter& parameter : probe.parameters) {
      const graph::Unit::Kind kind = units[static_cast<size_t>(parameter.unit)].kind;
      if (kind == graph::Unit::Kind::kEntry) add(parameter, 0);
      if (kind == graph::Unit::Kind::kExit) add(parameter, layers + 1);
      // A probe may have more blocks than the model: all but its first are passed over.
      const bool first = kind == graph::Unit::Kind::kBlock && parameter.unit == 1;
      for (std::int32_t block = 0; first && block < layers; ++block) add(parameter, 1 + block);
    }
  }

  absl::StatusOr<const StageStates*> StatesOf(const recipe::Recipe& recipe,
                                              const compile::FlatExchange& exchange,
                                              const StageShape& shape) {
    const std::string parameters = ParameterKey(recipe);
    if (!parameters_.contains(parameters)) {
      const std::int64_t halves = compile::Halves(recipe, options_);
      RETURN_IF_ERROR(ProbeOf(recipe, halves, BlocksOf(recipe)[0]).status());
    }
    const recipe::Parallelism& p = recipe.parallelism;
    const auto [known, fresh] = states_.try_emplace(
        fmt::format("{} {} {} {} {} {} {} {} {}", parameters, p.dp, p.pp, p.zero_stage, exchange.behind,
                    exchange.pushed.bits(), shape.blocks, shape.embedding, shape.head));
    if (fresh) {
      known->second = std::make_unique<StageStates>(
          StatesOfStage(recipe, exchange, shape, options_.profile, parameters_.at(parameters).get()));
    }
    return known->second.get();
  }

  plan::MemoryBreakdown MemoryOf(const recipe::Recipe& recipe, std::int64_t halves, const StageStates& states,
                                 const PassSchedule& schedule, const Chunks& facts, size_t stage) const {
    plan::MemoryBreakdown memory = states.memory;
    const std::int64_t microbatches = Microbatches(recipe) * halves;
    std::int64_t tensors = 0;  // quantised
    std::int64_t begin = 0;
    std::int64_t pass = 0;
    std::int64_t evaluation = 0;
    std::int64_t evaluate = 0;
    const size_t stages = static_cast<size_t>(recipe.parallelism.pp);
    for (size_t c = stage; c < facts.size(); c += stages) {
      const ChunkFacts& chunk = facts[c];
      const std::int64_t staged = chunk.fed_elements * microbatches * SizeOf(DType::kI32);
      memory.parameters += chunk.derived_bytes;
      memory.control += 2 * Aligned(staged);
      memory.activations += schedule.slots[c] * halves * chunk.slot_bytes;
      memory.communication += chunk.transfer_bytes;
      tensors += chunk.states;
      begin = std::max(begin, chunk.begin_bytes);
      pass = std::max(pass, chunk.pass_bytes);
      evaluation += chunk.evaluation.fed_bytes + chunk.evaluation.transfer_bytes;
      evaluate = std::max(evaluate, chunk.evaluation.bytes);
    }
    memory.control += Aligned(plan::ScalarsFor(1) * SizeOf(DType::kF64)) +
                      Aligned(plan::kControlNumbers * SizeOf(DType::kF64));
    memory.control += Aligned(tensors * ops::kScaleNumbers * SizeOf(DType::kF32));
    memory.transients = Aligned(std::max({begin, pass + states.sum_bytes, states.update_bytes}));
    memory.evaluation = std::max<std::int64_t>(
        0, evaluation + Aligned(evaluate) - memory.activations - memory.communication - memory.transients);
    return memory;
  }

  double LeastSecondsInHalves(const recipe::Recipe& recipe, std::int64_t halves) {
    constexpr double kSlack = 0.97;  // kernels of some sizes fill the device a little better than larger ones
    const auto known = block_times_.find(BlockKey(recipe));
    if (known == block_times_.end()) return 0;
    // Look for a time that was taken with kernels as large or larger, and with exchange hidden as well or
    // better.
    const std::int64_t samples = recipe.training.micro_batch;
    const auto at = std::find_if(known->second.begin(), known->second.end(), [&](const auto& entry) {
      const auto& [of_samples, of_halves] = entry.first;
      return of_halves >= halves && of_samples * halves >= samples * of_halves;
    });
    if (at == known->second.end()) return 0;
    plan::PassTimes times;
    const Blocks& lengths = BlocksOf(recipe);
    for (const std::int64_t length : lengths) {
      const double blocks = kSlack * static_cast<double>(length * samples);
      times.forward.push_back(blocks * at->second.forward_s);
      times.backward.push_back(blocks * at->second.backward_s);
    }
    times.weights.assign(lengths.size(), 0);
    const bool deferred = recipe.parallelism.schedule == plan::kZeroBubble;
    return LeastSeconds(times, static_cast<size_t>(recipe.parallelism.pp), Microbatches(recipe), deferred);
  }

  // What the passes take at least: each stage waits for the first microbatch's way to it, then does all that
  // is its own, and what it ends with goes back to the first stage, but for weights passes, which stay.
  static double LeastSeconds(const plan::PassTimes& times, size_t stages, std::int64_t microbatches,
                             bool deferred) {
    double most = 0;
    double way = 0;
    for (size_t s = 0; s < stages; ++s) {
      double work = 0;
      for (size_t c = s; c < times.forward.size(); c += stages)
        work += times.forward[c] + times.backward[c] + times.weights[c];
      most = std::max(most, way + work * static_cast<double>(microbatches));
      way += times.forward[s] + (deferred ? 0 : times.backward[s]);
    }
    return most;
  }

  // What every microbatch under way keeps of a block, at least.
  static std::int64_t BlockInputBytes(const recipe::Recipe& recipe) {
    const recipe::Parallelism& p = recipe.parallelism;
    const std::int64_t tokens = recipe.training.micro_batch * recipe.data.sequence_length / p.cp;
    const std::int64_t split = p.sequence_parallel ? p.tp : 1;
    return tokens * recipe.model.hidden / split * (recipe.precision.compute == "fp32" ? 4 : 2);
  }

  // Seconds of a pass of `blocks` blocks that take `each`, and `rest` before them, with the exchange of
  // each. `left`: exchange and computation still to be done when it ends.
  struct Left {
    double busy = 0, finish = 0;
  };
  struct BlockExchange {
    const ExchangeCost* gather = nullptr;  // before each block; null: none
    double before_s = 0;                   // computation
    const ExchangeCost* reduce_head = nullptr;
    const ExchangeCost* reduce = nullptr;  // after each
    double after_s = 0;
  };
  static double PlayBlocks(std::int64_t blocks, const PassTime& each, const PassTime& rest, bool behind,
                           const BlockExchange& of, Left* left, double busy = 0) {
    const double n = static_cast<double>(blocks);
    const auto in_line = [](const ExchangeCost* e) { return e == nullptr ? 0.0 : e->seconds + e->finish; };
    if (!behind) {
      return rest.seconds() + in_line(of.reduce_head) +
             n * (each.seconds() + in_line(of.gather) + of.before_s + in_line(of.reduce) + of.after_s);
    }
    TwoStreams play;
    play.now = rest.seconds();
    play.exchanged = busy;
    if (of.reduce != nullptr) play.beside = of.reduce->beside;
    double gathered = 0;
    if (of.gather != nullptr) {
      play.Start(*of.gather);
      gathered = play.exchanged;
    }
    if (of.reduce_head != nullptr && of.reduce_head->seconds > 0) play.Start(*of.reduce_head);
    for (std::int64_t i = 0; i < blocks; ++i) {
      if (of.gather != nullptr) play.now = std::max(play.now, gathered);
      play.Compute(of.before_s);
      constexpr int kPieces = 8;                // products and conversions alternate
      const bool in_turns = each.behind_s > 0;  // computation that is slowed down waits less for these
      const int behind_both = in_turns ? kPieces / 4 : 0;  // the other half has begun the block, too
      const double alone = play.now + each.seconds();
      for (int piece = 0; piece < kPieces; ++piece) {
        if (of.gather != nullptr && piece == behind_both && i + 1 < blocks) {
          play.Start(*of.gather);
          gathered = play.exchanged;
        }
        play.Compute(each.compute_s / kPieces);
        if (!in_turns) play.now += each.exchange_s / kPieces;
      }
      if (in_turns) play.now = std::max(play.now, alone);
      if (of.reduce == nullptr) continue;
      play.Start(*of.reduce);
      play.Compute(of.after_s);
    }
    *left = {.busy = std::max(0.0, play.exchanged - play.now), .finish = play.finish};
    return play.now;
  }

  absl::Status TimeIteration(const recipe::Recipe& recipe, const compile::FlatExchange& exchange,
                             const Blocks& lengths, const Chunks& facts,
                             const std::vector<const StageStates*>& states, const PassSchedule& schedule,
                             double slow_s, Estimate* estimate) {
    const recipe::Parallelism& p = recipe.parallelism;
    const std::int64_t halves = compile::Halves(recipe, options_);
    const std::int64_t microbatches = Microbatches(recipe);
    ASSIGN_OR_RETURN(const Probe* probe, ProbeOf(recipe, halves, lengths[0]));
    const PassTime each_forward = probe->longer[1].forward - probe->longer[0].forward;
    const PassTime each_backward = probe->longer[1].backward - probe->longer[0].backward;
    plan::PassTimes times;
    for (size_t c = 0; c < facts.size(); ++c) {
      const size_t stage = c % states.size();
      const StageStates& of = *states[stage];
      const std::int64_t n = lengths[c];
      const double blocks = static_cast<double>(n);
      double forward = facts[c].forward.seconds();
      double backward = facts[c].backward.seconds();
      const double weights = facts[c].weights.seconds();
      BlockExchange in_pass;
      Left after;
      if (compile::ZeroStageOf(p) > 1 && of.reduce.seconds > 0) {
        if (of.gather.seconds > 0) in_pass = {.gather = &of.gather, .before_s = of.before_gather_s};
        forward = PlayBlocks(n, each_forward, facts[c].forward - each_forward * blocks, exchange.behind,
                             in_pass, &after);
        in_pass.reduce = &of.reduce;
        in_pass.after_s = of.after_reduce_s;
        backward = PlayBlocks(n, each_backward, facts[c].backward - each_backward * blocks, exchange.behind,
                              in_pass, &after);
        backward += after.busy + after.finish;  // the last block's sum is added
                                                // to its shard in the pass
      }
      times.forward.push_back(forward);
      times.backward.push_back(backward);
      times.weights.push_back(weights);
    }
    double rest = 0;
    for (const StageStates* of : states) rest = std::max(rest, of->after_meeting_s);
    estimate->iteration_s =
        LeastSeconds(times, states.size(), microbatches, p.schedule == plan::kZeroBubble) + rest;
    if (estimate->iteration_s > slow_s) return absl::OkStatus();
    if (compile::ZeroStageOf(p) < 2) {
      times.ending = [&](size_t c, double busy) {
        const StageStates& of = *states[c % states.size()];
        plan::PassTimes::Ending ending;
        if (of.reduce.seconds == 0) return ending;
        BlockExchange in_pass;
        in_pass.reduce = &of.reduce;
        if (c + 1 == facts.size()) in_pass.reduce_head = &of.reduce_head;
        const std::int64_t n = lengths[c];
        const PassTime all = facts[c].backward + facts[c].weights;
        Left after;
        const double with =
            PlayBlocks(n, all * (1 / static_cast<double>(n)), {}, exchange.behind, in_pass, &after, busy);
        // Where conversions behind computation share the stream, the last one stands behind all reductions
        // but one.
        const bool shares = all.behind_s > 0 && exchange.stream == plan::kExchangeStream;
        const double head = c + 1 == facts.size() ? of.reduce_head.seconds : 0;
        const double exchanged =
            shares ? busy + all.behind_s + static_cast<double>(n) * of.reduce.seconds + head : 0;
        const double pass = std::max(with, exchanged - of.reduce.seconds);
        ending.longer = pass - all.seconds();
        if (shares) estimate->held_up_s += ending.longer;
        ending.busy = std::max(after.busy - (pass - with), exchanged - pass);
        ending.finish = after.finish;
        return ending;
      };
    }
    Transfers(recipe, *probe, facts.size(), &times);
    const std::vector<double> ends = PlayPasses(schedule, times, microbatches);
    double meeting = 0;
    for (size_t s = 0; s < ends.size(); ++s) {
      double begin = 0;
      for (size_t c = s; c < facts.size(); c += ends.size()) begin += facts[c].begin.seconds();
      meeting = std::max(meeting, begin + ends[s] + states[s]->before_meeting_s);
    }
    estimate->iteration_s = meeting + rest;
    return absl::OkStatus();
  }

  void Transfers(const recipe::Recipe& recipe, const Probe& probe, size_t chunks, plan::PassTimes* times) {
    times->send.assign(chunks, 0);
    times->send_back.assign(chunks, 0);
    if (chunks == 1) return;
    Plan plan;
    plan.mesh = plan::Mesh::Of(recipe.parallelism);
    const size_t stages = static_cast<size_t>(recipe.parallelism.pp);
    for (size_t c = 0; c < chunks; ++c) plan.chunk_stage.push_back(static_cast<std::int32_t>(c % stages));
    const predict::CostModel costs(plan, recipe.cluster);
    for (size_t c = 0; c + 1 < chunks; ++c) {
      const std::int32_t chunk = static_cast<std::int32_t>(c);
      times->send[c] =
          c < stages
              ? costs.TransferSeconds(
                    {.value = -1, .from_chunk = chunk, .to_chunk = chunk + 1, .bytes = probe.send_bytes})
              : times->send[c - stages];
      times->send_back[c + 1] =
          times->send[c] * static_cast<double>(probe.send_back_bytes) / static_cast<double>(probe.send_bytes);
    }
  }

  compile::CompileOptions options_;
  std::map<std::pair<std::string, std::vector<std::int64_t>>, std::vector<ChunkFacts::Evaluation>>
      evaluations_;
  std::int64_t probes_ = 0;
  absl::flat_hash_map<std::int64_t, graph::Graph> graphs_;  // by tp: padding of the vocabulary
  // By tp, chunks and the recipe's own cut.
  absl::flat_hash_map<std::tuple<std::int64_t, std::int64_t, std::vector<std::int64_t>>, Blocks> layers_;
  absl::flat_hash_map<std::tuple<std::int64_t, std::int64_t, bool, std::int64_t>, PassSchedule> schedules_;
  absl::flat_hash_map<std::pair<std::string, std::int64_t>, std::unique_ptr<absl::StatusOr<Probe>>> probe_of_;
  absl::flat_hash_map<std::string, std::unique_ptr<ModelParameters>> parameters_;
  absl::flat_hash_map<std::string, std::unique_ptr<StageStates>> states_;
  // Seconds of one block for one sample, where the backward pass makes the gradients of weights; by samples
  // and halves.
  struct BlockTime {
    double forward_s = 0, backward_s = 0;
  };
  absl::flat_hash_map<std::string, std::map<std::pair<std::int64_t, std::int64_t>, BlockTime>> block_times_;
  std::unique_ptr<Impl> whole_;  // of microbatches that are not cut
};

Folder::Folder(compile::CompileOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Folder::~Folder() = default;
absl::StatusOr<Estimate> Folder::Fold(const recipe::Recipe& recipe, double slow_s) {
  return impl_->Fold(recipe, slow_s);
}
absl::StatusOr<std::int64_t> Folder::LeastBytes(const recipe::Recipe& recipe) {
  return impl_->LeastBytes(recipe);
}
double Folder::LeastSeconds(const recipe::Recipe& recipe) { return impl_->LeastSeconds(recipe); }
std::int64_t Folder::probes() const { return impl_->probes(); }

}  // namespace engine::search
