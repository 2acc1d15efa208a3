#include "engine/model/expression.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::model {
namespace {

constexpr int kMostDepth = 64;

bool IsLetter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool IsOfName(char c) { return IsLetter(c) || IsDigit(c) || c == '_'; }

// ", and 2 or 4 would divide it": the divisors of a that are next to b; empty where none is near.
std::string DivisorsText(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kFarthest = 4096;
  if (a < 1 || b < 1) return "";
  const auto next = [&](std::int64_t step) -> std::int64_t {
    for (std::int64_t i = 1; i <= kFarthest && b + i * step >= 1 && b + i * step <= a; ++i) {
      if (a % (b + i * step) == 0) return b + i * step;
    }
    return 0;
  };
  const std::int64_t below = next(-1), above = next(1);
  if (below == 0 && above == 0) return "";
  const bool both = below != 0 && above != 0;
  return fmt::format(", and {}{} would divide {}", below != 0 ? below : above,
                     both ? fmt::format(" or {}", above) : "", a);
}

// What the two kinds of numbers do differently.
struct Integers {
  using Number = std::int64_t;
  static absl::StatusOr<Number> Read(std::string_view digits) {
    Number number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      return InvalidArgument("'{}' is no integer of 63 bits", digits);
    }
    return number;
  }
  static absl::StatusOr<Number> Apply(std::string_view sign, Number a, Number b) {
    Number result = 0;
    bool overflow = false;
    if (sign == "+") overflow = __builtin_add_overflow(a, b, &result);
    if (sign == "-") overflow = __builtin_sub_overflow(a, b, &result);
    if (sign == "*") overflow = __builtin_mul_overflow(a, b, &result);
    if (sign == "/" || sign == "//") {
      if (b == 0) return InvalidArgument("{} / 0", a);
      if (sign == "/" && a % b != 0) {
        return InvalidArgument("{} / {} leaves a remainder of {}; // would round it down{}", a, b, a % b,
                               DivisorsText(a, b));
      }
      result = a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
    }
    if (sign == "**") {
      if (b < 0) return InvalidArgument("{} ** {} is no integer", a, b);
      result = 1;
      for (Number i = 0; i < b && !overflow; ++i)
        overflow = i > 63 || __builtin_mul_overflow(result, a, &result);
    }
    if (overflow) return InvalidArgument("{} {} {} does not fit in 63 bits", a, sign, b);
    return result;
  }
};

struct Reals {
  using Number = double;
  static absl::StatusOr<Number> Read(std::string_view digits) {
    Number number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size())
      return InvalidArgument("'{}' is no number", digits);
    return number;
  }
  static absl::StatusOr<Number> Apply(std::string_view sign, Number a, Number b) {
    if (sign == "+") return a + b;
    if (sign == "-") return a - b;
    if (sign == "*") return a * b;
    if (sign == "**") return std::pow(a, b);
    if (b == 0) return InvalidArgument("{} / 0", a);
    return sign == "//" ? std::floor(a / b) : a / b;
  }
};

template <typename Kind>
class Evaluator {
 public:
  using Number = typename Kind::Number;
  Evaluator(std::string_view text, const DimValue& value) : text_(text), value_(value) {}

  absl::StatusOr<Number> All() {
    ASSIGN_OR_RETURN(const Number result, Sum());
    Skip();
    if (at_ < text_.size()) return InvalidArgument("'{}' is not understood", Shown(text_.substr(at_)));
    return result;
  }

 private:
  void Skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  // Takes the sign if it stands here; * is not taken of **.
  bool Take(std::string_view sign) {
    Skip();
    if (text_.substr(at_, sign.size()) != sign) return false;
    const std::size_t behind = at_ + sign.size();
    if (sign == "*" && behind < text_.size() && text_[behind] == '*') return false;
    at_ = behind;
    return true;
  }

  absl::StatusOr<Number> Sum() {
    ASSIGN_OR_RETURN(Number left, Product());
    while (true) {
      const std::string_view sign = Take("+") ? "+" : Take("-") ? "-" : "";
      if (sign.empty()) return left;
      ASSIGN_OR_RETURN(const Number right, Product());
      ASSIGN_OR_RETURN(left, Kind::Apply(sign, left, right));
    }
  }
  absl::StatusOr<Number> Product() {
    ASSIGN_OR_RETURN(Number left, Signed());
    while (true) {
      const std::string_view sign = Take("//") ? "//" : Take("/") ? "/" : Take("*") ? "*" : "";
      if (sign.empty()) return left;
      ASSIGN_OR_RETURN(const Number right, Signed());
      ASSIGN_OR_RETURN(left, Kind::Apply(sign, left, right));
    }
  }
  absl::StatusOr<Number> Signed() {
    if (++depth_ > kMostDepth) return InvalidArgument("it is nested more than {} deep", kMostDepth);
    absl::StatusOr<Number> result = Power();
    --depth_;
    return result;
  }
  absl::StatusOr<Number> Power() {
    if (Take("-")) {
      ASSIGN_OR_RETURN(const Number number, Signed());
      return Kind::Apply("-", 0, number);
    }
    ASSIGN_OR_RETURN(const Number base, Atom());
    if (!Take("**")) return base;
    ASSIGN_OR_RETURN(const Number exponent, Signed());
    return Kind::Apply("**", base, exponent);
  }
  absl::StatusOr<Number> Atom() {
    if (Take("(")) {
      ASSIGN_OR_RETURN(const Number inner, Sum());
      if (!Take(")")) return InvalidArgument("a ')' is missing");
      return inner;
    }
    Skip();
    const std::size_t begin = at_;
    if (at_ < text_.size() && IsLetter(text_[at_])) {
      while (at_ < text_.size() && IsOfName(text_[at_])) ++at_;
      ASSIGN_OR_RETURN(const std::int64_t dim, value_(text_.substr(begin, at_ - begin)));
      return static_cast<Number>(dim);
    }
    while (at_ < text_.size() && (IsDigit(text_[at_]) || text_[at_] == '.' || IsExponent(begin))) ++at_;
    if (begin == at_) {
      return begin == text_.size() ? InvalidArgument("it ends where a number should stand")
                                   : InvalidArgument("'{}' is no number", Shown(text_.substr(begin)));
    }
    return Kind::Read(text_.substr(begin, at_ - begin));
  }
  // "1e-4": the e behind digits, and the sign behind that.
  bool IsExponent(std::size_t begin) const {
    const char c = text_[at_];
    if (at_ == begin) return false;
    if (c == 'e' || c == 'E') return true;
    return (c == '-' || c == '+') && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E');
  }

  std::string_view text_;
  const DimValue& value_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<std::int64_t> EvaluateInteger(std::string_view expression, const DimValue& value) {
  return Evaluator<Integers>(expression, value).All();
}

absl::StatusOr<double> EvaluateReal(std::string_view expression, const DimValue& value) {
  return Evaluator<Reals>(expression, value).All();
}

bool IsName(std::string_view text) {
  if (text.empty() || !IsLetter(text[0])) return false;
  for (const char c : text) {
    if (!IsOfName(c)) return false;
  }
  return true;
}

}  // namespace engine::model
