#include "work.h"

#include <charconv>
#include <vector>

#include "inputs.h"

namespace needle3::bench {

std::vector<float> averagingTaps(uint32_t count, uint32_t dim, Random& random) {
  std::vector<float> taps(static_cast<size_t>(count) * dim);
  for (uint32_t c = 0; c < dim; ++c) {
    const float newest = 0.5F + 0.1F * random.next();
    for (uint32_t j = 0; j < count; ++j) {
      taps[j * dim + c] = j == 0 ? newest : (1 - newest) / static_cast<float>(count - 1);
    }
  }
  return taps;
}

uint32_t parseCount(std::string_view word) {
  uint32_t count = 0;
  std::from_chars(word.data(), word.data() + word.size(), count);
  return count;
}

std::unique_ptr<Work> createWork(std::string_view spec) {
  std::vector<std::string_view> words;
  while (!spec.empty()) {
    const size_t end = spec.find(' ');
    words.push_back(spec.substr(0, end));
    spec = end == std::string_view::npos ? std::string_view() : spec.substr(end + 1);
  }
  if (words.size() < 2) return nullptr;
  if (words[1] == "scalar") return createScalarWork(words);
  return words[0] == "attend" ? createKernelWork(words) : createStateWork(words);
}

}  // namespace needle3::bench
