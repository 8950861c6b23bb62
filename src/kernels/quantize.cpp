#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/simd.h"

namespace needle3 {
namespace {

// Calls visit(offset, lanes, count) for each vector of x; the last may have fewer than four lanes, zeros behind them.
template <typename Visit>
void forEachVector(const float* x, size_t length, Visit visit) {
  size_t i = 0;
  for (; i + 4 <= length; i += 4) visit(i, load(x + i), size_t{4});
  if (i < length) visit(i, loadPartial(x + i, length - i), length - i);
}

struct Scale {
  float scale;
  float inverse;  // 0 where the row is to become zeros
};

Scale scaleOf(const float* x, size_t length, float largest) {
  F32x4 absmax[4] = {splat(0.0F), splat(0.0F), splat(0.0F), splat(0.0F)};  // four, so that none waits for another
  const size_t whole = length - length % 16;
  for (size_t i = 0; i < whole; i += 16) {
    for (size_t j = 0; j < 4; ++j) absmax[j] = maximum(absmax[j], abs(load(x + i + 4 * j)));
  }
  forEachVector(x + whole, length - whole,
                [&](size_t, F32x4 lanes, size_t) { absmax[0] = maximum(absmax[0], abs(lanes)); });
  const float scale =
      horizontalMaximum(maximum(maximum(absmax[0], absmax[1]), maximum(absmax[2], absmax[3]))) / largest;
  const float inverse = 1.0F / scale;
  if (!(inverse <= std::numeric_limits<float>::max())) return {1.0F, 0.0F};
  return {scale, inverse};
}

// round(x), ties away from zero, for |x| < 2^22. Vectors round ties to even, and adding a half first rounds 0.49999997
// up; so: the magnitude to the nearest, one further where it was a half above that, and the sign again.
I32x4 roundedAwayFromZero(F32x4 x) {
  const F32x4 kRounder = splat(8388608.0F);  // 2^23: adding it leaves the nearest integer in the low bits
  const F32x4 magnitude = abs(x);
  const F32x4 shifted = magnitude + kRounder;
  const F32x4 rest = magnitude - (shifted - kRounder);
  // The mask is −1 where it holds.
  const I32x4 rounded = (bits(shifted) - bits(kRounder)) - notLessThan(rest, splat(0.5F));
  return withSignOf(bits(x), rounded);
}

}  // namespace

float quantizeRow(const float* x, size_t length, int8_t* values) {
  const Scale row = scaleOf(x, length, 127.0F);
  const F32x4 inverse = splat(row.inverse);
  // Within ±127: absmax · (1 / (absmax / 127)) is off by few roundings.
  const auto quantized = [&](F32x4 lanes) { return roundedAwayFromZero(lanes * inverse); };
  size_t i = 0;
  for (; i + 16 <= length; i += 16) {
    storeNarrowed(values + i, quantized(load(x + i)), quantized(load(x + i + 4)), quantized(load(x + i + 8)),
                  quantized(load(x + i + 12)));
  }
  if (i < length) {
    float rest[16] = {};
    int8_t narrow[16];
    std::copy(x + i, x + length, rest);
    storeNarrowed(narrow, quantized(load(rest)), quantized(load(rest + 4)), quantized(load(rest + 8)),
                  quantized(load(rest + 12)));
    std::copy(narrow, narrow + (length - i), values + i);
  }
  return row.scale;
}

void fakeQuantize(float* x, size_t length, uint32_t bits) {
  const auto largest = static_cast<float>((1 << (bits - 1)) - 1);
  const Scale row = scaleOf(x, length, largest);
  const F32x4 scale = splat(row.scale);
  const F32x4 inverse = splat(row.inverse);
  // largest · scale can round to infinity where absmax is the largest float.
  const F32x4 limit = splat(std::numeric_limits<float>::max());
  forEachVector(x, length, [&](size_t i, F32x4 lanes, size_t count) {
    const F32x4 dequantized = toFloat(roundedAwayFromZero(lanes * inverse)) * scale;
    const F32x4 finite = maximum(minimum(dequantized, limit), splat(0.0F) - limit);
    if (count == 4) {
      store(x + i, finite);
    } else {
      storePartial(x + i, finite, count);
    }
  });
}

namespace {

Status checkFinite(std::span<const float> x) {
  const size_t at = findNonFinite(x.data(), x.size());
  return at == x.size() ? Status() : Status(ErrorCode::kNonFinite) << "x: element " << at << " is not finite";
}

}  // namespace

Status fakeQuantize(std::span<float> x, uint32_t bits) {
  if (bits < 2 || bits > 16) return Status(ErrorCode::kUnsupported) << "bits " << bits << ": must be 2 to 16";
  NEEDLE3_RETURN_IF_ERROR(checkFinite(x));
  fakeQuantize(x.data(), x.size(), bits);
  return {};
}

Status quantizeRows(std::span<const float> x, size_t rowLength, int8_t* values, float* scales) {
  if (rowLength == 0) return Status(ErrorCode::kRange) << "rowLength 0: must be at least 1";
  if (x.size() % rowLength != 0) {
    return Status(ErrorCode::kShape) << "x of length " << x.size() << ": must be a multiple of rowLength, "
                                     << rowLength;
  }
  NEEDLE3_RETURN_IF_ERROR(checkFinite(x));
  for (size_t at = 0; at < x.size(); at += rowLength) *scales++ = quantizeRow(x.data() + at, rowLength, values + at);
  return {};
}

size_t findNonFinite(const float* x, size_t length) {
  // A NaN or an infinity makes x · 0 NaN, and NaN stays NaN in a sum: one test for sixteen elements.
  const F32x4 zero = splat(0.0F);
  size_t i = 0;
  for (; i + 16 <= length; i += 16) {
    const F32x4 sum =
        (load(x + i) * zero + load(x + i + 4) * zero) + (load(x + i + 8) * zero + load(x + i + 12) * zero);
    if (!allSet(notLessThan(sum, zero))) break;
  }
  while (i < length && std::isfinite(x[i])) ++i;
  return i;
}

}  // namespace needle3
