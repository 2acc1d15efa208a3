// The typed recipe: what a TOML recipe means after `extends`, `--set` and defaults. Plain data; every value's
// rule, default, unit and documentation is its one row in recipe/field_table.cpp, from which the parser, the
// JSON Schema in schemas/ and docs/recipe-reference.md all follow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/base/units.h"

namespace engine::recipe {

struct Node;  // recipe/document.h

// The key that says of which kind a model is, and its values.
inline constexpr const char* kModelFamilyKey = "model.family";
inline constexpr const char* kDecoderFamily = "decoder";  // its keys say all
inline constexpr const char* kTextFamily = "text";        // it has steps of its own: model.main

// An iteration is unrolled over microbatches and chunks: so many of them there may be at most.
inline constexpr std::int64_t kMostTurns = 2'000'000;

struct RopeScaling {  // Llama-3 frequency scaling; factor 1 is none
  double factor = 1.0;
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  std::int64_t original_max_positions = 8192;
};

struct Attention {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;         // 0: as many as heads
  std::int64_t head_dim = 0;         // 0: hidden / heads
  std::string position = "learned";  // learned | rotary | none
  double rope_base = 10000.0;
  RopeScaling rope_scaling;
  std::int64_t window = 0;  // sliding window in tokens, 0: none
  bool bias = false;
};

struct Mlp {
  std::int64_t hidden = 0;               // 0: 4 × hidden, or floor(8 × hidden / 3 / 64) × 64 for swiglu
  std::string activation = "gelu_tanh";  // gelu_tanh | gelu_erf | squared_relu | swiglu
  bool bias = false;
};

struct Norm {
  std::string kind = "layernorm";  // layernorm | rmsnorm
  double epsilon = 1e-5;
};

struct Dropout {
  double embedding = 0.0;  // after the sum of token and position embeddings
  double hidden = 0.0;     // on each residual branch
  double attention = 0.0;  // on attention probabilities
};

struct Model {
  std::string family = kDecoderFamily;
  // Of a text these three follow from it (model/load.h): repetitions of its stacks, the rows that tokens look up, and the
  // width of the stream.
  std::int64_t layers = 0;
  std::int64_t vocab = 0;  // of the tokenizer, unpadded
  std::int64_t hidden = 0;
  // Follows from the steps of a text: the largest number by which all its layers of experts may be shared; 0: none.
  std::int64_t experts = 0;
  // Likewise: samples of which a rank must have all or none in a pass, as its routers count them together.
  std::int64_t sample_group = 1;
  std::int64_t vocab_multiple = 128;  // padded to a multiple of vocab_multiple × tp
  std::int64_t max_positions = 0;
  Attention attention;
  Mlp mlp;
  Norm norm;
  Dropout dropout;
  bool tied_embeddings = true;
  double init_std = 0.02;
};

struct Parallelism {
  std::int64_t dp = 1;
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t cp = 1;
  std::int64_t ep = 1;
  bool sequence_parallel = false;
  std::int64_t virtual_stages = 1;  // model chunks per pipeline rank
  std::string schedule = "auto";    // auto | 1f1b | interleaved | zero_bubble
  std::vector<std::int64_t>
      layers_per_stage;         // per chunk in pipeline order (pp × virtual_stages entries); empty: balanced
  std::int64_t zero_stage = 0;  // sharded over dp: 1 optimizer state, 2 gradients too, 3 parameters too
  std::string overlap = "auto";   // auto | on | off
  std::string exchange = "auto";  // auto | nccl | push
  std::int64_t expert_tp = 0;     // ranks of tp that share an expert's matrices: 1, or tp; 0: tp
  double expert_rows =
      0;  // rows that buffers of experts hold, times those of even loads; 0: of the worst load
};

struct Tokenizer {
  std::string kind = "byte";     // byte | gpt2 | file | none
  std::string vocab_file = {};   // vocab.json (gpt2)
  std::string merges_file = {};  // merges.txt (gpt2)
  std::string path = {};         // a tokenizer's file or a Hugging Face folder (file)
  // The tokens that begin and end a document (file); empty: those that the files tell.
  std::string beginning_of_document = {};
  std::string end_of_document = {};
};

inline constexpr const char* kRandomSource = "random";

// Data sets that samples are drawn from.
struct DataSets {
  std::vector<std::string> paths;    // prefixes of .bin/.idx, relative to the working directory
  std::vector<double> weights;       // one per path, or empty
  std::vector<std::int64_t> epochs;  // one per path, one for all, or empty
};

// Documents with a part moved to their end, which the model is to fill in (Bavarian et al., arXiv:2207.14255).
struct FillInMiddle {
  double rate = 0.0;      // of documents that are rearranged; 0: none
  double spm_rate = 0.5;  // of these, those whose suffix comes first
  std::string prefix_token, middle_token, suffix_token;
  std::string split_token = {};  // between parts of a document, each rearranged by itself; empty: none
  double fragment_rate = 1.0;    // of these parts, of the documents that `rate` chooses
  std::string no_prefix = {};    // text with which begins what stays as it is; empty: none
};

struct Data : DataSets {             // paths, weights, epochs: of all splits, which `split` cuts
  std::string source = "files";      // files | random
  DataSets train, validation, test;  // of one split each, instead of `paths`
  std::string split = "969,30,1";
  std::int64_t sequence_length = 0;  // tokens of a sample
  std::string documents = "across";  // across | masked: whether attention sees other documents of a sample
  bool mask_end_of_document_loss = false;
  std::string packing = "none";        // none | best_fit
  std::string long_documents = "cut";  // cut | drop: those that no packed sample holds
  FillInMiddle fim;
  std::string index_cache;  // a folder; empty: that of the run
  Tokenizer tokenizer;

  bool is_random() const { return source == kRandomSource; }
  // Whether splits have data sets of their own.
  bool per_split() const {  // which then are used whole
    return !train.paths.empty() || !validation.paths.empty() || !test.paths.empty();
  }
  bool packs() const { return packing == "best_fit"; }
};

struct Optimizer {
  std::string kind = "adamw";  // adamw | sgd (plan/optimizer.h)
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double momentum = 0.9;  // of sgd, as Megatron-LM's --sgd-momentum
  double weight_decay = 0.01;
  double clip_grad_norm = 1.0;        // 0: no clipping
  std::string moment_dtype = "fp32";  // fp32 | bf16, of what the optimizer keeps
};

struct Schedule {
  std::string kind = "cosine";  // constant | linear | cosine | inverse_sqrt | wsd
  double min_learning_rate = 0.0;
  double warmup_init = 0.0;  // learning rate at step 0
  std::int64_t warmup_iterations = 0;
  std::int64_t warmup_samples = 0;
  double warmup_fraction = 0.0;       // of the decay length
  std::int64_t decay_iterations = 0;  // 0: the length of the training
  std::int64_t decay_samples = 0;
  std::int64_t wsd_decay_iterations = 0;
  std::int64_t wsd_decay_samples = 0;
  std::string wsd_decay_kind = "exponential";  // linear | cosine | exponential | minus_sqrt
};

// The global batch grows, in equal steps (recipe/batch_size.h). All 0: it does not.
struct Rampup {
  std::int64_t start = 0;      // samples of the first iteration
  std::int64_t increment = 0;  // samples that a step adds
  std::int64_t samples = 0;    // consumed when the global batch is whole
};

struct Training {
  std::int64_t global_batch = 0;  // samples an iteration, where it grows: in the end
  std::int64_t micro_batch = 0;   // samples of one microbatch on one data-parallel rank
  bool pad_batch = false;         // the last microbatches may have samples that are empty
  std::int64_t iterations = 0;    // or samples, not both
  std::int64_t samples = 0;
  Rampup rampup;
  std::int64_t seed = 1234;
  // A folder, as data.paths are, that the first weights are of: of a run, a checkpoint or a Hugging Face model; empty: they
  // are drawn.
  std::string weights_from = {};
  std::string weights_match = "all";  // all | some: whether model and folder must have the same tensors
  bool upcycle = false;               // experts begin as copies of the folder's dense parts
  std::int64_t logits_bytes = std::int64_t{1}
                              << 30;  // budget of the logits where head and loss run in chunks
};

struct Precision {
  std::string compute = "fp32";         // fp32 | bf16 | fp16 | fp8
  std::string gradient_dtype = "fp32";  // fp32 | bf16, of sums of gradients of matrices
  std::string master_dtype = "fp32";    // fp32 | bf16: the bf16 matrices themselves, no copy
  std::string fp8_gradients = "e5m2";   // e4m3 | e5m2: format of output gradients, where products are fp8
  std::string fp8_scaling = "delayed";  // delayed | current: whose largest value gives a tensor's scale
  bool fp8_head = false;                // the head's products as well
  double loss_scale = 0.0;              // of fp16, for the whole run; 0: it moves, as the next four keys say
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1.0;
  std::int64_t loss_scale_window = 1000;   // iterations without an overflow after which it doubles
  std::int64_t loss_scale_hysteresis = 2;  // overflows before it is halved
  bool deterministic = true;
  std::string attention = "fast";  // fast | reference: kernels of attention in 16 bits
};

struct Recompute {
  std::string granularity = "none";                  // none | selective | full
  std::vector<std::string> modules = {"attention"};  // selective: attention | norm | activation
};

// What waits in the host's memory, copied there and back behind computation.
struct Offload {
  std::int64_t activation_layers = 0;  // the first ones of each chunk of a pipeline
};

struct Checkpoint {
  std::int64_t interval = 0;          // iterations; 0: only at the end
  std::int64_t keep = 0;              // newest N; 0: all
  bool background = true;             // written beside the iterations that follow
  bool required = false;              // one that cannot be written ends the run
  std::int64_t final_patience = 600;  // seconds for which the last one of a run is tried again; 0: it is not
  bool memory = false;         // copies of the state in the host's memory, for ranks that are started again
  bool memory_partner = true;  // on another host, too
  std::int64_t memory_interval = 0;  // iterations between them; 0: as few as cost little
  std::string upload = {};           // s3://BUCKET/KEY, where they are kept; empty: in the run's folder
};

// Low-rank adapters beside the products of linear steps (Hu et al., arXiv:2106.09685); what they stand beside is frozen.
struct Lora {
  std::int64_t rank = 0;                     // 0: none
  double alpha = 16.0;                       // their sum is multiplied by alpha / rank
  std::vector<std::string> targets = {"*"};  // patterns of names of linear steps
};

struct Evaluation {
  std::int64_t interval = 0;            // iterations; 0: never
  std::int64_t iterations = 10;         // global batches of one evaluation
  std::vector<std::string> tasks = {};  // FORM=FILE or FILE.toml (evaluate/task.h)
};

// How the model makes text (docs/generation.md). Training depends on it, too, where it is to give the same numbers.
struct Generate {
  bool invariant =
      false;  // a token's logits have the same bits in training, prefill and any batch that decodes
  std::string cache_dtype =
      "auto";  // what keys and values are kept as: auto (what they are computed in) | fp8
};

// What is done about numbers that show that something is wrong (docs/bad-numbers.md).
struct Guard {
  std::string on_nonfinite = "stop";  // a loss or gradient norm that is not finite: stop | skip | rewind
  std::string on_spike = "none";      // none | skip | rewind
  double spike_loss = 6;              // standard deviations above the window's mean; 0: losses are not judged
  double spike_grad_norm = 0;         // times the window's median; 0: norms are not judged
  std::int64_t spike_window = 100;    // iterations
  std::int64_t rewind_iterations = 0;        // that a rewind goes back, at least
  std::int64_t skip_batches = 0;             // left out behind the bad iteration after a rewind
  std::int64_t max_rewinds = 3;              // in a training
  std::int64_t max_skips = 100;              // updates in a row; 0: any number
  std::vector<std::string> skip_iterations;  // left out from the beginning: "350", "101-120"
  bool rerun = false;  // a bad iteration is trained a second time before anything is done about it
  bool trace = false;  // with rerun: all that ranks exchange is hashed, and compared
  std::int64_t hash_interval = 0;  // iterations between comparisons of the ranks' copies of weights; 0: never

  // Whether an iteration may be judged bad and not end the run at once.
  bool rewinds() const { return on_nonfinite == "rewind" || judges_spikes() || rerun; }
  bool judges_spikes() const { return on_spike != "none"; }
};

struct Wandb {
  std::string project = "engine";
  std::string entity;  // empty: that of whoever uploads the run
  std::string name;    // empty: that of the run's folder
};

struct Prometheus {
  std::int64_t port = 0;  // 0: nothing is served
  std::string address = "127.0.0.1";
  std::string textfile;  // empty: none is written
};

struct Logging {
  std::int64_t interval = 1;
  std::vector<std::string> sinks;  // beside metrics.jsonl: tensorboard | wandb | prometheus
  std::int64_t sink_interval = 1;
  std::int64_t histogram_interval = 0;  // tensorboard: iterations between histograms; 0: none
  Wandb wandb;
  Prometheus prometheus;

  bool Has(std::string_view sink) const { return std::find(sinks.begin(), sinks.end(), sink) != sinks.end(); }
};

struct Cluster {
  std::string name = "cpu";
  std::string device = "cpu";         // cpu | h100 | h200 | b200 | a100 | ...
  std::int64_t nodes = 0;             // 0: as many as the world needs
  std::int64_t devices_per_node = 0;  // 0: not limited
  std::int64_t memory_bytes = 0;      // of one device; 0: not limited
  std::int64_t reserved_bytes = 0;    // outside the arena: context, libraries
  double matmul_flops = 0.0;          // sustained, per second, in bf16 (CPU: fp32); 0: unknown
  double peak_flops = 0.0;            // of dense 16-bit products, as the data sheet has it: for MFU alone
  double memory_bandwidth = 0.0;      // bytes per second
  double intra_node_bandwidth = 0.0;  // bytes per second, per device and direction
  double inter_node_bandwidth = 0.0;
};

// What a scheduler is asked for (engine/jobs), and no training.
struct Launch {
  std::string name;                // of the job; empty: the recipe's file name, without its ending
  std::string command = "engine";  // the program, as the job finds it
  std::string recipe;              // the recipe's file, as the job finds it; empty: as it was named
  std::string out;                 // the run's folder, as the job finds it; empty: runs/ and the name
  std::string image;               // of the container
  std::string kubernetes_namespace;
  std::string queue;                 // SLURM: partition; Kubernetes: Kueue's local queue
  std::string account;               // SLURM
  std::string priority;              // SLURM: quality of service; Kubernetes: priority class
  std::vector<std::string> volumes;  // Kubernetes: CLAIM:/PATH
  std::string token_secret =
      "engine-token";  // Kubernetes: the secret that has the run's token, under `token`
  std::int64_t shared_memory_bytes = std::int64_t{64} << 30;  // Kubernetes: of /dev/shm
  std::int64_t host_memory_bytes = 0;                         // of a node; 0: not asked for
  std::string network = "none";                               // none | efa | infiniband: between nodes
  std::string network_resource;                               // Kubernetes: what its devices are called there
  std::int64_t network_devices = 0;                           // of a node
  std::int64_t grace_period_s = 300;  // from the signal that asks the run to save, to its end
  std::int64_t time_limit_s = 0;      // of the job; 0: none
  std::int64_t retries = 100;         // after what another try may cure, or a stop; 0: none
  // Within the job: how often ranks are started again, nodes beside those of the layout, and how few the run goes on with (0: all).
  std::int64_t max_restarts = 0, spares = 0, min_nodes = 0;
};

struct Check {
  std::vector<std::string> allow;  // codes of warnings that are meant
};

// What measurements and tests ask for, and no training.
struct Debug {
  std::string router = "model";  // model | even | zipf: which experts tokens go to (engine/ops/route.cpp)
  bool faults = false;           // whether engine run --fault is taken (engine/train/fault.h)
};

// Where a resolved value comes from.
struct Provenance {
  enum class Origin { kDefault, kFile, kSet } origin = Origin::kDefault;
  SourceSpan span;          // of the value; of a default, where the recipe would say it
  std::string source_line;  // text of that line
};

struct Recipe {
  Model model;
  Parallelism parallelism;
  Data data;
  Optimizer optimizer;
  Schedule schedule;
  Training training;
  Precision precision;
  Recompute recompute;
  Offload offload;
  Checkpoint checkpoint;
  Lora lora;
  Evaluation evaluation;
  Generate generate;
  Guard guard;
  Logging logging;
  Cluster cluster;
  Launch launch;
  Check check;
  Debug debug;
  // The keys of recipe/text.h, merged over all files; null where there are none.
  std::shared_ptr<const Node> text;

  std::string path;  // the root file, as the user named it
  std::map<std::string, Provenance>
      provenance;  // by dotted key, "model.attention.heads"; every field has one

  bool is_text() const { return model.family == kTextFamily; }
  // Derived, stated once. All but has_one_rank() are defined only for a recipe that passed validation.
  bool has_one_rank() const {  // computes no product, which may be more than an integer holds
    return parallelism.dp == 1 && parallelism.tp == 1 && parallelism.pp == 1 && parallelism.cp == 1 &&
           parallelism.ep == 1;
  }
  std::int64_t world_size() const {
    return parallelism.dp * parallelism.tp * parallelism.pp * parallelism.cp * parallelism.ep;
  }
  std::int64_t kv_heads() const {
    return model.attention.kv_heads > 0 ? model.attention.kv_heads : model.attention.heads;
  }
  std::int64_t head_dim() const {
    return model.attention.head_dim > 0 ? model.attention.head_dim : model.hidden / model.attention.heads;
  }
  std::int64_t ffn_hidden() const {
    if (model.mlp.hidden > 0) return model.mlp.hidden;
    return model.mlp.activation == "swiglu" ? model.hidden * 8 / 3 / 64 * 64 : 4 * model.hidden;
  }
  std::int64_t padded_vocab() const {  // ceil(V / (multiple × tp)) × (multiple × tp)
    const std::int64_t multiple = model.vocab_multiple * parallelism.tp;
    return (model.vocab + multiple - 1) / multiple * multiple;
  }
  // Of the whole global batch. Padded ones come in groups of pp where the schedule is interleaved, which wants them so.
  std::int64_t microbatches() const {
    const bool groups = training.pad_batch && parallelism.virtual_stages > 1;
    return RoundUp(CeilDiv(training.global_batch, training.micro_batch * parallelism.dp * parallelism.ep),
                   groups ? parallelism.pp : 1);
  }
  // The length of the training (recipe/batch_size.cpp).
  std::int64_t iterations() const;
  std::int64_t samples() const;
};

}  // namespace engine::recipe
