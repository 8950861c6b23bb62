#ifndef NEEDLE3_KERNELS_SIMD_H_
#define NEEDLE3_KERNELS_SIMD_H_

// 128-bit vectors: thin value types that the kernels are written on once. Two backends give the same bits in every
// operation here: WebAssembly SIMD128, and the vector extensions of GCC and clang, which run on any processor (with
// SSE2 spelled out where compilers do not find the one instruction by themselves).
//
// Nothing here fuses, reassociates or approximates: each operation on floats is one IEEE 754 single rounding.

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__wasm_simd128__)
#include <wasm_simd128.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace needle3 {

#if defined(__wasm_simd128__)

struct I32x4 {
  v128_t v;
};
struct F32x4 {
  v128_t v;
};
struct I16x8 {
  v128_t v;
};

inline F32x4 splat(float x) { return {wasm_f32x4_splat(x)}; }
inline I32x4 splat(int32_t x) { return {wasm_i32x4_splat(x)}; }
inline F32x4 load(const float* p) { return {wasm_v128_load(p)}; }
inline F32x4 loadSplat(const float* p) { return {wasm_v128_load32_splat(p)}; }
inline I16x8 load(const int16_t* p) { return {wasm_v128_load(p)}; }
// Eight int8, sign-extended.
inline I16x8 loadWidened(const int8_t* p) { return {wasm_i16x8_load8x8(p)}; }
inline void store(float* p, F32x4 x) { wasm_v128_store(p, x.v); }
inline void store(int16_t* p, I16x8 x) { wasm_v128_store(p, x.v); }

inline F32x4 operator+(F32x4 a, F32x4 b) { return {wasm_f32x4_add(a.v, b.v)}; }
inline F32x4 operator-(F32x4 a, F32x4 b) { return {wasm_f32x4_sub(a.v, b.v)}; }
inline F32x4 operator*(F32x4 a, F32x4 b) { return {wasm_f32x4_mul(a.v, b.v)}; }
inline F32x4 operator/(F32x4 a, F32x4 b) { return {wasm_f32x4_div(a.v, b.v)}; }
inline I32x4 operator+(I32x4 a, I32x4 b) { return {wasm_i32x4_add(a.v, b.v)}; }
inline I32x4 operator-(I32x4 a, I32x4 b) { return {wasm_i32x4_sub(a.v, b.v)}; }
// a < b ? b : a, so a where either is NaN.
inline F32x4 maximum(F32x4 a, F32x4 b) { return {wasm_f32x4_pmax(a.v, b.v)}; }
// b < a ? b : a.
inline F32x4 minimum(F32x4 a, F32x4 b) { return {wasm_f32x4_pmin(a.v, b.v)}; }
inline F32x4 abs(F32x4 a) { return {wasm_f32x4_abs(a.v)}; }
// Lanes of all ones where the comparison holds.
inline I32x4 notLessThan(F32x4 a, F32x4 b) { return {wasm_f32x4_ge(a.v, b.v)}; }
inline bool allSet(I32x4 mask) { return wasm_i32x4_all_true(mask.v); }
template <int kBits>
I32x4 shiftLeft(I32x4 a) {
  return {wasm_i32x4_shl(a.v, kBits)};
}
inline I32x4 bits(F32x4 a) { return {a.v}; }
inline F32x4 floatFromBits(I32x4 a) { return {a.v}; }
// a where the lane's sign bit in `sign` is clear, −a where it is set.
inline I32x4 withSignOf(I32x4 sign, I32x4 a) {
  const v128_t negative = wasm_i32x4_shr(sign.v, 31);
  return {wasm_i32x4_sub(wasm_v128_xor(a.v, negative), negative)};
}
inline F32x4 toFloat(I32x4 a) { return {wasm_f32x4_convert_i32x4(a.v)}; }

// Products of lanes, summed in pairs: lane i is a[2i]·b[2i] + a[2i+1]·b[2i+1].
inline I32x4 dotPairs(I16x8 a, I16x8 b) { return {wasm_i32x4_dot_i16x8(a.v, b.v)}; }
// The low or high four lanes as floats. The empty asm keeps clang 14 from turning extend and convert together into
// scalar code.
inline F32x4 lowToFloat(I16x8 a) {
  v128_t wide = wasm_i32x4_extend_low_i16x8(a.v);
  asm("" : "+r"(wide));
  return {wasm_f32x4_convert_i32x4(wide)};
}
inline F32x4 highToFloat(I16x8 a) {
  v128_t wide = wasm_i32x4_extend_high_i16x8(a.v);
  asm("" : "+r"(wide));
  return {wasm_f32x4_convert_i32x4(wide)};
}
// Four vectors of integers within int8 as sixteen bytes.
inline void storeNarrowed(int8_t* p, I32x4 a, I32x4 b, I32x4 c, I32x4 d) {
  wasm_v128_store(p, wasm_i8x16_narrow_i16x8(wasm_i16x8_narrow_i32x4(a.v, b.v), wasm_i16x8_narrow_i32x4(c.v, d.v)));
}

template <int kA, int kB, int kC, int kD, typename V>
V shuffle(V a, V b) {
  return {wasm_i32x4_shuffle(a.v, b.v, kA, kB, kC, kD)};
}
inline float firstLane(F32x4 a) { return wasm_f32x4_extract_lane(a.v, 0); }

#else

template <typename T, size_t kBytes = 16>
struct Lanes {
  // GCC takes the attribute in a typedef only. NOLINTNEXTLINE(modernize-use-using)
  typedef T Type __attribute__((vector_size(kBytes)));
};
struct I32x4 {
  Lanes<int32_t>::Type v;
};
struct F32x4 {
  Lanes<float>::Type v;
};
struct I16x8 {
  Lanes<int16_t>::Type v;
};

inline F32x4 splat(float x) { return {Lanes<float>::Type{x, x, x, x}}; }
inline I32x4 splat(int32_t x) { return {Lanes<int32_t>::Type{x, x, x, x}}; }
template <typename V, typename T>
V loadAs(const T* p) {
  V x;
  std::memcpy(&x.v, p, sizeof(x.v));
  return x;
}
inline F32x4 load(const float* p) { return loadAs<F32x4>(p); }
inline F32x4 loadSplat(const float* p) { return splat(*p); }
inline I16x8 load(const int16_t* p) { return loadAs<I16x8>(p); }
// Eight int8, sign-extended.
inline I16x8 loadWidened(const int8_t* p) {
#if defined(__SSE2__)
  const __m128i narrow = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {__builtin_bit_cast(Lanes<int16_t>::Type, _mm_srai_epi16(_mm_unpacklo_epi8(narrow, narrow), 8))};
#else
  Lanes<int8_t, 8>::Type narrow;
  std::memcpy(&narrow, p, sizeof(narrow));
  return {__builtin_convertvector(narrow, Lanes<int16_t>::Type)};
#endif
}
inline void store(float* p, F32x4 x) { std::memcpy(p, &x.v, sizeof(x.v)); }
inline void store(int16_t* p, I16x8 x) { std::memcpy(p, &x.v, sizeof(x.v)); }

inline F32x4 operator+(F32x4 a, F32x4 b) { return {a.v + b.v}; }
inline F32x4 operator-(F32x4 a, F32x4 b) { return {a.v - b.v}; }
inline F32x4 operator*(F32x4 a, F32x4 b) { return {a.v * b.v}; }
inline F32x4 operator/(F32x4 a, F32x4 b) { return {a.v / b.v}; }
inline I32x4 operator+(I32x4 a, I32x4 b) { return {a.v + b.v}; }
inline I32x4 operator-(I32x4 a, I32x4 b) { return {a.v - b.v}; }
// a < b ? b : a, so a where either is NaN.
inline F32x4 maximum(F32x4 a, F32x4 b) { return {a.v < b.v ? b.v : a.v}; }
// b < a ? b : a.
inline F32x4 minimum(F32x4 a, F32x4 b) { return {b.v < a.v ? b.v : a.v}; }
inline I32x4 bits(F32x4 a) { return {__builtin_bit_cast(Lanes<int32_t>::Type, a.v)}; }
inline F32x4 floatFromBits(I32x4 a) { return {__builtin_bit_cast(Lanes<float>::Type, a.v)}; }
inline F32x4 abs(F32x4 a) { return floatFromBits({bits(a).v & splat(INT32_MAX).v}); }
// Lanes of all ones where the comparison holds.
inline I32x4 notLessThan(F32x4 a, F32x4 b) { return {a.v >= b.v}; }
inline bool allSet(I32x4 mask) { return (mask.v[0] & mask.v[1] & mask.v[2] & mask.v[3]) == -1; }
template <int kBits>
I32x4 shiftLeft(I32x4 a) {
  return {a.v << kBits};
}
// a where the lane's sign bit in `sign` is clear, −a where it is set.
inline I32x4 withSignOf(I32x4 sign, I32x4 a) {
  const Lanes<int32_t>::Type negative = sign.v >> 31;
  return {(a.v ^ negative) - negative};
}
inline F32x4 toFloat(I32x4 a) { return {__builtin_convertvector(a.v, Lanes<float>::Type)}; }

// Products of lanes, summed in pairs: lane i is a[2i]·b[2i] + a[2i+1]·b[2i+1].
inline I32x4 dotPairs(I16x8 a, I16x8 b) {
#if defined(__SSE2__)
  return {__builtin_bit_cast(Lanes<int32_t>::Type,
                             _mm_madd_epi16(__builtin_bit_cast(__m128i, a.v), __builtin_bit_cast(__m128i, b.v)))};
#else
  I32x4 sums;
  for (int i = 0; i < 4; ++i) sums.v[i] = a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1];
  return sums;
#endif
}
// The low or high four lanes as floats.
inline F32x4 lowToFloat(I16x8 a) {
#if defined(__SSE2__)
  const __m128i lanes = __builtin_bit_cast(__m128i, a.v);
  const __m128i wide = _mm_srai_epi32(_mm_unpacklo_epi16(lanes, lanes), 16);
  return {__builtin_bit_cast(Lanes<float>::Type, _mm_cvtepi32_ps(wide))};
#else
  return {Lanes<float>::Type{float(a.v[0]), float(a.v[1]), float(a.v[2]), float(a.v[3])}};
#endif
}
inline F32x4 highToFloat(I16x8 a) {
#if defined(__SSE2__)
  const __m128i lanes = __builtin_bit_cast(__m128i, a.v);
  const __m128i wide = _mm_srai_epi32(_mm_unpackhi_epi16(lanes, lanes), 16);
  return {__builtin_bit_cast(Lanes<float>::Type, _mm_cvtepi32_ps(wide))};
#else
  return {Lanes<float>::Type{float(a.v[4]), float(a.v[5]), float(a.v[6]), float(a.v[7])}};
#endif
}
// Four vectors of integers within int8 as sixteen bytes.
inline void storeNarrowed(int8_t* p, I32x4 a, I32x4 b, I32x4 c, I32x4 d) {
  const I32x4 quarters[4] = {a, b, c, d};
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(quarters[i / 4].v[i % 4]);
}

template <int kA, int kB, int kC, int kD, typename V>
V shuffle(V a, V b) {
  return {__builtin_shufflevector(a.v, b.v, kA, kB, kC, kD)};
}
inline float firstLane(F32x4 a) { return a.v[0]; }

#endif

// The first `count` lanes from `p`, zeros behind them; count < 4.
inline F32x4 loadPartial(const float* p, size_t count) {
  float lanes[4] = {};
  std::memcpy(lanes, p, count * sizeof(float));
  return load(lanes);
}
inline void storePartial(float* p, F32x4 x, size_t count) {
  float lanes[4];
  store(lanes, x);
  std::memcpy(p, lanes, count * sizeof(float));
}

// Lane i is the sum of vector i's lanes, as (x0 + x2) + (x1 + x3): one order for one row and for four.
template <typename V>
V horizontalSums(V a, V b, V c, V d) {
  const V ab = shuffle<0, 4, 1, 5>(a, b) + shuffle<2, 6, 3, 7>(a, b);  // a02 b02 a13 b13
  const V cd = shuffle<0, 4, 1, 5>(c, d) + shuffle<2, 6, 3, 7>(c, d);
  return shuffle<0, 1, 4, 5>(ab, cd) + shuffle<2, 3, 6, 7>(ab, cd);
}
inline float horizontalSum(F32x4 a) {
  const F32x4 halves = a + shuffle<2, 3, 0, 1>(a, a);
  return firstLane(halves + shuffle<1, 0, 3, 2>(halves, halves));
}
inline float horizontalMaximum(F32x4 a) {
  const F32x4 halves = maximum(a, shuffle<2, 3, 0, 1>(a, a));
  return firstLane(maximum(halves, shuffle<1, 0, 3, 2>(halves, halves)));
}

}  // namespace needle3

#endif  // NEEDLE3_KERNELS_SIMD_H_
