// The named dims of a model: their sizes and what they mean.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/model/build.h"
#include "engine/model/step_context.h"
#include "engine/recipe/document.h"

namespace engine::model {

// B and S are the samples and tokens of a microbatch; all others are in [model.dims].
//
// What a dim means follows from its name: B samples, S and T a sequence, H and K heads, V a vocabulary, X experts, E the
// elements of a head (other); of any other name, features. [model.means] says otherwise. A number or an expression means
// nothing (other).
class DimTable {
 public:
  // `causal`: sequences are read under causal masks alone.
  DimTable(const BuildOptions& options, bool causal) : options_(options), causal_(causal) {}

  // The tables of a text; mistakes are added.
  void Read(const recipe::Node* dims, const recipe::Node* means, std::vector<Diagnostic>* diagnostics);
  // The same dims with some set anew, as a call of a block does; expressions see the dims outside.
  DimTable With(const recipe::Node& dims, std::vector<Diagnostic>* diagnostics) const;

  // A dim of a shape: an integer, or an expression. An error where it is none or not positive.
  absl::StatusOr<std::int64_t> Size(const recipe::Node& node) const;
  absl::StatusOr<Sizes> SizesOf(const recipe::Node& node) const;  // of a list, or of one dim
  absl::StatusOr<std::int64_t> Integer(const recipe::Node& node) const;
  absl::StatusOr<double> Real(const recipe::Node& node) const;

  // Whether an expression has named the dim, also one that a copy of this table has evaluated (With).
  bool IsRead(std::string_view name) const { return read_->contains(name); }

 private:
  absl::StatusOr<std::int64_t> ValueOf(std::string_view name) const;
  std::vector<std::string> Names() const;
  void Evaluate(const recipe::Entry& entry, std::vector<std::string>* open, const recipe::Node& all,
                std::vector<Diagnostic>* diagnostics);
  graph::Dim MeaningOf(const recipe::Node& node) const;
  graph::Dim MeaningByName(std::string_view name) const;
  absl::Status Append(const recipe::Node& node, Sizes* sizes) const;

  BuildOptions options_;
  bool causal_;
  std::map<std::string, std::int64_t, std::less<>> sizes_;
  std::map<std::string, graph::Dim, std::less<>> means_;
  using NameSet = std::set<std::string, std::less<>>;
  std::shared_ptr<NameSet> read_ = std::make_shared<NameSet>();  // shared by copies
};

}  // namespace engine::model
