#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/tiny_run.h"

namespace engine::cli {

TEST_CASE("generate: from a run or one checkpoint, the same text for the same seed") {
  const TinyRun tiny;
  const ProgramResult trained = RunProgram("run " + tiny.recipe + " --out " + tiny.out +
                                           " --set parallelism.tp=2 --set training.iterations=30 --set "
                                           "checkpoint.interval=0");
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.output);
  const std::string prompt = " --prompt '9 bottles' --tokens 40 --temperature 1";
  const ProgramResult first = RunProgram("generate " + tiny.out + prompt);
  CHECK(first.exit_code == 0);
  CHECK(first.output.starts_with("9 bottles"));
  CHECK(first.output.ends_with("\n"));
  CHECK(first.output.size() > 12);
  // A prompt and its answer are longer than the model's 16 positions: older text falls out.
  CHECK(RunProgram("generate " + tiny.out + "/checkpoints/iteration_0000030" + prompt + " --threads 1")
            .output == first.output);
  CHECK(RunProgram("generate " + tiny.out + prompt + " --seed 2").output != first.output);
  const std::string greedy = " --prompt bottle --tokens 5 --temperature 0 --seed ";
  CHECK(RunProgram("generate " + tiny.out + greedy + "1").output ==
        RunProgram("generate " + tiny.out + greedy + "2").output);
  CHECK(RunProgram("generate " + tiny.out + " --tokens 3").exit_code == 0);  // without a prompt
  // On several ranks, which the run's own layout does not say.
  const std::string one = RunProgram("generate " + tiny.out + greedy + "1").output;
  CHECK(RunProgram("generate " + tiny.out + greedy + "1 --tp 2 --pp 2").output == one);
  CHECK(RunProgram("generate " + tiny.out + greedy + "1 --pp 2 --context 8").output == one);
  CHECK(RunProgram("generate " + tiny.out + greedy + "1 --dp 2 --tp 2").output == one);
  const ProgramResult dense = RunProgram("generate " + tiny.out + greedy + "1 --ep 2");
  CHECK(dense.exit_code == 1);
  CHECK(Contains(dense.output, "engine generate: --ep 2: ep 2 would split experts, and this model has none"));
  const ProgramResult odd = RunProgram("generate " + tiny.out + greedy + "1 --tp 3");
  CHECK(odd.exit_code == 1);
  CHECK(Contains(odd.output, "engine generate: --tp 3: "));
  CHECK(RunProgram("generate " + tiny.out + " --tp 0").exit_code == 2);
}

TEST_CASE("generate: a model that does not go token by token says so, and what fills its window") {
  const data::TempDir folder;
  data::WriteFile(folder / "experts.toml", R"([model]
dims = { D = 16, L = 1, H = 2, E = 8, F = 16, V = 64, X = 4 }
inputs = { tokens = "i32[B,S]", labels = "i32[B,S]", positions = "i32[B,S]" }
main = [
  { do = "embedding", as = "emb", of = "tokens", rows = "V", width = "D" },
  { do = "stack", as = "layers", repeat = "L", layer = ["att", "mlp as mlp"] },
  { do = "linear", as = "head", out = ["V"] },
  { do = "cross_entropy", as = "loss" },
]
[block.att]
steps = [
  { do = "linear", as = "qkv", of = "x", out = ["H", 3, "E"] },
  { do = "qkv_split", as = "split", to = ["q", "k", "v"] },
  { do = "attention", as = "core", of = ["q", "k", "v"] },
  { do = "linear", as = "proj", out = ["D"] },
  { do = "residual", as = "res", of = ["x", "proj"], to = "x" },
]
[block.mlp]
steps = [
  { do = "route", as = "router", of = "x", experts = "X", top_k = 1, normalize = false, to = ["choice", "weight"] },
  { do = "experts", as = "experts", of = ["x", "choice", "weight"], hidden = "F", capacity = 1.0 },
  { do = "residual", as = "res", of = ["x", "experts"], to = "x" },
]
[data]
source = "random"
sequence_length = 16
[optimizer]
learning_rate = 1e-2
[training]
global_batch = 2
micro_batch = 2
iterations = 1
)");
  const ProgramResult trained = RunProgram("run " + folder / "experts.toml" + " --out " + folder / "run");
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.output);
  const ProgramResult generated =
      RunProgram("generate " + folder / "run" + " --tokens-in '5 9' --tokens 2 --temperature 0");
  CHECK(generated.exit_code == 0);
  CHECK(Contains(
      generated.output,
      "note: layers.0.mlp.experts.drop (drop) mixes the tokens of a sequence, as generation, token by token, "
      "cannot: each new token takes a pass over all 16 tokens of the context, where those that are not there "
      "yet are token 0, and count in steps that mix tokens otherwise than by causal attention\n"));
}

TEST_CASE("generate: what is refused, and how") {
  const data::TempDir folder;
  const ProgramResult none = RunProgram("generate " + folder.path());
  CHECK(none.exit_code == 1);
  CHECK(none.output == "engine generate: " + folder.path() + " holds no checkpoint\n");
  CHECK(RunProgram("generate " + folder / "x").output ==
        "engine generate: there is no " + folder / "x" + "\n");
  data::WriteFile(folder / "a.toml", "");
  CHECK(RunProgram("generate " + folder / "a.toml").output ==
        "engine generate: " + folder / "a.toml" +
            " is a file, a recipe; the folder of a run, of a checkpoint or of a Hugging Face model is "
            "wanted\n");
  CHECK(RunProgram("generate " + folder.path() + " --temperature nan").exit_code == 2);
  CHECK(RunProgram("generate " + folder.path() + " --seed -1").exit_code == 2);
  data::WriteFile(folder / "manifest.json", "{");
  const ProgramResult damaged = RunProgram("generate " + folder.path());
  CHECK(damaged.exit_code == 1);
  CHECK(damaged.output.starts_with("engine generate: "));
  std::filesystem::create_directories(folder / "run/checkpoints/iteration_0000004");
  data::WriteFile(folder / "run/checkpoints/iteration_0000004/manifest.json", "{");
  const ProgramResult all_damaged = RunProgram("generate " + folder / "run");
  CHECK(all_damaged.exit_code == 1);
  CHECK_MESSAGE(
      all_damaged.output.ends_with("engine generate: " + folder / "run" + " holds no whole checkpoint\n"),
      all_damaged.output);
  CHECK(RunProgram("generate").exit_code == 2);
  CHECK(RunProgram("generate " + folder.path() + " --temperature -1").exit_code == 2);
  CHECK(RunProgram("generate " + folder.path() + " --tokens 0").exit_code == 2);
}

TEST_CASE("generate: adapters beside weights that were drawn are said, as the text has no sense") {
  const TinyRun tiny;
  const std::string run = "run " + tiny.recipe + " --quiet --set lora.rank=2";
  const std::string note = "were trained beside weights that were drawn at random\n";
  const ProgramResult drawn = RunProgram(run + " --out " + tiny.out);
  REQUIRE_MESSAGE(drawn.exit_code == 0, drawn.output);
  CHECK(
      Contains(drawn.output, "note: adapters of [lora] are trained beside weights that are drawn at random"));
  const std::string asks = " --prompt x --tokens 2";
  CHECK(Contains(RunProgram("generate " + tiny.out + asks).output, note));
  const std::string loaded = tiny.folder / "loaded";
  const ProgramResult beside =
      RunProgram(run + " --out " + loaded + " --set training.weights_from=" + tiny.out);
  REQUIRE_MESSAGE(beside.exit_code == 0, beside.output);
  CHECK_FALSE(Contains(beside.output, "drawn at random"));
  CHECK_FALSE(Contains(RunProgram("generate " + loaded + asks).output, note));
}

TEST_CASE("generate: an error behind a prompt that is printed begins a line") {
  const TinyRun tiny;
  const ProgramResult trained =
      RunProgram("run " + tiny.recipe + " --out " + tiny.out +
                 " --set debug.faults=true --fault rank=0,iteration=8,at=update,kind=nan:final_norm.weight");
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.output);
  const ProgramResult failed = RunProgram("generate " + tiny.out + " --prompt 'bottle' --tokens 3");
  CHECK(failed.exit_code == 1);
  CHECK_MESSAGE(failed.output.ends_with("bottle\nengine generate: the model gave a logit that is nan\n"),
                failed.output);
  const ProgramResult json = RunProgram("generate " + tiny.out + " --prompt 'bottle' --tokens 3 --json");
  CHECK_MESSAGE(json.output.find("\n\n") == std::string::npos, json.output);
  CHECK(!json.output.starts_with("\n"));
}

TEST_CASE("generate: token ids in and out, of a run whose tokenizer's files are elsewhere") {
  const data::TempDir folder;
  const std::string gpt2 = std::string(ENGINE_SOURCE_DIR) + "/tests/tokenizer/gpt2/";
  const std::string recipe = std::string(ENGINE_SOURCE_DIR) + "/recipes/quickstart.toml";
  const std::string out = folder / "run";
  std::string train = "run " + recipe + " --out " + out;
  for (const char* set :
       {"data.source=random", "data.tokenizer.kind=gpt2", "data.tokenizer.vocab_file=/none/v",
        "data.tokenizer.merges_file=/none/m", "data.sequence_length=16", "parallelism.dp=1",
        "parallelism.tp=1", "model.vocab=300", "model.layers=1", "schedule.warmup_iterations=0",
        "training.global_batch=2", "training.iterations=1", "evaluation.interval=0"}) {
    train += std::string(" --set ") + set;
  }
  const ProgramResult trained = RunProgram(train);
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.output);
  CHECK(Contains(trained.output, "note: data.source \"random\" does not use data.paths, data.split, "));
  const std::string generate = "generate " + out + " --tokens 3 --temperature 0";

  const ProgramResult ids = RunProgram(generate + " --tokens-in '5 299' --tokens-out");
  REQUIRE_MESSAGE(ids.exit_code == 0, ids.output);
  std::istringstream words(ids.output);
  std::vector<int> numbers;
  for (int id = 0; words >> id;) numbers.push_back(id);
  REQUIRE(numbers.size() == 5);
  CHECK(numbers[0] == 5);
  CHECK(numbers[1] == 299);
  for (const int id : numbers) CHECK((id >= 0 && id < 300));
  CHECK(ids.output.find_first_not_of("0123456789 \n") == std::string::npos);
  data::WriteFile(folder / "ids.json", "[5,\n 299]\n");
  CHECK(RunProgram(generate + " --tokens-in " + folder / "ids.json" + " --tokens-out").output == ids.output);
  CHECK(RunProgram(generate + " --tokens-out --tokens-in - < " + folder / "ids.json").output == ids.output);
  const ProgramResult ended =
      RunProgram(generate + " --tokens-in '5 299' --tokens-out --end-token " + std::to_string(numbers[2]));
  CHECK(ended.output == "5 299\n");

  // Logits of each token of the prompt, in NumPy's form; the last row's largest is the token that comes next.
  const std::string npy = folder / "logits.npy";
  const ProgramResult silent = RunProgram("generate " + out + " --tokens-in '5 299' --logits " + npy);
  CHECK(silent.exit_code == 0);
  CHECK(silent.output.empty());
  const std::string array = data::ReadFile(npy);
  REQUIRE(array.size() == 128 + 2 * 300 * sizeof(float));
  CHECK(array.starts_with(std::string("\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', ", 27)));
  CHECK(Contains(array, "'shape': (2, 300), }"));
  CHECK(array[127] == '\n');
  std::vector<float> last(300);
  std::memcpy(last.data(), array.data() + 128 + 300 * sizeof(float), 300 * sizeof(float));
  CHECK(std::max_element(last.begin(), last.end()) - last.begin() == numbers[2]);

  const ProgramResult longer =
      RunProgram(generate + " --tokens-in '1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8' --tokens-out");
  CHECK(longer.exit_code == 0);
  CHECK_MESSAGE(
      Contains(longer.output, "note: the prompt has 17 tokens, of which the model sees the last 16\n"),
      longer.output);

  const auto refused = [&](const std::string& arguments, int exit_code, const std::string& part) {
    const ProgramResult result = RunProgram(generate + arguments);
    INFO(arguments << ": " << result.output);
    CHECK(result.exit_code == exit_code);
    CHECK(Contains(result.output, part));
  };
  refused(" --prompt x", 1,
          "/none/v: No such file or directory\n    hint: --vocab and --merges say where the tokenizer's "
          "files are");
  refused(" --tokens-in 5", 1, "hint: --vocab and --merges");
  refused(" --prompt x --tokens-out", 1, "hint: --vocab and --merges");
  refused(" --tokens-in '5 300' --tokens-out", 1,
          "--tokens-in:1:3: error: id 300 is outside of the model's vocabulary, 0 to 299\n");
  data::WriteFile(folder / "ids.json", "[5,\n 300]\n");
  refused(" --tokens-out --tokens-in " + folder / "ids.json", 1,
          folder / "ids.json" + ":2:2: error: id 300 is");
  refused(" --tokens-out --tokens-in ''", 1, "--tokens-in: there is no id");
  refused(" --tokens-out --tokens-in 5 --stop 1", 1,
          "--stop is of text, and what is asked for is token ids alone");
  refused(" --tokens-out --tokens-in 5 --end-token 300", 1,
          "--end-token 300 is no token id: there are 0 to 299");
  refused(" --tokens-out --tokens-in none.txt", 1, "--tokens-in: cannot open none.txt: No such file");
  refused(" --tokens-out --tokens-in 84x", 1,
          "--tokens-in: cannot open 84x: No such file or directory; where it is to be token ids and no file, "
          "they are whole numbers with blanks between them, or a JSON list\n");
  refused(" --tokens-out --tokens-in '84 x'", 1, "--tokens-in:1:4: error: 'x' is no token id\n");
  refused(" --tokens-out --tokens-in '84 -1'", 1, "--tokens-in:1:4: error: id -1 is outside");
  data::WriteFile(folder / "ids.jsonl", "[5]\n[6, 300]\n");
  refused(" --tokens-out --prompts " + folder / "ids.jsonl", 1,
          folder / "ids.jsonl" + ": prompt 2: token ids:1:3: error: id 300 is");
  data::WriteFile(folder / "prompts.gz", "\x1F\x8B\x08");
  refused(" --tokens-out --prompts " + folder / "prompts.gz", 1, "prompts.gz: it is compressed");
  refused(" --tokens-out --prompts - < " + folder / "prompts.gz", 1, "standard input: it is compressed");
  refused(" --prompt x --chat-template none.jinja", 1, "--chat-template is of conversations");
  refused(" --tokens-in 5 --tokens-out --seed 18446744073709551616", 2,
          "is no whole number from 0 to 18446744073709551615");
  refused(" --tokens-out --tokens-in " + folder.path(), 1, "cannot read: Is a directory");
  refused(" --tokens-in 5 --prompt x", 2, "--tokens-in");
  refused(" --tokens-in 5 --logits " + npy, 2, "--tokens excludes --logits");
  const auto refused_of_logits = [&](const std::string& arguments, int exit_code, const std::string& part) {
    const ProgramResult result = RunProgram("generate " + out + arguments);
    INFO(arguments << ": " << result.output);
    CHECK(result.exit_code == exit_code);
    CHECK(Contains(result.output, part));
  };
  refused_of_logits(" --tokens-in '1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8' --logits " + npy, 1,
                    "the prompt has 17 tokens, but the model's window is 16 (data.sequence_length)");
  refused_of_logits(" --tokens-in 5 --logits " + npy + " --tokens-out", 2, "--tokens-out excludes --logits");
  refused_of_logits(" --tokens-in 5 --logits " + npy + " --stop x", 2, "--stop excludes --logits");
  refused_of_logits(" --tokens-in 5 --logits /none/x.npy", 1, "cannot open /none/x.npy: No such file");
  refused_of_logits(" --tokens-in 5 --logits -", 2, "- is no file, and logits are written to one");
  refused(" --prompt x --vocab v", 2, "--merges");
}

TEST_CASE("generate: tokens that end an answer, which files beside the tokenizer name") {
  const data::TempDir folder;
  // The words w0 to w298, and the end of a document.
  std::string words;
  for (int w = 0; w < 299; ++w) words += (w == 0 ? "" : ", ") + fmt::format(R"("w{}": {})", w, w);
  data::WriteFile(folder / "tokenizer.json", R"({"added_tokens": [{"id": 299, "content": "<|endoftext|>",
      "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "unk_token": "w0", "vocab": {)" +
                                                 words + "}}}");
  const std::string recipe = std::string(ENGINE_SOURCE_DIR) + "/recipes/quickstart.toml";
  const std::string file = folder / "tokenizer.json";
  const auto train = [&](const std::string& out, const std::string& path) {
    std::string command = "run " + recipe + " --out " + out + " --set data.tokenizer.path=" + path;
    for (const char* set :
         {"data.source=random", "data.tokenizer.kind=file", "data.sequence_length=16", "parallelism.dp=1",
          "parallelism.tp=1", "model.vocab=300", "model.layers=1", "schedule.warmup_iterations=0",
          "training.global_batch=2", "training.iterations=1", "evaluation.interval=0"}) {
      command += std::string(" --set ") + set;
    }
    const ProgramResult trained = RunProgram(command);
    REQUIRE_MESSAGE(trained.exit_code == 0, trained.output);
  };
  const std::string by_file = folder / "by_file", by_folder = folder / "by_folder";
  train(by_file, file);
  train(by_folder, folder.path());
  data::WriteFile(folder / "chat.jinja", "{{ messages[0].content }}");
  const std::string shared = " --tokens 3 --temperature 0 --tokens-out";
  const std::string chat = shared + " --message w5 --chat-template " + folder / "chat.jinja";
  const std::string text = shared + " --prompt w5";
  const auto output = [](const std::string& run, const std::string& options) {
    const ProgramResult result = RunProgram("generate " + run + options);
    INFO(result.output);
    CHECK(result.exit_code == 0);
    return result.output;
  };

  const std::string whole = output(by_file, text);
  std::istringstream numbers(whole);
  std::vector<int> ids;
  for (int id = 0; numbers >> id;) ids.push_back(id);
  REQUIRE(ids.size() == 4);
  REQUIRE(ids[1] != 299);
  CHECK(output(by_folder, text) == whole);
  CHECK(output(by_file, chat) == whole);
  // The end of a turn ends what answers a conversation.
  data::WriteFile(folder / "tokenizer_config.json", fmt::format(R"({{"eos_token": "w{}"}})", ids[1]));
  CHECK(output(by_file, text) == whole);
  CHECK(output(by_file, chat) == "5\n");
  CHECK(output(by_folder, chat) == "5\n");
  // A generation_config.json says what ends an answer, beside a tokenizer's file as in its folder.
  data::WriteFile(folder / "generation_config.json", R"({"eos_token_id": 299})");
  CHECK(output(by_file, chat) == whole);
  CHECK(output(by_folder, chat) == whole);
  data::WriteFile(folder / "generation_config.json", fmt::format(R"({{"eos_token_id": [299, {}]}})", ids[1]));
  CHECK(output(by_file, text) == "5\n");
  CHECK(output(by_folder, text) == "5\n");
}

TEST_CASE("generate: the files of another tokenizer are refused") {
  const TinyRun tiny;
  REQUIRE(
      RunProgram("run " + tiny.recipe + " --out " + tiny.out + " --set training.iterations=1").exit_code ==
      0);
  const ProgramResult result = RunProgram("generate " + tiny.out + " --prompt x --vocab v --merges m");
  CHECK(result.exit_code == 1);
  CHECK(Contains(result.output,
                 "--vocab and --merges are files of the gpt2 tokenizer, but the run's is \"byte\""));
  // The tokenizer's own end of a document ends a text of ids, where it is asked for text.
  const ProgramResult text = RunProgram("generate " + tiny.out + " --tokens 5 --tokens-in '57 32'");
  CHECK(text.exit_code == 0);
  CHECK(text.output.starts_with("9 "));
}

TEST_CASE("generate: several prompts, stop strings, conversations, and a Hugging Face folder") {
  const TinyRun tiny;
  const ProgramResult trained = RunProgram("run " + tiny.recipe + " --out " + tiny.out +
                                           " --set training.iterations=30 --set model.mlp.bias=true");
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.output);
  const std::string generate = "generate " + tiny.out + " --tokens 8 ";
  const std::string alone = RunProgram(generate + "--prompt '9 b' --seed 3").output;
  data::WriteFile(tiny.folder / "prompts.txt", "9 b\n\n25 b\n");
  const ProgramResult lines = RunProgram(generate + "--seed 3 --prompts " + tiny.folder / "prompts.txt");
  CHECK(lines.output.starts_with(alone));  // the first prompt's draws are those that it has alone
  CHECK(Contains(lines.output.substr(alone.size()), "25 b"));
  CHECK(RunProgram(generate + "--seed 3 --prompt '9 b' --prompt '25 b'").output == lines.output);
  data::WriteFile(tiny.folder / "windows.txt",
                  "\xEF\xBB\xBF"
                  "9 b\r\n\r\n25 b\r\n");
  CHECK(RunProgram(generate + "--seed 3 --prompts " + tiny.folder / "windows.txt").output == lines.output);

  const std::string answer = alone.substr(3, alone.size() - 4);
  const std::string stop = answer.substr(4, 2);
  CHECK(RunProgram(generate + "--prompt '9 b' --seed 3 --stop '" + stop + "'").output ==
        "9 b" + answer.substr(0, answer.find(stop)) + "\n");

  data::WriteFile(tiny.folder / "prompts.jsonl", "\"9 b\"\n[57, 32]\n{\"prompt\": \"x\"}\n");
  const ProgramResult json =
      RunProgram(generate + "--json --logprobs 2 --prompts " + tiny.folder / "prompts.jsonl");
  CHECK(json.exit_code == 0);
  CHECK(std::count(json.output.begin(), json.output.end(), '\n') == 3);
  CHECK(json.output.starts_with(R"({"prompt":"9 b","prompt_tokens":[57,32,98],"text":")"));
  CHECK(Contains(json.output, R"("finish_reason":"length"})"));
  data::WriteFile(tiny.folder / "windows.jsonl",
                  "\xEF\xBB\xBF"
                  "\"9 b\"\r\n[57, 32]\r\n{\"prompt\": \"x\"}\r\n");
  CHECK(RunProgram(generate + "--json --logprobs 2 --prompts " + tiny.folder / "windows.jsonl").output ==
        json.output);
  data::WriteFile(tiny.folder / "prompts.jsonl", "\"9 b\"\n{\"text\": 1}\n");
  CHECK(Contains(RunProgram(generate + "--prompts " + tiny.folder / "prompts.jsonl").output,
                 "prompts.jsonl:2: error: the object has no key prompt"));

  CHECK(Contains(RunProgram(generate + "--message hi").output, "--chat-template names a file"));
  data::WriteFile(tiny.folder / "chat.jinja",
                  "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}");
  CHECK(Contains(
      RunProgram(generate + "--message hi --json --chat-template " + tiny.folder / "chat.jinja").output,
      R"("prompt_tokens":[117,115,101,114,58,32,104,105],)"));

  const std::string model = tiny.folder / "model";
  const ProgramResult exported = RunProgram("export hf " + tiny.out + " --dtype fp32 --out " + model);
  REQUIRE_MESSAGE(exported.exit_code == 0, exported.output);
  const std::string ids = " --tokens-in '57 32' --tokens-out --tokens 20";
  CHECK(RunProgram("generate " + model + ids).output == RunProgram("generate " + tiny.out + ids).output);
  CHECK(Contains(RunProgram("generate " + model + ids + " --context 17").output,
                 "--context 17: embedding.positions: 16 positions are fewer than the 17 of a sequence"));
}

TEST_CASE("generate: a run of packed documents in another layout, and a model that sees later tokens") {
  const TinyRun tiny;
  const std::string run = "run " + tiny.recipe + " --out " + tiny.out + " --set training.iterations=1";
  const ProgramResult packed = RunProgram(
      run + " --set data.tokenizer.kind=byte --set data.documents=masked --set data.packing=best_fit");
  REQUIRE_MESSAGE(packed.exit_code == 0, packed.output);
  const ProgramResult split =
      RunProgram("generate " + tiny.out + " --tokens-in 5 --tokens-out --tokens 2 --tp 2");
  CHECK_MESSAGE(split.exit_code == 0, split.output);

  const ProgramResult steps = RunProgram("resolve --expand " + tiny.recipe);
  REQUIRE_MESSAGE(steps.exit_code == 0, steps.output);
  const std::string rest = data::ReadFile(tiny.recipe);
  data::WriteFile(tiny.folder / "steps.toml", steps.output + rest.substr(rest.find("[data]")));
  const std::string both_ways = tiny.folder / "both_ways.toml";
  data::WriteFile(both_ways,
                  "extends = \"steps.toml\"\n[block.attention]\nsteps.core = { mask = \"none\" }\n");
  const ProgramResult trained =
      RunProgram("run " + both_ways + " --out " + tiny.folder / "both --set training.iterations=1");
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.output);
  const ProgramResult refused =
      RunProgram("generate " + tiny.folder / "both" + " --tokens-in 5 --tokens-out --tokens 2");
  CHECK(refused.exit_code == 1);
  CHECK_MESSAGE(Contains(refused.output, "sees later tokens too"), refused.output);
}

}  // namespace engine::cli
