#include "support/operations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "base/scratch.h"
#include "kernels/quantize.h"
#include "support/random.h"
#include "support/reference_state.h"
#include "support/state.h"

namespace needle3::testing {

uint32_t Choices::below(uint32_t bound) {
  if (bound <= 1 || exhausted()) return 0;
  uint32_t value = bytes_[at_++];
  if (bound > 256 && !exhausted()) value = value << 8 | bytes_[at_++];
  return value % bound;
}

Geometry chooseGeometry(Choices& choices) {
  Geometry geometry;
  ModelConfig& fields = geometry.fields;
  fields.vocabSize = choices.between(1, 20);
  fields.dModel = choices.between(1, 9);
  fields.numKvHeads = choices.between(1, 3);
  fields.numHeads = fields.numKvHeads * choices.between(1, 4);
  fields.numLayers = choices.between(1, 3);
  fields.qkHeadDim = choices.between(1, 18);
  fields.vHeadDim = choices.between(1, 18);
  fields.maxSeqLen = choices.between(1, 40);
  fields.slidingWindow = choices.below(10);
  fields.qkvConvTaps = choices.below(6);
  const uint32_t orders = choices.below(4);
  if (orders == 1) geometry.orders = {1};
  if (orders == 2) geometry.orders = {2, 3};
  if (orders == 3) geometry.orders = {4, 1, 2};
  fields.engram.heads = choices.between(1, 2);
  fields.engram.slots = choices.between(1, 50);
  fields.engram.convTaps = choices.below(6);
  fields.engram.convDilation = choices.between(1, 4);
  fields.engram.seedHeads = choices.below(3);
  const uint32_t globals = choices.below(8);
  const uint32_t sites = choices.below(8);
  for (uint32_t layer = 0; layer < fields.numLayers; ++layer) {
    if ((globals >> layer & 1) != 0) geometry.globalLayers.push_back(layer);
    if ((sites >> layer & 1) != 0) geometry.sites.push_back(layer);
  }
  return geometry;
}

namespace {

struct Marked {
  uint32_t core;
  uint32_t twin;
  uint32_t reference;
};

// A state, its twin of another hint, and what they must be.
struct Session {
  StatePtr core;
  StatePtr twin;
  ReferenceState reference;
  std::vector<Marked> marks;  // dead ones stay, to be refused
};

class Run {
 public:
  explicit Run(std::span<const uint8_t> bytes) : choices_(bytes), geometry_(chooseGeometry(choices_)) {}

  OperationsReport run();

 private:
  using Call = std::function<Status(DecodeState&, std::span<float> out)>;

  void fail(const std::string& what) {
    if (!report_.failure.empty()) return;
    std::ostringstream text;
    text << "operation " << report_.operations << " (" << operation_ << "): " << what;
    report_.failure = text.str();
  }
  void require(bool condition, const char* what) {
    if (!condition) fail(what);
  }
  [[nodiscard]] bool failed() const { return !report_.failure.empty(); }
  [[nodiscard]] const ModelConfig config() const { return geometry_.config(); }

  // Inputs.
  std::vector<float> row(size_t length);
  std::vector<float> rows(size_t count, uint64_t dim);
  std::vector<float> tapsFor(uint32_t taps, uint64_t dim);
  uint32_t layer() { return choices_.oneIn(24) ? config().numLayers : choices_.below(config().numLayers); }
  uint32_t site() {
    const auto sites = static_cast<uint32_t>(geometry_.sites.size());
    return choices_.oneIn(24) ? sites : choices_.below(std::max(sites, 1U));
  }
  Projection projection() { return static_cast<Projection>(choices_.below(3)); }
  size_t stepRows(const Session& session);

  // Calls the core; now and then with little memory first, where running out must leave all as it was.
  Status callCore(Session& session, const Call& function, std::vector<float>& out);
  // Calls the core and its twin; `inOut` is what the call reads and writes.
  void call(Session& session, const Call& function, Codes expected, std::vector<float>* inOut);
  void compare(const DecodeState& state, const ReferenceState& reference);
  void compareRows(const DecodeState& state, const ReferenceState& reference, uint32_t layer);
  void compareAttention(std::span<const float> out, const ReferenceAttention& attention);

  void act(Session& session);
  void decodeStep(Session& session);
  void conv(Session& session);
  void engramConv(Session& session);
  void writeKv(Session& session);
  void attend(Session& session);
  void appendAndAttend(Session& session);
  void pushToken(Session& session);
  void engramIndices(Session& session);
  void writeKvAt(Session& session);
  void seed(Session& session);
  void setPosition(Session& session);
  void fork(Session& session);
  void mark(Session& session);
  void rollbackOrRelease(Session& session, bool rollback);
  void saveAndRestore(Session& session);
  void copyOf(Session& session, StatePtr core);

  Choices choices_;
  Geometry geometry_;
  Arena arena_;
  Arena twinArena_;
  std::vector<Session> sessions_;
  OperationsReport report_;
  const char* operation_ = "create";
  uint32_t draws_ = 0;
  std::optional<ReferenceState> beforeShortage_;  // set: the operation's call is tried with little memory first
};

std::vector<float> Run::row(size_t length) {
  Random random(choices_.below(256) * 65537 + ++draws_);
  std::vector<float> x = random.floats(length);
  switch (choices_.below(10)) {
    case 0:  // halves: ties of rounding where 127 is among them
      for (float& value : x) value = std::round(value * 20) / 2;
      if (!x.empty()) x[0] = 127;
      break;
    case 1:
      std::fill(x.begin(), x.end(), 0.0F);
      break;
    case 2:
      for (float& value : x) value *= 3000;
      break;
    case 3:
      for (float& value : x) value *= 2e-37F;
      break;
    default:
      break;
  }
  if (choices_.oneIn(32) && !x.empty()) {
    x[random.below(static_cast<uint32_t>(x.size()))] =
        choices_.oneIn(2) ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return x;
}

std::vector<float> Run::rows(size_t count, uint64_t dim) {
  size_t length = count * static_cast<size_t>(dim);
  if (choices_.oneIn(32)) length += choices_.oneIn(2) ? 1 : size_t{0} - 1;
  if (length > count * dim + 1) length = 0;
  return row(length);
}

std::vector<float> Run::tapsFor(uint32_t taps, uint64_t dim) {
  Random random(taps + static_cast<uint32_t>(dim) + choices_.below(3));
  return random.floats(static_cast<size_t>(taps * dim) + (choices_.oneIn(40) ? 1 : 0));
}

size_t Run::stepRows(const Session& session) {
  const size_t rows = session.reference.stepRows();
  if (rows != 0 && !choices_.oneIn(16)) return rows;
  switch (choices_.below(8)) {
    case 0:
      return choices_.below(2 * config().maxSeqLen + 3);
    case 1:
      return choices_.between(2, 2 * std::max(config().slidingWindow, 1U) + 1);
    case 2:
    case 3:
      return choices_.between(2, 4);
    default:
      return 1;
  }
}

std::string describe(const Status& status) {
  if (status.ok()) return "success";
  return "code " + std::to_string(static_cast<int>(status.code())) + ", \"" + status.message() + "\"";
}

Status Run::callCore(Session& session, const Call& function, std::vector<float>& out) {
  if (beforeShortage_) {
    const std::vector<float> before = out;
    const uint64_t live = arena_.memory.liveBytes();
    arena_.memory.failAfter(choices_.below(8));
    Status status = function(*session.core, out);
    arena_.memory.neverFail();
    if (status.code() != ErrorCode::kOutOfMemory) return status;
    require(arena_.memory.liveBytes() == live, "a call that ran out of memory has kept some");
    require(sameBits(out, before), "a call that ran out of memory has written its output");
    compare(*session.core, *beforeShortage_);
  }
  return function(*session.core, out);
}

void Run::call(Session& session, const Call& function, Codes expected, std::vector<float>* inOut) {
  std::vector<float> none;
  std::vector<float>& out = inOut == nullptr ? none : *inOut;
  const std::vector<float> before = out;
  const Status status = callCore(session, function, out);
  if (!agrees(status, expected)) {
    std::ostringstream text;
    text << describe(status) << " instead of " << (expected == 0 ? "success" : "an error of the set ") << std::hex
         << expected;
    fail(text.str());
  }
  std::vector<float> twinOut = before;
  const Status twin = function(*session.twin, twinOut);
  if (!agrees(twin, expected)) fail("the twin: " + describe(twin));
  if (!sameBits(out, twinOut)) fail("the twin's output differs");
  if (!status.ok()) {
    ++report_.refused;
    require(sameBits(out, before), "a refused call has written its output");
    require(status.message()[0] != '\0', "an error without a message");
  }
}

void Run::compareRows(const DecodeState& core, const ReferenceState& reference, uint32_t layer) {
  const ModelConfig config = geometry_.config();
  const auto& held = reference.held(layer);
  const uint64_t first = core.heldFirst(layer);
  const uint64_t end = core.heldEnd(layer);
  if (held.empty()) return require(first >= end, "a layer holds rows that it should have forgotten");
  if (first != held.begin()->first || end != held.rbegin()->first + 1) {
    std::ostringstream text;
    text << "layer " << layer << " holds [" << first << ", " << end << ") instead of [" << held.begin()->first << ", "
         << held.rbegin()->first + 1 << ")";
    return fail(text.str());
  }
  const KvRing& ring = core.ring(layer);
  for (const auto& [position, row] : held) {
    const auto slot = static_cast<size_t>(position % core.slots(layer));
    // Whether `count` elements of the slot, from element `offset` of `width`, are `expected`.
    const auto stored = [&](KvField field, uint64_t width, size_t offset, const auto* expected, size_t count) {
      const auto* array = static_cast<std::remove_reference_t<decltype(expected)>>(ring.field(field));
      return std::memcmp(array + slot * static_cast<size_t>(width) + offset, expected, count * sizeof(*expected)) == 0;
    };
    bool same = true;
    if (core.precision() == Precision::kF32) {
      same = stored(KvField::kKeys, config.kDim(), 0, row->keys.data(), row->keys.size()) &&
             stored(KvField::kValues, config.vDim(), 0, row->values.data(), row->values.size());
    }
    for (size_t head = 0; head < row->quantizedKeys.size() && same; ++head) {
      const QuantizedRow& key = row->quantizedKeys[head];
      const QuantizedRow& value = row->quantizedValues[head];
      same =
          stored(KvField::kKeys, config.kDim(), head * config.qkHeadDim, key.values.data(), key.values.size()) &&
          stored(KvField::kValues, config.vDim(), head * config.vHeadDim, value.values.data(), value.values.size()) &&
          stored(KvField::kKeyScales, config.numKvHeads, head, &key.scale, 1) &&
          stored(KvField::kValueScales, config.numKvHeads, head, &value.scale, 1);
    }
    if (!same) {
      return fail("layer " + std::to_string(layer) + " has other keys or values at position " +
                  std::to_string(position));
    }
  }
}

void Run::compare(const DecodeState& state, const ReferenceState& reference) {
  require(state.position() == reference.position(), "another position");
  require(state.inStep() == reference.inStep(), "inStep is wrong");
  require(state.isSaturated() == reference.isSaturated(), "isSaturated is wrong");
  require(tokensOf(state) == reference.tokenHistory(), "another token history");
  for (uint32_t layer = 0; layer < geometry_.fields.numLayers && !failed(); ++layer) {
    if (state.slots(layer) != reference.slots(layer)) {
      fail("layer " + std::to_string(layer) + " has " + std::to_string(state.slots(layer)) + " slots instead of " +
           std::to_string(reference.slots(layer)));
    }
    require(state.spanFirst(layer, reference.position()) == reference.spanFirst(layer, reference.position()),
            "another span");
    if (!reference.inStep()) compareRows(state, reference, layer);
  }
  if (reference.inStep()) return;
  require(state.byteLength() == reference.byteLength(), "another byteLength");
  if (reference.liveMarks() == 0) require(state.markBytes() == 0, "marks hold something where there are none");
}

void Run::compareAttention(std::span<const float> out, const ReferenceAttention& attention) {
  for (size_t i = 0; i < out.size() && !failed(); ++i) {
    if (!std::isfinite(attention.out[i])) continue;  // a query that was not finite
    const double error = std::fabs(out[i] - attention.out[i]);
    if (error <= attention.bound[i]) continue;
    std::ostringstream text;
    text << "attention element " << i << " is " << out[i] << " instead of " << attention.out[i] << ", off by " << error
         << " where " << attention.bound[i] << " is allowed";
    fail(text.str());
  }
}

void Run::conv(Session& session) {
  const uint32_t at = layer();
  const Projection which = projection();
  const uint64_t dim = which == Projection::kQ   ? config().qDim()
                       : which == Projection::kK ? config().kDim()
                                                 : config().vDim();
  const std::vector<float> taps = tapsFor(config().qkvConvTaps, dim);
  std::vector<float> out = rows(stepRows(session), dim);
  std::vector<float> expected = out;
  const Codes codes = session.reference.conv(at, which, taps, &expected);
  call(
      session, [&](DecodeState& state, std::span<float> inOut) { return state.conv(at, which, taps, inOut); }, codes,
      &out);
  if (codes == 0) require(sameNumbers(out, expected), "another convolution");
}

void Run::engramConv(Session& session) {
  const uint32_t at = site();
  const std::vector<float> taps = tapsFor(config().engram.convTaps, config().dModel);
  std::vector<float> out = rows(stepRows(session), config().dModel);
  std::vector<float> expected = out;
  const Codes codes = session.reference.engramConv(at, taps, &expected);
  call(
      session, [&](DecodeState& state, std::span<float> inOut) { return state.engramConv(at, taps, inOut); }, codes,
      &out);
  if (codes == 0) require(sameNumbers(out, expected), "another Engram convolution");
}

void Run::writeKv(Session& session) {
  const uint32_t at = layer();
  const size_t count = stepRows(session);
  const std::vector<float> keys = rows(count, config().kDim());
  const std::vector<float> values = rows(count, config().vDim());
  const Codes codes = session.reference.writeKv(at, keys, values);
  call(
      session, [&](DecodeState& state, std::span<float>) { return state.writeKv(at, keys, values); }, codes, nullptr);
}

void Run::attend(Session& session) {
  const uint32_t at = layer();
  const std::vector<float> query = rows(1, config().qDim());
  std::vector<float> out(static_cast<size_t>(config().attnOutDim()) + (choices_.oneIn(32) ? 1 : 0), 42.0F);
  ReferenceAttention attention;
  const Codes codes = session.reference.attend(at, query, out.size(), &attention);
  call(
      session, [&](DecodeState& state, std::span<float> inOut) { return state.attend(at, query, inOut); }, codes, &out);
  if (codes == 0) compareAttention(out, attention);
}

void Run::appendAndAttend(Session& session) {
  const uint32_t at = layer();
  const size_t count = stepRows(session);
  const std::vector<float> query = rows(count, config().qDim());
  const std::vector<float> keys = rows(count, config().kDim());
  const std::vector<float> values = rows(count, config().vDim());
  std::vector<float> out(count * static_cast<size_t>(config().attnOutDim()) + (choices_.oneIn(32) ? 1 : 0), 42.0F);
  ReferenceAttention attention;
  const Codes codes = session.reference.appendAndAttend(at, query, keys, values, out.size(), &attention);
  call(
      session,
      [&](DecodeState& state, std::span<float> inOut) { return state.appendAndAttend(at, query, keys, values, inOut); },
      codes, &out);
  if (codes == 0) compareAttention(out, attention);
}

// A whole step of every layer and site: the core takes its rows at once, the twin one row a step.
void Run::decodeStep(Session& session) {
  ReferenceState& reference = session.reference;
  if (reference.inStep() || reference.position() > 1000000) return;
  const size_t count = std::max<size_t>(stepRows(session), 1);
  const auto rowsOf = [&](uint64_t dim) {
    Random random(++draws_);
    return random.floats(count * static_cast<size_t>(dim), 2);
  };
  std::vector<Status> statuses;
  const auto done = [&](Status status) { statuses.push_back(status); };

  std::vector<uint32_t> tokens;
  Random random(++draws_);
  for (size_t i = 0; i < count; ++i) tokens.push_back(random.below(config().vocabSize));
  const bool withTokens = !choices_.oneIn(4);

  struct LayerInputs {
    std::vector<float> taps[3];
    std::array<std::vector<float>, 3> raw;
    bool attends = false;
  };
  std::vector<LayerInputs> inputs(config().numLayers);
  std::vector<std::vector<float>> siteRows;
  const std::vector<float> siteTaps = Random(++draws_).floats(config().engram.convTaps * config().dModel);
  for (size_t i = 0; i < geometry_.sites.size(); ++i) siteRows.push_back(rowsOf(config().dModel));
  for (LayerInputs& layer : inputs) {
    const uint64_t dims[] = {config().qDim(), config().kDim(), config().vDim()};
    for (size_t i = 0; i < 3; ++i) {
      layer.taps[i] = Random(++draws_).floats(static_cast<size_t>(config().qkvConvTaps * dims[i]));
      layer.raw[i] = rowsOf(dims[i]);
    }
  }

  // The reference says which layers hold their first span.
  std::vector<ReferenceAttention> attentions(config().numLayers);
  if (withTokens) {
    for (uint32_t token : tokens) reference.pushToken(token);
  }
  std::vector<std::vector<float>> expectedSites = siteRows;
  std::vector<std::vector<float>> expectedConvs;
  for (uint32_t i = 0; i < expectedSites.size(); ++i) reference.engramConv(i, siteTaps, &expectedSites[i]);
  for (uint32_t l = 0; l < config().numLayers; ++l) {
    // Keys and values are written as they come: a tail may hold what is not finite.
    expectedConvs.push_back(inputs[l].raw[0]);
    expectedConvs.push_back(inputs[l].raw[1]);
    expectedConvs.push_back(inputs[l].raw[2]);
    for (uint32_t i = 0; i < 3; ++i) {
      reference.conv(l, static_cast<Projection>(i), inputs[l].taps[i], &expectedConvs[l * 3 + i]);
    }
    const auto& [q, k, v] = inputs[l].raw;
    const size_t outLength = count * static_cast<size_t>(config().attnOutDim());
    inputs[l].attends = reference.appendAndAttend(l, q, k, v, outLength, &attentions[l]) == 0;
    if (!inputs[l].attends) reference.writeKv(l, k, v);
  }
  reference.advance(static_cast<uint32_t>(count));

  struct Outputs {
    std::vector<std::vector<float>> sites, convs, attended;
  };
  // Rows [begin, begin + n) as one step.
  const auto step = [&](DecodeState& state, size_t begin, size_t n, Outputs& outputs) {
    const auto slice = [&](const std::vector<float>& all) {
      const auto dim = static_cast<ptrdiff_t>(all.size() / count);
      const auto first = all.begin() + static_cast<ptrdiff_t>(begin) * dim;
      return std::vector<float>(first, first + static_cast<ptrdiff_t>(n) * dim);
    };
    if (withTokens) {
      for (size_t i = 0; i < n; ++i) done(state.pushToken(tokens[begin + i]));
    }
    for (uint32_t i = 0; i < siteRows.size(); ++i) {
      std::vector<float> x = slice(siteRows[i]);
      done(state.engramConv(i, siteTaps, x));
      outputs.sites[i].insert(outputs.sites[i].end(), x.begin(), x.end());
    }
    for (uint32_t l = 0; l < config().numLayers; ++l) {
      const std::vector<float> q = slice(inputs[l].raw[0]);
      const std::vector<float> k = slice(inputs[l].raw[1]);
      const std::vector<float> v = slice(inputs[l].raw[2]);
      for (uint32_t i = 0; i < 3; ++i) {
        std::vector<float> x = slice(inputs[l].raw[i]);
        done(state.conv(l, static_cast<Projection>(i), inputs[l].taps[i], x));
        outputs.convs[l * 3 + i].insert(outputs.convs[l * 3 + i].end(), x.begin(), x.end());
      }
      if (!inputs[l].attends) {
        done(state.writeKv(l, k, v));
        continue;
      }
      std::vector<float> out(n * static_cast<size_t>(config().attnOutDim()));
      if (n == 1) {
        done(state.writeKv(l, k, v));
        done(state.attend(l, q, out));
      } else {
        done(state.appendAndAttend(l, q, k, v, out));
      }
      outputs.attended[l].insert(outputs.attended[l].end(), out.begin(), out.end());
    }
    done(state.advance(static_cast<uint32_t>(n)));
  };
  using Rows = std::vector<std::vector<float>>;
  Outputs core{Rows(siteRows.size()), Rows(inputs.size() * 3), Rows(inputs.size())};
  Outputs twin = core;
  step(*session.core, 0, count, core);
  for (size_t i = 0; i < count; ++i) step(*session.twin, i, 1, twin);

  for (const Status& status : statuses) {
    if (!status.ok()) fail(describe(status));
  }
  for (size_t i = 0; i < siteRows.size(); ++i) {
    require(sameNumbers(core.sites[i], expectedSites[i]), "another Engram convolution");
    require(sameBits(core.sites[i], twin.sites[i]), "the twin's Engram convolution differs");
  }
  for (size_t i = 0; i < expectedConvs.size(); ++i) {
    require(sameNumbers(core.convs[i], expectedConvs[i]), "another convolution");
    require(sameBits(core.convs[i], twin.convs[i]), "the twin's convolution differs");
  }
  for (size_t l = 0; l < inputs.size() && !failed(); ++l) {
    if (inputs[l].attends) compareAttention(core.attended[l], attentions[l]);
    require(sameBits(core.attended[l], twin.attended[l]), "one row a step gives other bits");
  }
}

void Run::pushToken(Session& session) {
  const uint32_t id = choices_.oneIn(24) ? config().vocabSize : choices_.below(config().vocabSize);
  // A second attempt after a failure would push twice; but a push allocates nothing, so that none can fail.
  const Codes codes = session.reference.pushToken(id);
  call(
      session, [id](DecodeState& state, std::span<float>) { return state.pushToken(id); }, codes, nullptr);
}

void Run::engramIndices(Session& session) {
  std::vector<uint32_t> expected;
  std::vector<uint8_t> expectedValid;
  const Codes codes = session.reference.engramIndices(&expected, &expectedValid);
  std::vector<uint32_t> indices(config().engram.tables());
  std::vector<uint8_t> valid(indices.size());
  call(
      session, [&](DecodeState& state, std::span<float>) { return state.engramIndices(indices.data(), valid.data()); },
      codes, nullptr);
  if (codes == 0) require(indices == expected && valid == expectedValid, "other Engram indices");
}

void Run::writeKvAt(Session& session) {
  const uint32_t at = layer();
  const size_t count = choices_.oneIn(4) ? choices_.below(2 * config().maxSeqLen + 3) : choices_.between(1, 3);
  uint32_t position = choices_.below(50);
  const auto& held = session.reference.held(std::min(at, config().numLayers - 1));
  if (!held.empty() && choices_.oneIn(2)) {
    position = static_cast<uint32_t>(choices_.oneIn(2) ? held.rbegin()->first + 1 : held.begin()->first);
  }
  if (choices_.oneIn(40)) position = INT32_MAX - 1;
  const std::vector<float> keys = rows(count, config().kDim());
  const std::vector<float> values = rows(count, config().vDim());
  const Codes codes = session.reference.writeKvAt(at, keys, values, position);
  call(
      session, [&](DecodeState& state, std::span<float>) { return state.writeKvAt(at, keys, values, position); }, codes,
      nullptr);
}

void Run::seed(Session& session) {
  const EngramConfig engram = config().engram;
  switch (choices_.below(3)) {
    case 0: {
      const uint32_t at = layer();
      const Projection which = projection();
      const uint64_t dim = which == Projection::kQ   ? config().qDim()
                           : which == Projection::kK ? config().kDim()
                                                     : config().vDim();
      const std::vector<float> tail = rows(std::max(config().qkvConvTaps, 1U) - 1, dim);
      const Codes codes = session.reference.seedConvTail(at, which, tail);
      call(
          session, [&](DecodeState& state, std::span<float>) { return state.seedConvTail(at, which, tail); }, codes,
          nullptr);
      break;
    }
    case 1: {
      const uint32_t at = site();
      const std::vector<float> tail = rows((std::max(engram.convTaps, 1U) - 1) * engram.convDilation, config().dModel);
      const Codes codes = session.reference.seedEngramTail(at, tail);
      call(
          session, [&](DecodeState& state, std::span<float>) { return state.seedEngramTail(at, tail); }, codes,
          nullptr);
      break;
    }
    default: {
      std::vector<uint32_t> ids(choices_.below(8));
      for (uint32_t& id : ids) id = choices_.below(config().vocabSize) + (choices_.oneIn(40) ? config().vocabSize : 0);
      const Codes codes = session.reference.seedTokens(ids);
      call(
          session, [&](DecodeState& state, std::span<float>) { return state.seedTokens(ids); }, codes, nullptr);
    }
  }
}

void Run::setPosition(Session& session) {
  uint32_t position = choices_.below(60);
  if (choices_.oneIn(2)) position = session.reference.position() + choices_.below(3);
  if (choices_.oneIn(16)) position = INT32_MAX - choices_.below(3);
  if (choices_.oneIn(16)) position = uint32_t{INT32_MAX} + 1 + choices_.below(3);
  const Codes codes = session.reference.setPosition(position);
  call(
      session, [&](DecodeState& state, std::span<float>) { return state.setPosition(position); }, codes, nullptr);
}

// Carries on with `core` in the session's place, with a twin of its own and without marks.
void Run::copyOf(Session& session, StatePtr core) {
  StatePtr twin = twinArena_.fork(*session.twin);
  require(twin != nullptr, "the twin's fork failed");
  if (failed()) return;
  Session copy{std::move(core), std::move(twin), session.reference.forked(), {}};
  compare(*copy.core, copy.reference);
  if (sessions_.size() < 3 && choices_.oneIn(2)) {
    sessions_.push_back(std::move(copy));
  } else {
    session = std::move(copy);
  }
}

void Run::fork(Session& session) {
  const Codes codes = session.reference.betweenSteps();
  StatePtr fork;
  call(
      session,
      [&](DecodeState& state, std::span<float>) {
        DecodeState* made = nullptr;
        const Status status = state.fork(&made);
        StatePtr owned(status.ok() ? made : nullptr);
        if (&state == session.core.get()) fork = std::move(owned);
        return status;
      },
      codes, nullptr);
  if (fork && !failed()) copyOf(session, std::move(fork));
}

void Run::saveAndRestore(Session& session) {
  const Codes codes = session.reference.betweenSteps();
  std::vector<uint8_t> saved;
  call(
      session,
      [&](DecodeState& state, std::span<float>) {
        VectorSink sink;
        uint64_t announced = 0;
        const Status size = snapshotBytes(state, 0, &announced);
        const Status status = writeSnapshot(state, {}, sink);
        require(size.code() == status.code(), "snapshotBytes disagrees with writeSnapshot");
        require(sink.bytes.size() == (status.ok() ? announced : 0), "a snapshot of another size than announced");
        if (&state == session.core.get()) saved = std::move(sink.bytes);
        return status;
      },
      codes, nullptr);
  if (codes != 0 || failed()) return;
  StatePtr restored;
  const uint64_t live = arena_.memory.liveBytes();
  arena_.memory.failAfter(choices_.below(40));
  Status status = restore(saved, {}, arena_, &restored);
  arena_.memory.neverFail();
  if (status.code() == ErrorCode::kOutOfMemory) {
    require(arena_.memory.liveBytes() == live, "a restore that ran out of memory has kept some");
    status = restore(saved, {}, arena_, &restored);
  }
  if (!status.ok()) return fail("restore: " + describe(status));
  require(save(*restored) == saved, "a restored state gives another snapshot");
  copyOf(session, std::move(restored));
}

void Run::mark(Session& session) {
  if (session.marks.size() >= 12) session.marks.erase(session.marks.begin());
  const Codes codes = session.reference.betweenSteps();
  Marked marked{};
  call(
      session,
      [&](DecodeState& state, std::span<float>) {
        return state.mark(&state == session.core.get() ? &marked.core : &marked.twin);
      },
      codes, nullptr);
  if (codes != 0) return;
  require(marked.core != 0 && marked.twin != 0, "a mark is 0");
  for (const Marked& other : session.marks) require(other.core != marked.core, "a mark was used before");
  marked.reference = session.reference.mark();
  session.marks.push_back(marked);
}

void Run::rollbackOrRelease(Session& session, bool rollback) {
  Marked marked{UINT32_MAX, UINT32_MAX, UINT32_MAX};
  if (!session.marks.empty() && !choices_.oneIn(24)) {
    marked = session.marks[session.marks.size() - 1 - choices_.below(static_cast<uint32_t>(session.marks.size()))];
  }
  const Codes codes =
      rollback ? session.reference.rollback(marked.reference) : session.reference.release(marked.reference);
  call(
      session,
      [&](DecodeState& state, std::span<float>) {
        const uint32_t id = &state == session.core.get() ? marked.core : marked.twin;
        return rollback ? state.rollback(id) : state.release(id);
      },
      codes, nullptr);
}

void Run::act(Session& session) {
  static constexpr const char* kNames[] = {
      "decode step",   "conv",    "engramConv", "writeKv",   "attend", "appendAndAttend", "pushToken",
      "engramIndices", "advance", "discard",    "writeKvAt", "seed",   "setPosition",     "reset",
      "fork",          "mark",    "rollback",   "release",   "save",   "destroy"};
  // How often each is drawn.
  static constexpr uint8_t kWeights[] = {10, 5, 4, 6, 6, 8, 5, 2, 12, 3, 3, 3, 2, 1, 2, 5, 4, 2, 2, 1};
  uint32_t draw = choices_.below(86);
  size_t which = 0;
  while (draw >= kWeights[which]) draw -= kWeights[which++];
  operation_ = kNames[which];
  beforeShortage_.reset();
  if (choices_.oneIn(8)) beforeShortage_ = session.reference;
  switch (which) {
    case 0:
      return decodeStep(session);
    case 1:
      return conv(session);
    case 2:
      return engramConv(session);
    case 3:
      return writeKv(session);
    case 4:
      return attend(session);
    case 5:
      return appendAndAttend(session);
    case 6:
      return pushToken(session);
    case 7:
      return engramIndices(session);
    case 8: {
      auto count = static_cast<uint32_t>(std::max<size_t>(session.reference.stepRows(), 1));
      // As many tokens as rows, so that steps of many rows get committed.
      while (session.reference.pendingTokens() != 0 && session.reference.pendingTokens() < count &&
             !choices_.oneIn(8)) {
        const uint32_t id = choices_.below(config().vocabSize);
        session.reference.pushToken(id);
        require(session.core->pushToken(id).ok() && session.twin->pushToken(id).ok(), "a token was refused");
      }
      if (session.reference.stepRows() == 0 && session.reference.pendingTokens() != 0) {
        count = static_cast<uint32_t>(session.reference.pendingTokens());
      }
      if (choices_.oneIn(12)) count = choices_.below(4);
      const Codes codes = session.reference.advance(count);
      call(
          session, [count](DecodeState& state, std::span<float>) { return state.advance(count); }, codes, nullptr);
      return;
    }
    case 9:
      session.reference.discard();
      session.core->discard();
      session.twin->discard();
      return;
    case 10:
      return writeKvAt(session);
    case 11:
      return seed(session);
    case 12:
      return setPosition(session);
    case 13:
      session.reference.reset();
      session.core->reset();
      session.twin->reset();
      return;
    case 14:
      return fork(session);
    case 15:
      return mark(session);
    case 16:
      return rollbackOrRelease(session, true);
    case 17:
      return rollbackOrRelease(session, false);
    case 18:
      return saveAndRestore(session);
    default:
      if (sessions_.size() == 1) return;
      if (&session != &sessions_.back()) session = std::move(sessions_.back());
      sessions_.pop_back();
  }
}

OperationsReport Run::run() {
  DecodeStateOptions options;
  options.capacityHint = choices_.below(51);
  options.precision = choices_.oneIn(2) ? Precision::kInt8 : Precision::kF32;
  options.quantizeQuery = options.precision == Precision::kInt8 && choices_.oneIn(2);
  DecodeStateOptions twinOptions = options;
  twinOptions.capacityHint = choices_.below(51);
  StatePtr core = arena_.create(geometry_, options);
  StatePtr twin = twinArena_.create(geometry_, twinOptions);
  if (!core || !twin) {
    fail("the state was refused");
    return report_;
  }
  sessions_.push_back({std::move(core), std::move(twin), ReferenceState(geometry_, options), {}});
  compare(*sessions_[0].core, sessions_[0].reference);
  while (!choices_.exhausted() && !failed()) {
    ++report_.operations;
    const size_t which = choices_.below(static_cast<uint32_t>(sessions_.size()));
    act(sessions_[which]);
    // A new session may have moved them; a destroyed one is gone. Each must still be what it was.
    for (const Session& session : sessions_) {
      if (!failed()) compare(*session.core, session.reference);
    }
  }
  sessions_.clear();
  report_.liveBytes = arena_.memory.liveBytes() + twinArena_.memory.liveBytes();
  if (report_.liveBytes != 0) fail("memory is left when all states are destroyed");
  return report_;
}

}  // namespace

OperationsReport runOperations(std::span<const uint8_t> bytes) { return Run(bytes).run(); }

}  // namespace needle3::testing
