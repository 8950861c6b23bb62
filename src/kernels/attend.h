#ifndef NEEDLE3_KERNELS_ATTEND_H_
#define NEEDLE3_KERNELS_ATTEND_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kv_run.h"
#include "kernels/quantize.h"

namespace needle3 {

// Single-position and batched causal attention over rows that lie in runs:
//
//   score[h][s] = (q[h] · k[s]) / √qkHeadDim,  out[h] = Σ_s softmax(score[h])[s] · v[s]
//
// with query head h reading kv head h / (numHeads / numKvHeads).
//
// Positions are taken in blocks of kBlockPositions (attend_kernels.h), aligned to multiples of it, in ascending order,
// with a running maximum: so a result depends on positions and rows alone, not on where a row lies nor on how many
// queries are taken at once. docs/numerics.md derives the error bound from this order of summation.
struct AttendShape {
  uint32_t numHeads;
  uint32_t numKvHeads;
  uint32_t qkHeadDim;
  uint32_t vHeadDim;
  Precision precision;
  bool quantizeQuery;  // kInt8 only
};

// Queries that share one pass over keys and values.
inline constexpr uint32_t kQueryRows = 8;

// Scratch bytes that `attend` needs.
uint64_t attendScratchBytes(const AttendShape& shape);

// `rows` queries (rows, numHeads, qkHeadDim) at positions position …, each over [max(0, p + 1 − cap), p], into out
// (rows, numHeads, vHeadDim). The runs are in ascending order and together hold every position that is read.
// With quantizeQuery the queries must be finite. `scratch` has attendScratchBytes, 16-byte aligned; out overlaps
// nothing.
void attend(const AttendShape& shape, std::span<const KvRun> runs, const float* queries, uint32_t rows,
            uint32_t position, uint32_t cap, float* out, std::byte* scratch);

}  // namespace needle3

#endif  // NEEDLE3_KERNELS_ATTEND_H_
