#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "apps/run/rules_file.h"
#include "shim/socket/api/rules.h"

namespace mercury {
namespace {

std::string written(const std::string& text) {
  const std::string path = ::testing::TempDir() + "mercury-rules-" +
                           ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::ofstream(path) << text;
  return path;
}

std::string read(const std::string& text) {
  const auto rules = read_rules_file(written(text));
  EXPECT_TRUE(rules) << rules.error().message;
  return rules ? *rules : "";
}

// Behind the file's name.
std::string complaint(const std::string& text) {
  const std::string path = written(text);
  const auto rules = read_rules_file(path);
  EXPECT_FALSE(rules) << *rules;
  if (rules) return "";
  EXPECT_EQ(rules.error().message.substr(0, path.size() + 1), path + ":") << rules.error().message;
  return rules.error().message.substr(path.size() + 1);
}

TEST(RulesFile, IsHandedOnInOneLine) {
  EXPECT_EQ(read(""), "mercury");
  EXPECT_EQ(read("otherwise = 'kernel'"), "kernel");
  const std::string rules = read(R"(
otherwise = "kernel"
[[rule]]
through = "kernel"
programs = ["ssh", "sshd*"]
[[rule]]
through = "mercury"
addresses = ["10.0.0.0/8", "fd00::/16"]
ports = [80, "8000-8999"]
)");
  EXPECT_EQ(
      rules,
      "kernel program=ssh,sshd*;mercury address=10.0.0.0/8,fd00::/16 port=80,8000-8999;kernel");
  EXPECT_TRUE(sockets::is_rules(rules));
}

TEST(RulesFile, SaysLineAndWhatWasExpected) {
  EXPECT_EQ(complaint("otherwise = 'sometimes'"),
            "1: otherwise: expected \"mercury\" or \"kernel\", got 'sometimes'");
  EXPECT_EQ(complaint("\n[[rule]]\nprograms = ['a']"),
            "2: rule.through: expected \"mercury\" or \"kernel\", got nothing");
  EXPECT_EQ(complaint("[[rule]]\nthrough = 'kernel'\nports = [22, '99999']"),
            "3: rule.ports: expected a list of ports, such as [22, \"8000-8999\"], got '99999'");
  EXPECT_EQ(complaint("[[rule]]\nthrough = 'kernel'\nports = 22"),
            "3: rule.ports: expected a list of ports, such as [22, \"8000-8999\"], got 22");
  EXPECT_EQ(complaint("[[rule]]\nthrough = 'kernel'\nprograms = []").substr(0, 26),
            "3: rule.programs: expected");
  EXPECT_EQ(complaint("[[rule]]\nthrough = 'kernel'\nprograms = ['/bin/a']").substr(0, 26),
            "3: rule.programs: expected");
  EXPECT_EQ(complaint("[[rule]]\nthrough = 'kernel'\nprograms = ['a;mercury']").substr(0, 26),
            "3: rule.programs: expected");
  EXPECT_EQ(complaint("[[rule]]\nthrough = 'kernel'\naddresses = ['10.0.0.0/33']").substr(0, 27),
            "3: rule.addresses: expected");
  EXPECT_EQ(complaint("[[rule]]\nthrough = 'kernel'\nport = [22]").substr(0, 20),
            "3: rule.port: expect");
  EXPECT_EQ(complaint("[rule]\nthrough = 'kernel'").substr(0, 17), "1: rule: expected");
  EXPECT_EQ(complaint("rules = 1").substr(0, 17), "1: rules: expecte");
  EXPECT_EQ(complaint("\n\n[[rule").substr(0, 2), "3:");
}

TEST(RulesFile, MayNotBeTooLongToBeHandedOn) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "[[rule]]\nthrough = 'kernel'\nports = [22]\n";
  EXPECT_NE(complaint(text).find("at most 4096 bytes"), std::string::npos);
}

TEST(RulesFile, MustBeThere) {
  const auto rules = read_rules_file("/none/rules.toml");
  ASSERT_FALSE(rules);
  EXPECT_NE(rules.error().message.find("/none/rules.toml"), std::string::npos);
}

}  // namespace
}  // namespace mercury
