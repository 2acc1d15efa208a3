#include "engine/launch/shared_store.h"

#include <utility>

namespace engine::launch {

SharedStore::SharedStore(std::size_t world, Answer answer) : world_(world), answer_(std::move(answer)) {}

void SharedStore::Set(const std::string& key, const std::string& value) {
  values_[key] = value;
  AnswerKey(key);
}

void SharedStore::Ask(Question question, const std::string& key) {
  questions_[key].push_back(std::move(question));
  AnswerKey(key);
}

void SharedStore::AnswerKey(const std::string& key) {
  const auto value = values_.find(key);
  const auto asked = questions_.find(key);
  if (value == values_.end() || asked == questions_.end()) return;
  bool taken = false;
  for (const Question& question : asked->second) {
    answer_(question, value->second);
    taken = taken || question.take;
  }
  questions_.erase(asked);
  if (taken) values_.erase(value);
}

void SharedStore::Barrier(Question question, const std::string& name) {
  std::vector<Question>& here = barriers_[name];
  here.push_back(std::move(question));
  if (here.size() < world_) return;
  for (const Question& each : here) answer_(each, "");
  barriers_.erase(name);
}

}  // namespace engine::launch
