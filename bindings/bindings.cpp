// Embind registration and marshalling: no decision is taken here. web/src/core/module.ts documents each name from the
// side that calls it. Numbers cross as they are, arrays as addresses in linear memory; a Status stays here until asked
// for.

#include <emscripten/bind.h>

#include <cstring>
#include <new>

#include "base/memory.h"
#include "base/scratch.h"
#include "base/status.h"
#include "config/config_words.h"
#include "kernels/attend.h"
#include "kernels/quantize.h"
#include "sampling/sampler.h"
#include "state/decode_state.h"
#include "state/engram_hash.h"
#include "state/snapshot.h"
#include "state/state_size.h"

namespace needle3 {
namespace {

using emscripten::val;
using Address = uintptr_t;

// One thread, one instance: what all states share, and the last failure.
struct Instance {
  Memory memory;
  Scratch workspace;
  Scratch staging;
  Status last;
};

// Built on first use, in static storage, and never destroyed: nothing runs after the last call.
Instance& instance() {
  alignas(Instance) static std::byte storage[sizeof(Instance)];
  static auto* const built = new (storage) Instance();
  return *built;
}

int code(const Status& status) {
  if (status.ok()) return 0;
  instance().last = status;
  return static_cast<int>(status.code());
}

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}
std::span<const float> floats(Address address, size_t length) { return {at<const float>(address), length}; }
std::span<float> mutableFloats(Address address, size_t length) { return {at<float>(address), length}; }

// Gives the copy of a snapshot's bytes, piece by piece, to a JavaScript function.
struct FunctionSink final : SnapshotSink {
  explicit FunctionSink(const val& function) : function(function) {}
  void write(const void* bytes, size_t length) override { function(reinterpret_cast<Address>(bytes), length); }
  const val& function;
};

struct FunctionSource final : SnapshotSource {
  explicit FunctionSource(const val& function) : function(function) {}
  void read(uint64_t offset, void* bytes, size_t length) override {
    function(static_cast<double>(offset), reinterpret_cast<Address>(bytes), length);
  }
  const val& function;
};

// A DecodeState as Embind owns it: by value in a handle that `delete()` destroys.
class State {
 public:
  explicit State(DecodeState* state) : state_(state) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { DecodeState::destroy(state_); }

  uint32_t position() const { return state_->position(); }
  double byteLength() const { return static_cast<double>(state_->byteLength()); }
  double markBytes() const { return static_cast<double>(state_->markBytes()); }
  bool isSaturated() const { return state_->isSaturated(); }
  bool isInt8() const { return state_->precision() == Precision::kInt8; }
  bool quantizeQuery() const { return state_->quantizeQuery(); }
  Address configAddress() const { return reinterpret_cast<Address>(state_->configWords().data()); }
  size_t configLength() const { return state_->configWords().size(); }
  uint32_t tokenCount() const { return state_->tokenCount(); }
  void copyTokens(Address destination) const { state_->copyTokens(at<uint32_t>(destination)); }
  uint32_t slots(uint32_t layer) const { return state_->slots(layer); }
  double spanFirst(uint32_t layer, double position) const {
    return static_cast<double>(state_->spanFirst(layer, static_cast<uint64_t>(position)));
  }
  Address kvAddress(uint32_t layer, int field) const {
    return reinterpret_cast<Address>(state_->ring(layer).field(static_cast<KvField>(field)));
  }

  int pushToken(uint32_t id) { return code(state_->pushToken(id)); }
  int engramIndices(Address indices, Address valid) const {
    return code(state_->engramIndices(at<uint32_t>(indices), at<uint8_t>(valid)));
  }
  int conv(uint32_t layer, int projection, Address taps, size_t tapsLength, Address rows, size_t rowsLength) {
    return code(state_->conv(layer, static_cast<Projection>(projection), floats(taps, tapsLength),
                             mutableFloats(rows, rowsLength)));
  }
  int engramConv(uint32_t site, Address taps, size_t tapsLength, Address rows, size_t rowsLength) {
    return code(state_->engramConv(site, floats(taps, tapsLength), mutableFloats(rows, rowsLength)));
  }
  int writeKv(uint32_t layer, Address keys, size_t keysLength, Address values, size_t valuesLength) {
    return code(state_->writeKv(layer, floats(keys, keysLength), floats(values, valuesLength)));
  }
  int writeKvAt(uint32_t layer, Address keys, size_t keysLength, Address values, size_t valuesLength,
                uint32_t position) {
    return code(state_->writeKvAt(layer, floats(keys, keysLength), floats(values, valuesLength), position));
  }
  int attend(uint32_t layer, Address query, size_t queryLength, Address out, size_t outLength) {
    return code(state_->attend(layer, floats(query, queryLength), mutableFloats(out, outLength)));
  }
  int appendAndAttend(uint32_t layer, Address query, size_t queryLength, Address keys, size_t keysLength,
                      Address values, size_t valuesLength, Address out, size_t outLength) {
    return code(state_->appendAndAttend(layer, floats(query, queryLength), floats(keys, keysLength),
                                        floats(values, valuesLength), mutableFloats(out, outLength)));
  }
  int advance(uint32_t count) { return code(state_->advance(count)); }
  void discard() { state_->discard(); }
  bool inStep() const { return state_->inStep(); }

  int seedConvTail(uint32_t layer, int projection, Address rows, size_t rowsLength) {
    return code(state_->seedConvTail(layer, static_cast<Projection>(projection), floats(rows, rowsLength)));
  }
  int seedEngramTail(uint32_t site, Address rows, size_t rowsLength) {
    return code(state_->seedEngramTail(site, floats(rows, rowsLength)));
  }
  int seedTokens(Address ids, size_t length) { return code(state_->seedTokens({at<const uint32_t>(ids), length})); }
  int setPosition(uint32_t position) { return code(state_->setPosition(position)); }
  void reset() { state_->reset(); }

  State* fork() const {
    DecodeState* forked = nullptr;
    return own(state_->fork(&forked), forked);
  }
  uint32_t mark() {
    uint32_t id = 0;
    return code(state_->mark(&id)) == 0 ? id : 0;
  }
  int rollback(uint32_t mark) { return code(state_->rollback(mark)); }
  int release(uint32_t mark) { return code(state_->release(mark)); }
  double snapshotBytes(size_t fingerprintLength) const {
    uint64_t bytes = 0;
    return code(needle3::snapshotBytes(*state_, fingerprintLength, &bytes)) == 0 ? static_cast<double>(bytes) : -1;
  }
  int save(Address fingerprint, size_t fingerprintLength, const val& sink) const {
    FunctionSink functionSink(sink);
    return code(writeSnapshot(*state_, {at<const uint8_t>(fingerprint), fingerprintLength}, functionSink));
  }

  // A handle for a state just made, or null after a failure; the state is destroyed where there is no room for it.
  static State* own(const Status& status, DecodeState* state) {
    if (code(status) != 0) return nullptr;
    auto* handle = static_cast<State*>(std::malloc(sizeof(State)));
    if (handle == nullptr) {
      DecodeState::destroy(state);
      code(outOfMemory(sizeof(State)));
      return nullptr;
    }
    return new (handle) State(state);
  }

 private:
  DecodeState* state_;
};

int lastCode() { return static_cast<int>(instance().last.code()); }
// Null-terminated UTF-8. Not a std::string: making one takes memory, of which there may be none left.
Address lastMessage() { return reinterpret_cast<Address>(instance().last.message()); }
double allocatedBytes() { return static_cast<double>(instance().memory.liveBytes()); }

constexpr size_t kArrayAlignment = 16;

// malloc aligns to 8 there; the block starts with how far it was moved.
Address allocateArray(size_t length) {
  const uint64_t bytes = uint64_t{length} * sizeof(float) + kArrayAlignment;
  auto* block = static_cast<std::byte*>(instance().memory.allocate(bytes));
  if (block == nullptr) {
    code(outOfMemory(bytes));
    return 0;
  }
  const size_t shift = kArrayAlignment - reinterpret_cast<Address>(block) % kArrayAlignment;
  std::byte* array = block + shift;
  array[-1] = static_cast<std::byte>(shift);
  std::memset(array, 0, length * sizeof(float));
  return reinterpret_cast<Address>(array);
}

void releaseArray(Address address, size_t length) {
  auto* array = at<std::byte>(address);
  instance().memory.release(array - static_cast<size_t>(array[-1]), uint64_t{length} * sizeof(float) + kArrayAlignment);
}

Address reserveStaging(double bytes) {
  if (!instance().staging.reserve(static_cast<uint64_t>(bytes))) {
    code(outOfMemory(static_cast<uint64_t>(bytes)));
    return 0;
  }
  return reinterpret_cast<Address>(instance().staging.data());
}

State* createState(Address config, size_t configLength, uint32_t capacityHint, bool isInt8, bool quantizeQuery) {
  ModelConfig decoded;
  if (code(decodeConfig({at<const uint32_t>(config), configLength}, &decoded)) != 0) return nullptr;
  const DecodeStateOptions options = {.capacityHint = capacityHint,
                                      .precision = isInt8 ? Precision::kInt8 : Precision::kF32,
                                      .quantizeQuery = quantizeQuery};
  DecodeState* state = nullptr;
  return State::own(DecodeState::create(decoded, options, instance().memory, instance().workspace, &state), state);
}

double stateBytes(Address config, size_t configLength, uint32_t capacityHint, bool isInt8, double positions) {
  ModelConfig decoded;
  uint64_t bytes = 0;
  if (code(decodeConfig({at<const uint32_t>(config), configLength}, &decoded)) != 0 ||
      code(decodeStateBytes(decoded, capacityHint, isInt8 ? Precision::kInt8 : Precision::kF32,
                            static_cast<uint64_t>(positions), &bytes)) != 0) {
    return -1;
  }
  return static_cast<double>(bytes);
}

State* restoreState(const val& source, double length, Address fingerprint, size_t fingerprintLength) {
  FunctionSource functionSource(source);
  DecodeState* state = nullptr;
  return State::own(restoreSnapshot(functionSource, static_cast<uint64_t>(length),
                                    {at<const uint8_t>(fingerprint), fingerprintLength}, instance().memory,
                                    instance().workspace, &state),
                    state);
}

int fakeQuantizeArray(Address x, size_t length, uint32_t bits) {
  return code(fakeQuantize(mutableFloats(x, length), bits));
}

int quantizeRowsArray(Address x, size_t length, size_t rowLength, Address values, Address scales) {
  return code(quantizeRows(floats(x, length), rowLength, at<int8_t>(values), at<float>(scales)));
}

int engramIndicesArray(Address tokens, size_t length, Address orders, size_t ordersLength, uint32_t heads,
                       uint32_t slots, uint32_t seedHeads, Address out) {
  const EngramConfig engram = {
      .orders = {at<const uint32_t>(orders), ordersLength}, .heads = heads, .slots = slots, .seedHeads = seedHeads};
  if (const Status status = validateHash(engram); !status.ok()) return code(status);
  for (size_t position = 0; position < length; ++position) {
    engramIndices(engram, {at<const uint32_t>(tokens), position + 1}, at<uint32_t>(out) + position * engram.tables());
  }
  return 0;
}

double sample(Address logits, size_t length, float temperature, uint32_t topK, float topP, uint32_t seed, double draw) {
  const SamplerOptions options = {.temperature = temperature, .topK = topK, .topP = topP, .seed = seed};
  uint32_t token = 0;
  const Status status =
      sampleToken(floats(logits, length), options, static_cast<uint64_t>(draw), instance().memory, &token);
  return code(status) == 0 ? static_cast<double>(token) : -1;
}

}  // namespace

EMSCRIPTEN_BINDINGS(needle3) {
  using emscripten::allow_raw_pointers;
  using emscripten::function;

  emscripten::class_<State>("State")
      .function("position", &State::position)
      .function("byteLength", &State::byteLength)
      .function("markBytes", &State::markBytes)
      .function("isSaturated", &State::isSaturated)
      .function("isInt8", &State::isInt8)
      .function("quantizeQuery", &State::quantizeQuery)
      .function("configAddress", &State::configAddress)
      .function("configLength", &State::configLength)
      .function("tokenCount", &State::tokenCount)
      .function("copyTokens", &State::copyTokens)
      .function("slots", &State::slots)
      .function("spanFirst", &State::spanFirst)
      .function("kvAddress", &State::kvAddress)
      .function("pushToken", &State::pushToken)
      .function("engramIndices", &State::engramIndices)
      .function("conv", &State::conv)
      .function("engramConv", &State::engramConv)
      .function("writeKv", &State::writeKv)
      .function("writeKvAt", &State::writeKvAt)
      .function("attend", &State::attend)
      .function("appendAndAttend", &State::appendAndAttend)
      .function("advance", &State::advance)
      .function("discard", &State::discard)
      .function("inStep", &State::inStep)
      .function("seedConvTail", &State::seedConvTail)
      .function("seedEngramTail", &State::seedEngramTail)
      .function("seedTokens", &State::seedTokens)
      .function("setPosition", &State::setPosition)
      .function("reset", &State::reset)
      .function("fork", &State::fork, allow_raw_pointers())
      .function("mark", &State::mark)
      .function("rollback", &State::rollback)
      .function("release", &State::release)
      .function("snapshotBytes", &State::snapshotBytes)
      .function("save", &State::save);

  function("lastCode", &lastCode);
  function("lastMessage", &lastMessage);
  function("allocatedBytes", &allocatedBytes);
  function("allocateArray", &allocateArray);
  function("releaseArray", &releaseArray);
  function("reserveStaging", &reserveStaging);
  function("createState", &createState, allow_raw_pointers());
  function("stateBytes", &stateBytes);
  function("restoreState", &restoreState, allow_raw_pointers());
  function("fakeQuantize", &fakeQuantizeArray);
  function("quantizeRows", &quantizeRowsArray);
  function("engramIndices", &engramIndicesArray);
  function("sample", &sample);
}

}  // namespace needle3
