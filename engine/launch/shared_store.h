// What the rendezvous' server keeps for the ranks: values by key, and barriers by name (base/store.h says
// what a rank sees of them).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace engine::launch {

// A question about a key waits until the key has a value, and one at a barrier until all ranks are there. One
// thread calls everything here, and the answers are given from within these calls.
class SharedStore {
 public:
  struct Question {
    std::int64_t rank = 0;
    std::string number;  // by which the rank knows its question again
    bool take = false;   // the key is forgotten when all that wait for it are answered
  };
  // The value is empty for a barrier.
  using Answer = std::function<void(const Question& question, const std::string& value)>;

  SharedStore(std::size_t world, Answer answer);

  void Set(const std::string& key, const std::string& value);
  void Ask(Question question, const std::string& key);
  void Barrier(Question question, const std::string& name);

 private:
  void AnswerKey(const std::string& key);

  const std::size_t world_;
  const Answer answer_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::vector<Question>> questions_;  // by key
  std::map<std::string, std::vector<Question>> barriers_;   // by name
};

}  // namespace engine::launch
