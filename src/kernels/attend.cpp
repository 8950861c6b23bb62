#include "kernels/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/scratch.h"
#include "kernels/attend_kernels.h"

namespace needle3 {
namespace {

// From so many queries on f32 rows are gathered, too: below, that costs more than rows that lie close together save.
constexpr uint32_t kGatherQueries = 3;

const AttendKernels& kernelsFor(const AttendShape& shape) {
  return attendKernels(shape.precision, shape.quantizeQuery);
}

struct AttendScratch {
  AttendScratch(const AttendShape& shape, const AttendKernels& kernels, Arena& arena)
      : qkStride(roundUp(size_t{shape.qkHeadDim}, kernels.keyStep)), vStride(roundUp(size_t{shape.vHeadDim}, kLanes)) {
    const uint64_t queryHeads = uint64_t{kQueryRows} * shape.numHeads;
    const uint64_t group = shape.numHeads / shape.numKvHeads;
    const uint64_t blockRows = kBlockPositions;  // products in 64 bits: they may pass what wasm can address
    queries = arena.take<std::byte>(queryHeads * qkStride * kernels.queryBytes);
    narrowQuery = arena.take<int8_t>(shape.quantizeQuery ? qkStride : 0);
    scoreScales = arena.take<float>(queryHeads);
    maxima = arena.take<float>(queryHeads);
    sums = arena.take<float>(queryHeads);
    outputs = arena.take<float>(queryHeads * vStride);
    keys = arena.take<std::byte>(blockRows * qkStride * kernels.keyBytes);
    values = arena.take<float>(blockRows * vStride);
    keyScales = arena.take<float>(kScoreStride);
    valueScales = arena.take<float>(kScoreStride);
    weights = arena.take<float>(group * kScoreStride);
    powers = arena.take<float>(kScoreStride);
    decays = arena.take<float>(roundUp(group, kLanes));
  }

  size_t qkStride;
  size_t vStride;

  std::byte* queries;   // (kQueryRows, numHeads, qkStride), zero-padded: floats, or int16 of int8 range
  int8_t* narrowQuery;  // (qkStride)
  float* scoreScales;   // (kQueryRows, numHeads): what a query's dot products are multiplied by
  float* maxima;        // (kQueryRows, numHeads): of the scores so far
  float* sums;          // (kQueryRows, numHeads): Σ e^(score − maximum)
  float* outputs;       // (kQueryRows, numHeads, vStride): Σ e^(score − maximum) · v
  std::byte* keys;      // (kBlockPositions, qkStride), as the kernels take them
  float* values;        // (columns, kBlockPositions, width of the column)
  float* keyScales;     // (kScoreStride), by offset in the block
  float* valueScales;   // (kScoreStride), by offset in the block
  float* weights;       // (group, kScoreStride), by offset in the block: scores, then weights
  float* powers;        // (kScoreStride), by offset in the block: half of an exponential under way
  float* decays;        // (group): what was summed before the block is multiplied by
};

// The part of a run that lies in [first, end).
struct Piece {
  const KvRun* run;
  uint32_t row;     // in the run
  uint32_t offset;  // from `first`
  uint32_t rows;
};

template <typename Visit>
void forEachPiece(std::span<const KvRun> runs, uint32_t first, uint32_t end, Visit visit) {
  for (const KvRun& run : runs) {
    const uint32_t begin = std::max(first, run.first);
    const uint32_t stop = std::min(end, run.first + run.rows);
    if (begin < stop) visit(Piece{&run, begin - run.first, begin - first, stop - begin});
  }
}

}  // namespace

uint64_t attendScratchBytes(const AttendShape& shape) {
  Arena arena(nullptr);
  const AttendScratch scratch(shape, kernelsFor(shape), arena);
  return arena.bytes();
}

namespace {

class Attention {
 public:
  Attention(const AttendShape& shape, std::span<const KvRun> runs, Arena& arena)
      : shape_(shape),
        runs_(runs),
        group_(shape.numHeads / shape.numKvHeads),
        kernels_(kernelsFor(shape)),
        scratch_(shape, kernels_, arena) {}

  // At most kQueryRows queries.
  void run(const float* queries, uint32_t rows, uint32_t position, uint32_t cap, float* out) {
    prepareQueries(queries, rows);
    const auto firstOf = [cap](uint32_t p) { return p + 1 > cap ? p + 1 - cap : 0; };
    const uint32_t last = position + rows - 1;
    for (uint32_t block = firstOf(position) / kBlockPositions; block <= last / kBlockPositions; ++block) {
      const uint32_t blockFirst = block * kBlockPositions;
      const uint32_t first = std::max(blockFirst, firstOf(position));
      const uint32_t end = std::min(blockFirst + kBlockPositions, last + 1);
      const bool inPlace = shape_.precision == Precision::kF32 && rows < kGatherQueries;
      if (inPlace) touchBlock(first, end);
      for (uint32_t kvHead = 0; kvHead < shape_.numKvHeads; ++kvHead) {
        loadBlock(kvHead, blockFirst, first, end, inPlace);
        for (uint32_t row = 0; row < rows; ++row) {
          const uint32_t begin = std::max(first, firstOf(position + row));
          const uint32_t stop = std::min(end, position + row + 1);
          if (begin < stop) attendBlock(row, kvHead, blockFirst, first, begin, stop);
        }
      }
    }
    finish(rows, out);
  }

 private:
  [[nodiscard]] std::byte* queryAt(size_t head) const {
    return scratch_.queries + head * scratch_.qkStride * kernels_.queryBytes;
  }

  // Converts the queries and starts the sums.
  void prepareQueries(const float* queries, uint32_t rows) const {
    const size_t heads = size_t{rows} * shape_.numHeads;
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape_.qkHeadDim));
    for (size_t head = 0; head < heads; ++head) {
      scratch_.scoreScales[head] = kernels_.prepareQuery(queries + head * shape_.qkHeadDim, shape_.qkHeadDim,
                                                         scratch_.qkStride, scratch_.narrowQuery, queryAt(head)) *
                                   scale;
    }
    std::fill(scratch_.maxima, scratch_.maxima + heads, -std::numeric_limits<float>::infinity());
    std::fill(scratch_.sums, scratch_.sums + heads, 0.0F);
    std::fill(scratch_.outputs, scratch_.outputs + heads * scratch_.vStride, 0.0F);
    if (kernels_.gatherScales == nullptr) return;
    // The softmax multiplies whole vectors, so what no block fills must be a scale, too.
    std::fill(scratch_.keyScales, scratch_.keyScales + kScoreStride, 1.0F);
    std::fill(scratch_.valueScales, scratch_.valueScales + kScoreStride, 1.0F);
  }

  // One kv head's part of the rows of one of a run's arrays.
  struct Rows {
    const void* KvRun::*array;
    size_t headDim;
    uint32_t kvHead;
  };
  [[nodiscard]] size_t strideOf(const Rows& rows) const { return size_t{shape_.numKvHeads} * rows.headDim; }
  [[nodiscard]] const void* rowOf(const Rows& rows, const KvRun& run, uint32_t row) const {
    const size_t element = row * strideOf(rows) + rows.kvHead * rows.headDim;
    return static_cast<const std::byte*>(run.*rows.array) + element * kernels_.rowBytes;
  }
  // The row at `first` where it lies, if one run holds all of [first, end); else null.
  [[nodiscard]] const void* rowsInPlace(const Rows& rows, uint32_t first, uint32_t end) const {
    for (const KvRun& run : runs_) {
      if (run.first <= first && end <= run.first + run.rows) return rowOf(rows, run, first - run.first);
    }
    return nullptr;
  }

  // Reads a byte of each cache line of [first, end), in order of address. The kernels go through a block once for each
  // head, in strides; a real step finds the layer's rows in no near cache, and then waits for memory at every stride.
  void touchBlock(uint32_t first, uint32_t end) const {
    forEachPiece(runs_, first, end, [&](const Piece& piece) {
      const auto touch = [&piece](const void* array, size_t rowBytes) {
        touchLines(static_cast<const std::byte*>(array) + piece.row * rowBytes, piece.rows * rowBytes);
      };
      touch(piece.run->keys, size_t{shape_.numKvHeads} * shape_.qkHeadDim * sizeof(float));
      touch(piece.run->values, size_t{shape_.numKvHeads} * shape_.vHeadDim * sizeof(float));
    });
  }

  // Points keys_ and values_ at the kv head's rows of [first, end), and gathers their scales.
  void loadBlock(uint32_t kvHead, uint32_t blockFirst, uint32_t first, uint32_t end, bool inPlace) {
    const Rows keys = {&KvRun::keys, shape_.qkHeadDim, kvHead};
    const Rows values = {&KvRun::values, shape_.vHeadDim, kvHead};
    const void* keysInPlace = nullptr;
    const void* valuesInPlace = nullptr;
    if ((inPlace || shape_.quantizeQuery) && keys.headDim % kernels_.keyStep == 0) {
      keysInPlace = rowsInPlace(keys, first, end);
    }
    if (inPlace && values.headDim % kLanes == 0) valuesInPlace = rowsInPlace(values, first, end);
    keys_ =
        keysInPlace != nullptr ? BlockKeys{keysInPlace, strideOf(keys)} : BlockKeys{scratch_.keys, scratch_.qkStride};
    values_ = valuesInPlace != nullptr ? BlockValues{static_cast<const float*>(valuesInPlace), strideOf(values)}
                                       : BlockValues{scratch_.values, 0};

    forEachPiece(runs_, first, end, [&](const Piece& piece) {
      if (keysInPlace == nullptr) {
        kernels_.gatherKeys(rowOf(keys, *piece.run, piece.row), strideOf(keys), piece.rows, keys.headDim,
                            scratch_.qkStride, scratch_.keys + piece.offset * scratch_.qkStride * kernels_.keyBytes);
      }
      if (valuesInPlace == nullptr) {
        kernels_.gatherValues(rowOf(values, *piece.run, piece.row), strideOf(values), piece.rows, values.headDim,
                              scratch_.vStride, scratch_.values, piece.offset);
      }
      if (kernels_.gatherScales == nullptr) return;
      const size_t scale = size_t{piece.row} * shape_.numKvHeads + kvHead;
      const size_t offset = first - blockFirst + piece.offset;
      kernels_.gatherScales(piece.run->keyScales + scale, shape_.numKvHeads, piece.rows, scratch_.keyScales + offset);
      kernels_.gatherScales(piece.run->valueScales + scale, shape_.numKvHeads, piece.rows,
                            scratch_.valueScales + offset);
    });
  }

  // Adds positions [begin, end) of the loaded block, whose rows start at `first`, to one query's sums.
  void attendBlock(uint32_t row, uint32_t kvHead, uint32_t blockFirst, uint32_t first, uint32_t begin,
                   uint32_t end) const {
    const size_t head0 = size_t{row} * shape_.numHeads + size_t{kvHead} * group_;
    const size_t rows = end - begin;
    const size_t skipped = begin - first;
    const size_t offset = begin - blockFirst;
    float* weights = scratch_.weights + offset;
    const auto* keys = static_cast<const std::byte*>(keys_.rows) + skipped * keys_.stride * kernels_.keyBytes;
    kernels_.score(queryAt(head0), scratch_.qkStride, group_, {keys, keys_.stride}, rows, scratch_.qkStride, weights);
    kernels_.softmax({.heads = group_,
                      .scores = scratch_.weights,
                      .scoreScales = scratch_.scoreScales + head0,
                      .keyScales = scratch_.keyScales,
                      .valueScales = scratch_.valueScales,
                      .maxima = scratch_.maxima + head0,
                      .sums = scratch_.sums + head0,
                      .decays = scratch_.decays,
                      .powers = scratch_.powers},
                     offset, offset + rows);
    kernels_.accumulate(weights, values_, skipped, rows, group_, scratch_.decays,
                        scratch_.outputs + head0 * scratch_.vStride, scratch_.vStride);
  }

  void finish(uint32_t rows, float* out) const {
    const size_t heads = size_t{rows} * shape_.numHeads;
    for (size_t head = 0; head < heads; ++head) {
      divideRow(scratch_.outputs + head * scratch_.vStride, scratch_.sums[head], shape_.vHeadDim,
                out + head * shape_.vHeadDim);
    }
  }

  const AttendShape shape_;
  const std::span<const KvRun> runs_;
  const uint32_t group_;
  const AttendKernels& kernels_;
  const AttendScratch scratch_;
  BlockKeys keys_{};
  BlockValues values_{};
};

}  // namespace

void attend(const AttendShape& shape, std::span<const KvRun> runs, const float* queries, uint32_t rows,
            uint32_t position, uint32_t cap, float* out, std::byte* scratch) {
  Arena arena(scratch);
  Attention attention(shape, runs, arena);
  for (uint32_t row = 0; row < rows; row += kQueryRows) {
    attention.run(queries + size_t{row} * shape.numHeads * shape.qkHeadDim, std::min(rows - row, kQueryRows),
                  position + row, cap, out + size_t{row} * shape.numHeads * shape.vHeadDim);
  }
}

}  // namespace needle3
