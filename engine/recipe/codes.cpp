#include "engine/recipe/codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace engine::recipe {
namespace {

constexpr const char* kPageIntroduction = R"(# Errors and warnings of `engine check`

This page is written by `engine explain --page` from the table of codes, and a test fails when they differ.

An error (E…) makes a recipe unusable; its code names a family, its text says what is wrong and what would be right.
A warning (W…) is about a recipe that works, and would disappoint. A warning that is meant is named in the recipe, with
its reason beside it:

```toml
[check]
allow = ["W102"]   # so many stages is the point of this recipe
```

Warnings about predicted time are given only where `[cluster]` has the rates that a prediction needs. A run of fewer
than 1000 iterations counts as a trial, of which some warnings say nothing.
)";

bool IsSame(std::string_view a, std::string_view b) {
  const auto lower = [](unsigned char c) { return std::tolower(c); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

const std::vector<Code>& Codes() {
  static const std::vector<Code> codes = {
      {"E101", "not-toml", "The text is not TOML, or beyond the limits of a recipe",
       "A recipe is a TOML 1.0 file in UTF-8, of at most 4 MiB, nested at most 64 deep.",
       "The place is where the parser stopped; the mistake is there or just before."},
      {"E102", "bad-key-or-value", "A key that is not known, or a value of the wrong type or out of range",
       "A key that is not known would silently do nothing, so it is refused, as is each value that its key "
       "cannot have.",
       "docs/recipe-reference.md lists every key with its type and range; the hint names the nearest known "
       "one."},
      {"E103", "missing-key", "A key that every recipe needs is nowhere",
       "Neither the file, nor what it extends, nor --set gives the key, and it has no default.",
       "Set it, or extend a file of configs/ that has it."},
      {"E104", "unreadable-file", "A file cannot be read, or files extend each other in a circle",
       "All files that a recipe extends are parts of it. With --root, none outside of that folder is read.",
       "Paths in extends are relative to the file that names them; engine:configs/… names files that come "
       "with the "
       "program."},
      {"E105", "bad-study", "The parts of a study do not go together",
       "A study is a base recipe and variants of it, each another recipe that can run, in one of three "
       "forms.",
       "docs/ablations.md has the keys of a study; `engine check BASE` says what is wrong with its base."},
      {"E201", "model", "Numbers of [model] do not go together",
       "Heads share the hidden size, key and value heads the heads, and rotary positions turn pairs.",
       "The hint gives the nearest numbers that do."},
      {"E202", "layout", "The layout does not go with the model or the cluster",
       "WORLD_SIZE = DP · TP · PP · CP · EP must fill the cluster; tp must divide heads and feed-forward "
       "width, 2 · cp the sequence, and pp × virtual_stages may not exceed the layers.",
       "The hint gives the nearest degrees that do."},
      {"E203", "batch", "Batch and length of the training do not go together",
       "global_batch = micro_batch × microbatches × dp × ep, in whole numbers, as is every size of a batch "
       "that grows "
       "([training.rampup]), and the length is said once.",
       "The hint gives the nearest batch that does."},
      {"E204", "schedule", "The learning-rate schedule contradicts itself",
       "A length is said twice, the warm-up outlasts the decay, or a lower rate is above the highest.",
       "Keep one of the lengths; shorten the warm-up."},
      {"E205", "precision", "Number formats that do not go together",
       "No product takes 16-bit operands of one kind and sums them in the other, and FP8 products want sizes "
       "in multiples of 16.",
       "The hint names a format that does."},
      {"E206", "data", "The data's keys do not go together",
       "Weights are one a path, a split leaves something to train on, a tokenizer has its files and its ids, "
       "and is said "
       "where documents are masked.",
       "The hint says what is missing."},
      {"E207", "optimizer", "A key of [optimizer] that this kind of optimizer does not have",
       "Each kind has numbers of its own: AdamW beta1, beta2 and epsilon, SGD momentum. One that the "
       "optimizer does not read would silently do nothing.",
       "Remove the key; where a file that the recipe extends has it, extend one for this kind of optimizer."},
      {"E208", "model-text", "The steps of a model do not go together",
       "A step names a module, what it reads, and its attributes; each is checked where it stands, and so "
       "are the "
       "shapes that it is given.",
       "`engine modules` lists the modules, `engine modules NAME` says what one reads, takes and gives; "
       "docs/custom-models.md builds a block step by step."},
      {"E209", "start", "The weights that a run is to begin with do not fit its model",
       "training.weights_from takes weights from a checkpoint or a Hugging Face folder by their names. Each "
       "weight of the model must be there in its shape, and each that is there must be one of the model's; "
       "with upcycle, an expert's matrix takes the dense one that has its name without the step of the "
       "experts, and its shape.",
       "The message names the tensors that do not fit: give the model their sizes and names, allow what is "
       "missing with training.weights_match = \"some\", or begin without training.weights_from."},
      {"E210", "logging", "The keys of [logging] do not go together",
       "Prometheus asks a port for numbers or reads them from a file, so one of the two has to be said; the "
       "node exporter "
       "reads files whose names end in .prom alone.",
       "logging.prometheus.port = 9400, or logging.prometheus.textfile with the exporter's folder."},
      {"E211", "job", "The recipe does not say what a scheduler must know",
       "engine launch writes the file by which a scheduler runs a recipe. It needs to know how many devices "
       "a node has, "
       "and for Kubernetes the container's image, claims of volumes as CLAIM:/PATH, and what the network's "
       "devices are "
       "called there.",
       "Set the key that the message names, in [cluster] or [launch] (docs/launch.md)."},
      {"E212", "guard", "The keys of [guard] do not go together",
       "A run that is to go back needs checkpoints, as far back as it is to go; what judges spikes must be "
       "on; iterations that are "
       "left out are named by numbers.",
       "The hint says which key and which value (docs/bad-numbers.md)."},
      {"E213", "invariant", "What generate.invariant asks for is not to be had",
       "With generate.invariant a token's logits have the same bits in training and generation. Numbers in "
       "fp8 have scales that a whole batch decides, and some kernels have no form for it.",
       "The hint says what has; or generate.invariant = false."},
      {"E214", "upload", "Checkpoints cannot be kept where checkpoint.upload says",
       "A place in a bucket of S3 is named, below which the checkpoints of one run lie; the run's folder "
       "then has the newest alone, so that [guard] has no earlier ones to go back to.",
       "checkpoint.upload = \"s3://BUCKET/KEY\" (docs/checkpoint-format.md#in-a-bucket)."},
      {"E215", "unread", "A table's other keys are said, and not the one that turns it on",
       "[lora] with alpha or targets and no rank would train the whole model, where adapters beside it are "
       "meant.",
       "The key that the hint names; its value 0 where it is meant so."},
      {"E301", "no-plan", "There is no plan for this layout of this model",
       "Some operation has no lawful placement of its tensors along an axis.",
       "Another degree of the axis that the message names."},
      {"E302", "does-not-fit", "The plan needs more memory than a device has",
       "The message itemises the arena of the fullest stage.",
       "The message names a remedy: recompute, a smaller micro_batch, ZeRO, or more ranks."},
      {"E303", "no-kernels", "The device has no kernels for what a key asks for",
       "The recipe can be planned, and not run, on the device of its [cluster].",
       "The hint gives the value that runs."},
      {"E304", "engine-bug", "The plan is wrong, which is a bug of the engine",
       "The verifier reads every plan again from the beginning, and it found a fault in this one.",
       "Nothing is wrong with the recipe: report it."},
      {"E305", "no-fast-attention", "Attention in 16 bits has no fast kernel on the device",
       "What no fast kernel takes would run in the reference kernels, up to some hundred times slower, which "
       "would pass for a slow model. So a recipe has to ask for them. The message says for each family of "
       "fast kernels what it does not take, and docs/cuda-backend.md what each takes.",
       "The hint says what each family takes instead, the nearest first, and what an iteration is predicted "
       "to take with precision.attention = \"reference\"."},

      {"W101", "tp-across-nodes", "Tensor parallelism reaches across nodes",
       "tp exchanges activations four times a layer, and the links between nodes are several times slower "
       "than those inside one.",
       "tp at most devices_per_node, and a divisor of it; more pp or dp instead."},
      {"W102", "pipeline-bubble", "More than 15 % of the pipeline's time is idle",
       "At the start and the end of each iteration stages wait for one another: with p stages, v chunks "
       "each, and m microbatches, (p − 1) / (v · m + p − 1) of the time.",
       "More microbatches (a smaller micro_batch or dp, a larger global_batch), more virtual_stages, or a "
       "smaller pp."},
      {"W103", "unbalanced-stages", "One pipeline stage has far more work than the mean",
       "All stages wait for the slowest. Its excess over the mean is lost on every other one.",
       "Leave layers_per_stage empty, so that the planner balances; or a pp that divides the layers, the "
       "head counted as a layer or more."},
      {"W104", "exposed-exchange",
       "Computation is predicted to wait for exchange more than a quarter of the time",
       "Collectives that no computation hides are lost time on every rank.",
       "Less tp or cp, or inside a node; parallelism.overlap = \"auto\" with an even micro_batch; a larger "
       "micro_batch."},
      {"W105", "zero-without-replicas", "zero_stage has nothing to shard over",
       "ZeRO cuts optimizer state, gradients and parameters over dp and cp, and both are 1.",
       "zero_stage = 0; or dp at least 2."},
      {"W106", "zero-2-takes-more", "ZeRO-2 takes more memory than ZeRO-1 would",
       "A rank's shard of the gradients is summed in fp32. With gradients in bf16 and few ranks it and the "
       "buffers that blocks take in turn are more than the whole gradients that ZeRO-1 keeps.",
       "zero_stage = 1, which exchanges less too; or more ranks."},

      {"W201", "vocabulary-padding", "More than 3 % of a forward pass goes into padding of the vocabulary",
       "The vocabulary is padded to a multiple of vocab_multiple × tp, and padding rows are multiplied like "
       "others.",
       "A smaller vocab_multiple."},
      {"W202", "memory-nearly-full", "The plan takes more than 95 % of a device's memory",
       "What lies outside of the arena (context, libraries) varies by machine and version; so little room "
       "may not do elsewhere.",
       "Recompute more, a smaller micro_batch, or a higher zero_stage."},
      {"W203", "needless-recompute", "Recomputation, and memory enough without it",
       "Full recomputation repeats the forward pass, about a third more work, and the plan without it fits "
       "the device.",
       "recompute.granularity = \"none\", or \"cheap\"; or use the memory for a larger micro_batch."},
      {"W204", "small-microbatch", "A microbatch is too small to fill the device",
       "The narrowest product of a layer has tiles (128 × 256 outputs) for less than half of the device's "
       "multiprocessors; the others have nothing to do.",
       "A larger micro_batch; less tp or cp."},
      {"W205", "odd-sizes", "A width that tensor cores do not like",
       "Products run fastest where each size on a rank is a multiple of 64 elements, 128 bytes in 16 bits.",
       "Round hidden, mlp.hidden / tp and heads × head_dim / tp, or the dims of a text that its products "
       "contract, to multiples of 64."},
      {"W206", "fp32-on-gpu", "Products in fp32 on a GPU",
       "Tensor cores multiply in 16 bits many times faster, and training in bf16 with fp32 master weights is "
       "as good.",
       "precision.compute = \"bf16\"."},
      {"W207", "bf16-gradient-sum", "Many gradients are added up in bf16",
       "bf16 has 8 significant bits: a term below 1/256 of the sum is lost, and that is what later terms of "
       "a long sum are.",
       "gradient_dtype = \"fp32\"; or fewer microbatches."},
      {"W209", "reference-attention", "Attention runs in the reference kernels",
       "These are plain kernels that are there to be compared with, up to some hundred times slower than "
       "fast "
       "ones: the message says what an iteration is predicted to take with them and with fast ones. "
       "Attention in float32 has no others, nor has a GPU before compute capability 8.0, and with "
       "precision.attention = \"reference\" a recipe asks for them. Else a recipe is refused whose "
       "attention has no fast kernel (E305).",
       "precision.compute = \"bf16\"; precision.attention = \"fast\"."},
      {"W210", "window-is-slow", "The attention window makes training slower, not faster",
       "Within a window cuDNN computes all pairs of queries and keys, those that are masked too, where "
       "without "
       "one it leaves out the half that the causal mask does. FLOPs and MFU count the pairs inside alone.",
       "No window, where the model need not have one; or take it as it is: the results are right."},
      {"W211", "whole-logits", "All logits of a microbatch exist at once",
       "Head and loss usually run as one kernel, in chunks whose logits fit training.logits_bytes. It takes "
       "a "
       "bias, then a scale, then a soft cap between them, and a frozen table. Where anything else stands "
       "there, "
       "or where nothing before the head is trained, they run apart: the logits of all tokens are stored, "
       "and so "
       "are their gradients. The message says how many bytes they take where that is more than logits_bytes.",
       "Nothing else between head and loss; a smaller micro_batch; or tp, which splits the vocabulary."},
      {"W212", "few-rows", "An expert has few rows of a microbatch",
       "A token is a row for each expert that it goes to. Products of experts work in blocks of 128 rows, "
       "and blocks that are partly "
       "empty take as long as full ones.",
       "A larger micro_batch; or more ep in the place of dp, as ranks of ep bring their tokens together."},
      {"W213", "unbalanced-experts", "Nothing balances experts that ranks of ep share",
       "All ranks wait for the one whose experts are chosen most. Routers without a loss of balance, and "
       "without a correction of their "
       "scores, tend to send most tokens to a few experts. The message says what an iteration is predicted "
       "to take where expert e is "
       "chosen in proportion to 1 / (e + 1)^0.7, and where all tokens choose experts of one rank.",
       "aux_loss in the step route, or bias_rate; or ep = 1."},
      {"W214", "rows-take-memory",
       "Rows of experts take more than a quarter of a device, for loads that hardly occur",
       "No load may overflow the buffers of rows, so that with ep they have room for the tokens of all its "
       "ranks: many times the rows "
       "of an even load.",
       "recompute.granularity = \"full\", which keeps one layer's rows at a time; a smaller micro_batch; "
       "less ep."},

      {"W301", "training-ends-in-warmup", "The training ends before the warm-up does",
       "The learning rate never reaches its highest value.",
       "A shorter warm-up, about 1 % of the training; or a longer training."},
      {"W302", "decay-outlasts-training", "The decay is much longer than the training",
       "A cosine that is cut off at less than 80 % of its length ends at a rate well above the lowest, and "
       "the loss is worse than that of a decay as long as the training (Hoffmann et al., arXiv 2203.15556, "
       "figure A1).",
       "Leave decay_iterations and decay_samples at 0: the length of the training."},
      {"W303", "decay-ends-early", "The decay ends long before the training",
       "The decay ends before the training, and min_learning_rate is 0: nothing is learnt from there on. Or "
       "it "
       "ends before half of the training, and the rest has the lowest learning rate.",
       "A decay as long as the training, and a min_learning_rate of a tenth of the highest."},
      {"W304", "no-warmup", "There is no warm-up",
       "AdamW's second moments are poor estimates in the first iterations, and full steps by them can send "
       "the loss up for good.",
       "warmup_fraction = 0.01, or warmup_iterations of some hundreds."},
      {"W305", "high-learning-rate", "The learning rate is far above what models of this size take",
       "GPT-3's rates fall with size, about 6e-4 · (parameters / 125M)^-0.32 (arXiv 2005.14165, table 2.1); "
       "five times that usually diverges.",
       "A learning_rate near that; a longer warm-up, where it is meant."},
      {"W306", "large-model-beta2", "beta2 above 0.99 for a large model",
       "Second moments that average over a thousand iterations follow slowly when gradients change, which "
       "shows as spikes of the loss. GPT-3 and Llama have 0.95.",
       "optimizer.beta2 = 0.95."},
      {"W307", "no-clipping", "Gradients are not clipped", "One bad batch can undo weeks.",
       "optimizer.clip_grad_norm = 1.0."},
      {"W308", "few-tokens", "Fewer training tokens than parameters",
       "The best size for a budget of computation sees about 20 tokens a parameter (Hoffmann et al., arXiv "
       "2203.15556); below one, a smaller model would be better and cheaper.",
       "A longer training or a smaller model."},
      {"W309", "unused-positions", "Rows of the learned position table that no token ever trains",
       "max_positions, or the rows of a table that positions look up, are more than sequence_length. The "
       "model would fail on longer inputs than it was "
       "trained on.",
       "max_positions, or rows, as many as sequence_length; or rotary positions."},
      {"W310", "window-without-effect", "The attention window is no shorter than the sequence",
       "Each token sees all before it, as without a window.", "A window below sequence_length, or 0."},
      {"W311", "no-weight-decay", "Weight decay is 0",
       "AdamW without decay lets weights grow through a long training. GPT-3 and Llama have 0.1.",
       "optimizer.weight_decay = 0.1."},
      {"W312", "decay-is-constant", "The learning rate decays to itself",
       "min_learning_rate is as high as learning_rate, so that the schedule's kind does nothing.",
       "A min_learning_rate of a tenth of the highest; or schedule.kind = \"constant\", where that is "
       "meant."},
      {"W313", "cannot-train", "A value at which models hardly learn",
       "Weights that begin as zeros stay alike; an epsilon in a norm above 0.01 outweighs what it is to "
       "guard; "
       "rotary positions with a base below 100 tell only near tokens apart; and where optimizer.epsilon is a "
       "hundred times an element of the clipped gradient, AdamW's steps are below a hundredth of the "
       "learning "
       "rate.",
       "The usual values: init_std 0.02, norm.epsilon 1e-5, rope_base 10000 (base of a rotary table), "
       "optimizer.epsilon 1e-8, "
       "clip_grad_norm 1.0."},
      {"W314", "data-twice", "The same data set is listed twice",
       "Its documents are seen twice as often as those of the others, which data.weights says better.",
       "Each path once."},

      {"W315", "vocabulary-too-small", "The vocabulary is smaller than GPT-2's",
       "GPT-2's own vocab.json has 50,257 ids. Text that was tokenised with it holds ids that this model "
       "does not have, at which a run is refused. Files of another vocabulary may have fewer.",
       "model.vocab = 50257; or allow this, where vocab_file is another vocabulary."},
      {"W316", "ramp-outlasts-training", "The training ends before the global batch is whole",
       "The batch grows over more samples than the training has, so that no iteration has global_batch "
       "samples.",
       "A shorter training.rampup.samples; or a longer training."},
      {"W318", "depends-on-layout", "What is learnt depends on the layout",
       "microbatch_aux_loss, global_aux_loss and capacity_of = \"rank\" count the choices of a router over "
       "what a "
       "rank, or a microbatch, happens to have, as Megatron-LM does: with another micro_batch, dp, ep, or "
       "with halves, "
       "the same recipe gives another loss.",
       "aux_loss and capacity, which count whole samples (aux_samples, capacity_samples); or allow this, to "
       "go on "
       "with what was begun in Megatron-LM."},
      {"W319", "forced-router", "Routers do not choose",
       "debug.router sends tokens to experts by number, not by what a router says, so that loads are known "
       "when "
       "speed is measured. Nothing is learnt of routing.",
       "debug.router = \"model\"; or allow this, of a measurement."},
      {"W401", "rare-checkpoints", "More than an hour of predicted time between checkpoints",
       "What a failure costs is on average half the interval, on all devices.",
       "A shorter checkpoint.interval, with checkpoint.keep to bound the disk."},
      {"W402", "evaluation-never-runs", "The validation loss is never measured",
       "data.split sets validation data aside, and evaluation.interval is 0 or beyond the end.",
       "An evaluation.interval of some hundreds or thousands; or a split without a second share."},
      {"W403", "many-checkpoints", "Every one of more than 50 checkpoints is kept",
       "Each has 12 bytes a parameter with AdamW, 8 with SGD, and nothing deletes them.",
       "checkpoint.keep = 3."},
      {"W404", "costly-evaluation", "More than a fifth of the predicted time goes into evaluation",
       "evaluation.iterations global batches pass forward after every evaluation.interval iterations, and "
       "nothing is learnt meanwhile.",
       "A longer evaluation.interval; fewer evaluation.iterations."},
      {"W405", "costly-checkpoints",
       "Checkpoints come faster than they can be written, or take more than a fifth of the time",
       "A checkpoint has weights and the optimizer's states, 12 bytes a parameter with AdamW and 8 with SGD. "
       "Written beside training, each must be on disk before the next; with checkpoint.background = false, "
       "the run "
       "waits until it is. The time is reckoned with 2 GB/s a node, what one NVMe disk takes.",
       "A longer checkpoint.interval; checkpoint.background = true."},
  };
  return codes;
}

const Code* FindCode(std::string_view code) {
  for (const Code& known : Codes()) {
    if (IsSame(known.code, code) || IsSame(known.name, code)) return &known;
  }
  return nullptr;
}

std::vector<std::string> WarningCodes() {
  std::vector<std::string> codes;
  for (const Code& code : Codes()) {
    if (code.is_warning()) codes.emplace_back(code.code);
  }
  return codes;
}

std::string CodesPage() {
  std::string page = kPageIntroduction;
  for (const Code& code : Codes()) {
    page += fmt::format("\n## {} {}\n\n**{}.** {}\n\n*Remedy*: {}\n", code.code, code.name, code.title,
                        code.reason, code.remedy);
  }
  return page;
}

}  // namespace engine::recipe
