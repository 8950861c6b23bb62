#include "attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "quantize.h"
#include "simd.h"

namespace needle3 {
namespace {

constexpr size_t kLanes = 4;
// Rows whose scores are reduced together: four sums make one vector.
constexpr size_t kTileRows = 4;
// Query heads that share a pass over keys and values.
constexpr uint32_t kTileHeads = 2;
// Vectors of a value row whose sums stay in registers together, and their floats.
constexpr size_t kWideVectors = 4;
constexpr size_t kWide = kWideVectors * kLanes;
// Floats between the scores of two heads: a block, and what the last tile of rows may overwrite.
constexpr size_t kScoreStride = kBlockPositions + 4;
// Integer products are taken eight at a time.
constexpr size_t kInt16Lanes = 8;
// From so many queries on f32 rows are gathered, too: below, that costs more than rows that lie close together save.
constexpr uint32_t kGatherQueries = 3;

template <typename T>
constexpr T roundUp(T n, size_t multiple) {
  return static_cast<T>((n + multiple - 1) / multiple * multiple);
}

// Keys of one kv head at the positions [first, end) of one block, as floats or int8, `stride` elements apart and padded
// with zeros to whole vectors: where they lie if that is so there, else gathered.
struct BlockKeys {
  const void* rows;  // of position `first`
  size_t stride;

  [[nodiscard]] const void* row(size_t i, size_t elementBytes) const {
    return static_cast<const std::byte*>(rows) + i * stride * elementBytes;
  }
};

// The width of the column of a value row that begins at `d`: kWide floats, or kLanes where fewer are left.
constexpr size_t columnWidth(size_t d, size_t padded) { return d + kWide <= padded ? kWide : kLanes; }

// Values of the same, in columns of kWide floats and then of kLanes: where they lie, or gathered column by column.
struct BlockValues {
  const float* rows;  // of position `first`
  size_t stride;      // 0: gathered

  [[nodiscard]] const float* column(size_t d, size_t width, size_t row) const {
    return stride == 0 ? rows + d * kBlockPositions + row * width : rows + d + row * stride;
  }
  [[nodiscard]] size_t strideOf(size_t width) const { return stride == 0 ? width : stride; }
};

// ---- gathering: rows of one kv head brought together, and converted ----

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
      width = columnWidth(d, padded);
      copyPadded(row + d, std::min(width, length - d), width, to + d * kBlockPositions + offset * width);
    }
  }
}

// Every `stride`-th of the scales.
void gatherScales(const float* from, size_t stride, size_t rows, float* to) {
  for (size_t row = 0; row < rows; ++row) to[row] = from[row * stride];
}

// The inner loops take one vector of each row a turn, or leave in between: where a loop is unrolled without an exit, V8
// moves the loads of all its turns before their arithmetic, and then has too few registers to keep them in.

// ---- scores: kHeads queries against kTileRows keys ----

template <int kHeads>
struct FloatTile {
  using Query = float;
  using Key = float;
  static constexpr size_t kStep = kLanes;
  F32x4 sums[kHeads][kTileRows];

  FloatTile() {
    for (auto& row : sums) {
      for (F32x4& sum : row) sum = splat(0.0F);
    }
  }
  void add(const float* queries, size_t queryStride, const float* const (&keys)[kTileRows], size_t at) {
    F32x4 key[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) key[r] = load(keys[r] + at);
    for (size_t h = 0; h < kHeads; ++h) {
      const F32x4 query = load(queries + h * queryStride + at);
      for (size_t r = 0; r < kTileRows; ++r) sums[h][r] = sums[h][r] + query * key[r];
    }
  }
  [[nodiscard]] F32x4 scores(size_t h) const { return horizontalSums(sums[h][0], sums[h][1], sums[h][2], sums[h][3]); }
};

// Integer dot products: exact, so their order is free.
template <int kHeads>
struct IntegerTile {
  using Query = int16_t;
  using Key = int8_t;
  static constexpr size_t kStep = kInt16Lanes;
  I32x4 sums[kHeads][kTileRows];

  IntegerTile() {
    for (auto& row : sums) {
      for (I32x4& sum : row) sum = splat(0);
    }
  }
  void add(const int16_t* queries, size_t queryStride, const int8_t* const (&keys)[kTileRows], size_t at) {
    I16x8 key[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) key[r] = loadWidened(keys[r] + at);
    for (size_t h = 0; h < kHeads; ++h) {
      const I16x8 query = load(queries + h * queryStride + at);
      for (size_t r = 0; r < kTileRows; ++r) sums[h][r] = sums[h][r] + dotPairs(query, key[r]);
    }
  }
  [[nodiscard]] F32x4 scores(size_t h) const {
    return toFloat(horizontalSums(sums[h][0], sums[h][1], sums[h][2], sums[h][3]));
  }
};

// Dot products of kHeads queries, queryStride apart, with `rows` keys: out[h · kScoreStride + row]. Up to kTileRows − 1
// values behind the last row are overwritten. `length` is padded to whole steps.
template <template <int> typename Tile, int kHeads>
inline void scoreHeads(const typename Tile<kHeads>::Query* queries, size_t queryStride,
                       const typename Tile<kHeads>::Key* keys, size_t keyStride, size_t rows, size_t length,
                       float* out) {
  using T = Tile<kHeads>;
  const auto scoreTile = [&](const typename T::Key* const(&tileKeys)[kTileRows], size_t row) {
    T tile;
    for (size_t at = 0; at < length; at += T::kStep) tile.add(queries, queryStride, tileKeys, at);
    for (size_t h = 0; h < kHeads; ++h) store(out + h * kScoreStride + row, tile.scores(h));
  };
  size_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows, keys += kTileRows * keyStride) {
    scoreTile({keys, keys + keyStride, keys + 2 * keyStride, keys + 3 * keyStride}, row);
  }
  if (row < rows) {  // past the last row, that one again
    const auto at = [&](size_t r) { return keys + std::min(r, rows - row - 1) * keyStride; };
    scoreTile({at(0), at(1), at(2), at(3)}, row);
  }
}

// The same for any number of heads.
template <template <int> typename Tile>
void scoreBlock(const void* queries, size_t queryStride, size_t heads, const void* keys, size_t keyStride, size_t rows,
                size_t length, float* out) {
  const auto* query = static_cast<const typename Tile<1>::Query*>(queries);
  const auto* key = static_cast<const typename Tile<1>::Key*>(keys);
  for (; heads >= kTileHeads;
       heads -= kTileHeads, query += kTileHeads * queryStride, out += kTileHeads * kScoreStride) {
    scoreHeads<Tile, kTileHeads>(query, queryStride, key, keyStride, rows, length, out);
  }
  if (heads > 0) scoreHeads<Tile, 1>(query, queryStride, key, keyStride, rows, length, out);
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
    accumulateColumn<kWideVectors>(weights, values.column(d, kWide, firstRow), values.strideOf(kWide), rows, heads,
                                   decays, out + d, width);
  }
  for (; d < width; d += kLanes) {
    accumulateColumn<1>(weights, values.column(d, kLanes, firstRow), values.strideOf(kLanes), rows, heads, decays,
                        out + d, width);
  }
}

// ---- softmax of the heads of one group over one block ----

struct SoftmaxBlock {
  size_t heads;
  float* scores;             // (heads, kScoreStride): dot products in, weights out
  const float* scoreScales;  // (heads)
  const float* keyScales;    // (kScoreStride), and valueScales: kScaled only
  const float* valueScales;
  float* maxima;  // (heads): running
  float* sums;    // (heads): running
  float* decays;  // (heads), up to a whole vector: out
  float* powers;  // (kScoreStride): room
};

// Turns dot products at offsets [begin, end) of a block into weights e^(score − maximum), with the running maximum of
// each head; adds their sum, and gives the factor by which what was summed before decays.
//
// Offsets are lanes of vectors aligned in the block; those outside [begin, end) weigh nothing, so that the order of
// summation depends on positions only. Scales there must be finite and not negative.
template <bool kScaled>
void softmaxBlock(const SoftmaxBlock& block, size_t begin, size_t end) {
  const size_t alignedBegin = begin / kLanes * kLanes;
  const size_t alignedEnd = roundUp(end, kLanes);
  const SoftmaxBlock b = block;  // a store to one array cannot change the others' addresses

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

// What differs with the format of rows and queries. The kernels are called through this table, and so stay functions of
// their own: inlined into one, they would share its registers, and engines would spill in the inner loops.
struct Kernels {
  size_t rowBytes;  // of an element of a stored row
  size_t keyBytes;  // of an element of a key, and of a query, as they are scored
  size_t queryBytes;
  size_t keyStep;  // elements of a key that are scored at a time
  decltype(&gatherRows<float, float>) gatherKeys;
  decltype(&gatherColumns<float>) gatherValues;
  decltype(&gatherScales) gatherScales;  // null: there are none
  decltype(&scoreBlock<FloatTile>) score;
  decltype(&softmaxBlock<false>) softmax;
  decltype(&accumulateBlock) accumulate;
};
constexpr Kernels kFloatKernels = {.rowBytes = sizeof(float),
                                   .keyBytes = sizeof(float),
                                   .queryBytes = sizeof(float),
                                   .keyStep = kLanes,
                                   .gatherKeys = &gatherRows<float, float>,
                                   .gatherValues = &gatherColumns<float>,
                                   .gatherScales = nullptr,
                                   .score = &scoreBlock<FloatTile>,
                                   .softmax = &softmaxBlock<false>,
                                   .accumulate = &accumulateBlock};
constexpr Kernels kInt8Kernels = {.rowBytes = sizeof(int8_t),
                                  .keyBytes = sizeof(int8_t),
                                  .queryBytes = sizeof(int16_t),
                                  .keyStep = kInt16Lanes,
                                  .gatherKeys = &gatherRows<int8_t, int8_t>,
                                  .gatherValues = &gatherColumns<int8_t>,
                                  .gatherScales = &gatherScales,
                                  .score = &scoreBlock<IntegerTile>,
                                  .softmax = &softmaxBlock<true>,
                                  .accumulate = &accumulateBlock};
constexpr Kernels kInt8FloatQueryKernels = {.rowBytes = sizeof(int8_t),
                                            .keyBytes = sizeof(float),
                                            .queryBytes = sizeof(float),
                                            .keyStep = kLanes,
                                            .gatherKeys = &gatherRows<int8_t, float>,
                                            .gatherValues = &gatherColumns<int8_t>,
                                            .gatherScales = &gatherScales,
                                            .score = &scoreBlock<FloatTile>,
                                            .softmax = &softmaxBlock<true>,
                                            .accumulate = &accumulateBlock};

const Kernels& kernelsFor(const AttendShape& shape) {
  if (shape.precision == Precision::kF32) return kFloatKernels;
  return shape.quantizeQuery ? kInt8Kernels : kInt8FloatQueryKernels;
}

// Hands out pieces of the scratch.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(uint64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset_);
    offset_ += roundUp(count * sizeof(T), 16);
    return piece;
  }
  [[nodiscard]] uint64_t bytes() const { return offset_; }

 private:
  std::byte* base_;
  uint64_t offset_ = 0;
};

struct Scratch {
  Scratch(const AttendShape& shape, const Kernels& kernels, Carver& carver)
      : qkStride(roundUp(size_t{shape.qkHeadDim}, kernels.keyStep)), vStride(roundUp(size_t{shape.vHeadDim}, kLanes)) {
    const uint64_t queryHeads = uint64_t{kQueryRows} * shape.numHeads;
    const uint64_t group = shape.numHeads / shape.numKvHeads;
    const uint64_t blockRows = kBlockPositions;  // products in 64 bits: they may pass what wasm can address
    queries = carver.take<std::byte>(queryHeads * qkStride * kernels.queryBytes);
    narrowQuery = carver.take<int8_t>(shape.quantizeQuery ? qkStride : 0);
    scoreScales = carver.take<float>(queryHeads);
    maxima = carver.take<float>(queryHeads);
    sums = carver.take<float>(queryHeads);
    outputs = carver.take<float>(queryHeads * vStride);
    keys = carver.take<std::byte>(blockRows * qkStride * kernels.keyBytes);
    values = carver.take<float>(blockRows * vStride);
    keyScales = carver.take<float>(kScoreStride);
    valueScales = carver.take<float>(kScoreStride);
    weights = carver.take<float>(group * kScoreStride);
    powers = carver.take<float>(kScoreStride);
    decays = carver.take<float>(roundUp(group, kLanes));
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

bool AttendWorkspace::reserve(uint64_t bytes) { return bytes + 16 <= bytes_.size() || bytes_.allocate(bytes + 16); }

std::byte* AttendWorkspace::data() {
  const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
  return bytes_.data() + (roundUp(address, 16) - address);
}

uint64_t attendScratchBytes(const AttendShape& shape) {
  Carver carver(nullptr);
  const Scratch scratch(shape, kernelsFor(shape), carver);
  return carver.bytes();
}

namespace {

class Attention {
 public:
  Attention(const AttendShape& shape, std::span<const KvRun> runs, Carver& carver)
      : shape_(shape),
        runs_(runs),
        group_(shape.numHeads / shape.numKvHeads),
        kernels_(kernelsFor(shape)),
        scratch_(shape, kernels_, carver) {}

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
  // Pads queries (f32) or quantises and widens them, and starts the sums.
  void prepareQueries(const float* queries, uint32_t rows) const {
    const size_t heads = size_t{rows} * shape_.numHeads;
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape_.qkHeadDim));
    for (size_t head = 0; head < heads; ++head) {
      const float* query = queries + head * shape_.qkHeadDim;
      std::byte* prepared = scratch_.queries + head * scratch_.qkStride * kernels_.queryBytes;
      scratch_.scoreScales[head] = scale;
      if (shape_.quantizeQuery) {
        scratch_.scoreScales[head] = quantizeRow(query, shape_.qkHeadDim, scratch_.narrowQuery) * scale;
        copyPadded(scratch_.narrowQuery, shape_.qkHeadDim, scratch_.qkStride, reinterpret_cast<int16_t*>(prepared));
      } else {
        copyPadded(query, shape_.qkHeadDim, scratch_.qkStride, reinterpret_cast<float*>(prepared));
      }
    }
    std::fill(scratch_.maxima, scratch_.maxima + heads, -std::numeric_limits<float>::infinity());
    std::fill(scratch_.sums, scratch_.sums + heads, 0.0F);
    std::fill(scratch_.outputs, scratch_.outputs + heads * scratch_.vStride, 0.0F);
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
    constexpr size_t kCacheLine = 64;
    uint32_t sum = 0;
    const auto touch = [&sum](const void* array, const Piece& piece, size_t rowBytes) {
      const auto* bytes = static_cast<const uint8_t*>(array) + piece.row * rowBytes;
      for (size_t i = 0; i < piece.rows * rowBytes; i += kCacheLine) sum += bytes[i];
    };
    forEachPiece(runs_, first, end, [&](const Piece& piece) {
      touch(piece.run->keys, piece, size_t{shape_.numKvHeads} * shape_.qkHeadDim * sizeof(float));
      touch(piece.run->values, piece, size_t{shape_.numKvHeads} * shape_.vHeadDim * sizeof(float));
    });
    asm volatile("" ::"r"(sum));  // so that no compiler drops the loads
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
    kernels_.score(scratch_.queries + head0 * scratch_.qkStride * kernels_.queryBytes, scratch_.qkStride, group_,
                   keys_.row(skipped, kernels_.keyBytes), keys_.stride, rows, scratch_.qkStride, weights);
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
    for (size_t head = 0; head < heads; ++head, out += shape_.vHeadDim) {
      const F32x4 sum = splat(scratch_.sums[head]);
      const float* output = scratch_.outputs + head * scratch_.vStride;
      size_t d = 0;
      for (; d + kLanes <= shape_.vHeadDim; d += kLanes) store(out + d, load(output + d) / sum);
      if (d < shape_.vHeadDim) storePartial(out + d, load(output + d) / sum, shape_.vHeadDim - d);
    }
  }

  const AttendShape shape_;
  const std::span<const KvRun> runs_;
  const uint32_t group_;
  const Kernels& kernels_;
  const Scratch scratch_;
  BlockKeys keys_{};
  BlockValues values_{};
};

}  // namespace

void attend(const AttendShape& shape, std::span<const KvRun> runs, const float* queries, uint32_t rows,
            uint32_t position, uint32_t cap, float* out, std::byte* scratch) {
  Carver carver(scratch);
  Attention attention(shape, runs, carver);
  for (uint32_t row = 0; row < rows; row += kQueryRows) {
    attention.run(queries + size_t{row} * shape.numHeads * shape.qkHeadDim, std::min(rows - row, kQueryRows),
                  position + row, cap, out + size_t{row} * shape.numHeads * shape.vHeadDim);
  }
}

}  // namespace needle3
