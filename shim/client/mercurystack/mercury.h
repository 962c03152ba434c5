/* Mercury's native API. Gradient path: step 1/8.
 *
 * Attach to the host's daemon (or run the engine in this process), open a job, declare its tensors,
 * then exchange: every worker calls mercury_push_pull for a tensor, and each finds the sum over all
 * workers in the tensor's memory. docs/api.md has a complete program.
 *
 * Errors: every function that can fail returns 0 or a negative errno value; mercury_last_error()
 * then holds, for the calling thread, what was wrong and what to do.
 * Threads: every function may be called from any thread; calls on one context are serialised, but a
 * call that blocks lets others pass. Nothing may be called on what another thread closes.
 * After fork the child may not use what the parent opened: calls return -ENOTCONN there.
 * Strings passed in are copied.
 * Structs begin with their own size, so that they can grow: programs built with an older or a newer
 * header than the library's work, if they use what both know. A struct that the program fills may
 * be longer than the library's if the rest is zero. One that the library fills gets what both know,
 * zeros behind it, and in `size` how much the library filled.
 */
#ifndef MERCURYSTACK_MERCURY_H
#define MERCURYSTACK_MERCURY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MERCURY_API __attribute__((visibility("default")))

typedef struct mercury_context mercury_context;
typedef struct mercury_job mercury_job;
typedef uint64_t mercury_handle; /* one operation; never 0, never used twice in a context */

typedef enum { MERCURY_F32 = 0, MERCURY_F64 = 1, MERCURY_F16 = 2, MERCURY_BF16 = 3,
               MERCURY_I32 = 4, MERCURY_I64 = 5 } mercury_dtype;
typedef enum { MERCURY_SUM = 0, MERCURY_AVERAGE = 1 } mercury_op; /* average: floating point only */
typedef enum { MERCURY_WORKER = 0, MERCURY_SERVER = 1 } mercury_role;
typedef enum {
  MERCURY_AUTO = 0,     /* the daemon if its socket answers, else embedded; see `socket` */
  MERCURY_DAEMON = 1,
  MERCURY_EMBEDDED = 2, /* engine on a thread of this process, over io_uring: no daemon, no root */
} mercury_mode;

/* ---- attach ---------------------------------------------------------------------------------- */
typedef struct {
  size_t size;              /* sizeof(mercury_attach_options) */
  mercury_mode mode;
  const char *socket;       /* daemon: NULL = $MERCURY_SOCKET, then /run/mercury/stackd.sock.
                               Where one is named, MERCURY_AUTO does not embed instead */
  const char *listen;       /* embedded: "ADDRESS[:PORT]"; NULL = $MERCURY_LISTEN, then the address
                               that routes to the job's rendezvous, any port */
} mercury_attach_options;
#define MERCURY_ATTACH_OPTIONS_INIT { sizeof(mercury_attach_options), MERCURY_AUTO, NULL, NULL }

/* -EPIPE: no daemon there; -EPROTONOSUPPORT: another ABI version; -EPERM; -EINVAL: also for a
 * MERCURY_ variable that is nearly one of Mercury's. options may be NULL. */
MERCURY_API int mercury_attach(const mercury_attach_options *options, mercury_context **out);
/* Closes what is still open. Memory from mercury_alloc is gone after this. NULL is allowed. */
MERCURY_API void mercury_detach(mercury_context *context);
MERCURY_API mercury_mode mercury_mode_of(const mercury_context *context);

/* ---- memory ---------------------------------------------------------------------------------- */
/* Memory that tensors can travel from without a copy; zeroed, page-aligned. -ENOMEM, -ENOSPC. */
MERCURY_API int mercury_alloc(mercury_context *context, size_t bytes, void **out);
/* -EBUSY: a tensor lies in it. */
MERCURY_API int mercury_free(mercury_context *context, void *memory);
/* Any other memory of the program, so that tensors can lie in it. With a daemon each exchange then
 * costs a copy at each end (embedded: none). Owner: the program keeps it mapped until
 * deregistered. */
MERCURY_API int mercury_register(mercury_context *context, void *memory, size_t bytes);
MERCURY_API int mercury_deregister(mercury_context *context, void *memory);

/* ---- job ------------------------------------------------------------------------------------- */
typedef struct {
  size_t size;              /* sizeof(mercury_job_options) */
  const char *name;         /* 1 to 63 of [A-Za-z0-9_.-] */
  const char *secret;       /* NULL = none */
  mercury_role role;
  int rank;                 /* 0.. within the role; -1 = any free one */
  int workers;              /* 1 to 256 */
  int servers;              /* 1 to 256 */
  const char *rendezvous;   /* "ADDRESS:PORT[,ADDRESS:PORT...]": server 0's daemon (or embedded
                               program) first; the others follow, or join by themselves */
  int deterministic;        /* 1: same bits whatever the order of arrival */
  int fifo;                 /* 1: as policy "mercury-fifo", where that names none */
  int weight;               /* share among jobs on a link; 1 to 1000, 1 */
  int timeout_ms;           /* for everyone to be there; 1.., 30000 */
  int rejoin_ms;            /* how long the job waits for a worker that was lost to be started
                               again (operations wait meanwhile); 0: it fails at once. The same on
                               every worker; servers ignore it */
  int quorum;               /* 0: a sum waits for all workers. Else, 1 to workers: so many
                               contributions are enough once patience_ms have passed since the
                               first, and the job goes on while so many workers are there. Not
                               with deterministic; the same on every worker */
  int patience_ms;          /* with quorum: 1.., the same on every worker */
  const char *policy;       /* how gradients are exchanged, for comparison with other systems: NULL
                               or "mercury", else one of docs/simulator.md, such as "mercury-fifo"
                               or "p3". The same on every worker; servers ignore it */
  int stall_timeout_ms;     /* workers that have not pushed a round of a tensor for so long since
                               others did count as lost; 0: never, 1800000. The same on every
                               worker; servers ignore it */
} mercury_job_options;
/* The library may know a longer struct than the program was built with: it is told the size. */
MERCURY_API void mercury_job_options_init_sized(mercury_job_options *options, size_t size);
static inline void mercury_job_options_init(mercury_job_options *options) {
  mercury_job_options_init_sized(options, sizeof *options);
}
/* Fills role, rank, workers, servers, rendezvous and name from what a launcher set: MERCURY_*, else
 * DMLC_* (ps-lite), torchrun (RANK, WORLD_SIZE, MASTER_ADDR), Open MPI (OMPI_COMM_WORLD_*), Slurm
 * (SLURM_PROCID, ...). -ENOENT: none of them; -EINVAL: one is malformed or misspelt, named in the
 * message. The strings live until the thread's next call. */
MERCURY_API int mercury_job_options_from_env(mercury_job_options *options);

/* Blocks until all members are there. -ESRCH unknown job, -EKEYREJECTED wrong secret, -ERANGE sizes
 * differ, -EADDRINUSE rank taken, -ETIME members missing (the message names them), -EPROTONOSUPPORT
 * version, -ECONNRESET, -EHOSTDOWN, -ETIMEDOUT. */
MERCURY_API int mercury_job_open(mercury_context *context, const mercury_job_options *options,
                                 mercury_job **out);
MERCURY_API int mercury_job_rank(const mercury_job *job);
MERCURY_API int mercury_job_workers(const mercury_job *job);
/* Leaves the job: operations in flight complete with -ESHUTDOWN, peers are told. NULL is allowed.
 * From a callback nothing happens, and mercury_last_error() says so. */
MERCURY_API void mercury_job_close(mercury_job *job);
/* Workers, while the job is open: all its members follow another policy from now on
 * (options.policy). No chunk is lost or sent twice for it; rounds in flight end under either.
 * Returns once the request is on its way to the job's coordinator. That passes it on only if every
 * member is of a version that can follow; otherwise the policy stays, and nobody is told.
 * -EINVAL: says what a policy looks like, or that this one would place tensors on other servers
 * than the job does (place=); -EOPNOTSUPP: one that no engine can follow. */
MERCURY_API int mercury_job_set_policy(mercury_job *job, const char *policy);
/* Servers: blocks until the job has ended (0) or failed, at most timeout_ms (-1 = for ever). */
MERCURY_API int mercury_job_wait(mercury_job *job, int timeout_ms);

/* ---- tensors --------------------------------------------------------------------------------- */
typedef struct {
  size_t size;              /* sizeof(mercury_tensor_options) */
  uint32_t id;              /* the same on every worker; 0 to 2^31-1 */
  uint64_t numel;           /* elements, 1.. */
  mercury_dtype dtype;
  mercury_op op;
  uint16_t priority;        /* of operations that name none; 0 is the most urgent */
  void *data;               /* numel elements, in memory of mercury_alloc or mercury_register;
                               gradients are read from it and sums written to it, in place */
} mercury_tensor_options;
/* Declares `count` tensors and blocks until all servers and all workers' declarations so far agree.
 * -EPROTOTYPE: differs from another worker's (the message says how), -EINVAL, -ENOSPC, -EEXIST. */
MERCURY_API int mercury_declare(mercury_job *job, const mercury_tensor_options *tensors,
                                size_t count);

/* The round that the next push of `tensor` belongs to. 1 after the declaration; in a program that
 * took the place of a lost worker (rejoin_ms) the round that the others are in. Tensors may be one
 * round apart then: push those first that are behind. -ENOENT: not declared. */
MERCURY_API int mercury_tensor_round(mercury_job *job, uint32_t tensor, uint32_t *out);

/* ---- exchange -------------------------------------------------------------------------------- */
#define MERCURY_DEFAULT_PRIORITY (-1)
/* Round n of a tensor is its n-th push. From the call until completion the tensor's memory belongs
 * to Mercury. -EBUSY: the tensor's last round is not over, or lies in registered memory and has not
 * been collected; -ENOENT: not declared; -EAGAIN: too many operations in flight; -ECONNRESET,
 * -EHOSTDOWN: the job has failed. `priority` 0 to 65535 or MERCURY_DEFAULT_PRIORITY. `out` may be
 * NULL, and is left alone on failure. */
MERCURY_API int mercury_push_pull(mercury_job *job, uint32_t tensor, int priority,
                                  mercury_handle *out);
/* The same in two steps. A push completes when the servers have all of it; the sum still arrives in
 * the tensor's memory, and the pull of that round completes when it is there. One pull per push. */
MERCURY_API int mercury_push(mercury_job *job, uint32_t tensor, int priority, mercury_handle *out);
MERCURY_API int mercury_pull(mercury_job *job, uint32_t tensor, int priority, mercury_handle *out);

typedef struct {
  size_t size;              /* how much of this the library filled */
  mercury_handle handle;
  int status;               /* 0 or a negative errno */
  uint32_t tensor;
  uint32_t round;
  void *user;               /* in a callback what mercury_set_callback was given, else NULL */
} mercury_completion;
/* Blocks until `handle` completes, at most timeout_ms (-1 = for ever): its status, or -ETIMEDOUT
 * with the operation still in flight. A handle is waited for once; then it is gone (-ENOENT). */
MERCURY_API int mercury_wait(mercury_job *job, mercury_handle handle, int timeout_ms);
/* Up to `count` completions that nobody waited for; the number, or a negative errno. Never waits
 * for the network; at a job's first failure it asks the daemon why, once. If some have failed,
 * mercury_last_error() has the text of the last of them. */
MERCURY_API int mercury_poll_sized(mercury_job *job, mercury_completion *out, size_t count,
                                   size_t size); /* of each element of `out` */
static inline int mercury_poll(mercury_job *job, mercury_completion *out, size_t count) {
  return mercury_poll_sized(job, out, count, sizeof *out);
}
/* Called instead of queueing for mercury_poll, on a thread that calls mercury_poll or
 * mercury_wait, and on several at once. It may push, pull, wait and poll, not close jobs or
 * detach. Of a completion that failed mercury_last_error() has the text there. NULL: queue. */
typedef void (*mercury_callback)(const mercury_completion *completion, void *user);
MERCURY_API int mercury_set_callback(mercury_job *job, mercury_callback callback, void *user);
/* Readable while completions wait for mercury_poll. Owned by the job. Negative errno on failure. */
MERCURY_API int mercury_eventfd(mercury_job *job);

/* Whose contributions are in a tensor's last complete round: bit r % 64 of word r / 64 is worker r.
 * With quorum, chunks of a tensor complete one by one: a worker may be in some of them. Without,
 * and in a complete sum, all workers are in both sets. An average is over those who are in each
 * chunk. */
typedef struct {
  size_t size;              /* sizeof(mercury_contributors) */
  uint32_t round;           /* 0: none is complete yet */
  uint32_t workers;
  uint64_t in_all[4];       /* in every element's sum */
  uint64_t in_any[4];       /* in some element's sum */
} mercury_contributors;
/* -ENOENT: not declared; -EINVAL: size is not set. */
MERCURY_API int mercury_get_contributors(mercury_job *job, uint32_t tensor,
                                         mercury_contributors *out);

typedef struct {
  size_t size;              /* sizeof(mercury_job_stats) */
  uint64_t operations;      /* completed */
  uint64_t bytes_pushed;    /* tensor bytes of this program's completed rounds */
  uint64_t bytes_pulled;
} mercury_job_stats;
MERCURY_API int mercury_job_get_stats(mercury_job *job, mercury_job_stats *out);

/* ---- errors and version ---------------------------------------------------------------------- */
MERCURY_API const char *mercury_last_error(void); /* of the calling thread; "" if none */
MERCURY_API const char *mercury_version(void);    /* "0.1.0" */

#ifdef __cplusplus
}
#endif
#endif
