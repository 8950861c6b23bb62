#ifndef NEEDLE3_TESTS_JSON_H_
#define NEEDLE3_TESTS_JSON_H_

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/geometry.h"

namespace needle3::testing {

// A discarded value (`is_discarded()`) where the file is missing or is no JSON.
inline nlohmann::json readJson(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, false);
}

// The vectors hold the shortest decimals that round to the float meant.
inline std::vector<float> floats(const nlohmann::json& array) {
  std::vector<float> values;
  values.reserve(array.size());
  for (const auto& element : array) values.push_back(static_cast<float>(element.get<double>()));
  return values;
}

inline std::vector<uint32_t> integers(const nlohmann::json& array) {
  std::vector<uint32_t> values;
  values.reserve(array.size());
  for (const auto& element : array) values.push_back(element.get<uint32_t>());
  return values;
}

// A geometry as the vectors spell it; a field that a file leaves out keeps its default.
inline Geometry geometryOf(const nlohmann::json& json) {
  Geometry geometry;
  ModelConfig& fields = geometry.fields;
  const auto& engram = json.at("engram");
  fields.vocabSize = json.value("vocab_size", 8192U);
  fields.outVocab = json.value("out_vocab", 0U);
  fields.dModel = json.at("d_model").get<uint32_t>();
  fields.numHeads = json.at("num_heads").get<uint32_t>();
  fields.numKvHeads = json.at("num_kv_heads").get<uint32_t>();
  fields.numLayers = json.at("num_layers").get<uint32_t>();
  fields.qkHeadDim = json.at("qk_head_dim").get<uint32_t>();
  fields.vHeadDim = json.at("v_head_dim").get<uint32_t>();
  fields.maxSeqLen = json.at("max_seq_len").get<uint32_t>();
  fields.slidingWindow = json.at("sliding_window").get<uint32_t>();
  fields.qkvConvTaps = json.at("qkv_conv_taps").get<uint32_t>();
  geometry.globalLayers = integers(json.at("global_layers"));
  geometry.orders = integers(engram.at("orders"));
  geometry.sites = integers(engram.at("sites"));
  fields.engram.heads = engram.at("heads").get<uint32_t>();
  fields.engram.slots = engram.at("slots").get<uint32_t>();
  fields.engram.subDim = engram.at("sub_dim").get<uint32_t>();
  fields.engram.convTaps = engram.at("conv_taps").get<uint32_t>();
  fields.engram.convDilation = engram.at("conv_dilation").get<uint32_t>();
  fields.engram.seedHeads = engram.at("seed_heads").get<uint32_t>();
  return geometry;
}

}  // namespace needle3::testing

#endif  // NEEDLE3_TESTS_JSON_H_
