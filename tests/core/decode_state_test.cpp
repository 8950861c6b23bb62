// Invariants of a decode state: the same bits whatever the hint, the batches, and what was undone in between.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/scratch.h"
#include "kernels/quantize.h"
#include "support/driver.h"
#include "support/reference_state.h"

namespace needle3::testing {
namespace {

class DecodeStates : public ::testing::Test {
 protected:
  StatePtr create(const Geometry& geometry, const DecodeStateOptions& options) {
    StatePtr state = arena_.create(geometry, options);
    EXPECT_NE(state, nullptr);
    return state;
  }
  // What decoding `position` positions one by one gives, with slots for all.
  Outputs plainly(const Driver& driver, DecodeStateOptions options, uint32_t position) {
    options.capacityHint = 4096;
    StatePtr state = create(driver.geometry(), options);
    return driver.decoded(*state, position, 1);
  }
  Arena arena_;
};

TEST_F(DecodeStates, AnyHintGivesTheSameBits) {
  const Driver driver(smallGeometry());
  for (DecodeStateOptions options : everyPrecision(0)) {
    const Outputs expected = plainly(driver, options, 60);
    for (uint32_t hint : {0U, 1U, 2U, 3U, 5U, 6U, 7U, 23U, 24U, 25U, 512U, UINT32_MAX}) {
      options.capacityHint = hint;
      StatePtr state = create(driver.geometry(), options);
      EXPECT_EQ(difference(driver.decoded(*state, 60, 1), expected), "") << "hint " << hint;
    }
  }
}

TEST_F(DecodeStates, AnyBatchSizeGivesTheSameBitsAroundTheWindow) {
  const Driver driver(smallGeometry());
  const uint32_t window = driver.geometry().fields.slidingWindow;
  for (DecodeStateOptions options : everyPrecision(2)) {
    const Outputs expected = plainly(driver, options, 2 * window + 9);
    for (uint32_t length = window - 1; length <= 2 * window + 1; ++length) {
      for (uint32_t batch = 1; batch <= length; ++batch) {
        StatePtr state = create(driver.geometry(), options);
        Outputs outputs = driver.decoded(*state, length, batch);
        driver.decode(*state, 2 * window + 9, 1, &outputs);  // what later steps see
        EXPECT_EQ(difference(outputs, expected), "") << "length " << length << ", batches of " << batch;
      }
    }
  }
}

TEST_F(DecodeStates, AnyWindowGivesTheSameBitsInBatchesAsAlone) {
  for (uint32_t window = 0; window <= 10; ++window) {
    Geometry geometry = smallGeometry();
    geometry.fields.slidingWindow = window;
    const Driver driver(geometry);
    for (const DecodeStateOptions& options : everyPrecision(1)) {
      const Outputs expected = plainly(driver, options, 40);
      for (uint32_t batch : {2U, 3U, 8U, 9U, 17U, 40U}) {
        StatePtr state = create(geometry, options);
        EXPECT_EQ(difference(driver.decoded(*state, 40, batch), expected), "")
            << "window " << window << ", batches of " << batch;
      }
    }
  }
}

TEST_F(DecodeStates, BatchesOfAnySizesInARowGiveTheSameBits) {
  const Driver driver(smallGeometry());
  Random random(5);
  for (const DecodeStateOptions& options : everyPrecision(3)) {
    const Outputs expected = plainly(driver, options, 90);
    for (int attempt = 0; attempt < 10; ++attempt) {
      StatePtr state = create(driver.geometry(), options);
      Outputs outputs;
      while (state->position() < 90) {
        driver.step(*state, std::min(random.between(1, 30), 90 - state->position()), &outputs);
      }
      EXPECT_EQ(difference(outputs, expected), "");
    }
  }
}

TEST_F(DecodeStates, BatchesAcrossBlocksOfALongWrappedRingGiveTheSameBits) {
  Geometry geometry = smallGeometry();
  geometry.fields.slidingWindow = 131;  // two blocks of positions and a bit, at every phase
  geometry.fields.maxSeqLen = 200;
  const Driver driver(geometry);
  for (const DecodeStateOptions& options : everyPrecision(7)) {
    const Outputs expected = plainly(driver, options, 420);
    for (uint32_t batch : {7U, 8U, 9U, 64U, 131U, 132U, 210U, 420U}) {
      StatePtr state = create(geometry, options);
      EXPECT_EQ(difference(driver.decoded(*state, 420, batch), expected), "") << "batches of " << batch;
    }
  }
}

TEST_F(DecodeStates, AFirstBatchPastTheHintGrowsToTheSlotsThatSingleRowsGive) {
  const Driver driver(smallGeometry());
  for (uint32_t hint : {1U, 2U, 3U, 5U, 9U}) {
    for (uint32_t rows = 1; rows <= 30; ++rows) {
      const DecodeStateOptions options{hint, Precision::kF32, false};
      StatePtr batch = create(driver.geometry(), options);
      StatePtr single = create(driver.geometry(), options);
      driver.step(*batch, rows, nullptr);
      driver.decode(*single, rows, 1, nullptr);
      for (uint32_t layer = 0; layer < 3; ++layer) {
        EXPECT_EQ(batch->slots(layer), single->slots(layer)) << "hint " << hint << ", " << rows << " rows";
      }
      EXPECT_EQ(batch->byteLength(), single->byteLength());
    }
  }
}

TEST_F(DecodeStates, AWindowOfWSeesTheSameAsOneOfWPlus1UntilPositionW) {
  Geometry narrow = smallGeometry();
  narrow.globalLayers = {};
  Geometry wide = narrow;
  wide.fields.slidingWindow = narrow.fields.slidingWindow + 1;
  const uint32_t window = narrow.fields.slidingWindow;
  const Driver narrowDriver(narrow);
  const Driver wideDriver(wide);
  for (const DecodeStateOptions& options : everyPrecision(1)) {
    StatePtr a = create(narrow, options);
    StatePtr b = create(wide, options);
    const Outputs seenByNarrow = narrowDriver.decoded(*a, 3 * window, 1);
    const Outputs seenByWide = wideDriver.decoded(*b, 3 * window, 1);
    for (size_t p = 0; p < seenByNarrow.size(); ++p) {
      EXPECT_EQ(sameBits(seenByNarrow[p], seenByWide[p]), p < window) << "position " << p;
    }
  }
}

TEST_F(DecodeStates, AGlobalLayerKeepsTheLatestMaxSeqLenPositionsAndSaysSo) {
  Geometry global = smallGeometry();
  global.fields.slidingWindow = 0;
  Geometry windowed = smallGeometry();
  windowed.fields.slidingWindow = windowed.fields.maxSeqLen;
  windowed.globalLayers = {};
  for (const DecodeStateOptions& options : everyPrecision(1)) {
    StatePtr state = create(global, options);
    StatePtr local = create(windowed, options);
    const Driver driver(global);
    const Driver localDriver(windowed);
    Outputs outputs;
    Outputs localOutputs;
    for (uint32_t p = 0; p < 60; ++p) {
      driver.step(*state, 1, &outputs);
      localDriver.step(*local, 1, &localOutputs);
      EXPECT_EQ(state->isSaturated(), p + 1 > global.fields.maxSeqLen) << "position " << p;
      EXPECT_FALSE(local->isSaturated());
    }
    EXPECT_EQ(state->spanFirst(0, 59), 60 - global.fields.maxSeqLen);
    EXPECT_EQ(difference(outputs, localOutputs), "");
  }
}

// What the taps of a convolution may reach, against a sum over the whole history.
TEST_F(DecodeStates, ConvolutionsOfAnyTapsAndDilationAreTheSumsOverTheWholeHistory) {
  for (uint32_t taps = 0; taps <= 6; ++taps) {
    for (uint32_t dilation = 1; dilation <= 5; ++dilation) {
      for (const std::vector<uint32_t>& orders : {std::vector<uint32_t>{}, {1}, {2, 3}, {4, 1, 2}}) {
        Geometry geometry = smallGeometry();
        geometry.fields.qkvConvTaps = taps;
        geometry.fields.engram.convTaps = taps;
        geometry.fields.engram.convDilation = dilation;
        geometry.orders = orders;
        const Driver driver(geometry);
        for (uint32_t batch : {1U, 2U, 5U, 33U}) {
          StatePtr state = create(geometry, {});
          ReferenceState reference(geometry, {});
          const ModelConfig config = geometry.config();
          for (uint32_t p = 0; p < 33; p += batch) {
            const uint32_t rows = std::min(batch, 33 - p);
            std::vector<float> q = driver.inputs(0, p, rows, config.qDim(), 0);
            std::vector<float> x = driver.inputs(1, p, rows, config.dModel, 0);
            std::vector<float> expectedQ = q;
            std::vector<float> expectedX = x;
            const std::vector<float> qTaps = driver.taps(0, taps, config.qDim());
            const std::vector<float> xTaps = driver.taps(1, taps, config.dModel);
            ASSERT_TRUE(state->conv(1, Projection::kQ, qTaps, q).ok());
            ASSERT_TRUE(state->engramConv(1, xTaps, x).ok());
            ASSERT_TRUE(state->advance(rows).ok());
            ASSERT_EQ(reference.conv(1, Projection::kQ, qTaps, &expectedQ), 0U);
            ASSERT_EQ(reference.engramConv(1, xTaps, &expectedX), 0U);
            ASSERT_EQ(reference.advance(rows), 0U);
            ASSERT_TRUE(sameNumbers(q, expectedQ)) << taps << " taps at position " << p;
            ASSERT_TRUE(sameNumbers(x, expectedX))
                << taps << " taps, dilation " << dilation << ", " << orders.size() << " orders, position " << p;
          }
        }
      }
    }
  }
}

TEST_F(DecodeStates, ATailThatGetsNoRowsInAStepStaysAsItIs) {
  const Geometry geometry = smallGeometry();
  const Driver driver(geometry);
  const ModelConfig config = geometry.config();
  const std::vector<float> taps = driver.taps(0, config.qkvConvTaps, config.qDim());
  StatePtr state = create(geometry, {});
  std::vector<std::vector<float>> raw;
  for (uint32_t p = 0; p < 8; ++p) {
    if (p == 3 || p == 4) {  // steps without this projection
      ASSERT_TRUE(state->advance(1).ok());
      continue;
    }
    std::vector<float> x = driver.inputs(0, p, 1, config.qDim(), 0);
    raw.push_back(x);
    ASSERT_TRUE(state->conv(0, Projection::kQ, taps, x).ok());
    for (size_t c = 0; c < x.size(); ++c) {
      float expected = taps[c] * raw.back()[c];
      for (size_t j = 1; j < config.qkvConvTaps && j < raw.size(); ++j) {
        expected += taps[j * x.size() + c] * raw[raw.size() - 1 - j][c];
      }
      ASSERT_EQ(x[c], expected) << "position " << p;
    }
    ASSERT_TRUE(state->advance(1).ok());
  }
}

// ---- steps undone, repeated, interrupted ----

// Over a ring that is not yet full, one that is, and one that grows; in single rows and in batches within and past cap.
struct Moment {
  uint32_t position;
  uint32_t rows;
};
std::vector<Moment> everyMoment() {
  std::vector<Moment> moments;
  for (uint32_t position : {0U, 1U, 3U, 4U, 5U, 6U, 11U, 23U, 24U, 25U, 50U}) {
    for (uint32_t rows : {1U, 2U, 4U, 5U, 6U, 11U, 24U, 25U, 49U}) moments.push_back({position, rows});
  }
  return moments;
}

TEST_F(DecodeStates, AStepInterruptedAfterAnyCallAndDiscardedGivesTheBitsItWouldHaveGiven) {
  const Driver driver(smallGeometry());
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    const Outputs expected = plainly(driver, options, 110);
    for (const auto& [position, rows] : everyMoment()) {
      StatePtr before = create(driver.geometry(), options);
      driver.decode(*before, position, 3, nullptr);
      const std::vector<uint8_t> saved = save(*before);
      for (size_t made = 0; made <= driver.callCount(); ++made) {
        StatePtr state = arena_.fork(*before);
        ASSERT_TRUE(state);
        driver.calls(*state, rows, 0, made, 12345, nullptr);  // with other data than the step that counts
        state->discard();
        ASSERT_EQ(save(*state), saved) << "position " << position << ", " << rows << " rows, " << made << " calls";
        if (made % 5 != 0 && made != driver.callCount()) continue;
        Outputs outputs;
        driver.step(*state, rows, &outputs);
        driver.decode(*state, position + rows + 7, 1, &outputs);
        Outputs wanted(expected.begin(), expected.begin() + position + rows + 7);
        ASSERT_EQ(difference(outputs, wanted, position), "")
            << "position " << position << ", " << rows << " rows, " << made << " calls";
      }
    }
  }
}

TEST_F(DecodeStates, ACallRepeatedInAStepReplacesTheEarlierOne) {
  const Driver driver(smallGeometry());
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    const Outputs expected = plainly(driver, options, 110);
    for (const auto& [position, rows] : everyMoment()) {
      StatePtr state = create(driver.geometry(), options);
      Outputs outputs;
      driver.decode(*state, position, 4, &outputs);
      driver.calls(*state, rows, 0, 1, 0, &outputs);
      for (size_t index = 1; index < driver.callCount(); ++index) {
        driver.calls(*state, rows, index, index + 1, 999, nullptr);
        driver.calls(*state, rows, index, index + 1, 0, &outputs);
      }
      // And all of them once more.
      Outputs again;
      driver.calls(*state, rows, 1, driver.callCount(), 0, &again);
      ASSERT_TRUE(state->advance(rows).ok());
      driver.decode(*state, position + rows + 7, 1, &outputs);
      Outputs wanted(expected.begin(), expected.begin() + position + rows + 7);
      ASSERT_EQ(difference(outputs, wanted), "") << "position " << position << ", " << rows << " rows";
      for (uint32_t p = position; p < position + rows; ++p) {
        const size_t indices = outputs[p].size() - again[p].size();
        ASSERT_TRUE(sameBits(again[p], std::span(outputs[p]).subspan(indices))) << "position " << p;
      }
    }
  }
}

TEST_F(DecodeStates, WhatADiscardedStepGaveATailIsNotCommittedByTheNextStep) {
  const Driver driver(smallGeometry());
  for (uint32_t rows : {1U, 2U, 7U}) {
    StatePtr state = create(driver.geometry(), {});
    StatePtr untouched = create(driver.geometry(), {});
    for (StatePtr* each : {&state, &untouched}) {
      driver.decode(**each, 6, 1, nullptr);
      if (each == &state) {
        driver.calls(**each, rows, 0, driver.callCount(), 3, nullptr);
        (*each)->discard();
      }
      ASSERT_TRUE((*each)->advance(1).ok());  // no rows for any tail
    }
    EXPECT_EQ(save(*state), save(*untouched)) << rows << " rows";
  }
}

TEST_F(DecodeStates, ASecondRunAfterResetGivesWhatTheFirstGave) {
  const Driver driver(smallGeometry());
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    StatePtr state = create(driver.geometry(), options);
    const Outputs first = driver.decoded(*state, 57, 4);
    driver.calls(*state, 3, 0, 9, 1, nullptr);  // dropped by the reset
    std::vector<uint32_t> slots;
    for (uint32_t layer = 0; layer < 3; ++layer) slots.push_back(state->slots(layer));
    state->reset();
    EXPECT_EQ(state->position(), 0U);
    EXPECT_EQ(state->tokenCount(), 0U);
    EXPECT_FALSE(state->inStep());
    EXPECT_FALSE(state->isSaturated());
    for (uint32_t layer = 0; layer < 3; ++layer) EXPECT_EQ(state->slots(layer), slots[layer]);
    EXPECT_EQ(difference(driver.decoded(*state, 57, 4), first), "");
  }
}

// ---- continuing from elsewhere ----

TEST_F(DecodeStates, AStateSeededFromAPrefillDoneElsewhereGoesOnBitForBit) {
  const Geometry geometry = smallGeometry();
  const Driver driver(geometry);
  const ModelConfig config = geometry.config();
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    for (uint32_t prefill : {1U, 4U, 5U, 6U, 12U, 24U, 25U, 40U}) {
      const Outputs expected = plainly(driver, options, prefill + 12);
      StatePtr state = create(geometry, options);
      for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
        // In two writes, the second at the end of the first.
        const uint32_t split = prefill / 3;
        for (const auto& [first, rows] : {std::pair{0U, split}, {split, prefill - split}}) {
          if (rows == 0) continue;
          ASSERT_TRUE(state
                          ->writeKvAt(layer, driver.inputs(2001 + layer * 3, first, rows, config.kDim(), 0),
                                      driver.inputs(2002 + layer * 3, first, rows, config.vDim(), 0), first)
                          .ok());
        }
        const uint64_t dims[] = {config.qDim(), config.kDim(), config.vDim()};
        for (uint32_t which = 0; which < 3; ++which) {
          const uint32_t rows = config.qkvConvTaps - 1;
          std::vector<float> tail(static_cast<size_t>(rows * dims[which]));
          const uint32_t known = std::min(rows, prefill);
          const std::vector<float> raw = driver.inputs(layer * 3 + which, prefill - known, known, dims[which], 0);
          std::copy(raw.begin(), raw.end(), tail.end() - static_cast<ptrdiff_t>(raw.size()));
          ASSERT_TRUE(state->seedConvTail(layer, static_cast<Projection>(which), tail).ok());
        }
      }
      for (uint32_t site = 0; site < geometry.sites.size(); ++site) {
        const auto rows = static_cast<uint32_t>(config.engram.tailRows());
        std::vector<float> tail(size_t{rows} * config.dModel);
        const uint32_t known = std::min(rows, prefill);
        const std::vector<float> raw = driver.inputs(1000 + site, prefill - known, known, config.dModel, 0);
        std::copy(raw.begin(), raw.end(), tail.end() - static_cast<ptrdiff_t>(raw.size()));
        ASSERT_TRUE(state->seedEngramTail(site, tail).ok());
      }
      // All tokens of the prefill; the state keeps what it needs.
      StatePtr plain = create(geometry, options);
      driver.decode(*plain, prefill, 1, nullptr);
      std::vector<uint32_t> tokens(5, 9);
      for (uint32_t token : tokensOf(*plain)) tokens.push_back(token);
      if (prefill < config.engram.maxOrder()) tokens.erase(tokens.begin(), tokens.begin() + 5);
      ASSERT_TRUE(state->seedTokens(tokens).ok());
      ASSERT_TRUE(state->setPosition(prefill).ok());
      EXPECT_EQ(tokensOf(*state), tokensOf(*plain));

      Outputs outputs;
      driver.decode(*state, prefill + 12, 5, &outputs);
      EXPECT_EQ(difference(outputs, expected, prefill), "") << "prefill of " << prefill;
    }
  }
}

TEST_F(DecodeStates, TheFirstWriteOfAStepForgetsRowsImportedAtOrAfterThePosition) {
  const Geometry geometry = smallGeometry();
  const Driver driver(geometry);
  const ModelConfig config = geometry.config();
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    const Outputs expected = plainly(driver, options, 30);
    StatePtr state = create(geometry, options);
    Outputs outputs = driver.decoded(*state, 2, 1);
    for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
      ASSERT_TRUE(
          state->writeKvAt(layer, driver.inputs(7, 0, 3, config.kDim(), 5), driver.inputs(8, 0, 3, config.vDim(), 5), 2)
              .ok());
      EXPECT_EQ(state->heldEnd(layer), 5U);
    }
    driver.decode(*state, 30, 2, &outputs);
    EXPECT_EQ(difference(outputs, expected), "");
  }
}

TEST_F(DecodeStates, SetPositionForgetsWhatComesAfterAndKeepsTailsAndTokens) {
  const Geometry geometry = smallGeometry();
  const Driver driver(geometry);
  StatePtr state = create(geometry, {2, Precision::kF32, false});
  driver.decode(*state, 9, 1, nullptr);
  const std::vector<uint32_t> tokens = tokensOf(*state);
  ASSERT_TRUE(state->setPosition(7).ok());
  EXPECT_EQ(state->position(), 7U);
  EXPECT_EQ(state->heldEnd(1), 7U);
  EXPECT_EQ(state->heldFirst(1), 0U);
  EXPECT_EQ(tokensOf(*state), tokens);
}

TEST_F(DecodeStates, TheLargestPositionIsAMatterOfArithmeticOnly) {
  const Geometry geometry = smallGeometry();
  const Driver driver(geometry);
  const ModelConfig config = geometry.config();
  StatePtr state = create(geometry, {2, Precision::kF32, false});
  ASSERT_TRUE(state->setPosition(INT32_MAX - 12).ok());
  for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
    ASSERT_TRUE(state
                    ->writeKvAt(layer, driver.inputs(1, 0, 24, config.kDim(), 0),
                                driver.inputs(2, 0, 24, config.vDim(), 0), INT32_MAX - 36)
                    .ok());
  }
  driver.step(*state, 1, nullptr);
  driver.step(*state, 9, nullptr);
  driver.step(*state, 2, nullptr);
  EXPECT_EQ(state->position(), static_cast<uint32_t>(INT32_MAX));
  EXPECT_TRUE(state->isSaturated());
  EXPECT_EQ(state->advance(1).code(), ErrorCode::kRange);
  std::vector<float> row(config.dModel);
  EXPECT_EQ(state->engramConv(0, driver.taps(0, 4, config.dModel), row).code(), ErrorCode::kRange);
  EXPECT_TRUE(state->setPosition(INT32_MAX).ok());
  EXPECT_EQ(state->setPosition(uint32_t{INT32_MAX} + 1).code(), ErrorCode::kRange);
}

TEST_F(DecodeStates, AStepOfTokensOrOfNothingMayBeCommittedByItsOwnCount) {
  StatePtr state = create(smallGeometry(), {});
  ASSERT_TRUE(state->advance(5).ok());
  EXPECT_EQ(state->position(), 5U);
  for (uint32_t id : {1U, 2U, 3U, 4U}) ASSERT_TRUE(state->pushToken(id).ok());
  EXPECT_EQ(tokensOf(*state), (std::vector<uint32_t>{2, 3, 4}));
  EXPECT_EQ(state->advance(3).code(), ErrorCode::kRange);
  ASSERT_TRUE(state->advance(4).ok());
  EXPECT_EQ(state->position(), 9U);
  EXPECT_EQ(tokensOf(*state), (std::vector<uint32_t>{2, 3, 4}));
}

}  // namespace
}  // namespace needle3::testing
