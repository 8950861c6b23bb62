#ifndef NEEDLE3_KERNELS_CONVOLVE_H_
#define NEEDLE3_KERNELS_CONVOLVE_H_

#include <cstddef>

namespace needle3 {

// One tap of a depthwise convolution at one position: out[c] += weights[c] · x[c].
struct ConvTap {
  const float* weights;
  const float* x;
};

// Taps in one pass over a row.
inline constexpr size_t kConvPassTaps = 4;

// out[c] = Σ_j taps[j].weights[c] · taps[j].x[c] for c < dim: the first product, then one rounded addition per tap, in
// order. count in 1 … kConvPassTaps. `out` may be the first tap's x, which is also copied to `kept` (dim), unless null.
void convolve(const ConvTap* taps, size_t count, size_t dim, float* kept, float* out);

// out[c] += tap.weights[c] · tap.x[c]: goes on from `convolve` with a further tap.
void convolveMore(const ConvTap& tap, size_t dim, float* out);

}  // namespace needle3

#endif  // NEEDLE3_KERNELS_CONVOLVE_H_
