/* Mercury's native API. Gradient path: step 1/8.
 *
 * Attach to the host's daemon (or run the engine in this process), open a job, declare its tensors,
 * then exchange: every worker calls mercury_push_pull for a tensor, and each finds the sum over all
 * workers in the tensor's memory. docs/api.md has a complete program.
 *
 * Names: mercury_OBJECT_get_THING asks an object for something, mercury_OBJECT_set_THING changes
 * it.
 * Errors: every function that can fail returns 0 (or a count, or a descriptor) or a negative errno
 * value; mercury_last_error() then holds, for the calling thread, what was wrong and what to do.
 * Threads: every function may be called from any thread; calls on one context are serialised, but a
 * call that blocks lets others pass. Nothing may be called on what another thread closes, except
 * that closing ends what blocks by then (mercury_job_open, _wait, _wait_all, _barrier, _declare,
 * _job_wait_end: -ESHUTDOWN), and awaits it.
 * After fork the child may not use what the parent opened: calls return -ENOTCONN there.
 * Strings passed in are copied. Enumerations travel as int32_t.
 * Times are in milliseconds; MERCURY_FOREVER stands for no limit wherever one is asked for.
 * Structs begin with their own size, so that they can grow: programs built with an older or a newer
 * header than the library's work, if they use what both know. mercury_STRUCT_init(&it, sizeof it)
 * fills any of them with its defaults and sets `size`; -EINVAL if that is no such struct's size. A
 * struct that the program fills may be longer than the library's if the rest is zero. One that the
 * library fills gets what both know, zeros behind it, and in `size` how much the library filled.
 */
#ifndef MERCURYSTACK_MERCURY_H
#define MERCURYSTACK_MERCURY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef MERCURY_API
#define MERCURY_API __attribute__((visibility("default")))
#endif

/* Of this header; what mercury_version says is of the library. What a program built with 1.x uses
 * stays as it is as long as the library is libmercurystack.so.1 (docs/api.md, "Versions"). */
#define MERCURY_VERSION_MAJOR 1
#define MERCURY_VERSION_MINOR 1
#define MERCURY_VERSION_PATCH 0
#define MERCURY_VERSION_NUMBER \
  (MERCURY_VERSION_MAJOR * 1000000 + MERCURY_VERSION_MINOR * 1000 + MERCURY_VERSION_PATCH)

#define MERCURY_FOREVER (-1)

typedef struct mercury_context mercury_context;
typedef struct mercury_job mercury_job;
typedef uint64_t mercury_handle; /* one operation; never 0, never used twice in a context */

typedef enum { MERCURY_DTYPE_F32 = 0, MERCURY_DTYPE_F64 = 1, MERCURY_DTYPE_F16 = 2,
               MERCURY_DTYPE_BF16 = 3, MERCURY_DTYPE_I32 = 4, MERCURY_DTYPE_I64 = 5,
               MERCURY_DTYPE_I8 = 6, MERCURY_DTYPE_U8 = 7 } mercury_dtype;
typedef enum {
  MERCURY_REDUCE_SUM = 0,     /* integers wrap around */
  MERCURY_REDUCE_AVERAGE = 1, /* floating point only */
  MERCURY_REDUCE_MIN = 2,     /* -0 is less than +0; a NaN makes a NaN */
  MERCURY_REDUCE_MAX = 3,
} mercury_reduce_op;
typedef enum { MERCURY_ROLE_WORKER = 0, MERCURY_ROLE_SERVER = 1 } mercury_role;
typedef enum {
  MERCURY_MODE_AUTO = 0,     /* the daemon if its socket answers, else embedded; see `socket` */
  MERCURY_MODE_DAEMON = 1,
  MERCURY_MODE_EMBEDDED = 2, /* engine on a thread of this process, over io_uring: no daemon, no
                                root */
} mercury_mode;

/* ---- attach ---------------------------------------------------------------------------------- */
typedef struct {
  size_t size;              /* sizeof(mercury_attach_options) */
  int32_t mode;             /* mercury_mode */
  const char *socket;       /* daemon: NULL = $MERCURY_SOCKET, then /run/mercury/stackd.sock.
                               Where one is named, MERCURY_MODE_AUTO does not embed instead */
  const char *listen;       /* embedded: "ADDRESS[:PORT]"; NULL = $MERCURY_LISTEN, then the address
                               that routes to the job's rendezvous, any port */
  const char *rate;         /* embedded: what its link carries, "1Mbps" or more (kbps, Mbps, Gbps,
                               Tbps); NULL = $MERCURY_RATE, then not known, as "0". Where it is
                               known frames leave at that rate, so that the most urgent overtakes
                               what waits, and peers may send at it. Contexts of one process that
                               listen at one address share it, and say the same; where several
                               processes, or addresses, use a link, say each one's part */
  int32_t daemon_timeout_ms; /* daemon: it is given up (-EPIPE) when somebody waits for it, and it
                               has answered nothing for so long, or up to a fifth longer. 200 or
                               more, MERCURY_FOREVER: 24 days; 0 = $MERCURY_DAEMON_TIMEOUT_MS, then
                               10000. With 800 the error comes within a second; so it does where a
                               debugger or a busy core holds a daemon that is well */
} mercury_attach_options;
MERCURY_API int mercury_attach_options_init(mercury_attach_options *options, size_t size);

/* -EPIPE: no daemon there; -EPROTONOSUPPORT: another ABI version; -EPERM; -EINVAL: also for a
 * MERCURY_ variable that is nearly one of Mercury's. options may be NULL. */
MERCURY_API int mercury_attach(const mercury_attach_options *options, mercury_context **out);
/* Ends a context's work, whatever other threads do: its jobs are left, as by mercury_job_close, and
 * calls under way on them and on the context end (-ESHUTDOWN) and are awaited. Who comes later is
 * refused: no job can be opened, and the closed ones have no tensors any more; mercury_job_close
 * frees them. Memory stays until mercury_detach, which frees all. NULL is allowed. -EBUSY: called
 * from a callback, and nothing happened. */
MERCURY_API int mercury_context_close(mercury_context *context);
/* As mercury_context_close; then the context is gone, and memory from mercury_alloc. Where another
 * thread may be about to call, close the context first, and detach when that thread has gone. */
MERCURY_API int mercury_detach(mercury_context *context);
MERCURY_API mercury_mode mercury_context_get_mode(const mercury_context *context);

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
  int32_t role;             /* mercury_role */
  int32_t rank;             /* 0.. within the role; -1 = any free one */
  int32_t workers;          /* 1 to 1024 */
  int32_t servers;          /* 1 to 1024 */
  const char *rendezvous;   /* "ADDRESS:PORT[,ADDRESS:PORT...]": server 0's daemon (or embedded
                               program) first; the others follow, or join by themselves */
  int32_t timeout_ms;       /* for everyone to be there; 30000. MERCURY_FOREVER: 24 days */
  int32_t deterministic;    /* 1: same bits whatever the order of arrival */
  const char *policy;       /* how gradients are exchanged, for comparison with other systems: NULL
                               or "mercury", else one of docs/simulator.md, such as "mercury-fifo"
                               or "p3". The same on every worker; servers ignore it */
  int32_t weight;           /* share among jobs on a link; 1 to 1000, 1 */
  int32_t rejoin_ms;        /* how long the job waits for a worker that was lost to be started
                               again (operations wait meanwhile); 0: it fails at once.
                               MERCURY_FOREVER: 24 days. The same on every worker; servers ignore
                               it */
  int32_t quorum;           /* 0: a sum waits for all workers. Else, 1 to workers: so many
                               contributions are enough once patience_ms have passed since the
                               first, and the job goes on while so many workers are there. Not
                               with deterministic; the same on every worker */
  int32_t patience_ms;      /* with quorum: 1.., the same on every worker */
  int32_t stall_timeout_ms; /* workers that have not pushed a round of a tensor for so long since
                               others did count as lost; 1800000, or MERCURY_FOREVER. The same on
                               every worker; servers ignore it */
} mercury_job_options;
MERCURY_API int mercury_job_options_init(mercury_job_options *options, size_t size);
/* Fills role, rank, workers, servers, rendezvous, name and secret from what a launcher set:
 * MERCURY_*, else DMLC_* (ps-lite), torchrun (RANK, WORLD_SIZE, MASTER_ADDR), Open MPI
 * (OMPI_COMM_WORLD_*), Slurm (SLURM_PROCID, ...). -ENOENT: none of them; -EINVAL: one is malformed
 * or misspelt, named in the message. The strings live until the process ends. */
MERCURY_API int mercury_job_options_from_env(mercury_job_options *options);

/* Blocks until all members are there. -ESRCH (workers) unknown job, or another secret of it there,
 * -EKEYREJECTED the same on this host, or whoever answers does not prove the secret, -ERANGE sizes
 * differ, -EADDRINUSE rank taken, -ETIME members missing (the message names them), -EPROTONOSUPPORT
 * version, -ECONNRESET, -EHOSTDOWN, -ETIMEDOUT. */
MERCURY_API int mercury_job_open(mercury_context *context, const mercury_job_options *options,
                                 mercury_job **out);
MERCURY_API int mercury_job_get_rank(const mercury_job *job);
MERCURY_API int mercury_job_get_workers(const mercury_job *job);
MERCURY_API int mercury_job_get_servers(const mercury_job *job);
/* Leaves the job: operations in flight complete with -ESHUTDOWN, peers are told. NULL is allowed.
 * -EBUSY: called from a callback, and nothing happened. */
MERCURY_API int mercury_job_close(mercury_job *job);
/* Workers, while the job is open: all its members follow another policy from now on
 * (options.policy). No chunk is lost or sent twice for it; rounds in flight end under either.
 * Returns once the request is on its way to the job's coordinator. That passes it on only if every
 * member is of a version that can follow; otherwise the policy stays, and nobody is told.
 * -EINVAL: says what a policy looks like, or that this one would place tensors on other servers
 * than the job does (place=); -EOPNOTSUPP: one that no engine can follow. */
MERCURY_API int mercury_job_set_policy(mercury_job *job, const char *policy);
/* 0 while the job runs and after it has ended in order, else what it failed of. `text`, of
 * `bytes` (0: NULL is allowed), gets the reason, cut if need be and ended by a 0; "" if there is
 * none. With a daemon that is a round trip on this host. */
MERCURY_API int mercury_job_get_status(mercury_job *job, char *text, size_t bytes);
/* Servers: blocks until the job has ended (0) or failed, at most timeout_ms. */
MERCURY_API int mercury_job_wait_end(mercury_job *job, int timeout_ms);

/* ---- tensors --------------------------------------------------------------------------------- */
typedef struct {
  size_t size;              /* sizeof(mercury_tensor_options) */
  uint32_t id;              /* the same on every worker; 0 to 2^31-2 */
  int32_t dtype;            /* mercury_dtype */
  uint64_t numel;           /* elements, 1.. */
  int32_t op;               /* mercury_reduce_op */
  int32_t priority;         /* of operations that name none; 0, the most urgent, to 65535 */
  void *data;               /* numel elements, in memory of mercury_alloc or mercury_register;
                               gradients are read from it and sums written to it, in place */
} mercury_tensor_options;
MERCURY_API int mercury_tensor_options_init(mercury_tensor_options *options, size_t size);
/* Declares `count` tensors and blocks until all servers and all workers' declarations so far agree.
 * -EPROTOTYPE: differs from another worker's (the message says how), -EINVAL, -ENOSPC, -EEXIST. */
MERCURY_API int mercury_declare(mercury_job *job, const mercury_tensor_options *tensors,
                                size_t count);

/* The round that the next push of `tensor` belongs to. 1 after the declaration; in a program that
 * took the place of a lost worker (rejoin_ms) the round that the others are in. Tensors may be one
 * round apart then: push those first that are behind. -ENOENT: not declared. */
MERCURY_API int mercury_tensor_get_round(mercury_job *job, uint32_t tensor, uint32_t *out);

/* ---- exchange -------------------------------------------------------------------------------- */
#define MERCURY_DEFAULT_PRIORITY (-1)
typedef enum {
  MERCURY_OPERATION_PUSH_PULL = 0, /* completes when the sum is in the tensor's memory */
  MERCURY_OPERATION_PUSH = 1,      /* completes when the servers have all of it; the sum still
                                      arrives in the tensor's memory... */
  MERCURY_OPERATION_PULL = 2,      /* ...and the pull of that round completes when it is there.
                                      One pull per push */
  MERCURY_OPERATION_BROADCAST = 3, /* completes when worker `root`'s elements are in the tensor's
                                      memory; a NaN of floating point arrives as the quiet NaN.
                                      The others send no elements */
  MERCURY_OPERATION_ALL_GATHER = 4, /* worker r has the r-th of `workers` equal parts of the tensor;
                                      completes when all parts are in the memory of each. The
                                      tensor is declared as a sum of integers, and can hold any
                                      type's bytes; its elements are a multiple of `workers` */
  MERCURY_OPERATION_REDUCE_SCATTER = 5, /* as a push-pull, but that each worker gets its own part
                                      of the sum alone (mercury_tensor_get_part); the rest of the
                                      tensor's memory has no meaning then */
} mercury_operation_kind;

typedef struct {
  size_t size;              /* sizeof(mercury_operation) */
  int32_t kind;             /* mercury_operation_kind */
  uint32_t tensor;
  int32_t priority;         /* 0 to 65535 or MERCURY_DEFAULT_PRIORITY */
  uint32_t root;            /* of a broadcast: the same on every worker */
  uint64_t user_data;       /* comes back in the completion; Mercury does not look at it */
  mercury_handle handle;    /* filled by mercury_submit */
} mercury_operation;
MERCURY_API int mercury_operation_init(mercury_operation *operation, size_t size);
/* Submits `count` operations, all or none: on failure none is in flight, no handle is filled, and
 * the message says which one it was. Elements follow each other at their `size`. The order of the
 * array is the order of the calls that it stands for: a pull may stand behind its push.
 * In a round of a tensor every worker calls the same kind (or, of push and pull, any).
 * Round n of a tensor is its n-th push. From the call until completion the tensor's memory belongs
 * to Mercury. -EBUSY: the tensor's last round is not over, or lies in registered memory and has not
 * been collected; -ENOENT: not declared; -EAGAIN: too many operations in flight; -EINVAL: also if
 * the batch has more than 1,024; -ENOTSUP: broadcast, all-gather or reduce-scatter in a job with a
 * quorum; -EPROTONOSUPPORT: the daemon or a server is too old for them; -ECONNRESET, -EHOSTDOWN:
 * the job has failed. */
MERCURY_API int mercury_submit(mercury_job *job, mercury_operation *operations, size_t count);
/* One operation, without user_data. `out` may be NULL, and is left alone on failure. */
MERCURY_API int mercury_push_pull(mercury_job *job, uint32_t tensor, int priority,
                                  mercury_handle *out);
MERCURY_API int mercury_push(mercury_job *job, uint32_t tensor, int priority, mercury_handle *out);
MERCURY_API int mercury_pull(mercury_job *job, uint32_t tensor, int priority, mercury_handle *out);
MERCURY_API int mercury_broadcast(mercury_job *job, uint32_t tensor, uint32_t root, int priority,
                                  mercury_handle *out);
MERCURY_API int mercury_all_gather(mercury_job *job, uint32_t tensor, int priority,
                                   mercury_handle *out);
MERCURY_API int mercury_reduce_scatter(mercury_job *job, uint32_t tensor, int priority,
                                       mercury_handle *out);
/* Where worker `rank`'s part of a tensor begins, and how many elements it has (0: there are fewer
 * than workers). Parts are in the order of ranks, and equal; where the elements are no multiple of
 * the workers the first parts have one more. -ENOENT: not declared; -EINVAL: no such worker, or
 * `begin` or `numel` is NULL. */
MERCURY_API int mercury_tensor_get_part(mercury_job *job, uint32_t tensor, uint32_t rank,
                                        uint64_t *begin, uint64_t *numel);
/* Workers: blocks until every worker of the job is in its barrier of the same number, at most
 * timeout_ms. -ETIMEDOUT: not yet; the next call goes on with the same barrier. -EBUSY: another
 * thread is in one. -ENOTSUP: the job has a quorum. Who is awaited for longer than the job's
 * stall_timeout_ms counts as lost. */
MERCURY_API int mercury_barrier(mercury_job *job, int timeout_ms);

typedef struct {
  size_t size;              /* how much of this the library filled */
  mercury_handle handle;
  uint64_t user_data;       /* of the operation; 0 if it had none */
  int32_t status;           /* 0 or a negative errno */
  uint32_t tensor;
  uint32_t round;
  int32_t kind;             /* mercury_operation_kind */
  const char *message;      /* what was wrong; NULL if nothing. Lives until the job is closed */
} mercury_completion;
MERCURY_API int mercury_completion_init(mercury_completion *completion, size_t size);
/* Blocks until `handle` completes, at most timeout_ms: its status, or -ETIMEDOUT with the operation
 * still in flight. A handle is waited for once; then it is gone (-ENOENT). */
MERCURY_API int mercury_wait(mercury_job *job, mercury_handle handle, int timeout_ms);
/* As mercury_wait, for each operation of the job that was submitted before the call and is not
 * collected yet, but for those that another thread waits for or polls meanwhile: the first status
 * that is not 0, else -ETIMEDOUT with the rest still in flight, else 0. -ESHUTDOWN: the job was
 * closed, with its context or by another thread; sums that were in flight have not come. */
MERCURY_API int mercury_wait_all(mercury_job *job, int timeout_ms);
/* Up to `count` completions that nobody waited for, in elements of `size` bytes,
 * sizeof(mercury_completion); the number, or a negative errno. Never waits for the network; at a
 * job's first failure it asks the daemon why, once. -ESHUTDOWN: the job was closed with its
 * context. */
MERCURY_API int mercury_poll(mercury_job *job, mercury_completion *out, size_t count, size_t size);
/* Called instead of queueing for mercury_poll, on a thread that calls mercury_poll, mercury_wait or
 * mercury_wait_all, and on several at once. It may submit, wait and poll, not close jobs or detach.
 * `completion` is valid during the call. A NULL callback: queue again. */
typedef void (*mercury_callback)(const mercury_completion *completion, void *user);
MERCURY_API int mercury_job_set_callback(mercury_job *job, mercury_callback callback, void *user);
/* Readable while completions wait for mercury_poll, and once the job was closed with its context.
 * Owned by the job, until mercury_job_close: never read, write or close it. Negative errno on
 * failure. */
MERCURY_API int mercury_job_get_fd(mercury_job *job);

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
  uint64_t in_all_above[12]; /* the same of workers 256 to 1023: bit r % 64 of word r / 64 - 4 */
  uint64_t in_any_above[12];
} mercury_contributors;
MERCURY_API int mercury_contributors_init(mercury_contributors *contributors, size_t size);
/* -ENOENT: not declared; -EINVAL: size is not set. */
MERCURY_API int mercury_tensor_get_contributors(mercury_job *job, uint32_t tensor,
                                                mercury_contributors *out);

typedef struct {
  size_t size;              /* sizeof(mercury_job_stats) */
  uint64_t operations;      /* completed */
  uint64_t bytes_pushed;    /* tensor bytes of this program's completed rounds */
  uint64_t bytes_pulled;
} mercury_job_stats;
MERCURY_API int mercury_job_stats_init(mercury_job_stats *stats, size_t size);
MERCURY_API int mercury_job_get_stats(mercury_job *job, mercury_job_stats *out);

/* ---- errors, log and version ----------------------------------------------------------------- */
MERCURY_API const char *mercury_last_error(void); /* of the calling thread; "" if none */
/* What a code of this API means, negative or not: where errno's own text would mislead
 * (-ETIME: "members are missing"). Never NULL; static. */
MERCURY_API const char *mercury_strerror(int code);

typedef enum { MERCURY_LOG_WARNING = 1, MERCURY_LOG_INFO = 2 } mercury_log_level;
/* One line, printable, without a newline, valid during the call. */
typedef void (*mercury_log)(int32_t level, const char *line, void *user);
/* The process's one log, of lines up to `level`; NULL: none, as at first. What happens without a
 * call that could say so. Embedded: jobs that open, end or fail, members that are lost or come
 * back, peers that are refused (of each kind at most 20 lines in 10 seconds). With a daemon, whose
 * own log has these: that it was attached to, and has gone. Called on any thread, Mercury's own
 * too, one at a time; it may not call Mercury. After this returns the previous log is not called
 * any more. -EINVAL: no such level. */
MERCURY_API int mercury_set_log(mercury_log log, void *user, int32_t level);

MERCURY_API const char *mercury_version(void);    /* "1.1.0" */
MERCURY_API int mercury_version_number(void);     /* as MERCURY_VERSION_NUMBER */

#ifdef __cplusplus
}
#endif
#endif
