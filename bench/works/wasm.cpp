// Benchmark works as a WebAssembly module without glue: bench/lib/wasm.mjs drives it.
#include <cstdint>
#include <memory>
#include <string_view>

#include "work.h"

namespace {

char specText[256];

}  // namespace

extern "C" {

// Where the spec's text goes before `create`.
__attribute__((export_name("spec"))) char* spec() { return specText; }

// The work's handle, or null.
__attribute__((export_name("create"))) needle3::bench::Work* create(uint32_t length) {
  return needle3::bench::createWork(std::string_view(specText, length)).release();
}

__attribute__((export_name("run"))) void run(needle3::bench::Work* work, uint32_t iterations) { work->run(iterations); }

__attribute__((export_name("output"))) const float* output(const needle3::bench::Work* work) {
  return work->output().data();
}

__attribute__((export_name("outputLength"))) uint32_t outputLength(const needle3::bench::Work* work) {
  return static_cast<uint32_t>(work->output().size());
}

__attribute__((export_name("destroy"))) void destroy(needle3::bench::Work* work) {
  const std::unique_ptr<needle3::bench::Work> owned(work);
}

}  // extern "C"
