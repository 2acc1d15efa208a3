#include "engine/driver/advise.h"

#include "engine/driver/advise_subject.h"

namespace engine::driver {

std::vector<Diagnostic> Advise(const recipe::Recipe& recipe, const plan::Plan& plan,
                               const predict::Prediction& time, const plan::DeviceProfile& profile) {
  std::vector<Diagnostic> warnings;
  const recipe::RuleContext report(recipe, &warnings);
  const ModelSteps steps(recipe);
  const AdviceSubject subject{recipe, plan, time, profile, report, steps};
  for (const std::span<const Advice> family :
       {DeviceAdvice(), KernelAdvice(), ExpertAdvice(), TrainingAdvice(), RunAdvice()}) {
    for (const Advice advise : family) advise(subject);
  }
  SortAndUnique(&warnings);
  return warnings;
}

}  // namespace engine::driver
