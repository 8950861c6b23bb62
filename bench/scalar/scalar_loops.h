#ifndef NEEDLE3_BENCH_SCALAR_LOOPS_H_
#define NEEDLE3_BENCH_SCALAR_LOOPS_H_

#include <cstddef>
#include <cstdint>

// The baseline of the benchmarks: the decode state's formulas as the obvious scalar loops. One query head after the
// other, one position after the other, slot p % slots computed for every position, the C library's expf and round, one
// accumulator a sum. Compiled at -O3 without SIMD128. Not part of the package.
//
// Shapes are those of the package: query (numHeads, qkHeadDim), keys (slots, numKvHeads, qkHeadDim), values
// (slots, numKvHeads, vHeadDim), scales (slots, numKvHeads), out (numHeads, vHeadDim). Arrays are the caller's.

namespace needle3::bench {

struct ScalarShape {
  uint32_t numHeads;
  uint32_t numKvHeads;
  uint32_t qkHeadDim;
  uint32_t vHeadDim;
};

struct ScalarFloatCache {
  const float* keys;
  const float* values;
  uint32_t slots;
};

struct ScalarInt8Cache {
  const int8_t* keys;
  const float* keyScales;
  const int8_t* values;
  const float* valueScales;
  uint32_t slots;
};

// One query over the positions first … last, inclusive. `scores` has room for last − first + 1 floats.
void scalarAttend(const ScalarShape& shape, const ScalarFloatCache& cache, uint32_t first, uint32_t last,
                  const float* query, float* scores, float* out);

// The same over int8 rows, each element converted to float where it is used.
void scalarAttendInt8(const ScalarShape& shape, const ScalarInt8Cache& cache, uint32_t first, uint32_t last,
                      const float* query, float* scores, float* out);

// The same, each query head first quantised like a key row into `quantized` (qkHeadDim elements): q·k in integers.
void scalarAttendInt8QuantizedQuery(const ScalarShape& shape, const ScalarInt8Cache& cache, uint32_t first,
                                    uint32_t last, const float* query, int8_t* quantized, float* scores, float* out);

// Symmetric int8 of one row; returns the scale.
float scalarQuantizeRow(const float* x, uint32_t length, int8_t* values);

// Writes the keys and values of one position to its slot: floats are copied, int8 is quantised per kv head.
void scalarWriteKv(const ScalarShape& shape, uint32_t position, uint32_t slots, const float* keys, const float* values,
                   float* cachedKeys, float* cachedValues);
void scalarWriteKvInt8(const ScalarShape& shape, uint32_t position, uint32_t slots, const float* keys,
                       const float* values, int8_t* cachedKeys, float* keyScales, int8_t* cachedValues,
                       float* valueScales);

struct ScalarConvolution {
  const float* taps;  // (count, dim)
  uint32_t count;     // at least 2
  uint32_t dilation;
  uint32_t wake;  // tap j is off while position < j · max(dilation, wake)
  uint32_t dim;
};

// Causal depthwise convolution in place over the row at `position`. The raw row then replaces the oldest of `tail`
// ((count − 1) · dilation rows, that of position p at p % rows).
void scalarConvolve(const ScalarConvolution& convolution, uint32_t position, float* tail, float* row);

}  // namespace needle3::bench

#endif  // NEEDLE3_BENCH_SCALAR_LOOPS_H_
