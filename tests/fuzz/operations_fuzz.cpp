// Any sequence of operations on decode states, read from the fuzzer's bytes, against the plain reference.

#include <cstdio>
#include <cstdlib>

#include "support/operations.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const needle3::testing::OperationsReport report = needle3::testing::runOperations({data, size});
  if (report.failure.empty()) return 0;
  std::fprintf(stderr, "%s\n", report.failure.c_str());
  std::abort();
}
