// The kernels: exponential, quantisation, convolution and attention, against plain loops and double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/scratch.h"
#include "kernels/attend.h"
#include "kernels/convolve.h"
#include "kernels/exp.h"
#include "kernels/kv_run.h"
#include "kernels/quantize.h"
#include "kernels/simd.h"
#include "support/random.h"
#include "support/reference_state.h"
#include "support/state.h"

namespace needle3::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// ---- the exponential ----

float exponential(float x) {
  float lanes[4];
  store(lanes, expOfNonPositive(splat(x)));
  return lanes[0];
}

// How far y is from e^x, in ulps of e^x as a float.
double ulpsOff(float x, float y) {
  const double exact = std::exp(double{x});
  const double ulp = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
  return std::fabs(double{y} - exact) / ulp;
}

TEST(Exponential, IsAtMostTwoUlpsOffFromMinus87To0) {
  double worst = 0;
  // Every 97th float of the range, from −0 on.
  for (uint32_t bits = 0x80000000U; bits <= bitsOf(-87.0F); bits += 97) {
    float x = 0;
    std::memcpy(&x, &bits, sizeof(x));
    worst = std::max(worst, ulpsOff(x, exponential(x)));
  }
  EXPECT_LE(worst, 2.0);
  // Each float around the ends of the reduction's intervals, odd multiples of ln 2 / 2.
  for (int n = 1; n < 251; n += 2) {
    float x = static_cast<float>(-n * 0.34657359027997264);
    for (int i = 0; i < 200; ++i) x = std::nextafter(x, 0.0F);
    for (int i = 0; i < 400; ++i, x = std::nextafter(x, -100.0F)) {
      if (x >= -87.0F) {
        ASSERT_LE(ulpsOff(x, exponential(x)), 2.0) << x;
      }
    }
  }
  EXPECT_LE(ulpsOff(-87.0F, exponential(-87.0F)), 2.0);
}

TEST(Exponential, IsOneAtZeroZeroFarBelowAndNaNForNaN) {
  EXPECT_EQ(exponential(0.0F), 1.0F);
  EXPECT_EQ(exponential(-0.0F), 1.0F);
  for (float x : {-90.0F, -1000.0F, -std::numeric_limits<float>::max(), -kInfinity}) EXPECT_EQ(exponential(x), 0.0F);
  EXPECT_NE(exponential(kNaN), exponential(kNaN));
  for (float x = -87.0F; x > -90.0F; x = std::nextafter(x, -kInfinity)) {
    const float y = exponential(x);
    ASSERT_TRUE(y == 0.0F || ulpsOff(x, y) <= 2.0) << x;
  }
}

TEST(Exponential, TreatsEveryLaneAlike) {
  Random random(8);
  for (int i = 0; i < 10000; ++i) {
    float x[4];
    float y[4];
    for (float& lane : x) lane = (random.unit() - 1) * 45;
    store(y, expOfNonPositive(load(x)));
    for (int lane = 0; lane < 4; ++lane) ASSERT_EQ(y[lane], exponential(x[lane]));
  }
}

// ---- quantisation ----

void expectQuantized(const std::vector<float>& x) {
  const QuantizedRow expected = quantizePlainly(x);
  std::vector<int8_t> values(x.size());
  EXPECT_EQ(quantizeRow(x.data(), x.size(), values.data()), expected.scale);
  EXPECT_EQ(values, expected.values);
}

TEST(Quantisation, GivesWhatThePlainFormulaGivesAtEveryWidth) {
  Random random(3);
  for (size_t length = 1; length <= 67; ++length) {
    for (float scale : {1.0F, 1e-30F, 1e-37F, 3e-37F, 4e-37F, 1e-40F, 1e30F, 3e38F}) {
      expectQuantized(random.floats(length, scale));
    }
  }
}

TEST(Quantisation, RoundsTiesAwayFromZeroAndNothingElse) {
  // absmax 127 makes the scale 1: halves stay halves.
  for (int doubled = -253; doubled <= 253; ++doubled) {
    const float half = static_cast<float>(doubled) / 2;
    expectQuantized({127, half, std::nextafter(half, kInfinity), std::nextafter(half, -kInfinity), -127});
  }
  // The largest float below a half: adding a half to it gives 1.
  expectQuantized({127, 0.49999997F, -0.49999997F});
  std::vector<int8_t> values(3);
  const std::vector<float> x = {127, 0.49999997F, -0.5F};
  quantizeRow(x.data(), 3, values.data());
  EXPECT_EQ(values, (std::vector<int8_t>{127, 0, -1}));
}

TEST(Quantisation, OfARowOfZerosOrOfNothingRepresentableHasScaleOne) {
  expectQuantized({0, -0.0F, 0});
  expectQuantized({1e-45F, -1e-45F, 0});
  std::vector<int8_t> values(2, 5);
  const std::vector<float> tiny = {3.7e-37F, -3.7e-37F};
  EXPECT_EQ(quantizeRow(tiny.data(), 2, values.data()), 1.0F);
  EXPECT_EQ(values, (std::vector<int8_t>{0, 0}));
  // Around the smallest absmax whose inverse scale is finite.
  for (float x = 3.7e-37F; x < 3.8e-37F; x *= 1.0005F) expectQuantized({x, x / 2, -x / 3, 0});
}

TEST(Quantisation, WritesNothingBehindTheRow) {
  for (size_t length = 1; length <= 40; ++length) {
    std::vector<int8_t> values(length + 1, 99);
    quantizeRow(std::vector<float>(length, 1.0F).data(), length, values.data());
    EXPECT_EQ(values[length], 99);
  }
}

TEST(Quantisation, FakeQuantisationGivesWhatThePlainFormulaGivesAndStaysFinite) {
  Random random(17);
  for (uint32_t bits = 2; bits <= 16; ++bits) {
    const auto largest = static_cast<float>((1 << (bits - 1)) - 1);
    for (size_t length = 1; length <= 21; ++length) {
      for (float scale : {1.0F, 1e-37F, 1e-45F, 0.0F, 3.4028235e38F}) {
        std::vector<float> x = random.floats(length, scale);
        if (scale > 1) x[0] = scale;
        std::vector<float> expected(length);
        float absmax = 0;
        for (float value : x) absmax = std::max(absmax, std::fabs(value));
        const float step = absmax / largest;
        const float inverse = 1 / step;
        for (size_t i = 0; i < length; ++i) {
          if (!std::isfinite(inverse)) continue;
          const float q = std::clamp(std::round(x[i] * inverse), -largest - 1, largest);
          expected[i] = std::clamp(q * step, -std::numeric_limits<float>::max(), std::numeric_limits<float>::max());
        }
        fakeQuantize(x.data(), length, bits);
        ASSERT_TRUE(sameNumbers(x, expected)) << bits << " bits, scale " << scale;
        for (float value : x) ASSERT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST(Quantisation, TheFirstNonFiniteElementIsFound) {
  for (size_t length = 0; length <= 21; ++length) {
    std::vector<float> x(length, -3.4028235e38F);
    EXPECT_EQ(findNonFinite(x.data(), length), length);
    for (size_t at = 0; at < length; ++at) {
      for (float bad : {kNaN, kInfinity, -kInfinity}) {
        std::vector<float> y = x;
        y[at] = bad;
        y[length - 1] = bad;
        ASSERT_EQ(findNonFinite(y.data(), length), at);
      }
    }
  }
}

// ---- convolution ----

TEST(Convolution, AddsItsTapsInOrderWithOneRoundingEachAtEveryWidth) {
  Random random(5);
  for (size_t dim = 1; dim <= 19; ++dim) {
    for (size_t count = 1; count <= kConvPassTaps; ++count) {
      const std::vector<float> weights = random.floats(count * dim);
      const std::vector<float> rows = random.floats(count * dim);
      const std::vector<float> newest(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(dim));
      std::vector<ConvTap> taps;
      for (size_t j = 0; j < count; ++j) taps.push_back({weights.data() + j * dim, rows.data() + j * dim});
      std::vector<float> out(dim + 1, 7);
      std::vector<float> kept(dim + 1, 7);
      convolve(taps.data(), count, dim, kept.data(), out.data());
      // The same in place, where the newest row is not kept.
      std::vector<float> inPlace = newest;
      taps[0].x = inPlace.data();
      convolve(taps.data(), count, dim, nullptr, inPlace.data());
      for (size_t c = 0; c < dim; ++c) {
        float sum = weights[c] * rows[c];
        for (size_t j = 1; j < count; ++j) sum += weights[j * dim + c] * rows[j * dim + c];
        ASSERT_EQ(out[c], sum);
        ASSERT_EQ(inPlace[c], sum);
        ASSERT_EQ(kept[c], newest[c]);
      }
      EXPECT_EQ(out[dim], 7);
      EXPECT_EQ(kept[dim], 7);
    }
  }
}

TEST(Convolution, GoesOnWithAFurtherTapAtEveryWidth) {
  Random random(6);
  for (size_t dim = 1; dim <= 19; ++dim) {
    const std::vector<float> weights = random.floats(dim);
    const std::vector<float> row = random.floats(dim);
    std::vector<float> out = random.floats(dim + 1);
    const std::vector<float> before = out;
    convolveMore({weights.data(), row.data()}, dim, out.data());
    for (size_t c = 0; c < dim; ++c) {
      const float product = weights[c] * row[c];
      ASSERT_EQ(out[c], before[c] + product);
    }
    EXPECT_EQ(out[dim], before[dim]);
  }
}

// ---- attention ----

// Rows of consecutive positions as a ring has them, in as many runs as wanted.
struct AttendCase {
  AttendShape shape;
  uint32_t first = 0;               // position of the first row held
  uint32_t count = 0;               // rows held
  uint32_t wrapAfter = 0;           // rows of the first run; 0: one run
  uint32_t cap = 0;                 // positions that a query sees, all of them held
  std::vector<float> keys, values;  // (count, numKvHeads, dim)
};

class AttentionKernel : public ::testing::Test {
 protected:
  static AttendShape shapeOf(uint32_t heads, uint32_t kvHeads, uint32_t qk, uint32_t v, Precision precision,
                             bool quantizeQuery) {
    return {.numHeads = heads,
            .numKvHeads = kvHeads,
            .qkHeadDim = qk,
            .vHeadDim = v,
            .precision = precision,
            .quantizeQuery = quantizeQuery};
  }

  // What the kernel gives for `queries` (rows, numHeads, qkHeadDim) at `position` …
  std::vector<float> attended(const AttendCase& test, const std::vector<float>& queries, uint32_t rows,
                              uint32_t position) {
    const AttendShape& shape = test.shape;
    const size_t kDim = size_t{shape.numKvHeads} * shape.qkHeadDim;
    const size_t vDim = size_t{shape.numKvHeads} * shape.vHeadDim;
    std::vector<int8_t> narrowKeys(test.keys.size());
    std::vector<int8_t> narrowValues(test.values.size());
    std::vector<float> keyScales;
    std::vector<float> valueScales;
    const bool isInt8 = shape.precision == Precision::kInt8;
    for (size_t row = 0; isInt8 && row < size_t{test.count} * shape.numKvHeads; ++row) {
      keyScales.push_back(quantizeRow(test.keys.data() + row * shape.qkHeadDim, shape.qkHeadDim,
                                      narrowKeys.data() + row * shape.qkHeadDim));
      valueScales.push_back(quantizeRow(test.values.data() + row * shape.vHeadDim, shape.vHeadDim,
                                        narrowValues.data() + row * shape.vHeadDim));
    }
    const auto run = [&](uint32_t from, uint32_t count) {
      const size_t scale = size_t{from} * shape.numKvHeads;
      return KvRun{
          test.first + from,
          count,
          isInt8 ? static_cast<const void*>(narrowKeys.data() + from * kDim) : test.keys.data() + from * kDim,
          isInt8 ? static_cast<const void*>(narrowValues.data() + from * vDim) : test.values.data() + from * vDim,
          isInt8 ? keyScales.data() + scale : nullptr,
          isInt8 ? valueScales.data() + scale : nullptr};
    };
    std::vector<KvRun> runs;
    if (test.wrapAfter != 0) runs.push_back(run(0, test.wrapAfter));
    runs.push_back(run(test.wrapAfter, test.count - test.wrapAfter));
    EXPECT_TRUE(workspace_.reserve(attendScratchBytes(shape)));
    std::vector<float> out(size_t{rows} * shape.numHeads * shape.vHeadDim);
    attend(shape, runs, queries.data(), rows, position, test.cap, out.data(), workspace_.data());
    return out;
  }

  // That each query at `position` … is within the bound of what double gives. Returns the worst share of the bound.
  double expectWithinBound(const AttendCase& test, const std::vector<float>& queries, uint32_t rows, uint32_t position,
                           const std::string& what) {
    const std::vector<float> out = attended(test, queries, rows, position);
    const AttendShape& shape = test.shape;
    const auto seen = [&](const float* x, size_t length, bool quantized) {
      std::vector<double> exact(x, x + length);
      if (!quantized) return exact;
      const QuantizedRow row = quantizePlainly({x, length});
      for (size_t i = 0; i < length; ++i) exact[i] = double{row.scale} * row.values[i];
      return exact;
    };
    double worst = 0;
    for (uint32_t row = 0; row < rows; ++row) {
      const uint32_t p = position + row;
      const uint32_t from = (p + 1 > test.cap ? p + 1 - test.cap : 0) - test.first;
      const uint32_t count = p + 1 - test.first - from;
      for (uint32_t head = 0; head < shape.numHeads; ++head) {
        const size_t kvHead = head / (shape.numHeads / shape.numKvHeads);
        const float* given = queries.data() + (size_t{row} * shape.numHeads + head) * shape.qkHeadDim;
        std::vector<double> keys;
        std::vector<double> values;
        const bool isInt8 = shape.precision == Precision::kInt8;
        for (size_t r = from; r < from + count; ++r) {
          const auto key =
              seen(test.keys.data() + (r * shape.numKvHeads + kvHead) * shape.qkHeadDim, shape.qkHeadDim, isInt8);
          const auto value =
              seen(test.values.data() + (r * shape.numKvHeads + kvHead) * shape.vHeadDim, shape.vHeadDim, isInt8);
          keys.insert(keys.end(), key.begin(), key.end());
          values.insert(values.end(), value.begin(), value.end());
        }
        std::vector<double> expected(shape.vHeadDim);
        std::vector<double> bound(shape.vHeadDim);
        attendPlainly(seen(given, shape.qkHeadDim, shape.quantizeQuery), keys, values, count, summationDepth(count),
                      expected.data(), bound.data());
        for (size_t c = 0; c < shape.vHeadDim; ++c) {
          const float actual = out[(size_t{row} * shape.numHeads + head) * shape.vHeadDim + c];
          const double error = std::fabs(actual - expected[c]);
          worst = std::max(worst, error / bound[c]);
          EXPECT_LE(error, bound[c]) << what << ", row " << row << ", head " << head << ", element " << c << ": "
                                     << actual << " instead of " << expected[c];
          if (HasFailure()) return worst;
        }
      }
    }
    return worst;
  }

  static std::vector<AttendShape> everyPrecisionOf(uint32_t heads, uint32_t kvHeads, uint32_t qk, uint32_t v) {
    return {shapeOf(heads, kvHeads, qk, v, Precision::kF32, false),
            shapeOf(heads, kvHeads, qk, v, Precision::kInt8, false),
            shapeOf(heads, kvHeads, qk, v, Precision::kInt8, true)};
  }

  static AttendCase randomCase(const AttendShape& shape, uint32_t first, uint32_t count, Random& random,
                               float keyScale = 2) {
    AttendCase test;
    test.shape = shape;
    test.first = first;
    test.count = count;
    test.cap = count;
    test.keys = random.floats(size_t{count} * shape.numKvHeads * shape.qkHeadDim, keyScale);
    test.values = random.floats(size_t{count} * shape.numKvHeads * shape.vHeadDim, 3);
    return test;
  }
  static std::vector<float> randomQueries(const AttendShape& shape, uint32_t rows, Random& random, float scale = 2) {
    return random.floats(size_t{rows} * shape.numHeads * shape.qkHeadDim, scale);
  }

  Scratch workspace_;
};

TEST_F(AttentionKernel, IsWithinItsBoundAtEverySpanAroundTheBlocksEdges) {
  Random random(21);
  std::vector<uint32_t> spans;
  for (uint32_t span = 1; span <= 17; ++span) spans.push_back(span);
  for (uint32_t span : {31U, 32U, 33U, 63U, 64U, 65U, 66U, 127U, 128U, 129U, 191U, 192U, 193U, 300U})
    spans.push_back(span);
  for (const AttendShape& shape : everyPrecisionOf(4, 2, 12, 20)) {
    for (uint32_t span : spans) {
      // Starting at the edge of a block, before it, and behind it; in one run and in two.
      for (uint32_t first : {0U, 1U, 37U, 63U, 64U, 65U, 1000U}) {
        AttendCase test = randomCase(shape, first, span, random);
        for (uint32_t wrapAfter : {0U, 1U, span / 2, span - 1}) {
          if (wrapAfter >= span) continue;
          test.wrapAfter = wrapAfter;
          expectWithinBound(test, randomQueries(shape, 1, random), 1, first + span - 1,
                            "span " + std::to_string(span) + " from " + std::to_string(first) + ", wrapped after " +
                                std::to_string(wrapAfter));
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(AttentionKernel, DependsOnPositionsAndRowsNotOnRuns) {
  Random random(22);
  for (const AttendShape& shape : everyPrecisionOf(6, 2, 7, 5)) {
    for (uint32_t first : {0U, 50U, 64U, 101U}) {
      for (uint32_t span : {1U, 2U, 9U, 63U, 64U, 65U, 130U}) {
        AttendCase test = randomCase(shape, first, span, random);
        const std::vector<float> queries = randomQueries(shape, 1, random);
        const std::vector<float> expected = attended(test, queries, 1, first + span - 1);
        for (uint32_t wrapAfter = 1; wrapAfter < span; wrapAfter += 1 + wrapAfter / 7) {
          test.wrapAfter = wrapAfter;
          ASSERT_TRUE(sameBits(attended(test, queries, 1, first + span - 1), expected))
              << "first " << first << ", span " << span << ", wrapped after " << wrapAfter;
        }
      }
    }
  }
}

TEST_F(AttentionKernel, GivesManyQueriesWhatItGivesEachAlone) {
  Random random(23);
  // Widths of whole vectors, which few queries read where they lie, and others.
  const uint32_t widths[][4] = {{4, 2, 10, 6}, {6, 2, 12, 20}, {3, 1, 16, 36}, {2, 2, 8, 64}};
  std::vector<AttendShape> shapes;
  for (const auto& [heads, kvHeads, qk, v] : widths) {
    for (const AttendShape& shape : everyPrecisionOf(heads, kvHeads, qk, v)) shapes.push_back(shape);
  }
  for (const AttendShape& shape : shapes) {
    for (uint32_t cap : {1U, 5U, 64U, 100U, 1000U}) {
      AttendCase test = randomCase(shape, 0, 150, random);
      test.cap = cap;
      test.wrapAfter = 70;
      const std::vector<float> queries = randomQueries(shape, 150, random);
      const size_t queryWidth = size_t{shape.numHeads} * shape.qkHeadDim;
      const size_t outWidth = size_t{shape.numHeads} * shape.vHeadDim;
      const auto attendedFrom = [&](uint32_t row, uint32_t rows) {
        const auto first = queries.begin() + static_cast<ptrdiff_t>(row * queryWidth);
        return attended(test, {first, first + static_cast<ptrdiff_t>(rows * queryWidth)}, rows, row);
      };
      const std::vector<float> all = attendedFrom(0, 150);
      for (uint32_t row = 0; row < 150; ++row) {
        for (uint32_t rows = 1; rows <= 4 && row + rows <= 150; ++rows) {
          ASSERT_TRUE(
              sameBits(attendedFrom(row, rows), std::span(all).subspan(row * outWidth, size_t{rows} * outWidth)))
              << "row " << row << ", " << rows << " rows, cap " << cap << ", widths " << shape.qkHeadDim << " and "
              << shape.vHeadDim;
        }
      }
    }
  }
}

TEST_F(AttentionKernel, IsWithinItsBoundForEveryWidthAndGroup) {
  Random random(24);
  for (uint32_t qk = 1; qk <= 20; ++qk) {
    for (uint32_t v : {1U, 2U, 3U, 4U, 5U, 8U, 11U, 16U, 31U, 32U, 33U, 48U}) {
      for (uint32_t group : {1U, 2U, 3U, 5U, 6U, 7U}) {
        const uint32_t kvHeads = 1 + (qk + group) % 2;
        for (const AttendShape& shape : everyPrecisionOf(kvHeads * group, kvHeads, qk, v)) {
          AttendCase test = randomCase(shape, 60, 11, random);
          test.wrapAfter = 3;
          test.cap = 10;
          expectWithinBound(
              test, randomQueries(shape, 2, random), 2, 69,
              std::to_string(qk) + "/" + std::to_string(v) + ", " + std::to_string(group) + " heads a group");
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(AttentionKernel, IsWithinItsBoundOver8192Positions) {
  Random random(25);
  for (const AttendShape& shape : everyPrecisionOf(6, 1, 48, 64)) {
    AttendCase test = randomCase(shape, 0, 8192, random, 1);
    expectWithinBound(test, randomQueries(shape, 1, random, 1), 1, 8191, "8192 positions");
    // Equal keys: every position has the same weight, and every addition to the sums can round.
    for (size_t i = 48; i < test.keys.size(); ++i) test.keys[i] = test.keys[i % 48];
    for (float& value : test.values) value = std::fabs(value) + 1;
    test.wrapAfter = 5000;
    expectWithinBound(test, randomQueries(shape, 1, random), 1, 8191, "8192 equal scores");
  }
}

TEST_F(AttentionKernel, IsWithinItsBoundOnAdversarialInputs) {
  Random random(26);
  for (const AttendShape& shape : everyPrecisionOf(4, 2, 16, 8)) {
    for (uint32_t span : {2U, 65U, 200U}) {
      const uint32_t last = span - 1;
      const auto check = [&](const AttendCase& test, const std::vector<float>& queries, const std::string& what) {
        expectWithinBound(test, queries, 1, last, what + ", span " + std::to_string(span));
      };
      // Scores of hundreds that nearly cancel; scores in the thousands, where one position takes all.
      AttendCase test = randomCase(shape, 0, span, random, 30);
      check(test, randomQueries(shape, 1, random, 30), "large magnitudes");
      test = randomCase(shape, 0, span, random, 1000);
      check(test, randomQueries(shape, 1, random, 1000), "very large magnitudes");
      test = randomCase(shape, 0, span, random, 1e-30F);
      check(test, randomQueries(shape, 1, random, 1e-3F), "keys of nearly nothing");
      // Rising scores: the maximum moves in every block. Falling ones: never.
      for (float direction : {1.0F, -1.0F}) {
        test = randomCase(shape, 0, span, random, 0.01F);
        for (uint32_t p = 0; p < span; ++p) {
          for (size_t head = 0; head < 2; ++head) test.keys[(p * 2 + head) * 16] += direction * static_cast<float>(p);
        }
        std::vector<float> queries = randomQueries(shape, 1, random, 0.01F);
        for (size_t head = 0; head < 4; ++head) queries[head * 16] = 3;
        check(test, queries, direction > 0 ? "rising scores" : "falling scores");
      }
      // One-hot: one key matches, the others are far away.
      test = randomCase(shape, 0, span, random, 0);
      for (size_t c = 0; c < 32; ++c) test.keys[(span / 2) * 32 + c] = 50;
      check(test, std::vector<float>(64, 20), "one position takes all");
      // Values that cancel: the outputs are tiny against what is summed.
      test = randomCase(shape, 0, span, random, 0);
      for (size_t i = 0; i < test.values.size(); ++i)
        test.values[i] = (i / 16 % 2 == 0 ? 1e6F : -1e6F) + test.values[i];
      check(test, randomQueries(shape, 1, random), "values that cancel");
      if (HasFailure()) return;
    }
  }
}

TEST_F(AttentionKernel, OfOnePositionIsItsValueExactly) {
  Random random(27);
  const AttendShape shape = shapeOf(4, 2, 9, 13, Precision::kF32, false);
  AttendCase test = randomCase(shape, 77, 1, random);
  const std::vector<float> out = attended(test, randomQueries(shape, 1, random), 1, 77);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], test.values[i / 26 * 13 + i % 13]);
}

TEST_F(AttentionKernel, ReadsNothingOutsideTheSpan) {
  Random random(28);
  for (const AttendShape& shape : everyPrecisionOf(4, 2, 6, 7)) {
    AttendCase test = randomCase(shape, 0, 200, random);
    test.cap = 70;
    const std::vector<float> queries = randomQueries(shape, 3, random);
    const std::vector<float> expected = attended(test, queries, 3, 150);
    // Before the first query's span and behind the last query: huge, so that the least weight of it would show.
    for (uint32_t p = 0; p < 200; ++p) {
      if (p >= 81 && p <= 152) continue;
      for (uint32_t c = 0; c < 12; ++c) test.keys[p * 12 + c] = 1e4F;
      for (uint32_t c = 0; c < 14; ++c) test.values[p * 14 + c] = 1e20F;
    }
    EXPECT_TRUE(sameBits(attended(test, queries, 3, 150), expected));
  }
}

}  // namespace
}  // namespace needle3::testing
