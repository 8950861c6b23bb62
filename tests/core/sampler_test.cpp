// Sampling: greedy, by temperature, among the k most likely, within a nucleus; the same on every engine.

#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "support/random.h"

namespace needle3::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Sampling : public ::testing::Test {
 protected:
  uint32_t sample(const std::vector<float>& logits, const SamplerOptions& options, uint64_t draw = 0) {
    uint32_t token = UINT32_MAX;
    const Status status = sampleToken(logits, options, draw, memory_, &token);
    EXPECT_TRUE(status.ok()) << status.message();
    return token;
  }
  // How often each token comes in so many draws.
  std::map<uint32_t, int> counts(const std::vector<float>& logits, const SamplerOptions& options, int draws) {
    std::map<uint32_t, int> counts;
    for (int draw = 0; draw < draws; ++draw) ++counts[sample(logits, options, static_cast<uint64_t>(draw))];
    return counts;
  }
  Memory memory_;
};

TEST_F(Sampling, WithoutTemperatureItIsTheLargestLogitAndTheLowestIdAmongEquals) {
  EXPECT_EQ(sample({0.5F}, {}), 0U);
  EXPECT_EQ(sample({-1, 3, 2, 3}, {}), 1U);
  EXPECT_EQ(sample({-kInfinity, -5, -kInfinity}, {}), 1U);
  EXPECT_EQ(sample({1, kInfinity, 2}, {}), 1U);
  for (uint64_t draw = 0; draw < 20; ++draw) EXPECT_EQ(sample({-1, 3, 2, 3}, {.seed = 7}, draw), 1U);
}

TEST_F(Sampling, DrawsFollowTheSoftmaxOfTheLogitsOverTheTemperature) {
  const std::vector<float> logits = {0, 1, -1, 2, 0.5F};
  for (float temperature : {0.5F, 1.0F, 3.0F}) {
    double total = 0;
    for (float logit : logits) total += std::exp(double{logit} / temperature);
    constexpr int kDraws = 20000;
    const std::map<uint32_t, int> seen = counts(logits, {.temperature = temperature, .seed = 42}, kDraws);
    for (uint32_t token = 0; token < logits.size(); ++token) {
      const double p = std::exp(double{logits[token]} / temperature) / total;
      const double deviation = std::sqrt(kDraws * p * (1 - p));
      const int count = seen.count(token) == 0 ? 0 : seen.at(token);
      EXPECT_NEAR(count, kDraws * p, 4 * deviation + 1) << "token " << token << ", temperature " << temperature;
    }
  }
}

TEST_F(Sampling, TopKLeavesTheKMostLikelyAndTheLowestIdsAmongEquals) {
  const std::vector<float> logits = {1, 2, 2, 0, 2, -3};
  for (uint32_t k = 1; k <= 8; ++k) {
    const std::map<uint32_t, int> seen = counts(logits, {.temperature = 2, .topK = k}, 3000);
    const uint32_t order[] = {1, 2, 4, 0, 3, 5};
    EXPECT_EQ(seen.size(), std::min<size_t>(k, logits.size()));
    for (uint32_t i = 0; i < std::min<uint32_t>(k, 6); ++i) EXPECT_EQ(seen.count(order[i]), 1U) << "k " << k;
  }
}

TEST_F(Sampling, TopPLeavesTheFewestWhoseProbabilitiesReachIt) {
  // Probabilities 1/2, 1/4, 1/8, 1/8.
  const float step = std::log(2.0F);
  const std::vector<float> logits = {0, -2 * step, -step, -2 * step};
  const auto size = [&](float topP) { return counts(logits, {.temperature = 1, .topP = topP}, 2000).size(); };
  EXPECT_EQ(size(0.0F), 1U);
  EXPECT_EQ(size(0.4F), 1U);
  EXPECT_EQ(size(0.6F), 2U);
  EXPECT_EQ(size(0.8F), 3U);
  EXPECT_EQ(size(0.95F), 4U);
  EXPECT_EQ(size(1.0F), 4U);
  // Of the k most likely, by their own probabilities: 2/3 and 1/3.
  EXPECT_EQ(counts(logits, {.temperature = 1, .topK = 2, .topP = 0.65F}, 2000).size(), 1U);
}

TEST_F(Sampling, ADrawDependsOnItsArgumentsAlone) {
  const std::vector<float> logits = Random(4).floats(200, 3);
  const SamplerOptions options = {.temperature = 1.5F, .topK = 90, .topP = 0.9F, .seed = 11};
  std::vector<uint32_t> first;
  for (uint64_t draw = 0; draw < 50; ++draw) first.push_back(sample(logits, options, draw));
  for (uint64_t draw = 50; draw-- > 0;) EXPECT_EQ(sample(logits, options, draw), first[draw]);
  SamplerOptions other = options;
  other.seed = 12;
  std::vector<uint32_t> second;
  for (uint64_t draw = 0; draw < 50; ++draw) second.push_back(sample(logits, other, draw));
  EXPECT_NE(first, second);
}

TEST_F(Sampling, TheSameTokensComeOnEveryEngine) {
  const std::vector<float> logits = Random(4).floats(500, 3);
  std::vector<uint32_t> tokens;
  for (uint64_t draw = 0; draw < 12; ++draw) {
    tokens.push_back(sample(logits, {.temperature = 0.8F, .topK = 300, .topP = 0.95F, .seed = 2024}, draw));
  }
  EXPECT_EQ(tokens, (std::vector<uint32_t>{493, 385, 409, 268, 181, 275, 18, 128, 445, 452, 437, 375}));
}

TEST_F(Sampling, MaskedTokensNeverCome) {
  std::vector<float> logits(40, -kInfinity);
  logits[7] = -1000;
  logits[30] = -1001;
  for (const SamplerOptions& options :
       {SamplerOptions{.temperature = 1}, SamplerOptions{.temperature = 100, .topK = 30},
        SamplerOptions{.temperature = 100, .topP = 0.999F}}) {
    const std::map<uint32_t, int> seen = counts(logits, options, 300);
    EXPECT_EQ(seen.size(), 2U);
    EXPECT_EQ(seen.count(7), 1U);
    EXPECT_EQ(seen.count(30), 1U);
  }
}

TEST_F(Sampling, ExtremeLogitsAndTemperaturesStillGiveAToken) {
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(sample({-most, most}, {.temperature = 1}), 1U);
  EXPECT_EQ(sample({0, 1}, {.temperature = std::numeric_limits<float>::denorm_min()}), 1U);
  EXPECT_EQ(counts({-1, 1, 0}, {.temperature = most}, 300).size(), 3U);
  EXPECT_EQ(sample({0, kInfinity, 1}, {.temperature = 1}), 1U);
  EXPECT_EQ(counts({kInfinity, 5, kInfinity}, {.temperature = 1}, 100).size(), 2U);
}

TEST_F(Sampling, NaNAndAllMaskedAreNonFinite) {
  uint32_t token = 77;
  for (const SamplerOptions& options : {SamplerOptions{}, SamplerOptions{.temperature = 1}}) {
    const std::vector<float> nan = {0, 1, std::numeric_limits<float>::quiet_NaN(), 2};
    Status status = sampleToken(nan, options, 0, memory_, &token);
    EXPECT_EQ(status.code(), ErrorCode::kNonFinite);
    EXPECT_STREQ(status.message(), "logit 2 is NaN");
    const std::vector<float> masked(5, -kInfinity);
    status = sampleToken(masked, options, 0, memory_, &token);
    EXPECT_EQ(status.code(), ErrorCode::kNonFinite);
    EXPECT_STREQ(status.message(), "every logit is -Infinity: no token is left to sample");
  }
  EXPECT_EQ(token, 77U);
  EXPECT_EQ(memory_.liveBytes(), 0U);
}

}  // namespace
}  // namespace needle3::testing
