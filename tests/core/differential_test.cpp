// Random operations on decode states against a plain reference.

#include <gtest/gtest.h>

#include <vector>

#include "support/operations.h"
#include "support/random.h"

namespace needle3::testing {
namespace {

TEST(Differential, RandomOperationsGiveWhatAPlainReferenceGives) {
  size_t operations = 0;
  size_t refused = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    Random random(seed * 2654435761U);
    std::vector<uint8_t> bytes(random.between(100, 1500));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next() >> 24);
    const OperationsReport report = runOperations(bytes);
    ASSERT_EQ(report.failure, "") << "seed " << seed;
    operations += report.operations;
    refused += report.refused;
  }
  // Neither may starve the other: enough calls that must fail, and enough that must not.
  EXPECT_GT(refused, operations / 20);
  EXPECT_LT(refused, operations / 2);
}

}  // namespace
}  // namespace needle3::testing
