#include "shim/client/launcher.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "shim/client/mercurystack/mercury.h"

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

TEST(Launcher, ASecretComesFromAFileWhereAskedFor) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("launcher." + std::to_string(::getpid()));
  std::ofstream(path) << "from a file\nnot this\n";
  const auto from = [](Setting more) {
    more["MERCURY_ROLE"] = "worker";
    return read(more);
  };
  const auto secret = from({{"MERCURY_SECRET_FILE", path.string()}});
  ASSERT_TRUE(secret) << secret.error().message;
  EXPECT_EQ(secret->secret, "from a file");
  const auto both = from({{"MERCURY_SECRET_FILE", path.string()}, {"MERCURY_SECRET", "s3"}});
  ASSERT_FALSE(both);
  EXPECT_NE(both.error().message.find("MERCURY_SECRET is set as well"), std::string::npos);
  std::filesystem::remove(path);
  const auto none = from({{"MERCURY_SECRET_FILE", path.string()}});
  ASSERT_FALSE(none) << "no secret would be another job";
  EXPECT_NE(none.error().message.find("MERCURY_SECRET_FILE: expected a readable file"),
            std::string::npos)
      << none.error().message;
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
  EXPECT_EQ(said(with({{"DMLC_RANK", "2"}})), "worker 2 of 4+2 - at 10.0.0.1:9000");
  EXPECT_EQ(said(with({{"MERCURY_RENDEZVOUS", "b:1"}})), "worker - of 4+2 - at b:1")
      << "ps-lite's root is its scheduler, which need not be where server 0 is";
  EXPECT_EQ(said(with({{"DMLC_PS_ROOT_URI", "fd00::1"}})), "worker - of 4+2 - at [fd00::1]:9000");
  EXPECT_EQ(said({{"DMLC_ROLE", "worker"},
                  {"DMLC_NUM_WORKER", "1"},
                  {"DMLC_NUM_SERVER", "1"},
                  {"DMLC_PS_ROOT_URI", "node0"}}),
            "worker - of 1+1 - at node0:7470");
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
  EXPECT_EQ(said(base), "worker 1 of 4+1 torchrun-run_7 at node0:7470") << "its daemon serves";
  EXPECT_EQ(said(with({{"MERCURY_SERVERS", "1"}})),
            "worker 0 of 3+1 torchrun-run_7 at node0:29500");
  EXPECT_EQ(said(with({{"MERCURY_SERVERS", "2"}})),
            "server 1 of 2+2 torchrun-run_7 at node0:29500");
  EXPECT_EQ(said(with({{"MERCURY_SERVERS", "2"}, {"MERCURY_WORKERS", "4"}})),
            "worker 1 of 4+2 torchrun-run_7 at node0:7470")
      << "the servers are elsewhere";
  EXPECT_EQ(said({{"RANK", "0"},
                  {"WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "fd00::1"},
                  {"MASTER_PORT", "29500"},
                  {"MERCURY_SERVERS", "1"}}),
            "server 0 of 1+1 - at [fd00::1]:29500");
  EXPECT_EQ(said(with({{"MERCURY_RENDEZVOUS", "a:1,b"}, {"MERCURY_JOB", "mine"}})),
            "worker 1 of 4+2 mine at a:1,b");
}

TEST(Launcher, AddressesWhereTheLauncherSaysThem) {
  const Setting mpi{
      {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"MERCURY_SERVERS", "2"}};
  const auto with = [](Setting base, Setting more) {
    more.insert(base.begin(), base.end());
    return more;
  };
  EXPECT_EQ(said(with(mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}})),
            "server 1 of 2+2 - at 127.0.0.1:7470");
  EXPECT_EQ(said(with(mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})), "server 1 of 2+2 - at -")
      << "several machines";
  EXPECT_EQ(said({{"OMPI_COMM_WORLD_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
            "worker 1 of 4+- - at -")
      << "daemons serve; they do not listen on the loopback interface";
  const Setting slurm{
      {"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"MERCURY_SERVERS", "2"}};
  const std::pair<const char*, const char*> lists[] = {{"gpu[03-07,11],login1", "gpu03"},
                                                       {"gpu7", "gpu7"},
                                                       {"a,b", "a"},
                                                       {"rack[1-2]n[01,04-05]x,y", "rack1n01x"},
                                                       {"half[1", "half1"}};
  for (const auto& [list, first] : lists) {
    EXPECT_EQ(said(with(slurm, {{"SLURM_STEP_NODELIST", list}, {"SLURM_JOB_NODELIST", "other"}})),
              "worker 1 of 2+2 - at " + std::string(first) + ":7470");
  }
  EXPECT_EQ(said(with(slurm, {{"SLURM_NODELIST", "n1"}})), "worker 1 of 2+2 - at n1:7470");
  EXPECT_EQ(said(with(slurm, {{"SLURM_JOB_NODELIST", "n1"}, {"MERCURY_RENDEZVOUS", "n2:1"}})),
            "worker 1 of 2+2 - at n2:1");
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
              {"DMLC_NUM_WORKER", "9"},
              {"DMLC_NUM_SERVER", "1"},
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

// One variable of a launcher set wrongly, or left out.
struct Wrong {
  const char* launcher;
  const char* variable;
  const char* value;     // null: left out
  const char* expected;  // what the message says beside the variable's name
};

const std::map<std::string, Setting> kLaunchers{
    {"mercury",
     {{"MERCURY_ROLE", "worker"},
      {"MERCURY_RANK", "1"},
      {"MERCURY_WORKERS", "4"},
      {"MERCURY_SERVERS", "2"}}},
    {"dmlc",
     {{"DMLC_ROLE", "worker"},
      {"DMLC_NUM_WORKER", "4"},
      {"DMLC_NUM_SERVER", "2"},
      {"DMLC_WORKER_ID", "1"},
      {"DMLC_PS_ROOT_URI", "a"},
      {"DMLC_PS_ROOT_PORT", "9"}}},
    {"dmlc server", {{"DMLC_ROLE", "server"}, {"DMLC_NUM_WORKER", "4"}, {"DMLC_NUM_SERVER", "2"}}},
    {"torchrun", {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "9"}}},
    {"mpi",
     {{"OMPI_COMM_WORLD_RANK", "0"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
      {"MERCURY_SERVERS", "1"}}},
    {"slurm", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}}},
};

const Wrong kWrong[] = {
    {"mercury", "MERCURY_ROLE", "boss", "must be worker or server"},
    {"mercury", "MERCURY_RANK", "1x", "must be -1 to 1023"},
    {"mercury", "MERCURY_RANK", "99999999999", "must be -1 to 1023"},
    {"mercury", "MERCURY_RANK", "4", "there are 4 workers, ranks begin with 0"},
    {"mercury", "MERCURY_WORKERS", "1025", "must be 1 to 1024"},
    {"mercury", "MERCURY_WORKERS", "0", "must be 1 to 1024"},
    {"mercury", "MERCURY_SERVERS", "-1", "must be 1 to 1024"},
    {"mercury", "MERCURY_SERVERS", " 1", "must be 1 to 1024"},
    {"mercury", "MERCURY_JOB", "a/b", "must be 1 to 63 of [A-Za-z0-9_.-]"},
    {"mercury", "MERCURY_RENDEZVOUS", "a:b", "'a:b' is not ADDRESS:PORT"},
    {"mercury", "MERCURY_RENDEZVOUS", "a:1,", "'' is not ADDRESS:PORT"},
    {"mercury", "MERCURY_RENDEZVOUS", ":7470", "is not ADDRESS:PORT"},
    {"mercury", "MERCURY_RENDEZVOUS", "a:0", "is not ADDRESS:PORT"},
    {"mercury", "MERCURY_RENDEZVOUS", "[::1]:70000", "is not ADDRESS:PORT"},
    {"dmlc", "DMLC_ROLE", "Worker", "must be worker or server"},
    {"dmlc", "DMLC_NUM_WORKER", "zero", "must be 1 to 1024"},
    {"dmlc", "DMLC_NUM_WORKER", nullptr, "is missing beside DMLC_ROLE"},
    {"dmlc", "DMLC_NUM_SERVER", "0", "must be 1 to 1024"},
    {"dmlc", "DMLC_NUM_SERVER", nullptr, "is missing beside DMLC_ROLE"},
    {"dmlc", "DMLC_WORKER_ID", "4", "there are 4 workers"},
    {"dmlc", "DMLC_WORKER_ID", "-1", "must be 0 to 2048"},
    {"dmlc", "DMLC_PS_ROOT_PORT", "65536", "must be 1 to 65535"},
    {"dmlc", "DMLC_PS_ROOT_URI", nullptr, "is missing beside DMLC_PS_ROOT_PORT"},
    {"dmlc", "MERCURY_WORKERS", "3", "contradicts DMLC_NUM_WORKER=4"},
    {"dmlc", "MERCURY_SERVERS", "1", "contradicts DMLC_NUM_SERVER=2"},
    {"dmlc server", "DMLC_SERVER_ID", "2", "there are 2 servers"},
    {"dmlc server", "DMLC_RANK", "x", "must be 0 to 2048"},
    {"torchrun", "RANK", "4", "must be 0 to 3"},
    {"torchrun", "WORLD_SIZE", "0", "must be 1 to 2048"},
    {"torchrun", "WORLD_SIZE", "1025", "at most 1024 workers"},
    {"torchrun", "MASTER_PORT", "0", "must be 1 to 65535"},
    {"torchrun", "MASTER_ADDR", nullptr, "is missing beside MASTER_PORT"},
    {"torchrun", "MERCURY_SERVERS", "4", "only 4 processes were launched"},
    {"torchrun", "MERCURY_WORKERS", "3", "4 processes were launched"},
    {"mpi", "OMPI_COMM_WORLD_SIZE", nullptr, "is missing beside OMPI_COMM_WORLD_RANK"},
    {"mpi", "OMPI_COMM_WORLD_SIZE", "four", "must be 1 to 2048"},
    {"mpi", "OMPI_COMM_WORLD_RANK", "-1", "must be 0 to 3"},
    {"mpi", "OMPI_COMM_WORLD_LOCAL_SIZE", "?", "must be 1 to 2048"},
    {"mpi", "MERCURY_WORKERS", "2",
     "4 processes were launched (OMPI_COMM_WORLD_SIZE), 1 of them servers"},
    {"slurm", "SLURM_NTASKS", nullptr, "is missing beside SLURM_PROCID"},
    {"slurm", "SLURM_STEP_NUM_TASKS", "1.5", "must be 1 to 2048"},
    {"slurm", "SLURM_PROCID", "x", "must be 0 to 3"},
};

TEST(Launcher, NamesTheVariableThatIsWrongAndWhatWasExpected) {
  for (const auto& [launcher, setting] : kLaunchers) {
    EXPECT_TRUE(read(setting).has_value()) << launcher << ": " << said(setting);
  }
  for (const Wrong& wrong : kWrong) {
    Setting setting = kLaunchers.at(wrong.launcher);
    setting.erase(wrong.variable);
    if (wrong.value) setting[wrong.variable] = wrong.value;
    const auto m = read(setting);
    ASSERT_FALSE(m.has_value()) << wrong.variable << "=" << (wrong.value ? wrong.value : "(none)");
    EXPECT_EQ(m.error().code, Errc::kInvalidArgument);
    EXPECT_NE(m.error().message.find(wrong.variable), std::string::npos) << m.error().message;
    EXPECT_NE(m.error().message.find(wrong.expected), std::string::npos) << m.error().message;
  }
}

TEST(Launcher, TheCFunctionFillsWhatWasSaid) {
  for (const char* name : {"RANK", "WORLD_SIZE", "DMLC_ROLE", "OMPI_COMM_WORLD_RANK"}) {
    ::unsetenv(name);
  }
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
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
