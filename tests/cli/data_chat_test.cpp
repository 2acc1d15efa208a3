#include <doctest/doctest.h>

#include <filesystem>

#include "tests/cli/run_binary.h"
#include "tests/data/temp_dir.h"

namespace engine::cli {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% "
    "endgeneration %}{% else %}"
    "{{ m.content }}{% endif %}{{ '\\n' }}{% endfor %}{{ strftime_now('%d %b %Y') }}";

}  // namespace

TEST_CASE("data build --format chat, and data show of what it has made") {
  const data::TempDir dir;
  data::WriteFile(
      dir / "in.jsonl",
      "{\"turns\":[{\"role\":\"user\",\"content\":\"2+2?\"},{\"role\":\"assistant\",\"content\":\"4.\"}]}\n");
  data::WriteFile(dir / "t.jinja", kTemplate);
  const std::string build = "data build --format chat --input " + dir / "in.jsonl" + " --output-prefix " +
                            dir / "out" + " --chat-template " + dir / "t.jinja" + " --chat-time 2024-07-26";
  const ProgramResult built = RunProgram(build + " --chat-key messages=turns --append-eod");
  CHECK(built.exit_code == 0);
  CHECK(built.output == "1 conversations, 37 tokens (uint16), 2 of them learned, from 81 B in 1 files, by " +
                            dir / "t.jinja" + "\n" + dir / "out" + "\n" + dir / "out_loss_mask" + "\n");
  const ProgramResult shown = RunProgram("data show " + dir / "out" + " --tokenizer byte");
  CHECK(shown.output == dir / "out" +
                            ", sequence 0 of 1: 37 tokens, 2 of them learned (5.4 %), shown as ⟦…⟧\n"
                            "<user>2+2?⏎\n<assistant>⟦4.⟧⏎\n26 Jul 2024<end of document>\n");
  const ProgramResult coloured = RunProgram("data show " + dir / "out" + " --tokenizer byte --color always");
  CHECK(Contains(coloured.output, "\033[32m4.\033[0m"));
  CHECK(Contains(RunProgram("data show " + dir / "out").output, "62⟦ 52 46⟧ 10 "));
  CHECK(RunProgram("data show " + dir / "out" + " --sample 1").output ==
        "error: " + dir / "out" + " has 1 sequences; --sample goes from 0 to 0\n");
  CHECK(RunProgram(build + " --chat-key turns=turns").exit_code == 1);
  CHECK(
      Contains(RunProgram(build + " --json-key text2").output, "error: --json-key is not for --format chat"));
  CHECK(Contains(RunProgram(build + " --document-separator x").output, "error: --document-separator is for"));
  CHECK(Contains(
      RunProgram("data build --format chat --input x --output-prefix y --chat-time 2024-02-30").output,
      "error: --chat-time \"2024-02-30\" is no time"));
  CHECK(Contains(RunProgram("data build --input x --output-prefix y --loss-on all").output,
                 "are for --format chat"));
}

TEST_CASE("data build --format chat: what stood before, and going on with --restart") {
  const data::TempDir dir;
  const std::string line = "{\"prompt\":\"2+2?\",\"answer\":\"4.\"}\n";
  data::WriteFile(dir / "a.jsonl", line + line);
  data::WriteFile(dir / "b.jsonl", "oops\n");
  const std::string build = "data build --format chat --chat-template " ENGINE_SOURCE_DIR
                            "/tests/data/chat/chatml.jinja --output-prefix " +
                            dir / "out" + " --input " + dir / "a.jsonl " + dir / "b.jsonl";
  const ProgramResult wrong = RunProgram(build);
  CHECK(wrong.exit_code == 1);
  CHECK(wrong.output.starts_with(dir / "b.jsonl" + ":1:1: error: "));
  CHECK(
      Contains(wrong.output, "note: what is done is kept in " + dir / "out.unfinished" +
                                 ": the same command goes on from there, and begins anew with --restart\n"));
  data::WriteFile(dir / "b.jsonl", line);
  const ProgramResult other = RunProgram(build + " --drop-duplicates");
  CHECK(other.exit_code == 1);
  CHECK(Contains(other.output, "which differs in: drop-duplicates."));
  const ProgramResult built = RunProgram(build);
  CHECK(built.exit_code == 0);
  CHECK(built.output.starts_with("2 documents had been read before\n3 conversations, "));
  CHECK(Contains(built.output, "2 documents stood before; --drop-duplicates leaves them out\n"));
  CHECK(Contains(RunProgram(build + " --drop-duplicates --restart").output, "1 conversations, "));
  CHECK_FALSE(std::filesystem::exists(dir / "out.unfinished"));
}

TEST_CASE("data build: the example of docs/fine-tuning.md") {
  const data::TempDir dir;
  const ProgramResult built =
      RunProgram("data build --format chat --input " ENGINE_SOURCE_DIR
                 "/tests/data/chat/conversations.jsonl --output-prefix " +
                 dir / "chat" + " --chat-template " ENGINE_SOURCE_DIR "/tests/data/chat/chatml.jinja");
  CHECK(built.exit_code == 0);
  CHECK(Contains(built.output, "4 conversations, "));
  CHECK(Contains(
      RunProgram("data show " + dir / "chat" + " --sample 1 --tokenizer byte").output,
      "<|im_start|>user⏎\n2 + 2?<|im_end|>⏎\n<|im_start|>assistant⏎\n⟦4.<|im_end|>⟧⏎\n<|im_start|>user⏎\nAnd "
      "one more?<|im_end|>⏎\n"
      "<|im_start|>assistant⏎\n⟦5.<|im_end|>⟧⏎\n"));
}

TEST_CASE("data show of a recipe: a sample as training takes it") {
  const data::TempDir dir;
  data::WriteFile(dir / "in.txt",
                  "one, two, three\n--\nfour, five, six\n--\nseven, eight\n--\nnine, ten, eleven\n");
  CHECK(RunProgram("data build --format text --document-separator -- --append-eod --input " + dir / "in.txt" +
                   " --output-prefix " + dir / "d")
            .exit_code == 0);
  const std::string show =
      "data show " ENGINE_SOURCE_DIR "/recipes/quickstart.toml --set data.paths='[\"" +
      dir / "d_text_document" +
      "\"]' --set data.documents=masked --set data.split='\"50,50,0\"' --set "
      "data.sequence_length=16 --set schedule.warmup_iterations=0 --set schedule.decay_iterations=2 "
      "--set training.iterations=2";
  const ProgramResult shown = RunProgram(show);
  CHECK(shown.exit_code == 0);
  CHECK(Contains(shown.output,
                 "train sample 0 of 32: 17 tokens, 16 of them learned (94.1 %), shown as ⟦…⟧\n── document "
                 "from token 0 on ──\n"));
  CHECK(Contains(RunProgram(show + " --sample 32").output,
                 "error: the train split has 32 samples; --sample goes from 0 to 31\n"));
}

}  // namespace engine::cli
