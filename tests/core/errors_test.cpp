// Every error of the core: its code, what its message says, and that nothing has changed.

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "base/scratch.h"
#include "kernels/quantize.h"
#include "support/driver.h"

namespace needle3::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Errors : public ::testing::Test {
 protected:
  Errors() : geometry_(smallGeometry()), config_(geometry_.config()), driver_(geometry_) {}

  std::vector<float> zeros(uint64_t count) { return std::vector<float>(static_cast<size_t>(count)); }

  // A state after 7 steps; and, with `rows`, in a step of that many.
  StatePtr decoded(const DecodeStateOptions& options, uint32_t rows) {
    StatePtr state = arena_.create(geometry_, options);
    EXPECT_NE(state, nullptr);
    driver_.decode(*state, 7, 3, nullptr);
    if (rows != 0) driver_.calls(*state, rows, 0, driver_.callCount(), 0, nullptr);
    return state;
  }

  // That `call` is refused with a message that says so, and that the state then goes on as one that was never asked.
  void expectRefused(const DecodeStateOptions& options, uint32_t rows, const std::function<Status(DecodeState&)>& call,
                     ErrorCode code, const std::string& message) {
    StatePtr state = decoded(options, rows);
    StatePtr untouched = decoded(options, rows);
    const Status status = call(*state);
    EXPECT_EQ(status.code(), code) << message << " / " << status.message();
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status.message();
    EXPECT_EQ(state->inStep(), untouched->inStep());
    EXPECT_EQ(tokensOf(*state), tokensOf(*untouched));
    EXPECT_EQ(state->byteLength(), untouched->byteLength());
    for (StatePtr* each : {&state, &untouched}) {
      if (rows != 0) {
        ASSERT_TRUE((*each)->advance(rows).ok());
      }
    }
    EXPECT_EQ(save(*state), save(*untouched)) << message;
    EXPECT_EQ(difference(driver_.decoded(*state, 20, 2), driver_.decoded(*untouched, 20, 2)), "") << message;
  }
  void expectRefused(const std::function<Status(DecodeState&)>& call, ErrorCode code, const std::string& message) {
    expectRefused({2, Precision::kF32, false}, 0, call, code, message);
  }
  void expectRefusedInStep(const std::function<Status(DecodeState&)>& call, ErrorCode code,
                           const std::string& message) {
    expectRefused({2, Precision::kF32, false}, 2, call, code, message);
  }

  Geometry geometry_;
  ModelConfig config_;
  Driver driver_;
  Arena arena_;
};

TEST_F(Errors, ALayerASiteAndATokenOutOfRangeAreNamed) {
  const std::string layer = "layer 3: must be below numLayers, 3";
  expectRefused(
      [&](DecodeState& s) {
        auto x = zeros(24);
        return s.conv(3, Projection::kQ, zeros(72), x);
      },
      ErrorCode::kRange, layer);
  expectRefused([&](DecodeState& s) { return s.writeKv(3, zeros(12), zeros(14)); }, ErrorCode::kRange, layer);
  expectRefused([&](DecodeState& s) { return s.writeKvAt(3, zeros(12), zeros(14), 7); }, ErrorCode::kRange, layer);
  expectRefused(
      [&](DecodeState& s) {
        auto x = zeros(28);
        return s.attend(3, zeros(24), x);
      },
      ErrorCode::kRange, layer);
  expectRefused(
      [&](DecodeState& s) {
        auto x = zeros(28);
        return s.appendAndAttend(3, zeros(24), zeros(12), zeros(14), x);
      },
      ErrorCode::kRange, layer);
  expectRefused([&](DecodeState& s) { return s.seedConvTail(3, Projection::kQ, zeros(48)); }, ErrorCode::kRange, layer);
  const std::string site = "site 2: must be below the number of engram.sites, 2";
  expectRefused(
      [&](DecodeState& s) {
        auto x = zeros(5);
        return s.engramConv(2, zeros(20), x);
      },
      ErrorCode::kRange, site);
  expectRefused([&](DecodeState& s) { return s.seedEngramTail(2, zeros(30)); }, ErrorCode::kRange, site);
  const std::string token = "token 100: must be below vocabSize, 100";
  expectRefused([&](DecodeState& s) { return s.pushToken(100); }, ErrorCode::kRange, token);
  const std::vector<uint32_t> ids = {1, 100, 2, 3, 4};
  expectRefused([&](DecodeState& s) { return s.seedTokens(ids); }, ErrorCode::kRange, token);
}

TEST_F(Errors, LengthsThatDoNotFitTheGeometryAreShapeErrors) {
  const auto shape = [&](const std::function<Status(DecodeState&)>& call, const std::string& message) {
    expectRefused(call, ErrorCode::kShape, message);
  };
  shape(
      [&](DecodeState& s) {
        auto x = zeros(24);
        return s.conv(0, Projection::kQ, zeros(71), x);
      },
      "taps of length 71: must be 72");
  shape(
      [&](DecodeState& s) {
        auto x = zeros(13);
        return s.conv(0, Projection::kK, zeros(36), x);
      },
      "rows of length 13: must be a positive multiple of 12");
  shape(
      [&](DecodeState& s) {
        auto x = zeros(0);
        return s.conv(0, Projection::kV, zeros(42), x);
      },
      "rows of length 0: must be a positive multiple of 14");
  shape(
      [&](DecodeState& s) {
        auto x = zeros(5);
        return s.engramConv(0, zeros(21), x);
      },
      "taps of length 21: must be 20");
  shape(
      [&](DecodeState& s) {
        auto x = zeros(6);
        return s.engramConv(0, zeros(20), x);
      },
      "rows of length 6: must be a positive multiple of 5");
  shape([&](DecodeState& s) { return s.writeKv(0, zeros(11), zeros(14)); },
        "keys of length 11: must be a positive multiple of 12");
  shape([&](DecodeState& s) { return s.writeKv(0, zeros(12), zeros(15)); },
        "values of length 15: must be a positive multiple of 14");
  shape([&](DecodeState& s) { return s.writeKv(0, zeros(24), zeros(14)); }, "rows of the keys: 2, of the values: 1");
  shape([&](DecodeState& s) { return s.writeKvAt(0, zeros(0), zeros(0), 7); },
        "keys of length 0: must be a positive multiple of 12");
  shape(
      [&](DecodeState& s) {
        auto x = zeros(28);
        return s.attend(0, zeros(23), x);
      },
      "query of length 23: must be 24");
  shape(
      [&](DecodeState& s) {
        auto x = zeros(27);
        return s.attend(0, zeros(24), x);
      },
      "out of length 27: must be 28");
  shape(
      [&](DecodeState& s) {
        auto x = zeros(56);
        return s.appendAndAttend(0, zeros(24), zeros(24), zeros(28), x);
      },
      "rows of the query: 1, of the keys: 2");
  shape(
      [&](DecodeState& s) {
        auto x = zeros(28);
        return s.appendAndAttend(0, zeros(48), zeros(24), zeros(28), x);
      },
      "out of length 28: must be 56");
  shape([&](DecodeState& s) { return s.seedConvTail(0, Projection::kK, zeros(12)); }, "rows of length 12: must be 24");
  shape([&](DecodeState& s) { return s.seedEngramTail(0, zeros(31)); }, "rows of length 31: must be 30");
}

TEST_F(Errors, RowsOfAnotherNumberThanTheStepsAreAShapeError) {
  const auto shape = [&](const std::function<Status(DecodeState&)>& call, const std::string& message) {
    expectRefusedInStep(call, ErrorCode::kShape, message);
  };
  shape(
      [&](DecodeState& s) {
        auto x = zeros(24);
        return s.conv(0, Projection::kQ, zeros(72), x);
      },
      "got 1 row in a step of 2");
  shape(
      [&](DecodeState& s) {
        auto x = zeros(15);
        return s.engramConv(0, zeros(20), x);
      },
      "got 3 rows in a step of 2");
  shape([&](DecodeState& s) { return s.writeKv(0, zeros(12), zeros(14)); }, "got 1 row in a step of 2");
  shape(
      [&](DecodeState& s) {
        auto x = zeros(28);
        return s.attend(0, zeros(24), x);
      },
      "got 1 row in a step of 2");
  shape(
      [&](DecodeState& s) {
        auto x = zeros(84);
        return s.appendAndAttend(0, zeros(72), zeros(36), zeros(42), x);
      },
      "got 3 rows in a step of 2");
}

TEST_F(Errors, TheMiddleOfAStepRefusesWhatIsForBetweenSteps) {
  const auto refused = [&](const std::function<Status(DecodeState&)>& call) {
    expectRefusedInStep(call, ErrorCode::kRange, "in the middle of a step");
  };
  refused([&](DecodeState& s) { return s.writeKvAt(0, zeros(12), zeros(14), 7); });
  refused([&](DecodeState& s) { return s.seedConvTail(0, Projection::kQ, zeros(48)); });
  refused([&](DecodeState& s) { return s.seedEngramTail(0, zeros(30)); });
  refused([&](DecodeState& s) { return s.seedTokens({}); });
  refused([&](DecodeState& s) { return s.setPosition(3); });
  refused([&](DecodeState& s) {
    DecodeState* fork = nullptr;
    return s.fork(&fork);
  });
  refused([&](DecodeState& s) {
    uint32_t id = 0;
    return s.mark(&id);
  });
  refused([&](DecodeState& s) { return s.release(1); });
  refused([&](DecodeState& s) {
    VectorSink sink;
    return writeSnapshot(s, {}, sink);
  });
  refused([&](DecodeState& s) {
    uint64_t bytes = 0;
    return snapshotBytes(s, 0, &bytes);
  });
}

TEST_F(Errors, ATokenAloneOpensAStep) {
  StatePtr state = decoded({}, 0);
  ASSERT_TRUE(state->pushToken(4).ok());
  EXPECT_EQ(state->setPosition(3).code(), ErrorCode::kRange);
  state->discard();
  EXPECT_TRUE(state->setPosition(3).ok());
}

TEST_F(Errors, AdvanceWantsTheStepsOwnCount) {
  expectRefusedInStep([](DecodeState& s) { return s.advance(1); }, ErrorCode::kRange, "count 1: the step has 2 rows");
  expectRefusedInStep([](DecodeState& s) { return s.advance(0); }, ErrorCode::kRange, "count 0: must be at least 1");
  StatePtr state = decoded({}, 0);
  ASSERT_TRUE(state->pushToken(1).ok());
  EXPECT_STREQ(state->advance(2).message(), "count 2: 1 token was pushed");
  auto row = zeros(10);
  ASSERT_TRUE(state->engramConv(0, zeros(20), row).ok());
  EXPECT_STREQ(state->advance(2).message(), "count 2: 1 token was pushed");
  EXPECT_STREQ(state->advance(1).message(), "count 1: the step has 2 rows");
  ASSERT_TRUE(state->pushToken(2).ok());
  EXPECT_TRUE(state->advance(2).ok());
}

TEST_F(Errors, EngramIndicesNeedAToken) {
  StatePtr state = arena_.create(geometry_, {});
  std::vector<uint32_t> indices(4);
  std::vector<uint8_t> valid(4);
  const Status status = state->engramIndices(indices.data(), valid.data());
  EXPECT_EQ(status.code(), ErrorCode::kRange);
  EXPECT_STREQ(status.message(), "no token has been pushed yet");
}

TEST_F(Errors, AttendNeedsTheRowOfItsOwnPosition) {
  expectRefused(
      [&](DecodeState& s) {
        auto x = zeros(28);
        return s.attend(1, zeros(24), x);
      },
      ErrorCode::kRange, "layer 1 has no row at position 7 yet: write its keys and values first");
}

TEST_F(Errors, AttendNeedsAllOfItsSpanHeld) {
  StatePtr state = arena_.create(geometry_, {});
  auto out = zeros(56);
  driver_.decode(*state, 3, 1, nullptr);
  ASSERT_TRUE(state->advance(1).ok());  // position 3 is skipped by every layer
  const Status status = state->appendAndAttend(1, zeros(48), zeros(24), zeros(28), out);
  EXPECT_EQ(status.code(), ErrorCode::kRange);
  EXPECT_STREQ(status.message(), "layer 1: a query at position 4 reads positions 0 to 4, but the layer holds 0 to 2");
  EXPECT_FALSE(state->inStep());
  EXPECT_EQ(state->heldFirst(1), 0U);
  EXPECT_EQ(state->heldEnd(1), 3U);

  // Written all the same, the row starts a new range: the window fills up again before a query can be answered.
  for (uint32_t p = 4; p < 9; ++p) {
    ASSERT_TRUE(state->writeKv(0, zeros(12), zeros(14)).ok());
    const Status attended = state->attend(0, zeros(24), std::span(out).first(28));
    EXPECT_EQ(attended.code(), p < 8 ? ErrorCode::kRange : ErrorCode::kOk) << "position " << p;
    ASSERT_TRUE(state->advance(1).ok());
  }
}

TEST_F(Errors, AnExplicitWriteBelowWhatALayerHoldsIsRefused) {
  expectRefused([&](DecodeState& s) { return s.writeKvAt(0, zeros(12), zeros(14), 2); }, ErrorCode::kRange,
                "position 2: layer 0 holds positions from 3 on; rows before them are gone");
  StatePtr state = decoded({}, 0);
  EXPECT_TRUE(state->writeKvAt(0, zeros(12), zeros(14), 3).ok());
  EXPECT_TRUE(state->writeKvAt(1, zeros(12), zeros(14), 20).ok());
  EXPECT_EQ(state->heldFirst(1), 20U);
  EXPECT_EQ(state->heldEnd(1), 21U);
  EXPECT_EQ(state->writeKvAt(0, zeros(12), zeros(14), INT32_MAX).code(), ErrorCode::kRange);
  EXPECT_EQ(state->writeKvAt(0, zeros(12), zeros(14), UINT32_MAX).code(), ErrorCode::kRange);
}

TEST_F(Errors, NonFiniteKeysAndValuesAreNamedByLayerHeadElementAndPosition) {
  for (const DecodeStateOptions& options : everyPrecision(2)) {
    for (float bad : {kNaN, kInfinity, -kInfinity}) {
      auto keys = zeros(36);
      keys[2 * 12 + 6 + 5] = bad;  // row 2, kv head 1, element 5
      expectRefused(
          options, 0, [&](DecodeState& s) { return s.writeKv(1, keys, zeros(42)); }, ErrorCode::kNonFinite,
          "keys: layer 1, head 1, element 5, position 9 is not finite");
      auto values = zeros(28);
      values[14 + 3] = bad;
      expectRefused(
          options, 0,
          [&](DecodeState& s) {
            auto out = std::vector<float>(56, 42.0F);
            Status status = s.appendAndAttend(2, zeros(48), zeros(24), values, out);
            EXPECT_EQ(out, std::vector<float>(56, 42.0F));
            return status;
          },
          ErrorCode::kNonFinite, "values: layer 2, head 0, element 3, position 8 is not finite");
      expectRefused(
          options, 0, [&](DecodeState& s) { return s.writeKvAt(2, zeros(24), values, 5); }, ErrorCode::kNonFinite,
          "values: layer 2, head 0, element 3, position 6 is not finite");
    }
  }
}

TEST_F(Errors, AQueryToBeQuantisedMustBeFinite) {
  const DecodeStateOptions options{2, Precision::kInt8, true};
  auto query = zeros(24);
  query[3 * 6 + 1] = kInfinity;
  const std::string message = "query: layer 0, head 3, element 1, position 7 is not finite";
  expectRefused(
      options, 1,
      [&](DecodeState& s) {
        auto x = zeros(28);
        return s.attend(0, query, x);
      },
      ErrorCode::kNonFinite, message);
  expectRefused(
      options, 0,
      [&](DecodeState& s) {
        auto x = zeros(28);
        return s.appendAndAttend(0, query, zeros(12), zeros(14), x);
      },
      ErrorCode::kNonFinite, message);
}

TEST_F(Errors, EveryElementOfAnyWidthIsCheckedForBeingFinite) {
  for (uint32_t width = 1; width <= 19; ++width) {
    Geometry geometry = smallGeometry();
    geometry.fields.qkHeadDim = width;
    StatePtr state = arena_.create(geometry, {});
    for (uint32_t at = 0; at < 2 * width; ++at) {
      auto keys = zeros(2 * width);
      keys[at] = kNaN;
      const Status status = state->writeKv(0, keys, zeros(14));
      EXPECT_EQ(std::string(status.message()), "keys: layer 0, head " + std::to_string(at / width) + ", element " +
                                                   std::to_string(at % width) + ", position 0 is not finite");
    }
  }
}

TEST_F(Errors, QuantisedQueriesNeedInt8AndHeadsThatSumInThirtyTwoBits) {
  DecodeState* state = nullptr;
  Status status = DecodeState::create(config_, {2, Precision::kF32, true}, arena_.memory, arena_.workspace, &state);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(state, nullptr);
  Geometry wide = smallGeometry();
  wide.fields.qkHeadDim = 132105;
  wide.fields.qkvConvTaps = 0;
  status = DecodeState::create(wide.config(), {2, Precision::kInt8, true}, arena_.memory, arena_.workspace, &state);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(state, nullptr);
  EXPECT_EQ(arena_.memory.liveBytes(), 0U);
}

TEST_F(Errors, ABadGeometryCreatesNothing) {
  Geometry bad = smallGeometry();
  bad.fields.numHeads = 5;
  DecodeState* state = nullptr;
  const Status status = DecodeState::create(bad.config(), {}, arena_.memory, arena_.workspace, &state);
  EXPECT_EQ(status.code(), ErrorCode::kConfig);
  EXPECT_STREQ(status.message(), "numHeads 5: must be a multiple of numKvHeads, 2");
  EXPECT_EQ(state, nullptr);
  EXPECT_EQ(arena_.memory.liveBytes(), 0U);
}

TEST_F(Errors, AMessageLongerThanItsRoomIsCut) {
  Status status(ErrorCode::kRange);
  for (int i = 0; i < 100; ++i) status << "0123456789" << UINT64_MAX;
  EXPECT_EQ(std::string(status.message()).size(), 239U);
  EXPECT_EQ(std::string(status.message()).substr(0, 30), "012345678918446744073709551615");
}

}  // namespace
}  // namespace needle3::testing
