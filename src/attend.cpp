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
// Vectors of a value row whose sums stay in registers together.
constexpr size_t kWideVectors = 4;
// Floats between the scores of two heads: a block, and what the last tile of rows may overwrite.
constexpr size_t kScoreStride = kBlockPositions + 4;
// Widened int8 keys are taken eight at a time.
constexpr size_t kInt8Multiple = 8;

template <typename T>
constexpr T roundUp(T n, size_t multiple) {
  return static_cast<T>((n + multiple - 1) / multiple * multiple);
}

// Rows of one kv head for the positions [first, end) of one block, `stride` elements apart and padded with zeros to
// whole vectors: where they lie if that is so there, else gathered.
template <typename T>
struct BlockRows {
  const T* rows;  // of position `first`
  size_t stride;
};

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
  Scratch(const AttendShape& shape, Carver& carver)
      : qkStride(roundUp(size_t{shape.qkHeadDim}, kInt8Multiple)), vStride(roundUp(size_t{shape.vHeadDim}, kLanes)) {
    const uint64_t queryHeads = uint64_t{kQueryRows} * shape.numHeads;
    const uint64_t group = shape.numHeads / shape.numKvHeads;
    const uint64_t blockRows = kBlockPositions;  // products in 64 bits: they may pass what wasm can address
    queries = carver.take<float>(shape.quantizeQuery ? 0 : queryHeads * qkStride);
    quantizedQueries = carver.take<int16_t>(shape.quantizeQuery ? queryHeads * qkStride : 0);
    narrowQuery = carver.take<int8_t>(shape.quantizeQuery ? qkStride : 0);
    scoreScales = carver.take<float>(queryHeads);
    maxima = carver.take<float>(queryHeads);
    sums = carver.take<float>(queryHeads);
    outputs = carver.take<float>(queryHeads * vStride);
    keys = carver.take<float>(blockRows * qkStride);
    narrowKeys = carver.take<int8_t>(blockRows * qkStride);
    values = carver.take<float>(blockRows * vStride);
    keyScales = carver.take<float>(kScoreStride);
    valueScales = carver.take<float>(kScoreStride);
    weights = carver.take<float>(group * kScoreStride);
  }

  size_t qkStride;
  size_t vStride;

  float* queries;             // (kQueryRows, numHeads, qkStride), zero-padded
  int16_t* quantizedQueries;  // the same, of int8 range
  int8_t* narrowQuery;        // (qkStride)
  float* scoreScales;         // (kQueryRows, numHeads): what a query's dot products are multiplied by
  float* maxima;              // (kQueryRows, numHeads): of the scores so far
  float* sums;                // (kQueryRows, numHeads): Σ e^(score − maximum)
  float* outputs;             // (kQueryRows, numHeads, vStride): Σ e^(score − maximum) · v
  float* keys;                // (kBlockPositions, qkStride)
  int8_t* narrowKeys;         // (kBlockPositions, qkStride)
  float* values;              // (kBlockPositions, vStride)
  float* keyScales;           // (kScoreStride), by offset in the block
  float* valueScales;         // (kScoreStride), by offset in the block
  float* weights;             // (group, kScoreStride), by offset in the block: scores, then weights
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

// `length` elements, zeros behind them up to `padded`.
template <typename T>
void copyPadded(const T* from, size_t length, size_t padded, T* to) {
  std::memcpy(to, from, length * sizeof(T));
  std::memset(to + length, 0, (padded - length) * sizeof(T));
}

// `rows` rows of one head, `stride` apart, to rows that are `padded` apart, zeros behind their `length` elements.
template <typename T>
void gatherRows(const T* from, size_t stride, size_t rows, size_t length, size_t padded, T* to) {
  for (size_t row = 0; row < rows; ++row) copyPadded(from + row * stride, length, padded, to + row * padded);
}

// The same of int8, as floats.
void gatherRows(const int8_t* from, size_t stride, size_t rows, size_t length, size_t padded, float* to) {
  const auto widen8 = [](const int8_t* narrow, float* wide) {
    const I16x8 lanes = loadWidened(narrow);
    store(wide, lowToFloat(lanes));
    store(wide + 4, highToFloat(lanes));
  };
  for (; rows > 0; --rows, from += stride, to += padded) {
    size_t i = 0;
    for (; i + 16 <= length; i += 16) {
      widen8(from + i, to + i);
      widen8(from + i + 8, to + i + 8);
    }
    for (; i < length; ++i) to[i] = from[i];
    for (; i < padded; ++i) to[i] = 0;
  }
}

// The inner loops take one vector of each row a turn. Unrolled further they are slower: V8 moves the loads of a block
// before its arithmetic, and then has too few registers to keep them in.

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
  static constexpr size_t kStep = kInt8Multiple;
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
void scoreHeads(const typename Tile<kHeads>::Query* queries, size_t queryStride, const typename Tile<kHeads>::Key* keys,
                size_t keyStride, size_t rows, size_t length, float* out) {
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

// ---- values: kHeads weighted sums of kVectors vectors of the block's rows ----

// out[h][d] = out[h][d] · decay[h] + Σ_row weights[h][row] · values[row][d]
template <int kHeads, int kVectors>
void accumulateTile(const float* weights, const float* value, size_t valueStride, size_t rows, const float* decay,
                    float* out, size_t outStride) {
  F32x4 sums[kHeads][kVectors];
  for (auto& row : sums) {
    for (F32x4& sum : row) sum = splat(0.0F);
  }
  for (size_t row = 0; row < rows; ++row, ++weights, value += valueStride) {
    F32x4 weight[kHeads];
    for (int h = 0; h < kHeads; ++h) weight[h] = loadSplat(weights + static_cast<size_t>(h) * kScoreStride);
    for (int d = 0; d < kVectors; ++d) {
      const F32x4 lanes = load(value + static_cast<size_t>(d) * kLanes);
      for (int h = 0; h < kHeads; ++h) sums[h][d] = sums[h][d] + weight[h] * lanes;
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    const F32x4 factor = splat(decay[h]);
    for (int d = 0; d < kVectors; ++d) {
      float* lanes = out + static_cast<size_t>(h) * outStride + static_cast<size_t>(d) * kLanes;
      store(lanes, load(lanes) * factor + sums[h][d]);
    }
  }
}

// The kernels for so many heads at once. They are called through this table, and so stay functions of their own:
// inlined into one, they would share its registers, and engines would spill in the inner loops.
struct HeadKernels {
  decltype(&scoreHeads<FloatTile, 1>) scoreFloats;
  decltype(&scoreHeads<IntegerTile, 1>) scoreIntegers;
  decltype(&accumulateTile<1, 1>) accumulateWide;  // kWideVectors vectors
  decltype(&accumulateTile<1, 1>) accumulateOne;   // one vector
};
template <int kHeads>
constexpr HeadKernels kernelsOf() {
  return {&scoreHeads<FloatTile, kHeads>, &scoreHeads<IntegerTile, kHeads>, &accumulateTile<kHeads, kWideVectors>,
          &accumulateTile<kHeads, 1>};
}
constexpr uint32_t kTileHeads = 2;
constexpr HeadKernels kHeadKernels[kTileHeads] = {kernelsOf<1>(), kernelsOf<2>()};

// ---- softmax over one head's part of one block ----

// Turns dot products at offsets [begin, end) of a block into weights e^(score − maximum), with the running maximum of
// the head; adds their sum, and gives the factor by which what was summed before decays.
//
// Offsets are lanes of vectors aligned in the block; those outside [begin, end) weigh nothing, so that the order of
// summation depends on positions only.
float softmaxBlock(float* scores, size_t begin, size_t end, float scale, const float* keyScales,
                   const float* valueScales, float* maximumSoFar, float* sum) {
  const size_t alignedBegin = begin / kLanes * kLanes;
  const size_t alignedEnd = roundUp(end, kLanes);
  constexpr float kMasked = -std::numeric_limits<float>::infinity();

  const F32x4 scales = splat(scale);
  for (size_t i = alignedBegin; i < alignedEnd; i += kLanes) {
    F32x4 dots = load(scores + i);
    if (keyScales != nullptr) dots = dots * load(keyScales + i);
    store(scores + i, dots * scales);
  }
  std::fill(scores + alignedBegin, scores + begin, kMasked);
  std::fill(scores + end, scores + alignedEnd, kMasked);
  F32x4 blockMaximum = splat(*maximumSoFar);
  for (size_t i = alignedBegin; i < alignedEnd; i += kLanes) blockMaximum = maximum(blockMaximum, load(scores + i));
  const float newMaximum = horizontalMaximum(blockMaximum);
  const float decay = firstLane(expOfNonPositive(splat(*maximumSoFar - newMaximum)));
  *maximumSoFar = newMaximum;

  const F32x4 subtracted = splat(newMaximum);
  F32x4 blockSum = splat(0.0F);
  for (size_t i = alignedBegin; i < alignedEnd; i += kLanes) {
    F32x4 weight = expOfNonPositive(load(scores + i) - subtracted);
    blockSum = blockSum + weight;
    if (valueScales != nullptr) weight = weight * load(valueScales + i);
    store(scores + i, weight);
  }
  *sum = *sum * decay + horizontalSum(blockSum);
  return decay;
}

}  // namespace

bool AttendWorkspace::reserve(uint64_t bytes) { return bytes + 16 <= bytes_.size() || bytes_.allocate(bytes + 16); }

std::byte* AttendWorkspace::data() {
  const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
  return bytes_.data() + (roundUp(address, 16) - address);
}

uint64_t attendScratchBytes(const AttendShape& shape) {
  Carver carver(nullptr);
  const Scratch scratch(shape, carver);
  return carver.bytes();
}

namespace {

class Attention {
 public:
  Attention(const AttendShape& shape, std::span<const KvRun> runs, Carver& carver)
      : shape_(shape), runs_(runs), scratch_(shape, carver), group_(shape.numHeads / shape.numKvHeads) {}

  // At most kQueryRows queries.
  void run(const float* queries, uint32_t rows, uint32_t position, uint32_t cap, float* out) {
    prepareQueries(queries, rows);
    const auto firstOf = [cap](uint32_t p) { return p + 1 > cap ? p + 1 - cap : 0; };
    const uint32_t last = position + rows - 1;
    for (uint32_t block = firstOf(position) / kBlockPositions; block <= last / kBlockPositions; ++block) {
      const uint32_t blockFirst = block * kBlockPositions;
      const uint32_t first = std::max(blockFirst, firstOf(position));
      const uint32_t end = std::min(blockFirst + kBlockPositions, last + 1);
      // int8 rows are a quarter as long, and gathered in order anyway.
      if (shape_.precision == Precision::kF32) touchBlock(first, end);
      for (uint32_t kvHead = 0; kvHead < shape_.numKvHeads; ++kvHead) {
        loadBlock(kvHead, blockFirst, first, end);
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
      scratch_.scoreScales[head] = scale;
      if (shape_.quantizeQuery) {
        int16_t* wide = scratch_.quantizedQueries + head * scratch_.qkStride;
        scratch_.scoreScales[head] = quantizeRow(query, shape_.qkHeadDim, scratch_.narrowQuery) * scale;
        std::copy(scratch_.narrowQuery, scratch_.narrowQuery + shape_.qkHeadDim, wide);
        std::fill(wide + shape_.qkHeadDim, wide + scratch_.qkStride, int16_t{0});
      } else {
        copyPadded(query, shape_.qkHeadDim, scratch_.qkStride, scratch_.queries + head * scratch_.qkStride);
      }
    }
    std::fill(scratch_.maxima, scratch_.maxima + heads, -std::numeric_limits<float>::infinity());
    std::fill(scratch_.sums, scratch_.sums + heads, 0.0F);
    std::fill(scratch_.outputs, scratch_.outputs + heads * scratch_.vStride, 0.0F);
  }

  // Rows of one of a run's arrays as they are stored.
  struct Rows {
    const void* KvRun::*array;
    size_t headDim;
    size_t multiple;  // kernels take them in whole steps of so many
    size_t padded;    // apart in the scratch
  };

  // Copies the kv head's rows of [first, end) to `to`.
  template <typename From, typename To>
  void gather(const Rows& rows, uint32_t kvHead, uint32_t first, uint32_t end, To* to) const {
    const size_t stride = shape_.numKvHeads * rows.headDim;
    forEachPiece(runs_, first, end, [&](const Piece& piece) {
      const auto* from = static_cast<const From*>(piece.run->*rows.array) + piece.row * stride + kvHead * rows.headDim;
      gatherRows(from, stride, piece.rows, rows.headDim, rows.padded, to + piece.offset * rows.padded);
    });
  }

  // The kv head's rows of [first, end) where they lie, if one run holds all and they are whole steps; else in
  // `scratch`.
  template <typename T>
  [[nodiscard]] BlockRows<T> rowsOf(const Rows& rows, uint32_t kvHead, uint32_t first, uint32_t end, T* scratch) const {
    if (rows.headDim % rows.multiple == 0) {
      const size_t stride = shape_.numKvHeads * rows.headDim;
      for (const KvRun& run : runs_) {
        if (run.first <= first && end <= run.first + run.rows) {
          return {static_cast<const T*>(run.*rows.array) + (first - run.first) * stride + kvHead * rows.headDim,
                  stride};
        }
      }
    }
    gather<T>(rows, kvHead, first, end, scratch);
    return {scratch, rows.padded};
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

  // Points keys_ or narrowKeys_, and values_, at the kv head's rows of [first, end), and gathers their scales.
  void loadBlock(uint32_t kvHead, uint32_t blockFirst, uint32_t first, uint32_t end) {
    const Rows keys = {&KvRun::keys, shape_.qkHeadDim, kLanes, scratch_.qkStride};
    const Rows values = {&KvRun::values, shape_.vHeadDim, kLanes, scratch_.vStride};
    if (shape_.precision == Precision::kF32) {
      keys_ = rowsOf<float>(keys, kvHead, first, end, scratch_.keys);
      values_ = rowsOf<float>(values, kvHead, first, end, scratch_.values);
      return;
    }
    if (shape_.quantizeQuery) {
      const Rows narrow = {&KvRun::keys, shape_.qkHeadDim, kInt8Multiple, scratch_.qkStride};
      narrowKeys_ = rowsOf<int8_t>(narrow, kvHead, first, end, scratch_.narrowKeys);
    } else {
      gather<int8_t>(keys, kvHead, first, end, scratch_.keys);
      keys_ = {scratch_.keys, scratch_.qkStride};
    }
    gather<int8_t>(values, kvHead, first, end, scratch_.values);
    values_ = {scratch_.values, scratch_.vStride};
    forEachPiece(runs_, first, end, [&](const Piece& piece) {
      const size_t scale = size_t{piece.row} * shape_.numKvHeads + kvHead;
      const size_t offset = first - blockFirst + piece.offset;
      for (size_t row = 0; row < piece.rows; ++row) {
        scratch_.keyScales[offset + row] = piece.run->keyScales[scale + row * shape_.numKvHeads];
        scratch_.valueScales[offset + row] = piece.run->valueScales[scale + row * shape_.numKvHeads];
      }
    });
  }

  // Adds positions [begin, end) of the loaded block, whose rows start at `first`, to one query's sums.
  void attendBlock(uint32_t row, uint32_t kvHead, uint32_t blockFirst, uint32_t first, uint32_t begin,
                   uint32_t end) const {
    const size_t head0 = size_t{row} * shape_.numHeads + size_t{kvHead} * group_;
    const size_t rows = end - begin;
    const size_t skipped = begin - first;
    const size_t offset = begin - blockFirst;
    const bool isInt8 = shape_.precision == Precision::kInt8;

    for (uint32_t head = 0; head < group_; head += kTileHeads) {
      const uint32_t heads = std::min(kTileHeads, group_ - head);
      const HeadKernels& kernels = kHeadKernels[heads - 1];
      float* scores = scratch_.weights + head * kScoreStride + offset;
      const size_t query = (head0 + head) * scratch_.qkStride;
      if (shape_.quantizeQuery) {
        kernels.scoreIntegers(scratch_.quantizedQueries + query, scratch_.qkStride,
                              narrowKeys_.rows + skipped * narrowKeys_.stride, narrowKeys_.stride, rows,
                              roundUp(size_t{shape_.qkHeadDim}, kInt8Multiple), scores);
      } else {
        kernels.scoreFloats(scratch_.queries + query, scratch_.qkStride, keys_.rows + skipped * keys_.stride,
                            keys_.stride, rows, roundUp(size_t{shape_.qkHeadDim}, kLanes), scores);
      }
      float decay[kTileHeads];
      for (uint32_t h = 0; h < heads; ++h) {
        const size_t index = head0 + head + h;
        decay[h] =
            softmaxBlock(scratch_.weights + (head + h) * kScoreStride, offset, offset + rows,
                         scratch_.scoreScales[index], isInt8 ? scratch_.keyScales : nullptr,
                         isInt8 ? scratch_.valueScales : nullptr, &scratch_.maxima[index], &scratch_.sums[index]);
      }
      const float* values = values_.rows + skipped * values_.stride;
      float* out = scratch_.outputs + (head0 + head) * scratch_.vStride;
      for (size_t d = 0; d < scratch_.vStride;) {
        const bool isWide = d + kWideVectors * kLanes <= scratch_.vStride;
        (isWide ? kernels.accumulateWide : kernels.accumulateOne)(scores, values + d, values_.stride, rows, decay,
                                                                  out + d, scratch_.vStride);
        d += isWide ? kWideVectors * kLanes : kLanes;
      }
    }
  }

  void finish(uint32_t rows, float* out) const {
    const size_t heads = size_t{rows} * shape_.numHeads;
    for (size_t head = 0; head < heads; ++head) {
      const F32x4 sum = splat(scratch_.sums[head]);
      float* output = scratch_.outputs + head * scratch_.vStride;
      for (size_t d = 0; d < scratch_.vStride; d += kLanes) store(output + d, load(output + d) / sum);
      std::copy(output, output + shape_.vHeadDim, out + head * shape_.vHeadDim);
    }
  }

  const AttendShape shape_;
  const std::span<const KvRun> runs_;
  Scratch scratch_;
  const uint32_t group_;
  BlockRows<float> keys_{};
  BlockRows<int8_t> narrowKeys_{};
  BlockRows<float> values_{};
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
