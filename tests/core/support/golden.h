#ifndef NEEDLE3_TESTS_GOLDEN_H_
#define NEEDLE3_TESTS_GOLDEN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/scratch.h"
#include "kernels/quantize.h"
#include "support/random.h"
#include "support/state.h"

namespace needle3::testing {

// FNV-1a with 64 bits over 32-bit words: hash = (hash ^ word) · 0x100000001B3, from 0xCBF29CE484222325.
class WordHash {
 public:
  void add(uint32_t word) { hash_ = (hash_ ^ word) * 0x100000001B3U; }
  void add(std::span<const float> floats) {
    for (float x : floats) add(bitsOf(x));
  }
  [[nodiscard]] uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325U;
};

// The golden decode: one long decode at the shipped geometry, written so that any language can do it again and must
// get the same hash. tests/golden.json has the hashes, one for each precision.
//
// All numbers come from one xorshift32 stream (support/random.h), seed 20240607, in the order given here; a float is
// `unit`, in [−1, 1].
//
//   taps      for each layer q (3, 576), k (3, 96) and v (3, 128); then for each site (4, 768)
//   steps     as in kSteps. Each of n rows: n tokens, the stream's next number >> 19; then for each site n rows of 768;
//             then for each layer n rows of q (576, each float times 8), of k (96), and of v (128)
//   calls     pushToken and engramIndices for each token; engramConv for each site; for each layer conv of q, k and v
//   in
//             place, then, in a step that attends, appendAndAttend (writeKv and attend where n is 1), else writeKv;
//             advance(n). The state's capacityHint is 64.
//   hash      in the order of the calls, of each token its indices and then its valid flags as 0 or 1; the rows that
//             engramConv gives; the rows that attention gives. Last, the last four bytes of the snapshot.
struct GoldenStep {
  uint32_t times;
  uint32_t rows;
  bool attends;
};
// Growth past the hint; the window filled and passed in a batch, in single rows and unattended: 1102 positions.
inline constexpr GoldenStep kGoldenSteps[] = {{1, 96, true}, {3, 1, true},   {9, 100, false}, {1, 40, true},
                                              {5, 1, true},  {1, 56, false}, {2, 1, true}};

// The hash of the golden decode, or 0 where a call fails.
inline uint64_t goldenHash(Arena& arena, Precision precision, bool quantizeQuery) {
  const Geometry geometry = shippedGeometry();
  const ModelConfig config = geometry.config();
  const StatePtr state = arena.create(geometry, {64, precision, quantizeQuery});
  if (!state) return 0;
  Random random(20240607);
  WordHash hash;
  bool ok = true;
  const auto succeed = [&ok](const Status& status) { ok = ok && status.ok(); };

  const uint64_t dims[] = {config.qDim(), config.kDim(), config.vDim()};
  std::vector<std::vector<float>> taps;
  for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
    for (uint64_t dim : dims) taps.push_back(random.floats(static_cast<size_t>(config.qkvConvTaps * dim)));
  }
  std::vector<std::vector<float>> siteTaps;
  for (size_t site = 0; site < geometry.sites.size(); ++site) {
    siteTaps.push_back(random.floats(size_t{config.engram.convTaps} * config.dModel));
  }

  std::vector<uint32_t> indices(config.engram.tables());
  std::vector<uint8_t> valid(indices.size());
  const auto step = [&](uint32_t rows, bool attends) {
    for (uint32_t i = 0; i < rows; ++i) {
      succeed(state->pushToken(random.next() >> 19));
      succeed(state->engramIndices(indices.data(), valid.data()));
      for (uint32_t index : indices) hash.add(index);
      for (uint8_t flag : valid) hash.add(flag);
    }
    for (uint32_t site = 0; site < geometry.sites.size(); ++site) {
      std::vector<float> x = random.floats(size_t{rows} * config.dModel);
      succeed(state->engramConv(site, siteTaps[site], x));
      hash.add(x);
    }
    for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
      std::vector<float> x[kProjections];
      for (size_t i = 0; i < kProjections; ++i) {
        x[i] = random.floats(static_cast<size_t>(rows * dims[i]), i == 0 ? 8.0F : 1.0F);
        succeed(state->conv(layer, static_cast<Projection>(i), taps[layer * kProjections + i], x[i]));
      }
      std::vector<float> out(attends ? static_cast<size_t>(rows * config.attnOutDim()) : 0);
      if (!attends) {
        succeed(state->writeKv(layer, x[1], x[2]));
      } else if (rows == 1) {
        succeed(state->writeKv(layer, x[1], x[2]));
        succeed(state->attend(layer, x[0], out));
      } else {
        succeed(state->appendAndAttend(layer, x[0], x[1], x[2], out));
      }
      hash.add(out);
    }
    succeed(state->advance(rows));
  };
  for (const GoldenStep& golden : kGoldenSteps) {
    for (uint32_t i = 0; i < golden.times; ++i) step(golden.rows, golden.attends);
  }

  const std::vector<uint8_t> saved = save(*state);
  if (!ok || saved.size() < sizeof(uint32_t)) return 0;
  uint32_t checksum = 0;
  std::memcpy(&checksum, saved.data() + saved.size() - sizeof(checksum), sizeof(checksum));
  hash.add(checksum);
  return hash.value();
}

}  // namespace needle3::testing

#endif  // NEEDLE3_TESTS_GOLDEN_H_
