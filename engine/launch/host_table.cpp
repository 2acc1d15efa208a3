#include "engine/launch/host_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace engine::launch {
namespace {

constexpr auto kComesBackWithin = std::chrono::milliseconds(500);  // a host whose connection alone was lost
constexpr int kBlameForOthers = 2;  // failures of its own after which a host makes place for a spare

}  // namespace

void HostTable::Take(std::int64_t generation, std::set<std::int64_t> expected, Clock::time_point by,
                     Clock::time_point now) {
  generation_ = generation;
  runs_ = generation > 0;
  expected_ = std::move(expected);
  expected_by_ = by;
  missing_until_ = std::max(by, now + options_.patience);
}

void HostTable::Come(std::int64_t host, const Facts& facts, Clock::time_point now) {
  if (facts.generation > generation_) {
    Take(facts.generation, expected_, now + options_.settling, now);
    holders_.clear();
    for (auto& [number, other] : hosts_) other.end.reset();
  }
  Host& known = hosts_[host];
  // Another process with its number may be on another machine.
  const int blame = known.facts.process == facts.process ? known.blame : 0;
  const auto place =
      std::find_if(holders_.begin(), holders_.end(), [&](const auto& h) { return h.second == host; });
  // It was not reached when the attempt began, and is told of it now.
  const bool missed_news = runs_ && place != holders_.end() && facts.generation < generation_ &&
                           known.facts.process == facts.process;
  if (missed_news) late_.insert(host);
  const bool goes_on = facts.generation == generation_ && generation_ > 0;
  std::optional<HostEnd> end;
  if (goes_on) end = known.end;
  known = {.facts = facts, .is_here = true, .gone_since = {}, .end = end, .blame = blame};
  // A host that has forgotten its place, as its process is another one, has lost it.
  std::erase_if(holders_,
                [&](const auto& holder) { return holder.second == host && !goes_on && !missed_news; });
  if (goes_on) size_ = facts.size;
  if (goes_on && facts.node >= 0) holders_[facts.node] = host;
}

void HostTable::Go(std::int64_t host, Clock::time_point now) {
  Host& known = hosts_[host];
  known.is_here = false;
  known.gone_since = now;
}

void HostTable::End(std::int64_t host, std::int64_t generation, const HostEnd& end,
                    const std::string& ranks_at) {
  Host& known = hosts_[host];
  known.facts.ranks_at = ranks_at;
  if (generation == generation_) known.end = end;
}

void HostTable::Finish(int code, const std::string& text) {
  if (finished_) return;
  finished_ = News{};
  finished_->over = true;
  finished_->code = code;
  finished_->text = text;
}

bool HostTable::IsSpare(std::int64_t host) const {
  return generation_ > 0 && std::none_of(holders_.begin(), holders_.end(),
                                         [&](const auto& holder) { return holder.second == host; });
}

std::map<std::int64_t, std::string> HostTable::Present() const {
  std::map<std::int64_t, std::string> present;
  for (const auto& [host, known] : hosts_) {
    if (known.is_here) present[host] = known.facts.successor_at;
  }
  return present;
}

std::optional<HostTable::News> HostTable::Decide(Clock::time_point now) {
  if (over_) return std::nullopt;
  if (finished_) {
    over_ = true;
    return finished_;
  }
  const bool awaits =
      now < expected_by_ && std::any_of(expected_.begin(), expected_.end(), [&](std::int64_t host) {
        const auto found = hosts_.find(host);
        return found == hosts_.end() || !found->second.is_here;
      });
  if (awaits) return std::nullopt;
  if (!std::exchange(late_, {}).empty() && runs_) return began_;
  if (runs_) {
    if (!AttemptIsOver(now)) return std::nullopt;
    JudgeAttempt(now);
    return Decide(now);
  }
  // One that was asked to stop while no attempt ran.
  for (const auto& [host, known] : hosts_) {
    if (known.end && known.end->asked_to_stop && known.is_here) {
      Finish(known.end->code, "");
      return Decide(now);
    }
  }
  if (now < not_before_) return std::nullopt;
  const std::optional<AttemptSize> size = NextSize(now);
  if (!size) return std::nullopt;
  if (size->nodes > 0) return Begin(*size);
  if (now < missing_until_) return std::nullopt;
  const std::int64_t present = CountHere(/*with_blamed=*/true);
  const std::int64_t needed = generation_ == 0 ? options_.nodes : options_.min_nodes;
  Finish(
      options_.lost_code,
      present >= needed
          ? fmt::format("{} of {} hosts are here, and no layout with fewer data-parallel ranks fits {} or "
                        "more of them",
                        present, options_.nodes, LeastPlaces())
          : fmt::format("{} hosts are needed, and {} {} here", needed, present, present == 1 ? "is" : "are"));
  return Decide(now);
}

std::int64_t HostTable::LeastPlaces() const { return options_.hosts - options_.min_nodes + 1; }

std::int64_t HostTable::CountHere(bool with_blamed) const {
  return std::count_if(hosts_.begin(), hosts_.end(), [&](const auto& known) {
    return known.second.is_here && (with_blamed || known.second.blame < kBlameForOthers);
  });
}

std::optional<AttemptSize> HostTable::NextSize(Clock::time_point now) const {
  const std::int64_t sound = CountHere(/*with_blamed=*/false);
  const std::int64_t present = CountHere(/*with_blamed=*/true);
  const std::int64_t usable = sound >= options_.min_nodes ? sound : present;
  if (usable >= options_.nodes) return AttemptSize{.nodes = options_.nodes, .dp = options_.dp};
  if (generation_ == 0 || usable < options_.min_nodes) return AttemptSize{};
  const bool may_come_back = present < size_.nodes && now < last_call_until_;
  if (may_come_back) return std::nullopt;
  return options_.fit(usable, LeastPlaces());
}

bool HostTable::AttemptIsOver(Clock::time_point now) const {
  for (const auto& [node, number] : holders_) {  // the host of a place without one is lost
    const Host& host = hosts_.at(number);
    if (host.is_here ? !host.end.has_value() : now < host.gone_since + kComesBackWithin) return false;
  }
  return true;
}

void HostTable::JudgeAttempt(Clock::time_point now) {
  std::vector<HostEnd> ends;
  for (const auto& [node, number] : holders_) {
    Host& host = hosts_.at(number);
    if (!host.is_here || !host.end) continue;
    ends.push_back(*host.end);
    if (host.end->is_suspect) host.blame += kBlameForOthers;
    if (!host.end->verdict.empty()) ++host.blame;
  }
  const Sequel sequel = options_.judge(generation_, ends);
  runs_ = false;
  if (sequel.ends) return Finish(sequel.code, sequel.text);
  for (auto& [number, host] : hosts_) host.end.reset();
  text_ = sequel.text;
  from_disk_ = sequel.from_disk;
  not_before_ = now + sequel.pause;
  last_call_until_ = now;
  if (options_.min_nodes < options_.nodes) last_call_until_ += options_.last_call;
  missing_until_ = last_call_until_ + options_.patience;
}

// The host that has the place next: the one that has it now, unless it is to blame more than one that has none.
std::int64_t HostTable::HostFor(std::int64_t node, std::int64_t nodes, const std::set<std::int64_t>& taken,
                                bool by_blame) const {
  const auto holder = holders_.find(node);
  const auto holds_any = [&](std::int64_t number) {
    return std::any_of(holders_.begin(), holders_.end(),
                       [&](const auto& h) { return h.first < nodes && h.second == number; });
  };
  std::vector<std::tuple<int, bool, std::int64_t>> choices;
  for (const auto& [number, host] : hosts_) {
    const bool is_its =
        generation_ == 0 ? number == node : holder != holders_.end() && holder->second == number;
    const bool is_anothers = !is_its && (generation_ == 0 ? number < options_.nodes : holds_any(number));
    if (!host.is_here || taken.contains(number) || is_anothers) continue;
    choices.emplace_back(by_blame ? host.blame / kBlameForOthers : 0, !is_its, number);
  }
  return choices.empty() ? -1 : std::get<2>(*std::min_element(choices.begin(), choices.end()));
}

std::map<std::int64_t, std::int64_t> HostTable::Assign(std::int64_t nodes, bool by_blame) const {
  std::map<std::int64_t, std::int64_t> holders;
  std::set<std::int64_t> taken;
  for (std::int64_t node = 0; node < nodes; ++node) {
    const std::int64_t host = HostFor(node, nodes, taken, by_blame);
    if (host < 0) continue;
    taken.insert(host);
    holders[node] = host;
  }
  return holders;
}

std::optional<HostTable::News> HostTable::Begin(const AttemptSize& size) {
  std::map<std::int64_t, std::int64_t> holders = Assign(size.nodes, /*by_blame=*/true);
  if (static_cast<std::int64_t>(holders.size()) < size.nodes)
    holders = Assign(size.nodes, /*by_blame=*/false);
  if (static_cast<std::int64_t>(holders.size()) < size.nodes) return std::nullopt;
  News news;
  news.text = text_;
  news.size = size;
  news.from_disk = from_disk_;
  const auto say = [&](const std::string& what) { news.text += (news.text.empty() ? "" : "; ") + what; };
  if (size != size_)
    say(fmt::format("on {} hosts instead of {}, with dp {} instead of {} and the same global batch",
                    size.nodes, size_.nodes, size.dp, size_.dp));
  size_ = size;
  for (const auto& [node, host] : holders) {
    news.nodes[host] = node;
    const auto before = holders_.find(node);
    const std::int64_t had = before != holders_.end() ? before->second : generation_ == 0 ? node : -1;
    if (had == host) continue;
    say(fmt::format("host {} ({}) has place {}", host, hosts_.at(host).facts.process, node));
  }
  holders_ = std::move(holders);
  news.generation = ++generation_;
  news.ranks_at = hosts_.at(holders_.at(0)).facts.ranks_at;
  for (auto& [number, host] : hosts_) {
    host.end.reset();
    if (!host.is_here || host.facts.copies_at.empty()) continue;
    news.copies_at += (news.copies_at.empty() ? "" : ",") + host.facts.copies_at;
  }
  runs_ = true;
  expected_.clear();
  began_ = news;
  if (options_.begins) options_.begins(news.from_disk);
  return news;
}

}  // namespace engine::launch
