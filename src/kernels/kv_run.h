#ifndef NEEDLE3_KERNELS_KV_RUN_H_
#define NEEDLE3_KERNELS_KV_RUN_H_

#include <cstdint>

namespace needle3 {

// Rows of consecutive positions, contiguous in memory: keys (rows, numKvHeads, qkHeadDim), values (rows, numKvHeads,
// vHeadDim); floats, or int8 with scales (rows, numKvHeads).
struct KvRun {
  uint32_t first;  // position of row 0
  uint32_t rows;
  const void* keys;
  const void* values;
  const float* keyScales;
  const float* valueScales;
};

}  // namespace needle3

#endif  // NEEDLE3_KERNELS_KV_RUN_H_
