// A geometry is checked whole, and what it costs is known before anything is made.

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "base/scratch.h"
#include "config/config_words.h"
#include "config/model_config.h"
#include "kernels/quantize.h"
#include "state/state_size.h"
#include "support/operations.h"
#include "support/random.h"
#include "support/state.h"

namespace needle3::testing {
namespace {

Status validated(const std::function<void(Geometry&)>& change) {
  Geometry geometry = smallGeometry();
  change(geometry);
  return validate(geometry.config());
}

TEST(Config, TheShippedAndTheSmallGeometryAreValid) {
  EXPECT_TRUE(validate(shippedGeometry().config()).ok());
  EXPECT_TRUE(validate(smallGeometry().config()).ok());
}

TEST(Config, PlainGeometriesAreValid) {
  EXPECT_TRUE(validated([](Geometry& g) {
                g.fields.slidingWindow = 0;
                g.fields.outVocab = 0;
                g.fields.qkvConvTaps = 0;
                g.fields.engram.convTaps = 0;
                g.fields.engram.seedHeads = 0;
                g.globalLayers = {};
                g.orders = {};
                g.sites = {};
              }).ok());
}

TEST(Config, ACountOfZeroIsRefusedByName) {
  const std::pair<const char*, uint32_t ModelConfig::*> counts[] = {
      {"vocabSize", &ModelConfig::vocabSize}, {"dModel", &ModelConfig::dModel},
      {"numHeads", &ModelConfig::numHeads},   {"numKvHeads", &ModelConfig::numKvHeads},
      {"numLayers", &ModelConfig::numLayers}, {"qkHeadDim", &ModelConfig::qkHeadDim},
      {"vHeadDim", &ModelConfig::vHeadDim},   {"maxSeqLen", &ModelConfig::maxSeqLen},
      {"hadaN", &ModelConfig::hadaN},         {"mhcLanes", &ModelConfig::mhcLanes},
  };
  for (const auto& [name, field] : counts) {
    const Status status = validated([field = field](Geometry& g) { g.fields.*field = 0; });
    EXPECT_EQ(status.code(), ErrorCode::kConfig);
    EXPECT_EQ(std::string(status.message()), std::string(name) + " 0: must be at least 1");
  }
  const std::pair<const char*, uint32_t EngramConfig::*> engramCounts[] = {
      {"engram.heads", &EngramConfig::heads},
      {"engram.slots", &EngramConfig::slots},
      {"engram.subDim", &EngramConfig::subDim},
      {"engram.convDilation", &EngramConfig::convDilation},
  };
  for (const auto& [name, field] : engramCounts) {
    const Status status = validated([field = field](Geometry& g) { g.fields.engram.*field = 0; });
    EXPECT_EQ(status.code(), ErrorCode::kConfig);
    EXPECT_EQ(std::string(status.message()), std::string(name) + " 0: must be at least 1");
  }
}

TEST(Config, ListsMustBeInRangeSortedAndWithoutRepeats) {
  const auto message = [](const std::function<void(Geometry&)>& change) {
    const Status status = validated(change);
    EXPECT_EQ(status.code(), ErrorCode::kConfig);
    return std::string(status.message());
  };
  EXPECT_EQ(message([](Geometry& g) { g.globalLayers = {1, 3}; }), "globalLayers 3: must be below numLayers, 3");
  EXPECT_EQ(message([](Geometry& g) { g.globalLayers = {1, 1}; }), "globalLayers 1: is listed twice");
  EXPECT_EQ(message([](Geometry& g) { g.globalLayers = {2, 0}; }), "globalLayers 0: must be sorted in ascending order");
  EXPECT_EQ(message([](Geometry& g) { g.sites = {7}; }), "engram.sites 7: must be below numLayers, 3");
  EXPECT_EQ(message([](Geometry& g) { g.sites = {0, 0}; }), "engram.sites 0: is listed twice");
  EXPECT_EQ(message([](Geometry& g) { g.sites = {2, 1}; }), "engram.sites 1: must be sorted in ascending order");
  EXPECT_EQ(message([](Geometry& g) { g.orders = {2, 0}; }), "engram.orders 0: an n-gram has at least 1 token");
}

TEST(Config, RulesBetweenFieldsNameBoth) {
  EXPECT_STREQ(validated([](Geometry& g) { g.fields.numHeads = 5; }).message(),
               "numHeads 5: must be a multiple of numKvHeads, 2");
  EXPECT_STREQ(validated([](Geometry& g) { g.fields.outVocab = 101; }).message(),
               "outVocab 101: must be at most vocabSize, 100");
  EXPECT_TRUE(validated([](Geometry& g) { g.fields.outVocab = 100; }).ok());
  EXPECT_EQ(validated([](Geometry& g) { g.fields.maxSeqLen = 0x80000000U; }).code(), ErrorCode::kConfig);
}

TEST(Config, RopeThetaMustBePositiveAndFinite) {
  for (double theta : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(validated([theta](Geometry& g) { g.fields.ropeTheta = theta; }).code(), ErrorCode::kConfig) << theta;
  }
  EXPECT_TRUE(validated([](Geometry& g) { g.fields.ropeTheta = 0.5; }).ok());
}

TEST(Config, WhatCannotFitThirtyTwoBitMemoryIsRefusedWhateverOverflows) {
  constexpr uint32_t kMost = UINT32_MAX;
  const std::function<void(Geometry&)> changes[] = {
      [](Geometry& g) { g.fields.qkHeadDim = kMost; },
      [](Geometry& g) { g.fields.vHeadDim = kMost; },
      [](Geometry& g) { g.fields.numHeads = kMost - kMost % 2; },
      [](Geometry& g) { g.fields.numHeads = g.fields.numKvHeads = kMost; },
      [](Geometry& g) { g.fields.dModel = 0x40000000U; },
      [](Geometry& g) { g.fields.qkvConvTaps = kMost; },
      [](Geometry& g) { g.fields.engram.convTaps = kMost; },
      [](Geometry& g) { g.fields.engram.convDilation = kMost; },
      [](Geometry& g) { g.fields.engram.convTaps = g.fields.engram.convDilation = 0x10001; },
      [](Geometry& g) { g.fields.engram.heads = kMost; },
      [](Geometry& g) { g.orders = {kMost}; },
      [](Geometry& g) { g.fields.numLayers = kMost; },
      [](Geometry& g) {
        g.fields.qkHeadDim = g.fields.vHeadDim = g.fields.numLayers = g.fields.qkvConvTaps = kMost;
        g.fields.numHeads = g.fields.numKvHeads = kMost;
      },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    EXPECT_EQ(validated(changes[i]).code(), ErrorCode::kConfig) << "change " << i;
  }
}

TEST(Config, FieldsThatTheStateDoesNotReadAreFree) {
  EXPECT_TRUE(validated([](Geometry& g) {
                g.fields.hadaN = 7;
                g.fields.mhcLanes = UINT32_MAX;
                g.fields.engram.subDim = 13;
                g.fields.engram.slots = UINT32_MAX;
                g.fields.engram.seedHeads = UINT32_MAX;
                g.fields.slidingWindow = UINT32_MAX;
                g.fields.vocabSize = UINT32_MAX;
              }).ok());
}

TEST(Config, GrownSlotsIsWhatRowsOneByOneGive) {
  for (uint32_t cap : {1U, 2U, 5U, 8U, 40U}) {
    for (uint32_t slots = 1; slots <= cap; ++slots) {
      for (uint64_t first = 0; first < 50; ++first) {
        for (uint64_t rows = 1; rows < 60; rows += 1 + rows / 8) {
          uint64_t expected = slots;
          for (uint64_t p = first; p < first + rows; ++p) {
            if (p >= expected && expected < cap) expected = std::min<uint64_t>(std::max(2 * expected, p + 1), cap);
          }
          ASSERT_EQ(grownSlots(slots, cap, first, rows), expected)
              << slots << " slots, cap " << cap << ", " << rows << " rows from " << first;
        }
      }
    }
  }
}

TEST(Config, DecodeStateBytesIsWhatByteLengthThenIs) {
  Random random(99);
  Arena arena;
  for (int attempt = 0; attempt < 200; ++attempt) {
    std::vector<uint8_t> bytes(40);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next() >> 24);
    Choices choices(bytes);
    const Geometry geometry = chooseGeometry(choices);
    const ModelConfig config = geometry.config();
    DecodeStateOptions options;
    options.capacityHint = random.below(60);
    options.precision = random.below(2) == 0 ? Precision::kF32 : Precision::kInt8;
    StatePtr state = arena.create(geometry, options);
    ASSERT_TRUE(state);
    const std::vector<float> keys(config.kDim(), 1.0F);
    const std::vector<float> values(config.vDim(), 1.0F);
    for (uint32_t positions = 0; positions < 60; ++positions) {
      uint64_t predicted = 0;
      ASSERT_TRUE(decodeStateBytes(config, options.capacityHint, options.precision, positions, &predicted).ok());
      ASSERT_EQ(state->byteLength(), predicted) << "attempt " << attempt << ", " << positions << " positions";
      ASSERT_TRUE(state->pushToken(0).ok());
      for (uint32_t layer = 0; layer < config.numLayers; ++layer) ASSERT_TRUE(state->writeKv(layer, keys, values).ok());
      ASSERT_TRUE(state->advance(1).ok());
    }
  }
}

TEST(Config, DecodeStateBytesOfABadGeometryIsItsError) {
  Geometry geometry = smallGeometry();
  geometry.fields.dModel = 0;
  uint64_t bytes = 0;
  EXPECT_EQ(decodeStateBytes(geometry.config(), 1, Precision::kF32, 1, &bytes).code(), ErrorCode::kConfig);
}

TEST(Config, AGeometrySurvivesItsEncoding) {
  for (const Geometry& geometry : {shippedGeometry(), smallGeometry()}) {
    const ModelConfig config = geometry.config();
    std::vector<uint32_t> words(configWords(config));
    encodeConfig(config, words.data());
    ModelConfig decoded;
    ASSERT_TRUE(decodeConfig(words, &decoded).ok());
    std::vector<uint32_t> again(configWords(decoded));
    encodeConfig(decoded, again.data());
    EXPECT_EQ(again, words);
    EXPECT_EQ(decoded.ropeTheta, config.ropeTheta);
    EXPECT_EQ(decoded.engram.convDilation, config.engram.convDilation);
    EXPECT_TRUE(std::equal(decoded.globalLayers.begin(), decoded.globalLayers.end(), config.globalLayers.begin(),
                           config.globalLayers.end()));
    EXPECT_TRUE(std::equal(decoded.engram.orders.begin(), decoded.engram.orders.end(), config.engram.orders.begin(),
                           config.engram.orders.end()));
    EXPECT_TRUE(std::equal(decoded.engram.sites.begin(), decoded.engram.sites.end(), config.engram.sites.begin(),
                           config.engram.sites.end()));
  }
}

TEST(Config, AnEncodingOfAnotherLengthThanItDeclaresIsRefused) {
  const Geometry geometry = smallGeometry();
  std::vector<uint32_t> words(configWords(geometry.config()));
  encodeConfig(geometry.config(), words.data());
  ModelConfig decoded;
  for (size_t length = 0; length < words.size(); ++length) {
    EXPECT_EQ(decodeConfig(std::span(words).first(length), &decoded).code(), ErrorCode::kConfig);
  }
  words.push_back(0);
  EXPECT_EQ(decodeConfig(words, &decoded).code(), ErrorCode::kConfig);
  words.pop_back();
  words[21] = words[22] = words[23] = UINT32_MAX;
  EXPECT_EQ(decodeConfig(words, &decoded).code(), ErrorCode::kConfig);
}

}  // namespace
}  // namespace needle3::testing
