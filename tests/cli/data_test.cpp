#include <doctest/doctest.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
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
  // Nor do the folders that it made; one that was there, or that others use by then, stays.
  std::filesystem::create_directory(folder / "there");
  for (const char* prefix : {"no/such/out", "there/no/out", "no/./such/./out"}) {
    CAPTURE(prefix);
    CHECK(RunProgram("data build --input " + folder / "in.jsonl" + " --output-prefix " + folder / prefix)
              .exit_code == 1);
  }
  CHECK(folder.entries() == 2);
  CHECK(std::filesystem::is_empty(folder / "there"));
}

TEST_CASE("data build: a data set that is replaced is told") {
  const data::TempDir folder;
  data::WriteFile(folder / "in.jsonl", "{\"text\":\"fine\",\"more\":\"ok\"}\n");
  const std::string command =
      "data build --input " + folder / "in.jsonl" + " --output-prefix " + folder / "out";
  CHECK_FALSE(Contains(RunProgram(command).output, "replaces"));
  CHECK(Contains(RunProgram(command).output,
                 " in 1 files; replaces the data set of this name\n" + folder / "out_text_document\n"));
  const std::string both = RunProgram(command + " --json-key text --json-key more").output;
  CHECK(Contains(both, "; replaces the data set of this name\n" + folder / "out_text_document\n"));
  CHECK(Contains(both, " in 1 files\n" + folder / "out_more_document\n"));
}

TEST_CASE("data: several keys; parts, all of them together, and what is in them") {
  const data::TempDir folder;
  std::string lines;
  for (int i = 0; i < 9; ++i)
    lines += fmt::format("{{\"q\":\"ask {}\",\"of\":{{\"a\":\"say\\n{}\"}}}}\n", i, i);
  data::WriteFile(folder / "in.jsonl", lines);
  const ProgramResult built =
      RunProgram("data build --input " + folder / "in.jsonl" +
                 " --json-key q of.a --append-eod --workers 3 --output-prefix " + folder / "d");
  CHECK(built.exit_code == 0);
  CHECK(Contains(built.output, "9 documents, 9 sequences, 54 tokens (uint16) from "));
  CHECK(Contains(built.output, folder / "d_of.a_document\n"));
  const std::string answers = folder / "d_of.a_document";
  const ProgramResult split =
      RunProgram("data split " + answers + " --parts 2 --output-prefix " + folder / "p");
  CHECK(split.output == "5 documents, 5 sequences, 30 tokens\n" + folder / "p_0" +
                            "\n4 documents, 4 sequences, 24 tokens\n" + folder / "p_1" + "\n");
  const ProgramResult merged = RunProgram("data merge " + folder / "p_1" + " " + folder / "p_0" +
                                          " --output-prefix " + folder / "all");
  CHECK(merged.output == "9 documents, 9 sequences, 54 tokens\n" + folder / "all" + "\n");
  const ProgramResult info = RunProgram("data info " + folder / "all" + " --sample 2 --tokenizer byte");
  CHECK(Contains(info.output,
                 "\ndocument 0: 1 sequence\n  6 tokens: 115 97 121 10 53 256\n  say⏎5\n"
                 "\ndocument 4: 1 sequence\n  6 tokens: 115 97 121 10 48 256\n  say⏎0\n"));
  const ProgramResult verified =
      RunProgram("data verify " + folder / "all" + " " + folder / "none" + " " + answers);
  CHECK(verified.exit_code == 1);
  CHECK(Contains(verified.output, folder / "all" + ": whole, 9 documents, 54 tokens\n"));
  CHECK(Contains(verified.output, answers + ": whole, 9 documents, 54 tokens\n"));
  const ProgramResult outside = RunProgram("data verify --vocab 256 " + folder / "all");
  CHECK(outside.exit_code == 1);
  CHECK(Contains(outside.output, ": token 256 at position 5 is outside a vocabulary of 256\n"));
}

TEST_CASE("data build: a signal stops it, and it goes on when it is started again") {
  const data::TempDir folder;
  {
    std::ofstream text(folder / "in.txt", std::ios::binary);
    const std::string line(1 << 20, 'x');
    for (int i = 0; i < 64; ++i) text << line << "\n%\n";
  }
  const std::string command = "data build --format text --document-separator % --input " + folder / "in.txt" +
                              " --output-prefix " + folder / "out";
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal_number);
    std::error_code ignored;
    const auto size = [&] {
      return std::filesystem::file_size(folder / "out.unfinished/0.bin", ignored) + 1;
    };
    const auto under_way = [&, before = std::max(size(), std::uintmax_t{1})] { return size() > before; };
    CHECK(Interrupt(command, under_way, signal_number) == 128 + signal_number);
    CHECK(folder.entries() == 2);
  }
  const ProgramResult other = RunProgram(command + " --append-eod");
  CHECK(other.exit_code == 1);
  CHECK(Contains(other.output, "which differs in: append-eod. "));
  const ProgramResult rest = RunProgram(command);
  CHECK(rest.exit_code == 0);
  CHECK(Contains(rest.output, " documents had been read before\n64 documents, "));
  CHECK(folder.entries() == 4);
}

TEST_CASE("data build: progress is on a terminal alone, and standard output as it is without one") {
  const data::TempDir folder;
  {
    std::ofstream text(folder / "in.jsonl", std::ios::binary);
    for (int i = 0; i < 40'000; ++i) text << "{\"text\":\"" << i << std::string(100, 'x') << "\"}\n";
  }
  const std::string command =
      "data build --workers 1 --input " + folder / "in.jsonl" + " --output-prefix " + folder / "out";
  const ProgramResult plain = RunProgram(command);
  CHECK(plain.output.starts_with("40,000 documents, "));
  std::filesystem::remove(folder / "out_text_document.idx");  // so that the next one replaces none
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  const std::string name = ptsname(terminal);
  const int other_end = open(name.c_str(), O_RDWR | O_NOCTTY);  // so that it lives until it is read
  const int status =
      std::system((ENGINE_BINARY " " + command + " >" + folder / "stdout" + " 2>" + name).c_str());
  CHECK(status == 0);
  CHECK(data::ReadFile(folder / "stdout") == plain.output);
  std::string shown;
  pollfd readable = {.fd = terminal, .events = POLLIN, .revents = 0};
  char some[4096];
  while (poll(&readable, 1, /*milliseconds=*/300) == 1) {  // what was written may come a little later
    const ssize_t got = read(terminal, some, sizeof some);
    if (got <= 0) break;
    shown.append(some, static_cast<std::size_t>(got));
  }
  CHECK(Contains(shown, " %, "));
  CHECK(Contains(shown, " MB/s, 0:0"));
  CHECK(Contains(shown, " left; "));
  CHECK(shown.ends_with("\r\033[K"));
  close(other_end);
  close(terminal);
}

}  // namespace engine::cli
