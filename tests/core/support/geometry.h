#ifndef NEEDLE3_TESTS_GEOMETRY_H_
#define NEEDLE3_TESTS_GEOMETRY_H_

#include <cstdint>
#include <vector>

#include "config/model_config.h"

namespace needle3::testing {

// A ModelConfig that owns its lists.
struct Geometry {
  ModelConfig fields;
  std::vector<uint32_t> globalLayers;
  std::vector<uint32_t> orders;
  std::vector<uint32_t> sites;

  // Points into this object.
  [[nodiscard]] ModelConfig config() const {
    ModelConfig config = fields;
    config.globalLayers = globalLayers;
    config.engram.orders = orders;
    config.engram.sites = sites;
    return config;
  }
};

// The geometry that the published model has.
inline Geometry shippedGeometry() {
  Geometry geometry;
  geometry.fields.vocabSize = 8192;
  geometry.fields.outVocab = 8192;
  geometry.fields.dModel = 768;
  geometry.fields.numHeads = 12;
  geometry.fields.numKvHeads = 2;
  geometry.fields.numLayers = 20;
  geometry.fields.qkHeadDim = 48;
  geometry.fields.vHeadDim = 64;
  geometry.fields.maxSeqLen = 8192;
  geometry.fields.hadaN = 1024;
  geometry.fields.mhcLanes = 4;
  geometry.fields.slidingWindow = 1024;
  geometry.fields.qkvConvTaps = 3;
  geometry.fields.ropeTheta = 100000;
  geometry.globalLayers = {4, 9, 14, 19};
  geometry.orders = {2, 3};
  geometry.sites = {3, 7, 11, 15, 19};
  geometry.fields.engram.heads = 3;
  geometry.fields.engram.slots = 18432;
  geometry.fields.engram.subDim = 128;
  geometry.fields.engram.convTaps = 4;
  geometry.fields.engram.convDilation = 3;
  return geometry;
}

// Every part in small: a local layer with window 5, a global one, both convolutions, grouped heads of unequal widths.
inline Geometry smallGeometry() {
  Geometry geometry;
  geometry.fields.vocabSize = 100;
  geometry.fields.dModel = 5;
  geometry.fields.numHeads = 4;
  geometry.fields.numKvHeads = 2;
  geometry.fields.numLayers = 3;
  geometry.fields.qkHeadDim = 6;
  geometry.fields.vHeadDim = 7;
  geometry.fields.maxSeqLen = 24;
  geometry.fields.slidingWindow = 5;
  geometry.fields.qkvConvTaps = 3;
  geometry.globalLayers = {1};
  geometry.orders = {2, 3};
  geometry.sites = {0, 2};
  geometry.fields.engram.heads = 2;
  geometry.fields.engram.slots = 61;
  geometry.fields.engram.convTaps = 4;
  geometry.fields.engram.convDilation = 2;
  return geometry;
}

}  // namespace needle3::testing

#endif  // NEEDLE3_TESTS_GEOMETRY_H_
