// Scripts for tests of the importer: a lawful run, with changes.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/import/megatron_import.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/load.h"
#include "engine/recipe/print.h"

namespace engine::import {

using Flags = std::map<std::string, std::string>;  // "--flag" → its values; "-" takes a flag out

inline Flags With(Flags flags, const Flags& more) {
  for (const auto& [flag, values] : more) flags[flag] = values;
  return flags;
}

// A lawful run of 8 ranks.
inline const Flags kBase = {{"--num-layers", "8"},
                            {"--hidden-size", "64"},
                            {"--num-attention-heads", "8"},
                            {"--seq-length", "32"},
                            {"--max-position-embeddings", "32"},
                            {"--micro-batch-size", "2"},
                            {"--lr", "1e-3"},
                            {"--data-path", "data"},
                            {"--train-iters", "100"},
                            {"--vocab-size", "1000"}};

inline std::string Script(const Flags& changes, const std::string& launcher = "torchrun --nproc-per-node 8") {
  Flags flags = kBase;
  for (const auto& [flag, values] : changes) flags[flag] = values;
  std::string script = launcher + " pretrain_gpt.py";
  for (const auto& [flag, values] : flags) {
    if (values != "-") script += " \\\n  " + flag + (values.empty() ? "" : " " + values);
  }
  return script + "\n";
}

inline MegatronImport Import(const std::string& text, const Flags& variables = {}) {
  return ImportMegatron(recipe::Source("run.sh", text), {variables, ""});
}

// "line:column: error: message | hint: text", or with "warning" or "note", for each diagnostic.
inline std::string Messages(const std::vector<Diagnostic>& diagnostics) {
  std::string messages;
  for (const Diagnostic& d : diagnostics) {
    messages += std::to_string(d.span.line) + ":" + std::to_string(d.span.column) + ": " +
                (d.severity == Severity::kError  ? "error: "
                 : d.severity == Severity::kNote ? "note: "
                                                 : "warning: ") +
                d.message + (d.hint.empty() ? "" : " | hint: " + d.hint) + "\n";
  }
  return messages;
}

// The values of these keys, as TOML, of what a run with these flags comes to.
inline std::string Values(const Flags& changes, const std::vector<std::string>& keys) {
  MegatronImport import = Import(Script(changes));
  std::erase_if(import.diagnostics, [](const Diagnostic& d) { return d.severity == Severity::kNote; });
  CHECK(Messages(import.diagnostics).empty());
  const recipe::LoadResult loaded = recipe::LoadText(import.recipe, "a.toml");
  CHECK(Messages(loaded.diagnostics).empty());
  std::string values;
  for (const std::string& key : keys) {
    values += (values.empty() ? "" : " ") + recipe::ToToml(Get(*recipe::FindField(key), loaded.recipe));
  }
  return values;
}

// The message of the only error, without its place.
inline std::string ErrorOf(const Flags& changes) {
  const std::string messages = Messages(Import(Script(changes)).diagnostics);
  const std::size_t begin = messages.find("error: ");
  return begin == std::string::npos ? messages : messages.substr(begin + 7, messages.size() - begin - 8);
}

}  // namespace engine::import
