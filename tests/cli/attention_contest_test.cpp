// `engine doctor --attention`: what a SHAPE means, what is said of a wrong one, and what is printed.
#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "engine/cli/attention_report.h"
#include "engine/cli/attention_shape.h"
#include "engine/graph/attention_inputs.h"
#include "tests/cli/run_binary.h"

namespace engine::cli {
namespace {

AskedAttention AskedOf(const std::string& text) {
  const absl::StatusOr<AskedAttention> shape = ParseAttentionShape(text);
  REQUIRE_MESSAGE(shape.ok(), Message(shape.status()));
  return *shape;
}

// Pair by pair.
double CountedPairs(const AskedAttention& shape) {
  std::vector<std::int64_t> document_of;
  for (std::size_t d = 0; d < shape.documents.size(); ++d)
    document_of.insert(document_of.end(), static_cast<std::size_t>(shape.documents[d]),
                       static_cast<std::int64_t>(d));
  document_of.resize(static_cast<std::size_t>(shape.keys), 0);
  double pairs = 0;
  for (std::int64_t i = 0; i < shape.length; ++i) {
    for (std::int64_t j = 0; j < shape.keys; ++j) {
      const std::int64_t before = i + shape.keys - shape.length - j;
      if (shape.causal && (before < 0 || (shape.window > 0 && before >= shape.window))) continue;
      if (!shape.documents.empty() &&
          document_of[static_cast<std::size_t>(i)] != document_of[static_cast<std::size_t>(j)])
        continue;
      ++pairs;
    }
  }
  return pairs;
}

}  // namespace

TEST_CASE("attention contest: a SHAPE with all its keys") {
  const AskedAttention few = AskedOf("length=1024,heads=20,head=64");
  CHECK(few.batch == 1);
  CHECK(few.keys == 1024);
  CHECK(few.kv_heads == 20);
  CHECK(few.value_head == 64);
  CHECK(few.causal);
  CHECK(few.dtype == DType::kBF16);
  const AskedAttention all = AskedOf(
      "batch=2,length=100,heads=8,kv_heads=2,head=192,value_head=128,keys=300,mask=causal,window=50,softcap="
      "30.5,"
      "dropout=0.1,alibi,sinks=1,packed=0,dtype=fp16");
  CHECK(all.batch == 2);
  CHECK(all.length == 100);
  CHECK(all.keys == 300);
  CHECK(all.heads == 8);
  CHECK(all.kv_heads == 2);
  CHECK(all.head == 192);
  CHECK(all.value_head == 128);
  CHECK(all.window == 50);
  CHECK(all.softcap == 30.5);
  CHECK(all.dropout == 0.1);
  CHECK(all.alibi);
  CHECK(all.sinks);
  CHECK(!all.packed);
  CHECK(all.dtype == DType::kF16);
  CHECK(!AskedOf("length=5,heads=1,head=8,mask=none").causal);
  CHECK(AskedOf("length=10, heads=1,head=8, documents=3+7 ").documents == std::vector<std::int64_t>{3, 7});
}

TEST_CASE("attention contest: a wrong SHAPE is refused, with what would be right") {
  struct Wrong {
    const char* text;
    const char* message;
  };
  for (const Wrong& wrong : {
           Wrong{"lenght=8,heads=1,head=64",
                 "there is no key 'lenght'; there are batch, length, heads, head, "},
           Wrong{"", "a key is missing between two commas or behind the last one"},
           Wrong{"length=8,heads=1,head=64,", "a key is missing between two commas or behind the last one"},
           Wrong{"heads=1,head=64", "'length' is missing; an example: batch=8,length=1024,heads=20,head=64"},
           Wrong{"length=8,heads=1", "'head' is missing"},
           Wrong{"length=8,length=8,heads=1,head=64", "'length' stands twice"},
           Wrong{"length=8x,heads=1,head=64", "length must be a number from 1 to 16777216, found '8x'"},
           Wrong{"length=0,heads=1,head=64", "length must be a number from 1 to 16777216, found '0'"},
           Wrong{"length,heads=1,head=64", "length must be a number from 1 to 16777216, found ''"},
           Wrong{"length=8,heads=1,head=64,mask=full", "mask must be causal or none, found 'full'"},
           Wrong{"length=8,heads=1,head=64,dtype=fp32", "dtype must be bf16 or fp16, found 'fp32'"},
           Wrong{"length=8,heads=1,head=64,softcap=0", "softcap must be a number above 0, found '0'"},
           Wrong{"length=8,heads=1,head=64,softcap=inf", "softcap must be a number above 0, found 'inf'"},
           Wrong{"length=8,heads=1,head=64,dropout=1",
                 "dropout must be a number from 0 to below 1, found '1'"},
           Wrong{"length=8,heads=1,head=64,dropout=nan",
                 "dropout must be a number from 0 to below 1, found 'nan'"},
           Wrong{"length=8,heads=1,head=64,alibi=yes", "alibi must be 1 or 0, found 'yes'"},
           Wrong{"length=8,heads=1,head=64,documents=3+",
                 "documents must be lengths with + between them, as in "
                 "300+700, found '3+'"},
           Wrong{"length=8,heads=1,head=64,documents=3+4",
                 "documents must fill length=8, these have 7 tokens"},
           Wrong{"length=8,keys=9,heads=1,head=64,documents=3+5", "documents need as many keys as queries"},
           Wrong{"batch=16777216,length=16777216,heads=16777216,head=16777216",
                 "tensors of more than 2^40 elements"},
           Wrong{"length=8,heads=5,kv_heads=2,head=64", "5 heads are no multiple of 2 kv_heads"},
           Wrong{"length=8,keys=4,heads=1,head=64",
                 "a causal mask needs at least as many keys as queries, found keys=4 and length=8"},
           Wrong{"length=8,heads=1,head=64,mask=none,window=4", "a window needs mask=causal"},
           Wrong{"length=8,heads=1,head=64,mask=none,alibi", "alibi needs mask=causal"},
           Wrong{"length=8,heads=1,head=64,packed,sinks",
                 "packed tensors have keys and values of the queries' sizes"},
       }) {
    const absl::StatusOr<AskedAttention> shape = ParseAttentionShape(wrong.text);
    REQUIRE_MESSAGE(!shape.ok(), wrong.text);
    CHECK(
        Contains(Message(shape.status()), std::string("--attention '") + wrong.text + "': " + wrong.message));
  }
}

TEST_CASE("attention contest: pairs are those that the masks leave") {
  for (const std::string& text : std::initializer_list<std::string>{
           "length=7", "length=1", "length=7,mask=none", "length=4,keys=9,mask=none",
           "length=9,keys=4,mask=none", "length=4,keys=9", "length=9,window=1", "length=9,window=4",
           "length=9,window=9", "length=9,window=40", "length=4,keys=9,window=3", "length=4,keys=9,window=7",
           "length=4,keys=9,window=8", "length=9,documents=2+4+3", "length=9,documents=2+7,window=4",
           "length=9,documents=2+7,mask=none"}) {
    CAPTURE(text);
    const AskedAttention shape = AskedOf(text + ",heads=1,head=8");
    CHECK(UnmaskedPairs(shape) == CountedPairs(shape));
  }
}

TEST_CASE("attention contest: FLOPs are those of the op") {
  for (const std::string& text : std::initializer_list<std::string>{
           "length=64", "length=64,window=10", "length=64,mask=none", "length=64,value_head=16",
           "length=64,sinks,dropout=0.1,softcap=3,alibi,batch=3", "length=64,documents=30+34",
           "length=64,packed,documents=30+34"}) {
    CAPTURE(text);
    const AskedAttention shape = AskedOf(text + ",heads=4,kv_heads=2,head=8");
    for (const bool backward : {false, true}) {
      const absl::StatusOr<AttentionLaunch> launch = AttentionLaunchOf(shape, backward);
      REQUIRE_MESSAGE(launch.ok(), Message(launch.status()));
      const graph::Work work = launch->op->work(launch->inputs, launch->outputs, launch->attributes);
      if (shape.documents.empty())  // which the op does not know
        CHECK(AttentionFlops(shape, backward) == doctest::Approx(work.flops));
      CHECK(graph::InputsOfAttention(launch->inputs, {backward, shape.packed}).has_spans() ==
            !shape.documents.empty());
      CHECK(launch->outputs.size() == (!backward ? 2 : shape.packed ? 1 : shape.sinks ? 4 : 3));
    }
  }
}

TEST_CASE("attention contest: the table, and the same as JSON") {
  AttentionContest contest = {
      .shape = AskedOf("batch=8,length=1024,heads=20,head=64"), .backward = true, .kernels = {}};
  contest.kernels = {
      {.name = "own", .why_not = {}, .milliseconds = 0.5, .scratch_bytes = 3 << 20, .chosen = true},
      {.name = "cuDNN, bits repeat", .why_not = {}, .milliseconds = 1},
      {.name = "cuDNN, bits vary", .repeats = false, .why_not = {}, .milliseconds = 0.4, .chosen_else = true},
      {.name = "reference", .why_not = "attention of another kind"}};
  // 160 heads × 1024 · 1025 / 2 pairs × 5 products × 2 · 64 FLOPs: 53.74 GFLOP.
  CHECK(ToText(contest) ==
        "batch=8,length=1024,heads=20,head=64: backward\n"
        "  own                         0.5000 ms  107.5 TFLOP/s  1.250 x fastest    3.00 MiB scratch  chosen "
        "where "
        "bits repeat\n"
        "  cuDNN, bits repeat          1.0000 ms   53.7 TFLOP/s  2.500 x fastest         0 B scratch\n"
        "  cuDNN, bits vary            0.4000 ms  134.3 TFLOP/s  1.000 x fastest         0 B scratch  chosen "
        "where "
        "bits need not repeat\n"
        "  reference                cannot: attention of another kind\n");
  const nlohmann::ordered_json json = ToJson(contest);
  CHECK(json["shape"] == "batch=8,length=1024,heads=20,head=64");
  CHECK(json["pass"] == "backward");
  CHECK(json["kernels"].size() == 4);
  CHECK(json["kernels"][0]["ms"] == 0.5);
  CHECK(json["kernels"][0]["ratio"] == 1.25);
  CHECK(json["kernels"][0]["tflops"] == doctest::Approx(107.48).epsilon(0.001));
  CHECK(json["kernels"][0]["chosen"] == true);
  CHECK(json["kernels"][2]["repeats"] == false);
  CHECK(json["kernels"][3]["why_not"] == "attention of another kind");
  CHECK(!json["kernels"][3].contains("ms"));
}

TEST_CASE(
    "attention contest: what a run chooses is the rule's, or is faster by enough and needs no more scratch") {
  AttentionContest contest = {.shape = AskedOf("length=8,heads=1,head=64"), .backward = true, .kernels = {}};
  const auto chosen = [&](double own_ms, double cudnn_ms, std::int64_t cudnn_bytes) {
    contest.kernels = {
        {.name = "own", .why_not = {}, .milliseconds = own_ms, .scratch_bytes = 10},
        {.name = "reference", .why_not = {}, .milliseconds = 0.1},
        {.name = "cuDNN", .why_not = {}, .milliseconds = cudnn_ms, .scratch_bytes = cudnn_bytes}};
    MarkChosen(&contest, 0, {0, 2}, &ContestedKernels::chosen);
    std::string names;
    for (const ContestedKernels& kernels : contest.kernels) names += kernels.chosen ? kernels.name : "";
    return names;
  };
  CHECK(chosen(1, 0.9, 10) == "cuDNN");
  CHECK(chosen(1, 0.9, 11) == "own");
  CHECK(chosen(1, 0.99, 10) == "own");
  CHECK(chosen(1, 0, 0) == "own");
}

TEST_CASE("attention contest: the program says what is wrong with a SHAPE, and that there is no GPU") {
  const ProgramResult wrong =
      RunProgram("doctor --attention length=8,heads=1,head=64 length=8,heads=x,head=64");
  CHECK(wrong.exit_code == 2);
  CHECK(wrong.output ==
        "engine doctor: --attention 'length=8,heads=x,head=64': heads must be a number from 1 to 16777216, "
        "found 'x'\n");
  const ProgramResult none =
      RunProgram("doctor --attention length=8,heads=1,head=64", "CUDA_VISIBLE_DEVICES=");
  CHECK(none.exit_code == 3);
  CHECK(Contains(none.output, "engine doctor: "));
  const ProgramResult alone = RunProgram("doctor --reference");
  CHECK(alone.exit_code != 0);
  CHECK(Contains(alone.output, "--attention"));
}

}  // namespace engine::cli
