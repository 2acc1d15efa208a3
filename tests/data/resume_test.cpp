// Builds of data sets that are killed, stopped or fail, and gone on with.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "engine/base/status.h"
#include "engine/data/chat_build.h"
#include "engine/data/duplicates.h"
#include "engine/data/journal.h"
#include "engine/data/preprocess.h"
#include "engine/data/unfinished_build.h"
#include "tests/data/temp_dir.h"

namespace engine::data {
namespace {

// Bytes, and how many texts were made tokens of.
class CountingTokenizer : public Tokenizer {
 public:
  absl::Status EncodeTo(std::string_view text, std::vector<std::int32_t>* ids) const override {
    ++texts;
    for (const char c : text) ids->push_back(static_cast<unsigned char>(c));
    return absl::OkStatus();
  }
  absl::Status EncodeMarked(std::string_view, std::span<const std::pair<std::size_t, std::size_t>>,
                            std::vector<std::int32_t>*, std::vector<std::uint8_t>*) const override {
    return absl::UnimplementedError("of text without marks alone");
  }
  absl::StatusOr<std::string> Decode(std::span<const std::int32_t>) const override { return ""; }
  std::int64_t vocab_size() const override { return 257; }
  std::int32_t end_of_document() const override { return 256; }

  mutable std::atomic<std::int64_t> texts = 0;
};

// Lines with two keys; every seventh stood before.
std::string TwoKeys(int lines, int salt) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    const int number = i % 7 == 6 ? i - 6 : i + salt;
    text += fmt::format("{{\"a\":\"{} {}\",\"b\":[\"{}\"]}}\n", number, std::string(number * 7 % 300, 'x'),
                        std::string(number % 40, 'y'));
  }
  return text;
}

void WriteGzip(const std::string& path, const std::string& text) {
  gzFile file = gzopen(path.c_str(), "wb");
  REQUIRE(gzwrite(file, text.data(), static_cast<unsigned>(text.size())) == static_cast<int>(text.size()));
  REQUIRE(gzclose(file) == Z_OK);
}
void WriteZstd(const std::string& path, const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 1));
  WriteFile(path, out);
}

struct ResumeCase {
  TempDir dir{MemoryFolder()};
  PreprocessOptions options;

  ResumeCase() {
    WriteFile(dir / "1.jsonl", TwoKeys(3000, 0));
    WriteGzip(dir / "2.jsonl.gz", TwoKeys(3000, 1000));
    WriteZstd(dir / "3.jsonl.zst", TwoKeys(3000, 50000));
    WriteFile(dir / "4.jsonl", TwoKeys(50, 90000));
    for (const char* name : {"1.jsonl", "2.jsonl.gz", "3.jsonl.zst", "4.jsonl"})
      options.inputs.push_back(dir / name);
    options.output_prefix = dir / "out";
    options.json_keys = {"a", "b"};
    options.append_eod = true;
    options.part_bytes = 20000;
    options.workers = 2;
    options.commit_seconds = 0;
  }

  // All that a build leaves, and nothing else may be left.
  std::string Made() const {
    std::string all;
    for (const char* name : {"out_a_document.bin", "out_a_document.idx", "out_b_document.bin",
                             "out_b_document.idx", "out.json"}) {
      REQUIRE_MESSAGE(std::filesystem::exists(dir / name), name);
      all += fmt::format("{}\n", HashHex(ReadFile(dir / name)));
    }
    return all;
  }
  void RemoveMade() const {
    for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
      if (entry.path().filename().string().starts_with("out")) std::filesystem::remove_all(entry.path());
  }
};

constexpr std::int64_t kDocuments = 9050;

absl::Status Make(const PreprocessOptions& options) {
  return Preprocess(options, CountingTokenizer()).status();
}
absl::Status Make(const ChatBuildOptions& options) {
  const std::unique_ptr<Tokenizer> tokenizer = *MakeTokenizer({});
  ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Open(options.output_prefix + ".jinja", "", {}));
  return BuildConversations(options, chat, *tokenizer).status();
}

// Starts a build in another process, which is killed after so long, or by itself after so many parts and a bit. False: it had
// ended before.
template <typename Options>
bool BuildAndKill(const Options& options, std::chrono::microseconds after, int parts) {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    Options own = options;
    own.progress = [&](const BuildProgress&) {
      if (--parts != 0) return;
      std::this_thread::sleep_for(after / 10);
      raise(SIGKILL);
    };
    _exit(Make(own).ok() ? 0 : 1);
  }
  if (parts == 0) {
    std::this_thread::sleep_for(after);
    kill(pid, SIGKILL);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
  return WIFSIGNALED(status);
}

}  // namespace

TEST_CASE("a build that is killed at any moment is gone on with, to the same bytes") {
  const int kills =
      std::getenv("ENGINE_TEST_KILLS") != nullptr ? std::atoi(std::getenv("ENGINE_TEST_KILLS")) : 50;
  ResumeCase c;
  std::mt19937 random(1);
  int resumed = 0;
  for (const bool drop : {false, true}) {
    c.options.drop_duplicates = drop;
    const CountingTokenizer tokenizer;
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(Preprocess(c.options, tokenizer).ok());
    const auto whole =
        std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
    const std::string wanted = c.Made();
    const std::size_t entries = c.dir.entries();
    for (int i = 0; i < kills / 2; ++i) {
      c.RemoveMade();
      PreprocessOptions options = c.options;
      options.workers = static_cast<int>(1 + random() % 4);
      options.part_bytes = 2000 + random() % 50000;
      for (int again = 0; again < 1 + i % 3; ++again) {  // one to three times
        const std::chrono::microseconds after(random() % static_cast<unsigned>(whole.count() + 1));
        const int parts = i % 2 == 0 ? 0 : static_cast<int>(1 + random() % 60);
        if (!BuildAndKill(options, after, parts)) break;
      }
      options.part_bytes = 2000 + random() % 50000;
      options.workers = static_cast<int>(1 + random() % 4);
      const CountingTokenizer rest;
      const absl::StatusOr<BuildResult> result = Preprocess(options, rest);
      REQUIRE_MESSAGE(result.ok(), Message(result.status()));
      CHECK(c.Made() == wanted);
      CHECK(c.dir.entries() == entries);
      CHECK(rest.texts == 2 * (kDocuments - result->resumed_documents));
      if (result->resumed_documents > 0) ++resumed;
    }
  }
  CHECK(resumed > 3);  // else the moments were no test; how many depends on how fast the disk is
}

TEST_CASE("a build of conversations that is killed at any moment is gone on with, to the same bytes") {
  const TempDir dir(MemoryFolder());
  const std::string folder = ENGINE_SOURCE_DIR "/tests/data/chat/";
  const std::string lines = ReadFile(folder + "records.jsonl");
  WriteFile(dir / "lines", lines + lines + lines);
  WriteGzip(dir / "lines.gz", lines + ReadFile(folder + "questions.jsonl"));
  WriteFile(
      dir / "out.jinja",
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m | tojson }}{% "
      "endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
      "{% for m in messages if m.seconds %}{{ m.seconds }}{% endfor %}");
  ChatBuildOptions options;
  options.inputs = {dir / "lines", folder + "records_v2.parquet", dir / "lines.gz",
                    folder + "records_v1.parquet"};
  options.output_prefix = dir / "out";
  options.commit_seconds = 0;
  const auto made = [&dir] {
    std::string all;
    for (const char* name : {"out.bin", "out.idx", "out_loss_mask.bin", "out_loss_mask.idx", "out.json"}) {
      REQUIRE_MESSAGE(std::filesystem::exists(dir / name), name);
      all += HashHex(ReadFile(dir / name)) + "\n";
      std::filesystem::remove(dir / name);
    }
    CHECK(dir.entries() == 3);
    return all;
  };
  std::mt19937 random(2);
  int resumed = 0;
  for (const bool drop : {false, true}) {
    options.drop_duplicates = drop;
    options.part_bytes = 3000;
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(Make(options).ok());
    const auto whole =
        std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
    const std::string wanted = made();
    for (int i = 0; i < 14; ++i) {
      options.workers = static_cast<int>(1 + random() % 4);
      options.part_bytes = 1000 + random() % 5000;
      const std::chrono::microseconds after(random() % static_cast<unsigned>(whole.count() + 1));
      BuildAndKill(options, after, i % 2 == 0 ? 0 : static_cast<int>(1 + random() % 30));
      BuildProgress last;
      ChatBuildOptions rest = options;
      rest.progress = [&last](const BuildProgress& progress) { last = progress; };
      REQUIRE(Make(rest).ok());
      resumed += last.resumed_bytes > 0 ? 1 : 0;
      CHECK(made() == wanted);
    }
  }
  CHECK(resumed > 3);
}

TEST_CASE("an old data set is gone before a new mask is there, and a new one comes after its mask") {
  const TempDir dir(MemoryFolder());
  WriteFile(dir / "out.jinja", "{{ messages[0].content }}");
  ChatBuildOptions options;
  options.inputs = {ENGINE_SOURCE_DIR "/tests/data/chat/records.jsonl"};
  options.output_prefix = dir / "out";
  options.loss_on = LossOn::kAll;
  REQUIRE(Make(options).ok());
  const std::string wanted = ReadFile(dir / "out.idx");
  REQUIRE(std::filesystem::remove(dir / "out_loss_mask.bin"));
  std::filesystem::create_directory(dir / "out_loss_mask.bin");  // in the way
  CHECK_FALSE(Make(options).ok());
  CHECK_FALSE(std::filesystem::exists(dir / "out.idx"));
  CHECK_FALSE(std::filesystem::exists(dir / "out_loss_mask.idx"));
  REQUIRE(std::filesystem::remove(dir / "out_loss_mask.bin"));
  REQUIRE(Make(options).ok());
  CHECK(ReadFile(dir / "out.idx") == wanted);
  CHECK(dir.entries() == 6);
}

TEST_CASE("what an unfinished build has of another template, time, key or part that is learned is not used") {
  const TempDir dir(MemoryFolder());
  const std::unique_ptr<Tokenizer> tokenizer = *MakeTokenizer({});
  WriteFile(dir / "t.jinja", "{{ strftime_now('%Y') }}{{ messages[0].content }}");
  ChatBuildOptions options;
  options.inputs = {ENGINE_SOURCE_DIR "/tests/data/chat/records.jsonl"};
  options.output_prefix = dir / "out";
  options.loss_on = LossOn::kAll;
  options.part_bytes = 5000;
  int parts = 0;
  const auto build = [&](int year, const ChatBuildOptions& how) {
    std::tm time = {};
    time.tm_mday = 1;
    time.tm_year = year - 1900;
    const ChatTemplate chat = *ChatTemplate::Open(dir / "t.jinja", "", time);
    return Message(BuildConversations(how, chat, *tokenizer).status());
  };
  ChatBuildOptions stopping = options;
  stopping.stopped = [&parts] { return ++parts == 3; };
  CHECK(build(2024, stopping) == "stopped");
  const auto other = [&](const std::string& what) {
    return (dir / "out.unfinished") + " has what another build left unfinished, which differs in: " + what +
           ". The command of that build goes on with it; --restart throws it away";
  };
  CHECK(build(2025, options) == other("chat-time"));
  ChatBuildOptions changed = options;
  changed.loss_on = LossOn::kAssistant;
  changed.keys.role = "who";
  CHECK(build(2024, changed) == other("chat-key, loss-on"));
  const std::string source = ReadFile(dir / "t.jinja");
  WriteFile(dir / "t.jinja", source + "!");
  CHECK(build(2024, options) == other("chat-template"));
  WriteFile(dir / "t.jinja", source);
  CHECK(build(2024, options).empty());
}

TEST_CASE("a build that is stopped says so, keeps what is done, and no part is done twice") {
  ResumeCase c;
  const CountingTokenizer tokenizer;
  REQUIRE(Preprocess(c.options, tokenizer).ok());
  const std::string wanted = c.Made();
  c.RemoveMade();
  c.options.commit_seconds = 1000;
  std::int64_t documents = 0;
  for (int stops = 0;; ++stops) {
    REQUIRE(stops < 100);
    int parts = 0;
    BuildProgress last;
    c.options.progress = [&](const BuildProgress& progress) { last = progress; };
    c.options.stopped = [&] { return ++parts == 5; };
    const CountingTokenizer some;
    const absl::StatusOr<BuildResult> result = Preprocess(c.options, some);
    documents += last.documents;
    CHECK(last.inputs == 4);
    CHECK(last.read_bytes <= last.input_bytes);
    if (result.ok()) {
      CHECK(last.read_bytes == last.input_bytes);
      CHECK(stops > 5);
      break;
    }
    CHECK(absl::IsCancelled(result.status()));
    CHECK(std::filesystem::exists(UnfinishedPath(c.options.output_prefix)));
    // What a process wrote before it was killed, and no record counts.
    for (const char* name : {"0.bin", "0.lengths", "1.documents", "hashes", "journal"}) {
      std::ofstream(c.dir / "out.unfinished/" + name, std::ios::binary | std::ios::app)
          << std::string(stops == 3 ? 5'000'000 : 5, 'x');
    }
  }
  CHECK(documents == kDocuments);
  CHECK(c.Made() == wanted);
}

TEST_CASE("a mistake in an input can be put right, and the build goes on from there") {
  const TempDir dir(MemoryFolder());
  std::string text = TwoKeys(2000, 0);
  WriteFile(dir / "in", text);
  PreprocessOptions options;
  options.inputs = {dir / "in"};
  options.output_prefix = dir / "out";
  options.json_keys = {"a"};
  options.part_bytes = 1000;
  const CountingTokenizer all;
  REQUIRE(Preprocess(options, all).ok());
  const std::string wanted = ReadFile(dir / "out_a_document.bin");
  const std::size_t at = text.find("{\"a\":\"1900 ");
  WriteFile(dir / "in", text.substr(0, at) + "oops" + text.substr(at));
  const absl::Status wrong = Preprocess(options, all).status();
  CHECK(Message(wrong).starts_with((dir / "in") + ":1901:1: error: "));
  WriteFile(dir / "in", text);
  const CountingTokenizer rest;
  const absl::StatusOr<BuildResult> result = Preprocess(options, rest);
  REQUIRE_MESSAGE(result.ok(), Message(result.status()));
  CHECK(ReadFile(dir / "out_a_document.bin") == wanted);
  CHECK(rest.texts < 150);
  CHECK(dir.entries() == 4);
}

TEST_CASE("what an unfinished build has of other inputs, options or tokenizers is not used") {
  ResumeCase c;
  const CountingTokenizer tokenizer;
  const auto stop = [&] {
    int parts = 0;
    PreprocessOptions options = c.options;
    options.stopped = [&parts] { return ++parts == 35; };  // in the second input
    REQUIRE(absl::IsCancelled(Preprocess(options, tokenizer).status()));
  };
  const auto refused = [&](const PreprocessOptions& options) {
    const absl::Status status = Preprocess(options, tokenizer).status();
    CHECK(absl::IsFailedPrecondition(status));
    return Message(status);
  };
  c.options.part_bytes = 20000;
  stop();
  const std::string folder = c.dir / "out.unfinished";
  const auto other = [&](const std::string& what) {
    return folder + " has what another build left unfinished, which differs in: " + what +
           ". The command of that build goes on with it; --restart throws it away";
  };
  PreprocessOptions changed = c.options;
  changed.append_eod = false;
  CHECK(refused(changed) == other("append-eod"));
  changed = c.options;
  changed.json_keys = {"b", "a"};
  changed.inputs.pop_back();
  CHECK(refused(changed) == other("inputs, keys"));
  changed = c.options;
  WriteFile(c.dir / "vocab", "x");
  changed.tokenizer.vocab_file = c.dir / "vocab";
  CHECK(refused(changed) == other("tokenizer"));
  // What is not read yet may change, and what is read may not.
  const std::string first = ReadFile(c.dir / "1.jsonl");
  const std::string second = ReadFile(c.dir / "2.jsonl.gz");
  WriteFile(c.dir / "1.jsonl", first + TwoKeys(1, 7));
  CHECK(refused(c.options) == (c.dir / "1.jsonl") +
                                  " has changed since an unfinished build has read it; --restart throws away "
                                  "what that has made");
  WriteFile(c.dir / "1.jsonl", first);  // another time, the same content
  WriteGzip(c.dir / "2.jsonl.gz", TwoKeys(3000, 1001));
  CHECK(refused(c.options).starts_with((c.dir / "2.jsonl.gz") + " has changed in its first "));
  WriteFile(c.dir / "2.jsonl.gz", second);
  WriteFile(c.dir / "4.jsonl", TwoKeys(10, 3));
  absl::StatusOr<BuildResult> result = Preprocess(c.options, tokenizer);
  REQUIRE_MESSAGE(result.ok(), Message(result.status()));
  CHECK(result->resumed_documents > 3000);
  CHECK(result->datasets[0].documents == kDocuments - 40);
  // Thrown away on request.
  stop();
  changed = c.options;
  changed.json_keys = {"b"};
  changed.restart = true;
  result = Preprocess(changed, tokenizer);
  REQUIRE_MESSAGE(result.ok(), Message(result.status()));
  CHECK(result->resumed_documents == 0);
  CHECK_FALSE(std::filesystem::exists(folder));
  // Files that are shorter than the journal says.
  stop();
  std::filesystem::resize_file(folder + "/1.bin", 10);
  const absl::Status status = Preprocess(c.options, tokenizer).status();
  CHECK(absl::IsDataLoss(status));
  CHECK(Message(status).starts_with(folder + "/1.bin has 10 bytes of "));
  CHECK(Message(status).ends_with(": what an unfinished build has made is not whole; --restart begins anew"));
}

TEST_CASE("a build within the folder that it reads goes on, too") {
  const TempDir dir{MemoryFolder()};
  std::filesystem::create_directory(dir / "in");
  WriteFile(dir / "in/a.jsonl", TwoKeys(2000, 0));
  PreprocessOptions options;
  options.inputs = {dir / "in/."};
  options.output_prefix = dir / "in/out";
  options.json_keys = {"a"};
  options.part_bytes = 20000;
  int parts = 0;
  options.stopped = [&] { return ++parts == 3; };
  const CountingTokenizer tokenizer;
  CHECK(absl::IsCancelled(Preprocess(options, tokenizer).status()));
  const absl::StatusOr<BuildResult> result = Preprocess(options, tokenizer);
  REQUIRE_MESSAGE(result.ok(), Message(result.status()));
  CHECK(result->resumed_documents > 0);
  CHECK(result->datasets[0].documents == 2000);
}

TEST_CASE("two processes do not build the same at once") {
  ResumeCase c;
  const CountingTokenizer tokenizer;
  absl::Status other;
  c.options.progress = [&](const BuildProgress& progress) {
    PreprocessOptions options = c.options;
    options.progress = nullptr;
    if (progress.documents > 0 && other.ok()) other = Preprocess(options, tokenizer).status();
  };
  CHECK(Preprocess(c.options, tokenizer).ok());
  CHECK(Message(other) == "another process is building " + c.options.output_prefix);
}

TEST_CASE("a journal has the records that were written whole, wherever it was cut off or changed") {
  const TempDir dir(MemoryFolder());
  const std::string path = dir / "journal";
  {
    absl::StatusOr<Journal> journal = Journal::Open(path);
    REQUIRE(journal.ok());
    for (int i = 0; i < 3; ++i) CHECK(journal->Append({{"i", i}, {"text", "\xff\n"}}).ok());
  }
  const std::string whole = ReadFile(path);
  const std::size_t line = whole.size() / 3;
  for (std::size_t left = 0; left <= whole.size(); ++left) {
    WriteFile(path, whole.substr(0, left));
    absl::StatusOr<Journal> journal = Journal::Open(path);
    REQUIRE(journal.ok());
    CHECK(journal->records().size() == left / line);
    CHECK(ReadFile(path).size() == left / line * line);
    std::string changed = whole;
    if (left < whole.size()) changed[left] ^= 1;
    WriteFile(path, changed);
    journal = Journal::Open(path);
    REQUIRE(journal.ok());
    CHECK(journal->records().size() == left / line);
  }
}

TEST_CASE("documents that stood before are found, however few hashes are in memory at a time") {
  const TempDir dir(MemoryFolder());
  std::mt19937_64 random(1);
  std::vector<Hash128> hashes;
  std::vector<bool> wanted;
  for (int i = 0; i < 5000; ++i) {
    const std::uint64_t value = random() % 2000;
    hashes.push_back(value < 100 ? kNoText : Hash128{value, value * 7});
    wanted.push_back(value >= 100 &&
                     std::find(hashes.begin(), hashes.end() - 1, hashes.back()) != hashes.end() - 1);
  }
  WriteFile(dir / "hashes",
            std::string(reinterpret_cast<const char*>(hashes.data()), hashes.size() * sizeof(Hash128)));
  const absl::StatusOr<File> file = OpenForReading(dir / "hashes");
  REQUIRE(file.ok());
  for (const std::int64_t most : {1, 100, 4999, 5000, 100000}) {
    const absl::StatusOr<std::vector<bool>> found = FindDuplicates(*file, 5000, most);
    REQUIRE(found.ok());
    CHECK(*found == wanted);
  }
}

}  // namespace engine::data
