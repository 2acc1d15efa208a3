// A local graph under rewriting.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <utility>
#include <vector>

#include "engine/compile/placements.h"

namespace engine::compile {

// Who makes and who reads each value is kept true while nodes come and go.
class Rewriter {
 public:
  explicit Rewriter(LocalGraph* graph) : graph_(*graph), removed_(graph->nodes.size(), false) {
    readers_.resize(graph_.values.size());
    producer_.assign(graph_.values.size(), -1);
    for (int i = 0; i < size(); ++i) Link(i);
  }

  int size() const { return static_cast<int>(graph_.nodes.size()); }
  bool alive(int i) const { return !removed_[static_cast<size_t>(i)]; }
  const LocalNode& node(int i) const { return graph_.nodes[static_cast<size_t>(i)]; }
  const plan::LocalValue& value(std::int32_t v) const { return graph_.values[static_cast<size_t>(v)]; }
  graph::TensorType type(std::int32_t v) const { return {value(v).local, value(v).dtype}; }
  // False for i = −1.
  bool Is(int i, const graph::OpDef& op) const { return i >= 0 && alive(i) && node(i).op == &op; }
  int Producer(std::int32_t v) const { return producer_[static_cast<size_t>(v)]; }  // −1: none
  const std::vector<int>& Readers(std::int32_t v) const { return readers_[static_cast<size_t>(v)]; }
  int OnlyReader(std::int32_t v) const { return Readers(v).size() == 1 ? Readers(v)[0] : -1; }  // −1: none

  std::int32_t AddValue(plan::LocalValue value) {
    graph_.values.push_back(std::move(value));
    readers_.emplace_back();
    producer_.push_back(-1);
    return static_cast<std::int32_t>(graph_.values.size() - 1);
  }

  void Remove(int i) {
    Unlink(i);
    removed_[static_cast<size_t>(i)] = true;
  }

  // Node i becomes another node, at its place in the order.
  void Replace(int i, LocalNode by) {
    Unlink(i);
    mutable_node(i) = std::move(by);
    Link(i);
  }

  // Node i is to run right after node `after` instead.
  void MoveAfter(int i, int after) { moved_[after].push_back(i); }

  // Drops removed nodes and moves those that are to be moved; indices are void after.
  void Finish() {
    std::vector<bool> elsewhere = removed_;
    for (const auto& [after, nodes] : moved_) {
      for (int i : nodes) elsewhere[static_cast<size_t>(i)] = true;
    }
    std::vector<LocalNode> nodes;
    nodes.reserve(graph_.nodes.size());
    for (int i = 0; i < size(); ++i) {
      if (!elsewhere[static_cast<size_t>(i)]) nodes.push_back(std::move(mutable_node(i)));
      const auto moved = moved_.find(i);
      if (moved == moved_.end()) continue;
      for (int m : moved->second) {
        if (alive(m)) nodes.push_back(std::move(mutable_node(m)));
      }
    }
    graph_.nodes = std::move(nodes);
  }

 private:
  LocalNode& mutable_node(int i) { return graph_.nodes[static_cast<size_t>(i)]; }

  void Link(int i) {
    for (std::int32_t input : node(i).inputs) readers_[static_cast<size_t>(input)].push_back(i);
    for (std::int32_t output : node(i).outputs) producer_[static_cast<size_t>(output)] = i;
  }
  void Unlink(int i) {
    for (std::int32_t input : node(i).inputs) std::erase(readers_[static_cast<size_t>(input)], i);
    for (std::int32_t output : node(i).outputs) {
      int& producer = producer_[static_cast<size_t>(output)];
      if (producer == i) producer = -1;
    }
  }

  LocalGraph& graph_;
  std::vector<bool> removed_;
  absl::flat_hash_map<int, std::vector<int>> moved_;  // by the node that they follow
  std::vector<std::vector<int>> readers_;
  std::vector<int> producer_;
};

}  // namespace engine::compile
