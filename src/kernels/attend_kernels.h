#ifndef NEEDLE3_KERNELS_ATTEND_KERNELS_H_
#define NEEDLE3_KERNELS_ATTEND_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/scratch.h"
#include "kernels/quantize.h"

namespace needle3 {

// The inner loops of attention, over one block of positions and the query heads that share one kv head. They know
// shapes and pointers; which block, which rows and which scratch is for attend.cpp to say.

// Positions of a block.
inline constexpr uint32_t kBlockPositions = 64;
// Lanes of a vector, and floats of a wide column of values: as many as have their sums in registers together.
inline constexpr size_t kLanes = 4;
inline constexpr size_t kWide = 4 * kLanes;
// Floats between the scores of two heads: a block, and what the last rows that are scored together may overwrite.
inline constexpr size_t kScoreStride = kBlockPositions + 4;

// Keys of one kv head at consecutive positions of one block, `stride` elements apart and padded with zeros to whole
// steps: where they lie if that is so there, else gathered.
struct BlockKeys {
  const void* rows;
  size_t stride;
};

// Values of the same, in columns of kWide floats and then of kLanes: where they lie, or gathered column by column.
struct BlockValues {
  const float* rows;
  size_t stride;  // 0: gathered

  // The first row's part of the column that begins at `d`, of kWide or kLanes floats, and the way to the next row's.
  [[nodiscard]] const float* column(size_t d, size_t width, size_t row) const {
    return stride == 0 ? rows + d * kBlockPositions + row * width : rows + d + row * stride;
  }
  [[nodiscard]] size_t strideOf(size_t width) const { return stride == 0 ? width : stride; }
};

// The softmax of a group's heads over one block.
struct BlockSoftmax {
  size_t heads;
  float* scores;             // (heads, kScoreStride): dot products in, weights out
  const float* scoreScales;  // (heads)
  const float* keyScales;    // (kScoreStride), and valueScales: of int8
  const float* valueScales;
  float* maxima;  // (heads): running
  float* sums;    // (heads): running
  float* decays;  // (heads), up to a whole vector: out
  float* powers;  // (kScoreStride): room
};

// The kernels for one format of rows and queries.
struct AttendKernels {
  size_t rowBytes;    // of an element of a stored row
  size_t keyBytes;    // of an element of a key as it is scored
  size_t queryBytes;  // of an element of a query as it is scored
  size_t keyStep;     // elements of keys and queries that are scored at a time

  // Converts or quantises a query head (length) to `to`, zeros behind it up to `padded`; `room` has `padded` bytes.
  // Returns what its scores are to be multiplied by.
  float (*prepareQuery)(const float* query, size_t length, size_t padded, int8_t* room, void* to);

  // Brings `rows` rows of one kv head, `stride` elements apart, together to rows that are `padded` apart, zeros behind
  // their `length` elements.
  void (*gatherKeys)(const void* from, size_t stride, size_t rows, size_t length, size_t padded, void* to);
  // The same as columns of kWide and then of kLanes floats, each column with all rows of a block: `to` is the first
  // column's first row, `offset` the row to begin with.
  void (*gatherValues)(const void* from, size_t stride, size_t rows, size_t length, size_t padded, float* to,
                       size_t offset);
  // Every `stride`-th scale. Null: there are none.
  void (*gatherScales)(const float* from, size_t stride, size_t rows, float* to);

  // Dot products of `heads` queries, queryStride apart, with `rows` keys, both of `length` elements, whole steps of
  // them: out[h · kScoreStride + row]. Up to three values behind the last row are overwritten.
  void (*score)(const void* queries, size_t queryStride, size_t heads, const BlockKeys& keys, size_t rows,
                size_t length, float* out);

  // Turns dot products at offsets [begin, end) of a block into weights e^(score − maximum), with the running maximum of
  // each head; adds their sum, and gives the factor by which what was summed before decays.
  //
  // Offsets are lanes of vectors aligned in the block; those outside [begin, end) weigh nothing, so that the order of
  // summation depends on positions only. Scales there must be finite and not negative.
  void (*softmax)(const BlockSoftmax& block, size_t begin, size_t end);

  // out[h][d] = out[h][d] · decays[h] + Σ_row weights[h][row] · values[row][d] over `rows` ≥ 1 rows from `firstRow` on:
  // weights (heads, kScoreStride), out (heads, width), width in whole vectors.
  void (*accumulate)(const float* weights, const BlockValues& values, size_t firstRow, size_t rows, size_t heads,
                     const float* decays, float* out, size_t width);
};

// Called through the table that this gives, the kernels stay functions of their own: inlined into one, they would share
// its registers, and engines would spill in the inner loops.
const AttendKernels& attendKernels(Precision precision, bool quantizeQuery);

// out[d] = row[d] / divisor for d < length; the row is padded to whole vectors.
void divideRow(const float* row, float divisor, size_t length, float* out);

// Reads a byte of each cache line, in order.
void touchLines(const void* bytes, size_t count);

}  // namespace needle3

#endif  // NEEDLE3_KERNELS_ATTEND_KERNELS_H_
