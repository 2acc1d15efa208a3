#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "engine/verify/bucket_places.h"
#include "engine/verify/text.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

// Layers and chunks: chunk c on stage c mod pp, layers contiguous in pipeline order.
absl::Status Chunks(const plan::Plan& plan) {
  std::vector<const plan::Chunk*> chunks(plan.chunk_stage.size(), nullptr);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (const plan::Chunk& chunk : plan.stages[s].chunks) {
      if (chunk.index < 0 || static_cast<size_t>(chunk.index) >= chunks.size()) {
        return Internal("stage {} holds a chunk {} of {}", s, chunk.index, chunks.size());
      }
      const plan::Chunk*& known = chunks[static_cast<size_t>(chunk.index)];
      if (known != nullptr ||
          plan.chunk_stage[static_cast<size_t>(chunk.index)] != static_cast<std::int32_t>(s)) {
        return Internal("chunk {} belongs to stage {} but stage {} holds it{}", chunk.index,
                        plan.chunk_stage[static_cast<size_t>(chunk.index)], s,
                        known != nullptr ? " as well" : "");
      }
      known = &chunk;
    }
  }
  std::int32_t next = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    if (chunks[c] == nullptr) return Internal("no stage holds chunk {}", c);
    if (chunks[c]->first_unit != next || chunks[c]->end_unit <= next) {
      return Internal("chunk {} holds units [{}, {}), but unit {} comes next", c, chunks[c]->first_unit,
                      chunks[c]->end_unit, next);
    }
    next = chunks[c]->end_unit;
  }
  if (next != static_cast<std::int32_t>(plan.units.size()))
    return Internal("the chunks end at unit {} of {}", next, plan.units.size());
  return absl::OkStatus();
}

// Whether the intervals that all coordinates hold along `dim` are [0, size), each index once.
absl::Status DimCovered(const plan::Plan& plan, const plan::LocalValue& value, int dim) {
  std::vector<graph::Axis> axes;
  for (const plan::Split& split : value.layout.splits()) {
    if (split.dim == dim) axes.push_back(split.axis);
  }
  std::vector<Interval> pieces;
  plan::Coordinates at;
  const auto visit = [&](auto&& self, size_t level) -> void {
    if (level == axes.size()) {
      const Extent extent = value.layout.ExtentOf(value.shape, plan.mesh, at);
      for (const Interval& piece : extent.dims[static_cast<size_t>(dim)]) pieces.push_back(piece);
      return;
    }
    std::int64_t& coordinate = at.axis[static_cast<size_t>(axes[level])];
    for (coordinate = 0; coordinate < plan.mesh.size(axes[level]); ++coordinate) self(self, level + 1);
    coordinate = 0;
  };
  visit(visit, 0);
  std::sort(pieces.begin(), pieces.end(),
            [](const Interval& a, const Interval& b) { return a.start < b.start; });
  std::int64_t next = 0;
  for (const Interval& piece : pieces) {
    if (piece.start != next) break;
    next += piece.length;
  }
  std::int64_t held = 0;
  for (const Interval& piece : pieces) held += piece.length;
  if (next == value.shape[dim] && held == next) return absl::OkStatus();
  return Internal("{}: dim {} of size {} with layout {} is covered up to {} by shards of {} in all",
                  value.name, dim, value.shape[dim], value.layout.ToString(), next, held);
}

absl::Status Extents(const plan::Plan& plan, const plan::PlanParameter& parameter) {
  const plan::LocalValue& value = plan.values[static_cast<size_t>(parameter.value)];
  if (value.layout.HasPartial()) return Internal("{} is a partial sum", parameter.name);
  for (int dim = 0; dim < value.shape.rank(); ++dim) {
    const std::int64_t logical = parameter.logical_shape[dim];
    if (logical > value.shape[dim] || (logical != value.shape[dim] && dim > 0)) {
      return Internal("{}: {} holds no {}", parameter.name, value.shape.ToString(),
                      parameter.logical_shape.ToString());
    }
    RETURN_IF_ERROR(DimCovered(plan, value, dim));
  }
  return absl::OkStatus();
}

absl::Status Items(const plan::Plan& plan, const plan::Bucket& bucket, const std::string& name) {
  std::int64_t next = 0;
  for (const plan::Bucket::Item& item : bucket.items) {
    const plan::PlanParameter& parameter = plan.parameters[static_cast<size_t>(item.parameter)];
    const plan::LocalValue& value = plan.values[static_cast<size_t>(parameter.value)];
    if (item.elements != value.local.elements()) {
      return Internal("{}: {} has {} elements, its shard {}", name, parameter.name, item.elements,
                      value.local.elements());
    }
    if (item.offset_elements < next) {
      return Internal("{}: {} begins at element {}, inside of what ends at {}", name, parameter.name,
                      item.offset_elements, next);
    }
    next = item.offset_elements + item.elements;
    if (parameter.weight_decay != bucket.weight_decay || graph::FactsOf(parameter.role).bulk != bucket.bulk ||
        parameter.holders != bucket.holders || value.dtype != bucket.parameter_dtype ||
        !(parameter.training == bucket.training)) {
      return Internal("{}: {} is of another kind (role, weight decay, training settings, tie or dtype)", name,
                      parameter.name);
    }
    if (bucket.frozen() && parameter.gradient >= 0)
      return Internal("{}: {} is frozen, but has a gradient", name, parameter.name);
    if (parameter.gradient < 0) continue;
    const DType gradient = plan.values[static_cast<size_t>(parameter.gradient)].dtype;
    if (gradient != bucket.gradient_dtype) {
      return Internal("{}: the gradient of {} is {}, its bucket's are {}", name, parameter.name,
                      Name(gradient), Name(bucket.gradient_dtype));
    }
  }
  if (next > bucket.elements)
    return Internal("{} has {} elements, its items end at {}", name, bucket.elements, next);
  return absl::OkStatus();
}

absl::Status HasSize(const plan::Bucket& bucket, const std::string& name, std::string_view what,
                     const plan::BufferRef& buffer, std::int64_t elements, DType dtype) {
  if (buffer.elements == elements && buffer.dtype == dtype) return absl::OkStatus();
  return Internal("{}: {} of {}[{}], but {} shards of {} elements need {}[{}] each", name, what,
                  Name(buffer.dtype), buffer.elements, bucket.shards, bucket.elements, Name(dtype), elements);
}

// A bucket's states are those of the optimizer, in its order: in fp32, or those that may in one narrower type.
absl::Status OptimizerStates(const plan::Plan& plan, const plan::Bucket& bucket, const std::string& name) {
  if (plan.optimizer == nullptr) return Internal("{} is trained by no optimizer", name);
  const plan::OptimizerDef& optimizer = plan::OptimizerOf(*plan.optimizer, bucket.training);
  const std::span<const plan::OptimizerState> states = optimizer.states;
  if (bucket.states.size() != states.size()) {
    return Internal("{}: {} states, but {} keeps {}", name, bucket.states.size(), optimizer.kind,
                    states.size());
  }
  DType moments = DType::kF32;
  for (size_t s = 0; s < states.size(); ++s) {
    if (states[s].follows_dtype) moments = bucket.states[s].dtype;
  }
  if (moments != DType::kF32 && moments != DType::kBF16)
    return Internal("{}: states of {}", name, Name(moments));
  const std::int64_t shard = bucket.shard_elements();
  for (size_t s = 0; s < states.size(); ++s)
    RETURN_IF_ERROR(
        HasSize(bucket, name, states[s].title, bucket.states[s], shard, states[s].StoredAs(moments)));
  return absl::OkStatus();
}

// Nothing but the weights themselves, whole.
absl::Status FrozenWeights(const plan::Bucket& bucket, const std::string& name) {
  const bool more = bucket.gradient.elements > 0 || bucket.gradient_shard.elements > 0 ||
                    bucket.parameter_shard.elements > 0 || bucket.master.elements > 0 ||
                    !bucket.states.empty() || bucket.shards != 1 || bucket.early;
  if (more) return Internal("{} is frozen, but has gradients, shards, states or master weights", name);
  return HasSize(bucket, name, "parameters", bucket.parameter, bucket.elements, bucket.parameter_dtype);
}

absl::Status OptimizerShards(const plan::Plan& plan, const plan::Bucket& bucket, const std::string& name) {
  if (bucket.shards < 1 || bucket.elements % bucket.shards != 0) {
    return Internal("{}: {} elements in {} shards", name, bucket.elements, bucket.shards);
  }
  if (bucket.frozen()) return FrozenWeights(bucket, name);
  const auto check = [&](const char* what, const plan::BufferRef& buffer, std::int64_t elements,
                         DType dtype) { return HasSize(bucket, name, what, buffer, elements, dtype); };
  const std::int64_t shard = bucket.elements / bucket.shards;
  RETURN_IF_ERROR(check("parameters", bucket.parameter, bucket.elements, bucket.parameter_dtype));
  RETURN_IF_ERROR(check("gradients", bucket.gradient, bucket.elements, bucket.gradient_dtype));
  if (bucket.gradient_shard.elements > 0)
    RETURN_IF_ERROR(check("gradients of a rank", bucket.gradient_shard, shard, DType::kF32));
  if (bucket.parameter_shard.elements > 0)
    RETURN_IF_ERROR(check("parameters of a rank", bucket.parameter_shard, shard, bucket.parameter_dtype));
  RETURN_IF_ERROR(OptimizerStates(plan, bucket, name));
  // Without master weights the optimizer rounds the parameters itself, which it can to bf16.
  const bool in_place = bucket.parameter_dtype == DType::kF32 ||
                        (bucket.parameter_dtype == DType::kBF16 && bucket.master.elements == 0);
  return check("master weights", bucket.master, in_place ? 0 : shard, DType::kF32);
}

// By parameter: the stages whose segments read it, ascending.
std::vector<std::vector<std::int32_t>> Readers(const plan::Plan& plan) {
  std::vector<std::vector<std::int32_t>> readers(plan.parameters.size());
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::int32_t stage = static_cast<std::int32_t>(s);
    for (const plan::Segment& segment : plan.stages[s].segments) {
      for (const plan::Instruction& instruction : segment.instructions) {
        for (const plan::BufferRef& input : instruction.inputs) {
          if (input.value < 0 || ValueOf(plan, input).kind != graph::ValueKind::kParameter) continue;
          std::vector<std::int32_t>& of = readers[static_cast<size_t>(ValueOf(plan, input).parameter)];
          if (of.empty() || of.back() != stage) of.push_back(stage);
        }
      }
    }
  }
  return readers;
}

// The stage of the unit that reads a parameter first.
std::int32_t FirstReader(const plan::Plan& plan, const plan::PlanParameter& parameter) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (const plan::Chunk& chunk : plan.stages[s].chunks) {
      if (parameter.unit >= chunk.first_unit && parameter.unit < chunk.end_unit)
        return static_cast<std::int32_t>(s);
    }
  }
  return -1;
}

// A parameter is held by the stages that read it, and by no others, and its copies are tied over all of them.
absl::Status Holders(const plan::PlanParameter& parameter, const std::vector<std::int32_t>& held,
                     const std::vector<std::int32_t>& readers) {
  std::vector<std::int32_t> holders = parameter.holders;
  std::sort(holders.begin(), holders.end());
  if (held == readers && holders == readers) return absl::OkStatus();
  return Internal("{} is read by stages {}, held by {} and tied over {}", parameter.name,
                  fmt::join(readers, ", "), fmt::join(held, ", "), fmt::join(holders, ", "));
}

// The stages that hold each parameter, and that it is owned once, by the first of them.
absl::Status Owners(const plan::Plan& plan) {
  const std::vector<std::vector<std::int32_t>> readers = Readers(plan);
  std::vector<std::vector<std::int32_t>> holders(plan.parameters.size());
  std::vector<std::vector<std::int32_t>> owners(plan.parameters.size());
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::int32_t stage = static_cast<std::int32_t>(s);
    for (size_t b = 0; b < plan.stages[s].buckets.size(); ++b) {
      const plan::Bucket& bucket = plan.stages[s].buckets[b];
      RETURN_IF_ERROR(Items(plan, bucket, BucketName(stage, b)));
      if (Trains(plan.stages[s])) RETURN_IF_ERROR(OptimizerShards(plan, bucket, BucketName(stage, b)));
      for (const plan::Bucket::Item& item : bucket.items) {
        holders[static_cast<size_t>(item.parameter)].push_back(stage);
        if (bucket.owned) owners[static_cast<size_t>(item.parameter)].push_back(stage);
      }
    }
  }
  for (size_t p = 0; p < plan.parameters.size(); ++p) {
    const plan::PlanParameter& parameter = plan.parameters[p];
    if (owners[p].size() != 1) return Internal("{} is owned by {} stages", parameter.name, owners[p].size());
    if (owners[p] != std::vector<std::int32_t>{FirstReader(plan, parameter)}) {
      return Internal("{} is owned by stage {}, but first read on stage {}", parameter.name,
                      owners[p].front(), FirstReader(plan, parameter));
    }
    RETURN_IF_ERROR(Holders(parameter, holders[p], readers[p]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyCoverage(const plan::Plan& plan) {
  RETURN_IF_ERROR(Chunks(plan));
  for (const plan::PlanParameter& parameter : plan.parameters) RETURN_IF_ERROR(Extents(plan, parameter));
  return Owners(plan);
}

}  // namespace engine::verify
