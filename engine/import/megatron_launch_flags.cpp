#include "engine/import/megatron_launch_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/import/megatron_flags.h"

namespace engine::import {
namespace {

// Cuts the words behind a training script's name into flags with their values, as argparse would; says which
// words are neither.
class FlagReader {
 public:
  FlagReader(const recipe::Source& source, std::vector<Diagnostic>* diagnostics)
      : source_(source), diagnostics_(diagnostics) {}

  std::vector<MegatronArgument> Read(const std::vector<ShellText>& words) {
    for (std::size_t i = 0; i < words.size();) {
      const ShellText& word = words[i];
      if (!word.unknown.empty() && word.text.rfind("--", 0) != 0) {
        Error(word, fmt::format("flags may be hidden here: {}", word.unknown), kMegatronSetHint);
        ++i;
        continue;
      }
      if (word.text.rfind("--", 0) != 0) {
        Error(word, fmt::format("'{}' is no flag, and no value of the flag before it", Shown(word.text)));
        ++i;
        continue;
      }
      i = ReadFlag(words, i);
    }
    return std::move(arguments_);
  }

 private:
  void Error(const ShellText& at, std::string message, std::string hint = "") {
    diagnostics_->push_back(source_.Error(MarkOf(source_, at), std::move(message), std::move(hint)));
  }

  // The flag at `i` with its values; the index behind them.
  std::size_t ReadFlag(const std::vector<ShellText>& words, std::size_t i) {
    const ShellText& word = words[i++];
    const std::size_t equals = word.text.find('=');
    const std::size_t name_end = std::min(equals, word.text.size());
    MegatronArgument argument{nullptr, word.Substring(0, name_end), {}};
    argument.name.unknown.clear();
    if (equals != std::string::npos) argument.values.push_back(word.Substring(equals + 1, word.text.size()));
    std::string problem;
    std::string hint;
    argument.flag = FindMegatronFlag(argument.name.text, &problem, &hint);
    if (argument.flag == nullptr) Error(argument.name, problem, hint);
    const bool many = argument.flag != nullptr && argument.flag->values == MegatronFlag::Values::kMany;
    while (i < words.size() && words[i].text.rfind("--", 0) != 0) {
      const bool enough =
          argument.flag != nullptr && !many &&
          argument.values.size() >= (argument.flag->values == MegatronFlag::Values::kOne ? 1 : 0);
      if (enough) break;
      argument.values.push_back(words[i++]);
    }
    if (argument.flag == nullptr) return i;
    CheckValues(argument, equals != std::string::npos);
    arguments_.push_back(std::move(argument));
    return i;
  }

  void CheckValues(const MegatronArgument& argument, bool equals) {
    const std::string& name = argument.name.text;
    if (argument.flag->values == MegatronFlag::Values::kNone && equals) {
      Error(argument.name, fmt::format("{} is a switch and takes no value", name));
    } else if (argument.flag->values != MegatronFlag::Values::kNone && argument.values.empty()) {
      Error(argument.name, fmt::format("{} has no value", name));
    }
  }

  const recipe::Source& source_;
  std::vector<Diagnostic>* diagnostics_;
  std::vector<MegatronArgument> arguments_;
};

}  // namespace

std::vector<MegatronArgument> ReadMegatronFlags(const recipe::Source& source,
                                                const std::vector<ShellText>& words,
                                                std::vector<Diagnostic>* diagnostics) {
  return FlagReader(source, diagnostics).Read(words);
}

}  // namespace engine::import
