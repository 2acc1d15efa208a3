// The keys of an object of JSON that someone else wrote: each is read with its type and range, and accounted for.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace engine::hf {

// "KEY = VALUE: why", one each.
using Remarks = std::vector<std::string>;

// As it stands in the file, cut where it is long: for messages.
std::string ShownJson(const nlohmann::json& value);

class ConfigKeys {
 public:
  // `prefix`: of the keys' names in messages, "rope_scaling.". A key that cannot be used is added to `problems`; object and
  // problems outlive this.
  ConfigKeys(const nlohmann::json& object, std::string prefix, Remarks* problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  // Whether the key is there and is not null. Does not account for it.
  bool Has(std::string_view key) const;
  // Whether it is there as null.
  bool IsNull(std::string_view key) const;
  bool IsTaken(std::string_view key) const { return taken_.contains(key); }
  // The key's value, whatever it is; null where it is not there or is null. Accounts for the key, as all that follow do.
  const nlohmann::json* Take(std::string_view key);
  // Nothing where it is not there, is null, or has been reported.
  std::optional<std::int64_t> Whole(std::string_view key, std::int64_t least, std::int64_t most);
  std::optional<double> Number(std::string_view key, double least, double most);
  std::optional<bool> Flag(std::string_view key);
  std::optional<std::string> Word(std::string_view key);
  std::optional<std::vector<double>> Numbers(std::string_view key, double least, double most);

  // Reports a key with its value.
  void Refuse(std::string_view key, const std::string& why);
  // The keys that nothing has accounted for and that are not null.
  std::vector<std::string> Rest() const;
  const nlohmann::json& object() const { return object_; }

 private:
  const nlohmann::json& object_;
  std::string prefix_;
  Remarks* problems_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace engine::hf
