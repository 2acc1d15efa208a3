// What the rules of fusion (compile/fuse.h, compile/fuse_attention.h) are written with.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "engine/compile/fuse.h"

namespace engine::compile {

// A local graph under rewriting: who makes and who reads each value, kept true while nodes come and go.
class Rewriter {
 public:
  explicit Rewriter(LocalGraph* graph) : graph_(*graph), removed_(graph->nodes.size(), false) {
    readers_.resize(graph_.values.size());
    producer_.assign(graph_.values.size(), -1);
    for (int i = 0; i < size(); ++i) Link(i);
  }

  int size() const { return static_cast<int>(graph_.nodes.size()); }
  bool alive(int i) const { return !removed_[static_cast<size_t>(i)]; }
  LocalNode& node(int i) { return graph_.nodes[static_cast<size_t>(i)]; }
  const plan::LocalValue& value(std::int32_t v) const { return graph_.values[static_cast<size_t>(v)]; }
  bool Is(int i, const graph::OpDef& op) { return i >= 0 && alive(i) && node(i).op == &op; }
  int Producer(std::int32_t v) const { return producer_[static_cast<size_t>(v)]; }
  const std::vector<int>& Readers(std::int32_t v) const { return readers_[static_cast<size_t>(v)]; }
  int OnlyReader(std::int32_t v) const { return Readers(v).size() == 1 ? Readers(v)[0] : -1; }

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
    node(i) = std::move(by);
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
      if (!elsewhere[static_cast<size_t>(i)]) nodes.push_back(std::move(node(i)));
      const auto moved = moved_.find(i);
      if (moved == moved_.end()) continue;
      for (int m : moved->second) {
        if (alive(m)) nodes.push_back(std::move(node(m)));
      }
    }
    graph_.nodes = std::move(nodes);
  }

 private:
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

// A rule looks at one node, and may replace it and others.
class FusionRules {
 public:
  FusionRules(const FuseOptions& options, LocalGraph* graph)
      : options_(options), profile_(*options.profile), g_(graph) {}

 protected:
  // Rule by rule, each for all nodes.
  template <typename Rules>
  void Apply(std::initializer_list<void (Rules::*)(int)> rules) {
    for (const auto rule : rules) {
      for (int i = 0; i < g_.size(); ++i) {
        if (g_.alive(i)) (static_cast<Rules*>(this)->*rule)(i);
      }
    }
  }

  bool SameChunk(const LocalNode& a, const LocalNode& b) const {
    return options_.chunk_of(a.unit) == options_.chunk_of(b.unit);
  }

  bool Has(const graph::OpDef& op, std::int32_t value) const {
    return profile_.fuses(op, {g_.value(value).local, g_.value(value).dtype});
  }

  const FuseOptions& options_;
  const plan::DeviceProfile& profile_;
  Rewriter g_;
};

}  // namespace engine::compile
