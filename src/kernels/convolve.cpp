#include "kernels/convolve.h"

#include <algorithm>

#include "kernels/simd.h"

namespace needle3 {
namespace {

// Calls visit(c, load, store) for each vector of a row: of four lanes, the last one of what is left.
template <typename Visit>
void forEachVector(size_t dim, Visit visit) {
  const auto whole = [&visit](size_t c) {
    visit([c](const float* p) { return load(p + c); }, [c](float* p, F32x4 x) { store(p + c, x); });
  };
  size_t c = 0;
  for (; c + 8 <= dim; c += 8) {  // two a turn, since each of up to nine addresses is an addition
    whole(c);
    whole(c + 4);
  }
  for (; c + 4 <= dim; c += 4) whole(c);
  if (c < dim) {
    const size_t rest = dim - c;
    visit([c, rest](const float* p) { return loadPartial(p + c, rest); },
          [c, rest](float* p, F32x4 x) { storePartial(p + c, x, rest); });
  }
}

template <size_t kCount>
void convolvePass(const ConvTap* passed, size_t dim, float* kept, float* out) {
  // Copied, since a compiler must take it that a store to `out` changes what `passed` points to.
  ConvTap taps[kCount];
  std::copy_n(passed, kCount, taps);
  // Where nothing is kept, x is written to where the sum then goes.
  float* const copy = kept == nullptr ? out : kept;
  forEachVector(dim, [&](auto loadLanes, auto storeLanes) {
    const F32x4 x = loadLanes(taps[0].x);
    F32x4 sum = loadLanes(taps[0].weights) * x;
    for (size_t j = 1; j < kCount; ++j) sum = sum + loadLanes(taps[j].weights) * loadLanes(taps[j].x);
    storeLanes(copy, x);
    storeLanes(out, sum);
  });
}

// By the number of taps. A table, so that no pass is inlined into its caller and has to share its registers.
constexpr decltype(&convolvePass<1>) kPasses[kConvPassTaps] = {convolvePass<1>, convolvePass<2>, convolvePass<3>,
                                                               convolvePass<4>};

}  // namespace

void convolve(const ConvTap* taps, size_t count, size_t dim, float* kept, float* out) {
  kPasses[count - 1](taps, dim, kept, out);
}

void convolveMore(const ConvTap& tap, size_t dim, float* out) {
  const auto [weights, x] = tap;
  forEachVector(dim, [weights = weights, x = x, out](auto loadLanes, auto storeLanes) {
    storeLanes(out, loadLanes(out) + loadLanes(weights) * loadLanes(x));
  });
}

}  // namespace needle3
