// Broken plans: exchange behind computation, gradients and parameters in shards.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/ops/ops.h"
#include "tests/verify/mutations.h"

namespace engine::verify {

TEST_CASE("mutation: a transient where pushed gradients arrive") {
  Mutate(Good(), "s", "reaches out of the transients",
         [](plan::Plan& plan) { plan.stages[0].pass_bytes -= 256; });
}

TEST_CASE("mutation: reductions behind the backward pass") {
  const auto reduction = [](const plan::Instruction& i) { return i.IsBucketExchange(); };
  const auto in_backward = [&](const std::function<void(plan::Instruction&)>& change) {
    return Edit("backward.0", reduction, change);
  };
  Mutate(Overlapped(), "g", "is no reduction behind the last backward pass",
         in_backward([](plan::Instruction& i) { i.AsBucketExchange()->last_only = false; }));
  Mutate(Overlapped(), "gm", "is no reduction behind the last backward pass",
         in_backward([](plan::Instruction& i) { i.stream = plan::kComputeStream; }));
  Mutate(Overlapped(), "g", "which are already reduced", MoveUp("backward.0", reduction));
  Mutate(Overlapped(), "gs", "still partial over dp", [&](plan::Plan& plan) {
    plan::Segment& backward = SegmentOf(plan, 0, "backward.0");
    backward.instructions.erase(backward.instructions.begin() +
                                static_cast<std::ptrdiff_t>(Find(backward, reduction)));
  });
  Mutate(Overlapped(), "g", "already scattered", [&](plan::Plan& plan) {
    plan::Segment& backward = SegmentOf(plan, 0, "backward.0");
    backward.instructions.push_back(backward.instructions[Find(backward, reduction)]);
  });
  const plan::Plan pairs =
      plan::TinyPlan(false, {"parallelism.dp=2", "parallelism.tp=2", "parallelism.sequence_parallel=true",
                             "parallelism.zero_stage=1", "parallelism.overlap=on", "training.micro_batch=2"});
  const auto last = static_cast<std::int32_t>(pairs.microbatches) - 2;
  REQUIRE(last >= 4);
  Mutate(pairs, "t", "to which other microbatches have still to add", [&](plan::Plan& plan) {
    // The last two pairs change places.
    for (plan::Step& step : plan.stages[0].programs[0]) {
      if (step.microbatch >= last - 2) step.microbatch += step.microbatch < last ? 2 : -2;
    }
  });
}

TEST_CASE("mutation: reductions beside the norm") {
  // The first reduces all of a bucket whose squares are behind those of the early buckets.
  const auto in_update = [](const Wanted& wanted, const std::function<void(plan::Instruction&)>& change) {
    return Edit("update", wanted, change);
  };
  const auto reduces = [](const plan::Instruction& i) { return i.collective() != plan::Collective::kNone; };
  const auto waits = [](const plan::Instruction& i) { return i.waits_for_bucket >= 0; };
  Mutate(Overlapped(), "g", "of which nothing is under way",
         in_update(reduces, [](plan::Instruction& i) { i.stream = plan::kComputeStream; }));
  Mutate(Overlapped(), "g", "and nothing waits for it",
         in_update(reduces, [](plan::Instruction& i) { i.AsBucketExchange()->last_only = true; }));
  Mutate(Overlapped(), "g", "does not wait for their reduction",
         in_update(waits, [](plan::Instruction& i) { i.waits_for_bucket = -1; }));
  Mutate(Overlapped(), "g", "of which nothing is under way",
         in_update(waits, [](plan::Instruction& i) { i.waits_for_bucket = 99; }));
  Mutate(Overlapped(), "g", "runs beside what is reduced", [&](plan::Plan& plan) {
    auto& list = SegmentOf(plan, 0, "update").instructions;
    const size_t first = Find(SegmentOf(plan, 0, "update"), waits);
    const size_t norm = Find(SegmentOf(plan, 0, "update"),
                             [](const plan::Instruction& i) { return i.name == "scalars.all_reduce"; });
    std::swap(list[first], list[norm]);
  });
}

// --------------------------------------------------------------------- sums that are left to their readers

namespace {

// tp 2, with sequence parallelism or without.
plan::Plan LeftToReaders(bool sequence_parallel, const char* overlap) {
  const char* const parallel =
      sequence_parallel ? "parallelism.sequence_parallel=true" : "parallelism.sequence_parallel=false";
  absl::StatusOr<plan::Plan> plan = driver::CompileUnverified(
      plan::TinyRecipe(true, {"precision.compute=bf16", "model.attention.heads=4", "model.hidden=256",
                              "parallelism.tp=2", parallel, "training.micro_batch=4", overlap}),
      {.profile = backend::cuda::CudaProfile()});
  if (!plan.ok()) FAIL(Message(plan.status()));
  return *std::move(plan);
}

}  // namespace

TEST_CASE("mutation: sums that are left to their readers") {
  const auto edit = [](const Wanted& wanted, const std::function<void(plan::Instruction&)>& change) {
    return Edit("backward.0", wanted, change);
  };
  const auto sums = [](const plan::Instruction& i) { return i.LeavesAddition(); };
  const auto adds = [](const plan::Instruction& i) { return i.AddedInput() >= 0; };
  for (const bool scattered : {false, true}) {
    CAPTURE(scattered);
    // In halves, pushed by copy engines.
    const plan::Plan good = LeftToReaders(scattered, "parallelism.overlap=on");
    CHECK_MESSAGE(Verify(good, {}).ok(), Message(Verify(good, {})));
    const auto& list = SegmentOf(const_cast<plan::Plan&>(good), 0, "backward.0").instructions;
    CHECK(std::count_if(list.begin(), list.end(), sums) == 32);  // two of each block and half
    CHECK(std::count_if(list.begin(), list.end(), adds) == 32);
    Mutate(
        good, "s", scattered ? "to another place on each rank" : "overlaps",
        edit(sums, [](plan::Instruction& i) { i.AsConversion()->addition = plan::Addition::kByExchange; }));
    Mutate(good, "s", "no pushed sum of two ranks",
           edit(sums, [](plan::Instruction& i) { i.AsExchange()->push = false; }));
    Mutate(good, "s", "is not where this rank's part of it is",
           edit(sums, [](plan::Instruction& i) { i.outputs[0].offset += 256; }));
    Mutate(good, "s", "is not where this rank's part of it is",
           edit(sums, [](plan::Instruction& i) { i.scratch.elements /= 2; }));
    if (scattered) {
      Mutate(good, "s", "is not where this rank's part of it is",
             edit(sums, [](plan::Instruction& i) { i.outputs[0].shard_stride /= 2; }));
      Mutate(good, "s", "overlaps", edit(adds, [](plan::Instruction& i) {  // the part of the other rank
               i.outputs[0].offset = i.inputs[0].offset + i.inputs[0].shard_stride;
             }));
    }
    Mutate(good, "s", "without the other rank's part",
           edit(adds, [](plan::Instruction& i) { i.AsKernel()->adds.reset(); }));
    Mutate(good, "s", "finds no part of",
           edit(adds, [](plan::Instruction& i) { i.AsKernel()->adds->place.offset += 256; }));
    Mutate(good, "s", "finds no part of",
           edit(adds, [](plan::Instruction& i) { i.AsKernel()->adds->place.elements /= 2; }));
    Mutate(good, "s", "without the other rank's part",
           edit(adds, [](plan::Instruction& i) { i.AsKernel()->adds->input = 1; }));
    Mutate(good, "s", "which is whole", [&](plan::Plan& plan) {
      const auto whole = [](const plan::Instruction& i) { return i.op() != nullptr && i.AddedInput() < 0; };
      edit(whole,
           [](plan::Instruction& i) { i.AsKernel()->adds = {.input = 0, .place = i.inputs[0]}; })(plan);
    });
    Mutate(good, "s", "adds a part to no input", [&](plan::Plan& plan) {
      const auto whole = [](const plan::Instruction& i) { return i.op() != nullptr && i.AddedInput() < 0; };
      edit(whole, [](plan::Instruction& i) { i.AsKernel()->adds = plan::OtherTerm(); })(plan);
    });
    Mutate(good, "s", "where the part is", [&](plan::Plan& plan) {
      edit(adds, [](plan::Instruction& i) { i.scratch.offset = i.AsKernel()->adds->place.offset; })(plan);
    });
  }
}

TEST_CASE("mutation: sums that their readers read from the other rank's memory") {
  const auto edit = [](const Wanted& wanted, const std::function<void(plan::Instruction&)>& change) {
    return Edit("backward.0", wanted, change);
  };
  const auto sums = [](const plan::Instruction& i) { return i.LeavesAddition(); };
  const auto adds = [](const plan::Instruction& i) { return i.AddedInput() >= 0; };
  const auto sum_of = [](const plan::Instruction& i) {
    return i.inputs[static_cast<size_t>(i.AddedInput())].offset;
  };
  for (const bool scattered : {false, true}) {
    CAPTURE(scattered);
    const plan::Plan good = LeftToReaders(scattered, "parallelism.overlap=off");
    CHECK_MESSAGE(Verify(good, {}).ok(), Message(Verify(good, {})));
    const auto& list = SegmentOf(const_cast<plan::Plan&>(good), 0, "backward.0").instructions;
    CHECK(std::count_if(list.begin(), list.end(), sums) == 16);  // two of each block
    CHECK(std::count_if(list.begin(), list.end(), [](const plan::Instruction& i) { return i.direct(); }) ==
          32);
    Mutate(good, "s", "what the instruction before it does not sum",
           edit(sums, [](plan::Instruction& i) { i.AsConversion()->addition = plan::Addition::kByReader; }));
    Mutate(good, "s", "is not read by the next instruction",
           edit(adds, [](plan::Instruction& i) { i.AsKernel()->adds->direct = false; }));
    Mutate(good, "s", "is not read by the next instruction", [&](plan::Plan& plan) {
      plan::Segment& forward = SegmentOf(plan, 0, "forward.0");
      const auto reader = forward.instructions.begin() + static_cast<std::ptrdiff_t>(Find(forward, adds));
      const auto attends = [](const plan::Instruction& i) { return i.kernel().starts_with("attention"); };
      const plan::Instruction between = forward.instructions[Find(forward, attends)];
      forward.instructions.insert(reader, between);
    });
    Mutate(
        good, "s", scattered ? "to another place on each rank" : "overlaps",
        edit(sums, [](plan::Instruction& i) { i.AsConversion()->addition = plan::Addition::kByExchange; }));
    Mutate(good, "s", "what the instruction before it does not sum",
           edit(adds, [](plan::Instruction& i) { i.AsKernel()->adds->input = 1; }));
    Mutate(good, "s", "where the other rank reads",
           edit(adds, [&](plan::Instruction& i) { i.outputs[0].offset = sum_of(i); }));
    Mutate(good, "s", "where the other rank reads",
           edit(adds, [&](plan::Instruction& i) { i.scratch.offset = sum_of(i); }));
  }
}

// ------------------------------------------------------------- parameters gathered when a program begins

namespace {

// dp 4, ZeRO-1, exchange behind computation.
const plan::Plan& AtBegin() {
  static const plan::Plan plan =
      plan::TinyPlan(true, {"parallelism.dp=4", "parallelism.zero_stage=1", "parallelism.overlap=on"});
  return plan;
}

// dp 2 · tp 2, halves in turns, pushed by copy engines as buckets are, on streams of their own.
const plan::Plan& Apart() {
  static const plan::Plan plan = [] {
    absl::StatusOr<plan::Plan> compiled = driver::CompileUnverified(
        plan::TinyRecipe(true, {"precision.compute=bf16", "model.attention.heads=4", "model.hidden=256",
                                "parallelism.dp=2", "parallelism.tp=2", "parallelism.zero_stage=1",
                                "training.micro_batch=4"}),
        {.profile = backend::cuda::CudaProfile()});
    if (!compiled.ok()) FAIL(Message(compiled.status()));
    return *std::move(compiled);
  }();
  return plan;
}

std::int64_t GathersIn(const plan::Plan& plan, const char* segment) {
  const auto& list = SegmentOf(const_cast<plan::Plan&>(plan), 0, segment).instructions;
  return std::count_if(list.begin(), list.end(), [](const plan::Instruction& i) {
    return i.IsBucketExchange() && i.collective() == plan::Collective::kAllGather;
  });
}

}  // namespace

TEST_CASE("mutation: the plan that gathers when a program begins is good") {
  CHECK(Verify(AtBegin(), {}).ok());
  // 8 blocks and the head, of which the first two are gathered behind the update; embedding, and norms.
  CHECK(GathersIn(AtBegin(), "begin") == 7);
  CHECK(GathersIn(AtBegin(), "evaluate_begin") == 7);
  CHECK(GathersIn(AtBegin(), "update") == 4);
  CHECK(Verify(Overlapped(), {}).ok());
  CHECK(GathersIn(Overlapped(), "begin") == 0);  // the exchange's stream is NCCL's
  CHECK_MESSAGE(Verify(Apart(), {}).ok(), Message(Verify(Apart(), {})));
  CHECK(Apart().halves == 2);
  CHECK(GathersIn(Apart(), "begin") == 7);
  CHECK(GathersIn(Apart(), "evaluate_begin") == 7);
}

TEST_CASE("mutation: parameters gathered when a program begins") {
  const std::string gather = "all_gather";
  const auto edit = [&](const char* segment, const std::function<void(plan::Instruction&)>& change) {
    return [=](plan::Plan& plan) { change(At(plan, 0, segment, gather, 1)); };
  };
  for (const char* segment : {"begin", "evaluate_begin"}) {
    CAPTURE(segment);
    Mutate(AtBegin(), "z", "of which nothing is under way",
           [&](plan::Plan& plan) { Drop(SegmentOf(plan, 0, segment), gather, 1); });
    Mutate(AtBegin(), "z", "again",
           [&](plan::Plan& plan) { Double(SegmentOf(plan, 0, segment), gather, 1); });
    Mutate(AtBegin(), "z", "is not the gather of all of", edit(segment, [](plan::Instruction& i) {
             i.inputs[0].elements /= 2;
             i.outputs[0].elements /= 2;
             i.AsExchange()->wire_bytes /= 2;
           }));
    Mutate(AtBegin(), "zm", "is not the gather of all of", edit(segment, [](plan::Instruction& i) {
             i.AsBucketExchange()->group = plan::AxisSet::Of(graph::Axis::kTp);
           }));
    Mutate(AtBegin(), "zm", "does not gather bucket.",
           edit(segment, [](plan::Instruction& i) { i.stream = plan::kComputeStream; }));
    Mutate(AtBegin(), "z", "gathers no bucket's parameters",
           edit(segment, [](plan::Instruction& i) { i.inputs[0].offset = i.outputs[0].offset = 0; }));
  }
  for (const char* segment : {"forward.0", "evaluate.0"}) {
    CAPTURE(segment);
    const auto waits = [](const plan::Instruction& i) { return i.waits_for_bucket >= 0; };
    Mutate(AtBegin(), "z", "which is not waited for", [&](plan::Plan& plan) {
      plan::Segment& found = SegmentOf(plan, 0, segment);
      found.instructions[Find(found, waits)].waits_for_bucket = -1;
    });
    Mutate(AtBegin(), "z", "of which nothing is under way", [&](plan::Plan& plan) {
      plan::Segment& found = SegmentOf(plan, 0, segment);
      found.instructions[Find(found, waits)].waits_for_bucket = 99;
    });
  }
  // By NCCL, beside conversions that are NCCL's too: of halves, and in line.
  for (const bool evaluate : {false, true}) {
    Mutate(Apart(), "ms", "collectives of NCCL before it on stream 6", [&](plan::Plan& plan) {
      for (plan::Instruction& i : SegmentOf(plan, 0, evaluate ? "evaluate_begin" : "begin").instructions) {
        if (i.AsExchange() != nullptr) i.AsExchange()->push = false;
      }
      for (plan::Instruction& i : SegmentOf(plan, 0, evaluate ? "evaluate.0" : "backward.0").instructions) {
        if (i.AsConversion() != nullptr) i.AsConversion()->push = false;
      }
    });
  }
  Mutate(Apart(), "m", "what is exchanged of buckets before it on stream 6",
         [&](plan::Plan& plan) { At(plan, 0, "begin", gather, 1).stream = plan::kExchangeStream; });
  for (const char* segment : {"forward.0", "evaluate.0"}) {
    Mutate(AtBegin(), "z", "when its program has begun", [&](plan::Plan& plan) {
      const plan::Instruction late = At(plan, 0, "begin", gather, 1);
      std::vector<plan::Instruction>& list = SegmentOf(plan, 0, segment).instructions;
      list.insert(list.begin(), late);
    });
  }
  Mutate(AtBegin(), "g", "nothing to gather", [&](plan::Plan& plan) {
    plan::Segment& update = SegmentOf(plan, 0, "update");
    update.instructions.push_back(At(plan, 0, "begin", gather, 0));
  });
}

// --------------------------------------------------------------------- gradients and parameters in shards

namespace {

// dp 4, ZeRO-3, each block's exchange behind the computation of the one before.
const plan::Plan& InShards() {
  static const plan::Plan plan =
      plan::TinyPlan(true, {"parallelism.dp=4", "parallelism.zero_stage=3", "parallelism.overlap=on"});
  return plan;
}

// Changes the list of a segment's instructions at the nth of a kernel.
std::function<void(plan::Plan&)> ChangeAt(
    const std::string& segment, const std::string& kernel, int nth,
    const std::function<void(std::vector<plan::Instruction>&, std::vector<plan::Instruction>::iterator)>&
        change) {
  return [=](plan::Plan& plan) {
    plan::Segment& found = SegmentOf(plan, 0, segment);
    change(found.instructions,
           found.instructions.begin() + static_cast<std::ptrdiff_t>(Find(found, kernel, nth)));
  };
}
std::function<void(plan::Plan&)> DropAt(const std::string& segment, const std::string& kernel, int nth = 1) {
  return ChangeAt(segment, kernel, nth, [](auto& list, auto at) { list.erase(at); });
}
std::function<void(plan::Plan&)> EditAt(const std::string& segment, const std::string& kernel,
                                        const std::function<void(plan::Instruction&)>& edit, int nth = 1) {
  return ChangeAt(segment, kernel, nth, [edit](auto&, auto at) { edit(*at); });
}

}  // namespace

TEST_CASE("mutation: the plan in shards is good") {
  CHECK(Verify(InShards(), {}).ok());
  CHECK(std::count_if(InShards().stages[0].buckets.begin(), InShards().stages[0].buckets.end(),
                      [](const plan::Bucket& b) { return b.parameter_shard.elements > 0; }) == 8);
}

TEST_CASE("mutation: gradients in shards") {
  const std::string rs = "reduce_scatter";  // the first is the head's, which is not kept in shards
  const std::string add = "add_shard";
  Mutate(InShards(), "z", "of which nothing is under way", DropAt("backward.0", rs));
  Mutate(InShards(), "z", "what is not its gradients' sum", [&](plan::Plan& plan) {
    EditAt(
        "backward.0", add, [](plan::Instruction& i) { i.waits_for_bucket = -1; }, 0)(plan);
    DropAt("backward.0", rs)(plan);
  });
  Mutate(InShards(), "z", "no gradients to reduce",
         ChangeAt("backward.0", rs, 1, [](auto& list, auto at) { list.insert(at, plan::Instruction(*at)); }));
  Mutate(InShards(), "z", "are not yet added to their shard", DropAt("backward.0", add));
  Mutate(InShards(), "z", "are not added to their shard", DropAt("backward.0", add, 7));
  Mutate(InShards(), "z", "what is not its gradients' sum",
         ChangeAt("backward.0", add, 1, [](auto& list, auto at) {
           const auto copy = list.insert(at, plan::Instruction(*at));
           (copy + 1)->waits_for_bucket = -1;
         }));
  Mutate(InShards(), "z", "what is not its gradients' sum yet",
         EditAt("backward.0", add, [](plan::Instruction& i) { i.waits_for_bucket = -1; }));
  Mutate(InShards(), "z", "of which nothing is under way",
         EditAt("backward.0", add, [](plan::Instruction& i) { i.waits_for_bucket = 99; }));
  Mutate(InShards(), "z", "is not from one buffer to another",
         EditAt("backward.0", add, [](plan::Instruction& i) { i.AsKernel()->fresh = 0; }));
  Mutate(InShards(), "z", "is not from one buffer to another",
         EditAt("backward.0", add,
                [](plan::Instruction& i) { i.AsKernel()->accumulate = i.AsKernel()->fresh = 0; }));
  Mutate(InShards(), "z", "what is not its gradients' sum",
         EditAt("backward.0", add, [](plan::Instruction& i) { i.inputs[0].shard_stride /= 2; }));
  Mutate(InShards(), "z", "adds to no shard of gradients",
         EditAt("backward.0", add, [](plan::Instruction& i) { i.outputs[0].offset += 4; }));
  Mutate(InShards(), "z", "is not exchanged in every microbatch",
         EditAt("backward.0", rs, [](plan::Instruction& i) { i.AsBucketExchange()->last_only = true; }));
  Mutate(InShards(), "z", "reduce of what is kept in shards",
         EditAt("backward.0", rs, [](plan::Instruction& i) {
           i.AsExchange()->collective = plan::Collective::kAllReduce;
           i.AsExchange()->wire_bytes *= 2;
         }));
  Mutate(InShards(), "z", "not over", EditAt("backward.0", rs, [](plan::Instruction& i) {
           i.AsExchange()->reduction = graph::Reduction::kMax;
         }));
  // A gradient is made behind the reduction, or not from nothing.
  Mutate(InShards(), "z", "which are already reduced",
         ChangeAt("backward.0", rs, 1, [](auto&, auto at) { std::iter_swap(at, at - 1); }));
  Mutate(InShards(), "z", "adds to what was in the buffer of",
         EditAt("backward.0", "linear_wgrad", [](plan::Instruction& i) { i.AsKernel()->accumulate = 1; }));
  Mutate(InShards(), "z", "adds to what was in the buffer of",
         EditAt("backward.0", "linear_wgrad",
                [](plan::Instruction& i) { i.AsKernel()->accumulate = i.AsKernel()->fresh = 1; }));
  Mutate(InShards(), "g", "not its shard",
         EditAt(
             "update", "adamw", [](plan::Instruction& i) { i.inputs[1].elements /= 2; }, 0));
  Mutate(InShards(), "c", "gradients of a rank", [](plan::Plan& plan) {
    for (plan::Bucket& bucket : plan.stages[0].buckets) {
      if (bucket.gradient_shard.elements > 0) bucket.gradient_shard.dtype = DType::kBF16;
    }
    for (const char* segment : {"backward.0", "update"}) {
      for (plan::Instruction& i : SegmentOf(plan, 0, segment).instructions) {
        if (i.kernel() == "add_shard") i.outputs[0].dtype = DType::kBF16;
        for (plan::BufferRef& ref : i.inputs) {
          for (const plan::Bucket& bucket : plan.stages[0].buckets) {
            if (bucket.gradient_shard.elements > 0 && ref.offset == bucket.gradient_shard.offset)
              ref.dtype = DType::kBF16;
          }
        }
      }
    }
  });
}

TEST_CASE("mutation: parameters in shards") {
  const std::string gather = "all_gather";
  for (const char* segment : {"forward.0", "backward.0", "evaluate.0"}) {
    CAPTURE(segment);
    Mutate(InShards(), "z", "of which nothing is under way", DropAt(segment, gather));
    Mutate(InShards(), "z", "which is not gathered", [&](plan::Plan& plan) {
      const std::int32_t dropped = At(plan, 0, segment, gather, 1).AsBucketExchange()->bucket;
      DropAt(segment, gather)(plan);
      for (plan::Instruction& i : SegmentOf(plan, 0, segment).instructions) {
        if (i.waits_for_bucket == dropped) i.waits_for_bucket = -1;
      }
    });
    Mutate(InShards(), "z", "no shard to gather", DropAt(segment, "copy"));
    Mutate(InShards(), "z", "which is not waited for", [&](plan::Plan& plan) {
      int left = 1;
      for (plan::Instruction& i : SegmentOf(plan, 0, segment).instructions) {
        if (i.kernel() != "add_shard" && i.waits_for_bucket >= 0 && left-- == 0) i.waits_for_bucket = -1;
      }
    });
    Mutate(InShards(), "z", "but its buffer holds bucket.", [&](plan::Plan& plan) {
      // The third block is gathered before the first is done with.
      auto& list = SegmentOf(plan, 0, segment).instructions;
      const auto at = [&](const char* kernel, int nth) {
        return list.begin() + static_cast<std::ptrdiff_t>(Find(SegmentOf(plan, 0, segment), kernel, nth));
      };
      std::rotate(at("copy", 1), at("copy", 2), at("copy", 2) + 2);
    });
    Mutate(InShards(), "z", "is not exchanged in every microbatch",
           EditAt(segment, gather, [](plan::Instruction& i) { i.AsBucketExchange()->last_only = true; }));
    Mutate(InShards(), "z", "puts the shard of bucket.",
           EditAt(segment, "copy", [](plan::Instruction& i) { i.outputs[0].shard_stride += 4; }));
    Mutate(InShards(), "z", "copies no shard of parameters",
           EditAt(segment, "copy", [](plan::Instruction& i) { i.inputs[0].offset += 4; }));
  }
  Mutate(InShards(), "zm", "not over", EditAt("forward.0", gather, [](plan::Instruction& i) {
           i.AsBucketExchange()->group = plan::AxisSet::Of(graph::Axis::kTp);
         }));
  Mutate(InShards(), "cgz", "parameters of a rank", [](plan::Plan& plan) {
    for (plan::Bucket& bucket : plan.stages[0].buckets) {
      if (bucket.parameter_shard.elements > 0) bucket.parameter_shard.elements -= 128;
    }
  });
  Mutate(InShards(), "g", "does not update the weights",
         EditAt(
             "update", "adamw", [](plan::Instruction& i) { i.outputs[0].offset += 4; }, 0));
  Mutate(InShards(), "sgz", "overlaps", [](plan::Plan& plan) {
    for (plan::Bucket& bucket : plan.stages[0].buckets) {
      if (bucket.gradient_shard.elements > 0) bucket.gradient_shard.offset = bucket.gradient.offset;
    }
  });
}

TEST_CASE("mutation: shards that copy engines push") {
  const recipe::Recipe recipe =
      plan::TinyRecipe(true, {"precision.compute=bf16", "model.attention.heads=4", "model.hidden=256",
                              "parallelism.dp=2", "parallelism.zero_stage=3", "parallelism.overlap=on"});
  absl::StatusOr<plan::Plan> plan =
      driver::CompileUnverified(recipe, {.profile = backend::cuda::CudaProfile()});
  if (!plan.ok()) FAIL(Message(plan.status()));
  CHECK_MESSAGE(Verify(*plan, {}).ok(), Message(Verify(*plan, {})));
  CHECK(At(*plan, 0, "backward.0", "all_gather").push());
  CHECK(At(*plan, 0, "backward.0", "reduce_scatter", 1).push());
  CHECK(At(*plan, 0, "update", "reduce_scatter").push());
  Mutate(*plan, "g", "also where pushed gradients arrive", [](plan::Plan& mutated) {
    At(mutated, 0, "update", "reduce_scatter", 1).scratch.offset =
        At(mutated, 0, "update", "reduce_scatter", 0).scratch.offset;
  });
  Mutate(*plan, "g", "not behind the transients of passes",
         EditAt("backward.0", "reduce_scatter", [](plan::Instruction& i) { i.scratch.offset = 0; }));
}

}  // namespace engine::verify
