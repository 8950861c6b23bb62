#ifndef NEEDLE3_TESTS_INPUTS_H_
#define NEEDLE3_TESTS_INPUTS_H_

#include <cstdint>
#include <vector>

#include "support/random.h"

namespace needle3::testing {

// Rows (rows, dim) that depend on their positions, the stream and the salt alone, so that what a state was given can be
// had again without having been kept.
inline std::vector<float> positionInputs(uint32_t stream, uint32_t position, uint32_t rows, uint64_t dim,
                                         uint32_t salt) {
  std::vector<float> all;
  all.reserve(static_cast<size_t>(rows * dim));
  for (uint32_t row = 0; row < rows; ++row) {
    Random random((stream + 1) * 0x85EBCA6BU ^ (position + row + 1) * 0xC2B2AE35U ^ salt * 0x9E3779B9U);
    for (uint64_t c = 0; c < dim; ++c) all.push_back(random.unit());
  }
  return all;
}

}  // namespace needle3::testing

#endif  // NEEDLE3_TESTS_INPUTS_H_
