#ifndef NEEDLE3_BENCH_INPUTS_H_
#define NEEDLE3_BENCH_INPUTS_H_

#include <cstdint>
#include <string_view>
#include <vector>

namespace needle3::bench {

// Seeded inputs: uniform with variance 1, the same in every build.
class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed * 0x9E3779B9U + 1) {}

  float next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    constexpr float kUnit = 1.0F / (1 << 23);
    return (static_cast<float>(state_ >> 8) * kUnit - 1) * 1.7320508F;
  }
  std::vector<float> floats(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = next();
    return values;
  }

 private:
  uint32_t state_;
};

// Taps (count, dim) that are positive and add up to 1 per channel. Convolved over and over in place, rows then neither
// grow nor fade into denormals, which would be slow.
std::vector<float> averagingTaps(uint32_t count, uint32_t dim, Random& random);

enum class Format : uint8_t { kF32, kInt8, kInt8FloatQuery };
enum class Reach : uint8_t { kGlobal, kLocal };

// The last word of each is taken for granted: specs are the scripts' own.
inline Format parseFormat(std::string_view word) {
  if (word == "f32") return Format::kF32;
  return word == "int8" ? Format::kInt8 : Format::kInt8FloatQuery;
}
inline Reach parseReach(std::string_view word) { return word == "global" ? Reach::kGlobal : Reach::kLocal; }
uint32_t parseCount(std::string_view word);

// The shipped geometry, as far as the decode state reads it.
inline constexpr uint32_t kLayers = 20;
inline constexpr uint32_t kEngramSites = 5;
inline constexpr uint32_t kHeads = 12;
inline constexpr uint32_t kKvHeads = 2;
inline constexpr uint32_t kQkHeadDim = 48;
inline constexpr uint32_t kVHeadDim = 64;
inline constexpr uint32_t kQDim = kHeads * kQkHeadDim;
inline constexpr uint32_t kKDim = kKvHeads * kQkHeadDim;
inline constexpr uint32_t kVDim = kKvHeads * kVHeadDim;
inline constexpr uint32_t kAttnOutDim = kHeads * kVHeadDim;
inline constexpr uint32_t kDModel = 768;
inline constexpr uint32_t kWindow = 1024;
inline constexpr uint32_t kQkvTaps = 3;
inline constexpr uint32_t kEngramTaps = 4;
inline constexpr uint32_t kEngramDilation = 3;
inline constexpr uint32_t kMaxOrder = 3;

// Where a wrapped ring stands: two rounds and a half.
inline constexpr uint32_t kWrappedPositions = 2 * kWindow + kWindow / 2;

// Seeds, so that contestants see the same numbers.
inline constexpr uint32_t kCacheSeed = 1;
inline constexpr uint32_t kRowsSeed = 2;
inline constexpr uint32_t kTapsSeed = 3;

}  // namespace needle3::bench

#endif  // NEEDLE3_BENCH_INPUTS_H_
