#include "transport/base/job_name.h"

#include <gtest/gtest.h>

#include <string>

namespace mercury {
namespace {

TEST(JobName, IsCheckedToTheLetter) {
  EXPECT_TRUE(is_job_name("a"));
  EXPECT_TRUE(is_job_name("Train_1.2-x"));
  EXPECT_TRUE(is_job_name(std::string(63, 'x')));
  EXPECT_FALSE(is_job_name(""));
  EXPECT_FALSE(is_job_name(std::string(64, 'x')));
  EXPECT_FALSE(is_job_name("a b"));
  EXPECT_FALSE(is_job_name("a\n"));
  EXPECT_FALSE(is_job_name("\xc3\xa4"));
}

}  // namespace
}  // namespace mercury
