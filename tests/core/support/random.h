#ifndef NEEDLE3_TESTS_RANDOM_H_
#define NEEDLE3_TESTS_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace needle3::testing {

// Marsaglia's xorshift32: three lines in any language, so that tests in other languages can draw the same numbers.
class Random {
 public:
  // Any seed; 0, on which xorshift would stand still, counts as 1.
  explicit Random(uint32_t seed) : x_(seed == 0 ? 1 : seed) {}

  uint32_t next() {
    x_ ^= x_ << 13;
    x_ ^= x_ >> 17;
    x_ ^= x_ << 5;
    return x_;
  }
  // In [0, bound).
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(uint64_t{next()} * bound >> 32); }
  // In [first, last].
  uint32_t between(uint32_t first, uint32_t last) { return first + below(last - first + 1); }
  // In [−1, 1]: the 32 bits as a signed integer, as a float, times 2^−31.
  float unit() { return static_cast<float>(static_cast<int32_t>(next())) * 0x1p-31F; }

  std::vector<float> floats(size_t count, float scale = 1) {
    std::vector<float> values(count);
    for (float& value : values) value = unit() * scale;
    return values;
  }

 private:
  uint32_t x_;
};

}  // namespace needle3::testing

#endif  // NEEDLE3_TESTS_RANDOM_H_
