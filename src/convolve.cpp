#include "convolve.h"

#include <algorithm>

#include "simd.h"

namespace needle3 {
namespace {

template <size_t kCount, typename LoadLanes>
F32x4 sumTaps(const ConvTap* taps, F32x4 sum, size_t begin, LoadLanes loadLanes) {
  for (size_t j = begin; j < kCount; ++j) sum = sum + loadLanes(taps[j].weights) * loadLanes(taps[j].x);
  return sum;
}

// kCount taps in one pass; kContinue: on top of what `out` holds.
template <size_t kCount, bool kContinue>
void convolvePass(const ConvTap* passed, size_t dim, float* out) {
  // Copied, since a compiler must take it that a store to `out` changes what `passed` points to.
  ConvTap taps[kCount];
  std::copy_n(passed, kCount, taps);
  const auto sum = [&](auto loadLanes) {
    return kContinue ? sumTaps<kCount>(taps, loadLanes(out), 0, loadLanes)
                     : sumTaps<kCount>(taps, loadLanes(taps[0].weights) * loadLanes(taps[0].x), 1, loadLanes);
  };
  size_t c = 0;
  for (; c + 4 <= dim; c += 4) store(out + c, sum([c](const float* p) { return load(p + c); }));
  if (c < dim) {
    const size_t rest = dim - c;
    storePartial(out + c, sum([c, rest](const float* p) { return loadPartial(p + c, rest); }), rest);
  }
}

// Up to four taps a pass: with their weights and rows that is as many streams as stay cheap.
template <bool kContinue>
void convolveUpTo4(const ConvTap* taps, size_t count, size_t dim, float* out) {
  switch (count) {
    case 1:
      return convolvePass<1, kContinue>(taps, dim, out);
    case 2:
      return convolvePass<2, kContinue>(taps, dim, out);
    case 3:
      return convolvePass<3, kContinue>(taps, dim, out);
    default:
      return convolvePass<4, kContinue>(taps, dim, out);
  }
}

}  // namespace

void convolve(const ConvTap* taps, size_t count, size_t dim, float* out) {
  convolveUpTo4<false>(taps, count, dim, out);
}

void convolveMore(const ConvTap* taps, size_t count, size_t dim, float* out) {
  convolveUpTo4<true>(taps, count, dim, out);
}

}  // namespace needle3
