// The values of a training command's flags, by name; a bad one is an error at its place in the script.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/import/megatron_launch.h"

namespace engine::import {

class MegatronArguments {
 public:
  MegatronArguments(const recipe::Source& source, const MegatronCommand& command,
                    std::vector<Diagnostic>* diagnostics)
      : source_(source), command_(command), diagnostics_(diagnostics) {}

  const MegatronCommand& command() const { return command_; }

  // The last of this name, as argparse has it; null if it is not given.
  const MegatronArgument* Find(std::string_view name) const;
  bool Has(std::string_view name) const { return Find(name) != nullptr; }

  // nullopt: not given, or not readable, which is reported.
  std::optional<std::int64_t> Int(std::string_view name) const;
  std::optional<double> Number(std::string_view name) const;
  std::optional<std::string> Text(std::string_view name) const;
  std::vector<std::string> List(std::string_view name) const;

  // At the flag; at the training script if it is not given.
  void Error(std::string_view name, std::string message, std::string hint = "") const;
  // Adds a note at the flag: something that the importer has assumed, which its user should look at.
  void Note(std::string_view name, std::string message) const;
  recipe::Mark PlaceOf(std::string_view name) const;

 private:
  // False, and reported, where the script does not say the value.
  bool Known(const MegatronArgument& argument, const ShellText& value) const;
  void BadValue(const MegatronArgument& argument, const ShellText& value, const char* expected) const;

  const recipe::Source& source_;
  const MegatronCommand& command_;
  std::vector<Diagnostic>* diagnostics_;
};

}  // namespace engine::import
