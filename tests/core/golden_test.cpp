// One long decode at the shipped geometry whose output has the same hash in every build and on every engine.

#include "support/golden.h"

#include <gtest/gtest.h>

#include <iomanip>
#include <sstream>
#include <string>

#include "base/scratch.h"
#include "kernels/quantize.h"
#include "support/json.h"

namespace needle3::testing {
namespace {

// Where the numerics change on purpose, the failure prints the new hash for tests/golden.json.
void expectGolden(const char* name, Precision precision, bool quantizeQuery) {
  const nlohmann::json golden = readJson(std::string(VECTORS_DIR) + "/../golden.json");
  ASSERT_FALSE(golden.is_discarded()) << "tests/golden.json is missing or no JSON";
  Arena arena;
  std::ostringstream hash;
  hash << std::hex << std::setfill('0') << std::setw(16) << goldenHash(arena, precision, quantizeQuery);
  EXPECT_EQ(hash.str(), golden.at(name).get<std::string>());
}

TEST(Golden, TheLongDecodeInF32HasTheSameHashEverywhere) { expectGolden("f32", Precision::kF32, false); }

TEST(Golden, TheLongDecodeInInt8HasTheSameHashEverywhere) { expectGolden("int8", Precision::kInt8, false); }

TEST(Golden, TheLongDecodeInInt8WithQuantisedQueriesHasTheSameHashEverywhere) {
  expectGolden("int8QuantizedQuery", Precision::kInt8, true);
}

}  // namespace
}  // namespace needle3::testing
