/* The C ABI of libfarandole, and its only door. Everything a front end needs goes through here.
 *
 * Threads: every function may be called from any thread unless it says otherwise.
 * Errors: functions that return int give FARANDOLE_OK or another FARANDOLE_* status; the sentence for it is
 *         farandole_last_error() of the calling thread.
 * Strings are UTF-8 and end with a zero byte. Memory passed in is read before the call returns, except for
 * tensors: they belong to the engine from submit until the request is done.
 */
#ifndef FARANDOLE_H
#define FARANDOLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FARANDOLE_API __attribute__((visibility("default")))

/* Raised whenever a struct or the meaning of a function changes; the binding compares it at load. */
#define FARANDOLE_ABI_VERSION 15

enum farandole_status {
  FARANDOLE_OK = 0,
  FARANDOLE_INVALID_ARGUMENT = 1, /* this call is wrong, whatever the other ranks do */
  FARANDOLE_MISMATCH = 2,         /* the ranks asked for different things under one name; the job goes on */
  FARANDOLE_WORKER_LOST = 3,      /* a worker died or was cut off: this generation is over */
  FARANDOLE_SHUT_DOWN = 4,        /* a worker left in good order: this generation is over */
  FARANDOLE_TIMEOUT = 5,
  FARANDOLE_UNAVAILABLE = 6, /* the operating system refused: memory, descriptors, addresses */
  FARANDOLE_INTERNAL = 7,    /* a bug of ours, reported instead of a wrong number */
  FARANDOLE_STALLED = 8      /* some ranks did not ask for what others waited for: this generation is over */
};

enum farandole_dtype { /* Horovod's numbers; bfloat16 comes after */
                       FARANDOLE_U8 = 0,
                       FARANDOLE_I8 = 1,
                       FARANDOLE_I16 = 3,
                       FARANDOLE_I32 = 4,
                       FARANDOLE_I64 = 5,
                       FARANDOLE_F16 = 6,
                       FARANDOLE_F32 = 7,
                       FARANDOLE_F64 = 8,
                       FARANDOLE_BOOL = 9,
                       FARANDOLE_BF16 = 10
};

enum farandole_op { /* Horovod's numbers */
                    FARANDOLE_AVERAGE = 0,
                    FARANDOLE_SUM = 1,
                    FARANDOLE_ADASUM = 2, /* allreduce of floating-point types only */
                    FARANDOLE_MIN = 3,
                    FARANDOLE_MAX = 4,
                    FARANDOLE_PRODUCT = 5
};

enum farandole_kind {
  FARANDOLE_ALLREDUCE = 0,
  FARANDOLE_ALLGATHER = 1,
  FARANDOLE_BROADCAST = 2,
  FARANDOLE_BARRIER = 3,
  FARANDOLE_ADD_GROUP = 4,    /* shape[] holds the ranks; all ranks of the world submit it */
  FARANDOLE_REMOVE_GROUP = 5, /* shape[0] holds the group id; all ranks of the world submit it */
  FARANDOLE_ALLTOALL = 6,
  FARANDOLE_REDUCESCATTER = 7,
  FARANDOLE_JOIN = 8,     /* in the world, without a shape: see farandole_submit */
  FARANDOLE_TRANSFER = 9, /* from `root` to `peer`; only these two members of the group submit it */
  FARANDOLE_REDUCE = 10   /* the result is at `root`; elsewhere the output is a copy of the input */
};
#define FARANDOLE_KINDS 11

/* What requests of a kind have: bits. */
enum farandole_has {
  FARANDOLE_HAS_TENSOR = 1,
  FARANDOLE_HAS_REDUCTION = 2,
  FARANDOLE_HAS_COMPRESSION = 4,
  FARANDOLE_HAS_ROOT = 8,
  FARANDOLE_HAS_PEER = 16
};

/* The rows of a tensor's result. */
enum farandole_rows {
  FARANDOLE_ROWS_SAME = 0,     /* as many as the input has */
  FARANDOLE_ROWS_SHARED = 1,   /* this member's share of as many; the first members get one more */
  FARANDOLE_ROWS_GATHERED = 2, /* the rows of all members */
  FARANDOLE_ROWS_EXCHANGED = 3 /* the rows that each member has for this one */
};

/* A kind of request, as far as callers can follow it without knowing the kind. */
typedef struct {
  const char* name; /* "allreduce" */
  uint32_t has;     /* bits of farandole_has */
  uint32_t rows;    /* farandole_rows */
} farandole_kind_row;

enum farandole_compression {
  FARANDOLE_COMPRESSION_NONE = 0,
  FARANDOLE_COMPRESSION_INT8 = 1, /* bytes, with a scale for each 256 elements */
  FARANDOLE_COMPRESSION_TOPK = 2  /* the elements of largest magnitude only */
};

enum farandole_memory {
  FARANDOLE_MEMORY_HOST = 0,
  FARANDOLE_MEMORY_DEVICE = 1 /* of a GPU: see `device` and `stream` of farandole_request */
};

typedef struct farandole_engine farandole_engine;

/* What becomes of one request: `status` as farandole_wait gives it, the sentence for it ("" for FARANDOLE_OK; valid
 * during the call) and the rank that it names, or -1.
 *
 * Called exactly once for every request that was submitted with it, when the request is done: well, with an error, or
 * because the world ended (by a loss, a revoke, farandole_engine_leave, the next farandole_engine_form or
 * farandole_engine_destroy, none of which returns before). Not when farandole_submit refuses the request. It may be
 * called before farandole_submit returns, and after another thread has seen the request done.
 *
 * By which thread: the engine thread, or another one that waits for a request of this engine and makes progress
 * meanwhile. It holds no lock of the engine, so that other threads go on; callbacks of one engine can run in several
 * threads at once, and no order is promised. While the engine thread is in a callback, requests for which no thread
 * waits do not proceed: it should be done within microseconds, and hand over to another thread what takes longer.
 *
 * What it may call: farandole_submit, farandole_poll, farandole_result, farandole_release_all,
 * farandole_engine_health, farandole_engine_cause and the arena's functions. It must not wait: farandole_wait of a
 * request that is not done, farandole_run, farandole_engine_form and farandole_engine_leave refuse with
 * FARANDOLE_INVALID_ARGUMENT there, and farandole_engine_destroy must not be called. It must not throw, and must not
 * wait for anything that another thread does only after a collective.
 *
 * The handle stays valid: the caller releases it, in the callback or later, as without a callback. When it was
 * released before, the callback is called all the same, and farandole_result refuses. */
typedef void (*farandole_callback)(void* context, uint64_t handle, int status, const char* error, int32_t lost_rank);

/* One setting of an engine. farandole_setting_names() lists them; docs/reference/settings.md says what they mean. A
 * setting more changes no struct, and so breaks no caller. */
typedef struct {
  const char* name;
  const char* value; /* a number in digits, a truth value as 0 or 1, or a text */
} farandole_setting;

/* One world: the ordered list of workers at one generation. */
typedef struct {
  uint64_t generation; /* larger than any this engine has been in */
  int32_t rank;
  int32_t size;
  const char* const* contacts; /* [size], each worker's farandole_engine_contact(); NULL for a world of one */
  const void* secret;          /* the job's secret; every connection proves it */
  size_t secret_bytes;
  double timeout_seconds; /* for all workers to be connected */
} farandole_world;

/* One option of a request: what it asks for besides its type and shape. Which there are, and which kinds of request
 * have them, says farandole_options(); what is not given has its default. As with settings, an option more changes no
 * struct.
 *
 * - prescale, postscale: multiplied in before and after the reduction; 1, the default, leaves every bit
 * - op: farandole_op; the default is FARANDOLE_SUM
 * - compression: farandole_compression, of sums and averages of float16, bfloat16 and float32
 * - compression_ratio: of topk, which part of the elements is sent; above 0, at most 1
 * - root: rank in the world; whose tensor a broadcast sends, of a reduce the one that gets the result, and of a
 * transfer the one that sends
 * - peer: rank in the world; of a transfer the one that receives
 * - memory: farandole_memory, where input and output lie
 *
 * When a tensor is compressed, what is not finite arrives as such: with int8 as NaN (as does what is not below 2^127),
 * with topk at least some of it. */
typedef struct {
  const char* name;
  double value; /* a factor, a rank, or a number of an enumeration */
} farandole_option;

typedef struct {
  uint32_t kind;  /* farandole_kind */
  uint32_t dtype; /* farandole_dtype */
  uint32_t group; /* 0 is the world */
  uint32_t ndim;
  const int64_t* shape; /* [ndim] */
  const char* name;     /* requests match by (group, name); transfers by (group, name, root, peer) */
  const void* input;    /* dense, row-major; may be NULL when there are no elements */
  /* Of the input's size, may be the input. Reducescatter: this member's rows only. Transfer: used at `peer`, as `input`
   * is at `root`. Allgather and alltoall: NULL, or room for equal parts: the input's size times the members, of which
   * the input may be this member's part; for an alltoall without splits, the input's size. It is used when all parts
   * turn out to be equal, and farandole_result then gives no data. */
  void* output;
  const farandole_option* options; /* [option_count], of different names */
  size_t option_count;
  /* Alltoall: rows for each member of the group, in its order, [size of the group]. NULL: equal parts. Rows beyond
   * their sum go nowhere. */
  const int64_t* splits;
  /* Of a compressed allreduce: float32, as many as the input has elements; NULL: what is not sent is lost. Added to the
   * prescaled input before; holds what was not sent afterwards. Like the output, undefined after a failure. */
  void* residual;
  /* NULL, or the name of an element type that the engine only moves, such as "uint32": it stands for `dtype` where
   * nothing is calculated, which is in all kinds without the option `op`. Ranks whose names or sizes differ have
   * different types. */
  const char* opaque_type;
  size_t opaque_bytes;         /* of an element of that type, from 1 to UINT32_MAX */
  farandole_callback callback; /* called once when the request is done; NULL: none */
  void* callback_context;      /* its first argument */
  /* Of a request in device memory: the number of the GPU in this process, and the stream (CUstream, of the GPU's
   * primary context; NULL is its default stream) after whose present work the input is complete, and in which the
   * output may be written. As soon as the request is done or refused, their memory may be freed in the order of this
   * stream, and the stream may be destroyed. The residual is in host memory all the same. Not used in host memory. */
  int32_t device;
  /* What happens while another request of this (group, name) is in flight. 0: this one is refused. 1: it is made in
   * turn, when that one is agreed on or refused, without waiting in farandole_submit. Such a name is expected to come
   * again, so that it has a place in the response cache from its first request on. */
  uint32_t in_turn;
  void* stream;
} farandole_request;

/* What was done of one kind. Times are sums, over requests except for `moving_ns`. */
typedef struct {
  uint64_t requests, buckets, bytes;
  uint64_t waiting_ns;     /* from submit until the last member was ready */
  uint64_t negotiating_ns; /* from then until this rank knew */
  uint64_t moving_ns;      /* of buckets: from their start to their end */
  /* Of allreduces that are not compressed: bytes of tensors that were copied into memory of the engine, and out of it;
   * not what is read or written where it lies. */
  uint64_t copied_in, copied_out;
} farandole_kind_stats;

/* Every field counts from the start of the current generation. */
typedef struct {
  uint64_t rounds; /* agreements reached */
  uint64_t sleeps; /* how often the engine thread slept */
  farandole_kind_stats kinds[FARANDOLE_KINDS];
} farandole_stats;

enum farandole_phase {
  FARANDOLE_SUBMITTED = 0,
  FARANDOLE_AGREED = 1,
  FARANDOLE_STARTED = 2, /* of a bucket: the collective begins */
  FARANDOLE_MOVED = 4,   /* of a bucket: it has ended */
  FARANDOLE_DONE = 6,
  FARANDOLE_FAILED = 7,
  FARANDOLE_WOKE = 8,       /* the engine thread had slept and has something to do */
  FARANDOLE_RANK_READY = 9, /* rank 0 only, and only once events have been read: `rank` has reported this request */
  FARANDOLE_ROUND = 10      /* this rank has heard what was agreed in one round */
};

typedef struct {
  int64_t time_ns; /* CLOCK_MONOTONIC */
  uint64_t bytes;
  uint32_t phase; /* farandole_phase */
  uint32_t kind;  /* farandole_kind */
  uint32_t group;
  uint32_t algorithm; /* index into farandole_algorithms(), or UINT32_MAX */
  uint32_t bucket;    /* number of the bucket in this generation, or UINT32_MAX */
  uint32_t name;      /* see farandole_event_name; UINT32_MAX for events of a whole bucket */
  int32_t rank;       /* FARANDOLE_RANK_READY: whose report came; otherwise -1 */
} farandole_event;

FARANDOLE_API const char* farandole_version(void);
FARANDOLE_API uint32_t farandole_abi_version(void);
/* The sentence for the last status that was not FARANDOLE_OK in this thread, and the rank it names or -1. */
FARANDOLE_API const char* farandole_last_error(void);
FARANDOLE_API int32_t farandole_last_lost_rank(void);
/* The row of a kind below FARANDOLE_KINDS; of another number, one without a name. Valid for ever. */
FARANDOLE_API const farandole_kind_row* farandole_kind_row_of(uint32_t kind);
/* A JSON array of {"name", "collective", "description"}: what the selector can choose from. */
FARANDOLE_API const char* farandole_algorithms(void);
/* A JSON array of {"name", "description", "memory", "absent"}: what can run collectives, in the order of preference;
 * the kinds of memory that it takes ("host", "device"); and why this build lacks it, or "". */
FARANDOLE_API const char* farandole_backends(void);
/* What a backend would use on this machine, for people, or "" when it needs nothing. Starts nothing. `library`: a path
 * that is asked for, or "". NULL and an error that says why it cannot be used. Valid until the calling thread asks
 * again. */
FARANDOLE_API const char* farandole_probe_backend(const char* name, const char* library);
/* A JSON object {"algorithm", "reason"}: what would run a tensor of this size in bytes among `members` workers on
 * `hosts` hosts, of which the one with the fewest has `fewest`; with the defaults of all knobs. NULL and an error for
 * what needs no algorithm. Valid until the calling thread asks again, as is what farandole_choose gives. */
FARANDOLE_API const char* farandole_choose_for(uint32_t kind, uint32_t op, uint64_t bytes, int32_t members,
                                               int32_t hosts, int32_t fewest);
/* A JSON array of the names that farandole_engine_create takes. */
FARANDOLE_API const char* farandole_setting_names(void);
/* A JSON array of {"name", "kinds"}: the options of requests, and the numbers of the kinds that have them. */
FARANDOLE_API const char* farandole_options(void);
/* Warnings and errors of the engines of this process are written to this descriptor as well, while it stays open and is
 * another file than standard error; -1: to standard error only. */
FARANDOLE_API void farandole_log_copy_to(int fd);

/* --- an engine and its worlds ------------------------------------------------------------------------ */

/* Opens the listening sockets and the arena, and starts nothing. `abi_version` is FARANDOLE_ABI_VERSION; `settings`
 * [count] are those that have not their defaults. */
FARANDOLE_API int farandole_engine_create(uint32_t abi_version, const farandole_setting* settings, size_t count,
                                          farandole_engine** engine);
/* Ends the current world as if the process had died, then frees everything. Blocks that came from
 * farandole_arena_alloc are gone. */
FARANDOLE_API void farandole_engine_destroy(farandole_engine* engine);
/* How other workers reach this one; for the roster. Lives as long as the engine. */
FARANDOLE_API const char* farandole_engine_contact(farandole_engine* engine);
/* Enters a world: connects to every worker in it and starts the engine thread. Blocks until all are
 * connected. When the engine was in an earlier world, that one is revoked first and its requests fail: this is
 * reform(). Arena blocks, and the engine itself, stay. Groups do not: ids start again at 1. */
FARANDOLE_API int farandole_engine_form(farandole_engine* engine, const farandole_world* world);
/* Leaves the world in good order: finishes what is agreed, fails the rest here and on all other ranks with
 * FARANDOLE_SHUT_DOWN, says goodbye. Blocks at most `timeout_seconds`. */
FARANDOLE_API int farandole_engine_leave(farandole_engine* engine, double timeout_seconds);
/* Ends the world of that generation at once on all its workers; their requests fail with FARANDOLE_WORKER_LOST
 * and this sentence. `lost_rank` may be -1. `certain`: 0 if that rank may live, as far as the caller knows; it is what
 * farandole_engine_cause says on all of them. While the world is being formed, farandole_engine_form returns the same
 * within milliseconds, here and on all that are connected by then. Before that: as soon as it is called. A generation
 * that is over is left alone. Any thread; does not wait, not even for farandole_engine_form. */
FARANDOLE_API int farandole_engine_revoke(farandole_engine* engine, uint64_t generation, int32_t lost_rank,
                                          int32_t certain, const char* reason);
/* FARANDOLE_OK while the world lives; otherwise why it ended (see farandole_last_error). */
FARANDOLE_API int farandole_engine_health(farandole_engine* engine);
/* How the engine's last world ended: 1, the rank that was lost or left (-1: none in particular), and whether that is
 * certain: other than 0 when its process has ended, or it has said so itself; 0 when it is only suspected, being silent
 * or stalled, and may live. 0 while the world lives, or before the first one. Known before requests fail. */
FARANDOLE_API int farandole_engine_cause(farandole_engine* engine, int32_t* lost_rank, int32_t* certain);
/* "shm", "tcp", "shm+tcp", "alone": how the current world is connected. Valid until the next form. */
FARANDOLE_API const char* farandole_engine_links(farandole_engine* engine);
/* How this worker's bytes go to each rank of the current world, a line for each, in order: "shared memory",
 * "10.0.0.1 -> 10.0.0.2" (this worker's address and that rank's) or, for its own rank, "itself". Empty before the first
 * world. Valid until the next form. */
FARANDOLE_API const char* farandole_engine_routes(farandole_engine* engine);

/* Copies up to `capacity` of a group's ranks in the world, ascending, and returns how many there are; 0 when there is
 * no such group. Group 0 is the world. */
FARANDOLE_API size_t farandole_group_ranks(farandole_engine* engine, uint32_t group, int32_t* ranks, size_t capacity);

/* --- tuning ------------------------------------------------------------------------------------------------- */

/* Worlds formed from now on begin with these values, "NAME=VALUE,...", where the settings give none: an earlier job has
 * found them. With autotuning on, they are compared with the defaults first. Rank 0's count. */
FARANDOLE_API int farandole_keep_knobs(farandole_engine* engine, const char* knobs);
/* How far autotuning has come in this world, as a JSON object: "on", "done", "found" (knobs worth keeping), "gain"
 * (times the speed of the defaults), "summary", "knobs" (in use), and "samples", each {"phase", "why",
 * "bytes_per_second", "knobs"}. Rank 0 knows; others know the knobs. Valid until the calling thread asks again. */
FARANDOLE_API const char* farandole_tuning(farandole_engine* engine);
/* A JSON object {"algorithm", "reason"}: what runs a tensor of this size in bytes in this group now. NULL and an error
 * when there is no such group, or for what needs no algorithm. */
FARANDOLE_API const char* farandole_choose(farandole_engine* engine, uint32_t kind, uint32_t op, uint32_t group,
                                           uint64_t bytes);

/* --- requests --------------------------------------------------------------------------------------------- */

/* Submits all `count` requests or none. On success handles[i] stands for requests[i] until it is released.
 * FARANDOLE_INVALID_ARGUMENT: a bad dtype, group, shape or option; a name already in flight; not a member.
 * A name is in flight until its request is done and that has been seen (farandole_wait, farandole_poll or
 * farandole_release_all of its handle), or a quarter of a second after it was done.
 * After FARANDOLE_JOIN, and until all ranks have joined, allreduces go on without this rank: it adds what changes
 * nothing (0 to a sum), and an average divides by the number of all members. All else that needs a rank which has
 * joined fails with FARANDOLE_MISMATCH. */
FARANDOLE_API int farandole_submit(farandole_engine* engine, const farandole_request* requests, size_t count,
                                   uint64_t* handles);
/* 1 if done (well or with an error) or launched, 0 if not yet, -1 if there is no such handle. A request in device
 * memory is launched before it is done: its result is on its way, and farandole_wait_on does not wait for it. */
FARANDOLE_API int farandole_poll(farandole_engine* engine, uint64_t handle);
/* Waits until the request is done and gives its status; FARANDOLE_TIMEOUT if it is not done by then (it
 * goes on). The handle stays valid. */
FARANDOLE_API int farandole_wait(farandole_engine* engine, uint64_t handle, double timeout_seconds);
/* The same for several: waits until all are done and gives the first error among them, in their order. */
FARANDOLE_API int farandole_wait_all(farandole_engine* engine, const uint64_t* handles, size_t count,
                                     double timeout_seconds);
/* For requests in device memory: waits until all are launched, and gives the first error among them, in their order.
 * What is put into this stream of this GPU afterwards begins when the results are there; the calling thread does not
 * wait for the GPU, except in an elastic job, where it waits until they are done. Results of unknown size are in memory
 * of the engine: see farandole_result. */
FARANDOLE_API int farandole_wait_on(farandole_engine* engine, const uint64_t* handles, size_t count, int32_t device,
                                    void* stream, double timeout_seconds);
/* farandole_submit, then farandole_wait_all, in one call and quicker than the two: the calling thread does the engine's
 * work meanwhile, so no other thread has to be woken. If nothing was submitted, handles[0] is 0; otherwise the handles
 * are to be released, whatever the status. */
FARANDOLE_API int farandole_run(farandole_engine* engine, const farandole_request* requests, size_t count,
                                uint64_t* handles, double timeout_seconds);
/* farandole_run, then farandole_release_all, in one call, for requests whose results are in their outputs. If
 * handles[0] is 0 afterwards, nothing is left to release: all have succeeded, or nothing was submitted. Otherwise the
 * handles are to be released: requests have failed or, after FARANDOLE_TIMEOUT, go on. */
FARANDOLE_API int farandole_run_and_release(farandole_engine* engine, const farandole_request* requests, size_t count,
                                            uint64_t* handles, double timeout_seconds);
/* The result of a done or launched request. Allgather and alltoall: `*data`, in host memory, and the rows that came
 * from every member of the group, `sizes[group size]`; data is NULL when they are in the memory of a GPU: see
 * farandole_take. Add group: `sizes[0]` is the new group's id. Join: `sizes[0]` is
 * the rank that joined last. Valid until release. */
FARANDOLE_API int farandole_result(farandole_engine* engine, uint64_t handle, const void** data, const int64_t** sizes,
                                   size_t* sizes_count);
/* Gives the rows of a done or launched request that are in the memory of a GPU, once: they are copied to `target`, in
 * device memory, in this stream of this GPU, when they are there. The calling thread does not wait for the GPU. */
FARANDOLE_API int farandole_take(farandole_engine* engine, uint64_t handle, void* target, int32_t device, void* stream);
/* Fills memory of a GPU with zeros, in this stream of it. The calling thread does not wait for the GPU. */
FARANDOLE_API int farandole_clear(farandole_engine* engine, void* memory, size_t bytes, int32_t device, void* stream);
/* Forgets handles. A request that is not done goes on and its result is dropped; its tensors must stay. Handles that do
 * not exist are passed over, and then the status is FARANDOLE_INVALID_ARGUMENT. */
FARANDOLE_API int farandole_release_all(farandole_engine* engine, const uint64_t* handles, size_t count);

/* --- arena -------------------------------------------------------------------------------------------------- */

/* Memory that collectives use without copying. Zeroed, aligned to 64 bytes; NULL when the arena is full. */
FARANDOLE_API void* farandole_arena_alloc(farandole_engine* engine, size_t bytes);
FARANDOLE_API void farandole_arena_free(farandole_engine* engine, void* block);

/* --- looking inside ----------------------------------------------------------------------------------------- */

FARANDOLE_API int farandole_get_stats(farandole_engine* engine, farandole_stats* stats);
/* Copies up to `capacity` events that came after `*cursor` (0: the oldest still there), in order, and moves
 * the cursor. Returns their number. `*lost` counts events that were overwritten before they were read. */
FARANDOLE_API size_t farandole_read_events(farandole_engine* engine, uint64_t* cursor, farandole_event* events,
                                           size_t capacity, uint64_t* lost);
/* The request name that an event's number stands for; "" if unknown. Valid as long as the engine. */
FARANDOLE_API const char* farandole_event_name(farandole_engine* engine, uint32_t name);
/* Type and shape of the last request under that name: "float32 [3, 4]"; "" if unknown. Valid until the calling
 * thread asks again. */
FARANDOLE_API const char* farandole_event_signature(farandole_engine* engine, uint32_t name);

/* Others wait for this rank, and ask what it is doing. Blocks until a query comes: 1, and its number; 0 after the
 * timeout; -1 when there is no world, or it ends. */
FARANDOLE_API int farandole_wait_stall_query(farandole_engine* engine, double timeout_seconds, uint64_t* query);
/* Answers it: one line of text that says where this program is. An answer that comes after a second is dropped. */
FARANDOLE_API int farandole_answer_stall_query(farandole_engine* engine, uint64_t query, const char* text);

#ifdef __cplusplus
}
#endif
#endif /* FARANDOLE_H */
