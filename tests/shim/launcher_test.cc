#include "shim/client/launcher.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <string>

#include "shim/client/mercury.h"

namespace mercury::client {
namespace {

std::map<std::string, std::string> environment;

using Setting = std::map<std::string, std::string>;

Result<LaunchedMember> read(Setting setting) {
  environment = std::move(setting);
  return read_launcher([](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  });
}

// "ROLE RANK of WORKERS+SERVERS NAME at RENDEZVOUS", or the error.
std::string said(Setting setting) {
  const auto m = read(std::move(setting));
  if (!m) return m.error().message;
  const auto number = [](const std::optional<int>& n) { return n ? std::to_string(*n) : "-"; };
  return std::string(m->role ? name_of(*m->role) : "-") + " " + number(m->rank) + " of " +
         number(m->workers) + "+" + number(m->servers) + " " + m->name.value_or("-") + " at " +
         m->rendezvous.value_or("-");
}

TEST(Launcher, NoneIsNotFound) {
  EXPECT_EQ(read({}).error().code, Errc::kNotFound);
  EXPECT_EQ(read({{"RANK", "1"}}).error().code, Errc::kNotFound) << "too common a name by itself";
}

TEST(Launcher, Mercury) {
  EXPECT_EQ(said({{"MERCURY_ROLE", "server"},
                  {"MERCURY_RANK", "1"},
                  {"MERCURY_WORKERS", "4"},
                  {"MERCURY_SERVERS", "2"},
                  {"MERCURY_JOB", "bert"},
                  {"MERCURY_RENDEZVOUS", "10.0.0.1:7470"}}),
            "server 1 of 4+2 bert at 10.0.0.1:7470");
  EXPECT_EQ(said({{"MERCURY_WORKERS", "4"}, {"MERCURY_RENDEZVOUS", "a:1,b:2,c:3"}}),
            "worker - of 4+3 - at a:1,b:2,c:3")
      << "daemons serve: as many as the rendezvous lists";
  const auto secret = read({{"MERCURY_ROLE", "worker"}, {"MERCURY_SECRET", "s3"}});
  EXPECT_EQ(secret->secret, "s3");
}

TEST(Launcher, PsLite) {
  const Setting base{{"DMLC_ROLE", "worker"},
                     {"DMLC_NUM_WORKER", "4"},
                     {"DMLC_NUM_SERVER", "2"},
                     {"DMLC_PS_ROOT_URI", "10.0.0.1"},
                     {"DMLC_PS_ROOT_PORT", "9000"}};
  const auto with = [&](Setting more) {
    more.insert(base.begin(), base.end());
    return more;
  };
  EXPECT_EQ(said(base), "worker - of 4+2 - at 10.0.0.1:9000");
  EXPECT_EQ(said(with({{"DMLC_WORKER_ID", "3"}})), "worker 3 of 4+2 - at 10.0.0.1:9000");
  EXPECT_EQ(said(with({{"DMLC_ROLE", "server"}, {"DMLC_SERVER_ID", "1"}})),
            "server 1 of 4+2 - at 10.0.0.1:9000");
  EXPECT_EQ(said(with({{"MERCURY_RENDEZVOUS", "b:1"}})), "worker - of 4+2 - at b:1");
  EXPECT_EQ(read({{"DMLC_ROLE", "scheduler"}}).error().code, Errc::kUnsupported);
}

TEST(Launcher, Torchrun) {
  const Setting base{{"RANK", "1"},
                     {"WORLD_SIZE", "4"},
                     {"MASTER_ADDR", "node0"},
                     {"MASTER_PORT", "29500"},
                     {"TORCHELASTIC_RUN_ID", "run 7"}};
  const auto with = [&](Setting more) {
    more.insert(base.begin(), base.end());
    return more;
  };
  EXPECT_EQ(said(base), "worker 1 of 4+1 torchrun-run_7 at node0:29500");
  EXPECT_EQ(said(with({{"MERCURY_SERVERS", "1"}})),
            "worker 0 of 3+1 torchrun-run_7 at node0:29500");
  EXPECT_EQ(said(with({{"MERCURY_SERVERS", "2"}})),
            "server 1 of 2+2 torchrun-run_7 at node0:29500");
  EXPECT_EQ(said(with({{"MERCURY_SERVERS", "2"}, {"MERCURY_WORKERS", "4"}})),
            "worker 1 of 4+2 torchrun-run_7 at node0:29500")
      << "the servers are elsewhere";
}

TEST(Launcher, OpenMpiAndSlurm) {
  EXPECT_EQ(said({{"OMPI_COMM_WORLD_RANK", "0"},
                  {"OMPI_COMM_WORLD_SIZE", "4"},
                  {"MERCURY_SERVERS", "1"},
                  {"MERCURY_RENDEZVOUS", "127.0.0.1:1"}}),
            "server 0 of 3+1 - at 127.0.0.1:1");
  EXPECT_EQ(said({{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "3"}, {"SLURM_JOB_ID", "99"}}),
            "worker 2 of 3+- slurm-99 at -");
  EXPECT_EQ(said({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "2"}}),
            "worker 1 of 2+- - at -");
}

TEST(Launcher, TheInnermostLauncherCounts) {
  Setting all{{"MERCURY_RANK", "9"},
              {"MERCURY_WORKERS", "10"},
              {"DMLC_ROLE", "worker"},
              {"DMLC_WORKER_ID", "8"},
              {"RANK", "7"},
              {"WORLD_SIZE", "8"},
              {"OMPI_COMM_WORLD_RANK", "6"},
              {"OMPI_COMM_WORLD_SIZE", "7"},
              {"SLURM_PROCID", "5"},
              {"SLURM_NTASKS", "6"}};
  EXPECT_EQ(read(all)->rank, 9);
  all.erase("MERCURY_RANK");
  all.erase("MERCURY_WORKERS");
  EXPECT_EQ(read(all)->rank, 8);
  all.erase("DMLC_ROLE");
  EXPECT_EQ(read(all)->rank, 7);
  all.erase("RANK");
  EXPECT_EQ(read(all)->rank, 6);
  all.erase("OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(read(all)->rank, 5);
}

TEST(Launcher, NamesTheVariableThatIsWrong) {
  const auto names = [](Setting setting, const std::string& variable) {
    const auto m = read(std::move(setting));
    return !m && m.error().code == Errc::kInvalidArgument &&
           m.error().message.find(variable) != std::string::npos;
  };
  EXPECT_TRUE(names({{"MERCURY_ROLE", "boss"}}, "MERCURY_ROLE='boss'"));
  EXPECT_TRUE(names({{"MERCURY_RANK", "1x"}}, "MERCURY_RANK"));
  EXPECT_TRUE(names({{"MERCURY_RANK", "99999999999"}}, "MERCURY_RANK"));
  EXPECT_TRUE(names({{"MERCURY_RANK", "0"}, {"MERCURY_WORKERS", "257"}}, "MERCURY_WORKERS"));
  EXPECT_TRUE(names({{"MERCURY_RANK", "0"}, {"MERCURY_JOB", "a/b"}}, "MERCURY_JOB"));
  EXPECT_TRUE(names({{"DMLC_ROLE", "worker"}, {"DMLC_NUM_WORKER", "zero"}}, "DMLC_NUM_WORKER"));
  EXPECT_TRUE(names({{"RANK", "4"}, {"WORLD_SIZE", "4"}}, "RANK"));
  EXPECT_TRUE(
      names({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "0"}},
            "MASTER_PORT"));
  EXPECT_TRUE(names({{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE"));
  EXPECT_TRUE(
      names({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MERCURY_SERVERS", "2"}}, "MERCURY_SERVERS=2"));
  EXPECT_TRUE(
      names({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MERCURY_WORKERS", "3"}}, "MERCURY_WORKERS=3"));
  EXPECT_TRUE(names(
      {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MERCURY_SERVERS", "2"}, {"MERCURY_WORKERS", "3"}},
      "MERCURY_WORKERS=3"));
}

TEST(Launcher, TheCFunctionFillsWhatWasSaid) {
  for (const char* name : {"RANK", "WORLD_SIZE", "DMLC_ROLE", "OMPI_COMM_WORLD_RANK"}) {
    ::unsetenv(name);
  }
  mercury_job_options options;
  mercury_job_options_init(&options);
  EXPECT_EQ(mercury_job_options_from_env(&options), -ENOENT);
  ::setenv("MERCURY_ROLE", "worker", 1);
  ::setenv("MERCURY_RANK", "2", 1);
  ::setenv("MERCURY_WORKERS", "3", 1);
  ::setenv("MERCURY_JOB", "named", 1);
  options.servers = 7;
  ASSERT_EQ(mercury_job_options_from_env(&options), 0) << mercury_last_error();
  EXPECT_EQ(options.rank, 2);
  EXPECT_EQ(options.workers, 3);
  EXPECT_EQ(options.servers, 7) << "not said: left alone";
  EXPECT_STREQ(options.name, "named");
  EXPECT_EQ(options.rendezvous, nullptr);
  ::setenv("MERCURY_RANK", "two", 1);
  EXPECT_EQ(mercury_job_options_from_env(&options), -EINVAL);
  EXPECT_NE(std::string(mercury_last_error()).find("MERCURY_RANK"), std::string::npos);
  options.size = 1;
  EXPECT_EQ(mercury_job_options_from_env(&options), -EINVAL);
  EXPECT_EQ(mercury_job_options_from_env(nullptr), -EINVAL);
}

}  // namespace
}  // namespace mercury::client
