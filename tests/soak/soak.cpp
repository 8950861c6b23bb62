// A long run of decode states against a naive account of what they were given: steps of any size, steps begun and
// discarded, forks, marks, rollbacks, saves, restores and disposals, at random.
//
//   needle3_soak [--tokens N] [--seed S] [--geometry small|shipped]
//
// The account of a state is one number per position, from which its inputs there can be made again. At the small
// geometry every output is checked, at the shipped one every output's convolutions, and attention of one layer now and
// then. At each progress line all states are destroyed, and no memory of theirs may be left. Exits with 1 at the first
// difference.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/scratch.h"
#include "kernels/quantize.h"
#include "support/inputs.h"
#include "support/random.h"
#include "support/reference_state.h"
#include "support/state.h"

namespace needle3::testing {
namespace {

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}
void succeed(const Status& status) {
  if (!status.ok()) fail(status.message());
}

struct Marked {
  uint32_t id;
  size_t positions;
};

// A state, and for each of its positions the salt of the inputs it was given there.
struct Lane {
  StatePtr state;
  std::vector<uint32_t> salts;
  std::vector<Marked> marks;
};

class Soak {
 public:
  Soak(const Geometry& geometry, uint32_t seed, bool sampled)
      : geometry_(geometry), config_(geometry_.config()), random_(seed), sampled_(sampled) {}

  void run(uint64_t tokens) {
    constexpr uint64_t kReports = 20;
    for (uint64_t report = 1; report <= kReports; ++report) {
      const uint64_t until = tokens * report / kReports;
      while (tokens_ < until) act();
      const uint64_t inUse = arena_.memory.liveBytes();
      lanes_.clear();
      if (arena_.memory.liveBytes() != 0) fail("memory is left when all states are destroyed");
      std::printf(
          "%3llu %%  %llu tokens, %llu rollbacks, %llu forks, %llu restores, %llu attentions checked, "
          "%llu bytes in use before disposal\n",
          static_cast<unsigned long long>(report * 100 / kReports), static_cast<unsigned long long>(tokens_),
          static_cast<unsigned long long>(rollbacks_), static_cast<unsigned long long>(forks_),
          static_cast<unsigned long long>(restores_), static_cast<unsigned long long>(checked_),
          static_cast<unsigned long long>(inUse));
      std::fflush(stdout);
    }
  }

 private:
  static constexpr size_t kMaxLanes = 3;

  void act() {
    if (lanes_.empty()) lanes_.push_back(created());
    const size_t at = random_.below(static_cast<uint32_t>(lanes_.size()));
    Lane& lane = lanes_[at];
    const uint32_t draw = random_.below(100);
    if (draw < 76) {
      step(lane, true);
    } else if (draw < 82) {
      step(lane, false);
    } else if (draw < 87) {
      mark(lane);
    } else if (draw < 93) {
      rollback(lane);
    } else if (draw < 95) {
      release(lane);
    } else if (draw < 97) {
      if (lanes_.size() < kMaxLanes) fork(lane);
    } else if (draw < 98) {
      restore(lane);
    } else if (draw < 99) {
      lanes_.erase(lanes_.begin() + static_cast<ptrdiff_t>(at));
    } else if (random_.below(4) == 0) {
      lane.state->reset();
      lane.salts.clear();
      lane.marks.clear();
    }
  }

  Lane created() {
    static constexpr Precision kPrecisions[] = {Precision::kF32, Precision::kInt8};
    const Precision precision = kPrecisions[random_.below(2)];
    const bool quantizeQuery = precision == Precision::kInt8 && random_.below(2) == 0;
    Lane lane{arena_.create(geometry_, {random_.below(60), precision, quantizeQuery}), {}, {}};
    if (!lane.state) fail("a state was refused");
    return lane;
  }

  uint32_t rowsOfAStep() {
    switch (random_.below(12)) {
      case 0:
        return random_.between(1, sampled_ ? 64 : 2 * config_.maxSeqLen);
      case 1:
      case 2:
        return random_.between(2, 9);
      default:
        return 1;
    }
  }

  [[nodiscard]] std::vector<float> inputs(const Lane& lane, uint32_t stream, size_t first, size_t rows,
                                          uint64_t dim) const {
    std::vector<float> all;
    for (size_t p = first; p < first + rows; ++p) {
      const std::vector<float> row = positionInputs(stream, static_cast<uint32_t>(p), 1, dim, lane.salts[p]);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  [[nodiscard]] uint32_t token(const Lane& lane, size_t p) const {
    return Random(lane.salts[p] + static_cast<uint32_t>(p)).below(config_.vocabSize);
  }
  static std::vector<float> taps(uint32_t stream, uint64_t length) {
    return Random(stream + 1).floats(static_cast<size_t>(length));
  }

  // Committed, or begun with inputs of its own, left after some call, and discarded.
  void step(Lane& lane, bool commits) {
    DecodeState& state = *lane.state;
    const size_t position = lane.salts.size();
    const uint32_t rows = rowsOfAStep();
    const uint32_t salt = random_.next();
    for (uint32_t i = 0; i < rows; ++i) lane.salts.push_back(salt + i);
    uint32_t calls = commits ? UINT32_MAX : random_.below(config_.numLayers * 4 + 4);
    const auto more = [&calls] { return calls != 0 && calls-- != 0; };

    for (uint32_t i = 0; i < rows; ++i) succeed(state.pushToken(token(lane, position + i)));
    for (uint32_t site = 0; site < geometry_.sites.size() && more(); ++site) {
      convolve(lane, 1000 + site, position, rows, config_.dModel, config_.engram.convTaps, config_.engram.convDilation,
               config_.engram.maxOrder(), [&](const std::vector<float>& weights, std::vector<float>& x) {
                 return state.engramConv(site, weights, x);
               });
    }
    const uint64_t dims[] = {config_.qDim(), config_.kDim(), config_.vDim()};
    for (uint32_t layer = 0; layer < config_.numLayers; ++layer) {
      for (uint32_t which = 0; which < 3 && more(); ++which) {
        convolve(lane, layer * 3 + which, position, rows, dims[which], config_.qkvConvTaps, 1, 1,
                 [&](const std::vector<float>& weights, std::vector<float>& x) {
                   return state.conv(layer, static_cast<Projection>(which), weights, x);
                 });
      }
      if (more()) attend(lane, layer, position, rows);
    }
    if (!commits) {
      state.discard();
      lane.salts.resize(position);
      return;
    }
    succeed(state.advance(rows));
    tokens_ += rows;
    checkTokens(lane);
  }

  template <typename Call>
  void convolve(const Lane& lane, uint32_t stream, size_t position, uint32_t rows, uint64_t dim, uint32_t taps_,
                uint32_t dilation, uint32_t wake, Call call) {
    const std::vector<float> weights = taps(stream, taps_ * dim);
    std::vector<float> x = inputs(lane, stream, position, rows, dim);
    succeed(call(weights, x));
    if (taps_ == 0) return;
    for (uint32_t i = 0; i < rows; ++i) {
      const size_t p = position + i;
      std::vector<std::vector<float>> reached;
      for (uint64_t j = 0; j < taps_; ++j) {
        if (p < j * dilation || p < j * wake) break;
        reached.push_back(inputs(lane, stream, p - static_cast<size_t>(j * dilation), 1, dim));
      }
      for (size_t c = 0; c < dim; ++c) {
        float sum = weights[c] * reached[0][c];
        for (size_t j = 1; j < reached.size(); ++j) sum += weights[j * static_cast<size_t>(dim) + c] * reached[j][c];
        if (sum != x[i * static_cast<size_t>(dim) + c]) fail("a convolution differs at position " + std::to_string(p));
      }
    }
  }

  void attend(const Lane& lane, uint32_t layer, size_t position, uint32_t rows) {
    DecodeState& state = *lane.state;
    const std::vector<float> query = inputs(lane, 2000 + layer * 3, position, rows, config_.qDim());
    const std::vector<float> keys = inputs(lane, 2001 + layer * 3, position, rows, config_.kDim());
    const std::vector<float> values = inputs(lane, 2002 + layer * 3, position, rows, config_.vDim());
    std::vector<float> out(static_cast<size_t>(rows * config_.attnOutDim()));
    if (rows == 1 && random_.below(2) == 0) {
      succeed(state.writeKv(layer, keys, values));
      succeed(state.attend(layer, query, out));
    } else {
      succeed(state.appendAndAttend(layer, query, keys, values, out));
    }
    for (uint32_t i = 0; i < rows; ++i) {
      if (sampled_ && random_.below(400) != 0) continue;
      const uint32_t head = random_.below(config_.numHeads);
      const auto width = static_cast<size_t>(config_.attnOutDim());
      check(lane, layer, position + i, head, std::span(query).subspan(i * static_cast<size_t>(config_.qDim())),
            std::span(out).subspan(i * width + head * config_.vHeadDim, config_.vHeadDim));
    }
  }

  // One head of one query against the rows that it sees, made again.
  void check(const Lane& lane, uint32_t layer, size_t position, uint32_t head, std::span<const float> query,
             std::span<const float> out) {
    const bool isInt8 = lane.state->precision() == Precision::kInt8;
    const size_t kvHead = head / (config_.numHeads / config_.numKvHeads);
    const auto first = static_cast<size_t>(lane.state->spanFirst(layer, position));
    std::vector<double> keys;
    std::vector<double> values;
    const auto append = [](std::vector<double>& all, std::span<const float> row, bool quantized) {
      if (!quantized) {
        all.insert(all.end(), row.begin(), row.end());
        return;
      }
      const QuantizedRow narrow = quantizePlainly(row);
      for (int8_t q : narrow.values) all.push_back(double{narrow.scale} * q);
    };
    for (size_t p = first; p <= position; ++p) {
      const std::vector<float> key = inputs(lane, 2001 + layer * 3, p, 1, config_.kDim());
      const std::vector<float> value = inputs(lane, 2002 + layer * 3, p, 1, config_.vDim());
      append(keys, std::span(key).subspan(kvHead * config_.qkHeadDim, config_.qkHeadDim), isInt8);
      append(values, std::span(value).subspan(kvHead * config_.vHeadDim, config_.vHeadDim), isInt8);
    }
    std::vector<double> seen;
    append(seen, query.subspan(size_t{head} * config_.qkHeadDim, config_.qkHeadDim), lane.state->quantizeQuery());
    std::vector<double> expected(config_.vHeadDim);
    std::vector<double> bound(config_.vHeadDim);
    const size_t count = position + 1 - first;
    attendPlainly(seen, keys, values, count, summationDepth(count), expected.data(), bound.data());
    for (size_t c = 0; c < expected.size(); ++c) {
      if (!(std::fabs(out[c] - expected[c]) <= bound[c])) {
        fail("attention differs: layer " + std::to_string(layer) + ", position " + std::to_string(position));
      }
    }
    ++checked_;
  }

  void checkTokens(const Lane& lane) {
    const std::vector<uint32_t> tokens = tokensOf(*lane.state);
    const size_t count = std::min<size_t>(lane.salts.size(), config_.engram.maxOrder());
    if (tokens.size() != count) fail("another number of tokens");
    for (size_t i = 0; i < count; ++i) {
      if (tokens[i] != token(lane, lane.salts.size() - count + i)) fail("another token history");
    }
    if (lane.state->position() != lane.salts.size()) fail("another position");
  }

  void mark(Lane& lane) {
    if (lane.marks.size() == 4) return;
    uint32_t id = 0;
    succeed(lane.state->mark(&id));
    lane.marks.push_back({id, lane.salts.size()});
  }
  void rollback(Lane& lane) {
    if (lane.marks.empty()) return;
    const size_t which = random_.below(static_cast<uint32_t>(lane.marks.size()));
    succeed(lane.state->rollback(lane.marks[which].id));
    lane.salts.resize(lane.marks[which].positions);
    lane.marks.resize(which + 1);
    checkTokens(lane);
    ++rollbacks_;
  }
  void release(Lane& lane) {
    if (lane.marks.empty()) return;
    const size_t which = random_.below(static_cast<uint32_t>(lane.marks.size()));
    succeed(lane.state->release(lane.marks[which].id));
    lane.marks.resize(which);
    if (lane.marks.empty() && lane.state->markBytes() != 0) fail("marks hold something where there are none");
  }
  void fork(const Lane& lane) {
    Lane copy{arena_.fork(*lane.state), lane.salts, {}};
    if (!copy.state) fail("a fork failed");
    lanes_.push_back(std::move(copy));
    ++forks_;
  }
  void restore(Lane& lane) {
    const std::vector<uint8_t> saved = save(*lane.state);
    StatePtr restored;
    succeed(testing::restore(saved, {}, arena_, &restored));
    if (save(*restored) != saved) fail("a restored state gives another snapshot");
    lane.state = std::move(restored);
    lane.marks.clear();
    ++restores_;
  }

  const Geometry geometry_;
  const ModelConfig config_;
  Random random_;
  const bool sampled_;
  Arena arena_;
  std::vector<Lane> lanes_;
  uint64_t tokens_ = 0;
  uint64_t rollbacks_ = 0;
  uint64_t forks_ = 0;
  uint64_t restores_ = 0;
  uint64_t checked_ = 0;
};

}  // namespace
}  // namespace needle3::testing

int main(int argc, char** argv) {
  unsigned long long tokens = 5000;
  unsigned long seed = 1;
  std::string geometry = "small";
  bool understood = argc % 2 == 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--tokens") {
      tokens = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (option == "--seed") {
      seed = std::strtoul(argv[i + 1], nullptr, 10);
    } else if (option == "--geometry") {
      geometry = argv[i + 1];
    } else {
      understood = false;
    }
  }
  if (!understood || tokens == 0 || (geometry != "small" && geometry != "shipped")) {
    std::fprintf(stderr, "usage: needle3_soak [--tokens N] [--seed S] [--geometry small|shipped]\n");
    return 2;
  }
  const bool shipped = geometry == "shipped";
  std::printf("%llu tokens at the %s geometry, seed %lu\n", tokens, geometry.c_str(), seed);
  needle3::testing::Soak(shipped ? needle3::testing::shippedGeometry() : needle3::testing::smallGeometry(),
                         static_cast<uint32_t>(seed), shipped)
      .run(tokens);
  std::printf("no difference\n");
  return 0;
}
