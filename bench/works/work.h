#ifndef NEEDLE3_BENCH_WORK_H_
#define NEEDLE3_BENCH_WORK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace needle3::bench {

// One piece of work with everything it needs prepared, so that `run` holds what is timed and nothing else.
//
// The same spec prepares the same inputs in every contestant and in every build. After one `run(1)` on new work
// `output` is what the contestants are compared by; later runs may go on from where the last one ended.
class Work {
 public:
  Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  virtual ~Work() = default;

  virtual void run(uint32_t iterations) = 0;
  [[nodiscard]] virtual std::span<const float> output() const = 0;
};

// Work by its spec, or null where there is none of that name. The shipped geometry; attend and rows take one layer of
// it:
//
//   attend <who> <format> <reach> <positions>   a query over so many positions
//   rows <how> <format> <reach> <n>             n rows of queries, keys and values, appended and attended
//   conv <who> <q|k|v>                          one row in each of 20 layers, and their commit
//   engramConv <who>                            one row at each of 5 sites, and their commit
//   writeKv <who> <format>                      one position's keys and values in each of 20 layers, and their commit
//   step <format> <positions>                   a whole step of 20 layers, in a context of so many positions that is
//   full
//
// who: `core` (this project's), `scalar`. format: `f32`, `int8` (the query quantised too), `int8-f32-query`.
// how: `batch` (one call), `single` (n calls). reach: `global` (slots hold positions in order; rows start at 0),
// `local` (a full ring of 1024 slots that has wrapped).
std::unique_ptr<Work> createWork(std::string_view spec);

// The parts that createWork hands on to, each null for what is not its own.
std::unique_ptr<Work> createKernelWork(std::span<const std::string_view> words);
std::unique_ptr<Work> createStateWork(std::span<const std::string_view> words);
std::unique_ptr<Work> createScalarWork(std::span<const std::string_view> words);

}  // namespace needle3::bench

#endif  // NEEDLE3_BENCH_WORK_H_
