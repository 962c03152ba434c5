#include "shim/socket/api/rules.h"

#include <gtest/gtest.h>

#include <string>

namespace mercury::sockets {
namespace {

Endpoint at(const char* text) { return *Endpoint::parse(text); }

bool through_mercury(std::string_view rules, std::string_view program, const char* endpoint) {
  const auto through = decide(rules, program, at(endpoint));
  EXPECT_TRUE(through) << rules;
  return through == Through::kMercury;
}

TEST(Rules, TheFirstThatFitsDecides) {
  EXPECT_TRUE(through_mercury("", "a", "10.0.0.1:80"));
  EXPECT_TRUE(through_mercury("mercury;kernel", "a", "10.0.0.1:80"));
  EXPECT_FALSE(through_mercury("kernel;mercury", "a", "10.0.0.1:80"));
  EXPECT_TRUE(through_mercury("kernel port=81 ; mercury", "a", "10.0.0.1:80"));
}

TEST(Rules, AllConditionsOfARuleMustHold) {
  const std::string rules =
      "mercury program=a,b* address=10.0.0.0/8,fd00::/16 port=80,8000-8999;kernel";
  EXPECT_TRUE(through_mercury(rules, "a", "10.1.2.3:80"));
  EXPECT_TRUE(through_mercury(rules, "bcd", "[fd00::7]:8500"));
  EXPECT_FALSE(through_mercury(rules, "c", "10.1.2.3:80"));
  EXPECT_FALSE(through_mercury(rules, "a", "11.1.2.3:80"));
  EXPECT_FALSE(through_mercury(rules, "a", "10.1.2.3:79"));
  EXPECT_FALSE(through_mercury(rules, "a", "[fd01::7]:80"));
}

TEST(Rules, GlobsAndPrefixesHaveEdges) {
  const auto fits = [](const std::string& glob, std::string_view name) {
    return through_mercury("mercury program=" + glob + ";kernel", name, "1.2.3.4:5");
  };
  EXPECT_TRUE(fits("*", ""));
  EXPECT_TRUE(fits("a*c*e", "abcde"));
  EXPECT_FALSE(fits("a*c*e", "abcd"));
  EXPECT_TRUE(fits("?b", "ab"));
  EXPECT_FALSE(fits("?b", "b"));
  EXPECT_TRUE(through_mercury("mercury address=10.0.0.0/9;kernel", "", "10.127.0.1:1"));
  EXPECT_FALSE(through_mercury("mercury address=10.0.0.0/9;kernel", "", "10.128.0.1:1"));
  EXPECT_TRUE(through_mercury("mercury address=0.0.0.0/0;kernel", "", "10.128.0.1:1"));
  EXPECT_FALSE(through_mercury("mercury address=0.0.0.0/0;kernel", "", "[fd00::1]:1"));
  EXPECT_TRUE(through_mercury("mercury address=::/0;kernel", "", "10.128.0.1:1"));  // mapped
  EXPECT_TRUE(through_mercury("mercury port=1-65535;kernel", "", "10.128.0.1:65535"));
}

TEST(Rules, TheDefaultsLeaveARemoteShellAlone) {
  EXPECT_FALSE(through_mercury(kDefaultRules, "ssh", "10.0.0.1:2222"));
  EXPECT_FALSE(through_mercury(kDefaultRules, "sshd", "10.0.0.1:2222"));
  EXPECT_FALSE(through_mercury(kDefaultRules, "proxy", "10.0.0.1:22"));
  EXPECT_TRUE(through_mercury(kDefaultRules, "python3", "10.0.0.1:2222"));
}

TEST(Rules, WhatIsNoRuleIsFoundWhereverItStands) {
  for (const char* bad :
       {"nobody", "kernel;sometimes", "mercury;kernel port=0", "kernel port=80-79", "kernel port=x",
        "kernel port=65536", "kernel address=10.0.0.0/33", "kernel address=ten",
        "kernel address=", "kernel address=/8", "kernel program=", "kernel program=a/b",
        "kernel colour=red", "kernel port", "port=80"}) {
    EXPECT_FALSE(is_rules(bad)) << bad;
  }
  EXPECT_FALSE(is_rules("kernel program=" + std::string(256, 'a')));
  EXPECT_FALSE(is_rules(std::string(kMostRulesBytes + 1, ';')));
  EXPECT_TRUE(is_rules(kDefaultRules));
  EXPECT_TRUE(is_rules(" ; "));
}

}  // namespace
}  // namespace mercury::sockets
