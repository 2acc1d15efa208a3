#include "engine/plan/print.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "engine/plan/print_schedule.h"
#include "engine/plan/print_traffic.h"

namespace engine::plan {
namespace {

constexpr std::int64_t kTimelineColumns = 112;  // with the stage's number, 118 in all

using Row = std::vector<std::string>;

std::string HalvesText(const Plan& plan) {
  std::int64_t both = 0;
  for (const Segment& segment : plan.stages[0].segments) {
    both += std::count_if(segment.instructions.begin(), segment.instructions.end(),
                          [](const Instruction& i) { return i.half == Half::kBoth && i.op() != nullptr; });
  }
  std::string text = fmt::format(
      "{} microbatches at once, in turns, exchange of one behind computation of the other", plan.halves);
  if (both > 0) text += fmt::format("; {} gradients made of both", both);
  return text;
}

// The sizes of a batch that grows: "16, 24, 32, … 64 samples, each with a program of its own".
std::string SizesText(const Plan& plan) {
  constexpr std::size_t kNamed = 3;
  std::vector<std::string> sizes;
  for (const ProgramSpec& spec : plan.programs) {
    if (spec.form == kTrainForm) sizes.push_back(WithThousands(spec.global_batch));
  }
  if (sizes.size() < 2) return "";
  const std::size_t count = sizes.size();
  if (count > kNamed + 2) {
    sizes.erase(sizes.begin() + kNamed, sizes.end() - 1);
    sizes.insert(sizes.end() - 1, "…");
  }
  return fmt::format("{} samples: {} programs over one arena", fmt::join(sizes, ", "), count);
}

std::string Header(const Plan& plan) {
  std::string text = fmt::format("plan {}\n", plan.hash);
  text += fmt::format("  mesh      {}\n", MeshText(plan.mesh));
  text += fmt::format("  model     {} parameters, computed in {}\n", WithThousands(plan.parameter_count),
                      plan.compute);
  const std::int64_t replicas = plan.mesh.size(Axis::kDp) * plan.mesh.size(Axis::kEp);
  text += fmt::format(
      "  batch     {} samples {} {} microbatches × {} samples × {} (dp × ep), of {} tokens: {} tokens\n",
      plan.global_batch, plan.microbatches * plan.microbatch_samples == plan.global_batch ? "=" : "in",
      plan.microbatches, plan.microbatch_samples / replicas, replicas, plan.sequence,
      WithThousands(plan.global_batch * plan.sequence));
  if (const std::int64_t empty = plan.microbatches * plan.microbatch_samples - plan.global_batch; empty > 0)
    text += fmt::format("  padding   {} of an iteration's samples are empty\n", empty);
  if (std::string sizes = SizesText(plan); !sizes.empty()) text += fmt::format("  ramp-up   {}\n", sizes);
  text += fmt::format("  schedule  {}, {} chunk{} a stage\n", plan.schedule, plan.stages[0].chunks.size(),
                      plan.stages[0].chunks.size() == 1 ? "" : "s");
  if (plan.halves > 1) text += fmt::format("  overlap   {}\n", HalvesText(plan));
  for (const std::string& note : plan.notes) text += fmt::format("  note      {}\n", note);
  return text;
}

// Layers per chunk, in order, with an E for each entry (embeddings) and an H for each exit (norm and head).
std::string Layers(const Plan& plan, const StagePlan& stage) {
  std::string text;
  for (const Chunk& chunk : stage.chunks) {
    std::string units;
    std::int64_t blocks = 0;
    const auto add = [&](const std::string& word) { units += (units.empty() ? "" : " ") + word; };
    const auto flush = [&] {
      if (blocks > 0) add(fmt::format("{}", blocks));
      blocks = 0;
    };
    for (std::int32_t u = chunk.first_unit; u < chunk.end_unit; ++u) {
      const graph::Unit::Kind kind = plan.units[static_cast<size_t>(u)].kind;
      if (kind == graph::Unit::Kind::kBlock) {
        ++blocks;
        continue;
      }
      flush();
      add(kind == graph::Unit::Kind::kEntry ? "E" : "H");
    }
    flush();
    text += (text.empty() ? "" : " + ") + units;
  }
  return text;
}

std::string Slots(const StagePlan& stage) {
  std::string text;
  for (const Chunk& chunk : stage.chunks) {
    if (chunk.slots == 0) continue;
    text += fmt::format("{}{} × {}", text.empty() ? "" : " + ", chunk.slots, FormatBytes(chunk.slot_bytes));
  }
  return text.empty() ? "-" : text;
}

std::string Work(const Plan& plan) {
  std::vector<Row> rows;
  for (const StagePlan& stage : plan.stages) {
    rows.push_back(
        {Layers(plan, stage), WithThousands(stage.parameter_count), FormatCount(stage.flops), Slots(stage)});
  }
  return "\nwork of one rank (layers by chunk, E: embedding, H: head; FLOPs of an iteration's products and\n"
         "attention, recomputed ones too, masked pairs not; activations: microbatches in flight × bytes)\n" +
         StageTable({"layers", "parameters", "FLOPs", "activations"}, rows);
}

std::string Memory(const Plan& plan) {
  std::vector<Row> rows;
  for (const StagePlan& stage : plan.stages) {
    const MemoryBreakdown& memory = stage.memory;
    Row row;
    for (std::int64_t bytes :
         {memory.parameters, memory.gradients, memory.optimizer, memory.control, memory.activations,
          memory.communication, memory.transients, memory.evaluation, stage.arena_bytes}) {
      row.push_back(FormatBytes(bytes));
    }
    rows.push_back(std::move(row));
  }
  std::string text =
      "\narena of one rank\n" + StageTable({"parameters", "gradients", "optimizer", "control", "activations",
                                            "pipeline", "transients", "evaluation", "total"},
                                           rows);
  const auto most =
      std::max_element(plan.stages.begin(), plan.stages.end(),
                       [](const StagePlan& a, const StagePlan& b) { return a.host_bytes < b.host_bytes; });
  if (most != plan.stages.end() && most->host_bytes > 0) {
    text += fmt::format("\nactivations that wait in the host's memory: {} of a rank{}\n",
                        FormatBytes(most->host_bytes), plan.stages.size() > 1 ? " at most" : "");
  }
  return text;
}

const char* By(const Traffic& traffic) {
  if (traffic.direct) return "its reader";
  return traffic.push ? "copy engines" : "messages";
}

std::string Communication(const Plan& plan) {
  std::vector<std::string> texts;
  std::vector<std::vector<Traffic>> all;
  for (const StagePlan& stage : plan.stages) {
    std::string& key = texts.emplace_back();
    for (const Traffic& t : all.emplace_back(TrafficOf(plan, stage))) {
      key += fmt::format("{} {} {} {} {} {}|", t.kind, t.group, t.beside, By(t), t.count, t.wire_bytes);
    }
  }
  std::vector<Row> rows = {{"stage", "collective", "over", "by", "behind", "count", "bytes sent"}};
  for (const EqualRange& run : RunsOfEquals(texts)) {
    std::string stages =
        run.first == run.last ? fmt::format("{}", run.first) : fmt::format("{}-{}", run.first, run.last);
    for (const Traffic& t : all[run.first]) {
      rows.push_back({std::exchange(stages, ""), t.kind, t.group, By(t), t.beside ? "computation" : "nothing",
                      WithThousands(t.count), FormatBytes(t.wire_bytes)});
    }
  }
  if (rows.size() == 1) return "";
  return "\ncommunication of one rank in an iteration (behind: what runs at the same time)\n" + Table(rows);
}

std::string Schedule(const Plan& plan) {
  const Timeline timeline = SimulateTimeline(plan);
  return fmt::format(
             "\nschedule (bubble {:.1f}%; forward passes: the microbatch's last digit, one unit of time; "
             "backward passes: letters "
             "from a\nfor microbatch 0, {})\n",
             100.0 * timeline.bubble,
             timeline.weights ? "one unit; weights passes: capitals, one unit" : "two units") +
         DrawTimeline(timeline, kTimelineColumns);
}

}  // namespace

std::string Table(const std::vector<Row>& rows) {
  const auto width = [](const std::string& text) {
    return static_cast<std::size_t>(std::count_if(
        text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80; }));
  };
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = " ";
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - width(row[c]), ' ');
      line += " " + (c == 0 ? row[c] + padding : padding + " " + row[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string MeshText(const Mesh& mesh) {
  return fmt::format("dp {} × tp {} × pp {} × cp {} × ep {} = {} rank{}", mesh.size(Axis::kDp),
                     mesh.size(Axis::kTp), mesh.pp, mesh.size(Axis::kCp), mesh.size(Axis::kEp), mesh.world(),
                     mesh.world() == 1 ? "" : "s");
}

std::string StageTable(Row header, const std::vector<Row>& stages) {
  std::vector<std::string> keys;
  for (const Row& row : stages) {
    std::string& key = keys.emplace_back();
    for (const std::string& cell : row) key += cell + "|";
  }
  header.insert(header.begin(), "stage");
  std::vector<Row> rows = {std::move(header)};
  for (const EqualRange& run : RunsOfEquals(keys)) {
    Row row = stages[run.first];
    row.insert(row.begin(), run.first == run.last ? fmt::format("{}", run.first)
                                                  : fmt::format("{}-{}", run.first, run.last));
    rows.push_back(std::move(row));
  }
  return Table(rows);
}

std::string Summary(const Plan& plan) {
  return Header(plan) + Work(plan) + Memory(plan) + Communication(plan) + Schedule(plan);
}

}  // namespace engine::plan
