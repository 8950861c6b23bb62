// Allocations that fail, each one in turn: nothing is kept, nothing has changed, and the call succeeds afterwards.

#include "base/memory.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/scratch.h"
#include "sampling/sampler.h"
#include "support/driver.h"

namespace needle3::testing {
namespace {

TEST(CopyBytes, CopiesAnyNumberAndNothingBeyond) {
  for (size_t bytes = 0; bytes <= 1100; ++bytes) {
    std::vector<uint8_t> from(bytes + 1);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(1 + i % 255);
    std::vector<uint8_t> to(bytes + 1);
    copyBytes(to.data(), from.data(), bytes);
    ASSERT_EQ(to[bytes], 0) << bytes;
    to[bytes] = from[bytes];
    ASSERT_EQ(to, from) << bytes;
  }
}

class MemoryFailures : public ::testing::Test {
 protected:
  MemoryFailures() : driver_(smallGeometry()) {}

  // Makes `call` with memory that fails at the first allocation, then at the second … until it succeeds. Returns how
  // many failed.
  size_t failAtEveryAllocation(const std::function<Status()>& call, const std::function<void()>& unchanged) {
    for (uint64_t n = 0;; ++n) {
      const uint64_t live = arena_.memory.liveBytes();
      arena_.memory.failAfter(n);
      const Status status = call();
      arena_.memory.neverFail();
      if (status.ok()) return n;
      EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory) << status.message();
      EXPECT_STRNE(status.message(), "");
      EXPECT_EQ(arena_.memory.liveBytes(), live) << "allocation " << n;
      unchanged();
      if (n == 1000 || HasFailure()) {
        ADD_FAILURE() << "still failing with " << n << " allocations";
        return n;
      }
    }
  }

  StatePtr decoded(const DecodeStateOptions& options, uint32_t position) {
    StatePtr state = arena_.create(driver_.geometry(), options);
    EXPECT_NE(state, nullptr);
    driver_.decode(*state, position, 3, nullptr);
    return state;
  }

  // That the state goes on as a fork of it does that was made before.
  void expectSameFuture(DecodeState& state, DecodeState& before) {
    const uint32_t end = state.position() + 13;
    EXPECT_EQ(save(state), save(before));
    EXPECT_EQ(difference(driver_.decoded(state, end, 4), driver_.decoded(before, end, 4)), "");
  }

  Driver driver_;
  Arena arena_;
};

TEST_F(MemoryFailures, CreatingFailsCleanlyAtEveryAllocation) {
  for (const DecodeStateOptions& options : everyPrecision(9)) {
    DecodeState* state = nullptr;
    const size_t failed = failAtEveryAllocation(
        [&] {
          return DecodeState::create(driver_.geometry().config(), options, arena_.memory, arena_.workspace, &state);
        },
        [&] { EXPECT_EQ(state, nullptr); });
    EXPECT_GT(failed, 10U);
    DecodeState::destroy(state);
    EXPECT_EQ(arena_.memory.liveBytes(), 0U);
  }
}

TEST_F(MemoryFailures, AWholeStepFailsCleanlyAtEveryAllocationOfEveryCall) {
  // Growth, batches larger than the tails' room, and rows kept of a full ring; with a mark that keeps rows, and
  // without.
  for (const DecodeStateOptions& options : everyPrecision(1)) {
    for (uint32_t position : {0U, 3U, 12U, 40U}) {
      for (uint32_t rows : {1U, 6U, 26U}) {
        for (bool marked : {false, true}) {
          StatePtr state = decoded(options, position);
          uint32_t mark = 0;
          if (marked) {
            ASSERT_TRUE(state->mark(&mark).ok());
          }
          StatePtr before = arena_.fork(*state);
          ASSERT_TRUE(before);
          size_t failures = 0;
          Outputs outputs;
          for (size_t index = 0; index < driver_.callCount(); ++index) {
            failures += failAtEveryAllocation([&] { return driver_.tryCall(*state, rows, index, 0, &outputs); },
                                              [&] { EXPECT_EQ(state->position(), position); });
          }
          ASSERT_TRUE(state->advance(rows).ok());
          Outputs expected;
          driver_.step(*before, rows, &expected);
          EXPECT_EQ(difference(outputs, expected), "") << "position " << position << ", " << rows << " rows";
          if (rows == 26 && position == 0) {
            EXPECT_GT(failures, 0U);
          }
          expectSameFuture(*state, *before);
        }
      }
    }
  }
}

TEST_F(MemoryFailures, AFailedCallLeavesTheStepThatItInterruptedToBeDiscarded) {
  for (const DecodeStateOptions& options : everyPrecision(1)) {
    for (uint32_t position : {0U, 12U}) {
      StatePtr state = decoded(options, position);
      StatePtr before = arena_.fork(*state);
      for (size_t index = 0; index < driver_.callCount(); ++index) {
        for (uint64_t allowed = 0; allowed < 3; ++allowed) {
          driver_.calls(*state, 9, 0, index, 3, nullptr);
          arena_.memory.failAfter(allowed);
          const Status status = driver_.tryCall(*state, 9, index, 3, nullptr);
          arena_.memory.neverFail();
          EXPECT_TRUE(status.ok() || status.code() == ErrorCode::kOutOfMemory) << status.message();
          state->discard();
        }
      }
      expectSameFuture(*state, *before);
    }
  }
}

TEST_F(MemoryFailures, AnExplicitWriteThatGrowsFailsCleanly) {
  for (const DecodeStateOptions& options : everyPrecision(1)) {
    StatePtr state = decoded(options, 0);
    StatePtr before = arena_.fork(*state);
    const ModelConfig config = driver_.geometry().config();
    const auto keys = driver_.inputs(1, 0, 20, config.kDim(), 0);
    const auto values = driver_.inputs(2, 0, 20, config.vDim(), 0);
    const size_t failed = failAtEveryAllocation([&] { return state->writeKvAt(1, keys, values, 0); },
                                                [&] { EXPECT_EQ(save(*state), save(*before)); });
    EXPECT_GT(failed, 0U);
    ASSERT_TRUE(before->writeKvAt(1, keys, values, 0).ok());
    EXPECT_EQ(save(*state), save(*before));
  }
}

TEST_F(MemoryFailures, ForkingFailsCleanlyAtEveryAllocation) {
  for (const DecodeStateOptions& options : everyPrecision(1)) {
    StatePtr state = decoded(options, 14);
    StatePtr before = arena_.fork(*state);
    DecodeState* fork = nullptr;
    EXPECT_GT(failAtEveryAllocation([&] { return state->fork(&fork); }, [&] { EXPECT_EQ(fork, nullptr); }), 10U);
    StatePtr owned(fork);
    EXPECT_EQ(save(*owned), save(*state));
    expectSameFuture(*state, *before);
  }
}

TEST_F(MemoryFailures, MarkingFailsCleanlyAtEveryAllocation) {
  for (const DecodeStateOptions& options : everyPrecision(1)) {
    StatePtr state = decoded(options, 14);
    StatePtr before = arena_.fork(*state);
    uint32_t outer = 0;
    ASSERT_TRUE(state->mark(&outer).ok());
    driver_.step(*state, 7, nullptr);
    const uint64_t held = state->markBytes();
    uint32_t mark = 0;
    EXPECT_GT(failAtEveryAllocation([&] { return state->mark(&mark); }, [&] { EXPECT_EQ(state->markBytes(), held); }),
              0U);
    EXPECT_NE(mark, 0U);
    driver_.step(*state, 3, nullptr);
    ASSERT_TRUE(state->rollback(mark).ok());
    EXPECT_EQ(state->position(), 21U);
    ASSERT_TRUE(state->rollback(outer).ok());
    for (uint32_t layer = 0; layer < 3; ++layer) EXPECT_GE(state->slots(layer), before->slots(layer));
    const uint32_t end = state->position() + 13;
    EXPECT_EQ(difference(driver_.decoded(*state, end, 4), driver_.decoded(*before, end, 4)), "");
  }
}

TEST_F(MemoryFailures, RestoringFailsCleanlyAtEveryAllocation) {
  for (const DecodeStateOptions& options : everyPrecision(1)) {
    StatePtr state = decoded(options, 14);
    const std::vector<uint8_t> saved = save(*state);
    StatePtr restored;
    EXPECT_GT(failAtEveryAllocation([&] { return restore(saved, {}, arena_, &restored); }, [] {}), 10U);
    expectSameFuture(*restored, *state);
  }
}

TEST_F(MemoryFailures, SamplingFailsCleanlyAtEveryAllocation) {
  const std::vector<float> logits = Random(3).floats(50);
  SamplerOptions options;
  options.temperature = 1;
  uint32_t expected = 0;
  ASSERT_TRUE(sampleToken(logits, options, 0, arena_.memory, &expected).ok());
  uint32_t token = 1000;
  EXPECT_GT(failAtEveryAllocation([&] { return sampleToken(logits, options, 0, arena_.memory, &token); },
                                  [&] { EXPECT_EQ(token, 1000U); }),
            0U);
  EXPECT_EQ(token, expected);
  EXPECT_EQ(arena_.memory.liveBytes(), 0U);
}

TEST_F(MemoryFailures, NothingIsAllocatedInAStepThatNeitherGrowsNorMarks) {
  for (const DecodeStateOptions& options : everyPrecision(4096)) {
    for (uint32_t batch : {1U, 4U, 30U}) {
      StatePtr state = decoded(options, 0);
      driver_.decode(*state, 120, batch, nullptr);
      arena_.memory.failAfter(0);
      driver_.decode(*state, 240, batch, nullptr);
      arena_.memory.neverFail();
    }
  }
}

TEST_F(MemoryFailures, CreateGrowMarkForkAndDestroyInALoopLeavesNothing) {
  for (int round = 0; round < 30; ++round) {
    for (const DecodeStateOptions& options : everyPrecision(1)) {
      StatePtr state = decoded(options, 30);
      uint32_t mark = 0;
      ASSERT_TRUE(state->mark(&mark).ok());
      driver_.decode(*state, 40, 7, nullptr);
      StatePtr fork = arena_.fork(*state);
      driver_.calls(*state, 8, 0, 9, 0, nullptr);
    }
    ASSERT_EQ(arena_.memory.liveBytes(), 0U) << "round " << round;
  }
}

TEST(Memory, ASizeThatCannotBeIsRefusedAndCountsNothing) {
  Memory memory;
  Buffer<uint64_t> buffer(memory);
  EXPECT_FALSE(buffer.allocate(UINT64_MAX / 4));
  EXPECT_FALSE(buffer.allocate(UINT64_MAX));
  EXPECT_EQ(memory.liveBytes(), 0U);
  ASSERT_TRUE(buffer.allocate(3));
  EXPECT_EQ(memory.liveBytes(), 24U);
  EXPECT_FALSE(buffer.allocate(UINT64_MAX));
  EXPECT_EQ(buffer.size(), 3U);
  ASSERT_TRUE(buffer.allocate(0));
  EXPECT_EQ(memory.liveBytes(), 0U);
}

}  // namespace
}  // namespace needle3::testing
