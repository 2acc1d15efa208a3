#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/data/tokenizer/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/unicode.h"

namespace engine::tokenizer {
namespace {

constexpr std::uint32_t kMostSteps = 10'000'000;  // of one match
constexpr std::uint32_t kMostHeapKib = 1 << 20;   // for one match, of what it may go back to
constexpr std::size_t kMostPatternBytes = 100'000;

using Test = std::function<bool(char32_t)>;

// The code points for which `test` holds, as ranges of a class.
std::string RangesOf(const Test& test) {
  std::string ranges;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if ((c >= 0xD800 && c <= 0xDFFF) || !test(c)) continue;
    char32_t last = c;
    while (last + 1 < 0x110000 && last + 1 != 0xD800 && test(last + 1)) ++last;
    ranges += last == c ? fmt::format("\\x{{{:X}}}", static_cast<std::uint32_t>(c))
                        : fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", static_cast<std::uint32_t>(c),
                                      static_cast<std::uint32_t>(last));
    c = last;
  }
  return ranges;
}

// \w of Oniguruma in a class: that of Rust's without the joiners.
bool IsOnigurumaWordOfClass(char32_t c) { return c != 0x200C && c != 0x200D && Is(c, kWord); }

// Elsewhere it has six numbers of Latin-1, too.
bool IsOnigurumaWord(char32_t c) {
  return IsOnigurumaWordOfClass(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE);
}

// Scripts that tokenizers tell apart: Unicode 16.0's, of its file Scripts.txt.
struct Script {
  std::string_view name;
  std::vector<std::pair<char32_t, char32_t>> ranges;  // first and last
};
const Script kScripts[] = {
    {"Han",
     {{0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},   {0x3007, 0x3007},
      {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},
      {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3}, {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739},
      {0x2B740, 0x2B81D}, {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
      {0x30000, 0x3134A}, {0x31350, 0x323AF}}},
    {"Hiragana",
     {{0x3041, 0x3096},
      {0x309D, 0x309F},
      {0x1B001, 0x1B11F},
      {0x1B132, 0x1B132},
      {0x1B150, 0x1B152},
      {0x1F200, 0x1F200}}},
    {"Katakana",
     {{0x30A1, 0x30FA},
      {0x30FD, 0x30FF},
      {0x31F0, 0x31FF},
      {0x32D0, 0x32FE},
      {0x3300, 0x3357},
      {0xFF66, 0xFF6F},
      {0xFF71, 0xFF9D},
      {0x1AFF0, 0x1AFF3},
      {0x1AFF5, 0x1AFFB},
      {0x1AFFD, 0x1AFFE},
      {0x1B000, 0x1B000},
      {0x1B120, 0x1B122},
      {0x1B155, 0x1B155},
      {0x1B164, 0x1B167}}},
    {"Hangul",
     {{0x1100, 0x11FF},
      {0x302E, 0x302F},
      {0x3131, 0x318E},
      {0x3200, 0x321E},
      {0x3260, 0x327E},
      {0xA960, 0xA97C},
      {0xAC00, 0xD7A3},
      {0xD7B0, 0xD7C6},
      {0xD7CB, 0xD7FB},
      {0xFFA0, 0xFFBE},
      {0xFFC2, 0xFFC7},
      {0xFFCA, 0xFFCF},
      {0xFFD2, 0xFFD7},
      {0xFFDA, 0xFFDC}}},
};

class RegexTranslator {
 public:
  explicit RegexTranslator(std::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < in_.size()) RETURN_IF_ERROR(Item());
    return std::move(out_);
  }

 private:
  template <typename... Args>
  absl::Status Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    return Unimplemented("the regular expression \"{}\", at byte {}: {}", Shown(in_, 60), at_,
                         fmt::format(format, std::forward<Args>(args)...));
  }
  bool Starts(std::string_view text) const { return in_.substr(at_).starts_with(text); }

  absl::Status Item() {
    const char c = in_[at_];
    if (c == '\\') return Escape(/*in_class=*/false);
    if (c == '[') return Class();
    if (c == '(' && Starts("(?")) return Group();
    if (c == '{' && Starts("{,")) return Literal("{0,", 2);
    if (c == '}' && at_ + 1 < in_.size() && in_[at_ + 1] == '+') return Refuse("}}+ is not supported");
    // Ends and beginnings of lines; behind the text's last line end no line begins.
    if (c == '$') return Literal("(?=\\n|\\z)", 1);
    if (c == '^') return Literal("(?:\\A|(?<=\\n)(?!\\z))", 1);
    if (c == '#' || c == ' ') out_ += '\\';  // of no meaning without the option x; said for safety
    out_ += c;
    ++at_;
    return absl::OkStatus();
  }

  absl::Status Literal(std::string_view translated, std::size_t bytes) {
    out_ += translated;
    at_ += bytes;
    return absl::OkStatus();
  }

  absl::Status Group() {
    for (const std::string_view known :
         {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:", "(?i)"}) {
      if (!Starts(known)) continue;
      out_ += known;
      at_ += known.size();
      return absl::OkStatus();
    }
    const std::size_t end = in_.find('>', at_);
    const bool is_named = Starts("(?<") && end != std::string_view::npos && end > at_ + 3;
    if (!is_named) return Refuse("this kind of group is not supported");
    return Literal("(?:", end + 1 - at_);  // nothing asks for it by its name
  }

  // A class of characters named by one letter, or by \p{…}.
  absl::Status Named(const Test& test, bool is_negated, bool in_class) {
    const std::string ranges = RangesOf([&](char32_t c) { return test(c) != is_negated; });
    out_ += in_class ? ranges : fmt::format("[{}]", ranges);
    return absl::OkStatus();
  }

  absl::Status Property(bool in_class) {
    bool is_negated = in_[at_ + 1] == 'P';
    const std::size_t end = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || end == std::string_view::npos)
      return Refuse("\\p needs {{…}}");
    std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    if (name.starts_with('^')) {
      is_negated = !is_negated;
      name.remove_prefix(1);
    }
    constexpr std::string_view kNames[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                           "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                           "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cs"};
    Properties any_of = 0;
    for (std::size_t i = 0; i < std::size(kNames); ++i) {
      if (kNames[i] == name || (name.size() == 1 && kNames[i][0] == name[0]))
        any_of |= Of(static_cast<Category>(i));
    }
    const auto script = std::find_if(std::begin(kScripts), std::end(kScripts),
                                     [name](const Script& known) { return known.name == name; });
    if (any_of == 0 && script == std::end(kScripts)) {
      return Refuse(
          "the property \"{}\" is not supported; general categories, Han, Hiragana, Katakana and Hangul are",
          Shown(name));
    }
    at_ = end + 1;
    const auto is_of_script = [script](char32_t c) {
      return std::any_of(script->ranges.begin(), script->ranges.end(),
                         [c](const auto& range) { return range.first <= c && c <= range.second; });
    };
    return any_of != 0 ? Named([any_of](char32_t c) { return Is(c, any_of); }, is_negated, in_class)
                       : Named(is_of_script, is_negated, in_class);
  }

  absl::Status Escape(bool in_class) {
    if (at_ + 1 >= in_.size()) return Refuse("a \\ at the end");
    const char c = in_[at_ + 1];
    switch (c) {
      case 'p':
      case 'P':
        return Property(in_class);
      case 's':
      case 'S':
        at_ += 2;
        return Named([](char32_t x) { return Is(x, kWhiteSpace); }, c == 'S', in_class);
      case 'd':
      case 'D':
        at_ += 2;
        return Named([](char32_t x) { return Is(x, Of(Category::kNd)); }, c == 'D', in_class);
      case 'w':
      case 'W':
        at_ += 2;
        return Named(in_class ? IsOnigurumaWordOfClass : IsOnigurumaWord, c == 'W', in_class);
      case 'v':
        at_ += 2;
        out_ += "\\x0B";
        return absl::OkStatus();
      case 'u':
      case 'x':
        return Hexadecimal(c == 'u' ? 4 : 2);
      case 'b':
      case 'B': {
        if (in_class) return Refuse("\\{} is not supported here", c);
        const std::string word = fmt::format("[{}]", RangesOf(IsOnigurumaWord));
        const std::string_view form =
            c == 'b' ? "(?:(?<={0})(?!{0})|(?<!{0})(?={0}))" : "(?:(?<={0})(?={0})|(?<!{0})(?!{0}))";
        return Literal(fmt::format(fmt::runtime(form), word), 2);
      }
      case 'A':
      case 'z':
        if (in_class) return Refuse("\\{} is not supported here", c);
        [[fallthrough]];
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        out_ += in_.substr(at_, 2);
        at_ += 2;
        return absl::OkStatus();
      default:
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
            static_cast<unsigned char>(c) >= 0x80) {
          return Refuse("\\{} is not supported", Shown(std::string_view(&c, 1)));
        }
        out_ += in_.substr(at_, 2);
        at_ += 2;
        return absl::OkStatus();
    }
  }

  // \uHHHH, \xHH or \x{H…}
  absl::Status Hexadecimal(std::size_t digits) {
    std::size_t begin = at_ + 2;
    std::size_t end = begin + digits;
    const bool has_braces = begin < in_.size() && in_[begin] == '{';
    if (has_braces) end = std::min(in_.find('}', ++begin), in_.size());
    if (end > in_.size() || end == begin || end - begin > 6)
      return Refuse("a code point needs {} hexadecimal digits", digits);
    char32_t value = 0;
    for (const char c : in_.substr(begin, end - begin)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return Refuse("a code point needs hexadecimal digits");
      value = value << 4 | static_cast<char32_t>(digit);
    }
    if (value > 0x10FFFF || (digits == 2 && !has_braces && value > 0x7F))
      return Refuse("\\x above 7F is a byte, which is not supported");
    out_ += fmt::format("\\x{{{:X}}}", static_cast<std::uint32_t>(value));
    at_ = end + (has_braces ? 1 : 0);
    return absl::OkStatus();
  }

  absl::Status Class() {
    ASSIGN_OR_RETURN(const Set set, ReadSet(/*depth=*/0));
    out_ += ExpressionOf(set);
    return absl::OkStatus();
  }

  // Characters: those of a class of PCRE2, without its brackets, and those that the other expressions match, which PCRE2 has no
  // classes for.
  struct Set {
    std::string ranges;
    std::vector<std::string> others;
  };
  static std::string ExpressionOf(const Set& set) {
    if (set.others.empty()) return fmt::format("[{}]", set.ranges);
    // A single class with a "not" stands without the group below, for which PCRE2 would need memory for each character of a run.
    if (set.ranges.empty() && set.others.size() == 1 && set.others[0].starts_with("[^")) return set.others[0];
    const std::string first = set.ranges.empty() ? "" : fmt::format("[{}]|", set.ranges);
    return fmt::format("(?:{}{})", first, fmt::join(set.others, "|"));
  }

  // A class from its [ on, in which other classes may be, and && between what a character has to be of at once.
  absl::StatusOr<Set> ReadSet(int depth) {
    constexpr int kMostDepth = 20;
    if (depth > kMostDepth) return Refuse("classes within classes to more than {} levels", kMostDepth);
    ++at_;
    const bool is_negated = Starts("^");
    if (is_negated) ++at_;
    if (Starts("]")) return Refuse("an empty class, or one that begins with ], is not supported");
    std::vector<Set> all_of(1);
    while (at_ < in_.size() && in_[at_] != ']') {
      Set& set = all_of.back();
      if (Starts("[:")) return Refuse("[:…:] is not supported; \\p{{…}} is");
      if (Starts("[")) {
        ASSIGN_OR_RETURN(Set inner, ReadSet(depth + 1));
        // A hyphen at its border would make a range with what stands on the other side.
        if (set.ranges.ends_with('-') || inner.ranges.starts_with('-')) {
          set.others.push_back(ExpressionOf(std::exchange(inner, {})));
        }
        set.ranges += inner.ranges;
        for (std::string& other : inner.others) set.others.push_back(std::move(other));
      } else if (Starts("&&")) {
        if (set.ranges.empty() && set.others.empty()) return Refuse("nothing stands before &&");
        all_of.emplace_back();
        at_ += 2;
      } else if (in_[at_] == '\\') {
        const std::size_t before = out_.size();
        RETURN_IF_ERROR(Escape(/*in_class=*/true));
        set.ranges += out_.substr(before);
        out_.resize(before);
      } else {
        if (in_[at_] == '^') set.ranges += '\\';  // which would negate, if it came first
        set.ranges += in_[at_++];
      }
    }
    if (at_ == in_.size()) return Refuse("a class without its ]");
    ++at_;
    if (all_of.back().ranges.empty() && all_of.back().others.empty())
      return Refuse("nothing stands behind &&");
    if (all_of.size() == 1 && !is_negated) return all_of[0];
    if (all_of.size() == 1 && all_of[0].others.empty())
      return Set{"", {fmt::format("[^{}]", all_of[0].ranges)}};
    std::string expression;
    for (std::size_t i = 0; i + 1 < all_of.size(); ++i)
      expression += fmt::format("(?={})", ExpressionOf(all_of[i]));
    expression += ExpressionOf(all_of.back());
    return Set{"", {is_negated ? fmt::format("(?!{})(?s:.)", expression) : expression}};
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
};

std::string RegexErrorText(int code) {
  unsigned char text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct FreeRegexMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

absl::StatusOr<std::string> TranslateRegex(std::string_view pattern) {
  if (pattern.empty()) return InvalidArgument("the regular expression is empty");
  if (pattern.size() > kMostPatternBytes) {
    return InvalidArgument("a regular expression of {} bytes; at most {} are supported", pattern.size(),
                           kMostPatternBytes);
  }
  return RegexTranslator(pattern).Run();
}

struct Regex::Code {
  std::string pattern;
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  ~Code() {
    pcre2_code_free(code);
    pcre2_match_context_free(context);
  }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Compile(const std::string& pattern) {
  ASSIGN_OR_RETURN(const std::string translated, TranslateRegex(pattern));
  auto code = std::make_unique<Code>();
  code->pattern = pattern;
  int error = 0;
  PCRE2_SIZE offset = 0;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                             PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (code->code == nullptr) {
    return InvalidArgument("the regular expression \"{}\": {}", Shown(pattern), RegexErrorText(error));
  }
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);  // without it pcre2_match interprets: the same, slower
  code->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(code->context, kMostSteps);
  pcre2_set_heap_limit(code->context, kMostHeapKib);
  return Regex(std::move(code));
}

absl::Status Regex::FindAll(std::string_view text, std::vector<Match>* matches) const {
  const std::unique_ptr<pcre2_match_data, FreeRegexMatch> match(
      pcre2_match_data_create_from_pattern(code_->code, nullptr));
  std::size_t last_end = text.size() + 1;  // of the last match: none
  for (std::size_t at = 0; at <= text.size();) {
    const auto find = [&](std::uint32_t options) {
      return pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                         PCRE2_NO_UTF_CHECK | options, match.get(), code_->context);
    };
    int matched = find(0);
    // What is repeated very often has no room on the stack of compiled code; the interpreter takes memory for it.
    if (matched == PCRE2_ERROR_JIT_STACKLIMIT) matched = find(PCRE2_NO_JIT);
    if (matched == PCRE2_ERROR_NOMATCH) break;
    if (matched < 0) {
      return ResourceExhausted(
          "the tokenizer's regular expression \"{}\" takes too long on this text from byte {} on: {}",
          Shown(code_->pattern), at, RegexErrorText(matched));
    }
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(match.get());
    if (ends[0] == ends[1] &&
        ends[1] == last_end) {  // an empty match right behind the last one does not count
      ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
      continue;
    }
    matches->push_back({static_cast<std::uint32_t>(ends[0]), static_cast<std::uint32_t>(ends[1])});
    at = last_end = ends[1];
  }
  return absl::OkStatus();
}

}  // namespace engine::tokenizer
