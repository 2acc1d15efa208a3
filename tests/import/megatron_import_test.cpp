#include "engine/import/megatron_import.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/import/megatron_convert.h"
#include "engine/import/megatron_flags.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/load.h"
#include "engine/recipe/print.h"
#include "tests/import/megatron_script.h"
#include "tests/recipe/test_files.h"

namespace engine::import {

TEST_CASE("megatron: the rows of the flag table") {
  std::set<std::string> names;
  for (const MegatronFlag& flag : MegatronFlags()) {
    CAPTURE(flag.name);
    CHECK(names.insert(flag.name).second);
    CHECK(std::string(flag.name).rfind("--", 0) == 0);
    CHECK(!std::string(flag.text).empty());
    if (flag.fate != MegatronFlag::Fate::kDirect) continue;
    const recipe::Field* field = recipe::FindField(flag.text);
    REQUIRE(field != nullptr);
    CHECK(flag.values == MegatronFlag::Values::kOne);
    CHECK(field->type_name().rfind("list", 0) != 0);
  }
}

TEST_CASE("megatron: the page has the table of flags") {
  const std::string page = recipe::ReadText(std::string(ENGINE_SOURCE_DIR) + "/docs/import-megatron.md");
  CHECK(page.find(MegatronFlagTable()) != std::string::npos);
}

TEST_CASE("megatron: Megatron-LM's defaults that are not ours are written down") {
  CHECK(
      Values({}, {"model.attention.bias", "model.mlp.bias", "model.dropout.attention", "model.dropout.hidden",
                  "model.dropout.embedding", "schedule.kind", "logging.interval", "precision.deterministic",
                  "evaluation.interval", "training.global_batch", "precision.compute", "parallelism.dp"}) ==
      "true true 0.1 0.1 0.1 \"linear\" 100 false 0 16 \"fp32\" 8");
}

TEST_CASE("megatron: model flags") {
  CHECK(Values({{"--swiglu", ""},
                {"--disable-bias-linear", ""},
                {"--normalization", "RMSNorm"},
                {"--norm-epsilon", "1e-6"},
                {"--untie-embeddings-and-output-weights", ""},
                {"--ffn-hidden-size", "96"}},
               {"model.mlp.activation", "model.attention.bias", "model.mlp.bias", "model.norm.kind",
                "model.norm.epsilon", "model.tied_embeddings", "model.mlp.hidden"}) ==
        "\"swiglu\" false false \"rmsnorm\" 1e-06 false 96");
  CHECK(Values({{"--group-query-attention", ""}, {"--num-query-groups", "2"}, {"--kv-channels", "16"}},
               {"model.attention.kv_heads", "model.attention.head_dim"}) == "2 16");
  CHECK(Values({{"--group-query-attention", ""}}, {"model.attention.kv_heads"}) == "1");
  CHECK(
      Values({{"--position-embedding-type", "rope"}, {"--rotary-base", "500000"}, {"--use-rope-scaling", ""}},
             {"model.attention.position", "model.attention.rope_base",
              "model.attention.rope_scaling.factor"}) == "\"rotary\" 500000.0 8.0");
  CHECK(Values({{"--use-rotary-position-embeddings", ""},
                {"--rope-scaling-factor", "4"},
                {"--rotary-percent", "1.0"}},
               {"model.attention.position", "model.attention.rope_scaling.factor"}) == "\"rotary\" 1.0");
  CHECK(Values({{"--no-bias-gelu-fusion", ""}}, {"model.mlp.activation"}) == "\"gelu_erf\"");
  CHECK(Values({{"--squared-relu", ""}}, {"model.mlp.activation"}) == "\"squared_relu\"");
  CHECK(Values({{"--disable-bias-linear", ""}}, {"model.mlp.activation", "model.mlp.bias"}) ==
        "\"gelu_erf\" false");
  CHECK(Values({{"--disable-bias-linear", ""}, {"--openai-gelu", ""}}, {"model.mlp.activation"}) ==
        "\"gelu_tanh\"");
  CHECK(Values({{"--no-bias-gelu-fusion", ""}, {"--openai-gelu", ""}}, {"model.mlp.activation"}) ==
        "\"gelu_tanh\"");
  CHECK(Values({{"--window-size", "15,0"}}, {"model.attention.window"}) == "16");
  CHECK(Values({{"--attention-dropout", "0"}, {"--hidden-dropout", "0.2"}},
               {"model.dropout.attention", "model.dropout.hidden", "model.dropout.embedding"}) ==
        "0.0 0.2 0.2");
  CHECK(Values({{"--tokenizer-type", "NullTokenizer"}}, {"model.vocab", "data.tokenizer.kind"}) ==
        "1001 \"byte\"");
  CHECK(Values({{"--tokenizer-type", "Llama2Tokenizer"},
                {"--tokenizer-model", "x"},
                {"--vocab-size", "-"},
                {"--make-vocab-size-divisible-by", "64"}},
               {"model.vocab", "model.vocab_multiple"}) == "32000 64");
}

TEST_CASE("megatron: parallelism") {
  const std::vector<std::string> axes = {"parallelism.dp", "parallelism.tp", "parallelism.pp",
                                         "parallelism.cp"};
  CHECK(Values({{"--tensor-model-parallel-size", "2"}, {"--context-parallel-size", "2"}}, axes) == "2 2 1 2");
  CHECK(Values({{"--tensor-model-parallel-size", "2"}, {"--sequence-parallel", ""}},
               {"parallelism.sequence_parallel"}) == "true");
  CHECK(Values({{"--sequence-parallel", ""}}, {"parallelism.sequence_parallel"}) == "false");
  const Flags pipeline = {{"--pipeline-model-parallel-size", "2"}, {"--global-batch-size", "32"}};
  const auto stages = [&](Flags more) {
    more.insert(pipeline.begin(), pipeline.end());
    return Values(more, {"parallelism.virtual_stages", "parallelism.layers_per_stage"});
  };
  CHECK(stages({}) == "1 [4, 4]");
  CHECK(stages({{"--num-layers-per-virtual-pipeline-stage", "2"}}) == "2 [2, 2, 2, 2]");
  CHECK(stages({{"--num-virtual-stages-per-pipeline-rank", "4"}}) == "4 [1, 1, 1, 1, 1, 1, 1, 1]");
  CHECK(stages({{"--decoder-first-pipeline-num-layers", "3"}}) == "1 [3, 5]");
  CHECK(stages({{"--num-layers", "10"},
                {"--account-for-embedding-in-pipeline-split", ""},
                {"--account-for-loss-in-pipeline-split", ""}}) == "1 [5, 5]");
  CHECK(stages({{"--num-layers", "7"}, {"--account-for-embedding-in-pipeline-split", ""}}) == "1 [3, 4]");
  const auto zero = [](const Flags& flags) { return Values(flags, {"parallelism.zero_stage"}); };
  CHECK(zero({{"--use-distributed-optimizer", ""},
              {"--overlap-grad-reduce", ""},
              {"--overlap-param-gather", ""}}) == "1");
  CHECK(zero({{"--use-megatron-fsdp", ""}}) == "3");
  CHECK(zero({{"--use-megatron-fsdp", ""}, {"--data-parallel-sharding-strategy", "optim_grads"}}) == "2");
  CHECK(zero({{"--use-torch-fsdp2", ""}}) == "3");
}

TEST_CASE("megatron: training, precision, recomputation") {
  CHECK(Values({{"--train-iters", "-"},
                {"--train-samples", "1000"},
                {"--global-batch-size", "48"},
                {"--lr-warmup-samples", "100"},
                {"--lr-decay-style", "WSD"},
                {"--lr-wsd-decay-samples", "200"},
                {"--lr-wsd-decay-style", "minus_sqrt"}},
               {"training.samples", "schedule.decay_samples", "schedule.warmup_samples", "schedule.kind",
                "schedule.wsd_decay_samples", "schedule.wsd_decay_kind"}) ==
        "960 1000 100 \"wsd\" 200 \"minus_sqrt\"");
  // Batches of 16, 16, 32 and 48 end at 112 samples, and 13 of 64 fit into the rest.
  CHECK(Values({{"--train-iters", "-"},
                {"--train-samples", "1000"},
                {"--global-batch-size", "64"},
                {"--rampup-batch-size", "16 16 96"}},
               {"training.rampup.start", "training.rampup.increment", "training.rampup.samples",
                "training.global_batch", "training.samples", "schedule.decay_samples"}) ==
        "16 16 96 64 944 1000");
  CHECK(Values({{"--lr-decay-style", "inverse-square-root"},
                {"--lr-warmup-init", "1e-7"},
                {"--lr-warmup-iters", "7"}},
               {"schedule.kind", "schedule.warmup_init", "schedule.warmup_iterations"}) ==
        "\"inverse_sqrt\" 1e-07 7");
  CHECK(Values({{"--adam-beta1", ".8"},
                {"--adam-beta2", "0.95"},
                {"--adam-eps", "1e-9"},
                {"--clip-grad", "0"},
                {"--weight-decay", "0.1"},
                {"--seed", "7"}},
               {"optimizer.beta1", "optimizer.beta2", "optimizer.epsilon", "optimizer.clip_grad_norm",
                "optimizer.weight_decay", "training.seed"}) == "0.8 0.95 1e-09 0.0 0.1 7");
  const std::vector<std::string> optimizer = {"optimizer.kind", "optimizer.momentum", "optimizer.beta2"};
  CHECK(Values({{"--optimizer", "adam"}}, optimizer) == "\"adamw\" 0.9 0.999");
  CHECK(Values({{"--optimizer", "sgd"}}, optimizer) == "\"sgd\" 0.9 0.999");
  CHECK(Values({{"--optimizer", "sgd"}, {"--sgd-momentum", "0.8"}, {"--adam-beta2", "0.95"}}, optimizer) ==
        "\"sgd\" 0.8 0.999");
  CHECK(Values({{"--sgd-momentum", "0.8"}, {"--adam-beta2", "0.95"}}, optimizer) == "\"adamw\" 0.9 0.95");
  CHECK(Import(Script({{"--optimizer", "sgd"}, {"--adam-beta2", "0.95"}}))
            .recipe.find("# --adam-beta2: no effect on the optimizer sgd") != std::string::npos);
  CHECK(ErrorOf({{"--optimizer", "muon"}}) == "--optimizer muon cannot be imported | hint: one of adam, sgd");
  const std::vector<std::string> precision = {"precision.compute", "precision.fp8_gradients",
                                              "precision.fp8_scaling", "precision.gradient_dtype"};
  CHECK(Values({{"--bf16", ""}, {"--grad-reduce-in-bf16", ""}}, precision) ==
        "\"bf16\" \"e5m2\" \"delayed\" \"bf16\"");
  CHECK(Values({{"--fp16", ""}}, precision) == "\"fp16\" \"e5m2\" \"delayed\" \"fp32\"");
  CHECK(Values({{"--bf16", ""}, {"--fp8-format", "e4m3"}, {"--fp8-recipe", "tensorwise"}}, precision) ==
        "\"fp8\" \"e4m3\" \"current\" \"fp32\"");
  CHECK(Values({{"--bf16", ""}, {"--fp8-format", "hybrid"}, {"--deterministic-mode", ""}},
               {"precision.fp8_gradients", "precision.deterministic"}) == "\"e5m2\" true");
  const std::vector<std::string> recompute = {"recompute.granularity", "recompute.modules"};
  CHECK(Values({{"--recompute-activations", ""}}, recompute) == "\"selective\" [\"attention\"]");
  CHECK(Values({{"--recompute-granularity", "selective"}, {"--recompute-modules", "core_attn layernorm"}},
               recompute) == "\"selective\" [\"attention\", \"norm\"]");
  CHECK(Values({{"--recompute-granularity", "full"},
                {"--recompute-method", "uniform"},
                {"--recompute-num-layers", "1"}},
               recompute) == "\"full\" [\"attention\"]");
}

TEST_CASE("megatron: flags without a counterpart become comments, by reason") {
  const MegatronImport import = Import(Script(
      {{"--log-progress", ""}, {"--log-throughput", ""}, {"--num-workers", "8"}, {"--save-interval", "5"}}));
  REQUIRE(import.ok());
  CHECK(
      import.recipe.find(
          "# Flags without a key of their own:\n"
          "# --log-progress, --log-throughput: every run writes metrics.jsonl in its folder, and log lines\n"
          "# --num-workers: samples are read from the mapped files, ahead of time; there are no "
          "loader processes\n"
          "# --save-interval: no effect without --save\n") != std::string::npos);
}

TEST_CASE("megatron: where TensorBoard and Weights & Biases get numbers") {
  const std::vector<std::string> keys = {"logging.sinks", "logging.sink_interval", "logging.wandb.project",
                                         "logging.wandb.entity", "logging.wandb.name"};
  CHECK(Values({}, keys) == "[] 1 \"engine\" \"\" \"\"");
  CHECK(Values({{"--tensorboard-dir", "$LOGS"}, {"--tensorboard-log-interval", "5"}}, keys) ==
        "[\"tensorboard\"] 5 \"engine\" \"\" \"\"");
  CHECK(Values({{"--tensorboard-dir", "x"},
                {"--wandb-project", "p"},
                {"--wandb-entity", "e"},
                {"--wandb-exp-name", "n"},
                {"--wandb-save-dir", "d"}},
               keys) == "[\"tensorboard\", \"wandb\"] 1 \"p\" \"e\" \"n\"");
  CHECK(Values({{"--wandb-project", "''"}}, keys) == "[] 1 \"engine\" \"\" \"\"");
}

TEST_CASE("megatron: flags that would be missed are warnings, and the last line counts") {
  const auto import = [](const Flags& changes) {
    const MegatronImport result = Import(Script(changes));
    return Messages(result.diagnostics) + result.summary;
  };
  CHECK(import({}) == "10 flags: 10 imported");
  CHECK(import({{"--num-workers", "8"}, {"--log-progress", ""}}) == "12 flags: 10 imported, 2 without a key");
  CHECK(import({{"--exit-interval", "50"}, {"--num-workers", "8"}}) ==
        "3:3: warning: --exit-interval has no key: a run ends when it is as long as the recipe says, or at a "
        "signal, "
        "and saves before it ends\n12 flags: 10 imported, 2 without a key (1 of them changes the run)");
  CHECK(import({{"--full-validation", ""}, {"--exit-duration-in-mins", "50"}})
            .find("12 flags: 10 imported, 2 without a key (2 of them change the run)") != std::string::npos);
  CHECK(import({{"--num-experts", "1"}, {"--skip-train", ""}}).find("\nno recipe: 2 errors") !=
        std::string::npos);
  const Flags same = {{"--save", "/a/b/"}, {"--load", "/a/b"}, {"--save-interval", "5"}};
  CHECK(import(same) == "13 flags: 11 imported, 2 without a key");
  CHECK(import({{"--save", "a/b"}, {"--load", "./a//b"}, {"--save-interval", "5"}}) ==
        "13 flags: 11 imported, 2 without a key");
  Flags optimizer = same;
  optimizer["--no-load-optim"] = optimizer["--no-load-rng"] = optimizer["--exit-on-missing-checkpoint"] = "";
  CHECK(import(optimizer) ==
        "3:3: warning: --exit-on-missing-checkpoint has no key: a run without a checkpoint begins\n"
        "9:3: warning: --no-load-optim has no key: a run goes on with the optimizer's state, too\n"
        "16 flags: 11 imported, 5 without a key (2 of them change the run)");
  // Neither folder is known, and it is the same one.
  CHECK(import({{"--save", "$1"}, {"--load", "$1"}, {"--save-interval", "5"}}) ==
        "13 flags: 11 imported, 2 without a key");
  CHECK(import({{"--no-load-optim", ""}, {"--ckpt-step", "7"}}) == "12 flags: 10 imported, 2 without a key");
  CHECK(import({{"--fp32-residual-connection", ""}, {"--no-log-learnig-rate-to-tensorboard", ""}}) ==
        "12 flags: 10 imported, 2 without a key");
  const Flags fp8 = {{"--bf16", ""}, {"--fp8-format", "hybrid"}, {"--fp8-amax-history-len", "16"}};
  CHECK(import(fp8) == "13 flags: 12 imported, 1 without a key");
  Flags longest = fp8;
  longest["--fp8-amax-compute-algo"] = "max";
  CHECK(import(longest).find(
            "4:3: warning: --fp8-amax-compute-algo has no key: a tensor's scale comes of its largest "
            "value in one iteration, not in several\n") == 0);
  CHECK(import({{"--data-path", "1 a 2 b"}, {"--mid-level-dataset-surplus", "0.1"}})
            .find("warning: --mid-level") != std::string::npos);
  CHECK(import({{"--data-path", "a"}, {"--mid-level-dataset-surplus", "0.1"}}).find("warning") ==
        std::string::npos);
  CHECK(Import(Script({{"--data-path", "a"}, {"--mid-level-dataset-surplus", "0.1"}}))
            .recipe.find("--mid-level-dataset-surplus: no effect without a blend") != std::string::npos);
}

TEST_CASE("megatron: the loss scale of fp16") {
  const std::vector<std::string> keys = {"precision.loss_scale", "precision.initial_loss_scale",
                                         "precision.min_loss_scale", "precision.loss_scale_window",
                                         "precision.loss_scale_hysteresis"};
  const Flags defaults = {{"--fp16", ""},
                          {"--initial-loss-scale", "4294967296"},
                          {"--min-loss-scale", "1.0"},
                          {"--loss-scale-window", "1000"},
                          {"--hysteresis", "2"}};
  CHECK(Values(defaults, keys) == "0.0 4294967296.0 1.0 1000 2");
  CHECK(Import(Script(defaults)).recipe.find("scale") == std::string::npos);
  CHECK(Import(Script(defaults)).recipe.find("hysteresis") == std::string::npos);
  CHECK(Values({{"--fp16", ""},
                {"--initial-loss-scale", "4096"},
                {"--min-loss-scale", "2"},
                {"--loss-scale-window", "100"},
                {"--hysteresis", "4"}},
               keys) == "0.0 4096.0 2.0 100 4");
  CHECK(Values({{"--fp16", ""}, {"--loss-scale-window", "2e3"}}, keys) == "0.0 4294967296.0 1.0 2000 2");
  CHECK(Messages(Import(Script({{"--fp16", ""}, {"--loss-scale-window", "0"}})).diagnostics)
            .find("--loss-scale-window 0 is no number of iterations") != std::string::npos);
  const Flags constant = {{"--fp16", ""}, {"--loss-scale", "1024"}, {"--hysteresis", "4"}};
  CHECK(Values(constant, keys) == "1024.0 4294967296.0 1.0 1000 2");
  CHECK(Import(Script(constant)).recipe.find("# --hysteresis: no effect with --loss-scale\n") !=
        std::string::npos);
  const MegatronImport bf16 = Import(Script({{"--bf16", ""}, {"--loss-scale", "8"}, {"--hysteresis", "4"}}));
  CHECK(bf16.summary == "13 flags: 11 imported, 2 without a key");
  CHECK(bf16.recipe.find("# --hysteresis: no effect without --fp16\n") != std::string::npos);
}

TEST_CASE("megatron: flags that contradict each other") {
  const std::map<std::string, Flags> errors = {
      {"--bf16 and --fp16 contradict each other | hint: keep one of them", {{"--bf16", ""}, {"--fp16", ""}}},
      {"torchrun starts 8 ranks, no multiple of tp 3 · pp 1 · cp 1 = 3 | hint: 6 or 9 ranks",
       {{"--tensor-model-parallel-size", "3"}}},
      {"--overlap-param-gather needs --overlap-grad-reduce | hint: add --overlap-grad-reduce, or remove it",
       {{"--overlap-param-gather", ""}, {"--use-distributed-optimizer", ""}}},
      {"--overlap-param-gather needs --use-distributed-optimizer | hint: add --use-distributed-optimizer, or "
       "remove it",
       {{"--overlap-param-gather", ""}, {"--overlap-grad-reduce", ""}}},
      {"--save needs --save-interval | hint: iterations between checkpoints", {{"--save", "x"}}},
      {"--train-iters and --train-samples contradict each other | hint: keep one of them",
       {{"--train-samples", "800"}}},
      {"--rampup-batch-size contradicts --train-iters | hint: all lengths in one unit",
       {{"--rampup-batch-size", "16 16 96"}}},
      {"--rampup-batch-size 16 x 96 is not three numbers of samples | hint: START INCREMENT SAMPLES, each at "
       "least 1",
       {{"--train-iters", "-"}, {"--train-samples", "800"}, {"--rampup-batch-size", "16 x 96"}}},
      {"--lr-warmup-samples contradicts --train-iters | hint: all lengths in one unit",
       {{"--lr-warmup-samples", "8"}}},
      {"--lr-decay-iters contradicts --train-samples | hint: all lengths in one unit",
       {{"--train-iters", "-"}, {"--train-samples", "800"}, {"--lr-decay-iters", "8"}}},
      {"--lr-warmup-fraction and --lr-warmup-iters contradict each other | hint: keep one of them",
       {{"--lr-warmup-fraction", ".1"}, {"--lr-warmup-iters", "8"}}},
      {"--recompute-method goes with full recomputation alone | hint: --recompute-granularity full, or "
       "remove it",
       {{"--recompute-granularity", "selective"}, {"--recompute-method", "uniform"}}},
      {"full recomputation needs --recompute-method | hint: uniform or block",
       {{"--recompute-granularity", "full"}, {"--recompute-num-layers", "1"}}},
      {"full recomputation needs --recompute-num-layers | hint: 1",
       {{"--recompute-granularity", "full"}, {"--recompute-method", "block"}}},
      {"--recompute-activations is selective, and contradicts granularity full",
       {{"--recompute-granularity", "full"},
        {"--recompute-method", "block"},
        {"--recompute-num-layers", "1"},
        {"--recompute-activations", ""}}},
      {"--num-virtual-stages-per-pipeline-rank needs a pipeline, but --pipeline-model-parallel-size is 1",
       {{"--num-virtual-stages-per-pipeline-rank", "2"}}},
      {"--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank contradict each "
       "other | "
       "hint: keep one of them",
       {{"--num-virtual-stages-per-pipeline-rank", "2"},
        {"--num-layers-per-virtual-pipeline-stage", "2"},
        {"--pipeline-model-parallel-size", "2"}}},
      {"--expert-model-parallel-size 2 would split experts, and there are none",
       {{"--expert-model-parallel-size", "2"}}},
      {"--load without --save cannot be imported: a run begins with new weights or with its own checkpoint | "
       "hint: "
       "remove it to begin with new weights; or --save's folder, if the run goes on with its own",
       {{"--load", "x"}}},
      {"--load x is not --save's folder, y, and cannot be imported: a run begins with new weights or with "
       "its own "
       "checkpoint | hint: remove it to begin with new weights; or --save's folder, if the run goes on with "
       "its own",
       {{"--load", "x"},
        {"--save", "y"},
        {"--save-interval", "5"},
        {"--no-load-optim", ""},
        {"--no-load-rng", ""}}},
      {"--load needs its value, but LOAD is not set in this file | hint: --set NAME=VALUE gives the script a "
       "variable, --set NAME= an empty one, --set 1=VALUE its first argument",
       {{"--load", "$LOAD"}, {"--save", "y"}, {"--save-interval", "5"}}},
      {"--ckpt-step cannot be imported: a run goes on from the last checkpoint in its folder | hint: remove "
       "it, and "
       "move later checkpoints out of the folder",
       {{"--load", "x"}, {"--save", "x"}, {"--save-interval", "5"}, {"--ckpt-step", "3"}}},
      {"--use-checkpoint-args cannot be imported: the recipe says all, and no checkpoint changes it | hint: "
       "write out "
       "the model's flags, and remove it",
       {{"--use-checkpoint-args", ""}}},
      {"--skip-train cannot be imported: engine run trains, and does not only evaluate | hint: remove it to "
       "train",
       {{"--skip-train", ""}}},
      {"--fp32-residual-connection cannot be imported: the residual stream has the format of "
       "precision.compute | "
       "hint: remove it to train so",
       {{"--fp32-residual-connection", ""}, {"--bf16", ""}}},
      {"--fp16-lm-cross-entropy cannot be imported: the loss is computed in fp32 | hint: remove it to train "
       "so",
       {{"--fp16-lm-cross-entropy", ""}, {"--fp16", ""}}},
      {"min_loss_scale 8 is more than initial_loss_scale 4 | hint: min_loss_scale of at most 4; or "
       "initial_loss_scale "
       "of at least 8",
       {{"--fp16", ""}, {"--initial-loss-scale", "4"}, {"--min-loss-scale", "8"}}},
      {"pretrain_gpt.py's default tokenizer, GPT2BPETokenizer, has no files here | hint: --vocab-file and "
       "--merge-file; or --vocab-size N, without padding, where the data is of another",
       {{"--vocab-size", "-"}}},
      {"how large HuggingFaceTokenizer's vocabulary is, its files say | hint: add --vocab-size N, without "
       "padding",
       {{"--vocab-size", "-"}, {"--tokenizer-type", "HuggingFaceTokenizer"}}},
      {"--use-rotary-position-embeddings contradicts --position-embedding-type learned_absolute",
       {{"--use-rotary-position-embeddings", ""}, {"--position-embedding-type", "learned_absolute"}}},
      {"--num-query-groups has no effect without --group-query-attention | hint: add "
       "--group-query-attention, or "
       "remove it",
       {{"--num-query-groups", "2"}}},
      {"--fp8-format needs --bf16: what is not a product of 8-bit operands is in bf16 here",
       {{"--fp8-format", "hybrid"}}},
      {"--accumulate-allreduce-grads-in-fp32 and --grad-reduce-in-bf16 contradict each other | hint: keep "
       "one of them",
       {{"--bf16", ""}, {"--accumulate-allreduce-grads-in-fp32", ""}, {"--grad-reduce-in-bf16", ""}}},
      {"--lr-decay-style polynomial cannot be imported | hint: one of constant, linear, cosine, "
       "inverse-square-root, WSD",
       {{"--lr-decay-style", "polynomial"}}},
      {"--data-path mixes weighted paths with others | hint: a weight before each path, or none",
       {{"--data-path", "0.5 a b c"}}},
      {"--num-layers is missing", {{"--num-layers", "-"}}},
      {"nothing says how long the training is | hint: --train-iters or --train-samples",
       {{"--train-iters", "-"}}},
      {"--num-layers must be a whole number, not '8x'", {{"--num-layers", "8x"}}},
      {"--lr must be a number, not 'high'", {{"--lr", "high"}}},
      {"--seed needs its value, but SEED is not set in this file | hint: --set NAME=VALUE gives the script a "
       "variable, --set NAME= an empty one, "
       "--set 1=VALUE its first argument",
       {{"--seed", "$SEED"}}},
      {"--seed needs its value, but the sum 1/0 divides by 0 | hint: --set NAME=VALUE gives the script a "
       "variable, --set NAME= an empty one, "
       "--set 1=VALUE its first argument",
       {{"--seed", "$((1/0))"}}},
      {"--swiglu is a switch and takes no value", {{"--swiglu=1", ""}}},
      {"--seed has no value", {{"--seed", ""}}},
      {"--num-layer-s is no flag of Megatron-LM that the importer knows | hint: --num-layers?",
       {{"--num-layer-s", "4"}}},
      {"--recompute could be --recompute-granularity or --recompute-method | hint: write it out",
       {{"--recompute", ""}}},
  };
  for (const auto& [message, flags] : errors) {
    CAPTURE(message);
    CHECK(ErrorOf(flags) == message);
  }
  CHECK(ErrorOf({{"--pipeline-model-parallel-size", "8"}, {"--account-for-loss-in-pipeline-split", ""}}) ==
        "--num-layers 8 (with embedding and loss 9) cannot be shared by 8 pipeline chunks equally | hint: "
        "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers cut unevenly");
}

TEST_CASE("megatron: flags that Megatron-LM does not take are told apart") {
  const std::map<std::string, std::string> wrong = {
      {"--checkpoint-activations", "--recompute-granularity full"},
      {"--checkpoint-num-layers", "--recompute-num-layers"},
      {"--virtual-pipeline-model-parallel-size", "--num-virtual-stages-per-pipeline-rank"},
      {"--pipeline-model-parallel-split-rank", "it cut encoders from decoders"},
      {"--data-parallel-size", "dp is the world size / (tp · pp · cp)"},
      {"--datacenter-id", "Megatron-LM takes no such flag"},
      {"--rope-scaling-type", "Megatron-LM takes no such flag"},
      {"--yarn-alpha", "Megatron-LM takes no such flag"},
      {"--zero-stage", "DeepSpeed"},
      {"--cpu-offload", "DeepSpeed"},
  };
  for (const auto& [flag, text] : wrong) {
    CAPTURE(flag);
    const std::string error =
        ErrorOf({{flag, flag == "--cpu-offload" || flag == "--checkpoint-activations" ? "" : "2"}});
    CHECK(error.rfind(flag + " cannot be imported: ", 0) == 0);
    CHECK(error.find(text) != std::string::npos);
  }
}

TEST_CASE("megatron: what the recipe's own rules find is shown at the flag") {
  CHECK(Messages(Import(Script({{"--num-attention-heads", "7"}})).diagnostics) ==
        "7:3: error: hidden 64 is not divisible by heads 7 (remainder 1) | hint: heads 4 or 8; or hidden 63 "
        "or 70; or "
        "set head_dim\n");
  CHECK(Messages(Import(Script({{"--global-batch-size", "17"}})).diagnostics) ==
        "3:3: error: global_batch 17 is not a multiple of micro_batch 2 × dp 8 × ep 1 = 16 | hint: "
        "global_batch 16 or "
        "32\n");
  CHECK(Messages(Import(Script({{"--seq-length", "64"}})).diagnostics)
            .find("sequence_length 64 is more than the model's max_positions 32") != std::string::npos);
}

TEST_CASE("megatron: all errors are told at once") {
  const std::string messages = Messages(Import(Script({{"--bf16", ""},
                                                       {"--fp16", ""},
                                                       {"--zero-stage", "1"},
                                                       {"--num-layers", "-"},
                                                       {"--num-layer", "8"},
                                                       {"--hiden-size", "8"}}))
                                            .diagnostics);
  CHECK(messages.find("--bf16 and --fp16 contradict each other") != std::string::npos);
  CHECK(messages.find("--zero-stage cannot be imported") != std::string::npos);
  CHECK(messages.find(
            "--hiden-size is no flag of Megatron-LM that the importer knows | hint: --hidden-size?") !=
        std::string::npos);
  CHECK(messages.find("missing") == std::string::npos);
}

TEST_CASE("megatron: an error is shown where the value was written") {
  const MegatronImport import =
      Import("N=12x\nARGS=\"--num-layers $N\"\n" + Script({{"--num-layers", "-"}, {"$ARGS", ""}}));
  CHECK(Messages(import.diagnostics) == "1:3: error: --num-layers must be a whole number, not '12x'\n");
}

// What is imported is lawful, whatever numbers the flags have; nothing crashes.
TEST_CASE("megatron: numbers at their limits") {
  for (const auto& [flag, value] : kBase) {
    for (const std::string bad :
         {"0", "-1", "9223372036854775807", "-9223372036854775808", "99999999999999999999", "1e400", "nan",
          "''", "1.5", "1152921504606846976"}) {
      CAPTURE(flag);
      CAPTURE(bad);
      const MegatronImport import = Import(Script({{flag, bad}, {"--pipeline-model-parallel-size", "2"}}));
      if (import.ok()) CHECK(recipe::LoadText(import.recipe, "a.toml").ok());
    }
  }
  for (const std::string flag :
       {"--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size",
        "--global-batch-size", "--train-samples", "--num-layers-per-virtual-pipeline-stage",
        "--num-virtual-stages-per-pipeline-rank", "--decoder-first-pipeline-num-layers",
        "--decoder-last-pipeline-num-layers", "--num-query-groups", "--window-size", "--eval-iters",
        "--make-vocab-size-divisible-by"}) {
    for (const std::string bad : {"0", "-1", "9223372036854775807", "-9223372036854775808", "x"}) {
      Flags flags = {{"--pipeline-model-parallel-size", "2"}};
      flags[flag] = bad;
      if (flag == "--train-samples") flags["--train-iters"] = "-";
      CAPTURE(flag);
      CAPTURE(bad);
      const MegatronImport import = Import(Script(flags));
      if (import.ok()) CHECK(recipe::LoadText(import.recipe, "a.toml").ok());
    }
  }
}

}  // namespace engine::import
