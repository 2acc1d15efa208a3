#include "engine/search/block_exchange.h"

#include <algorithm>

namespace engine::search {
namespace {

double SecondsInLine(const ExchangeCost* exchange) {
  return exchange == nullptr ? 0.0 : exchange->seconds + exchange->finish;
}

// Computation of a block. `more`: another block follows, whose gather starts behind this one; `gathered`: until when
// that has run.
void ComputeBlock(const PassTime& each, const BlockExchange& of, bool more, TwoStreams* play,
                  double* gathered) {
  constexpr int kPieces = 8;                           // products and conversions alternate
  const bool in_turns = each.behind_s > 0;             // computation that is slowed down waits less for these
  const int behind_both = in_turns ? kPieces / 4 : 0;  // the other half has begun the block, too
  const double alone = play->now + each.seconds();
  for (int piece = 0; piece < kPieces; ++piece) {
    if (of.gather != nullptr && piece == behind_both && more) {
      play->Start(*of.gather);
      *gathered = play->exchanged;
    }
    play->Compute(each.compute_s / kPieces);
    if (!in_turns) play->now += each.exchange_s / kPieces;
  }
  if (in_turns) play->now = std::max(play->now, alone);
}

}  // namespace

PlayedBlocks PlayBlocks(std::int64_t blocks, const PassTime& each, const PassTime& rest, bool behind,
                        const BlockExchange& of, double busy) {
  const double n = static_cast<double>(blocks);
  if (!behind) {
    return {.seconds = rest.seconds() + SecondsInLine(of.reduce_head) +
                       n * (each.seconds() + SecondsInLine(of.gather) + of.before_s +
                            SecondsInLine(of.reduce) + of.after_s)};
  }
  TwoStreams play;
  play.now = rest.seconds();
  play.exchanged = busy;
  if (of.reduce != nullptr) play.beside = of.reduce->beside;
  double gathered = 0;
  if (of.gather != nullptr) {
    play.Start(*of.gather);
    gathered = play.exchanged;
  }
  if (of.reduce_head != nullptr && of.reduce_head->seconds > 0) play.Start(*of.reduce_head);
  for (std::int64_t i = 0; i < blocks; ++i) {
    if (of.gather != nullptr) play.now = std::max(play.now, gathered);
    play.Compute(of.before_s);
    ComputeBlock(each, of, i + 1 < blocks, &play, &gathered);
    if (of.reduce == nullptr) continue;
    play.Start(*of.reduce);
    play.Compute(of.after_s);
  }
  return {.seconds = play.now, .busy = std::max(0.0, play.exchanged - play.now), .finish = play.finish};
}

}  // namespace engine::search
