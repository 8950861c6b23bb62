#ifndef NEEDLE3_KERNELS_EXP_H_
#define NEEDLE3_KERNELS_EXP_H_

#include "kernels/simd.h"

namespace needle3 {

// x = n·ln 2 + rest with |rest| ≤ ln 2 / 2, and 2^n: what expOfNonPositive is made of. Apart, for loops over many
// vectors: each half is a chain of operations short enough that a processor overlaps several turns.
struct ReducedExponent {
  F32x4 rest;
  F32x4 power;
};

// Cody and Waite's reduction, ln 2 in two parts. x ≤ 0; 2^n is 0 where n is below −126.
inline ReducedExponent reduceExponent(F32x4 x) {
  // 1.5·2^23 + 127: adding it leaves the nearest integer in the low bits, with the exponent's bias added. At −88 that
  // is 0, the exponent of zero.
  const F32x4 kRounder = splat(12583039.0F);
  const F32x4 clamped = maximum(x, splat(-88.0F));
  const F32x4 shifted = clamped * splat(1.44269504F) + kRounder;
  const F32x4 n = shifted - kRounder;
  return {(clamped - n * splat(0.693359375F)) - n * splat(-2.12194440e-4F),
          floatFromBits(shiftLeft<23>(bits(shifted)))};
}

// e^rest · 2^n, e^rest by a polynomial of degree 6: (e^r − 1 − r) / r² interpolated at the Chebyshev nodes, 0.2 of half
// an ulp off, in Estrin's order, whose chain of operations is the shortest.
inline F32x4 expOf(ReducedExponent x) {
  const F32x4 r = x.rest;
  const F32x4 square = r * r;
  const F32x4 low = splat(0.166665763F) * r + splat(0.5F);
  const F32x4 high = splat(0.0013926184F) * square + (splat(0.00836317893F) * r + splat(0.0416665561F));
  return (((high * square + low) * square + r) + splat(1.0F)) * x.power;
}

// e^x for x ≤ 0: at most 2 ulp off on [−87, 0], exactly 1 at 0, 0 below −87.7, NaN for NaN.
inline F32x4 expOfNonPositive(F32x4 x) { return expOf(reduceExponent(x)); }

}  // namespace needle3

#endif  // NEEDLE3_KERNELS_EXP_H_
