#include "apps/stackd/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/stackd/authentication.h"
#include "apps/stackd/config_table.h"
#include "apps/stackd/descriptors.h"

namespace mercury {
namespace {

class ConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ =
        std::filesystem::path(testing::TempDir()) /
        (std::string("config-") + testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { std::filesystem::remove(path_); }
  Result<StackdConfig> load(const std::string& text, std::vector<std::string> overrides = {}) {
    std::ofstream(path_) << text;
    return load_config(path_, overrides);
  }
  // The error's text behind "FILE:".
  std::string error(const std::string& text) {
    Result<StackdConfig> config = load(text);
    if (config) return "(accepted)";
    const std::string& message = config.error().message;
    EXPECT_EQ(message.find(path_.string() + ":"), 0U) << message;
    return message.substr(path_.string().size() + 1);
  }
  std::filesystem::path path_;
};

TEST_F(ConfigTest, ReadsEveryKindOfValue) {
  Result<StackdConfig> config = load(
      "[port]\naddress = [\"10.0.0.1/24\"]\nrate = \"200Mbit\"\nengines = 2\n"
      "[engine]\nspin = \"50us\"\ncores = [0, 1]\n[jobs]\nserve = false\n"
      "[[job]]\nname = \"a\"\nsecret = \"s\"\nmemory = \"1GiB\"\nweight = 7\nrate = \"2Gbps\"\n");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->addresses, (std::vector<IpPrefix>{{IpAddress::v4(10, 0, 0, 1), 24}}));
  EXPECT_EQ(config->rate_bits_per_second, 200'000'000U);
  EXPECT_EQ(config->engines, 2U);
  EXPECT_EQ(config->spin_ns, 50'000U);
  EXPECT_EQ(config->cores, (std::vector<uint32_t>{0, 1}));
  EXPECT_FALSE(config->serve);
  ASSERT_EQ(config->jobs.size(), 1U);
  EXPECT_EQ(config->jobs[0].memory_bytes, 1U << 30);
  EXPECT_EQ(config->jobs[0].weight, 7U);
  EXPECT_EQ(config->jobs[0].bits_per_second, 2'000'000'000U);
  EXPECT_EQ(load("[[job]]\nname = \"a\"\nrate = \"0\"\n")->jobs[0].bits_per_second, 0U);
  EXPECT_EQ(config->max_weight, 1U) << "shares are the operator's to give";
}

TEST_F(ConfigTest, ErrorsNameLineKeyAndWhatWasExpected) {
  EXPECT_EQ(error("[port]\n\nudp_port = 70000\n"),
            "3: port.udp_port: expected a number from 1 to 65471, got \"70000\"");
  EXPECT_EQ(error("[port]\nsource_ports = 17\n"),
            "2: port.source_ports: expected a number from 1 to 16, got \"17\"");
  EXPECT_EQ(error("[port]\nudp_port = 65400\nengines = 12\nsource_ports = 12\n"),
            "4: port.source_ports: expected at most 65535 for the last of 144 UDP ports "
            "(port.engines times port.source_ports) from 65400 (port.udp_port) on, got 65543");
  EXPECT_EQ(load("[port]\nudp_port = 65392\nengines = 12\nsource_ports = 12\n")->source_ports, 12U);
  EXPECT_EQ(error("[port]\nengines = 33\n"),
            "2: port.engines: expected a number from 1 to 32, got \"33\"");
  EXPECT_EQ(error("[port]\nrate = \"fast\"\n"),
            "2: port.rate: expected a rate such as \"10Gbps\" from 0, got \"fast\"");
  EXPECT_EQ(error("[session]\nack_delay = 5\n"),
            "2: session.ack_delay: expected a time such as \"10ms\" from 0 to 100ms, got \"5\"");
  EXPECT_EQ(error("[engine]\npolling = \"lazy\"\n"),
            "2: engine.polling: expected one of adaptive|busy|interrupt, got \"lazy\"");
  EXPECT_EQ(error("[jobs]\nserve = 1\n"), "2: jobs.serve: expected true or false, got 1");
  EXPECT_EQ(error("[port]\nudpport = 1\n"),
            "2: unknown key port.udpport; did you mean port.udp_port?");
  EXPECT_EQ(error("[[job]]\nsecret = \"x\"\n"),
            "1: job.name: expected 1 to 63 of A-Z a-z 0-9 _ . -, got nothing");
  EXPECT_NE(error("[port\n"), "(accepted)");
}

TEST_F(ConfigTest, AddressesAndCpusAreCheckedWhereTheyStand) {
  EXPECT_EQ(error("[port]\naddress = [\"10.0.0.1/24\", \"10.0.0.300/24\"]\n"),
            "2: port.address: expected a list of addresses such as [\"10.0.0.1/24\"], "
            "got [ '10.0.0.1/24', '10.0.0.300/24' ]");
  EXPECT_NE(error("[port]\naddress = [\"10.0.0.1/33\"]\n"), "(accepted)");
  EXPECT_NE(error("[port]\naddress = [\"fd00::1/129\"]\n"), "(accepted)");
  EXPECT_NE(error("[port]\naddress = [\"10.0.0.1/\"]\n"), "(accepted)");
  EXPECT_NE(error("[port]\naddress = [\"\"]\n"), "(accepted)");
  EXPECT_NE(error("[port]\naddress = \"10.0.0.1\"\n"), "(accepted)");
  EXPECT_EQ(error("[port]\naddress = [\"10.0.0.1\", \"fd00::1/64\"]\n"), "(accepted)");
  EXPECT_EQ(error("[port]\ngateway = \"10.0.0.0/8\"\n"),
            "2: port.gateway: expected an IP address or \"\", got \"10.0.0.0/8\"");
  EXPECT_NE(error("[engine]\ncores = [-1]\n"), "(accepted)");
  EXPECT_NE(error("[engine]\ncores = [\"two\"]\n"), "(accepted)");
  EXPECT_NE(error("[engine]\ncores = [1.5]\n"), "(accepted)");
  EXPECT_FALSE(load("", {"engine.cores=0,x"}));
  EXPECT_EQ(load("", {"engine.cores=0,3", "port.engines=2"})->cores, (std::vector<uint32_t>{0, 3}));
}

// What an error shows is what is taken, as a flag and in the environment.
TEST_F(ConfigTest, ListsAreGivenAsTextInBothForms) {
  const std::vector<IpPrefix> addresses = {{IpAddress::v4(10, 0, 0, 1), 24},
                                           {*IpAddress::parse("fd00::1"), 64}};
  const std::vector<uint32_t> cores = {2, 3};
  for (const char* text : {"[\"10.0.0.1/24\", \"fd00::1/64\"]", "['10.0.0.1/24','fd00::1/64']",
                           "[10.0.0.1/24, fd00::1/64]", "10.0.0.1/24,fd00::1/64",
                           " 10.0.0.1/24 , fd00::1/64 ", "\"10.0.0.1/24\",\"fd00::1/64\""}) {
    Result<StackdConfig> config = load("", {"port.address=" + std::string(text)});
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->addresses, addresses) << text;
    setenv("MERCURY_PORT_ADDRESS", text, 1);
    config = load("");
    unsetenv("MERCURY_PORT_ADDRESS");
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->addresses, addresses) << text;
  }
  for (const char* text : {"[2, 3]", "[2,3]", "2,3", "2, 3"}) {
    Result<StackdConfig> config =
        load("[port]\nengines = 2\n", {"engine.cores=" + std::string(text)});
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->cores, cores) << text;
    setenv("MERCURY_ENGINE_CORES", text, 1);
    config = load("[port]\nengines = 2\n");
    unsetenv("MERCURY_ENGINE_CORES");
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->cores, cores) << text;
  }
  for (const char* none : {"", "[]", "[ ]"}) {
    EXPECT_TRUE(load("", {"engine.cores=" + std::string(none)})->cores.empty()) << none;
  }
  for (const char* wrong : {"[", "[2", "2]", "[[2]]", "2,,3", "[2;3]", "\"2", "two"}) {
    EXPECT_FALSE(load("", {"engine.cores=" + std::string(wrong)})) << wrong;
  }
}

TEST_F(ConfigTest, MisspeltVariablesAreRefused) {
  setenv("MERCURY_PORT_MUT", "9000", 1);
  const Result<StackdConfig> config = load("");
  unsetenv("MERCURY_PORT_MUT");
  ASSERT_FALSE(config);
  EXPECT_NE(config.error().message.find("did you mean $MERCURY_PORT_MTU?"), std::string::npos)
      << config.error().message;
}

// Whose fault it is decides the exit status.
TEST_F(ConfigTest, ErrorsOfTheCommandLineAreToldFromOthers) {
  for (const char* wrong :
       {"port.mtu", "mtu=9000", "port.mut=9000", "port.mtu=many", "port.mtu=7"}) {
    EXPECT_EQ(load("", {wrong}).error().code, Errc::kInvalidArgument) << wrong;
  }
  EXPECT_EQ(load("[port]\nmtu = 7\n").error().code, Errc::kConfig);
  EXPECT_EQ(load("[port]\nmtu = 7\n", {"port.udp_port=8000"}).error().code, Errc::kConfig);
}

TEST_F(ConfigTest, WhatIsWrongTogetherIsNamedWhereItStands) {
  EXPECT_EQ(error("[port]\nengines = 3\n[engine]\ncores = [0, 1]\n"),
            "4: engine.cores: expected one CPU for each of the 3 engines (port.engines), got 2");
  EXPECT_EQ(error("[port]\naddress = [\"10.0.0.1/24\", \"10.0.0.2/24\"]\n"),
            "2: port.address: expected one address of each family, got more");
  EXPECT_EQ(error("[port]\naddress = [\"fd00::1\", \"10.0.0.2/24\", \"fd00::2\"]\n"),
            "2: port.address: expected one address of each family, got more");
  for (const char* nobodys : {"0.0.0.0", "::", "224.0.0.1", "239.255.255.255", "ff02::1"}) {
    EXPECT_EQ(error("[port]\naddress = [\"" + std::string(nobodys) + "\"]\n"),
              "2: port.address: expected an address of this host, got " + std::string(nobodys));
  }
  EXPECT_EQ(error("[port]\ngateway = \"fd00::1\"\n"),
            "2: port.gateway: expected an IPv4 address, got fd00::1");
  EXPECT_EQ(error("[port]\ngateway6 = \"10.0.0.1\"\n"),
            "2: port.gateway6: expected an IPv6 address, got 10.0.0.1");
  EXPECT_EQ(
      error("[port]\ndscp = \"16:64\"\n"),
      "2: port.dscp: expected up to 8 of PRIORITY:DSCP with a comma between, priorities growing "
      "from 1 to 65536, DSCPs from 0 to 63, as in \"16:46, 256:26\"; got \"16:64\"");
  EXPECT_EQ(error("[port]\nvlan = 4095\n"),
            "2: port.vlan: expected a number from 0 to 4094, got \"4095\"");
  EXPECT_EQ(
      error("[port]\nkind = \"uring\"\naddress = [\"10.0.0.1\"]\nvlan = 5\n"),
      "4: port.vlan: expected 0 with kind \"uring\", got 5: set port.address to one of the "
      "kernel's interface for the VLAN (ip link add link INTERFACE name INTERFACE.5 type vlan "
      "id 5)");
  EXPECT_EQ(error("[port]\nmtu = 1279\n"), "2: port.mtu: expected 0 or at least 1280, got 1279");
  EXPECT_EQ(error("[attach]\nsocket = \"/" + std::string(101, 'a') + "\"\n"),
            "2: attach.socket: expected a path of 1 to 101 characters, got 102");
  EXPECT_EQ(error("[attach]\nsocket = \"/" + std::string(100, 'a') + "\"\n"), "(accepted)");
  EXPECT_EQ(error("[port]\nkind = \"uring\"\n"),
            " port.address: expected the address to listen on, got none");
  EXPECT_EQ(error("[port]\nkind = \"uring\"\naddress = [\"10.0.0.1\", \"fd00::1\"]\n"),
            "3: port.address: expected the address to listen on, got two");
}

TEST_F(ConfigTest, WhatOthersFindWrongIsNamedWhereItStands) {
  ASSERT_EQ(setenv("MERCURY_ATTACH_GROUP", "g", 1), 0);
  Result<StackdConfig> config = load("[port]\n\ninterface = \"e\"\n", {"port.mtu=1500"});
  unsetenv("MERCURY_ATTACH_GROUP");
  ASSERT_TRUE(config) << config.error().message;
  const std::string file = path_.string();
  for (const auto& [key, where] :
       {std::pair<std::string, std::string>{"port.interface", file + ":3"},
        {"port.mtu", "--set"},
        {"attach.group", "$MERCURY_ATTACH_GROUP"},
        {"engine.cores", file}}) {
    EXPECT_EQ(wrong_value(*config, key, "expected x").message, where + ": " + key + ": expected x");
  }
  EXPECT_EQ(wrong_value(StackdConfig(), "port.mtu", "expected x").message,
            "defaults: port.mtu: expected x");
}

TEST_F(ConfigTest, JobsAreCheckedAndSecretsNotShown) {
  EXPECT_EQ(error("[[job]]\nname = \"a b\"\n"),
            "1: job.name: expected 1 to 63 of A-Z a-z 0-9 _ . -, got \"a b\"");
  EXPECT_EQ(error("[[job]]\nname = \"a\"\n[[job]]\nname = \"a\"\n"),
            "3: job.name: expected each job once, got \"a\" again");
  EXPECT_EQ(error("[[job]]\nname = \"a\"\nsecret = 12345\n"), "3: job.secret: expected a string");
  EXPECT_NE(error("[[job]]\nname = \"a\"\nsecret_file = \"/nowhere\"\n"), "(accepted)");
  for (const char* weight : {"0", "1001", "-1", "\"7\"", "1.5"}) {
    EXPECT_EQ(error("[[job]]\nname = \"a\"\nweight = " + std::string(weight) + "\n").substr(0, 46),
              "3: job.weight: expected a number from 1 to 100")
        << weight;
  }
  for (const char* rate : {"0", "7", "\"7\"", "\"\"", "\"999kbps\"", "\"fast\"", "true"}) {
    EXPECT_EQ(error("[[job]]\nname = \"a\"\nrate = " + std::string(rate) + "\n").substr(0, 22),
              "3: job.rate: expected ")
        << rate;
  }
  EXPECT_EQ(error("[jobs]\nrate = \"999kbps\"\n"), "2: jobs.rate: expected 0 or at least 1Mbps");
  const std::string urgency = "[engine]\nturns = \"urgency\"\n";
  EXPECT_EQ(error(urgency), "(accepted)");
  for (const char* limit :
       {"[jobs]\nrate = \"1Mbps\"\n", "[[job]]\nname = \"a\"\nrate = \"1Mbps\"\n"}) {
    EXPECT_EQ(error(urgency + limit).substr(0, 41), "2: engine.turns: expected \"fair\" where a ");
  }
  const std::string both =
      "[[job]]\nname = \"a\"\nsecret = \"hush\"\nsecret_file = \"" + path_.string() + "\"\n";
  EXPECT_EQ(error(both), "1: job.secret: expected one of secret and secret_file, got both");
  EXPECT_EQ(error("[job]\nname = \"a\"\n"), "1: job: expected [[job]], got one table or value");
}

TEST_F(ConfigTest, TheSecretOfSocketsIsNotShown) {
  Result<StackdConfig> config = load("[sockets]\nsecret = \"hush\"\n");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->sockets_secret, "hush");
  EXPECT_EQ(print_config(*config, false).find("hush"), std::string::npos);
  EXPECT_NE(print_config(*config, false).find("secret = \"(hidden)\""), std::string::npos);
  EXPECT_NE(print_config(*config, true).find("secret = \"hush\""), std::string::npos);
  // What is wrong with it says no more.
  EXPECT_EQ(error("[sockets]\nsecret = 12345\n"),
            "2: sockets.secret: expected a string, got (hidden)");
  const std::string bytes = load("", {"sockets.secret=\xff"
                                      "hush"})
                                .error()
                                .message;
  EXPECT_EQ(bytes, "--set: sockets.secret: expected text in UTF-8, got (hidden)");
}

TEST_F(ConfigTest, SocketsOfOtherHostsNeedASecretOrALine) {
  for (const char* none :
       {"", "secret = \"\"\n", "serve = false\nopen = true\n", "serve = false\nsecret = \"x\"\n"}) {
    EXPECT_FALSE(speaks_to_others(*load("[sockets]\n" + std::string(none)))) << none;
  }
  for (const char* some : {"open = true\n", "secret = \"x\"\n"}) {
    EXPECT_TRUE(speaks_to_others(*load("[sockets]\n" + std::string(some)))) << some;
  }
}

TEST_F(ConfigTest, AuthenticationIsOfferedUnlessItIsAskedFor) {
  const Result<StackdConfig> config = load("");
  EXPECT_EQ(config->job_authentication, "offered");
  EXPECT_EQ(config->sockets_authentication, "offered");
  for (const char* section : {"jobs", "sockets"}) {
    const std::string head = "[" + std::string(section) + "]\nauthentication = ";
    for (const char* good : {"\"off\"", "\"offered\"", "\"required\"", "\"encrypted\""}) {
      EXPECT_EQ(error(head + good + "\n"), "(accepted)");
    }
    for (const char* bad : {"\"on\"", "true", "\"\"", "1"}) {
      const std::string text = error(head + bad + "\n");
      EXPECT_EQ(text.find("2: " + std::string(section) + ".authentication: expected "), 0U) << text;
      EXPECT_NE(text.find("offered"), std::string::npos) << text;
    }
  }
}

TEST_F(ConfigTest, WhatTheCpuCannotAuthenticateIsAnErrorIfRequiredAndSaidIfOffered) {
  for (const char* section : {"jobs", "sockets"}) {
    const std::string key = std::string(section) + ".authentication";
    const bool jobs = section == std::string("jobs");
    const auto loaded = [&](const std::string& word) {
      return *load("[" + std::string(section) + "]\nauthentication = \"" + word + "\"\n" +
                       (jobs ? "[[job]]\nname = \"a\"\nsecret = \"s\"\n" : "secret = \"s\"\n"),
                   {std::string(jobs ? "sockets" : "jobs") + ".authentication=off"});
    };
    for (const char* word : {"off", "offered", "required", "encrypted"}) {
      EXPECT_TRUE(check_authentication(loaded(word), true));
      EXPECT_EQ(authentication_lacking(loaded(word), true), "");
    }
    EXPECT_TRUE(check_authentication(loaded("off"), false));
    EXPECT_EQ(authentication_lacking(loaded("off"), false), "");
    EXPECT_TRUE(check_authentication(loaded("offered"), false));
    const std::string said = authentication_lacking(loaded("offered"), false);
    EXPECT_EQ(authentication_lacking(*load(""), false), "") << "no secret";
    EXPECT_EQ(said.find(key + " = \"offered\" changes nothing: this CPU has no AES"), 0U) << said;
    for (const std::string word : {"required", "encrypted"}) {
      const Status required = check_authentication(loaded(word), false);
      ASSERT_FALSE(required);
      EXPECT_EQ(required.error().code, Errc::kConfig);
      const std::string where =
          path_.string() + ":2: " + key + ": expected \"off\" or \"offered\", got \"" + word + "\"";
      EXPECT_EQ(required.error().message.find(where), 0U) << required.error().message;
      EXPECT_NE(required.error().message.find("PCLMULQDQ"), std::string::npos);
    }
  }
}

TEST_F(ConfigTest, SocketsAreBesideTheAttachSocketThatIsNotTheDefault) {
  EXPECT_EQ(sockets_path(*load("")), "/run/mercury/sockets.sock");
  EXPECT_EQ(sockets_path(*load("[attach]\nsocket = \"/a/b.sock\"\n")), "/a/b.sock.tcp");
  EXPECT_EQ(sockets_path(*load("[sockets]\nsocket = \"/c\"\n[attach]\nsocket = \"/a\"\n")), "/c");
  EXPECT_EQ(error("[sockets]\nsocket = \"/a\"\n[attach]\nsocket = \"/a\"\n"),
            "2: sockets.socket: expected another path than attach.socket");
  EXPECT_EQ(error("[sockets]\nsocket = \"/" + std::string(107, 'a') + "\"\n"),
            "2: sockets.socket: expected a path of at most 107 characters, got 108");
  EXPECT_EQ(error("[sockets]\nsocket = \"/" + std::string(106, 'a') + "\"\n"), "(accepted)");
}

TEST_F(ConfigTest, NetworksOfSocketsArePrivateOnesUnlessOthersAreSaid) {
  EXPECT_EQ(load("")->sockets_networks.size(), 6U);
  const auto networks = load("[sockets]\nnetworks = [\"203.0.113.0/24\"]\n")->sockets_networks;
  ASSERT_EQ(networks.size(), 1U);
  EXPECT_EQ(networks[0].bits, 24);
  EXPECT_TRUE(load("[sockets]\nnetworks = []\n")->sockets_networks.empty());
}

// Programs of jobs come first: sockets have what is left, and who asks for them a part of it.
TEST_F(ConfigTest, SocketsHaveTheDescriptorsThatAreLeft) {
  const StackdConfig config;
  const uint64_t others = descriptors_needed(config);
  const auto room = [&](uint64_t limit) {
    const SocketRoom got = socket_room(config, limit);
    return std::pair(got.programs, got.descriptors);
  };
  EXPECT_EQ(room(others - 1), (std::pair<uint64_t, uint64_t>(0, 0)));
  EXPECT_EQ(room(others), (std::pair<uint64_t, uint64_t>(0, 0)));
  EXPECT_EQ(room(others + 3), (std::pair<uint64_t, uint64_t>(0, 3)));
  EXPECT_EQ(room(others + 400), (std::pair<uint64_t, uint64_t>(100, 300)));
  EXPECT_EQ(room(others + 20000), (std::pair<uint64_t, uint64_t>(4096, 20000 - 4096)));
}

TEST_F(ConfigTest, SecretsComeFromFiles) {
  const std::filesystem::path secret = path_.string() + ".secret";
  const auto read = [&](const std::string& content) {
    std::ofstream(secret, std::ios::binary) << content;
    return load("[[job]]\nname = \"a\"\nsecret_file = \"" + secret.string() + "\"\n");
  };
  const std::string longest(1024, 's');
  for (const std::string& good : {std::string("hush"), longest}) {
    for (const char* rest : {"", "\n", "\nmore\n"}) {
      Result<StackdConfig> config = read(good + rest);
      ASSERT_TRUE(config) << config.error().message;
      EXPECT_EQ(config->jobs[0].secret, good);
    }
  }
  // None of these may make a job without a secret, or with half of one.
  for (const std::string& bad :
       {std::string(), std::string("\n"), std::string("\nhush\n"), std::string("\0hush\n", 6),
        std::string("hu\0sh", 5), std::string("hush\0", 5), std::string("hush\0\n", 6),
        longest + "s", longest + "s\n"}) {
    Result<StackdConfig> config = read(bad);
    ASSERT_FALSE(config) << testing::PrintToString(bad);
    EXPECT_NE(config.error().message.find(":3: job.secret_file: expected"), std::string::npos)
        << config.error().message;
  }
  std::filesystem::remove(secret);
}

TEST_F(ConfigTest, TheSecretOfSocketsComesFromAFileToo) {
  const std::filesystem::path secret = path_.string() + ".secret";
  std::ofstream(secret) << "hush\n";
  const std::string file = "secret_file = \"" + secret.string() + "\"\n";
  Result<StackdConfig> config = load("[sockets]\n" + file);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->sockets_file_secret, "hush");
  EXPECT_TRUE(speaks_to_others(*config));
  EXPECT_EQ(print_config(*config, true).find("hush"), std::string::npos);
  EXPECT_EQ(error("[sockets]\nsecret = \"x\"\n" + file),
            "3: sockets.secret_file: expected one of sockets.secret and sockets.secret_file, got "
            "both");
  std::filesystem::remove(secret);
  const std::string missing = error("[sockets]\n" + file);
  EXPECT_NE(missing.find("2: sockets.secret_file: expected a readable file"), std::string::npos)
      << missing;
}

// The packaged file is what the daemon prints, so it cannot fall behind the table.
TEST_F(ConfigTest, PackagedFileHoldsEveryKeyWithItsDefault) {
  std::ifstream file(PACKAGED_CONFIG);
  std::string text(std::istreambuf_iterator<char>(file), {});
  const std::string printed = print_config(StackdConfig(), true);
  const size_t begin = text.find("[port]");
  ASSERT_NE(begin, std::string::npos);
  EXPECT_EQ(text.substr(begin, printed.size()), printed)
      << "print the defaults again: mercury-stackd --print-config";
  Result<StackdConfig> config = load_config(PACKAGED_CONFIG, {});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(print_config(*config, true), printed);
}

TEST_F(ConfigTest, EveryNumberIsCheckedAtItsLimits) {
  for (const ConfigRow& row : config_rows()) {
    if (!std::holds_alternative<uint64_t StackdConfig::*>(row.member)) continue;
    const auto accepts = [&](uint64_t value) {
      return load("", {std::string(row.section) + "." + row.key + "=" +
                       print_quantity(value, row.unit)})
          .has_value();
    };
    EXPECT_TRUE(accepts(row.min) && accepts(row.max)) << row.key;
    EXPECT_TRUE(row.min == 0 || !accepts(row.min - 1)) << row.key;
    EXPECT_FALSE(accepts(row.max + 1)) << row.key;
  }
}

TEST_F(ConfigTest, FlagsBeatEnvironmentBeatsFile) {
  ASSERT_EQ(setenv("MERCURY_PORT_UDP_PORT", "8000", 1), 0);
  ASSERT_EQ(setenv("MERCURY_PORT_MTU", "9000", 1), 0);
  Result<StackdConfig> config =
      load("[port]\nudp_port = 7000\nmtu = 1500\n", {"port.udp_port=9000"});
  unsetenv("MERCURY_PORT_UDP_PORT");
  unsetenv("MERCURY_PORT_MTU");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->udp_port, 9000U);
  EXPECT_EQ(config->mtu, 9000U);
  EXPECT_FALSE(load("", {"port.nothing=1"}));
}

TEST_F(ConfigTest, WhatItPrintsReadsBackTheSame) {
  Result<StackdConfig> config = load(
      "[port]\nrate = \"25Gbit\"\naddress = [\"fd00::1/64\"]\n"
      "[[job]]\nname = \"a\"\nsecret = \"s\\\"q\"\nweight = 12\nrate = \"1500Mbps\"\n");
  ASSERT_TRUE(config);
  const std::string printed = print_config(*config, true);
  Result<StackdConfig> again = load(printed);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(print_config(*again, true), printed);
  EXPECT_EQ(again->jobs[0].secret, "s\"q");
  EXPECT_EQ(again->jobs[0].weight, 12U);
  EXPECT_EQ(again->jobs[0].bits_per_second, 1'500'000'000U);
  EXPECT_EQ(print_config(*config, false).find("s\\\"q"), std::string::npos);

  // Every string of up to three of these: TOML has four kinds of quotes, each with its own escapes.
  const std::vector<std::string> parts = {"a", "\n", "\r", "\t",   " ",
                                          "'", "\"", "\\", "\x01", "\xc3\xa9"};
  const size_t combinations = parts.size() * parts.size() * parts.size();
  for (size_t number = 0; number < combinations; ++number) {
    std::string text;
    for (size_t rest = number; rest > 0; rest /= parts.size()) text += parts[rest % parts.size()];
    const std::string name = "port.interface=" + text;
    Result<StackdConfig> given = load("", {name});
    ASSERT_TRUE(given) << given.error().message;
    again = load(print_config(*given, true));
    ASSERT_TRUE(again) << again.error().message;
    ASSERT_EQ(again->interface, text);
  }
  for (const char* none : {"\x91", "caf\xe9", "\xc3", "\xed\xa0\x80"}) {
    Result<StackdConfig> refused = load("", {std::string("attach.socket=") + none});
    ASSERT_FALSE(refused) << none;
    EXPECT_NE(refused.error().message.find("--set: attach.socket: expected text in UTF-8"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace mercury
