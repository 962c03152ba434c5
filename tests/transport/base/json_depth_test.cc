#include "transport/base/json_depth.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace mercury {
namespace {

using Json = nlohmann::json;

bool accepts(int most, const std::vector<uint8_t>& cbor) {
  JsonDepth<Json> depth(most);
  return Json::sax_parse(cbor.begin(), cbor.end(), &depth, Json::input_format_t::cbor);
}

// `levels` lists, or maps, within each other; the innermost holds a number.
Json nested(int levels, bool maps) {
  Json value = 1;
  for (int i = 0; i < levels; ++i) value = maps ? Json{{"k", value}} : Json::array({value});
  return value;
}

TEST(JsonDepth, TakesSoManyLevelsAndNoneMore) {
  for (const bool maps : {false, true}) {
    for (int most = 1; most < 8; ++most) {
      EXPECT_TRUE(accepts(most, Json::to_cbor(nested(most, maps)))) << most;
      EXPECT_FALSE(accepts(most, Json::to_cbor(nested(most + 1, maps)))) << most;
    }
  }
}

TEST(JsonDepth, SiblingsAreNoDepth) {
  Json wide = Json::array();
  for (int i = 0; i < 1000; ++i) wide.push_back({{"list", {1, 2.5, -3, nullptr, true, "text"}}});
  wide.push_back(Json::binary({1, 2, 3}));
  EXPECT_TRUE(accepts(3, Json::to_cbor(wide)));
  EXPECT_FALSE(accepts(2, Json::to_cbor(wide)));
}

// A megabyte that only opens lists would take as many calls of the parser.
TEST(JsonDepth, EndsBeforeTheStackDoes) {
  EXPECT_FALSE(accepts(6, std::vector<uint8_t>(1 << 20, 0x81)));  // a list of one, which is
  EXPECT_FALSE(accepts(6, std::vector<uint8_t>(1 << 20, 0x9f)));  // of any number
}

TEST(JsonDepth, WhatIsNoMessageIsRefused) {
  EXPECT_FALSE(accepts(6, {}));
  EXPECT_FALSE(accepts(6, {0x82, 0x01}));  // a list of two that has one
  EXPECT_FALSE(accepts(6, {0x01, 0x01}));  // a second value after the end
  EXPECT_FALSE(accepts(6, {0xff}));        // an end without a beginning
}

}  // namespace
}  // namespace mercury
