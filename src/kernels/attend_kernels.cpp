#include "kernels/attend_kernels.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/exp.h"
#include "kernels/simd.h"

namespace needle3 {
namespace {

// Rows whose scores are reduced together: four sums make one vector.
constexpr size_t kTileRows = 4;
// Query heads that share a pass over keys and values.
constexpr size_t kTileHeads = 2;
// Integer products are taken eight at a time.
constexpr size_t kInt16Lanes = 8;

// ---- queries, and rows of one kv head: brought together, and converted ----

inline void copy8(const float* from, float* to) {
  store(to, load(from));
  store(to + kLanes, load(from + kLanes));
}
inline void copy8(const int8_t* from, float* to) {
  const I16x8 lanes = loadWidened(from);
  store(to, lowToFloat(lanes));
  store(to + kLanes, highToFloat(lanes));
}
inline void copy8(const int8_t* from, int16_t* to) { store(to, loadWidened(from)); }
inline void copy8(const int8_t* from, int8_t* to) { std::memcpy(to, from, 8); }

// `length` elements, and zeros behind them up to `padded`.
template <typename From, typename To>
inline void copyPadded(const From* from, size_t length, size_t padded, To* to) {
  size_t i = 0;
  for (; i + 8 <= length; i += 8) copy8(from + i, to + i);
  // A number, not a character. NOLINTNEXTLINE(bugprone-signed-char-misuse)
  for (; i < length; ++i) to[i] = from[i];
  for (; i < padded; ++i) to[i] = 0;
}

// `rows` rows, `stride` elements apart, to rows that are `padded` apart, zeros behind their `length` elements.
template <typename From, typename To>
void gatherRows(const void* from, size_t stride, size_t rows, size_t length, size_t padded, void* to) {
  const auto* row = static_cast<const From*>(from);
  auto* gathered = static_cast<To*>(to);
  for (; rows > 0; --rows, row += stride, gathered += padded) copyPadded(row, length, padded, gathered);
}

// The same as columns of kWide and then of kLanes floats, each column with all rows of a block: `to` is the first
// column's first row, `offset` the row to begin with.
template <typename From>
void gatherColumns(const void* from, size_t stride, size_t rows, size_t length, size_t padded, float* to,
                   size_t offset) {
  const auto* row = static_cast<const From*>(from);
  for (const size_t end = offset + rows; offset < end; ++offset, row += stride) {
    size_t d = 0;
    for (; d + kWide <= length; d += kWide)
      copyPadded(row + d, kWide, kWide, to + d * kBlockPositions + offset * kWide);
    for (size_t width = 0; d < padded; d += width) {
      width = d + kWide <= padded ? kWide : kLanes;
      copyPadded(row + d, std::min(width, length - d), width, to + d * kBlockPositions + offset * width);
    }
  }
}

void gatherScales(const float* from, size_t stride, size_t rows, float* to) {
  size_t row = 0;
  if (stride == 2) {
    // Every other lane of two vectors; not for the last rows, where the second may end outside the array.
    for (; row + kLanes < rows; row += kLanes) {
      const float* pairs = from + 2 * row;
      store(to + row, shuffle<0, 2, 4, 6>(load(pairs), load(pairs + kLanes)));
    }
  }
  for (; row < rows; ++row) to[row] = from[row * stride];
}

float prepareFloatQuery(const float* query, size_t length, size_t padded, int8_t* /*room*/, void* to) {
  copyPadded(query, length, padded, static_cast<float*>(to));
  return 1.0F;
}

float prepareInt8Query(const float* query, size_t length, size_t padded, int8_t* room, void* to) {
  const float scale = quantizeRow(query, length, room);
  copyPadded(room, length, padded, static_cast<int16_t*>(to));
  return scale;
}

// The inner loops take one vector of each row a turn, or leave in between: where a loop is unrolled without an exit, V8
// moves the loads of all its turns before their arithmetic, and then has too few registers to keep them in.

// ---- scores ----

struct FloatProducts {
  using Query = float;
  using Key = float;
  using Sum = F32x4;
  static constexpr size_t kStep = kLanes;
  static constexpr float kZero = 0;

  static F32x4 loadKey(const float* key) { return load(key); }
  static F32x4 add(F32x4 sum, F32x4 query, F32x4 key) { return sum + query * key; }
  static F32x4 scores(F32x4 sums) { return sums; }
};

// Exact, so their order is free.
struct IntegerProducts {
  using Query = int16_t;
  using Key = int8_t;
  using Sum = I32x4;
  static constexpr size_t kStep = kInt16Lanes;
  static constexpr int32_t kZero = 0;

  static I16x8 loadKey(const int8_t* key) { return loadWidened(key); }
  static I32x4 add(I32x4 sum, I16x8 query, I16x8 key) { return sum + dotPairs(query, key); }
  static F32x4 scores(I32x4 sums) { return toFloat(sums); }
};

// Dot products of kHeads queries, queryStride apart, with kTileRows keys: out[h · kScoreStride + row].
template <typename Products, int kHeads>
inline void scoreTile(const typename Products::Query* queries, size_t queryStride,
                      const typename Products::Key* const (&keys)[kTileRows], size_t length, float* out) {
  typename Products::Sum sums[kHeads][kTileRows];
  for (auto& row : sums) {
    for (auto& sum : row) sum = splat(Products::kZero);
  }
  for (size_t at = 0; at < length; at += Products::kStep) {
    decltype(Products::loadKey(keys[0])) key[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) key[r] = Products::loadKey(keys[r] + at);
    for (size_t h = 0; h < kHeads; ++h) {
      const auto query = load(queries + h * queryStride + at);
      for (size_t r = 0; r < kTileRows; ++r) sums[h][r] = Products::add(sums[h][r], query, key[r]);
    }
  }
  for (size_t h = 0; h < kHeads; ++h) {
    store(out + h * kScoreStride, Products::scores(horizontalSums(sums[h][0], sums[h][1], sums[h][2], sums[h][3])));
  }
}

// The same with `rows` keys. Up to kTileRows − 1 values behind the last row are overwritten. `length` is padded to
// whole steps.
template <typename Products, int kHeads>
inline void scoreHeads(const typename Products::Query* queries, size_t queryStride, const typename Products::Key* keys,
                       size_t keyStride, size_t rows, size_t length, float* out) {
  const auto score = [&](const typename Products::Key* const(&tileKeys)[kTileRows], size_t row) {
    scoreTile<Products, kHeads>(queries, queryStride, tileKeys, length, out + row);
  };
  size_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows, keys += kTileRows * keyStride) {
    score({keys, keys + keyStride, keys + 2 * keyStride, keys + 3 * keyStride}, row);
  }
  if (row < rows) {  // past the last row, that one again
    const auto at = [&](size_t r) { return keys + std::min(r, rows - row - 1) * keyStride; };
    score({at(0), at(1), at(2), at(3)}, row);
  }
}

// The same for any number of heads.
template <typename Products>
void scoreBlock(const void* queries, size_t queryStride, size_t heads, const BlockKeys& keys, size_t rows,
                size_t length, float* out) {
  const auto* query = static_cast<const typename Products::Query*>(queries);
  const auto* key = static_cast<const typename Products::Key*>(keys.rows);
  for (; heads >= kTileHeads;
       heads -= kTileHeads, query += kTileHeads * queryStride, out += kTileHeads * kScoreStride) {
    scoreHeads<Products, kTileHeads>(query, queryStride, key, keys.stride, rows, length, out);
  }
  if (heads > 0) scoreHeads<Products, 1>(query, queryStride, key, keys.stride, rows, length, out);
}

// ---- values: weighted sums of the block's rows ----

// out[h][d] = out[h][d] · decays[h] + Σ_row weights[h][row] · values[row][d] for kHeads heads and kVectors vectors,
// `rows` ≥ 1.
template <int kHeads, int kVectors>
inline void accumulateTile(const float* weights, const float* values, size_t valueStride, size_t rows,
                           const float* decays, float* out, size_t outStride) {
  F32x4 sums[kHeads][kVectors];
  for (auto& row : sums) {
    for (F32x4& sum : row) sum = splat(0.0F);
  }
  const auto addRow = [&](size_t row) {
    F32x4 weight[kHeads];
    for (int h = 0; h < kHeads; ++h) weight[h] = loadSplat(weights + static_cast<size_t>(h) * kScoreStride + row);
    for (int d = 0; d < kVectors; ++d) {
      const F32x4 lanes = load(values + static_cast<size_t>(d) * kLanes);
      for (int h = 0; h < kHeads; ++h) sums[h][d] = sums[h][d] + weight[h] * lanes;
    }
  };
  for (;; rows -= 4, weights += 4, values += valueStride) {
    addRow(0);
    if (rows == 1) break;
    values += valueStride;
    addRow(1);
    if (rows == 2) break;
    values += valueStride;
    addRow(2);
    if (rows == 3) break;
    values += valueStride;
    addRow(3);
    if (rows == 4) break;
  }
  for (int h = 0; h < kHeads; ++h) {
    const F32x4 decay = splat(decays[h]);
    for (int d = 0; d < kVectors; ++d) {
      float* lanes = out + static_cast<size_t>(h) * outStride + static_cast<size_t>(d) * kLanes;
      store(lanes, load(lanes) * decay + sums[h][d]);
    }
  }
}

// The same for one column of kVectors and any number of heads.
template <int kVectors>
inline void accumulateColumn(const float* weights, const float* values, size_t valueStride, size_t rows, size_t heads,
                             const float* decays, float* out, size_t outStride) {
  for (; heads >= kTileHeads; heads -= kTileHeads) {
    accumulateTile<kTileHeads, kVectors>(weights, values, valueStride, rows, decays, out, outStride);
    weights += kTileHeads * kScoreStride;
    decays += kTileHeads;
    out += kTileHeads * outStride;
  }
  if (heads > 0) accumulateTile<1, kVectors>(weights, values, valueStride, rows, decays, out, outStride);
}

// The same for whole rows: `rows` of them from `firstRow` on, out (heads, width).
void accumulateBlock(const float* weights, const BlockValues& values, size_t firstRow, size_t rows, size_t heads,
                     const float* decays, float* out, size_t width) {
  size_t d = 0;
  for (; d + kWide <= width; d += kWide) {
    accumulateColumn<kWide / kLanes>(weights, values.column(d, kWide, firstRow), values.strideOf(kWide), rows, heads,
                                     decays, out + d, width);
  }
  for (; d < width; d += kLanes) {
    accumulateColumn<1>(weights, values.column(d, kLanes, firstRow), values.strideOf(kLanes), rows, heads, decays,
                        out + d, width);
  }
}

// ---- softmax ----

template <bool kScaled>
void softmaxBlock(const BlockSoftmax& block, size_t begin, size_t end) {
  const size_t alignedBegin = begin / kLanes * kLanes;
  const size_t alignedEnd = roundUp(end, kLanes);
  const BlockSoftmax b = block;  // a store to one array cannot change the others' addresses

  for (size_t h = 0; h < b.heads; ++h) {
    float* scores = b.scores + h * kScoreStride;
    constexpr float kMasked = -std::numeric_limits<float>::infinity();
    for (size_t i = alignedBegin; i < begin; ++i) scores[i] = kMasked;
    for (size_t i = end; i < alignedEnd; ++i) scores[i] = kMasked;
    const F32x4 scale = splat(b.scoreScales[h]);
    F32x4 largest = splat(b.maxima[h]);
    for (size_t i = alignedBegin; i < alignedEnd; i += kLanes) {
      F32x4 score = load(scores + i);
      if constexpr (kScaled) score = score * load(b.keyScales + i);
      score = score * scale;
      store(scores + i, score);
      largest = maximum(largest, score);
    }
    const float newMaximum = horizontalMaximum(largest);
    b.decays[h] = b.maxima[h] - newMaximum;
    b.maxima[h] = newMaximum;
  }
  for (size_t h = 0; h < b.heads; h += kLanes) store(b.decays + h, expOfNonPositive(load(b.decays + h)));

  for (size_t h = 0; h < b.heads; ++h) {
    float* scores = b.scores + h * kScoreStride;
    const F32x4 largest = splat(b.maxima[h]);
    for (size_t i = alignedBegin; i < alignedEnd; i += kLanes) {
      const ReducedExponent exponent = reduceExponent(load(scores + i) - largest);
      store(scores + i, exponent.rest);
      store(b.powers + i, exponent.power);
    }
    F32x4 sum = splat(0.0F);
    for (size_t i = alignedBegin; i < alignedEnd; i += kLanes) {
      F32x4 weight = expOf({load(scores + i), load(b.powers + i)});
      sum = sum + weight;
      if constexpr (kScaled) weight = weight * load(b.valueScales + i);
      store(scores + i, weight);
    }
    b.sums[h] = b.sums[h] * b.decays[h] + horizontalSum(sum);
  }
}

constexpr AttendKernels kFloatKernels = {.rowBytes = sizeof(float),
                                         .keyBytes = sizeof(float),
                                         .queryBytes = sizeof(float),
                                         .keyStep = kLanes,
                                         .prepareQuery = &prepareFloatQuery,
                                         .gatherKeys = &gatherRows<float, float>,
                                         .gatherValues = &gatherColumns<float>,
                                         .gatherScales = nullptr,
                                         .score = &scoreBlock<FloatProducts>,
                                         .softmax = &softmaxBlock<false>,
                                         .accumulate = &accumulateBlock};
constexpr AttendKernels kInt8Kernels = {.rowBytes = sizeof(int8_t),
                                        .keyBytes = sizeof(int8_t),
                                        .queryBytes = sizeof(int16_t),
                                        .keyStep = kInt16Lanes,
                                        .prepareQuery = &prepareInt8Query,
                                        .gatherKeys = &gatherRows<int8_t, int8_t>,
                                        .gatherValues = &gatherColumns<int8_t>,
                                        .gatherScales = &gatherScales,
                                        .score = &scoreBlock<IntegerProducts>,
                                        .softmax = &softmaxBlock<true>,
                                        .accumulate = &accumulateBlock};
constexpr AttendKernels kInt8FloatQueryKernels = {.rowBytes = sizeof(int8_t),
                                                  .keyBytes = sizeof(float),
                                                  .queryBytes = sizeof(float),
                                                  .keyStep = kLanes,
                                                  .prepareQuery = &prepareFloatQuery,
                                                  .gatherKeys = &gatherRows<int8_t, float>,
                                                  .gatherValues = &gatherColumns<int8_t>,
                                                  .gatherScales = &gatherScales,
                                                  .score = &scoreBlock<FloatProducts>,
                                                  .softmax = &softmaxBlock<true>,
                                                  .accumulate = &accumulateBlock};

}  // namespace

const AttendKernels& attendKernels(Precision precision, bool quantizeQuery) {
  if (precision == Precision::kF32) return kFloatKernels;
  return quantizeQuery ? kInt8Kernels : kInt8FloatQueryKernels;
}

void divideRow(const float* row, float divisor, size_t length, float* out) {
  const F32x4 divisors = splat(divisor);
  size_t d = 0;
  for (; d + kLanes <= length; d += kLanes) store(out + d, load(row + d) / divisors);
  if (d < length) storePartial(out + d, load(row + d) / divisors, length - d);
}

void touchLines(const void* bytes, size_t count) {
  constexpr size_t kCacheLine = 64;
  const auto* byte = static_cast<const uint8_t*>(bytes);
  uint32_t sum = 0;
  for (size_t i = 0; i < count; i += kCacheLine) sum += byte[i];
  asm volatile("" ::"r"(sum));  // so that no compiler drops the loads
}

}  // namespace needle3
