// The blocks of a text, with `like`, `without` and changed steps followed.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/document.h"

namespace engine::model {

struct Block {
  const recipe::Node* node = nullptr;  // of [block.NAME]
  recipe::Node steps;                  // a list
  std::string gives = "x";             // the name of its result
};

class Blocks {
 public:
  // Reads [block]; mistakes are added.
  Blocks(const recipe::Node* blocks, std::vector<Diagnostic>* diagnostics);
  // Null where there is none of that name, or where it has a mistake.
  const Block* Find(std::string_view name) const;
  bool Has(std::string_view name) const { return node_ != nullptr && node_->Find(name) != nullptr; }
  std::vector<std::string> Names() const;
  // Those that Find was never asked for, neither by a step nor by a block that is like it; in the text's order.
  std::vector<const recipe::Entry*> Unused() const;

 private:
  void Read(const recipe::Entry& entry, std::vector<std::string>* open, std::vector<Diagnostic>* diagnostics);
  void ReadDerived(const recipe::Entry& entry, std::vector<std::string>* open, Block* block,
                   std::vector<Diagnostic>* diagnostics);

  const recipe::Node* node_;
  std::map<std::string, Block, std::less<>> blocks_;
  mutable std::set<std::string, std::less<>> found_;  // what Find was asked for
};

}  // namespace engine::model
