// The vectors of tests/vectors, through the core's public API.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/scratch.h"
#include "kernels/quantize.h"
#include "state/engram_hash.h"
#include "support/json.h"
#include "support/state.h"

namespace needle3::testing {
namespace {

using nlohmann::json;

// Aborts the test where a file is missing.
class Vectors : public ::testing::Test {
 protected:
  const json& read(const std::string& name) {
    file_ = readJson(std::string(VECTORS_DIR) + "/" + name);
    if (file_.is_discarded()) {
      ADD_FAILURE() << name << " is missing or no JSON";
      file_ = {{"cases", json::array()}, {"rows", json::array()}};
    }
    return file_;
  }
  Arena arena_;

 private:
  json file_;
};

// Equal as numbers: the sign of zero is free.
void expectEqual(std::span<const float> actual, std::span<const float> expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_EQ(actual[i], expected[i]) << what << ", element " << i;
}

// Within `tolerance` of the largest magnitude of the whole row.
void expectClose(std::span<const float> actual, std::span<const float> expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  for (float x : expected) largest = std::max(largest, std::fabs(double{x}));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::fabs(double{actual[i]} - expected[i]), tolerance * largest)
        << what << ", element " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

TEST_F(Vectors, QkvConvolutionIsExact) {
  for (const json& test : read("conv.json").at("cases")) {
    Geometry geometry = smallGeometry();
    geometry.fields.numKvHeads = geometry.fields.numHeads = 1;
    geometry.fields.qkHeadDim = geometry.fields.vHeadDim = test.at("dim").get<uint32_t>();
    geometry.fields.qkvConvTaps = test.at("taps").get<uint32_t>();
    const size_t dim = geometry.fields.qkHeadDim;
    const auto steps = test.at("steps").get<uint32_t>();
    const std::vector<float> taps = floats(test.at("weights"));
    const std::vector<float> raw = floats(test.at("raw"));
    const std::vector<float> expected = floats(test.at("expected"));
    ASSERT_EQ(raw.size(), steps * dim);
    for (Projection projection : {Projection::kQ, Projection::kK, Projection::kV}) {
      // One row a step, and all rows in one.
      for (uint32_t batch : {1U, steps}) {
        StatePtr state = arena_.create(geometry, {});
        ASSERT_TRUE(state);
        std::vector<float> rows = raw;
        for (uint32_t p = 0; p < steps; p += batch) {
          ASSERT_TRUE(state->conv(2, projection, taps, std::span(rows).subspan(p * dim, batch * dim)).ok());
          ASSERT_TRUE(state->advance(batch).ok());
        }
        expectEqual(rows, expected, std::to_string(geometry.fields.qkvConvTaps) + " taps");
      }
    }
  }
}

TEST_F(Vectors, EngramConvolutionIsExact) {
  for (const json& test : read("engram_conv.json").at("cases")) {
    Geometry geometry = smallGeometry();
    geometry.fields.dModel = test.at("dim").get<uint32_t>();
    geometry.orders = integers(test.at("orders"));
    geometry.fields.engram.convTaps = test.at("taps").get<uint32_t>();
    geometry.fields.engram.convDilation = test.at("dilation").get<uint32_t>();
    const size_t dim = geometry.fields.dModel;
    const auto steps = test.at("steps").get<uint32_t>();
    const std::vector<float> taps = floats(test.at("weights"));
    const std::vector<float> expected = floats(test.at("expected"));
    for (uint32_t batch : {1U, steps}) {
      StatePtr state = arena_.create(geometry, {});
      ASSERT_TRUE(state);
      std::vector<float> rows = floats(test.at("raw"));
      ASSERT_EQ(rows.size(), steps * dim);
      for (uint32_t p = 0; p < steps; p += batch) {
        ASSERT_TRUE(state->engramConv(1, taps, std::span(rows).subspan(p * dim, batch * dim)).ok());
        ASSERT_TRUE(state->advance(batch).ok());
      }
      expectEqual(rows, expected, "batches of " + std::to_string(batch));
    }
  }
}

TEST_F(Vectors, EngramIndicesAreExact) {
  for (const json& test : read("engram_indices.json").at("cases")) {
    const std::vector<uint32_t> tokens = integers(test.at("tokens"));
    const std::vector<uint32_t> orders = integers(test.at("orders"));
    EngramConfig engram;
    engram.orders = orders;
    engram.heads = test.at("heads").get<uint32_t>();
    engram.slots = test.at("slots").get<uint32_t>();
    engram.seedHeads = test.at("seed_heads").get<uint32_t>();
    ASSERT_EQ(test.at("indices").size(), tokens.size());
    for (size_t p = 0; p < tokens.size(); ++p) {
      std::vector<uint32_t> indices(engram.tables());
      engramIndices(engram, std::span(tokens).first(p + 1), indices.data());
      EXPECT_EQ(indices, integers(test.at("indices")[p])) << "position " << p;
    }
  }
}

TEST_F(Vectors, AStateGivesTheEngramIndicesOfItsNewestToken) {
  for (const json& test : read("engram_indices.json").at("cases")) {
    Geometry geometry = smallGeometry();
    geometry.fields.vocabSize = UINT32_MAX;  // the largest id there is, 4294967295, is out of any vocabulary
    geometry.orders = integers(test.at("orders"));
    geometry.fields.engram.heads = test.at("heads").get<uint32_t>();
    geometry.fields.engram.slots = test.at("slots").get<uint32_t>();
    geometry.fields.engram.seedHeads = test.at("seed_heads").get<uint32_t>();
    StatePtr state = arena_.create(geometry, {});
    ASSERT_TRUE(state);
    const std::vector<uint32_t> tokens = integers(test.at("tokens"));
    for (size_t p = 0; p < tokens.size() && tokens[p] != UINT32_MAX; ++p) {
      ASSERT_TRUE(state->pushToken(tokens[p]).ok());
      std::vector<uint32_t> indices(geometry.config().engram.tables());
      std::vector<uint8_t> valid(indices.size());
      ASSERT_TRUE(state->engramIndices(indices.data(), valid.data()).ok());
      EXPECT_EQ(indices, integers(test.at("indices")[p])) << "position " << p;
      for (size_t t = 0; t < valid.size(); ++t) {
        EXPECT_EQ(valid[t] != 0, p + 1 >= geometry.orders[t / geometry.fields.engram.heads]);
      }
      ASSERT_TRUE(state->advance(1).ok());
    }
  }
}

TEST_F(Vectors, QuantisationIsExact) {
  for (const json& test : read("quantize.json").at("cases")) {
    const std::string name = test.at("name").get<std::string>();
    const std::vector<float> input = floats(test.at("input"));
    std::vector<float> dequantized = input;
    fakeQuantize(dequantized.data(), dequantized.size(), test.at("bits").get<uint32_t>());
    expectEqual(dequantized, floats(test.at("dequantized")), name);
    if (!test.contains("quantized")) continue;
    std::vector<int8_t> values(input.size());
    const float scale = quantizeRow(input.data(), input.size(), values.data());
    EXPECT_EQ(scale, static_cast<float>(test.at("scale").get<double>())) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(int{values[i]}, test.at("quantized")[i].get<int>()) << name << ", element " << i;
    }
  }
}

DecodeStateOptions optionsOf(const json& test) {
  DecodeStateOptions options;
  options.capacityHint = test.at("hint").get<uint32_t>();
  options.precision = test.at("precision") == "int8" ? Precision::kInt8 : Precision::kF32;
  options.quantizeQuery = test.value("quantize_query", false);
  return options;
}

TEST_F(Vectors, SlotsSpansBytesAndTokensFollowTheRing) {
  const json& file = read("ring.json");
  const Geometry geometry = geometryOf(file.at("config"));
  const ModelConfig config = geometry.config();
  for (const json& test : file.at("cases")) {
    StatePtr state = arena_.create(geometry, optionsOf(test));
    ASSERT_TRUE(state);
    const std::vector<uint32_t> layers = integers(test.at("layers"));
    auto entry = test.at("trace").begin();
    for (uint32_t p = 0; p < 80; ++p) {
      ASSERT_TRUE(state->pushToken(p).ok());
      for (uint32_t layer : layers) {
        const std::vector<float> row(std::max(config.kDim(), config.vDim()), 1.0F);
        ASSERT_TRUE(
            state->writeKv(layer, std::span(row).first(config.kDim()), std::span(row).first(config.vDim())).ok());
      }
      ASSERT_TRUE(state->advance(1).ok());
      if (entry == test.at("trace").end() || entry->at("position") != p + 1) continue;
      SCOPED_TRACE("hint " + test.at("hint").dump() + ", position " + std::to_string(p + 1));
      for (size_t i = 0; i < layers.size(); ++i) {
        EXPECT_EQ(state->slots(layers[i]), entry->at("slots")[i].get<uint32_t>());
        EXPECT_EQ(state->spanFirst(layers[i], p), entry->at("span")[i][0].get<uint64_t>());
        EXPECT_EQ(p, entry->at("span")[i][1].get<uint32_t>());
      }
      EXPECT_EQ(state->isSaturated(), entry->at("saturated").get<bool>());
      EXPECT_EQ(state->byteLength(), entry->at("bytes").get<uint64_t>());
      EXPECT_EQ(tokensOf(*state), integers(entry->at("tokens")));
      ++entry;
    }
    EXPECT_TRUE(entry == test.at("trace").end());
  }
}

TEST_F(Vectors, TheShippedGeometryCostsTheseBytes) {
  const json& file = read("shipped_bytes.json");
  const Geometry geometry = geometryOf(file.at("config"));
  const ModelConfig config = geometry.config();
  for (const json& row : file.at("rows")) {
    SCOPED_TRACE(row.at("precision").dump() + ", hint " + row.at("hint").dump() + ", written at " +
                 row.at("written_position").dump());
    StatePtr state = arena_.create(geometry, optionsOf(row));
    ASSERT_TRUE(state);
    const auto position = row.at("written_position").get<uint32_t>();
    ASSERT_TRUE(state->setPosition(position).ok());
    const std::vector<float> keys(config.kDim(), 0.5F);
    const std::vector<float> values(config.vDim(), 0.5F);
    for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
      ASSERT_TRUE(state->writeKv(layer, keys, values).ok());
      EXPECT_EQ(state->slots(layer), row.at("slots")[layer].get<uint32_t>()) << "layer " << layer;
    }
    ASSERT_TRUE(state->advance(1).ok());
    EXPECT_EQ(state->byteLength(), row.at("bytes").get<uint64_t>());
  }
}

// Whole decode loops. `batch` positions a step; the attention of one position a step goes through attend.
void runDecode(const json& test, uint32_t batch, Arena& arena) {
  const Geometry geometry = geometryOf(test.at("config"));
  const ModelConfig config = geometry.config();
  const DecodeStateOptions options = optionsOf(test);
  const double tolerance = options.precision == Precision::kInt8 ? 1e-5 : 2e-6;
  StatePtr state = arena.create(geometry, options);
  ASSERT_TRUE(state);
  const json& steps = test.at("steps");
  const auto total = static_cast<uint32_t>(steps.size());
  // One field of a layer or site over the batch's positions.
  const auto gather = [&](uint32_t p, uint32_t n, const char* part, size_t index, const char* field) {
    std::vector<float> rows;
    for (uint32_t i = 0; i < n; ++i) {
      const std::vector<float> row = floats(steps[p + i].at(part)[index].at(field));
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  };
  for (uint32_t p = 0; p < total; p += batch) {
    const uint32_t n = std::min(batch, total - p);
    SCOPED_TRACE("position " + std::to_string(p) + ", " + std::to_string(n) + " rows");
    for (uint32_t i = 0; i < n; ++i) ASSERT_TRUE(state->pushToken(steps[p + i].at("token").get<uint32_t>()).ok());
    for (uint32_t site = 0; site < geometry.sites.size(); ++site) {
      std::vector<float> rows = gather(p, n, "sites", site, "raw");
      ASSERT_TRUE(state->engramConv(site, floats(test.at("engram_taps")[site]), rows).ok());
      expectEqual(rows, gather(p, n, "sites", site, "conv"), "Engram site " + std::to_string(site));
    }
    for (uint32_t layer = 0; layer < config.numLayers; ++layer) {
      const std::string what = "layer " + std::to_string(layer);
      const json& taps = test.at("qkv_taps")[layer];
      std::vector<float> query = gather(p, n, "layers", layer, "q");
      std::vector<float> keys = gather(p, n, "layers", layer, "k");
      std::vector<float> values = gather(p, n, "layers", layer, "v");
      ASSERT_TRUE(state->conv(layer, Projection::kQ, floats(taps.at("q")), query).ok());
      ASSERT_TRUE(state->conv(layer, Projection::kK, floats(taps.at("k")), keys).ok());
      ASSERT_TRUE(state->conv(layer, Projection::kV, floats(taps.at("v")), values).ok());
      expectEqual(query, gather(p, n, "layers", layer, "conv_q"), what + ", queries");
      expectEqual(keys, gather(p, n, "layers", layer, "conv_k"), what + ", keys");
      expectEqual(values, gather(p, n, "layers", layer, "conv_v"), what + ", values");
      std::vector<float> out(n * config.attnOutDim());
      if (batch == 1) {
        ASSERT_TRUE(state->writeKv(layer, keys, values).ok());
        ASSERT_TRUE(state->attend(layer, query, out).ok());
      } else {
        ASSERT_TRUE(state->appendAndAttend(layer, query, keys, values, out).ok());
      }
      for (uint32_t i = 0; i < n; ++i) {
        const json& expected = steps[p + i].at("layers")[layer];
        expectClose(std::span(out).subspan(i * config.attnOutDim(), config.attnOutDim()), floats(expected.at("attend")),
                    tolerance, what + ", row " + std::to_string(i));
        EXPECT_EQ(state->spanFirst(layer, p + i), expected.at("span")[0].get<uint64_t>());
        EXPECT_EQ(p + i, expected.at("span")[1].get<uint32_t>());
      }
      EXPECT_EQ(state->slots(layer), steps[p + n - 1].at("layers")[layer].at("slots").get<uint32_t>()) << what;
    }
    ASSERT_TRUE(state->advance(n).ok());
    const json& after = steps[p + n - 1].at("after");
    EXPECT_EQ(state->position(), after.at("position").get<uint32_t>());
    EXPECT_EQ(state->byteLength(), after.at("bytes").get<uint64_t>());
    EXPECT_EQ(state->isSaturated(), after.at("saturated").get<bool>());
    EXPECT_EQ(tokensOf(*state), integers(after.at("tokens")));
  }
}

TEST_F(Vectors, DecodeLoopsMatchOneTokenAtATime) {
  for (const json& test : read("decode.json").at("cases")) {
    SCOPED_TRACE(test.at("name").get<std::string>());
    runDecode(test, 1, arena_);
  }
}

TEST_F(Vectors, DecodeLoopsMatchInBatchesOfAnySize) {
  const json& file = read("decode.json");
  for (uint32_t batch : {2U, 3U, 5U, 7U, 28U}) {
    for (const json& test : file.at("cases")) {
      SCOPED_TRACE(test.at("name").get<std::string>() + ", batches of " + std::to_string(batch));
      runDecode(test, batch, arena_);
    }
  }
}

}  // namespace
}  // namespace needle3::testing
