#include "engine/plan/json.h"

#include "engine/plan/canonical.h"
#include "engine/plan/print_schedule.h"
#include "engine/plan/print_traffic.h"

namespace engine::plan {
namespace {

using Json = nlohmann::ordered_json;

Json MemoryJson(const StagePlan& stage) {
  const MemoryBreakdown& memory = stage.memory;
  return {{"parameters", memory.parameters},   {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},     {"control", memory.control},
          {"activations", memory.activations}, {"communication", memory.communication},
          {"transients", memory.transients},   {"evaluation", memory.evaluation},
          {"total", stage.arena_bytes}};
}

Json ChunkJson(const Plan& plan, const Chunk& chunk) {
  const auto has = [&](graph::Unit::Kind kind) {
    return plan.CountUnits(chunk.first_unit, chunk.end_unit, kind) > 0;
  };
  const std::int64_t first = plan.BlocksBefore(chunk);
  return {{"index", chunk.index},
          {"first_layer", first},
          {"end_layer", first + plan.BlocksIn(chunk)},
          {"embedding", has(graph::Unit::Kind::kEntry)},
          {"head", has(graph::Unit::Kind::kExit)},
          {"slots", chunk.slots},
          {"slot_bytes", chunk.slot_bytes}};
}

Json BucketJson(const Plan& plan, const Bucket& bucket) {
  Json parameters = Json::array();
  for (const Bucket::Item& item : bucket.items) {
    const PlanParameter& parameter = plan.parameters[static_cast<std::size_t>(item.parameter)];
    const LocalValue& value = plan.values[static_cast<std::size_t>(parameter.value)];
    parameters.push_back({{"name", parameter.name},
                          {"offset_elements", item.offset_elements},
                          {"elements", item.elements},
                          {"layout", value.layout.ToString()}});
  }
  Json json = {{"elements", bucket.elements},
               {"reduce", bucket.reduce.ToString()},
               {"shards", bucket.shards},
               {"dtype", std::string(Name(bucket.parameter_dtype))},
               {"weight_decay", bucket.weight_decay},
               {"tied", bucket.tied()},
               {"owned", bucket.owned},
               {"parameters", std::move(parameters)}};
  // Only where they are not those of all.
  if (bucket.frozen()) json["frozen"] = true;
  if (bucket.training.learning_rate_scale != 1)
    json["learning_rate_scale"] = bucket.training.learning_rate_scale;
  if (bucket.moves_by_sign()) json["sign_step"] = bucket.training.sign_step;
  if (bucket.training.weight_decay.has_value()) json["own_weight_decay"] = *bucket.training.weight_decay;
  return json;
}

Json StageJson(const Plan& plan, std::size_t index) {
  const StagePlan& stage = plan.stages[index];
  Json chunks = Json::array();
  for (const Chunk& chunk : stage.chunks) chunks.push_back(ChunkJson(plan, chunk));
  Json buckets = Json::array();
  for (const Bucket& bucket : stage.buckets) buckets.push_back(BucketJson(plan, bucket));
  Json traffic = Json::array();
  for (const Traffic& t : TrafficOf(plan, stage)) {
    traffic.push_back({{"collective", t.kind},
                       {"over", t.group},
                       {"behind_computation", t.beside},
                       {"pushed", t.push && !t.direct},
                       {"direct", t.direct},
                       {"count", t.count},
                       {"bytes", t.wire_bytes}});
  }
  Json memory = MemoryJson(stage);
  if (stage.host_bytes > 0) memory["host"] = stage.host_bytes;
  return {{"stage", index},
          {"local_parameters", stage.parameter_count},
          {"flops", stage.flops},
          {"memory", std::move(memory)},
          {"chunks", std::move(chunks)},
          {"communication", std::move(traffic)},
          {"buckets", std::move(buckets)}};
}

Json ScheduleJson(const Plan& plan) {
  const Timeline timeline = SimulateTimeline(plan);
  Json stages = Json::array();
  for (const auto& turns : timeline.stages) {
    Json row = Json::array();
    for (const TimelineTurn& turn : turns) {
      row.push_back(fmt::format("{}{}.{}", "FBW"[static_cast<int>(turn.pass)], turn.microbatch, turn.chunk));
    }
    stages.push_back(std::move(row));
  }
  return {{"kind", plan.schedule},
          {"bubble", timeline.bubble},
          {"length", timeline.length},
          {"stages", std::move(stages)}};
}

Json ProgramJson(const Plan& plan, const StagePlan& stage, const Program& program) {
  Json steps = Json::array();
  for (const Step& step : program) {
    Json item;
    if (step.kind == StepKind::kRun) {
      item["run"] = stage.segments[static_cast<std::size_t>(step.segment)].name;
    } else {
      const Transfer& transfer = plan.transfers[static_cast<std::size_t>(step.transfer)];
      item[step.kind == StepKind::kSend ? "send" : "receive"] =
          plan.values[static_cast<std::size_t>(transfer.value)].name;
      item["bytes"] = transfer.bytes;
    }
    if (step.microbatch >= 0) item["microbatch"] = step.microbatch;
    if (step.slot >= 0) item["slot"] = step.slot;
    item["stream"] = step.stream;
    if (!step.waits.empty()) item["waits"] = step.waits;
    steps.push_back(std::move(item));
  }
  return steps;
}

Json ProgramsJson(const Plan& plan) {
  Json programs = Json::array();
  for (std::size_t p = 0; p < plan.programs.size(); ++p) {
    programs.push_back({{"name", plan.ProgramName(static_cast<std::int32_t>(p))},
                        {"kind", std::string(plan.FactsAt(plan.programs[p].form).name)},
                        {"global_batch", plan.programs[p].global_batch},
                        {"microbatches", plan.programs[p].microbatches}});
  }
  return programs;
}

Json MeshJson(const Mesh& mesh) {
  return {{"dp", mesh.size(Axis::kDp)}, {"tp", mesh.size(Axis::kTp)}, {"pp", mesh.pp},
          {"cp", mesh.size(Axis::kCp)}, {"ep", mesh.size(Axis::kEp)}, {"world", mesh.world()}};
}

}  // namespace

Json ToJson(const Plan& plan) {
  Json stages = Json::array();
  for (std::size_t s = 0; s < plan.stages.size(); ++s) stages.push_back(StageJson(plan, s));
  return {{"hash", plan.hash},
          {"mesh", MeshJson(plan.mesh)},
          {"parameters", plan.parameter_count},
          {"compute", plan.compute},
          {"global_batch", plan.global_batch},
          {"microbatches", plan.microbatches},
          {"programs", ProgramsJson(plan)},
          {"microbatch_samples", plan.microbatch_samples},
          {"sequence", plan.sequence},
          {"vocab", plan.vocab},
          {"vocab_rows", plan.vocab_rows},
          {"notes", plan.notes},
          {"stages", std::move(stages)},
          {"schedule", ScheduleJson(plan)}};
}

Json RankToJson(const Plan& plan, std::int64_t rank) {
  const Coordinates at = plan.mesh.CoordinatesOf(rank);
  const StagePlan& stage = plan.stages[static_cast<std::size_t>(at.pp)];
  Json segments = Json::array();
  for (const Segment& segment : stage.segments) {
    Json instructions = Json::array();
    for (const Instruction& instruction : segment.instructions)
      instructions.push_back(InstructionText(plan, instruction));
    segments.push_back({{"name", segment.name},
                        {"flops", segment.product_flops},
                        {"instructions", std::move(instructions)}});
  }
  const auto coordinate = [&](Axis axis) { return at.axis[static_cast<std::size_t>(axis)]; };
  Json json = {{"hash", plan.hash},
               {"rank", rank},
               {"coordinates",
                {{"dp", coordinate(Axis::kDp)},
                 {"tp", coordinate(Axis::kTp)},
                 {"pp", at.pp},
                 {"cp", coordinate(Axis::kCp)},
                 {"ep", coordinate(Axis::kEp)}}},
               {"segments", std::move(segments)}};
  for (std::size_t p = 0; p < plan.programs.size(); ++p)
    json[plan.ProgramName(static_cast<std::int32_t>(p))] = ProgramJson(plan, stage, stage.programs[p]);
  return json;
}

}  // namespace engine::plan
