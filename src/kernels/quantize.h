#ifndef NEEDLE3_KERNELS_QUANTIZE_H_
#define NEEDLE3_KERNELS_QUANTIZE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace needle3 {

// Keys and values are stored as floats, or as int8 with one float scale per row (one kv head of one position).
enum class Precision : uint8_t { kF32, kInt8 };

// Symmetric quantisation of one row: absmax over the row, scale = absmax / qmax with qmax = 127,
// q = clamp(round(x · (1 / scale)), −128, 127), ties away from zero. An all-zero row has scale 1; so has a row whose
// 1 / scale is not finite (absmax below 3.8e-37), which becomes zeros. `x` must be finite. Returns the scale.
float quantizeRow(const float* x, size_t length, int8_t* values);

// The same with qmax = 2^(bits − 1) − 1, quantised and dequantised in place over the whole of `x` as one row.
// bits in 2 … 16. Finite in, finite out.
void fakeQuantize(float* x, size_t length, uint32_t bits);

// Both for rows from outside. kUnsupported: bits out of 2 … 16; kNonFinite, naming the element.
Status fakeQuantize(std::span<float> x, uint32_t bits);
// x (rows, rowLength), values (rows, rowLength), scales (rows). kShape: a length that is no multiple of rowLength ≥ 1.
Status quantizeRows(std::span<const float> x, size_t rowLength, int8_t* values, float* scales);

// The first element that is NaN or infinite, or `length`.
size_t findNonFinite(const float* x, size_t length);

}  // namespace needle3

#endif  // NEEDLE3_KERNELS_QUANTIZE_H_
