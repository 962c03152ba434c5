// The coordinator of one job, on the host of its server 0: gathers the members, gives out ranks,
// tells all when to begin, agrees on tensors, brings lost workers back in where the job waits for
// them, and tells all when it ends or why it failed. README.md has its states.
//
// It talks to members over links only, also to those on its own host, and knows nothing of engines.
// Owner/thread: the control thread, from within JobManager.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/terms/worker_set.h"
#include "shim/job/links.h"
#include "shim/job/open_rounds.h"

namespace mercury {

class Coordinator {
 public:
  // Workers that wait for a place of a job that runs.
  static constexpr size_t kMaxApplicants = 256;

  // `open`: the job is a stranger's (JobPolicy::networks), and bounded as such.
  Coordinator(JobContext& context, uint64_t number, std::string job, const JobKey& key, bool open);

  const std::string& job() const { return job_; }
  const JobKey& key() const { return key_; }
  uint64_t number() const { return number_; }
  bool open() const { return open_; }
  bool ended() const { return phase_ == Phase::kEnded; }
  bool done() const { return ended() && parting_.empty(); }  // nobody is left to talk to
  // What the first Join said; null before it.
  const message::Join* shape() const { return shape_ ? &*shape_ : nullptr; }
  // True once: the host may then offer to be server 0 itself.
  bool ask_host_to_serve() { return shape_ && !ended() && !std::exchange(host_asked_, true); }

  void on_message(LinkId link, const Message& message, uint64_t now_ns);
  void on_opened(LinkId link);  // an invitation's session
  void on_closed(LinkId link, const Error& why, uint64_t now_ns);
  void on_timer(uint64_t now_ns);
  // Sends what invitations are due, as far as there is room for them. False: none.
  bool invite_due(uint64_t now_ns);
  uint64_t next_deadline_ns() const;

  // Ends the job with an error for everyone.
  void fail(Errc code, const std::string& text, uint64_t now_ns);
  // "worker 0 10.0.0.1:7470" or "worker 1 missing"
  std::vector<std::string> members() const;

 private:
  enum class Phase : uint8_t { kGathering, kConnecting, kRunning, kEnded };
  using Rounds = std::unordered_map<TensorId, Round>;  // the lowest open one, by tensor
  // A worker's place whose worker was lost, in a job that waits for its next life.
  struct Vacancy {
    Rank rank;
    Endpoint address;
    Error why;  // what the job fails with when nobody comes
    uint64_t lost_ns = 0;
    uint64_t deadline_ns = kNever;
  };
  struct Seat {
    LinkId link = 0;
    message::Join join;  // `rank` is set when the ranks are given out
    uint64_t deadline_ns = kNever;
    bool ready = false;
    bool declaring = false;
    uint16_t max_udp_payload = 0;
    bool came_back = false;
    Rounds rounds;  // of a worker that came back, when its last life had been fenced off
    std::optional<Vacancy> returns_to;  // a worker that comes back, until it is told to start
  };
  struct Invitation {  // to another host's daemon, to be server `rank`
    uint16_t rank = 0;
    Endpoint address;
    LinkId link = 0;  // 0: none now
    uint64_t retry_ns = kNever;
    uint32_t failures = 0;    // in a row
    bool unanswered = false;  // counted in JobContext::unanswered
    std::string refusal;      // that host's words, if it did not know the job the last time
  };
  struct Declaration {
    LinkId link = 0;
    std::vector<message::TensorShape> tensors;
  };
  struct Known {
    message::TensorShape tensor;
    Rank declared_by;
    Shard first_shard;
    WorkerSet declared{};
  };

  // --- gathering (coordinator.cc) ---
  void join(LinkId link, message::Join join, uint64_t now_ns);
  Status check_shape(const message::Join& join) const;
  void adopt_terms(const message::Join& join);
  bool was_said(const Term& term) const {
    return std::find(said_.begin(), said_.end(), &term) != said_.end();
  }
  Status check_servers() const;  // whether they know what the job asks for
  Status check_rank(message::Join& join) const;
  bool may_be_next_life(const message::Join& join, const Status& fits) const;
  void take_in_next_life(uint64_t now_ns);
  void begin_if_complete(uint64_t now_ns);
  void refuse_late_applicants(uint64_t now_ns);
  void invite_servers(uint64_t now_ns);
  bool may_invite() const;                            // one more, now
  bool invitations_lack_room(uint64_t now_ns) const;  // open jobs have all their sessions here
  void invite(Invitation& invitation);
  void settle(Invitation& invitation);
  void set_retry(Invitation& invitation, uint64_t retry_ns);
  void unlink(Invitation& invitation);
  uint32_t& unanswered_of_host() {
    return open_ ? context_.unanswered.open : context_.unanswered.others;
  }
  void invite_again(Invitation& invitation, uint64_t now_ns);
  void invitation_closed(Invitation& invitation, const Error& why, uint64_t now_ns);
  void drop_invitations(const Error& why);
  uint64_t last_life_ns() const;
  uint64_t time_limit_ns(const message::Join& join, uint64_t now_ns) const;
  void send_roster();

  // --- running (coordinator_run.cc) ---
  void ready(Seat& seat, const message::Ready& message);
  uint32_t needed_payload() const;  // UDP payload of a full chunk's frame
  void start();
  void leave(Seat& seat, uint64_t now_ns);
  void set_policy(const message::SetPolicy& message);
  void process_declarations();
  Status check_declaration(const Declaration& declaration, Rank rank,
                           std::vector<message::TensorShape>& fresh) const;
  void defined(LinkId server);
  message::Define define(const std::vector<message::TensorShape>& fresh, Rank declared_by);
  message::Declared declared(const Declaration& declaration, const Seat& seat);
  std::string tensors_lacked(Rank rank) const;
  std::string refusal_of(Rank rank) const;  // why its last declaration was refused, if it was
  std::string refused_text(const Seat& worker) const;  // that, behind another text
  bool servers_know_endings() const;
  void waits_in_vain(const message::Stalled& message);
  static std::vector<Round> rounds_of(const Declaration& declaration, const Seat& seat);

  // --- coming back (coordinator_rejoin.cc) ---
  // Whether a lost worker leaves a vacancy; else its loss fails the job.
  bool survives_loss(const Seat& worker) const;
  size_t workers_there() const;  // and not on their way back
  // Whether rounds complete with the workers that are there.
  bool has_quorum() const {
    return workers_there() >= (shape_->terms.quorum > 0 ? shape_->terms.quorum : shape_->workers);
  }
  // Those that are vacant are waited for from now on, if they are not yet and the others need them.
  void limit_vacancies(uint64_t now_ns);
  void end_rejoining(uint64_t now_ns);
  void vacate(const Seat& seat, const Error& why, uint64_t now_ns);
  void withdraw(const Seat& worker);
  void unseat(Seat& seat, const Error& why, uint64_t now_ns);
  void lost(const message::Lost& message, const Seat& server, uint64_t now_ns);
  void stalled(const message::Stalled& message, uint64_t now_ns);
  void rejoin(LinkId link, message::Join join, uint64_t now_ns);
  const Vacancy* any_vacancy() const;  // also one that somebody is coming back to
  message::Fail job_is_ending() const {
    return {Errc::kPeerLeft, "a worker of job '" + job_ + "' has left: it is ending"};
  }
  bool take_vacancy(LinkId link, message::Join& join, uint64_t now_ns);
  bool fences(LinkId link) const {  // its last life: it has no roster yet
    return std::find(fencing_.begin(), fencing_.end(), link) != fencing_.end();
  }
  void begin_fence();
  void fenced(LinkId server, const message::Replaced& message, uint64_t now_ns);
  bool progressed(const Vacancy& vacancy, uint64_t now_ns);
  void send_roster_to(const Seat& seat);
  void started_again(Seat& seat, const message::Ready& message, uint64_t now_ns);
  uint64_t let_in_by_ns(const Seat& seat) const;  // kNever: nobody waits for it
  void not_let_in(const Seat& seat, uint64_t now_ns);
  void on_rejoin_timer(uint64_t now_ns);

  // --- who is who (coordinator_members.cc) ---
  std::vector<int> ranks_of_seats() const;  // as they would be given out now, by seat
  std::string missing() const;
  std::string refused_invitation() const;  // what one of the missing servers' hosts said, if any
  // While members are missing: this one came, and is none.
  void note_refused(const message::Join& join, const Error& why);
  bool parts(LinkId link) const;
  bool applies(LinkId link) const {
    return std::any_of(applicants_.begin(), applicants_.end(),
                       [&](const Applicant& applicant) { return applicant.link == link; });
  }
  // Of a worker's seat whose rank was given out: servers' are no Ranks.
  static Rank rank_of(const Seat& worker) { return Rank(static_cast<uint16_t>(worker.join.rank)); }
  Seat* seat_of(LinkId link);
  void add_seat(Seat seat);
  void index_seats();
  Invitation* invitation_of(LinkId link);
  uint16_t total(Role role) const {
    return role == Role::kWorker ? shape_->workers : shape_->servers;
  }
  std::string who(const Seat& seat) const;
  void erase_seat(LinkId link);

  // --- ends (coordinator.cc) ---
  void seat_closed(Seat& seat, const Error& why, uint64_t now_ns);
  void dismiss(LinkId link, const Message& last_word, uint64_t now_ns);

  JobContext& context_;
  const uint64_t number_;
  const std::string job_;
  const JobKey key_;
  const bool open_;
  Phase phase_ = Phase::kGathering;
  std::optional<message::Join> shape_;
  std::vector<const Term*> said_;  // by a worker, of what all workers say: shape_ has its value
  bool host_asked_ = false;
  std::string refused_member_;                  // the first one, and why
  std::vector<Seat> seats_;                     // in the order of joining
  std::unordered_map<LinkId, size_t> seat_at_;  // in seats_; may be of one that is gone
  std::array<uint32_t, 2> seats_of_{};          // by role, while members join
  size_t ready_ = 0;                            // of seats_, while they connect
  // Indexed, as each event of a gathering job asks for those that are due, and each message for its
  // sender's.
  std::vector<Invitation> invitations_;
  std::set<std::pair<uint64_t, size_t>> invitations_due_;  // by retry_ns, but those of kNever
  std::unordered_map<LinkId, size_t> invitation_at_;       // in invitations_
  uint32_t unanswered_ = 0;                                // of them
  // Links whose last word was said: they are closed by the other end, or by us after a while.
  std::vector<std::pair<LinkId, uint64_t>> parting_;
  message::Roster roster_;  // as it is now; `rank` is whose it was sent to last
  uint32_t chunk_bytes_ = 0;
  std::optional<ShardTurn> turn_;  // at which shard tensors begin; nothing: not all members know it
  std::unordered_map<TensorId, Known> tensors_;
  std::unordered_map<Rank, std::string> refusals_;    // of each worker's last declaration
  std::unordered_map<Rank, message::PeerLeft> left_;  // in order, as the others were told
  std::unordered_map<Rank, size_t> lacked_of_;        // of left_: of how many tensors they lack
  Rounds hopeless_;                                   // the lowest round of a tensor that is
  std::deque<Declaration> declarations_;  // the first is in work while servers are awaited
  std::vector<LinkId> awaited_servers_;

  bool ending_ = false;  // workers have left in order, and too few are there without them
  std::vector<Vacancy> vacancies_;
  struct Applicant {  // wants a place that is not free yet
    LinkId link = 0;
    message::Join join;
    uint64_t deadline_ns = kNever;
    uint64_t since_ns = 0;  // before the job has begun
  };
  std::vector<Applicant> applicants_;
  uint64_t begins_by_ns_ = kNever;         // all are there, and applicants have that long
  std::deque<LinkId> fencing_;             // workers that come back; the first is in work
  std::vector<LinkId> awaited_fence_;      // servers that have not answered for it
  OpenRoundsOf rounds_;                    // what the servers have said of the fence in work
  std::optional<uint64_t> last_progress_;  // the sum of the last fence's rounds
  std::unordered_map<Rank, uint64_t> first_lost_ns_;  // since a round was completed, by rank
};

}  // namespace mercury
