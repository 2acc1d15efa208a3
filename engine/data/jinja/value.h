// Values of templates: Python's, as far as JSON and Jinja have them. They are shared and never change, but for the
// attributes of a namespace.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace engine::jinja {

struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

// What a name or a member that is not there gives. It prints as nothing and is false; to use it further is an error.
struct Undefined {
  std::shared_ptr<const std::string> what;  // "'tools' is undefined"; null: nothing is known of it
};
struct None {};

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;  // UTF-8
  using Any = std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<const List>,
                           std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<Loop>,
                           std::shared_ptr<const Callable>>;

  Value() = default;  // undefined
  Value(None none) : any_(none) {}
  Value(bool truth) : any_(truth) {}
  Value(std::int64_t number) : any_(number) {}
  Value(double number) : any_(number) {}
  Value(std::string text) : any_(std::make_shared<const std::string>(std::move(text))) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(List list);
  Value(Dict dict);
  Value(std::shared_ptr<Namespace> space) : any_(std::move(space)) {}
  Value(std::shared_ptr<Loop> loop) : any_(std::move(loop)) {}
  Value(Callable callable);
  static Value UndefinedBecause(std::string what) {
    Value value;
    value.any_ = Undefined{std::make_shared<const std::string>(std::move(what))};
    return value;
  }

  bool is_undefined() const { return std::holds_alternative<Undefined>(any_); }
  bool is_none() const { return std::holds_alternative<None>(any_); }
  // Null where the value is of another kind.
  const bool* truth() const { return std::get_if<bool>(&any_); }
  const double* real() const { return std::get_if<double>(&any_); }
  const std::string* text() const { return Pointee<Text>(); }
  const List* list() const { return Pointee<std::shared_ptr<const List>>(); }
  const Dict* dict() const { return Pointee<std::shared_ptr<const Dict>>(); }
  Namespace* space() const { return Pointee<std::shared_ptr<Namespace>>(); }
  Loop* loop() const { return Pointee<std::shared_ptr<Loop>>(); }
  const Callable* callable() const { return Pointee<std::shared_ptr<const Callable>>(); }
  const Undefined& undefined() const { return std::get<Undefined>(any_); }

  // Integers and, as in Python, booleans, which are 0 and 1.
  bool is_integer() const { return std::holds_alternative<std::int64_t>(any_) || truth() != nullptr; }
  bool is_number() const { return is_integer() || real() != nullptr; }
  std::int64_t integer() const;
  double number() const;  // of is_number()

  // JSON's values and the lists that filters make of them: what a list or a dict may hold.
  bool is_data() const { return space() == nullptr && loop() == nullptr && callable() == nullptr; }
  int depth() const;  // of lists and dicts in each other; 0 of a value that is none

 private:
  template <typename Pointer>
  auto Pointee() const -> decltype(std::declval<Pointer>().get()) {
    const Pointer* pointer = std::get_if<Pointer>(&any_);
    return pointer == nullptr ? nullptr : pointer->get();
  }
  Any any_;
};

// Python's sequences. A generator, which filters as map give, can be gone through once, has no length and is true.
enum class Sequence : std::uint8_t { kList, kTuple, kRange, kView, kGenerator };
struct List {
  Sequence kind = Sequence::kList;
  std::vector<Value> items = {};
  int depth = 1;
  mutable bool is_spent = false;  // of a generator

  void Add(Value item);
};

// Keys are strings and keep the order in which they came.
struct Dict {
  std::vector<std::pair<std::string, Value>> entries;
  int depth = 1;

  const Value* Find(std::string_view key) const;  // null: there is none
  void Set(std::string key, Value value);         // in the place of an equal key

 private:
  absl::flat_hash_map<std::string, std::size_t> places_;  // of all entries, where there are many
};

struct Namespace {
  Dict attributes;
};

// The variable `loop` inside a for.
struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;
  int depth = 1;       // loops in each other
  bool asked = false;  // `changed` has been
  Value last_asked;
};

struct MacroSyntax;
class Scope;

// What can be called: a macro, a function by its name, or a method of a value.
struct Callable {
  std::string name;
  const MacroSyntax* macro = nullptr;
  Scope* scope = nullptr;  // of the macro's definition
  bool is_method = false;
  Value self = {};  // of a method
};

bool IsTrue(const Value& value);

// Python's ==. Numbers of different types are equal where their values are; values of different kinds are not.
bool AreEqual(const Value& a, const Value& b);

// Python's order of numbers, of strings by code points, and of lists; false: the two have none.
bool Compare(const Value& a, const Value& b, int* order);

// "str", "dict": what Python calls the value's type.
std::string_view TypeName(const Value& value);

// Appends str(value) or repr(value); false: the value has none here (a macro, a generator), or more than `most_bytes`.
bool AppendString(const Value& value, std::size_t most_bytes, std::string* out);
bool AppendRepr(const Value& value, std::size_t most_bytes, std::string* out);

// Python's repr of a float: the shortest digits that read back as the same number.
std::string ReprOf(double number);

}  // namespace engine::jinja
