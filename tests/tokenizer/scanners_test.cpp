#include "engine/data/tokenizer/scanners.h"

#include <doctest/doctest.h>

#include <random>

#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/regex.h"

namespace engine::tokenizer {
namespace {

// Ends of the pieces of `text` that are matches or lie between them.
std::vector<std::uint32_t> RegexEnds(std::string_view pattern, std::string_view text) {
  static std::vector<std::pair<std::string, Regex>> compiled;
  auto found = std::find_if(compiled.begin(), compiled.end(),
                            [&](const auto& entry) { return entry.first == pattern; });
  if (found == compiled.end()) {
    absl::StatusOr<Regex> regex = Regex::Compile(std::string(pattern));
    REQUIRE_MESSAGE(regex.ok(), Message(regex.status()));
    compiled.emplace_back(pattern, std::move(*regex));
    found = compiled.end() - 1;
  }
  std::vector<Regex::Match> matches;
  REQUIRE(found->second.FindAll(text, &matches).ok());
  std::vector<std::uint32_t> ends;
  std::uint32_t last = 0;
  for (const Regex::Match match : matches) {
    if (match.begin > last) ends.push_back(match.begin);
    ends.push_back(match.end);
    last = match.end;
  }
  if (last < text.size()) ends.push_back(static_cast<std::uint32_t>(text.size()));
  return ends;
}

std::vector<std::uint32_t> PatternEnds(Scanner scanner, std::string_view text) {
  std::vector<std::uint32_t> ends = {static_cast<std::uint32_t>(text.size())};
  if (text.empty()) return {};
  for (const std::string_view pattern : PatternsOf(scanner)) {
    std::vector<std::uint32_t> finer;
    std::uint32_t begin = 0;
    for (const std::uint32_t end : ends) {
      for (const std::uint32_t part : RegexEnds(pattern, text.substr(begin, end - begin)))
        finer.push_back(begin + part);
      begin = end;
    }
    ends = std::move(finer);
  }
  return ends;
}

constexpr Scanner kScanners[] = {Scanner::kGpt2,  Scanner::kLlama3, Scanner::kQwen,
                                 Scanner::kO200k, Scanner::kTekken, Scanner::kDeepSeek};

// All that this processor can do.
std::vector<ScannerSpeed> Speeds() {
  std::vector<ScannerSpeed> speeds;
  for (const ScannerSpeed speed : {ScannerSpeed::kPortable, ScannerSpeed::kAvx2, ScannerSpeed::kAvx512}) {
    if (speed <= FastestScanner()) speeds.push_back(speed);
  }
  return speeds;
}

void CheckSame(std::string_view text) {
  for (const Scanner scanner : kScanners) {
    CAPTURE(static_cast<int>(scanner));
    CAPTURE(text);
    const std::vector<std::uint32_t> expected = PatternEnds(scanner, text);
    for (const ScannerSpeed speed : Speeds()) {
      CAPTURE(static_cast<int>(speed));
      std::vector<std::uint32_t> ends;
      Scan(scanner, text, &ends, speed);
      REQUIRE(ends == expected);
    }
  }
}

// Characters that the patterns tell apart, several of each kind and length in UTF-8.
constexpr char32_t kTelling[] = {
    'a',     'b',     's',      't',    'r',    'e',    'v',     'm',     'l',     'd',     'S',     'T',
    'R',     'E',     'L',      'M',    'A',    'Z',    '0',     '1',     '9',     ' ',     ' ',     ' ',
    '\t',    '\n',    '\n',     '\r',   '\v',   '\f',   '\'',    '\'',    '\'',    '/',     '/',     '.',
    '!',     '-',     '_',      '$',    '+',    '<',    '^',     '`',     '~',     '\0',    0x1B,    0x7F,
    0x85,    0xA0,    0xAA,     0xAD,   0xB2,   0xBC,   0xB7,    0xD7,    0xC9,    0xE9,    0x17F,   0x1C5,
    0x2B0,   0x300,   0x301,    0x345,  0x391,  0x3B1,  0x416,   0x436,   0x5D0,   0x660,   0x903,   0x20DD,
    0x1680,  0x180E,  0x2003,   0x200B, 0x200D, 0x2014, 0x2028,  0x2029,  0x2160,  0x2163,  0x20AC,  0x212A,
    0x3000,  0x3001,  0x3041,   0x3099, 0x309B, 0x30A0, 0x30A2,  0x30FB,  0x30FC,  0x4E00,  0x4F60,  0x9FA5,
    0x9FA6,  0xAC00,  0xE000,   0xFE0F, 0xFEFF, 0xFFFD, 0x10400, 0x10428, 0x1D7D8, 0x1F600, 0x1F1E9, 0x1F3FD,
    0x20000, 0xE0001, 0x10FFFF, 0x378};

}  // namespace

TEST_CASE("scanners cut random texts as their patterns do") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    // Few kinds at a time, so that runs come up.
    const std::size_t kinds = 1 + random() % 6;
    char32_t of[6] = {};
    for (std::size_t i = 0; i < kinds; ++i) of[i] = kTelling[random() % std::size(kTelling)];
    const std::size_t length = 1 + random() % 14;
    for (std::size_t i = 0; i < length; ++i) AppendUtf8(of[random() % kinds], &text);
    CheckSame(text);
  }
}

TEST_CASE("scanners cut random texts of all telling characters as their patterns do") {
  std::mt19937_64 random(8);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 120; ++i) AppendUtf8(kTelling[random() % std::size(kTelling)], &text);
    CheckSame(text);
  }
}

// Long enough for several blocks of 64 bytes, and with other characters seldom.
TEST_CASE("scanners cut random ASCII as their patterns do") {
  std::mt19937_64 random(9);
  constexpr std::string_view kParts[] = {"a",   "b",  "the", "of",   "S",    "Ab",  "T",    " ",  " ",
                                         " ",   "  ", "\n",  "\r\n", "\t",   "\n ", "'",    "'s", "'ll",
                                         "'lL", "'T", "'re", "'v",   "1",    "23",  ".",    ",",  "(",
                                         ")\n", "/",  "//",  "\n\n", "\n /", "_",   "\x01", "-",  "\u00E9"};
  for (int round = 0; round < 1500; ++round) {
    std::string text;
    std::string_view of[12];
    const std::size_t kinds = 2 + random() % 11;
    for (std::size_t i = 0; i < kinds; ++i) of[i] = kParts[random() % std::size(kParts)];
    const std::size_t length = random() % 300;
    while (text.size() < length) text += of[random() % kinds];
    CheckSame(text);
  }
}

TEST_CASE("scanners cut each code point between others as their patterns do") {
  std::string text;
  for (char32_t c = 0; c < 0x110000; c += c < 0x3400 ? 1 : 17) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    for (const std::string_view before : {"a", "A ", "'", "1", "\n"}) {
      text += before;
      AppendUtf8(c, &text);
    }
    text += "b.";
    if (text.size() > 20000) {
      CheckSame(text);
      text.clear();
    }
  }
  CheckSame(text);
}

TEST_CASE("scanners take time in proportion to the text") {
  for (const std::string_view unit : {"a", "A", " ", "\n", " \n", "'", "'s", "1", ".", "\u4F60", "\u0301",
                                      "\u3042A", "A\u0301", "\U0001F600", "/", "\u200D"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    for (const Scanner scanner : kScanners) {
      std::vector<std::uint32_t> ends;
      const std::clock_t begin = std::clock();
      Scan(scanner, text, &ends);
      CHECK(std::clock() - begin < CLOCKS_PER_SEC);  // takes some 10 ms
      CHECK(ends.back() == text.size());
    }
  }
}

// What npm's tokenizers 0.23.2 cuts by Split with these patterns, each match by itself.
TEST_CASE(
    "classes within classes, ends of lines and of words, and scripts are those of the reference library") {
  struct Case {
    std::string pattern;
    std::string text;
    std::vector<std::string> pieces;
  };
  const std::vector<Case> cases = {
      {"[^(\\s|[.,!?…。，、।۔،])]+",
       "Hello (world), it's|a…b。c",
       {"Hello", " (", "world", "), ", "it's", "|", "a", "…", "b", "。", "c"}},
      {"[\\w&&[^\\d]]+", "abc123def_4 é½", {"abc", "123", "def_", "4 ", "é", "½"}},
      {"[^a&&b]+", "aabbc", {"aabbc"}},
      {"[a-z&&[^aeiou]]+", "hello world", {"h", "e", "ll", "o ", "w", "o", "rld"}},
      {"[a[^b]]+", "abcab", {"a", "b", "ca", "b"}},
      {"[a-z&&[bc]d]+", "abcde", {"a", "bcd", "e"}},
      {"[^[^a-c]]+", "xabcx", {"x", "abc", "x"}},
      {"[a&&[b]]+", "ab", {"ab"}},
      {"\\bfoo\\b", "foo food foo_ foo-é", {"foo", " food foo_ ", "foo", "-é"}},
      {"\\Boo", "foo oo", {"f", "oo", " oo"}},
      {"\\b", "ab cd é½ 1", {"ab", " ", "cd", " ", "é½", " ", "1"}},
      {"^a", "aa\na\nba\n", {"a", "a\n", "a", "\nba\n"}},
      {"^", "ab\ncd\n", {"ab\n", "cd\n"}},
      {"b$", "ab\nb\nbb", {"a", "b", "\n", "b", "\nb", "b"}},
      {"$", "ab\ncd\n", {"ab", "\ncd", "\n"}},
      {"$", "ab\r\ncd", {"ab\r", "\ncd"}},
      {"^$", "a\n\nb\n", {"a\n", "\nb\n"}},
      {"(?<x>a)b", "abab", {"ab", "ab"}},
      {"a{,2}b", "aaab", {"a", "aab"}},
      {"(?i:[a-f&&[^c]])+", "abCDef", {"ab", "C", "Def"}},
      {"[a-z&&a-f&&[^b]]+", "abcxyz", {"a", "b", "c", "xyz"}},
      {"[\\p{L}\\p{M}&&[^a-z]]+", "abcDEFé", {"abc", "DEFé"}},
      {"[^\\p{L}&&\\S]+", " a1!2 b", {" ", "a", "1!2 ", "b"}},
      {"(?i:[^k&&[a-z]])+", "Kkſs", {"Kk", "ſs"}},
      {"[a[-z]]+", "a-yz", {"a-", "y", "z"}},
      {"[a-c&&[^b][x]]+", "abcx", {"a", "b", "c", "x"}},
      {"[a^&&^a]+", "a^b", {"a^", "b"}},
      {"[^a[^b]]+", "abc", {"a", "b", "c"}},
      {"[[a-c]&&[b-d]e]+", "abcde", {"a", "bc", "de"}},
      {"[^\\n]+$", "ab\ncd\n\n", {"ab", "\n", "cd", "\n\n"}},
      {"(?i:^the\\b)", "The other\nthe then", {"The", " other\n", "the", " then"}},
      {"[+[\\-*]/]+", "a+-*/b", {"a", "+-*/", "b"}},
      {"\\p{Han}+", "あ你好、カ한x々", {"あ", "你好", "、カ한x", "々"}},
      {"[\\p{Hiragana}\\p{Katakana}ー]+", "ひらがなカタカナー漢字ﾊﾝ", {"ひらがなカタカナー", "漢字", "ﾊﾝ"}},
      {"\\P{Hangul}+", "한국어 한자漢字ㄱ", {"한국어", " ", "한자", "漢字", "ㄱ"}},
      {"[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}"
       "\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{"
       "Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'"
       "d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
       "Hello你好World's 12345 ＡB漢字かなtest\n\n x",
       {"Hello", "你好", "World's", " ", "123", "45", " ＡB", "漢字", "かなtest", "\n\n", " x"}},
      {"\\w+", "é½x²", {"é½x²"}},
      {"[\\w]+", "é½x²", {"é", "½", "x", "²"}},
      {"[^\\W]+", "é½x²", {"é", "½", "x", "²"}},
      {"\\b", "a½b-²", {"a½b", "-", "²"}},
  };
  for (const auto& [pattern, text, wanted] : cases) {
    CAPTURE(pattern);
    CAPTURE(text);
    const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
    REQUIRE_MESSAGE(regex.ok(), Message(regex.status()));
    std::vector<Regex::Match> matches;
    REQUIRE(regex->FindAll(text, &matches).ok());
    std::vector<std::string> pieces;
    std::size_t last = 0;
    for (const Regex::Match& match : matches) {
      for (const std::size_t end : {std::size_t{match.begin}, std::size_t{match.end}}) {
        if (end > last) pieces.push_back(text.substr(last, end - last));
        last = end;
      }
    }
    if (last < text.size()) pieces.push_back(text.substr(last));
    CHECK(pieces == wanted);
  }
}

TEST_CASE("a regular expression that is not understood is refused by name") {
  const auto error = [](std::string_view pattern) { return Message(TranslateRegex(pattern).status()); };
  CHECK(error("a\\R") == "the regular expression \"a\\R\", at byte 1: \\R is not supported");
  CHECK(error("[a&&]") == "the regular expression \"[a&&]\", at byte 5: nothing stands behind &&");
  CHECK(error("[&&a]") == "the regular expression \"[&&a]\", at byte 1: nothing stands before &&");
  CHECK(error("[[:alpha:]]") ==
        "the regular expression \"[[:alpha:]]\", at byte 1: [:…:] is not supported; \\p{…} is");
  CHECK(error("[a[b]") == "the regular expression \"[a[b]\", at byte 5: a class without its ]");
  CHECK(error(std::string(50'000, '[')).ends_with("classes within classes to more than 20 levels"));
  CHECK(error("\\p{Greek}") ==
        "the regular expression \"\\p{Greek}\", at byte 0: the property \"Greek\" is not supported; general "
        "categories, Han, Hiragana, Katakana and Hangul are");
  CHECK(error("(?#a)") == "the regular expression \"(?#a)\", at byte 0: this kind of group is not supported");
  CHECK(error("") == "the regular expression is empty");
  CHECK(Message(Regex::Compile("(a").status())
            .starts_with("the regular expression \"(a\": missing closing parenthesis"));
}

TEST_CASE("what a regular expression repeats may come very often") {
  for (const char* pattern : {"(?:a|b)+", "[a-c&&[^c]]+", "[^c-z&&[b-z]]+", "[^[d]]+"}) {
    CAPTURE(pattern);
    const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
    REQUIRE(regex.ok());
    std::vector<Regex::Match> matches;
    const absl::Status status = regex->FindAll(std::string(1'000'000, 'a') + "d", &matches);
    REQUIRE_MESSAGE(status.ok(), Message(status));
    CHECK(matches.at(0).end == 1'000'000);
  }
}

TEST_CASE("a regular expression that goes back and forth without end is an error") {
  const absl::StatusOr<Regex> regex = Regex::Compile("(?:a+)+[bc]");
  REQUIRE(regex.ok());
  std::vector<Regex::Match> matches;
  const absl::Status status = regex->FindAll(std::string(1000, 'a'), &matches);
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
}

}  // namespace engine::tokenizer
