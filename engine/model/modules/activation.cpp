#include "engine/base/status.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

absl::StatusOr<graph::ValueIds> EmitActivation(StepContext& step) {
  const std::string& kind = step.Word("act");
  absl::StatusOr<graph::ValueId> y;
  if (kind == "relu2") {
    y = step.Emit1(ops::kRelu2, step.path(), {step.input()});
  } else if (kind == "gelu_tanh" || kind == "gelu_erf") {
    y = step.Emit1(ops::kGelu, step.path(), {step.input()},
                   {{"tanh", std::int64_t{kind == "gelu_tanh" ? 1 : 0}}});
  } else {
    y = step.Emit1(ops::kActivation, step.path(), {step.input()}, {{"kind", kind}});
  }
  if (!y.ok()) return y.status();
  return graph::ValueIds{*y};
}

absl::StatusOr<graph::ValueIds> EmitGate(StepContext& step) {
  const Shape& x = step.type(step.input()).shape;
  if (x.rank() < 3 || x[x.rank() - 2] != 2) {
    return step.Error(fmt::format("it reads [..., 2, F], gate before value, and this is {}", x.ToString()),
                      "out = [2, \"F\"] of the linear before it");
  }
  const std::string& kind = step.Word("act");
  const absl::StatusOr<graph::ValueId> y =
      kind == "silu" ? step.Emit1(ops::kSwiglu, step.path(), {step.input()})
                     : step.Emit1(ops::kGlu, step.path(), {step.input()}, {{"kind", kind}});
  if (!y.ok()) return y.status();
  return graph::ValueIds{*y};
}

}  // namespace

const ModuleDef kActivationModule{
    .name = "act",
    .doc =
        "An activation, element by element: gelu_tanh and gelu_erf (Hendrycks "
        "& Gimpel, arXiv:1606.08415), relu2 = "
        "max(x, 0)² (So et al., arXiv:2109.08668), quick_gelu = x·σ(1.702·x), silu = x·σ(x).",
    .reads = "x",
    .gives = "as x",
    .attributes = {{.name = "act",
                    .kind = AttributeKind::kWord,
                    .doc = "Which.",
                    .words = {"gelu_tanh", "gelu_erf", "quick_gelu", "relu", "relu2", "silu", "tanh",
                              "sigmoid"},
                    .required = true}},
    .emit = EmitActivation};

const ModuleDef kGateModule{
    .name = "gate",
    .doc =
        "act(x[…, 0, :]) · x[…, 1, :] (Shazeer, arXiv:2002.05202): SwiGLU with silu, GeGLU with gelu_tanh or "
        "gelu_erf, ReGLU with relu.",
    .reads = "x [..., 2, F]",
    .gives = "[..., F]",
    .attributes = {{.name = "act",
                    .kind = AttributeKind::kWord,
                    .doc = "The activation of the gate.",
                    .words = {"silu", "gelu_tanh", "gelu_erf", "quick_gelu", "relu", "sigmoid"},
                    .required = true}},
    .emit = EmitGate};

}  // namespace engine::model
