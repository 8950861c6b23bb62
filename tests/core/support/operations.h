#ifndef NEEDLE3_TESTS_OPERATIONS_H_
#define NEEDLE3_TESTS_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "support/geometry.h"

namespace needle3::testing {

// Decisions read from a sequence of bytes, so that a fuzzer or a random generator drives them alike.
class Choices {
 public:
  explicit Choices(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  // In [0, bound), bound ≤ 65536: one byte, or two where one is too few; 0 once the bytes have run out.
  uint32_t below(uint32_t bound);
  uint32_t between(uint32_t first, uint32_t last) { return first + below(last - first + 1); }
  bool oneIn(uint32_t n) { return below(n) == n - 1; }
  [[nodiscard]] bool exhausted() const { return at_ >= bytes_.size(); }

 private:
  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
};

// A small geometry of which every field is at an edge now and then.
Geometry chooseGeometry(Choices& choices);

struct OperationsReport {
  std::string failure;  // "" where the states agreed all along
  size_t operations = 0;
  size_t refused = 0;      // calls that had to fail, and did
  uint64_t liveBytes = 0;  // when all was destroyed
};

// Reads a geometry and then operations from `bytes`: all that a decode state offers, invalid calls and failing
// allocations included, on up to three states that are forked, marked, rolled back, saved, restored and destroyed.
// After each operation the states must be what the reference state is; attention is within the bound of the reference's
// double result, and a twin of another capacity hint, which takes whole batches one row at a time, gives the same bits.
OperationsReport runOperations(std::span<const uint8_t> bytes);

}  // namespace needle3::testing

#endif  // NEEDLE3_TESTS_OPERATIONS_H_
