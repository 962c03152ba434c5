#include "transport/base/environment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace mercury {
namespace {

// What find_misspelt says of one variable: the name that was meant, or nothing.
std::string meant_by(const std::string& name) {
  const std::vector<std::string> names = {name};
  const auto misspelt = find_misspelt(names, kProgramVariables);
  if (!misspelt) return "";
  EXPECT_EQ(misspelt->name, name);
  return misspelt->meant;
}

TEST(Environment, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("abc", "abc"), 0U);
  EXPECT_EQ(edit_distance("abc", "abcd"), 1U);
  EXPECT_EQ(edit_distance("abcd", "abd"), 1U);
  EXPECT_EQ(edit_distance("abc", "xbc"), 1U);
  EXPECT_EQ(edit_distance("abc", "acb"), 1U);
  EXPECT_EQ(edit_distance("abcd", "badc"), 2U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

TEST(Environment, NamesWhatAMisspeltVariableWasMeantToBe) {
  EXPECT_EQ(meant_by("MERCURY_WOKERS"), "MERCURY_WORKERS");
  EXPECT_EQ(meant_by("MERCURY_WORKER"), "MERCURY_WORKERS");
  EXPECT_EQ(meant_by("MERCURY_SERVER"), "MERCURY_SERVERS");
  EXPECT_EQ(meant_by("MERCURY_RNAK"), "MERCURY_RANK");
  EXPECT_EQ(meant_by("MERCURY_SOKET"), "MERCURY_SOCKET");
  EXPECT_EQ(meant_by("MERCURY_RENDEVOUS"), "MERCURY_RENDEZVOUS");
  EXPECT_EQ(meant_by("MERCURY_rank"), "");  // four of four differ
  EXPECT_EQ(describe({"MERCURY_WOKERS", "MERCURY_WORKERS"}),
            "$MERCURY_WOKERS is not a variable of Mercury's; did you mean $MERCURY_WORKERS?");
}

TEST(Environment, LeavesAloneWhatIsRightOrSomebodyElses) {
  for (const std::string_view name : kProgramVariables) EXPECT_EQ(meant_by(std::string(name)), "");
  // Kubernetes, for services called mercury, mercury-server and mercury-job; the Mercury language.
  for (const char* name :
       {"MERCURY_SERVICE_HOST", "MERCURY_SERVICE_PORT", "MERCURY_PORT", "MERCURY_PORT_7470_UDP",
        "MERCURY_PORT_7470_UDP_ADDR", "MERCURY_SERVER_SERVICE_HOST", "MERCURY_SERVER_PORT",
        "MERCURY_JOB_SERVICE_PORT", "MERCURY_OPTIONS", "MERCURY_COMPILER", "MERCURY_DEFAULT_GRADE",
        "MERCURY_", "MERCURY_X"}) {
    EXPECT_EQ(meant_by(name), "") << name;
  }
  EXPECT_EQ(meant_by("MERCURY_" + std::string(1 << 20, 'S')), "");
  // Nearly a daemon's key, and still Kubernetes'.
  const std::vector<std::string> given = {"MERCURY_PORT_443_UDP_PORT", "MERCURY_PORT_53_UDP_PORT"};
  const std::vector<std::string_view> keys = {"MERCURY_PORT_UDP_PORT"};
  EXPECT_FALSE(find_misspelt(given, keys));
}

TEST(Environment, LooksPastACloserNameThatIsTooShortToBeMeant) {
  const std::vector<std::string> given = {"MERCURY_ABCDEFXYZ"};
  const std::vector<std::string_view> known = {"MERCURY_ABCDEF", "MERCURY_ABCDEFGHIJKL"};
  EXPECT_FALSE(find_misspelt(given, std::span(known).first(1)));
  EXPECT_FALSE(find_misspelt({given.data(), 1}, std::span(known).first(1)));
  const std::vector<std::string> longer = {"MERCURY_ABCDEFGHI"};
  const auto found = find_misspelt(longer, known);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->meant, "MERCURY_ABCDEFGHIJKL");
}

TEST(Environment, FindsTheClosestName) {
  EXPECT_EQ(closest_name("MERCURY_SOCK", kProgramVariables), "MERCURY_SOCKET");
  EXPECT_EQ(closest_name("anything", {}), "");
}

TEST(Environment, ListsThisProcesssVariables) {
  ::setenv("MERCURY_LISTED", "a=b", 1);
  ::setenv("NOT_MERCURY_LISTED", "", 1);
  const std::vector<std::string> names = mercury_variables();
  ::unsetenv("MERCURY_LISTED");
  ::unsetenv("NOT_MERCURY_LISTED");
  EXPECT_EQ(std::count(names.begin(), names.end(), "MERCURY_LISTED"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "NOT_MERCURY_LISTED"), 0);
}

}  // namespace
}  // namespace mercury
