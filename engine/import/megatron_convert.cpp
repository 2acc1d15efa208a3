#include "engine/import/megatron_convert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/import/megatron_shell_words.h"
#include "engine/import/megatron_writer.h"
#include "engine/recipe/batch_size.h"

namespace engine::import {
namespace {

constexpr std::int64_t kMostSize = std::int64_t{1} << 40;  // sums of what is less do not overflow

std::optional<double> AsNumber(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

class MegatronConverter : MegatronWriter {
 public:
  MegatronConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks)
      : MegatronWriter(arguments, settings, remarks) {}

  void Convert() {
    for (const MegatronArgument& argument : a_.command().arguments) {
      if (argument.flag->fate == MegatronFlag::Fate::kDirect) Direct(*argument.flag);
    }
    Model();
    Positions();
    Vocabulary();
    Parallelism();
    Stages();
    Data();
    Length();
    Cluster();
  }

 private:
  // A number written as "4", "1e-5" or text, as the recipe key wants it.
  void Direct(const MegatronFlag& flag) {
    const recipe::Field& field = *recipe::FindField(flag.text);
    const recipe::FieldValue kind = recipe::DefaultOf(field);
    if (std::holds_alternative<std::int64_t>(kind)) {
      if (const std::optional<std::int64_t> value = a_.Int(flag.name)) Set(flag.text, *value, "", flag.name);
    } else if (std::holds_alternative<double>(kind)) {
      if (const std::optional<double> value = a_.Number(flag.name)) Set(flag.text, *value, "", flag.name);
    } else if (const std::optional<std::string> value = a_.Text(flag.name)) {
      Set(flag.text, *value, "", flag.name);
    }
  }

  void Model() {
    const bool bias = !a_.Has("--disable-bias-linear");
    const char* flag = bias ? "" : "--disable-bias-linear";
    Set("model.attention.bias", bias, bias ? kDefault : "", flag);
    Set("model.mlp.bias", bias, bias ? kDefault : "", flag);
    if (a_.Has("--add-qkv-bias")) Remark("--add-qkv-bias", "all projections have biases");
    if (a_.Has("--group-query-attention")) {
      const std::optional<std::int64_t> groups = a_.Int("--num-query-groups");
      Set("model.attention.kv_heads", groups.value_or(1),
          groups ? "" : "Megatron-LM's default of query groups",
          groups ? "--num-query-groups" : "--group-query-attention");
    } else if (a_.Has("--num-query-groups")) {
      Remark("--num-query-groups", "as many as heads are no groups");
    }
    if (a_.Has("--swiglu")) {
      Set("model.mlp.activation", std::string("swiglu"), "", "--swiglu");
    } else if (a_.Has("--squared-relu")) {
      Set("model.mlp.activation", std::string("squared_relu"), "", "--squared-relu");
    } else if (a_.Has("--no-bias-gelu-fusion") && !a_.Has("--openai-gelu")) {
      Set("model.mlp.activation", std::string("gelu_erf"), "unfused, Megatron-LM's GELU is the exact one",
          "--no-bias-gelu-fusion");
    } else if (!bias && !a_.Has("--openai-gelu")) {
      Set("model.mlp.activation", std::string("gelu_erf"),
          "without a bias, Megatron-LM's GELU is the exact one", "--disable-bias-linear");
    } else {
      Set("model.mlp.activation", std::string("gelu_tanh"),
          a_.Has("--openai-gelu") ? "" : "fused with the bias, Megatron-LM's GELU is this one");
    }
    if (a_.Has("--no-bias-gelu-fusion") &&
        (a_.Has("--openai-gelu") || a_.Has("--swiglu") || a_.Has("--squared-relu"))) {
      Remark("--no-bias-gelu-fusion", "the activation is another one");
    }
    Translate("--normalization", "model.norm.kind", {{"LayerNorm", "layernorm"}, {"RMSNorm", "rmsnorm"}});
    if (a_.Has("--untie-embeddings-and-output-weights")) {
      Set("model.tied_embeddings", false, "", "--untie-embeddings-and-output-weights");
    }
    SetIfAbsent("model.dropout.attention", 0.1, kDefault);
    const std::optional<double> hidden = a_.Number("--hidden-dropout");
    for (const char* key : {"model.dropout.hidden", "model.dropout.embedding"}) {
      Set(key, hidden.value_or(0.1), hidden ? "" : kDefault, hidden ? "--hidden-dropout" : "");
    }
    Window();
  }

  // "l,0": a token sees l tokens before itself; ours counts itself.
  void Window() {
    const std::optional<std::string> text = a_.Text("--window-size");
    if (!text) return;
    std::string plain = *text;
    std::erase_if(plain, [](char c) { return c == '(' || c == ')' || c == ' '; });
    const std::size_t comma = plain.find(',');
    const std::optional<std::int64_t> left = ShellInteger(plain.substr(0, comma));
    const std::optional<std::int64_t> right =
        comma == std::string::npos ? std::nullopt : ShellInteger(plain.substr(comma + 1));
    if (!left || !right || *left < 0 || *left >= kMostSize || *right > 0) {
      a_.Error("--window-size", fmt::format("--window-size is '{}'", Shown(*text)),
               "two numbers: tokens before, and 0 after, as in 4095,0");
      return;
    }
    Set("model.attention.window", *left + 1, fmt::format("the token itself and {} before it", *left),
        "--window-size");
  }

  void Positions() {
    Translate("--position-embedding-type", "model.attention.position",
              {{"learned_absolute", "learned"}, {"rope", "rotary"}, {"none", "none"}});
    if (a_.Has("--use-rotary-position-embeddings")) {
      Set("model.attention.position", std::string("rotary"), "", "--use-rotary-position-embeddings");
    }
    if (a_.Has("--no-position-embedding"))
      Remark("--no-position-embedding", "rotary positions have no table");
    const std::optional<double> factor = a_.Number("--rope-scaling-factor");
    if (a_.Has("--use-rope-scaling")) {
      Set("model.attention.rope_scaling.factor", factor.value_or(8.0), factor ? "" : kDefault,
          factor ? "--rope-scaling-factor" : "--use-rope-scaling");
    } else if (factor) {
      Remark("--rope-scaling-factor", "no effect without --use-rope-scaling");
    }
  }

  // The tokenizer that the script names; where it names none, the default of pretrain_gpt.py.
  std::string TokenizerType() const {
    if (const std::optional<std::string> type = a_.Text("--tokenizer-type")) return *type;
    const bool files = a_.Has("--vocab-file") || a_.Has("--merge-file");
    const bool size_alone = a_.Has("--vocab-size") && !files;
    return a_.Has("--tokenizer-type") || size_alone ? "" : kGpt2Tokenizer;
  }

  void Vocabulary() {
    const std::string tokenizer = TokenizerType();
    const bool gpt2 = tokenizer == kGpt2Tokenizer;
    const bool named = a_.Has("--tokenizer-type");
    const bool files = a_.Has("--vocab-file") || a_.Has("--merge-file");
    if (gpt2 && !named && !files && !a_.Has("--mock-data")) {
      a_.Error(
          "--tokenizer-type", "pretrain_gpt.py's default tokenizer, GPT2BPETokenizer, has no files here",
          "--vocab-file and --merge-file; or --vocab-size N, without padding, where the data is of another");
      return;
    }
    const std::string comment = named ? "" : "pretrain_gpt.py's default";
    const char* flag = named ? "--tokenizer-type" : a_.Has("--vocab-file") ? "--vocab-file" : "--merge-file";
    if (gpt2) {
      Set("data.tokenizer.kind", std::string("gpt2"), comment, flag);
    } else if (named) {
      Remark("--tokenizer-type", "the tokenizers are bytes and GPT-2's; data sets may be of any");
      settings_.erase("data.tokenizer.vocab_file");
      settings_.erase("data.tokenizer.merges_file");
      for (const char* file : {"--vocab-file", "--merge-file"})
        if (a_.Has(file)) Remark(file, "of the tokenizer, which is another one here");
    }
    if (const std::optional<std::int64_t> size = a_.Int("--vocab-size")) {
      const bool null = tokenizer == "NullTokenizer";
      Set("model.vocab", null && *size < kMostSize ? *size + 1 : *size,
          null ? "NullTokenizer adds the end of a document" : "", "--vocab-size");
    } else if (gpt2) {
      Set("model.vocab", std::int64_t{50257},
          named ? "GPT2BPETokenizer's" : fmt::format("GPT2BPETokenizer's, {}", comment), flag);
    } else if (tokenizer == "Llama2Tokenizer") {
      Set("model.vocab", std::int64_t{32000}, "Llama2Tokenizer's", "--tokenizer-type");
    } else if (!a_.Has("--vocab-size") && !tokenizer.empty()) {
      a_.Error("--tokenizer-type",
               fmt::format("how large {}'s vocabulary is, its files say", Shown(tokenizer)),
               "add --vocab-size N, without padding");
    }
  }

  std::int64_t Degree(const char* key) const { return std::max<std::int64_t>(1, IntOf(key, 1)); }

  void Parallelism() {
    const std::int64_t tp = Degree("parallelism.tp");
    const std::int64_t pp = Degree("parallelism.pp");
    const std::int64_t cp = Degree("parallelism.cp");
    const MegatronWorld& world = a_.command().world;
    dp_ = std::max<std::int64_t>(1, world.ranks / (tp * pp * cp));
    Set("parallelism.dp", dp_, fmt::format("{} ranks / (tp {} · pp {} · cp {})", world.ranks, tp, pp, cp));
    if (a_.Has("--sequence-parallel")) {
      if (tp > 1) {
        Set("parallelism.sequence_parallel", true, "", "--sequence-parallel");
      } else {
        Remark("--sequence-parallel", "no effect without tp");
      }
    }
    ZeroStage();
  }

  void ZeroStage() {
    const char* fsdp = a_.Has("--use-megatron-fsdp") ? "--use-megatron-fsdp"
                       : a_.Has("--use-custom-fsdp") ? "--use-custom-fsdp"
                       : a_.Has("--use-torch-fsdp2") ? "--use-torch-fsdp2"
                                                     : nullptr;
    const char* strategy = "--data-parallel-sharding-strategy";
    if (a_.Has("--use-distributed-optimizer")) {
      Set("parallelism.zero_stage", std::int64_t{1}, "", "--use-distributed-optimizer");
    }
    if (fsdp == nullptr) {
      if (a_.Has(strategy)) Remark(strategy, "no effect without FSDP");
      return;
    }
    const std::string text = a_.Text(strategy).value_or("optim_grads_params");
    constexpr std::array<std::string_view, 4> kStrategies = {"no_shard", "optim", "optim_grads",
                                                             "optim_grads_params"};
    const auto* found = std::find(kStrategies.begin(), kStrategies.end(), text);
    if (found == kStrategies.end()) {
      a_.Error(strategy, fmt::format("{} {} is unknown", strategy, Shown(text)),
               "no_shard, optim, optim_grads or optim_grads_params");
      return;
    }
    Set("parallelism.zero_stage", static_cast<std::int64_t>(found - kStrategies.begin()), text, fsdp);
  }

  // Chunks of the pipeline: equal ones are written down too, as the planner would balance head and embedding.
  void Stages() {
    const std::int64_t pp = Degree("parallelism.pp");
    const std::int64_t layers = IntOf("model.layers", 0);
    constexpr std::int64_t kMostStages = 2000;
    if (pp == 1 || pp > kMostStages || layers < 1 || layers > kMostStages) return;
    const std::int64_t chunks_a_rank = VirtualStages(pp, layers);
    if (chunks_a_rank == 0 || chunks_a_rank > kMostStages) return;
    if (chunks_a_rank > 1) {
      Set("parallelism.virtual_stages", chunks_a_rank, "",
          a_.Has(kPerStage) ? kPerStage : "--num-virtual-stages-per-pipeline-rank");
    }
    const std::int64_t chunks = pp * chunks_a_rank;
    std::vector<std::int64_t> list;
    if (a_.Has(kFirst) || a_.Has(kLast)) {
      list = UnevenEnds(chunks, layers);
    } else {
      list = EvenChunks(chunks, layers);
    }
    if (!list.empty())
      Set("parallelism.layers_per_stage", std::move(list), "as Megatron-LM cuts them", StagesFlag());
  }

  const char* StagesFlag() const {
    return a_.Has(kFirst) ? kFirst : a_.Has(kLast) ? kLast : "--pipeline-model-parallel-size";
  }

  // 0: they cannot be equal, which is reported.
  std::int64_t VirtualStages(std::int64_t pp, std::int64_t layers) {
    if (const std::optional<std::int64_t> stages = a_.Int("--num-virtual-stages-per-pipeline-rank")) {
      return std::max<std::int64_t>(1, *stages);
    }
    const std::optional<std::int64_t> each = a_.Int(kPerStage);
    if (!each) return 1;
    if (*each > 0 && *each <= layers && layers % (pp * *each) == 0) return layers / (pp * *each);
    a_.Error(kPerStage,
             fmt::format("--num-layers {} cannot be cut into pp {} × chunks of {}", layers, pp, *each),
             "a divisor of the layers of a pipeline rank");
    return 0;
  }

  std::vector<std::int64_t> EvenChunks(std::int64_t chunks, std::int64_t layers) {
    const std::int64_t embedding = a_.Has("--account-for-embedding-in-pipeline-split") ? 1 : 0;
    const std::int64_t loss = a_.Has("--account-for-loss-in-pipeline-split") ? 1 : 0;
    const std::int64_t counted = layers + embedding + loss;
    if (counted % chunks != 0) {
      a_.Error(
          "--num-layers",
          fmt::format("--num-layers {}{} cannot be shared by {} pipeline chunks equally", layers,
                      counted > layers ? fmt::format(" (with embedding and loss {})", counted) : "", chunks),
          "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers cut unevenly");
      return {};
    }
    std::vector<std::int64_t> list(static_cast<std::size_t>(chunks), counted / chunks);
    list.front() -= embedding;
    list.back() -= loss;
    return list;
  }

  std::vector<std::int64_t> UnevenEnds(std::int64_t chunks, std::int64_t layers) {
    const std::int64_t pp = Degree("parallelism.pp");
    if (chunks != pp) {
      a_.Error(StagesFlag(), fmt::format("{} with several chunks a rank cannot be imported", StagesFlag()),
               "one chunk a rank");
      return {};
    }
    const std::optional<std::int64_t> first = a_.Int(kFirst);
    const std::optional<std::int64_t> last = a_.Int(kLast);
    const auto is_possible = [&](const std::optional<std::int64_t>& end) {
      return !end || (*end >= 1 && *end <= layers);
    };
    const bool possible = is_possible(first) && is_possible(last);
    const std::int64_t between = pp - (first ? 1 : 0) - (last ? 1 : 0);
    const std::int64_t rest = possible ? layers - first.value_or(0) - last.value_or(0) : 0;
    if (!possible || rest < between || (between == 0 && rest != 0) || (between > 0 && rest % between != 0)) {
      a_.Error(StagesFlag(),
               fmt::format("--num-layers {} cannot be cut so: {} remain for {} pipeline stages", layers, rest,
                           between),
               "a multiple of these stages");
      return {};
    }
    std::vector<std::int64_t> list(static_cast<std::size_t>(pp), between > 0 ? rest / between : 0);
    if (first) list.front() = *first;
    if (last) list.back() = *last;
    return list;
  }

  void RandomTokens() {
    for (const char* key :
         {"data.split", "data.tokenizer.kind", "data.tokenizer.vocab_file", "data.tokenizer.merges_file"}) {
      settings_.erase(key);
    }
    for (const char* flag : {"--data-path", "--split", "--tokenizer-type", "--vocab-file", "--merge-file",
                             "--mid-level-dataset-surplus"}) {
      if (a_.Has(flag)) Remark(flag, "random tokens are of no file");
    }
    Set("data.source", std::string("random"), "", "--mock-data");
  }

  // A list of prefixes, or of weights and prefixes in turns.
  void Data() {
    if (a_.Has("--mock-data")) return RandomTokens();
    const std::vector<std::string> list = a_.List("--data-path");
    if (list.empty()) return;
    std::vector<std::string> paths;
    std::vector<double> weights;
    for (std::size_t i = 0; i + 1 < list.size(); i += 2) {
      if (const std::optional<double> weight = AsNumber(list[i])) weights.push_back(*weight);
    }
    if (list.size() % 2 == 1 || weights.empty()) {
      paths = list;
      weights.clear();
    } else if (weights.size() * 2 != list.size()) {
      a_.Error("--data-path", "--data-path mixes weighted paths with others",
               "a weight before each path, or none");
      return;
    }
    for (std::size_t i = 1; !weights.empty() && i < list.size(); i += 2) paths.push_back(list[i]);
    Set("data.paths", std::move(paths), "", "--data-path");
    Surplus(!weights.empty());
    if (!weights.empty()) Set("data.weights", std::move(weights), "", "--data-path");
  }

  void Surplus(bool blends) {
    constexpr const char* kFlag = "--mid-level-dataset-surplus";
    constexpr double kSurplus = 0.005;  // data/blend.cpp
    if (!a_.Has(kFlag)) return;
    if (!blends) {
      Remark(kFlag, "no effect without a blend");
    } else if (a_.Number(kFlag).value_or(kSurplus) == kSurplus) {
      Remark(kFlag, "as it is here");
    } else {
      Warn(kFlag,
           "a blend's data sets are built for 0.005 more samples than it takes, and another number shuffles "
           "them in another way");
    }
  }

  void Length() {
    const std::int64_t micro = IntOf("training.micro_batch", 1);
    std::int64_t batch = 0;
    if (const std::optional<std::int64_t> given = a_.Int("--global-batch-size")) {
      batch = *given;
      Set("training.global_batch", batch, "", "--global-batch-size");
    } else if (!a_.Has("--global-batch-size") && micro > 0 && !__builtin_mul_overflow(micro, dp_, &batch)) {
      Set("training.global_batch", batch, "Megatron-LM's default: micro_batch × dp", "--micro-batch-size");
    }
    const recipe::Rampup rampup = GrowingBatch();
    const std::optional<std::int64_t> samples = a_.Int("--train-samples");
    if (!samples || batch < 1) return;
    const recipe::Training training{.global_batch = batch, .rampup = rampup};
    const std::int64_t whole = recipe::RunOn(training, {}, recipe::kNoEnd, *samples).samples;
    Set("training.samples", whole,
        whole == *samples ? "" : fmt::format("of {}: whole batches are trained", *samples),
        "--train-samples");
    if (whole != *samples) {
      SetIfAbsent("schedule.decay_samples", *samples, "Megatron-LM's default: --train-samples");
    }
  }

  // Megatron-LM's START INCREMENT SAMPLES, which here as there grow the batch by the same formula.
  recipe::Rampup GrowingBatch() {
    constexpr const char* kFlag = "--rampup-batch-size";
    if (!a_.Has(kFlag)) return {};
    const std::vector<std::string> words = a_.List(kFlag);
    if (words.size() != a_.Find(kFlag)->values.size()) return {};  // the script does not say them
    recipe::Rampup rampup;
    std::int64_t* const numbers[] = {&rampup.start, &rampup.increment, &rampup.samples};
    bool good = words.size() == std::size(numbers);
    for (std::size_t i = 0; good && i < words.size(); ++i) {
      const std::string& word = words[i];
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *numbers[i]);
      good = error == std::errc() && end == word.data() + word.size() && *numbers[i] > 0;
    }
    if (!good) {
      a_.Error(kFlag,
               fmt::format("{} {} is not three numbers of samples", kFlag,
                           Shown(fmt::format("{}", fmt::join(words, " ")))),
               "START INCREMENT SAMPLES, each at least 1");
      return {};
    }
    Set("training.rampup.start", rampup.start, "", kFlag);
    Set("training.rampup.increment", rampup.increment, "", kFlag);
    Set("training.rampup.samples", rampup.samples, "", kFlag);
    return rampup;
  }

  void Cluster() {
    const MegatronWorld& world = a_.command().world;
    if (world.nodes == 0) {
      Set("cluster.nodes", std::int64_t{0}, "as many as the ranks need");
      return;
    }
    Set("cluster.nodes", world.nodes, world.launcher);
    Set("cluster.devices_per_node", world.ranks_per_node, world.launcher);
  }

  static constexpr const char* kGpt2Tokenizer = "GPT2BPETokenizer";
  static constexpr const char* kPerStage = "--num-layers-per-virtual-pipeline-stage";
  static constexpr const char* kFirst = "--decoder-first-pipeline-num-layers";
  static constexpr const char* kLast = "--decoder-last-pipeline-num-layers";

  std::int64_t dp_ = 1;
};

}  // namespace

MegatronSettings ConvertMegatron(const MegatronArguments& arguments, MegatronRemarks* remarks) {
  MegatronSettings settings;
  MegatronConverter(arguments, &settings, remarks).Convert();
  ConvertMegatronTraining(arguments, &settings, remarks);
  return settings;
}

}  // namespace engine::import
