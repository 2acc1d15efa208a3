#include "engine/verify/tied.h"

#include <string>
#include <utility>

#include "engine/verify/bucket_places.h"
#include "engine/verify/text.h"

namespace engine::verify {
namespace {

// The names of the draws that round a copy of tied parameters.
std::string DrawsOf(const plan::Plan& plan, const plan::StagePlan& stage, const plan::Bucket& bucket) {
  std::string draws;
  for (const plan::Instruction& instruction :
       stage.segments[static_cast<size_t>(stage.update())].instructions) {
    if (instruction.kernel() != plan.optimizer->kernel ||
        !SamePlace(instruction.inputs[0], OwnWeights(bucket)))
      continue;
    for (const char* name : {plan::kStateDraws, plan::kWeightDraws}) {
      if (instruction.attributes().Has(name)) draws += " " + instruction.attributes().String(name);
    }
  }
  return draws;
}

// How a stage's update sums the gradients of its copy of tied parameters: each way has an order of its own.
std::string SumsOf(const plan::Plan& /*plan*/, const plan::StagePlan& stage, const plan::Bucket& bucket) {
  std::string sums;
  for (const plan::Instruction& instruction :
       stage.segments[static_cast<size_t>(stage.update())].instructions) {
    if (!instruction.IsBucketExchange() || !SamePlace(instruction.inputs[0], bucket.gradient)) continue;
    sums += fmt::format(" {}{}", instruction.kernel(), instruction.push() ? " (pushed)" : "");
  }
  return sums;
}

// The stage's bucket that has the parameter, or null.
const plan::Bucket* BucketOf(const plan::StagePlan& stage, std::int32_t parameter) {
  for (const plan::Bucket& bucket : stage.buckets) {
    for (const plan::Bucket::Item& item : bucket.items) {
      if (item.parameter == parameter) return &bucket;
    }
  }
  return nullptr;
}

}  // namespace

absl::Status TiedCopiesStayEqual(const plan::Plan& plan) {
  for (size_t p = 0; p < plan.parameters.size(); ++p) {
    const plan::PlanParameter& parameter = plan.parameters[p];
    if (!parameter.tied()) continue;
    const auto of = [&](std::int32_t stage, const auto& what) {
      const plan::StagePlan& holder = plan.stages[static_cast<size_t>(stage)];
      const plan::Bucket* bucket = BucketOf(holder, static_cast<std::int32_t>(p));
      return bucket == nullptr ? std::string() : what(plan, holder, *bucket);
    };
    const std::int32_t owner = parameter.holders.front();
    for (std::int32_t holder : parameter.holders) {
      for (const auto& [what, told] : {std::pair("rounds", &DrawsOf), std::pair("sums", &SumsOf)}) {
        const std::string first = of(owner, told);
        const std::string other = of(holder, told);
        if (first == other) continue;
        return Internal("stage {} {} {} by{}, stage {} by{}", owner, what, parameter.name, first, holder,
                        other);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::verify
