#include "engine/import/megatron_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/diagnostic.h"
#include "engine/recipe/source.h"

namespace engine::import {
namespace {

using Fate = MegatronFlag::Fate;
using Values = MegatronFlag::Values;

MegatronFlag Direct(const char* name, const char* key) { return {Values::kOne, Fate::kDirect, name, key}; }
MegatronFlag Read(const char* name, const char* text) { return {Values::kOne, Fate::kRead, name, text}; }
MegatronFlag Switch(const char* name, const char* text) { return {Values::kNone, Fate::kRead, name, text}; }
MegatronFlag List(const char* name, const char* text) { return {Values::kMany, Fate::kRead, name, text}; }
MegatronFlag Note(Values values, const char* name, const char* why) {
  return {values, Fate::kNote, name, why};
}
MegatronFlag Warned(Values values, const char* name, const char* why) {
  return {values, Fate::kWarned, name, why};
}
MegatronFlag Refused(Values values, const char* name, const char* why, const char* hint = "") {
  return {values, Fate::kRefused, name, why, hint};
}

constexpr Values kNone = Values::kNone;
constexpr Values kOne = Values::kOne;
constexpr Values kMany = Values::kMany;

constexpr const char* kKernels = "kernels are the executor's choice; it fuses what it can";
constexpr const char* kHidden =
    "what is exchanged behind computation is the plan's choice (parallelism.overlap)";
constexpr const char* kBuckets = "the plan decides about buckets of gradients";
constexpr const char* kLogs = "every run writes metrics.jsonl in its folder, and log lines";
constexpr const char* kNotMeasured = "it is not measured";
constexpr const char* kEventFiles = "event files always have what is measured (docs/monitoring.md)";
constexpr const char* kFormat = "there is one format of checkpoints, complete and independent of the layout";
constexpr const char* kInMemory =
    "the hosts' memory has them (checkpoint.memory), as it has the arena's bytes";
constexpr const char* kLoader =
    "samples are read from the mapped files, ahead of time; there are no loader processes";
constexpr const char* kAllocator = "the plan places every byte; there is no Python and no caching allocator";
constexpr const char* kDispatch = "how rows of experts are ordered and exchanged is the plan's choice";
constexpr const char* kSizes = "sizes of groups are known on the device; nothing is padded";
constexpr const char* kPlaces = "rank order is tp, cp, ep, dp, pp; it changes no result";
constexpr const char* kHostMemory = "nothing of the optimizer is kept in the host's memory";
constexpr const char* kStop =
    "a run ends when it is as long as the recipe says, or at a signal, and saves before it ends";
constexpr const char* kCheckpointSays = "the recipe says all, and no checkpoint changes it";
constexpr const char* kNoHistory = "a tensor's scale comes of its largest value in one iteration";
constexpr const char* kProfiler = "engine run --profile N says it";
constexpr const char* kOtherModel = "scripts become causal decoders; another model is written as steps";
constexpr const char* kMaskedDocuments =
    "both: data.documents = \"masked\", where documents end at rows of the .idx, and at end-of-document "
    "tokens of a tokenizer whose files are known";
constexpr const char* kTikTokenizer = "TikTokenizer's files are not read; data sets may be of any tokenizer";
constexpr const char* kBatchGrows = "the global batch grows as --rampup-batch-size says, or not at all";
constexpr const char* kNonfinite =
    "a loss that is not finite ends a run, unless guard.on_nonfinite says otherwise";
constexpr const char* kOtherWeights = "a run begins with weights of its own or with its own checkpoint";

std::vector<MegatronFlag> ModelFlags() {
  return {
      Direct("--num-layers", "model.layers"),
      Direct("--hidden-size", "model.hidden"),
      Direct("--num-attention-heads", "model.attention.heads"),
      Direct("--ffn-hidden-size", "model.mlp.hidden"),
      Direct("--kv-channels", "model.attention.head_dim"),
      Switch("--group-query-attention", "model.attention.kv_heads"),
      Read("--num-query-groups", "model.attention.kv_heads"),
      Direct("--seq-length", "data.sequence_length"),
      Direct("--max-position-embeddings", "model.max_positions"),
      Read("--position-embedding-type", "model.attention.position; yarn: steps, and YaRN's table rope"),
      Switch("--use-rotary-position-embeddings", "model.attention.position"),
      Switch("--no-position-embedding", "model.attention.position"),
      Direct("--rotary-base", "model.attention.rope_base"),
      Read("--rotary-percent", "steps: width of the table rope; 1.0 is all features of a head"),
      Switch("--rotary-interleaved", "steps: interleaved of the table rope"),
      Read("--rotary-seq-len-interpolation-factor", "steps: linear scaling of the table rope"),
      Read("--no-rope-freq", "steps: a cycle of rotary tables, with none in some layers"),
      Read("--yarn-rotary-scaling-factor", "steps: YaRN's factor of the table rope"),
      Read("--yarn-original-max-position-embeddings", "steps: YaRN's original of the table rope"),
      Read("--yarn-beta-fast", "steps: beta_fast of the table rope"),
      Read("--yarn-beta-slow", "steps: beta_slow of the table rope"),
      Read("--yarn-mscale", "steps: attention_factor of the table rope"),
      Read("--yarn-mscale-all-dim", "steps: attention_factor of the table rope"),
      Switch("--no-yarn-correction-range-round-to-int", "steps: truncate of the table rope"),
      Switch("--use-rope-scaling", "model.attention.rope_scaling.factor"),
      Read("--rope-scaling-factor", "model.attention.rope_scaling.factor"),
      Read("--normalization", "model.norm.kind"),
      Direct("--norm-epsilon", "model.norm.epsilon"),
      Direct("--layernorm-epsilon", "model.norm.epsilon"),
      Switch("--apply-layernorm-1p", "steps: gain_offset of all norms"),
      Refused(kNone, "--apply-residual-connection-post-layernorm", "norms stand before the blocks"),
      Switch("--disable-bias-linear", "model.attention.bias, model.mlp.bias"),
      Switch("--add-qkv-bias", "with --disable-bias-linear steps: bias of qkv"),
      Switch("--swiglu", "model.mlp.activation"),
      Switch("--openai-gelu", "model.mlp.activation"),
      Switch("--no-bias-gelu-fusion", "model.mlp.activation: unfused, Megatron-LM's GELU is the exact one"),
      Switch("--squared-relu", "model.mlp.activation"),
      Switch("--quick-geglu", "steps: a gate with quick GELU"),
      Read("--glu-linear-offset", "only 0"),
      Refused(kOne, "--activation-func-clamp-value", "activations are not clamped"),
      Switch("--qk-layernorm", "steps: norms of each head of q and k, before they are rotated"),
      Refused(kNone, "--qk-l2-norm", "norms of queries and keys have a gain, as with --qk-layernorm"),
      Refused(kNone, "--qk-clip", "weights of queries and keys are not clipped"),
      Refused(kNone, "--attention-output-gate", "the output of attention has no gate"),
      Switch("--untie-embeddings-and-output-weights", "model.tied_embeddings"),
      Direct("--make-vocab-size-divisible-by", "model.vocab_multiple"),
      Read("--vocab-size", "model.vocab; of NullTokenizer, which has an end of document beside, 1 more"),
      Refused(kOne, "--padded-vocab-size", "the vocabulary is padded to a multiple of vocab_multiple × tp"),
      Direct("--attention-dropout", "model.dropout.attention"),
      Read("--hidden-dropout", "model.dropout.hidden, model.dropout.embedding"),
      Direct("--init-method-std", "model.init_std"),
      Read("--embedding-init-method-std", "steps: init of the embeddings"),
      Refused(kNone, "--init-method-xavier-uniform", "weights begin normally distributed"),
      Read("--window-size", "model.attention.window, a token more than the left of the two numbers"),
      Read("--window-attn-skip-freq", "steps: a cycle of windows, with none in some layers"),
      Read("--softmax-type", "learnable: steps: sinks of attention; vanilla: nothing"),
      Note(kNone, "--attention-softmax-in-fp32", "the softmax is always in fp32"),
      Note(kNone, "--apply-query-key-layer-scaling",
           "it scales and scales back; the softmax is in fp32 anyway"),
      Refused(kMany, "--spec", kOtherModel),
      Refused(kOne, "--hybrid-layer-pattern", kOtherModel),
      Refused(kOne, "--hybrid-override-pattern", kOtherModel),
      Refused(kNone, "--is-hybrid-model", kOtherModel),
      Read("--mtp-num-layers", "steps: further tokens, each by a layer of its own and a loss"),
      Read("--mtp-loss-scaling-factor", "weights of the further losses"),
      Refused(kOne, "--encoder-num-layers", kOtherModel),
      Refused(kOne, "--decoder-num-layers", kOtherModel),
      Refused(kOne, "--encoder-seq-length", kOtherModel),
      Refused(kOne, "--decoder-seq-length", kOtherModel),
      Note(kNone, "--use-mcore-models", "there is one implementation of the model"),
      Note(kNone, "--use-legacy-models", "there is one implementation of the model"),
      Read("--transformer-impl",
           "comment: kernels are the executor's choice; with --fp8-format it must be transformer_engine"),
      Note(kNone, "--use-flash-attn", "attention never keeps its scores, whatever kernel runs it"),
      Note(kOne, "--attention-backend", kKernels),
  };
}

std::vector<MegatronFlag> TrainingFlags() {
  return {
      Direct("--micro-batch-size", "training.micro_batch"),
      Read("--global-batch-size", "training.global_batch; left out: micro_batch × dp"),
      List("--rampup-batch-size", "training.rampup.start, increment and samples"),
      Refused(kOne, "--step-batch-size-schedule", kBatchGrows),
      Refused(kNone, "--decrease-batch-size-if-needed", kBatchGrows),
      Direct("--train-iters", "training.iterations"),
      Read("--train-samples", "training.samples, whole batches"),
      Direct("--lr", "optimizer.learning_rate"),
      Direct("--min-lr", "schedule.min_learning_rate"),
      Read("--lr-decay-style", "schedule.kind; left out: linear"),
      Direct("--lr-decay-iters", "schedule.decay_iterations"),
      Direct("--lr-decay-samples", "schedule.decay_samples"),
      Direct("--lr-warmup-iters", "schedule.warmup_iterations"),
      Direct("--lr-warmup-samples", "schedule.warmup_samples"),
      Direct("--lr-warmup-fraction", "schedule.warmup_fraction"),
      Direct("--lr-warmup-init", "schedule.warmup_init"),
      Direct("--lr-wsd-decay-iters", "schedule.wsd_decay_iterations"),
      Direct("--lr-wsd-decay-samples", "schedule.wsd_decay_samples"),
      Read("--lr-wsd-decay-style", "schedule.wsd_decay_kind"),
      Read("--decoupled-lr", "optimizer.group: learning_rate of the embedding and the head"),
      Read("--decoupled-min-lr", "only in the proportion of the learning rates"),
      Read("--optimizer", "optimizer.kind: adam is adamw, sgd is sgd"),
      Direct("--weight-decay", "optimizer.weight_decay"),
      Switch("--apply-wd-to-qk-layernorm", "optimizer.group: weight_decay of the norms of q and k"),
      Read("--weight-decay-incr-style", "only constant"),
      Refused(kOne, "--start-weight-decay", "the weight decay does not change"),
      Refused(kOne, "--end-weight-decay", "the weight decay does not change"),
      Direct("--adam-beta1", "optimizer.beta1"),
      Direct("--adam-beta2", "optimizer.beta2"),
      Direct("--adam-eps", "optimizer.epsilon"),
      Direct("--sgd-momentum", "optimizer.momentum"),
      Direct("--clip-grad", "optimizer.clip_grad_norm"),
      Switch("--bf16", "precision.compute"),
      Switch("--fp16", "precision.compute"),
      Read("--fp8-format", "precision.compute, precision.fp8_gradients"),
      Read("--fp8-recipe", "precision.fp8_scaling"),
      Read("--fp8-margin", "only 0"),
      Read("--fp8-amax-history-len", kNoHistory),
      Read("--fp8-amax-compute-algo", kNoHistory),
      Note(kOne, "--fp8-interval", "Transformer Engine ignores it too"),
      Refused(kNone, "--no-fp8-wgrad", "all three products of a layer take 8-bit operands"),
      Note(kNone, "--fp8-param-gather", "weights are quantised after they were gathered"),
      Read("--loss-scale", "precision.loss_scale, with --fp16"),
      Read("--initial-loss-scale", "precision.initial_loss_scale, with --fp16"),
      Read("--min-loss-scale", "precision.min_loss_scale, with --fp16"),
      Read("--loss-scale-window", "precision.loss_scale_window, with --fp16"),
      Read("--hysteresis", "precision.loss_scale_hysteresis, with --fp16"),
      Switch("--accumulate-allreduce-grads-in-fp32", "precision.gradient_dtype"),
      Switch("--grad-reduce-in-bf16", "precision.gradient_dtype"),
      Refused(kNone, "--fp16-lm-cross-entropy", "the loss is computed in fp32", "remove it to train so"),
      Switch("--fp32-residual-connection",
             "only without --bf16 and --fp16: the residual stream has the format of precision.compute"),
      Direct("--seed", "training.seed"),
      Note(kNone, "--data-parallel-random-init", "copies of the model begin equal"),
      Note(kNone, "--use-cpu-initialization", "weights begin the same in every layout"),
      Note(kNone, "--calculate-per-token-loss", "the loss is the mean over all tokens of the global batch"),
      Note(kNone, "--cross-entropy-loss-fusion", kKernels),
      Note(kOne, "--cross-entropy-fusion-impl", kKernels),
      Switch("--deterministic-mode", "precision.deterministic"),
      Read("--recompute-granularity", "recompute.granularity"),
      Read("--recompute-method", "comment: every layer is recomputed on its own"),
      Read("--recompute-num-layers", "comment: every layer is recomputed on its own"),
      Switch("--recompute-activations", "recompute.granularity = \"selective\""),
      List("--recompute-modules", "recompute.modules"),
      Note(kNone, "--distribute-saved-activations", "with sequence parallelism they are split anyway"),
      Direct("--cpu-offloading-num-layers", "offload.activation_layers"),
      Note(kNone, "--optimizer-cpu-offload", kHostMemory),
      Note(kOne, "--optimizer-offload-fraction", kHostMemory),
  };
}

std::vector<MegatronFlag> ParallelFlags() {
  return {
      Direct("--tensor-model-parallel-size", "parallelism.tp"),
      Direct("--pipeline-model-parallel-size", "parallelism.pp"),
      Direct("--context-parallel-size", "parallelism.cp"),
      Switch("--sequence-parallel", "parallelism.sequence_parallel; without tp it has no effect"),
      Read("--num-layers-per-virtual-pipeline-stage", "parallelism.virtual_stages"),
      Read("--num-virtual-stages-per-pipeline-rank", "parallelism.virtual_stages"),
      Read("--decoder-first-pipeline-num-layers", "parallelism.layers_per_stage"),
      Read("--decoder-last-pipeline-num-layers", "parallelism.layers_per_stage"),
      Switch("--account-for-embedding-in-pipeline-split", "parallelism.layers_per_stage"),
      Switch("--account-for-loss-in-pipeline-split", "parallelism.layers_per_stage"),
      Refused(kOne, "--pipeline-model-parallel-layout", "parallelism.layers_per_stage lists layers alone"),
      Note(kOne, "--microbatch-group-size-per-virtual-pipeline-stage", "microbatches go in groups of pp"),
      Switch("--use-distributed-optimizer", "parallelism.zero_stage = 1"),
      Note(kOne, "--num-distributed-optimizer-instances", "optimizer state is sharded over the whole of dp"),
      Switch("--use-megatron-fsdp", "parallelism.zero_stage"),
      Switch("--use-custom-fsdp", "parallelism.zero_stage"),
      Switch("--use-torch-fsdp2", "parallelism.zero_stage = 3"),
      Read("--data-parallel-sharding-strategy", "parallelism.zero_stage, with FSDP"),
      Switch("--overlap-grad-reduce", "comment: the plan decides (parallelism.overlap)"),
      Switch("--overlap-param-gather", "comment: the plan decides (parallelism.overlap)"),
      Note(kOne, "--ddp-bucket-size", kBuckets),
      Note(kOne, "--ddp-num-buckets", kBuckets),
      Note(kNone, "--ddp-average-in-collective", kBuckets),
      Note(kNone, "--ddp-pad-buckets-for-high-nccl-busbw", kBuckets),
      Note(kNone, "--no-align-grad-reduce", kBuckets),
      Note(kOne, "--cp-comm-type", "the plan chooses how attention exchanges, by bytes"),
      Note(kMany, "--hierarchical-context-parallel-sizes",
           "the plan chooses how attention exchanges, by bytes"),
      Note(kNone, "--use-tp-pp-dp-mapping", kPlaces),
      Note(kNone, "--tp-comm-overlap", kHidden),
      Note(kOne, "--tp-comm-overlap-cfg", kHidden),
      Note(kNone, "--tp-comm-overlap-rs-dgrad", kHidden),
      Note(kNone, "--tp-comm-bulk-dgrad", kHidden),
      Note(kNone, "--tp-comm-bulk-wgrad", kHidden),
      Switch("--no-overlap-p2p-communication", "comment: transfers run on streams of their own"),
      Note(kNone, "--delay-wgrad-compute", "schedule = \"zero_bubble\" puts gradients of weights off"),
      Note(kNone, "--no-gradient-accumulation-fusion", kKernels),
      Note(kNone, "--no-async-tensor-model-parallel-allreduce", kHidden),
      Note(kNone, "--no-masked-softmax-fusion", kKernels),
      Note(kNone, "--no-bias-swiglu-fusion", kKernels),
      Note(kNone, "--no-bias-dropout-fusion", kKernels),
      Note(kNone, "--no-rope-fusion", kKernels),
      Note(kNone, "--no-persist-layer-norm", kKernels),
      Note(kNone, "--enable-cuda-graph",
           "a GPU's iteration is recorded and replayed; engine run --no-graphs"),
      Note(kOne, "--cuda-graph-impl", "a GPU's iteration is recorded and replayed; engine run --no-graphs"),
      Note(kOne, "--distributed-backend", "GPUs exchange as parallelism.exchange says, the CPU by Gloo"),
      Note(kOne, "--distributed-timeout-minutes", "engine run --hang-timeout says it"),
      Note(kOne, "--local-rank", "the launcher says it"),
      Note(kNone, "--manual-gc", kAllocator),
      Note(kOne, "--manual-gc-interval", kAllocator),
      Note(kOne, "--empty-unused-memory-level", kAllocator),
  };
}

std::vector<MegatronFlag> ExpertFlags() {
  return {
      Read("--num-experts", "steps: route and experts in the place of feed-forward parts"),
      Read("--expert-model-parallel-size", "parallelism.ep; it must divide Megatron-LM's dp"),
      Read("--expert-tensor-parallel-size", "parallelism.expert_tp: tp or 1; left out: tp"),
      Read("--moe-layer-freq", "steps: a pattern of layers with experts and without"),
      Read("--moe-ffn-hidden-size", "steps: hidden of experts; left out: as --ffn-hidden-size"),
      Read("--moe-shared-expert-intermediate-size", "steps: an expert that all tokens share"),
      Switch("--moe-shared-expert-gate", "steps: a sigmoid that multiplies the shared expert's result"),
      Read("--moe-router-topk", "steps: top_k of route; left out: 2"),
      Switch("--moe-router-pre-softmax", "steps: normalize = false of route"),
      Read("--moe-router-score-function", "steps: score of route: softmax, sigmoid or sqrtsoftplus"),
      Read("--moe-router-topk-scaling-factor", "steps: scale of route"),
      Read("--moe-router-num-groups", "steps: groups of route"),
      Read("--moe-router-group-topk", "steps: group_top_k of route"),
      Read("--moe-router-dtype", "comment: a router computes in fp32"),
      Switch("--moe-router-enable-expert-bias", "steps: bias_rate of route"),
      Read("--moe-router-bias-update-rate", "steps: bias_rate of route; left out: 0.001"),
      List("--moe-router-load-balancing-type",
           "steps: seq_aux_loss, or aux_loss with a micro-batch of 1: aux_loss of route; aux_loss: "
           "microbatch_aux_loss; global_aux_loss: global_aux_loss; sinkhorn: select; none"),
      List("--moe-aux-loss-coeff", "steps: aux_loss, microbatch_aux_loss, global_aux_loss of route"),
      Read("--moe-z-loss-coeff", "steps: z_loss of route"),
      Read("--moe-input-jitter-eps", "steps: jitter of route"),
      Read("--moe-expert-capacity-factor",
           "steps: capacity of experts, with capacity_of = \"rank\" where a rank has other than one whole "
           "sample at "
           "a time; less than 0: no limit"),
      Read("--moe-token-drop-policy", "steps: drop of experts"),
      Switch("--moe-pad-expert-input-to-capacity",
             "comment: rows that would fill up an expert's would weigh nothing"),
      Switch("--moe-router-force-load-balancing", "debug.router = even"),
      Refused(
          kNone, "--moe-use-upcycling", "a run begins with weights of engine's own checkpoints",
          "[training] weights_from = …, upcycle = true in the recipe, with a checkpoint of the dense model"),
      Note(kOne, "--moe-upcycling-granularity", "of --moe-use-upcycling"),
      Refused(kNone, "--moe-apply-probs-on-input", "weights multiply what an expert's activation gives"),
      Refused(kOne, "--moe-router-topk-limited-devices", "Megatron-LM no longer takes it",
              "--moe-router-num-groups and --moe-router-group-topk"),
      Refused(kNone, "--moe-extended-tp", "Megatron-LM no longer takes it", "--expert-tensor-parallel-size"),
      Warned(kNone, "--moe-layer-recompute", "recompute.granularity says what is computed again"),
      Note(kOne, "--moe-token-dispatcher-type", kDispatch),
      Note(kNone, "--moe-enable-deepep", kDispatch),
      Note(kOne, "--moe-deepep-num-sms", kDispatch),
      Note(kOne, "--moe-flex-dispatcher-backend", kDispatch),
      Note(kNone, "--moe-grouped-gemm", kKernels),
      Note(kNone, "--moe-use-legacy-grouped-gemm", kKernels),
      Note(kNone, "--moe-permute-fusion", kKernels),
      Note(kNone, "--moe-router-fusion", kKernels),
      Switch("--moe-shared-expert-overlap", "comment: what runs beside what is the plan's choice"),
      Note(kNone, "--overlap-moe-expert-parallel-comm", kHidden),
      Note(kNone, "--moe-router-padding-for-fp8", kSizes),
      Note(kNone, "--moe-router-padding-for-quantization", kSizes),
      Note(kOne, "--moe-expert-rank-capacity-factor",
           "rows have room for the worst load, and none is computed again"),
      Note(kNone, "--moe-paged-stash", "rows have room for the worst load, and none is computed again"),
      Note(kNone, "--moe-pad-experts-for-cuda-graph-inference", kSizes),
      Note(kNone, "--moe-per-layer-logging", kLogs),
      Switch("--multi-latent-attention", "steps: attention by latents"),
      Read("--q-lora-rank", "steps: width of the latent of queries; left out: there is none"),
      Read("--kv-lora-rank", "steps: width of the latent of keys and values"),
      Read("--qk-head-dim",
           "steps: features of a head's queries and keys that are not rotated; left out: 128"),
      Read("--qk-pos-emb-head-dim", "steps: those that are rotated; left out: 64"),
      Read("--v-head-dim", "steps: features of a head's values; left out: 128"),
      Read("--rope-type", "with --multi-latent-attention: yarn (left out) or rope"),
      Read("--rotary-scaling-factor", "steps: YaRN's factor, of latent attention"),
      Read("--original-max-position-embeddings",
           "steps: YaRN's original, of latent attention; left out: 4096"),
      Read("--beta-fast", "steps: YaRN's beta_fast, of latent attention; left out: 32"),
      Read("--beta-slow", "steps: YaRN's beta_slow, of latent attention; left out: 1"),
      Read("--mscale", "steps: attention_factor of the tables, of latent attention; left out: 1"),
      Read("--mscale-all-dim",
           "steps: attention_factor of the tables and scale of the scores, of latent attention; left out: 0"),
      Note(kNone, "--cache-mla-latents", "it is for generation"),
  };
}

std::vector<MegatronFlag> DataFlags() {
  return {
      List("--data-path", "data.paths, data.weights"),
      List("--train-data-path", "data.train.paths, data.train.weights"),
      List("--valid-data-path",
           "data.validation.paths, data.validation.weights; left out beside the others: no evaluation"),
      List("--test-data-path", "data.test.paths, data.test.weights"),
      Refused(kOne, "--data-args-path", "the paths are in another file; give --data-path"),
      Refused(kOne, "--per-split-data-args-path", "the paths are in another file; give --data-path"),
      Switch("--mock-data", "data.source = \"random\""),
      Direct("--split", "data.split"),
      Note(kOne, "--data-cache-path",
           "orders of samples are kept in the run's folder; data.index_cache names another"),
      Note(kNone, "--no-mmap-bin-files", kLoader),
      Note(kNone, "--no-create-attention-mask-in-dataloader", "attention is causal without a mask"),
      Note(kOne, "--num-dataset-builder-threads", kLoader),
      Read("--mid-level-dataset-surplus",
           "a blend's data sets are built for 0.005 more samples than it takes"),
      Note(kOne, "--num-workers", kLoader),
      Read("--dataloader-type", "only single"),
      Switch("--reset-position-ids", kMaskedDocuments),
      Switch("--reset-attention-mask", kMaskedDocuments),
      Switch("--eod-mask-loss", "data.mask_end_of_document_loss"),
      Switch("--fim-data", "data.fim, of a tokenizer with files"),
      Read("--fim-rate", "data.fim.rate, with --fim-data; left out: 0.5"),
      Read("--fim-spm-rate", "data.fim.spm_rate, with --fim-data; left out: 0.5"),
      Read("--fim-prefix-token", "data.fim.prefix_token, with --fim-data; left out: <fim_prefix>"),
      Read("--fim-middle-token", "data.fim.middle_token, with --fim-data; left out: <fim_middle>"),
      Read("--fim-suffix-token", "data.fim.suffix_token, with --fim-data; left out: <fim_suffix>"),
      Read("--fim-split-sample", "data.fim.split_token, with --fim-data"),
      Read("--fim-fragment-rate", "data.fim.fragment_rate, with --fim-split-sample"),
      Read("--fim-no-prefix", "data.fim.no_prefix, with --fim-data"),
      Read("--fim-eod-token", "data.tokenizer.end_of_document, with --fim-data"),
      Note(kOne, "--fim-pad-token", "padding does not count in the loss, whatever token it is"),
      Read("--tokenizer-type",
           "data.tokenizer.kind; model.vocab where --vocab-size does not say it; left out: GPT2BPETokenizer, "
           "as "
           "pretrain_gpt.py has it, but where --vocab-size stands alone"),
      Direct("--vocab-file", "data.tokenizer.vocab_file"),
      Direct("--merge-file", "data.tokenizer.merges_file"),
      Read("--tokenizer-model",
           "data.tokenizer.path of HuggingFaceTokenizer, GPTSentencePieceTokenizer and Llama2Tokenizer"),
      Note(kOne, "--tiktoken-pattern", kTikTokenizer),
      Note(kOne, "--tiktoken-num-special-tokens", kTikTokenizer),
  };
}

std::vector<MegatronFlag> RunFlags() {
  return {
      Read("--save", "comment: a run's folder is engine run --out"),
      Read("--save-interval", "checkpoint.interval, with --save"),
      Note(kOne, "--save-retain-interval", "checkpoint.keep keeps the newest"),
      Read("--non-persistent-save-interval",
           "checkpoint.memory, checkpoint.memory_interval: for ranks that engine run --max-restarts starts "
           "again"),
      Note(kOne, "--non-persistent-ckpt-type", kInMemory),
      Note(kOne, "--non-persistent-global-ckpt-dir", kInMemory),
      Note(kOne, "--non-persistent-local-ckpt-dir", kInMemory),
      Note(kOne, "--non-persistent-local-ckpt-algo", kInMemory),
      Read("--load", "only the folder of --save: a run goes on from the last checkpoint in its own"),
      Read("--ckpt-step", "only without --load, where it has no effect"),
      Note(kOne, "--ckpt-format", kFormat),
      Note(kNone, "--auto-detect-ckpt-format", kFormat),
      Note(kNone, "--use-dist-ckpt", kFormat),
      Note(kOne, "--dist-ckpt-strictness", kFormat),
      Note(kNone, "--ckpt-fully-parallel-save", kFormat),
      Note(kNone, "--no-ckpt-fully-parallel-save", kFormat),
      Note(kNone, "--ckpt-fully-parallel-load", kFormat),
      Note(kNone, "--async-save",
           "checkpoints are written beside training, unless checkpoint.background = false"),
      Switch("--no-load-optim", "comment: a run goes on with the optimizer's state, too"),
      Note(kNone, "--no-load-rng", "dropout is a function of seed and iteration; nothing of it is loaded"),
      Note(kNone, "--no-save-optim", kFormat),
      Note(kNone, "--no-save-rng", kFormat),
      Refused(kNone, "--use-checkpoint-args", kCheckpointSays, "write out the model's flags, and remove it"),
      Refused(kNone, "--use-mp-args-from-checkpoint-args", kCheckpointSays,
              "write out the degrees of parallelism, and remove it"),
      Switch("--exit-on-missing-checkpoint", "comment: a run without a checkpoint begins"),
      Note(kNone, "--override-opt_param-scheduler",
           "the recipe's schedule counts, from the checkpoint's step"),
      Note(kNone, "--use-checkpoint-opt_param-scheduler",
           "the recipe's schedule counts, from the checkpoint's step"),
      Refused(kNone, "--finetune", kOtherWeights),
      Refused(kOne, "--pretrained-checkpoint", kOtherWeights),
      Read("--eval-iters", "evaluation.iterations; left out: 100"),
      Read("--eval-interval", "evaluation.interval"),
      Refused(kNone, "--skip-train", "engine run trains, and does not only evaluate", "remove it to train"),
      Warned(kNone, "--full-validation", "an evaluation takes evaluation.iterations batches, not all"),
      Direct("--log-interval", "logging.interval"),
      Note(kNone, "--log-throughput", kLogs),
      Note(kNone, "--log-params-norm", kNotMeasured),
      Note(kNone, "--log-num-zeros-in-grad", kNotMeasured),
      Note(kNone, "--log-progress", kLogs),
      Note(kOne, "--timing-log-level", kLogs),
      Note(kOne, "--timing-log-option", kLogs),
      Note(kOne, "--log-memory-interval", "a plan says all memory, before the run"),
      Read("--tensorboard-dir", "logging.sinks; the files are in the run's folder"),
      Direct("--tensorboard-log-interval", "logging.sink_interval"),
      Note(kOne, "--tensorboard-queue-size", "each record is written at once"),
      Note(kNone, "--log-timers-to-tensorboard", kEventFiles),
      Note(kNone, "--log-validation-ppl-to-tensorboard", kEventFiles),
      Note(kNone, "--log-memory-to-tensorboard", kEventFiles),
      Note(kNone, "--log-world-size-to-tensorboard", kEventFiles),
      Note(kNone, "--no-log-loss-scale-to-tensorboard", kEventFiles),
      Note(kNone, "--no-log-learnig-rate-to-tensorboard", kEventFiles),
      Read("--wandb-project", "logging.sinks, logging.wandb.project"),
      Direct("--wandb-entity", "logging.wandb.entity"),
      Direct("--wandb-exp-name", "logging.wandb.name"),
      Note(kOne, "--wandb-save-dir", "the file is in the run's folder, and is uploaded by wandb sync"),
      Warned(kOne, "--exit-interval", kStop),
      Warned(kOne, "--exit-duration-in-mins", kStop),
      Note(kNone, "--exit-signal-handler", kStop),
      Note(kNone, "--profile", kProfiler),
      Note(kOne, "--profile-step-start", kProfiler),
      Note(kOne, "--profile-step-end", kProfiler),
      Note(kMany, "--profile-ranks", kProfiler),
      Note(kNone, "--use-pytorch-profiler", kProfiler),
      Note(kNone, "--check-for-nan-in-loss-and-grad", kNonfinite),
      Note(kNone, "--no-check-for-nan-in-loss-and-grad", kNonfinite),
      Note(kNone, "--check-for-spiky-loss",
           "guard.on_spike leaves spikes out; Megatron-LM trains one once more, and goes on"),
      Note(kOne, "--rerun-mode",
           "guard.rerun = true trains a bad iteration once more, and ends with 16 where a machine is "
           "suspect, 17 where none is"),
      Warned(kMany, "--iterations-to-skip",
             "guard.skip_iterations names those that are left out, counted from 1; releases of Megatron-LM "
             "count from 0 or from 1"),
  };
}

// Names that are met in notes and scripts, and that Megatron-LM does not take, or no longer does.
std::vector<MegatronFlag> WrongFlags() {
  const auto wrong = [](const char* name, const char* why) {
    return MegatronFlag{Values::kOne, Fate::kRefused, name, why};
  };
  return {
      {Values::kNone, Fate::kRefused, "--checkpoint-activations",
       "Megatron-LM no longer takes it: --recompute-granularity full --recompute-method uniform "
       "--recompute-num-layers 1"},
      wrong("--checkpoint-num-layers", "Megatron-LM no longer takes it: --recompute-num-layers"),
      wrong("--virtual-pipeline-model-parallel-size",
            "Megatron-LM takes --num-virtual-stages-per-pipeline-rank or "
            "--num-layers-per-virtual-pipeline-stage"),
      wrong("--pipeline-model-parallel-split-rank",
            "it cut encoders from decoders, and was removed; uneven stages: "
            "--decoder-first-pipeline-num-layers"),
      wrong("--data-parallel-size", "Megatron-LM takes no such flag: dp is the world size / (tp · pp · cp)"),
      wrong("--datacenter-id", "Megatron-LM takes no such flag"),
      wrong("--rope-scaling-type",
            "Megatron-LM takes no such flag: --use-rope-scaling is Llama 3's scaling, and "
            "--position-embedding-type yarn is YaRN"),
      wrong(
          "--yarn-alpha",
          "Megatron-LM takes no such flag: --position-embedding-type yarn with --yarn-rotary-scaling-factor"),
      wrong("--zero-stage", "it is DeepSpeed's: --use-distributed-optimizer is stage 1"),
      {Values::kNone, Fate::kRefused, "--cpu-offload", "it is DeepSpeed's"},
      wrong("--batch-size", "Megatron-LM no longer takes it: --micro-batch-size"),
      wrong("--warmup", "Megatron-LM no longer takes it: --lr-warmup-fraction"),
      wrong("--model-parallel-size", "Megatron-LM no longer takes it: --tensor-model-parallel-size"),
  };
}

const char* FateName(Fate fate) {
  switch (fate) {
    case Fate::kNote:
      return "comment";
    case Fate::kWarned:
      return "warning";
    case Fate::kRefused:
      return "refused";
    case Fate::kDirect:
    case Fate::kRead:
      break;
  }
  return "imported";
}

}  // namespace

const std::vector<MegatronFlag>& MegatronFlags() {
  static const std::vector<MegatronFlag> flags = [] {
    std::vector<MegatronFlag> all;
    for (std::vector<MegatronFlag> (*group)() :
         {ModelFlags, TrainingFlags, ParallelFlags, ExpertFlags, DataFlags, RunFlags, WrongFlags}) {
      for (const MegatronFlag& flag : group()) all.push_back(flag);
    }
    return all;
  }();
  return flags;
}

const MegatronFlag* FindMegatronFlag(std::string_view name, std::string* problem, std::string* hint) {
  std::vector<const MegatronFlag*> longer;
  std::vector<std::string> names;
  for (const MegatronFlag& flag : MegatronFlags()) {
    if (name == flag.name) return &flag;
    if (std::string_view(flag.name).rfind(name, 0) == 0) longer.push_back(&flag);
    names.emplace_back(flag.name);
  }
  if (longer.size() == 1 && name.size() > 4) return longer[0];
  if (longer.size() > 1 && name.size() > 4) {
    *problem = fmt::format("{} could be {} or {}", Shown(name), longer[0]->name, longer[1]->name);
    *hint = "write it out";
    return nullptr;
  }
  *problem = fmt::format("{} is no flag of Megatron-LM that the importer knows", Shown(name));
  const std::string nearest = NearestWord(name, names);
  *hint = nearest.empty() ? "remove it, if the training does not depend on it" : fmt::format("{}?", nearest);
  return nullptr;
}

std::string MegatronFlagTable() {
  std::string table = "| flag | | what it becomes, or why not |\n|---|---|---|\n";
  for (const MegatronFlag& flag : MegatronFlags()) {
    const char* quote = flag.fate == Fate::kDirect ? "`" : "";
    table += fmt::format("| `{}` | {} | {}{}{} |\n", flag.name, FateName(flag.fate), quote, flag.text, quote);
  }
  return table;
}

}  // namespace engine::import
