// Forks, and marks to come back to: exact whatever happened in between.

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/scratch.h"
#include "kernels/quantize.h"
#include "state/state_size.h"
#include "support/driver.h"

namespace needle3::testing {
namespace {

class Marks : public ::testing::Test {
 protected:
  Marks() : driver_(smallGeometry()) {}

  StatePtr decoded(const DecodeStateOptions& options, uint32_t position) {
    StatePtr state = arena_.create(driver_.geometry(), options);
    EXPECT_NE(state, nullptr);
    driver_.decode(*state, position, 3, nullptr);
    return state;
  }
  uint32_t mark(DecodeState& state) {
    uint32_t id = 0;
    const Status status = state.mark(&id);
    EXPECT_TRUE(status.ok()) << status.message();
    return id;
  }
  // That `state` does next what `expected` does, a fork of it from when it was as it must be again. Neither is changed.
  void expectSameFuture(const DecodeState& state, const DecodeState& expected, const std::string& what) {
    StatePtr a = arena_.fork(state);
    StatePtr b = arena_.fork(expected);
    ASSERT_TRUE(a && b);
    ASSERT_EQ(a->position(), b->position()) << what;
    EXPECT_EQ(tokensOf(*a), tokensOf(*b)) << what;
    for (uint32_t layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(a->heldFirst(layer), b->heldFirst(layer)) << what;
      EXPECT_EQ(a->heldEnd(layer), b->heldEnd(layer)) << what;
    }
    const uint32_t end = a->position() + 9;
    EXPECT_EQ(difference(driver_.decoded(*a, end, 2), driver_.decoded(*b, end, 2)), "") << what;
  }

  Driver driver_;
  Arena arena_;
};

TEST_F(Marks, AForkGoesOnBitForBitAndNeitherSeesTheOther) {
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    for (uint32_t position : {0U, 1U, 4U, 5U, 6U, 23U, 24U, 25U, 50U}) {
      StatePtr state = decoded(options, position);
      StatePtr fork = arena_.fork(*state);
      ASSERT_TRUE(fork);
      EXPECT_EQ(fork->byteLength(), state->byteLength());
      for (uint32_t layer = 0; layer < 3; ++layer) EXPECT_EQ(fork->slots(layer), state->slots(layer));
      EXPECT_EQ(save(*fork), save(*state));
      StatePtr witness = arena_.fork(*state);
      // One of them takes other inputs, grows, wraps and goes.
      driver_.calls(*fork, 40, 0, driver_.callCount(), 4711, nullptr);
      ASSERT_TRUE(fork->advance(40).ok());
      fork->reset();
      fork.reset();
      const uint32_t end = position + 30;
      EXPECT_EQ(difference(driver_.decoded(*state, end, 4), driver_.decoded(*witness, end, 1)), "")
          << "position " << position;
    }
  }
}

TEST_F(Marks, ARollbackGivesBackTheMomentAfterAnySteps) {
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    for (uint32_t position : {0U, 1U, 4U, 5U, 6U, 12U, 23U, 24U, 25U, 50U}) {
      for (uint32_t rows : {0U, 1U, 4U, 5U, 6U, 23U, 24U, 25U, 60U}) {
        for (uint32_t batch : {1U, 3U, 60U}) {
          StatePtr state = decoded(options, position);
          StatePtr expected = arena_.fork(*state);
          const uint32_t id = mark(*state);
          driver_.decode(*state, position + rows, batch, nullptr);
          const std::string what = "position " + std::to_string(position) + ", " + std::to_string(rows) + " rows by " +
                                   std::to_string(batch);
          // From the middle of a step as well.
          if (batch == 3) driver_.calls(*state, 7, 0, driver_.callCount(), 5, nullptr);
          ASSERT_TRUE(state->rollback(id).ok());
          EXPECT_FALSE(state->inStep());
          expectSameFuture(*state, *expected, what);
          // And again, by another way.
          driver_.calls(*state, 9, 0, driver_.callCount(), 6, nullptr);
          ASSERT_TRUE(state->advance(9).ok());
          driver_.decode(*state, position + 40, 4, nullptr);
          ASSERT_TRUE(state->rollback(id).ok());
          expectSameFuture(*state, *expected, what + ", again");
          ASSERT_TRUE(state->release(id).ok());
          EXPECT_EQ(state->markBytes(), 0U);
          expectSameFuture(*state, *expected, what + ", released");
        }
      }
    }
  }
}

TEST_F(Marks, MarksNestAndRollingBackToAnOuterOneEndsTheInnerOnes) {
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    for (uint32_t start : {0U, 3U, 30U}) {
      for (uint32_t stride : {1U, 2U, 6U, 26U}) {
        StatePtr state = decoded(options, start);
        std::vector<uint32_t> marks;
        std::vector<StatePtr> moments;
        for (uint32_t i = 0; i < 5; ++i) {
          moments.push_back(arena_.fork(*state));
          marks.push_back(mark(*state));
          driver_.decode(*state, start + (i + 1) * stride, 4, nullptr);
        }
        for (size_t target : {3U, 3U, 1U, 0U}) {
          ASSERT_TRUE(state->rollback(marks[target]).ok());
          expectSameFuture(*state, *moments[target], "mark " + std::to_string(target));
          for (size_t inner = target + 1; inner < marks.size(); ++inner) {
            EXPECT_EQ(state->rollback(marks[inner]).code(), ErrorCode::kRange);
            EXPECT_EQ(state->release(marks[inner]).code(), ErrorCode::kRange);
          }
          // On, over what the ended marks had kept.
          driver_.decode(*state, state->position() + 8, 3, nullptr);
        }
        ASSERT_TRUE(state->rollback(marks[0]).ok());
        expectSameFuture(*state, *moments[0], "the outermost");
        ASSERT_TRUE(state->release(marks[0]).ok());
        EXPECT_EQ(state->markBytes(), 0U);
      }
    }
  }
}

TEST_F(Marks, ReleasingAMarkEndsItAndItsInnerOnesAndLeavesTheOuterOnesGood) {
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    for (size_t released = 0; released < 4; ++released) {
      for (uint32_t stride : {1U, 3U, 6U, 26U}) {
        StatePtr state = decoded(options, 7);
        std::vector<uint32_t> marks;
        std::vector<StatePtr> moments;
        for (uint32_t i = 0; i < 4; ++i) {
          moments.push_back(arena_.fork(*state));
          marks.push_back(mark(*state));
          driver_.decode(*state, 7 + (i + 1) * stride, 4, nullptr);
        }
        StatePtr now = arena_.fork(*state);
        ASSERT_TRUE(state->release(marks[released]).ok());
        expectSameFuture(*state, *now, "after a release");
        for (size_t ended = released; ended < marks.size(); ++ended) {
          EXPECT_EQ(state->rollback(marks[ended]).code(), ErrorCode::kRange) << "mark " << ended;
        }
        driver_.decode(*state, state->position() + 11, 3, nullptr);
        for (size_t outer = released; outer-- > 0;) {
          ASSERT_TRUE(state->rollback(marks[outer]).ok());
          expectSameFuture(*state, *moments[outer], "an outer mark");
        }
        if (released == 0) {
          EXPECT_EQ(state->markBytes(), 0U);
        }
      }
    }
  }
}

TEST_F(Marks, AMarkCostsItsTailsAndTokensUntilARingWrapsOverIt) {
  for (const DecodeStateOptions& options : everyPrecision(4096)) {
    StatePtr state = decoded(options, 3);
    const ModelConfig config = driver_.geometry().config();
    EXPECT_EQ(state->markBytes(), 0U);
    const uint64_t bytes = state->byteLength();
    const uint32_t id = mark(*state);
    const uint64_t small = state->markBytes();
    EXPECT_LE(small, tailBytes(config) + 3 * sizeof(uint32_t));
    EXPECT_GE(small, tailBytes(config));
    driver_.decode(*state, 5, 1, nullptr);  // positions 3 and 4: the window's five slots are full, none overwritten
    EXPECT_EQ(state->markBytes(), small);
    EXPECT_EQ(state->byteLength(), bytes);
    driver_.decode(*state, 7, 1, nullptr);  // two rows of each of the two local layers are overwritten
    EXPECT_GE(state->markBytes(), small + 4 * slotBytes(config, options.precision));
    EXPECT_LE(state->markBytes(), small + 4 * (slotBytes(config, options.precision) + sizeof(uint32_t)));
    // It never keeps more than what was there.
    driver_.decode(*state, 100, 1, nullptr);
    EXPECT_LE(state->markBytes(), small + 3 * 3 * (slotBytes(config, options.precision) + sizeof(uint32_t)));
    ASSERT_TRUE(state->release(id).ok());
    EXPECT_EQ(state->markBytes(), 0U);
  }
}

TEST_F(Marks, SlotsGrownSinceAMarkStayGrown) {
  const DecodeStateOptions options{1, Precision::kF32, false};
  StatePtr state = decoded(options, 1);
  const uint32_t id = mark(*state);
  driver_.decode(*state, 20, 1, nullptr);
  std::vector<uint32_t> slots;
  for (uint32_t layer = 0; layer < 3; ++layer) slots.push_back(state->slots(layer));
  ASSERT_TRUE(state->rollback(id).ok());
  for (uint32_t layer = 0; layer < 3; ++layer) EXPECT_EQ(state->slots(layer), slots[layer]);
  // A discarded step's are not: it never was.
  driver_.calls(*state, 24, 0, driver_.callCount(), 0, nullptr);
  state->discard();
  for (uint32_t layer = 0; layer < 3; ++layer) EXPECT_EQ(state->slots(layer), slots[layer]);
}

TEST_F(Marks, ARollbackTakesBackSaturation) {
  StatePtr state = decoded({1, Precision::kInt8, true}, 20);
  const uint32_t id = mark(*state);
  driver_.decode(*state, 30, 1, nullptr);
  EXPECT_TRUE(state->isSaturated());
  ASSERT_TRUE(state->rollback(id).ok());
  EXPECT_FALSE(state->isSaturated());
  EXPECT_EQ(state->heldFirst(1), 0U);
}

TEST_F(Marks, ARollbackGivesBackRowsImportedAfterThePosition) {
  const ModelConfig config = driver_.geometry().config();
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    StatePtr state = arena_.create(driver_.geometry(), options);
    for (uint32_t layer = 0; layer < 3; ++layer) {
      ASSERT_TRUE(state
                      ->writeKvAt(layer, driver_.inputs(2001 + layer * 3, 0, 12, config.kDim(), 0),
                                  driver_.inputs(2002 + layer * 3, 0, 12, config.vDim(), 0), 0)
                      .ok());
    }
    StatePtr expected = arena_.fork(*state);
    const uint32_t id = mark(*state);
    for (uint32_t batch : {1U, 5U, 12U}) {
      // These steps forget the imported rows, and write over them.
      driver_.calls(*state, batch, 0, driver_.callCount(), 9, nullptr);
      ASSERT_TRUE(state->advance(batch).ok());
      ASSERT_TRUE(state->rollback(id).ok());
      StatePtr rolledBack = arena_.fork(*state);
      StatePtr untouched = arena_.fork(*expected);
      ASSERT_TRUE(rolledBack->setPosition(12).ok());
      ASSERT_TRUE(untouched->setPosition(12).ok());
      expectSameFuture(*rolledBack, *untouched, "batches of " + std::to_string(batch));
    }
  }
}

TEST_F(Marks, WhatReplacesTheHistoryEndsAllMarks) {
  const ModelConfig config = driver_.geometry().config();
  const std::vector<float> keys(config.kDim());
  const std::vector<float> values(config.vDim());
  const std::vector<float> tail(config.qDim() * 2);
  const std::vector<float> siteTail(config.engram.tailRows() * config.dModel);
  const std::vector<std::function<Status(DecodeState&)>> calls = {
      [](DecodeState& s) {
        s.reset();
        return Status();
      },
      [](DecodeState& s) { return s.setPosition(9); },
      [&](DecodeState& s) { return s.writeKvAt(0, keys, values, 9); },
      [&](DecodeState& s) { return s.seedConvTail(0, Projection::kQ, tail); },
      [&](DecodeState& s) { return s.seedEngramTail(0, siteTail); },
      [](DecodeState& s) { return s.seedTokens({}); },
  };
  for (const auto& call : calls) {
    StatePtr state = decoded({2, Precision::kF32, false}, 9);
    const uint32_t outer = mark(*state);
    const uint32_t inner = mark(*state);
    ASSERT_TRUE(call(*state).ok());
    EXPECT_EQ(state->markBytes(), 0U);
    for (uint32_t id : {outer, inner}) {
      const Status status = state->rollback(id);
      EXPECT_EQ(status.code(), ErrorCode::kRange);
      EXPECT_STREQ(status.message(), "the mark has ended");
      EXPECT_EQ(state->release(id).code(), ErrorCode::kRange);
    }
    EXPECT_NE(mark(*state), inner);
  }
}

TEST_F(Marks, ARefusedCallEndsNoMark) {
  StatePtr state = decoded({2, Precision::kF32, false}, 9);
  StatePtr expected = arena_.fork(*state);
  const uint32_t id = mark(*state);
  const std::vector<float> short_(3);
  EXPECT_FALSE(state->writeKvAt(0, short_, short_, 9).ok());
  EXPECT_FALSE(state->seedConvTail(0, Projection::kQ, short_).ok());
  EXPECT_FALSE(state->seedEngramTail(0, short_).ok());
  const std::vector<uint32_t> ids = {100};
  EXPECT_FALSE(state->seedTokens(ids).ok());
  EXPECT_FALSE(state->setPosition(UINT32_MAX).ok());
  driver_.decode(*state, 15, 1, nullptr);
  EXPECT_FALSE(state->rollback(id + 1).ok());
  ASSERT_TRUE(state->rollback(id).ok());
  expectSameFuture(*state, *expected, "after refused calls");
}

TEST_F(Marks, MarksAreNeitherForkedNorSaved) {
  StatePtr state = decoded({2, Precision::kF32, false}, 9);
  const std::vector<uint8_t> unmarked = save(*state);
  const uint32_t id = mark(*state);
  EXPECT_EQ(save(*state), unmarked);
  StatePtr fork = arena_.fork(*state);
  EXPECT_EQ(fork->markBytes(), 0U);
  EXPECT_EQ(fork->rollback(id).code(), ErrorCode::kRange);
  EXPECT_TRUE(state->rollback(id).ok());
}

TEST_F(Marks, AStateDestroyedWithMarksAndAnOpenStepLeavesNothing) {
  {
    StatePtr state = decoded({1, Precision::kInt8, true}, 12);
    mark(*state);
    driver_.decode(*state, 20, 3, nullptr);
    mark(*state);
    driver_.calls(*state, 30, 0, driver_.callCount(), 0, nullptr);
  }
  EXPECT_EQ(arena_.memory.liveBytes(), 0U);
}

}  // namespace
}  // namespace needle3::testing
