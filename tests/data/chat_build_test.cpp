#include "engine/data/chat_build.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/data/indexed_format.h"
#include "engine/data/input_parts.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

// Every turn is "<role>content;", without and with generation blocks.
constexpr const char* kByTurns =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}{% if add_generation_prompt "
    "%}<assistant>{% endif %}";
constexpr const char* kMarked =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% "
    "endgeneration %}{% else %}"
    "{{ m.content }}{% endif %};{% endfor %}";

struct Chats {
  TempDir dir{MemoryFolder()};
  ChatBuildOptions options;
  std::unique_ptr<Tokenizer> tokenizer = *MakeTokenizer({});

  explicit Chats(const std::string& lines) {
    WriteFile(dir / "in.jsonl", lines);
    options.inputs = {dir / "in.jsonl"};
    options.output_prefix = dir / "out";
  }
  absl::StatusOr<ChatBuildResult> Build(const std::string& source) {
    WriteFile(dir / "t.jinja", source);
    ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Open(dir / "t.jinja", "", {}));
    return BuildConversations(options, chat, *tokenizer);
  }
  // Each conversation as text in which what is learned stands in [ ].
  std::vector<std::string> Learned() const {
    const IndexedDataset tokens = *IndexedDataset::Open(dir / "out");
    const IndexedDataset mask = *IndexedDataset::Open(LossMaskPrefix(dir / "out"));
    CHECK(mask.type() == TokenType::kU8);
    CHECK(std::equal(tokens.lengths().begin(), tokens.lengths().end(), mask.lengths().begin(),
                     mask.lengths().end()));
    std::vector<std::string> texts;
    for (std::int64_t i = 0; i < tokens.sequences(); ++i) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.lengths()[static_cast<std::size_t>(i)]));
      std::vector<std::int32_t> counts(ids.size());
      REQUIRE(tokens.Read(i, 0, ids).ok());
      REQUIRE(mask.Read(i, 0, counts).ok());
      std::string text;
      for (std::size_t k = 0; k < ids.size(); ++k) {
        if (counts[k] == 1 && (k == 0 || counts[k - 1] == 0)) text += '[';
        text += ids[k] == 256 ? std::string("EOD") : std::string(1, static_cast<char>(ids[k]));
        if (counts[k] == 1 && (k + 1 == ids.size() || counts[k + 1] == 0)) text += ']';
      }
      texts.push_back(text);
    }
    return texts;
  }
  std::string ErrorOf(const std::string& source) {
    const absl::StatusOr<ChatBuildResult> built = Build(source);
    REQUIRE(!built.ok());
    CHECK(dir.entries() == 2);  // nothing is written
    std::string message = Message(built.status());
    for (std::size_t at = 0; (at = message.find(dir.path() + "/")) != std::string::npos;)
      message.erase(at, dir.path().size() + 1);
    return message;
  }
};

using Texts = std::vector<std::string>;

constexpr const char* kThree =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
    "\"assistant\",\"content\":\"a\"},"
    "{\"role\":\"user\",\"content\":\"r\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n\n"
    "{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"gpt\",\"value\":\"a\"},{\"from\":"
    "\"observation\",\"value\":\"t\"}]}\n"
    "{\"instruction\":\"i\",\"input\":\"x\",\"output\":\"o\",\"system\":\"S\"}\n";

TEST_CASE("conversations in three layouts, learned by generation blocks and turn by turn") {
  Chats chats(kThree);
  REQUIRE(chats.Build(kMarked).ok());
  CHECK(chats.Learned() == Texts{"<system>S;<user>q;<assistant>[a];<user>r;<assistant>[b];",
                                 "<user>q;<assistant>[a];<tool>t;",
                                 "<system>S;<user>i\n\nx;<assistant>[o];"});
  const absl::StatusOr<ChatBuildResult> built = chats.Build(kByTurns);
  REQUIRE(built.ok());
  CHECK(chats.Learned() == Texts{"<system>S;<user>q;<assistant>[a;]<user>r;<assistant>[b;]",
                                 "<user>q;<assistant>[a;]<tool>t;",
                                 "<system>S;<user>i\n\nx;<assistant>[o;]"});
  CHECK(built->datasets[0].documents == 3);
  CHECK(built->learned == 8);
  CHECK(built->nothing_to_learn == 0);
  const auto manifest = nlohmann::json::parse(ReadFile(chats.dir / "out.json"));
  CHECK(manifest["loss_on"] == "assistant");
  CHECK(manifest["datasets"][0]["learned_tokens"] == 8);
  CHECK(built->inputs[0].bytes == static_cast<std::int64_t>(std::string(kThree).size()));
  CHECK(manifest["inputs"][0]["content"] == *FingerprintOfInput(chats.dir / "in.jsonl"));
  chats.options.loss_on = LossOn::kAll;
  chats.options.append_eod = true;
  REQUIRE(chats.Build(kMarked).ok());
  CHECK(chats.Learned()[1] == "[<user>q;<assistant>a;<tool>t;EOD]");
  chats.options.loss_on = LossOn::kAssistant;
  REQUIRE(chats.Build(kMarked).ok());
  CHECK(chats.Learned()[1] == "<user>q;<assistant>[a];<tool>t;EOD");
}

TEST_CASE("any number of workers and parts makes the same data set") {
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += kThree;
  Chats chats(lines);
  REQUIRE(chats.Build(kByTurns).ok());
  const std::string tokens = ReadFile(chats.dir / "out.bin");
  const std::string mask = ReadFile(chats.dir / "out_loss_mask.bin");
  chats.options.workers = 5;
  chats.options.part_bytes = 100;
  REQUIRE(chats.Build(kByTurns).ok());
  CHECK(ReadFile(chats.dir / "out.bin") == tokens);
  CHECK(ReadFile(chats.dir / "out_loss_mask.bin") == mask);
}

constexpr const char* kEverything =
    "{{ tools | tojson if tools is defined else '' }}{{ style }}{{ warmth }}{% for m in messages %}{{ m | "
    "tojson }};{% endfor %}{% if add_generation_prompt %}{% endif %}";

TEST_CASE("tables of other programs make the data sets that lines of JSON make, with any number of workers") {
  const std::string folder = ENGINE_SOURCE_DIR "/tests/data/chat/";
  Chats chats("");
  const auto made = [&](const std::vector<std::string>& inputs) {
    chats.options.inputs.clear();
    for (const std::string& input : inputs) chats.options.inputs.push_back(folder + input);
    const absl::StatusOr<ChatBuildResult> built = chats.Build(kEverything);
    REQUIRE_MESSAGE(built.ok(), Message(built.status()));
    std::string all = fmt::format("{} {}", built->learned, built->nothing_to_learn);
    for (const char* end : {".bin", ".idx", "_loss_mask.bin", "_loss_mask.idx"})
      all += " " + HashHex(ReadFile(chats.dir / "out" + end));
    return all;
  };
  const std::string wanted = made({"records.jsonl", "questions.jsonl", "records.jsonl"});
  chats.options.part_bytes = 2000;
  for (const int workers : {1, 4}) {
    chats.options.workers = workers;
    CHECK(made({"records_v1.parquet", "questions_hyparquet.parquet", "records_v2.parquet"}) == wanted);
    CHECK(made({"records_v1_plain.parquet", "questions.jsonl", "records_v1.parquet"}) == wanted);
  }
}

TEST_CASE("a row of a table that will not do is told, and so is a table without conversations") {
  const std::string folder = ENGINE_SOURCE_DIR "/tests/";
  Chats chats("");
  chats.options.inputs = {folder + "parquet/rust_v1_zstd.parquet"};
  CHECK(chats.ErrorOf(kByTurns).starts_with(folder +
                                            "parquet/rust_v1_zstd.parquet: error: has none of the columns "
                                            "\"messages\", \"conversations\", "));
  chats.options.inputs = {folder + "data/chat/records_v2.parquet"};
  CHECK(chats.ErrorOf("{% if messages[0].content[:2] == 'be' %}{{ raise_exception('no') }}{% endif %}x") ==
        folder + "data/chat/records_v2.parquet: error: row 1 (from 0): t.jinja:1:59: the template says: no");
}

TEST_CASE("conversations that stood before are counted or left out") {
  // Other members make no other text; another mask does, and so do two of these that stand in other parts.
  const std::string turns =
      "\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"}]}\n";
  const std::string same_text = "{\"messages\":[{\"role\":\"user\",\"content\":\"q;<assistant>a\"}]}\n";
  Chats chats("{\"id\":1," + turns + "{\"id\":2," + turns + same_text + "{" + turns + same_text);
  for (const std::size_t part_bytes : {1, 1000000}) {
    chats.options.part_bytes = part_bytes;
    chats.options.drop_duplicates = false;
    absl::StatusOr<ChatBuildResult> built = chats.Build(kByTurns);
    REQUIRE(built.ok());
    CHECK(built->inputs[0].documents == 5);
    CHECK(built->inputs[0].duplicates == 3);
    CHECK(built->datasets[0].documents == 5);
    CHECK(built->learned == 6);
    CHECK(built->nothing_to_learn == 2);
    chats.options.drop_duplicates = true;
    built = chats.Build(kByTurns);
    REQUIRE(built.ok());
    CHECK(built->inputs[0].duplicates == 3);
    CHECK(built->learned == 2);
    CHECK(built->nothing_to_learn == 1);
    CHECK(chats.Learned() == Texts{"<user>q;<assistant>[a;]", "<user>q;<assistant>a;"});
    const auto manifest = nlohmann::json::parse(ReadFile(chats.dir / "out.json"));
    CHECK(manifest["inputs"][0]["duplicates"] == 3);
    CHECK(manifest["datasets"].size() == 1);
    CHECK(manifest["datasets"][0]["documents"] == 2);
  }
}

TEST_CASE(
    "a conversation begins with the tokenizer's token for that, once, and learns it where all is learned") {
  Chats chats("{\"prompt\":\"q\",\"answer\":\"a b\"}\n");
  chats.options.tokenizer = {.kind = "file",
                             .path = ENGINE_SOURCE_DIR "/tests/tokenizer/sentencepiece/bpe.model"};
  chats.tokenizer = *MakeTokenizer(chats.options.tokenizer);
  chats.options.prepend_bos = true;
  std::size_t length = 0;
  const auto first_two = [&](const std::string& source) {
    REQUIRE(chats.Build(source).ok());
    const IndexedDataset tokens = *IndexedDataset::Open(chats.dir / "out");
    length = static_cast<std::size_t>(tokens.lengths()[0]);
    std::vector<std::int32_t> ids(2);
    std::vector<std::int32_t> counts(2);
    REQUIRE(tokens.Read(0, 0, ids).ok());
    REQUIRE(IndexedDataset::Open(LossMaskPrefix(chats.dir / "out"))->Read(0, 0, counts).ok());
    return fmt::format("{} {}, {} {}", ids[0], ids[1] == 1, counts[0], counts[1]);
  };
  const std::string marked = "{% generation %}{{ messages[1].content }}{% endgeneration %}";
  CHECK(first_two(marked) == "1 false, 0 1");
  const std::size_t with = length;
  CHECK(first_two("<s>" + marked) == "1 false, 0 1");  // the template has written it
  chats.options.loss_on = LossOn::kAll;
  CHECK(first_two(marked) == "1 false, 1 1");
  chats.options.prepend_bos = false;
  CHECK(first_two(marked).substr(0, 1) != "1");
  CHECK(length + 1 == with);
}

TEST_CASE("conversations of a compressed file are read") {
  Chats chats("");
  // The last line of kThree, by gzip -9n.
  const std::string path = chats.dir / "in.jsonl";
  WriteFile(path, ReadFile(ENGINE_SOURCE_DIR "/tests/data/chat/instruction.jsonl.gz"));
  const absl::StatusOr<ChatBuildResult> built = chats.Build(kByTurns);
  REQUIRE(built.ok());
  CHECK(built->inputs[0].bytes == static_cast<std::int64_t>(ReadFile(path).size()));
  CHECK(built->inputs[0].fingerprint == *FingerprintOfInput(path));
}

TEST_CASE("keys by other names; members of turns stay what they are; variables of a record") {
  Chats chats(
      "{\"chat\":[{\"who\":\"user\",\"said\":\"q\"},{\"who\":\"assistant\",\"said\":null,\"tool_calls\":[{"
      "\"b\":1,\"a\":[1.5,true,null]}]}],"
      "\"tools\":[{\"name\":\"f\"}],\"chat_template_kwargs\":{\"x\":\"y\"}}\n");
  CHECK(SetKey("messages", "chat", &chats.options.keys));
  CHECK(SetKey("role", "who", &chats.options.keys));
  CHECK(SetKey("content", "said", &chats.options.keys));
  CHECK(!SetKey("contents", "said", &chats.options.keys));
  const std::string source = "{{ tools | tojson }}{{ x }}{% for m in messages %}{{ m | tojson }}{% endfor %}";
  chats.options.loss_on = LossOn::kAll;
  REQUIRE(chats.Build(source).ok());
  CHECK(chats.Learned() == Texts{"[[{\"name\": \"f\"}]y{\"role\": \"user\", \"content\": \"q\"}{\"role\": "
                                 "\"assistant\", \"content\": null, "
                                 "\"tool_calls\": [{\"b\": 1, \"a\": [1.5, true, null]}]}]"});
}

TEST_CASE("a record that will not do is told with its file and line") {
  const auto error = [](const std::string& line, const std::string& source = kByTurns) {
    return Chats("{\"prompt\":\"a\",\"answer\":\"b\"}\n" + line + "\n").ErrorOf(source);
  };
  CHECK(error("[1]") == "in.jsonl:2: error: is a list, and must be an object");
  CHECK(error("{\"text\":\"x\"}") ==
        "in.jsonl:2: error: has neither turns (\"messages\" or \"conversations\") nor an instruction "
        "(\"instruction\" or \"prompt\" or \"query\" or "
        "\"question\") with an output (\"output\" or \"response\" or \"completion\" or \"answer\")");
  CHECK(error("{\"messages\":[]}") == "in.jsonl:2: error: \"messages\" is empty");
  CHECK(error("{\"messages\":{}}") == "in.jsonl:2: error: \"messages\" is a dict, and must be a list");
  CHECK(error("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"content\":\"y\"}]}") ==
        "in.jsonl:2: error: messages[1] has no key \"role\" or \"from\"");
  CHECK(error("{\"messages\":[{\"role\":\"user\"}]}") ==
        "in.jsonl:2: error: messages[0] has no key \"content\" or \"value\"");
  CHECK(
      error("{\"messages\":[{\"role\":\"user\",\"content\":5}]}") ==
      "in.jsonl:2: error: messages[0] the content is a int, and must be a string, a list of parts, or null");
  CHECK(
      error("{\"conversations\":[{\"from\":\"alien\",\"value\":\"x\"}]}")
          .starts_with(
              "in.jsonl:2: error: conversations[0] \"from\" is \"alien\", and must be human or user; gpt, "));
  CHECK(error("{\"messages\":[").starts_with("in.jsonl:2:14: error: "));
  CHECK(error("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"id\":99999999999999999999}")
            .starts_with("in.jsonl:2"));
  CHECK(error("{\"prompt\":\"x\",\"output\":\"y\"}",
              "\n{{ raise_exception('no') if messages[0].content == 'x' }}") ==
        "in.jsonl:2: error: t.jinja:2:19: the template says: no");
  CHECK(error("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "{{ messages[1].content }}")
            .starts_with("in.jsonl:1: error: t.jinja:1:15: "));
  CHECK(Chats("\n \n").ErrorOf(kByTurns) == "no documents in 1 files, the first of which is in.jsonl");
}

TEST_CASE("a template that looks ahead needs generation blocks for the assistant's turns") {
  const std::string source =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if loop.last %}!{% endif %}{% endfor %}{% if "
      "add_generation_prompt %}<assistant>{% endif %}";
  Chats chats(kThree);
  CHECK(chats.ErrorOf(source) ==
        "in.jsonl:1: error: which text is the assistant's in turn 2 cannot be told: the turns before it, and "
        "the beginning of an answer, are not how "
        "the text begins that goes on with it; t.jinja has to mark it by {% generation %} and {% "
        "endgeneration %}, or --loss-on all takes everything");
  chats.options.loss_on = LossOn::kAll;
  CHECK(chats.Build(source).ok());
}

TEST_CASE("conversations without the assistant are counted") {
  Chats chats("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}\n");
  const absl::StatusOr<ChatBuildResult> built = chats.Build(kByTurns);
  REQUIRE(built.ok());
  CHECK(built->learned == 0);
  CHECK(built->nothing_to_learn == 1);
  CHECK(chats.Learned() == Texts{"<user>x;"});
}

TEST_CASE("the tokenizer's own templates, by their names and files, with its special tokens") {
  const TempDir dir;
  const Conversation conversation{.messages = {}, .variables = {}};
  const auto rendered = [&](const std::string& which) {
    const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Open(which, dir.path(), {});
    return chat.ok() ? chat->Render(conversation, LossOn::kAll)->text : Message(chat.status());
  };
  CHECK(rendered("").find("the tokenizer has no chat template, neither chat_template.jinja nor one in "
                          "tokenizer_config.json") != std::string::npos);
  WriteFile(
      dir / "tokenizer_config.json",
      R"({"bos_token":"<s>","eos_token":{"content":"</s>","lstrip":false},"model_max_length":1000000000000000019884624838656,
                "chat_template":[{"name":"default","template":"{{ bos_token }}d{{ eos_token }}"},{"name":"tool_use","template":"t{{ nope }}"}]})");
  CHECK(rendered("") == "<s>d</s>");
  CHECK(rendered("tool_use") == "t");
  CHECK(rendered("rag") ==
        "the tokenizer has no chat template \"rag\", and there is no such file; there are default, tool_use");
  WriteFile(dir / "chat_template.jinja", "file {{ bos_token }}\n");
  CHECK(rendered("") == "file <s>");
  WriteFile(dir / "own.jinja", "own");
  CHECK(rendered(dir / "own.jinja") == "own");
  WriteFile(dir / "tokenizer_config.json", R"({"chat_template":5})");
  CHECK(rendered("x").find("tokenizer_config.json: error: chat_template is a number, and must be a string") !=
        std::string::npos);
}

// That none of them crashes, and each that is refused says where, is the test.
TEST_CASE("mutated conversations are refused, or built") {
  const std::string lines = kThree;
  std::mt19937 random(9);
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const TempDir dir(MemoryFolder());
  WriteFile(dir / "t.jinja", kByTurns);
  const ChatTemplate chat = *ChatTemplate::Open(dir / "t.jinja", "", {});
  const std::unique_ptr<Tokenizer> tokenizer = *MakeTokenizer({});
  ChatBuildOptions options;
  options.inputs = {dir / "in"};
  options.output_prefix = dir / "out";
  int built = 0;
  for (int i = 0; i < 500; ++i) {
    std::string mutated = lines;
    for (std::size_t k = 1 + below(3); k > 0; --k) {
      const std::size_t at = below(mutated.size());
      if (below(2) == 0) {
        mutated[at] = "{}[]\",:\\0n\n\xC3 "[below(13)];
      } else if (below(2) == 0) {
        mutated.erase(at, 1 + below(12));
      } else {
        mutated.insert(at, mutated.substr(below(mutated.size()), below(40)));
      }
    }
    WriteFile(dir / "in", mutated);
    const absl::StatusOr<ChatBuildResult> result = BuildConversations(options, chat, *tokenizer);
    built += result.ok() ? 1 : 0;
    CAPTURE(mutated);
    if (!result.ok()) CHECK(Message(result.status()).find(": error: ") != std::string::npos);
  }
  CHECK(built > 5);
  CHECK(built < 450);
}

}  // namespace
}  // namespace engine::data
