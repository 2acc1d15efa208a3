#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>

#include "tests/cli/run_binary.h"
#include "tests/data/temp_dir.h"

namespace engine::cli {

TEST_CASE("data build: numbers of any size beside the text; what is passed over is counted") {
  const data::TempDir folder;
  std::filesystem::create_directory(folder / "in");
  data::WriteFile(folder / "in/a.jsonl",
                  "{\"text\":\"fine\"}\n{\"text\":\"ok\",\"score\":1e999}\n{\"text\":\"ok\",\"id\":" +
                      std::string(401, '9') + "}\n");
  for (const char* name : {"in/.a", "in/.b", "in/c.dat"}) data::WriteFile(folder / name, "oops");
  std::filesystem::create_symlink("a.jsonl", folder / "in/link");
  const ProgramResult built =
      RunProgram("data build --input " + folder / "in" + " --output-prefix " + folder / "out");
  CHECK(built.exit_code == 0);
  CHECK(Contains(built.output, "3 documents, 3 sequences, 8 tokens (uint16) from "));
  CHECK(Contains(built.output, " in 1 files, passed over: 2 hidden, 1 *.dat or *.u8, 1 symbolic link\n" +
                                   folder / "out_text_document\n"));
}

TEST_CASE("data build: an error leaves nothing behind") {
  const data::TempDir folder;
  data::WriteFile(folder / "in.jsonl", "{\"text\":\"fine\"}\n{\"text\":1e999}\n");
  const ProgramResult refused =
      RunProgram("data build --input " + folder / "in.jsonl" + " --output-prefix " + folder / "out");
  CHECK(refused.exit_code == 1);
  CHECK(refused.output == (folder / "in.jsonl") +
                              ":2: error: \"text\" is a number, and must be a string or a list of strings\n");
  CHECK(folder.entries() == 1);
}

TEST_CASE("data build: a signal ends it, and leaves nothing behind") {
  const data::TempDir folder;
  {
    std::ofstream text(folder / "in.txt", std::ios::binary);
    const std::string line(1 << 20, 'x');
    for (int i = 0; i < 64; ++i) text << line << "\n%\n";
  }
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal_number);
    const auto under_way = [&] { return folder.entries() > 1; };
    CHECK(Interrupt("data build --format text --document-separator % --input " + folder / "in.txt" +
                        " --output-prefix " + folder / "out",
                    under_way, signal_number) == -1);
    CHECK(folder.entries() == 1);
  }
}

}  // namespace engine::cli
