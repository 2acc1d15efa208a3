// `engine watch` on a terminal and without one, and `engine report`.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <utmp.h>

#include <filesystem>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/view/made_up_run.h"

namespace engine::cli {
namespace {

using view::testing::MadeUpRun;
using view::testing::MetricsText;

// The program on a terminal of its own.
class OnTerminal {
 public:
  explicit OnTerminal(const std::string& arguments) {
    winsize size = {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(openpty(&master_, &terminal_, nullptr, nullptr, &size) == 0);
    before_ = Settings();
    pid_ = fork();
    if (pid_ == 0) {
      login_tty(terminal_);
      execl("/bin/sh", "sh", "-c", ("TERM=xterm LANG=C.UTF-8 exec " ENGINE_BINARY " " + arguments).c_str(),
            nullptr);
      _exit(127);
    }
    fcntl(master_, F_SETFL, O_NONBLOCK);
  }
  ~OnTerminal() {
    kill(pid_, SIGKILL);
    if (!ended_) waitpid(pid_, nullptr, 0);
    close(master_);
    close(terminal_);
  }

  // Whether the program has written this, after what was waited for before, within 30 s.
  bool Writes(const std::string& text) {
    for (int tries = 0; tries < 3000; ++tries) {
      char bytes[4096];
      for (ssize_t got = 0; (got = read(master_, bytes, sizeof(bytes))) > 0;)
        output_.append(bytes, static_cast<std::size_t>(got));
      const std::size_t at = output_.find(text);
      if (at != std::string::npos) {
        output_.erase(0, at + text.size());
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    MESSAGE("no '" << text << "' in: " << output_);
    return false;
  }
  void Press(char key) const { REQUIRE(write(master_, &key, 1) == 1); }
  void Resize(unsigned short columns) const {
    winsize size = {.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ioctl(master_, TIOCSWINSZ, &size);
  }
  pid_t pid() const { return pid_; }

  // As waitpid has it.
  int End() {
    int status = 0;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    ended_ = true;
    return status;
  }
  bool HasItsSettings() const {
    const termios now = Settings();
    return now.c_lflag == before_.c_lflag && now.c_iflag == before_.c_iflag && now.c_oflag == before_.c_oflag;
  }
  bool Echoes() const { return (Settings().c_lflag & ECHO) != 0; }

 private:
  termios Settings() const {
    termios settings = {};
    tcgetattr(terminal_, &settings);
    return settings;
  }

  int master_ = -1, terminal_ = -1;
  pid_t pid_ = -1;
  bool ended_ = false;
  termios before_ = {};
  std::string output_;
};

constexpr const char* kOtherScreen = "\x1b[?1049h";
constexpr const char* kGivenBack = "\x1b[?7h\x1b[?25h\x1b[?1049l";

struct RunAt60 : MadeUpRun {
  RunAt60() { Write("metrics.jsonl", MetricsText().RunTo(60).text()); }
};

}  // namespace

TEST_CASE("watch: on a terminal, until q or a signal, which leave it as it was") {
  const RunAt60 run;
  struct Way {
    char key;
    int signal, exit_code, ended_by;
  };
  for (const Way& way :
       {Way{'q', 0, 0, 0}, Way{'\x03', 0, 0, 0}, Way{0, SIGTERM, 0, SIGTERM}, Way{0, SIGHUP, 0, SIGHUP}}) {
    CAPTURE(way.key);
    CAPTURE(way.signal);
    OnTerminal watch("watch --interval 3600 " + run.folder);
    CHECK(watch.Writes(kOtherScreen));
    CHECK(watch.Writes("made-up"));
    CHECK(watch.Writes("iteration 60 of 100"));
    CHECK(!watch.Echoes());
    watch.Press('x');  // no other key does anything
    if (way.key != 0) watch.Press(way.key);
    if (way.signal != 0) kill(watch.pid(), way.signal);
    CHECK(watch.Writes(kGivenBack));
    const int status = watch.End();
    CHECK(WIFSIGNALED(status) == (way.ended_by != 0));
    CHECK((WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)) == way.ended_by + way.exit_code);
    CHECK(watch.HasItsSettings());
  }
}

TEST_CASE("watch: draws anew when the run goes on, and when the terminal changes its size") {
  const RunAt60 run;
  OnTerminal watch("watch --interval 0.1 " + run.folder);
  CHECK(watch.Writes("iteration 60 of 100"));
  run.Write("metrics.jsonl", MetricsText().RunTo(61).text());
  CHECK(watch.Writes("iteration 61 of 100"));
  watch.Resize(30);
  CHECK(watch.Writes("KiB plann…"));
}

TEST_CASE("watch: Ctrl-Z gives the terminal back until the program goes on") {
  const RunAt60 run;
  OnTerminal watch("watch --interval 0.1 " + run.folder);
  CHECK(watch.Writes("iteration 60 of 100"));
  kill(watch.pid(),
       SIGTSTP);  // what Ctrl-Z sends; a terminal whose leader has no parent in its session sends none
  CHECK(watch.Writes(kGivenBack));
  int status = 0;
  REQUIRE(waitpid(watch.pid(), &status, WUNTRACED) == watch.pid());
  CHECK(WIFSTOPPED(status));
  CHECK(watch.HasItsSettings());
  kill(watch.pid(), SIGCONT);
  CHECK(watch.Writes(kOtherScreen));
  CHECK(watch.Writes("iteration 60 of 100"));
  CHECK(!watch.Echoes());
}

TEST_CASE("watch: one plain frame where there is no terminal, and for --once") {
  const RunAt60 run;
  const ProgramResult once = RunProgram("watch --once --columns 60 " + run.folder, "LANG=C.UTF-8");
  CHECK(once.exit_code == 0);
  CHECK(Contains(once.output, "made-up  "));
  CHECK(once.output.find('\x1b') == std::string::npos);
  CHECK(RunProgram("watch --columns 60 " + run.folder, "LANG=C.UTF-8").output == once.output);
  const ProgramResult ascii = RunProgram("watch --once --columns 60 " + run.folder, "LC_ALL=C");
  CHECK(ascii.output.find("####") != std::string::npos);
  CHECK(RunProgram("watch --once --ascii --columns 60 " + run.folder).output == ascii.output);
  CHECK(Contains(RunProgram("watch --once --color always " + run.folder).output, "\x1b[1mmade-up\x1b[0m"));
  OnTerminal watch("watch --once " + run.folder);
  CHECK(watch.Writes("iteration 60 of 100"));
  CHECK(watch.End() == 0);
  OnTerminal plain("watch --once --color never " + run.folder);
  CHECK(plain.Writes("made-up  "));
}

TEST_CASE("watch: no colours under NO_COLOR") {
  const RunAt60 run;
  OnTerminal watch("watch " + run.folder);
  CHECK(watch.Writes("\x1b[1mmade-up"));
  setenv("NO_COLOR", "1", 1);
  OnTerminal plain("watch " + run.folder);
  unsetenv("NO_COLOR");
  CHECK(plain.Writes("\x1b[Hmade-up"));
}

TEST_CASE("watch, report: folders without a run are left out, and one of them must hold one") {
  const RunAt60 run;
  const std::string parent = run.parent.path();
  const std::string none = parent + " holds no run: neither metrics.jsonl, plan.json nor outcome.json\n";
  const ProgramResult watch = RunProgram("watch --once " + parent + " " + run.folder);
  CHECK(watch.exit_code == 0);
  CHECK(watch.output.starts_with("note: " + none + "made-up  "));
  CHECK(RunProgram("watch " + parent).output == "engine watch: " + none);
  CHECK(RunProgram("watch " + parent).exit_code == 1);
  CHECK(RunProgram("watch " + run.folder + " " + run.folder + "/none").exit_code == 1);
  const std::string page = run.parent / "page.html";
  const ProgramResult report = RunProgram("report -o " + page + " " + parent);
  CHECK(report.exit_code == 1);
  CHECK(report.output == "engine report: " + none);
  CHECK(!std::filesystem::exists(page));
  CHECK(RunProgram("report -o " + page + " " + parent + " " + run.folder).output == "note: " + none);
  CHECK(std::filesystem::exists(page));
  CHECK(RunProgram("watch").exit_code == 2);
  CHECK(RunProgram("watch --interval 0 " + run.folder).exit_code == 2);
}

TEST_CASE("report: a page, in a file and on standard output") {
  const RunAt60 run;
  const std::string page = run.parent / "page.html";
  const ProgramResult written = RunProgram("report " + run.folder + " " + run.folder + " -o " + page);
  CHECK(written.exit_code == 0);
  CHECK(written.output.empty());
  CHECK(Contains(data::ReadFile(page), "<title>2 runs</title>"));
  const ProgramResult printed = RunProgram("report " + run.folder);
  CHECK(printed.output.starts_with("<!doctype html>"));
  CHECK(printed.output.ends_with("</html>\n"));
  const std::string markdown = run.parent / "page.md";
  CHECK(RunProgram("report " + run.folder + " -o " + markdown).exit_code == 0);
  CHECK(data::ReadFile(markdown).starts_with("# made-up\n\n|  | made-up |\n"));
  const ProgramResult other = RunProgram("report " + run.folder + " -o " + run.parent / "page.txt");
  CHECK(other.exit_code == 2);
  CHECK(Contains(other.output, "page.txt': a name ends in .html or .htm for a page, or in .md for Markdown"));
  CHECK(!std::filesystem::exists(run.parent / "page.txt"));
  const ProgramResult failed = RunProgram("report " + run.folder + " -o " + run.folder);
  CHECK(failed.exit_code == 1);
  CHECK(Contains(failed.output, "engine report: "));
}

}  // namespace engine::cli
