// The text of a model that is made of another program's configuration: what it changes of the blocks that it extends.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace engine::hf {

class Draft {
 public:
  // `blocks`: the file that it extends, "engine:configs/blocks/llama.toml".
  explicit Draft(std::string_view blocks) : blocks_(blocks) {}

  void SetDim(std::string_view name, std::int64_t value);
  // A dim that is an expression of others: "N+R".
  void SetDim(std::string_view name, std::int64_t value, std::string expression);
  std::optional<std::int64_t> Dim(std::string_view name) const;

  // An attribute by its place, with / between the names, since steps have dots in theirs: "main/final_norm/epsilon",
  // "block/attention/qkv/bias", "rotary/rope/base", "main/layers/cycle/window". Of other keys of [model]: "init_std".
  void Set(std::string_view place, std::int64_t value);
  void Set(std::string_view place, double value);
  void SetFlag(std::string_view place, bool value);
  void SetWord(std::string_view place, std::string_view value);
  // As it stands in TOML: a list.
  void SetToml(std::string_view place, std::string value);

  // A table that edits a list of steps, as it stands in the text: "[[model.replace]]\nstep = …".
  void Edit(std::string toml) { edits_.push_back(std::move(toml)); }

  // TOML, with its `extends`.
  std::string Text() const;

 private:
  std::string blocks_;
  std::vector<std::string> dim_order_;
  std::map<std::string, std::int64_t, std::less<>> dims_;
  std::map<std::string, std::string, std::less<>> expressions_;
  nlohmann::ordered_json places_ = nlohmann::ordered_json::object();  // leaves are TOML
  std::vector<std::string> edits_;
};

}  // namespace engine::hf
