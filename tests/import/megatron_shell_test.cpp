#include "engine/import/megatron_shell.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tests/recipe/test_files.h"

namespace engine::import {
namespace {

using Variables = std::map<std::string, std::string>;

// The commands of a script, one a line, their words in brackets: "[run][a b]". A word that is not known is
// "[?]".
std::string Commands(const std::string& text, const Variables& outside = {}, const Variables& chosen = {}) {
  std::vector<Diagnostic> diagnostics;
  const ShellScript script = ReadShell(recipe::Source("a.sh", text), outside, chosen, &diagnostics);
  std::string commands;
  for (const ShellCommand& command : script.commands) {
    for (const ShellText& word : command.outer) commands += "<" + word.text + ">";
    for (const ShellText& word : command.words) {
      commands += "[" + word.text + (word.unknown.empty() ? "" : "?") + "]";
      if (word.unknown.empty()) CHECK(word.places.size() == word.text.size());
    }
    commands += command.uncertain.empty() ? "\n" : " perhaps\n";
  }
  for (const Diagnostic& diagnostic : diagnostics) commands += Format(diagnostic);
  return commands;
}

// The same by bash itself, of a script whose only commands are `run`.
std::string ByBash(const std::string& text) {
  const recipe::TemporaryFolder folder;
  const std::string file = folder.Write(
      "a.sh", "run() { printf '[run]'; [ $# = 0 ] || printf '[%s]' \"$@\"; echo; }\n" + text + "\n");
  std::string output;
  std::FILE* pipe = ::popen(("bash " + file).c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[256];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) output += buffer;
  ::pclose(pipe);
  return output;
}

}  // namespace

TEST_CASE("shell: known commands are what bash makes of them") {
  for (const std::string text : {
           "run a  'b c' \"d  e\" f\\ g # no\nrun 2",
           "run a \\\n  b c#d '#' \\# \"a\\\"b\\$c\\d\"",
           "run '' \"\" ''x",
           "run a 2>&1; run b >&1; run c 2>/dev/null d",
           "A=1 B=two\nC=$A$B\nrun $C ${C}x \"$C\" '$C' \\$C $A$B\"$A\"",
           "A='x  y'\nrun $A \"$A\" p${A}q p\"$A\"q $A$A",
           "A=\nrun $A \"$A\" -$A- $A$A \"\"$A",
           "A=0\nexport A=1 B=$A\nC=2 D=$C\nrun $A $B $D",
           "A=1; A+=2; A=${A}3; run $A",
           "run ${A:-x} ${A-y} ${A:=z} $A ${A:+w}${A+v}",
           "A=\nrun [${A:-x}] [${A-y}] [${A:+z}] [${A+w}]",
           "A=1\nrun ${A:-x} ${B:-${A}0} ${B:-\"p q\"} ${B:-p q} \"${B:-p  q}\" ${B:-}",
           "A=(\n  --x 1  # one\n  '--y z'\n)\nrun \"${A[@]}\" ${A[@]} \"<${A[@]}>\"",
           "A=(a b)\nA+=(c)\nrun $A ${A[1]} ${A[-1]} ${#A[@]} \"${A[*]}\" ${#A} ${A[1+1]}",
           "A=()\nrun \"${A[@]}\" ${A[@]} x",
           "B='1 2'\nA=($B \"$B\")\nrun ${#A[@]} \"$@\"",
           "N=4\nrun $((N * 8)) $(( $N+2*3 )) $(((1+2)*-3)) $((7/2)) $((7%4)) $((-7/2)) $((-7%3)) $((2-3-4))",
           "A=1\nif [ $A -eq 1 ]; then B=yes; else B=no; fi\nrun $B",
           "A=1\nif [[ \"$A\" == \"2\" ]]; then B=2; elif [ -n \"$A\" ]; then B=some; else B=no; fi\nrun $B",
           "A=1\nif ! [ -z \"$A\" ]; then run yes; fi\n[ 1 = 2 ] && A=1\n[ 1 = 2 ] || A=2\nrun $A",
           "A=2; B=--x\nif [[ \"$A\" -gt 1 && -n \"$B\" ]]; then B+=' y'; fi\nrun $B",
           "A=2; B=\nif [[ $A -gt 1 && -n $B ]]; then run no; fi\n[[ -z $B && ! $A == 1 ]] && run yes",
           "[[ 1 == 2 || a == a && b == b ]] && run 1\n[[ a == a || b == b && 1 == 2 ]] && run 2",
           "[[ 1 == 2 && a == a || 1 == 3 ]] || run 3\nif [[ x &&\n  ! y ]]; then run no; else run 4; fi",
           "A='p q'\n[[ $A == 'p q' ]] && run 5\n[[ $A == \"&&\" ]] || run 6\n[[ '&&' ]] && run 7",
           "A=b\ncase $A in\n a) B=1;;\n b|c) B=2;;\n *) B=3\nesac\nrun $B",
           "A=x\ncase $A in a) B=1;; (x) B=4;; *) B=3;; esac\nrun $B",
           "A=3\nif [ $A -gt 2 ] && [ $A -lt 4 ]; then if [ $A != 3 ]; then run no; else run 3; fi; fi",
           "CMD='run a'\n$CMD --b\neval $CMD '\"c d\"'\ntrue <<E >/dev/null\nrun x\nE\nexit\nrun y",
           "false && run a\ntrue && run b\nfalse || run d\n: ${A:=5}; run $A; unset A; run ${A:-6}",
       }) {
    CAPTURE(text);
    CHECK(Commands(text) == ByBash(text));
  }
}

TEST_CASE("shell: words, quotes, comments and continued lines") {
  CHECK(Commands("run a  'b c' \"d  e\" f\\ g # no\nrun 2") == "[run][a][b c][d  e][f g]\n[run][2]\n");
  CHECK(Commands("run a \\\n  b \\\r\n  c#d") == "[run][a][b][c#d]\n");
  CHECK(Commands("run --x=\"a b\"'c'd") == "[run][--x=a bcd]\n");
  CHECK(Commands("run '' \"\"") == "[run][][]\n");
  CHECK(Commands("one; two && three || four & five") ==
        "[one]\n[two]\n[three] perhaps\n[four] perhaps\n[five]\n");
  CHECK(Commands("run a > out 2>&1 | tee log; next <in") == "[run][a]\n[tee][log]\n[next]\n");
  CHECK(Commands("cat <<EOF > file\nrun \"x\nEOF\nrun b") == "[cat]\n[run][b]\n");
  CHECK(Commands("cat <<-'END' x\n\tit's\n\tEND\nrun b") == "[cat][x]\n[run][b]\n");
}

TEST_CASE("shell: variables") {
  CHECK(Commands("A=1 B=two\nC=$A$B\nrun $C ${C}x \"$C\" '$C' \\$C") == "[run][1two][1twox][1two][$C][$C]\n");
  CHECK(Commands("A='x  y'\nrun $A \"$A\" p${A}q") == "[run][x][y][x  y][px][yq]\n");
  CHECK(Commands("A=\nrun $A \"$A\" -$A-") == "[run][][--]\n");
  CHECK(Commands("A=0\nexport A=1 B=$A\nC=2 D=$C\nrun $A $B $D") == "[run][1][0][2]\n");
  CHECK(Commands("A=1; A+=2; A=${A}3; run $A") == "[run][123]\n");
  CHECK(Commands("run $A", {{"A", "out side"}}) == "[run][out][side]\n");
  CHECK(Commands("A=in\nrun $A", {{"A", "out"}}) == "[run][in]\n");
  CHECK(Commands("run $1 ${2:-x} \"$@\"", {{"1", "one"}}) == "[run][one][x]\n");
  CHECK(Commands("run \"$@\"", {{"@", "--a 1"}}) == "[run][--a][1]\n");
}

TEST_CASE("shell: what the user sets counts, whatever the script sets it to, but where it makes more of it") {
  const auto commands = [](const std::string& text) {
    return Commands(text, {{"A", "env"}}, {{"A", "mine"}});
  };
  CHECK(commands("run $A") == "[run][mine]\n");
  CHECK(commands("A=1\nexport A=2\nrun $A") == "[run][mine]\n");
  CHECK(commands("A=(1 2)\nrun ${A[@]}") == "[run][mine]\n");
  CHECK(commands("A=$(hostname)\nB=${A}/x\nrun $B") == "[run][mine/x]\n");
  CHECK(commands("A=0\nfor i in 1 2; do A=\"$A $i\"; done\nrun \"$A\"") == "[run][mine]\n");
  CHECK(commands("for A in 1 2; do x; done\nif [ $X ]; then A=3; fi\nread A\nrun $A") ==
        "[x] perhaps\n[run][mine]\n");
  CHECK(commands("A=\"$A more\"\nA+=\" still\"\nrun \"$A\"") == "[run][mine more still]\n");
  CHECK(commands("A=${A:-1}\nB=$A\nA=2\nrun $A $B") == "[run][mine][mine]\n");
  CHECK(commands("A=\"$A $(date)\"\nrun \"$A\"") == "[run][mine]\n");
}

TEST_CASE("shell: the folder that a script is in, until it moves") {
  CHECK(Commands("A=`pwd`\nB=$( pwd )/b\nrun $A ${B} $PWD/c") == "[run][.][./b][./c]\n");
  CHECK(Commands("run $(pwd -P) $(pwd; ls) $(pwdx)") == "[run][?][?][?]\n");
  CHECK(Commands("A=$(pwd)\ncd /x\nrun $A $(pwd) $PWD") == "[run][.][?][?]\n");
  CHECK(Commands("run $PWD", {}, {{"PWD", "/x"}}) == "[run][/x]\n");
}

TEST_CASE("shell: defaults") {
  CHECK(Commands("run ${A:-x} ${A-y} ${A:=z} $A") == "[run][x][y][z][z]\n");
  CHECK(Commands("A=\nrun [${A:-x}] [${A-y}] [${A:+z}] [${A+w}]") == "[run][[x]][[]][[]][[w]]\n");
  CHECK(Commands("A=1\nrun ${A:-x} ${A:?no} ${B:-${A}0} ${B:-\"p q\"} ${B:-p q}") ==
        "[run][1][1][10][p q][p][q]\n");
}

TEST_CASE("shell: arrays") {
  CHECK(Commands("A=(\n  --x 1  # one\n  '--y z'\n)\nrun \"${A[@]}\" ${A[@]}") ==
        "[run][--x][1][--y z][--x][1][--y][z]\n");
  CHECK(Commands("A=(a b)\nA+=(c)\nrun $A ${A[1]} ${A[-1]} ${#A[@]} \"${A[*]}\"") ==
        "[run][a][b][c][3][a b c]\n");
  CHECK(Commands("A=()\nrun \"${A[@]}\" ${A[@]}") == "[run]\n");
  CHECK(Commands("B='1 2'\nA=($B \"$B\")\nrun ${#A[@]}") == "[run][3]\n");
}

TEST_CASE("shell: sums") {
  CHECK(Commands("N=4\nrun $((N * 8)) $(( $N+2*3 )) $(((1+2)*-3)) $((7/2)) $((7%4)) $((-7/2))") ==
        "[run][32][10][-9][3][3][-3]\n");
  CHECK(Commands("run $((1/0)) $((X+1)) $((2**3)) $((9223372036854775807+1)) $((1 2))") ==
        "[run][?][?][?][?][?]\n");
}

TEST_CASE("shell: what only a running shell can tell is unknown") {
  CHECK(Commands("A=$(hostname)\nB=`date`\nrun $A $B $C ${#C} ${A%x} \"pre$C\" $? $#") ==
        "[run][?][?][?][?][?][pre?][?][?]\n");
  CHECK(Commands("A=abc\nrun ${A%c} ${A/a/b} ${A,,} ${!A} ${A:0:1}") == "[run][?][?][?][?][?]\n");
}

TEST_CASE("shell: conditions over known values are evaluated") {
  CHECK(Commands("A=1\nif [ $A -eq 1 ]; then B=yes; else B=no; fi\nrun $B") == "[run][yes]\n");
  CHECK(Commands("A=1\nif [[ \"$A\" == \"2\" ]]; then B=2; elif [ -n \"$A\" ]; then B=some; else B=no; "
                 "fi\nrun $B") == "[run][some]\n");
  CHECK(Commands("A=1\nif ! [ -z \"$A\" ]; then run yes; fi") == "[run][yes]\n");
  CHECK(Commands("[ 1 = 2 ] && A=1\n[ 1 = 2 ] || A=2\nrun $A") == "[run][2]\n");
  CHECK(Commands("A=b\ncase $A in\n a) B=1;;\n b|c) B=2;;\n *) B=3\nesac\nrun $B") == "[run][2]\n");
  CHECK(Commands("A=x\ncase $A in a) B=1;; *) B=3;; esac\nrun $B") == "[run][3]\n");
  CHECK(Commands("if [ 1 = 2 ]; then if [ $X ]; then A=1; fi; run no; fi\nrun yes") == "[run][yes]\n");
  CHECK(Commands("run a\nexit 0\nrun b") == "[run][a]\n");
}

TEST_CASE("shell: what depends on an unknown condition is unknown") {
  CHECK(Commands("A=0\nif [ -d /data ]; then A=1; run; fi\nB=$A\nrun $B") == "[run] perhaps\n[run][?]\n");
  CHECK(Commands("A=0\nif [ \"$X\" = 1 ]; then A=1; else B=2; fi\nrun $A $B") == "[run][?][?]\n");
  // What is known may decide alone.
  CHECK(Commands("[[ $X == 1 && a == b ]] && run no\n[[ a == a || $X ]] && run yes") == "[run][yes]\n");
  CHECK(Commands("[[ $X == 1 && a == a ]] && run a\n[[ a == b || $X ]] && run b") ==
        "[run][a] perhaps\n[run][b] perhaps\n");
  CHECK(Commands("[[ a < b ]] && run a\n[[ a && ]] && run b\n[[ ( a ) ]] && run c") ==
        "[run][a] perhaps\n[run][b] perhaps\n[run][c] perhaps\n");
  CHECK(Commands("for i in 1 2; do A=$i; run $i; done; run $A $i") == "[run][?] perhaps\n[run][?][?]\n");
  CHECK(Commands("while read line; do run; done < file\nrun b") == "[run] perhaps\n[run][b]\n");
  CHECK(Commands("f() {\n  A=1\n  run\n}\nfunction g {\n run c; }\nrun $A") ==
        "[run] perhaps\n[run][c] perhaps\n[run][?]\n");
  CHECK(Commands("grep x file && A=1\nrun $A") == "[grep][x][file]\n[run][?]\n");
  CHECK(Commands("case $X in a) A=1;; *) A=2;; esac\nrun $A") == "[run][?]\n");
}

TEST_CASE("shell: texts that a shell gets") {
  CHECK(Commands("CMD=\"python x.py --a 1\"\nsrun -l bash -c \"cd /x; $CMD\"") ==
        "<srun><-l>[python][x.py][--a][1]\n");
  CHECK(Commands("CMD='run a'\neval $CMD --b\n$CMD") == "[run][a][--b]\n[run][a]\n");
}

TEST_CASE("shell: every byte of an expansion knows its place") {
  const std::string text = "LAYERS=12\nARGS=\"--n $LAYERS\"\nrun $ARGS";
  std::vector<Diagnostic> diagnostics;
  const ShellScript script = ReadShell(recipe::Source("a.sh", text), {}, {}, &diagnostics);
  REQUIRE(script.commands.size() == 1);
  const std::vector<ShellText>& words = script.commands[0].words;
  REQUIRE(words.size() == 3);
  CHECK(words[1].place == text.find("--n"));
  CHECK(words[2].text == "12");
  CHECK(words[2].place == text.find("12"));
  CHECK(words[2].places == std::vector<std::size_t>{7, 8});
}

TEST_CASE("shell: what is not understood is an error at its place") {
  CHECK(Commands("run 'a\nb") ==
        "a.sh:1:5: error: this ' is never closed, or nested too deeply\n    run 'a\n        ^\n");
  CHECK(Commands("A=(1 2\nrun").find("a.sh:1:1: error: this array is never closed") == 0);
  CHECK(Commands("(cd x; run)").find("a.sh:1:1: error: commands in ( ) are not read; write them without") ==
        0);
  CHECK(Commands("if [ 1 = 1 ]; then\nrun").find("error: what begins here has no end in this file") !=
        std::string::npos);
  CHECK(Commands("run a\nfi").find("a.sh:2:1: error: `fi` has no beginning") != std::string::npos);
  CHECK(Commands("run ${A").find("a.sh:1:5: error: this ${ is never closed") == 0);
  CHECK(Commands("A=(a ; b)").find("an array's item cannot be ;") != std::string::npos);
  CHECK(Commands(")").find("no command may begin with )") != std::string::npos);
}

TEST_CASE("shell: hostile texts end") {
  std::string doubling = "A=aaaaaaaaaaaaaaaa\n";
  for (int i = 0; i < 60; ++i) doubling += "A=$A$A\n";
  CHECK(Commands(doubling + "run $A") == "[?]\n");
  std::string items = "A=(a a)\n";
  for (int i = 0; i < 60; ++i) items += "A=(${A[@]} ${A[@]})\n";
  CHECK(Commands(items + "run ${A[0]}").size() < 100);
  std::string nested;
  for (int i = 0; i < 5000; ++i) nested += "${A:-";
  CHECK(Commands("run " + nested).find("nested too deeply") != std::string::npos);
  nested.clear();
  for (int i = 0; i < 5000; ++i) nested += "\"$(";
  CHECK(Commands("run " + nested).find("nested too deeply") != std::string::npos);
  CHECK(Commands("A='eval $A'\neval $A").find("texts are nested too deeply") != std::string::npos);
  std::string ifs;
  for (int i = 0; i < 5000; ++i) ifs += "if a; then\n";
  CHECK(Commands(ifs).find("nested too deeply") != std::string::npos);
  std::string sum = "run $((";
  for (int i = 0; i < 5000; ++i) sum += "-";
  CHECK(Commands(sum + "1))") == "[run][?]\n");
}

// Each prefix of a script, and each with one byte changed, is read without a crash.
TEST_CASE("shell: cut and changed scripts") {
  const std::string text =
      "A=${B:-\"x $((1+2))\"}\nC=(a 'b' \"${A[@]}\")\nif [ $A = 1 ] && [[ a ]]; then run `x` 2>&1 | y; fi\n"
      "case $A in a|b) c;; *) d;; esac\nf() { e; }\ncat <<E\n$\nE\nbash -c \"$A\"\n";
  for (std::size_t i = 0; i <= text.size(); ++i) {
    Commands(text.substr(0, i));
    for (const char c : {'"', '\'', '(', ')', '{', '}', '$', '\\', '\n', ';', '`', '#', ' ', '['}) {
      std::string changed = text;
      changed[std::min(i, text.size() - 1)] = c;
      Commands(changed);
    }
  }
}

}  // namespace engine::import
