// Every row of the table of terms, through everything that hands terms on: what a program says is
// checked, travels, is compared, reaches the engines and is documented. A new row is held to this
// without a line here.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "scheduler/terms/job_terms.h"
#include "shim/channel/attach.h"
#include "shim/client/options.h"
#include "shim/host/open_job.h"
#include "shim/job/messages.h"
#include "tests/shim/job/fixture.h"

namespace mercury::test {
namespace {

using client::TermNumber;
using client::TermOption;
using client::TermText;
using Json = nlohmann::json;

// What a job of several workers may ask for, so that any one term can be changed.
JobTerms plausible(const Term& term) {
  JobTerms terms;
  if (term.said_by == SaidBy::kMembers) return terms;  // no quorum in a deterministic job
  terms.quorum = 2;
  terms.patience_ms = 50;
  return terms;
}

JobTerms changed(const Term& term, JobTerms terms) {
  visit_term(term, terms, [&](auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, bool>) {
      value = !value;
    } else if constexpr (std::is_same_v<Value, std::string>) {
      value = "p3";
    } else {
      ++value;
    }
  });
  return terms;
}

attach::JobOpen job_open(const JobTerms& terms) {
  attach::JobOpen open;
  open.name = "train";
  open.workers = 4;
  open.servers = 1;
  open.rendezvous = {*Endpoint::parse("10.0.0.1:7470")};
  open.terms = terms;
  return open;
}

message::Join join(const JobTerms& terms) {
  message::Join m;
  m.workers = 4;
  m.servers = 1;
  m.incarnation = 1;
  m.lanes = m.rendezvous = {*Endpoint::parse("10.0.0.1:7470")};
  m.terms = terms;
  return m;
}

message::Roster roster(const JobTerms& terms) {
  message::Roster m;
  m.workers = {{1, *Endpoint::parse("10.0.0.1:7470")}};
  m.servers = {{2, {*Endpoint::parse("10.0.0.2:7470")}}};
  m.terms = terms;
  return m;
}

Json map_of(std::span<const std::byte> bytes) {
  const auto* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  return Json::from_cbor(begin, begin + bytes.size());
}
std::vector<std::byte> bytes_of_map(const Json& map) {
  std::vector<std::byte> bytes;
  for (const uint8_t byte : Json::to_cbor(map)) bytes.push_back(std::byte{byte});
  return bytes;
}

attach::JobOpen read_open(std::span<const std::byte> bytes) {
  const Result<attach::RequestMessage> read = attach::decode_request(bytes);
  EXPECT_TRUE(read) << (read ? "" : read.error().message);
  return read ? std::get<attach::JobOpen>(read->body) : attach::JobOpen();
}
template <class M>
M read_control(const std::vector<std::byte>& bytes) {
  const Result<Message> read = decode_message(bytes);
  EXPECT_TRUE(read) << (read ? "" : read.error().message);
  return read ? std::get<M>(*read) : M();
}

TEST(Terms, HaveNamesDefaultsAndRangesThatGoTogether) {
  std::set<std::string> names;
  std::set<std::string> controls;
  for (const Term& term : job_terms()) {
    SCOPED_TRACE(term.name);
    EXPECT_TRUE(names.insert(term.name).second) << "two rows";
    EXPECT_TRUE(controls.insert(term.control).second) << "two rows";
    EXPECT_EQ(find_term(term.name), &term);
    EXPECT_GT(std::string(term.meaning).size(), 10U);
    EXPECT_LE(term.since, attach::kAbiMinor) << "raise attach::kAbiMinor";
    JobTerms terms;
    EXPECT_TRUE(set_number(term, term.preset, terms));
  }
  EXPECT_EQ(find_term("quorums"), nullptr);
  EXPECT_TRUE(check_terms(preset_terms(), 1));
}

TEST(Terms, TravelFromTheProgramToItsHost) {
  for (const Term& term : job_terms()) {
    SCOPED_TRACE(term.name);
    const JobTerms said = changed(term, plausible(term));
    const attach::JobOpen read = read_open(encode(attach::RequestMessage{1, job_open(said)}));
    EXPECT_EQ(read.terms, said);
    const Result<OpenJob> open = to_open_job(read, {});
    ASSERT_TRUE(open);
    EXPECT_EQ(open->terms, said);
  }
}

TEST(Terms, TravelBetweenMembers) {
  for (const Term& term : job_terms()) {
    SCOPED_TRACE(term.name);
    const JobTerms said = changed(term, plausible(term));
    EXPECT_EQ(read_control<message::Join>(encode(join(said))).terms, said);
    const bool all_say_it = term.said_by == SaidBy::kMembers;
    const JobTerms invited =
        read_control<message::Invite>(encode(message::Invite{0, 4, 1, said})).terms;
    EXPECT_EQ(same(term, invited, said), all_say_it);
    const JobTerms listed = read_control<message::Roster>(encode(roster(said))).terms;
    EXPECT_EQ(same(term, listed, said), !all_say_it);
  }
}

TEST(Terms, ThatAPeerOfAnEarlierVersionDoesNotSayAreWhatTheyWereThen) {
  for (const Term& term : job_terms()) {
    SCOPED_TRACE(term.name);
    const JobTerms said = changed(term, JobTerms());
    Json open = map_of(encode(attach::RequestMessage{1, job_open(said)}));
    ASSERT_EQ(open.erase(term.name), 1U);
    Json asked = map_of(encode(join(said)));
    ASSERT_EQ(asked.erase(term.control), 1U);
    if (term.since == 0) {  // all versions say it
      EXPECT_FALSE(attach::decode_request(bytes_of_map(open)));
      EXPECT_FALSE(decode_message(bytes_of_map(asked)));
      continue;
    }
    EXPECT_TRUE(same(term, read_open(bytes_of_map(open)).terms, preset_terms()));
    EXPECT_TRUE(same(term, read_control<message::Join>(bytes_of_map(asked)).terms, JobTerms()));
    EXPECT_FALSE(map_of(encode(join(JobTerms()))).contains(term.control)) << "silence is golden";
  }
}

// --- what a program says ---------------------------------------------------------------------

mercury_job_options some_options() {
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  options.name = "train";
  options.workers = 4;
  options.servers = 1;
  options.rendezvous = "10.0.0.1";
  return options;
}

const TermOption* option_of(const Term& term) {
  const auto options = client::term_options();
  const auto found = std::find_if(options.begin(), options.end(), [&](const TermOption& option) {
    return std::string(option.term) == term.name;
  });
  return found == options.end() ? nullptr : &*found;
}

void say(const Term& term, const JobTerms& terms, mercury_job_options& options) {
  const auto& [name, member, for_ever] = *option_of(term);
  visit_term(term, terms, [&](const auto& value) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::string>) {
      options.*std::get<TermText>(member) = value.c_str();
    } else {
      const auto number = static_cast<int32_t>(value);
      options.*std::get<TermNumber>(member) = number == for_ever ? MERCURY_FOREVER : number;
    }
  });
}

TEST(Terms, AreWhatTheProgramSays) {
  EXPECT_EQ(client::term_options().size(), job_terms().size());
  for (const Term& term : job_terms()) {
    SCOPED_TRACE(term.name);
    ASSERT_NE(option_of(term), nullptr) << "no member of mercury_job_options";
    mercury_job_options options = some_options();
    Result<attach::JobOpen> job = client::read_job(&options);
    ASSERT_TRUE(job) << job.error().message;
    EXPECT_TRUE(same(term, job->terms, preset_terms()));
    const JobTerms said = changed(term, plausible(term));
    for (const Term& each : job_terms()) say(each, said, options);
    job = client::read_job(&options);
    ASSERT_TRUE(job) << job.error().message;
    EXPECT_EQ(job->terms, said);
  }
}

TEST(Terms, OutOfRangeAreRefusedByNameWithWhatTheyMean) {
  for (const Term& term : job_terms()) {
    SCOPED_TRACE(term.name);
    const JobTerms terms;
    const bool number =
        visit_term(term, terms, [](const auto& value) { return kIsNumber<decltype(value)>; });
    if (!number) continue;  // of a flag everything but 0 is 1, and a policy has rules of its own
    const bool may_last = option_of(term)->for_ever.has_value();  // -1 is MERCURY_FOREVER
    for (const int64_t value : {int64_t{term.least} - (may_last ? 2 : 1), int64_t{term.most} + 1}) {
      if (value > 0x7fffffff) continue;
      mercury_job_options options = some_options();
      options.*std::get<TermNumber>(option_of(term)->member) = static_cast<int>(value);
      const Result<attach::JobOpen> job = client::read_job(&options);
      ASSERT_FALSE(job) << value;
      EXPECT_EQ(job.error().code, Errc::kInvalidArgument);
      EXPECT_NE(job.error().message.find("mercury_job_options." + std::string(term.name) + " is " +
                                         std::to_string(value)),
                std::string::npos)
          << job.error().message;
      EXPECT_NE(job.error().message.find(term.meaning), std::string::npos) << job.error().message;
    }
    JobTerms beyond = preset_terms();
    Json asked = map_of(encode(join(beyond)));
    asked[term.control] = uint64_t{term.most} + 1;
    EXPECT_FALSE(decode_message(bytes_of_map(asked)));
    Json open = map_of(encode(attach::RequestMessage{1, job_open(beyond)}));
    open[term.name] = uint64_t{term.most} + 1;
    EXPECT_FALSE(attach::decode_request(bytes_of_map(open)));
  }
}

TEST(Terms, BehindTheEndOfAnOlderHeadersStructAreAsIfNothingWasSaid) {
  for (const Term& term : job_terms()) {
    SCOPED_TRACE(term.name);
    const auto* member = std::get_if<TermNumber>(&option_of(term)->member);
    if (!member) continue;  // a text that is not there is NULL
    mercury_job_options options = some_options();
    say(term, changed(term, plausible(term)), options);
    const auto at = static_cast<size_t>(reinterpret_cast<const char*>(&(options.*(*member))) -
                                        reinterpret_cast<const char*>(&options));
    if (at < client::kFirstSize<mercury_job_options>) continue;  // every header had it
    options.size = at;
    const Result<attach::JobOpen> job = client::read_job(&options);
    ASSERT_TRUE(job) << job.error().message;
    EXPECT_TRUE(same(term, job->terms, preset_terms()));
  }
}

TEST(Terms, ThatContradictEachOtherAreRefused) {
  EXPECT_EQ(contradiction({}, 1), "");
  EXPECT_EQ(contradiction({.quorum = 2, .patience_ms = 1}, 2), "");
  EXPECT_EQ(contradiction({.quorum = 3, .patience_ms = 1}, 2),
            "quorum is 3, must be at most the 2 workers");
  EXPECT_EQ(contradiction({.quorum = 2}, 2), "patience_ms is 0, must be 1 or more with a quorum");
  EXPECT_NE(contradiction({.deterministic = true, .quorum = 2, .patience_ms = 1}, 2), "");
  JobTerms everybody{.quorum = 2, .patience_ms = 9};
  normalise(everybody, 2);
  EXPECT_EQ(everybody, JobTerms());
  JobTerms none{.patience_ms = 9};
  EXPECT_NE(superfluous(none), "");
  normalise(none, 2);
  EXPECT_EQ(none, JobTerms());
}

// --- what members agree on -------------------------------------------------------------------

class TermsTest : public JobTest {
 protected:
  void SetUp() override {
    for (int host = 1; host <= 4; ++host) hosts.add(host, 1, not_serving());
    hosts.add(5, 1, serving());
  }
  ProgramModel& asks(int rank, const JobTerms& terms) {
    OpenJob open = job(Role::kWorker, rank, 4, 1, {address(5)});
    open.terms = terms;
    ProgramModel& worker = opens(rank + 1, open);
    hosts.run_for(kSecond / 10);
    return worker;
  }
  const command::AddServerJob& server_spec() {
    return hosts.host(5).lanes.at(0).jobs.begin()->second.server_spec;
  }
};

TEST_F(TermsTest, ThatDifferAreRefusedWithBothValues) {
  for (const Term& term : job_terms()) {
    SCOPED_TRACE(term.name);
    const JobTerms first = plausible(term);
    const JobTerms second = changed(term, first);
    ProgramModel& opened = asks(0, first);
    ProgramModel& differs = asks(1, second);
    if (term.said_by == SaidBy::kWorker) {
      EXPECT_EQ(differs.opens, 0) << differs.open_text;  // it waits for the others
    } else {
      EXPECT_EQ(differs.open_code, Errc::kWrongSizes);
      EXPECT_EQ(differs.open_text, "job 'train' was opened with " + print(term, first) +
                                       ", this worker asks for " + print(term, second));
    }
    opened.gone();
    differs.gone();
    hosts.run_for(60 * kSecond);
  }
  expect_nothing_left();
}

TEST_F(TermsTest, ReachTheServersEngines) {
  for (const Term& term : job_terms()) {
    SCOPED_TRACE(term.name);
    const JobTerms usual = plausible(term);
    const JobTerms said = changed(term, usual);
    std::vector<ProgramModel*> workers;
    for (int rank = 0; rank < 4; ++rank) {
      const bool says = term.said_by != SaidBy::kWorker || rank == 2;
      workers.push_back(&asks(rank, says ? said : usual));
    }
    hosts.run_for(kSecond);
    for (ProgramModel* worker : workers) ASSERT_TRUE(worker->is_open()) << worker->open_text;
    EXPECT_EQ(server_spec().terms, said);
    for (ProgramModel* worker : workers) worker->close();
    hosts.run_for(60 * kSecond);
  }
  expect_nothing_left();
}

// --- what users read -------------------------------------------------------------------------

std::string row_of(const Term& term) {
  const JobTerms presets = preset_terms();
  const bool text = std::holds_alternative<std::string JobTerms::*>(term.field);
  const char* said_by = term.said_by == SaidBy::kMembers ? "all members, the same"
                        : term.said_by == SaidBy::kWorkers
                            ? "all workers, the same"
                            : "each worker its own; servers follow the largest";
  const std::string preset = print(term, presets).substr(std::string(term.name).size() + 3);
  return "| `" + std::string(term.name) + "` | " + (text ? "`" + preset + "`" : preset) + " | " +
         (text ? std::to_string(term.most) + " bytes"
               : std::to_string(term.least) + " to " + std::to_string(term.most)) +
         " | " + said_by + " | " + std::to_string(attach::kAbiMajor) + "." +
         std::to_string(term.since) + " | " + term.meaning;
}

TEST(Terms, AreDocumented) {
  std::ifstream file(API_DOCUMENT);
  const std::string document{std::istreambuf_iterator<char>(file), {}};
  ASSERT_NE(document, "") << API_DOCUMENT;
  for (const Term& term : job_terms()) {
    EXPECT_NE(document.find("\n" + row_of(term)), std::string::npos)
        << API_DOCUMENT << ", \"The terms of a job\": expected a row that begins with\n"
        << row_of(term);
  }
}

}  // namespace
}  // namespace mercury::test
