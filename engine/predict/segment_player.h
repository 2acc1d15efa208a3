// A part of predict/predict.h: what one stage's computation takes for a segment, or a piece of one, and what it
// leaves under way behind it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/predict/predict.h"

namespace engine::predict {

// Of all instructions of a segment, seconds.
struct SegmentCosts {
  struct Times {
    double seconds = 0;  // of the kernel or the exchange
    double finish = 0;   // that a pushed sum leaves to compute
    double beside = 0;   // share of its speed that computation loses beside the exchange
  };
  std::vector<Times> times;
  double await_s = 0;
};

// Exchange that is under way behind computation. Times from now.
struct UnderWay {
  // What a pushed sum leaves to compute.
  struct Sum {
    const plan::Instruction* exchange = nullptr;
    double seconds = 0;
  };

  // Detached exchange that nothing has waited for yet, and when it ends.
  struct Detached {
    Sum sum;
    double end = 0;
  };

  // Of a stream that exchanges behind computation.
  struct Beside {
    double until = 0;  // when it has done all that it has
    double share = 0;  // of its speed, that computation loses until then
    bool push = false;
  };
  // plan::kExchangeStream's and plan::kBucketStream's.
  using BothBeside = std::array<Beside, 2>;

  BothBeside beside;
  std::vector<Detached> detached;

  void Pass(double seconds) {
    for (Beside& stream : beside) {
      stream.until = std::max(0.0, stream.until - seconds);
      if (stream.until == 0) stream.share = 0;
    }
    for (Detached& one : detached) one.end = std::max(0.0, one.end - seconds);
  }
  double busy() const { return std::max(beside[0].until, beside[1].until); }
  double finish() const {
    double seconds = 0;
    for (const Detached& one : detached) seconds += one.sum.seconds;
    return seconds;
  }
  // Equal for what goes on alike.
  using Key = std::pair<std::vector<double>, std::vector<const plan::Instruction*>>;
  Key ToKey() const {
    Key key;
    for (const Beside& stream : beside) {
      const bool pushes = stream.push && stream.until > 0;
      key.first.insert(key.first.end(), {stream.until, stream.share, pushes ? 1.0 : 0.0});
    }
    for (const Detached& one : detached) {
      key.first.insert(key.first.end(), {one.end, one.sum.seconds});
      key.second.push_back(one.sum.exchange);
    }
    return key;
  }
};

// A piece of a segment, played. Times from its beginning.
struct PlayedPiece {
  double seconds = 0;  // computation's stream
  double compute = 0;  // of these, kernels
  double exposed = 0;  // and exchange that it waits for
  double exchange = 0;
  // What the kernels are of, and their seconds; of a sum that is added up, its exchange. They are `compute` together.
  std::vector<std::pair<const plan::Instruction*, double>> kernels;
  UnderWay after;
};

// What is played, for whom and from when on.
struct PlayedSegment {
  std::int64_t microbatches = 1;  // of the program
  const plan::Segment& segment;
  const SegmentCosts& costs;
  std::int32_t stage = 0;
  double at = 0;
  std::vector<PlayedEvent>* events = nullptr;  // null: none are noted
};

// Walks instructions [begin, end) as executor::RankExecutor does, for the step.
PlayedPiece PlaySegment(const PlayedSegment& played, const plan::Step& step, std::size_t begin,
                        std::size_t end, const UnderWay& before);

inline bool Exchanges(const plan::Instruction& instruction) { return instruction.Exchanges(); }

}  // namespace engine::predict
