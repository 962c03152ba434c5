// Mercury for C++17 and later: mercury.h with owners instead of pairs of calls. Header-only, throws
// nothing of its own. Units, threads and errors are those of the C functions.
//
//   using namespace mercury::api;
//   Expected<Context> context = Context::attach();
//   if (!context) return fail(context.status().message());
//
// Lifetimes: a Context outlives its Buffers, Registrations and Jobs, a Job its Tensors and Handles.
// Memory outlives the Jobs whose tensors lie in it: declare Buffers before Jobs.
#ifndef MERCURYSTACK_MERCURY_HPP
#define MERCURYSTACK_MERCURY_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mercury.h"

namespace mercury {
namespace api {

// 0, or a negative errno value with mercury_last_error()'s text.
class [[nodiscard]] Status {
 public:
  Status() = default;
  // What a C function returned, taken right after the call.
  static Status of(int code) { return code < 0 ? Status(code, mercury_last_error()) : Status(); }
  bool ok() const { return code_ == 0; }
  explicit operator bool() const { return ok(); }
  int code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Status(int code, std::string message) : code_(code), message_(std::move(message)) {}
  int code_ = 0;
  std::string message_;
};

// A value, or why there is none.
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : value_(std::move(value)) {}          // NOLINT: implicit
  Expected(Status status) : status_(std::move(status)) {}  // NOLINT: implicit
  explicit operator bool() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  const Status& status() const { return status_; }

 private:
  std::optional<T> value_;
  Status status_;
};

template <class T>
constexpr mercury_dtype dtype_of() {
  static_assert(sizeof(T) == 0, "no Mercury element type; name a mercury_dtype");
  return MERCURY_DTYPE_F32;
}
template <>
constexpr mercury_dtype dtype_of<float>() {
  return MERCURY_DTYPE_F32;
}
template <>
constexpr mercury_dtype dtype_of<double>() {
  return MERCURY_DTYPE_F64;
}
template <>
constexpr mercury_dtype dtype_of<std::int32_t>() {
  return MERCURY_DTYPE_I32;
}
template <>
constexpr mercury_dtype dtype_of<std::int64_t>() {
  return MERCURY_DTYPE_I64;
}
template <>
constexpr mercury_dtype dtype_of<std::int8_t>() {
  return MERCURY_DTYPE_I8;
}
template <>
constexpr mercury_dtype dtype_of<std::uint8_t>() {
  return MERCURY_DTYPE_U8;
}

// One operation. Dropping it leaves the operation in flight; its completion then goes to
// Job::poll or the callback.
class Handle {
 public:
  Handle(mercury_job* job, mercury_handle handle) : job_(job), handle_(handle) {}
  // -ETIMEDOUT: still in flight, wait again.
  Status wait(int timeout_ms = MERCURY_FOREVER) const {
    return Status::of(mercury_wait(job_, handle_, timeout_ms));
  }
  mercury_handle get() const { return handle_; }

 private:
  mercury_job* job_;
  mercury_handle handle_;
};

// A worker's part of a tensor, in elements.
struct Part {
  std::uint64_t begin = 0;
  std::uint64_t numel = 0;
};

// A declared tensor.
class Tensor {
 public:
  Tensor(mercury_job* job, std::uint32_t id) : job_(job), id_(id) {}
  std::uint32_t id() const { return id_; }
  Expected<Handle> push_pull(int priority = MERCURY_DEFAULT_PRIORITY) const {
    return call(mercury_push_pull, priority);
  }
  Expected<Handle> push(int priority = MERCURY_DEFAULT_PRIORITY) const {
    return call(mercury_push, priority);
  }
  Expected<Handle> pull(int priority = MERCURY_DEFAULT_PRIORITY) const {
    return call(mercury_pull, priority);
  }
  Expected<Handle> broadcast(std::uint32_t root, int priority = MERCURY_DEFAULT_PRIORITY) const {
    mercury_handle handle = 0;
    const int code = mercury_broadcast(job_, id_, root, priority, &handle);
    if (code < 0) return Status::of(code);
    return Handle(job_, handle);
  }
  Expected<Handle> all_gather(int priority = MERCURY_DEFAULT_PRIORITY) const {
    return call(mercury_all_gather, priority);
  }
  Expected<Handle> reduce_scatter(int priority = MERCURY_DEFAULT_PRIORITY) const {
    return call(mercury_reduce_scatter, priority);
  }
  // That worker `rank` has of a reduce-scatter.
  Expected<Part> part(std::uint32_t rank) const {
    Part out;
    const int code = mercury_tensor_get_part(job_, id_, rank, &out.begin, &out.numel);
    if (code < 0) return Status::of(code);
    return out;
  }
  // That the next push belongs to.
  Expected<std::uint32_t> round() const {
    std::uint32_t out = 0;
    const int code = mercury_tensor_get_round(job_, id_, &out);
    if (code < 0) return Status::of(code);
    return out;
  }
  // Whose contributions are in the last complete round.
  Expected<mercury_contributors> contributors() const {
    mercury_contributors out;
    mercury_contributors_init(&out, sizeof out);
    const int code = mercury_tensor_get_contributors(job_, id_, &out);
    if (code < 0) return Status::of(code);
    return out;
  }

 private:
  template <class F>
  Expected<Handle> call(F function, int priority) const {
    mercury_handle handle = 0;
    const int code = function(job_, id_, priority, &handle);
    if (code < 0) return Status::of(code);
    return Handle(job_, handle);
  }
  mercury_job* job_;
  std::uint32_t id_;
};

// Memory from mercury_alloc.
template <class T>
class Buffer {
 public:
  Buffer(mercury_context* context, T* data, std::size_t size)
      : context_(context), data_(data), size_(size) {}
  Buffer(Buffer&& other) noexcept
      : context_(other.context_), data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  // Memory in which a tensor of an open job lies stays allocated until the context ends.
  ~Buffer() {
    if (data_) (void)mercury_free(context_, data_);
  }
  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  T& operator[](std::size_t i) const { return data_[i]; }

 private:
  mercury_context* context_;
  T* data_;
  std::size_t size_;
};

// Memory of the program, registered while this lives. Memory in which a tensor of an open job lies
// stays registered until the context ends.
class Registration {
 public:
  Registration(mercury_context* context, void* memory) : context_(context), memory_(memory) {}
  Registration(Registration&& other) noexcept
      : context_(other.context_), memory_(std::exchange(other.memory_, nullptr)) {}
  Registration& operator=(Registration&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Registration() {
    if (memory_) (void)mercury_deregister(context_, memory_);
  }

 private:
  mercury_context* context_;
  void* memory_;
};

class Job {
 public:
  explicit Job(mercury_job* job) : job_(job) {}
  Job(Job&& other) noexcept : job_(std::exchange(other.job_, nullptr)) {}
  Job& operator=(Job&& other) noexcept {
    std::swap(job_, other.job_);
    return *this;
  }
  ~Job() { (void)mercury_job_close(job_); }

  int rank() const { return mercury_job_get_rank(job_); }
  int workers() const { return mercury_job_get_workers(job_); }
  int servers() const { return mercury_job_get_servers(job_); }
  // Ok while it runs and after it has ended in order, else what it failed of.
  Status status() const { return Status::of(mercury_job_get_status(job_, nullptr, 0)); }
  // All members of the job follow it from now on.
  Status set_policy(const char* policy) const {
    return Status::of(mercury_job_set_policy(job_, policy));
  }
  // Servers: until the job has ended.
  Status wait_end(int timeout_ms = MERCURY_FOREVER) const {
    return Status::of(mercury_job_wait_end(job_, timeout_ms));
  }
  // Leaves the job before the object goes; nothing may be called on it after.
  void close() { (void)mercury_job_close(std::exchange(job_, nullptr)); }
  // Blocks until the servers agree.
  template <class T>
  Expected<Tensor> declare(std::uint32_t id, T* data, std::size_t numel, std::uint16_t priority = 0,
                           mercury_reduce_op op = MERCURY_REDUCE_SUM) const {
    return declare(id, data, numel, dtype_of<T>(), priority, op);
  }
  // For element types that C++ has no name for.
  Expected<Tensor> declare(std::uint32_t id, void* data, std::size_t numel, mercury_dtype dtype,
                           std::uint16_t priority = 0,
                           mercury_reduce_op op = MERCURY_REDUCE_SUM) const {
    mercury_tensor_options options;
    mercury_tensor_options_init(&options, sizeof options);
    options.id = id;
    options.numel = numel;
    options.dtype = dtype;
    options.op = op;
    options.priority = priority;
    options.data = data;
    const int code = mercury_declare(job_, &options, 1);
    if (code < 0) return Status::of(code);
    return Tensor(job_, id);
  }
  // Many at once: one round trip instead of one each.
  Status declare(const std::vector<mercury_tensor_options>& tensors) const {
    return Status::of(mercury_declare(job_, tensors.data(), tensors.size()));
  }
  Tensor tensor(std::uint32_t id) const { return Tensor(job_, id); }
  // All of them or none.
  Status submit(std::vector<mercury_operation>& operations) const {
    return Status::of(mercury_submit(job_, operations.data(), operations.size()));
  }
  // Until every worker is in it.
  Status barrier(int timeout_ms = MERCURY_FOREVER) const {
    return Status::of(mercury_barrier(job_, timeout_ms));
  }
  // Every operation that is not collected yet.
  Status wait_all(int timeout_ms = MERCURY_FOREVER) const {
    return Status::of(mercury_wait_all(job_, timeout_ms));
  }
  // At most `most` completions that nobody waited for.
  Expected<std::vector<mercury_completion>> poll(std::size_t most = 64) const {
    std::vector<mercury_completion> out(most);
    const int n = mercury_poll(job_, out.data(), out.size(), sizeof(mercury_completion));
    if (n < 0) return Status::of(n);
    out.resize(static_cast<std::size_t>(n));
    return out;
  }
  Status set_callback(mercury_callback callback, void* user) const {
    return Status::of(mercury_job_set_callback(job_, callback, user));
  }
  // The job's; readable while completions wait for poll.
  Expected<int> fd() const {
    const int fd = mercury_job_get_fd(job_);
    if (fd < 0) return Status::of(fd);
    return fd;
  }
  Expected<mercury_job_stats> stats() const {
    mercury_job_stats out;
    mercury_job_stats_init(&out, sizeof out);
    const int code = mercury_job_get_stats(job_, &out);
    if (code < 0) return Status::of(code);
    return out;
  }
  mercury_job* get() const { return job_; }

 private:
  mercury_job* job_;
};

// What mercury_job_options_init gives.
inline mercury_job_options job_options() {
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  return options;
}
// An operation, to be changed and submitted.
inline mercury_operation operation(mercury_operation_kind kind, std::uint32_t tensor,
                                   std::uint64_t user_data = 0) {
  mercury_operation out;
  mercury_operation_init(&out, sizeof out);
  out.kind = kind;
  out.tensor = tensor;
  out.user_data = user_data;
  return out;
}
// `options` with what a launcher said.
inline Expected<mercury_job_options> job_options_from_env(
    mercury_job_options options = job_options()) {
  const int code = mercury_job_options_from_env(&options);
  if (code < 0) return Status::of(code);
  return options;
}

class Context {
 public:
  static Expected<Context> attach(const mercury_attach_options* options = nullptr) {
    mercury_context* context = nullptr;
    const int code = mercury_attach(options, &context);
    if (code < 0) return Status::of(code);
    return Context(context);
  }
  Context(Context&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
  Context& operator=(Context&& other) noexcept {
    std::swap(context_, other.context_);
    return *this;
  }
  ~Context() { (void)mercury_detach(context_); }

  // Other threads' calls on it and its jobs end and are awaited, later ones are refused. Its memory
  // stays until the object goes. -EBUSY: called from a callback.
  Status close() const { return Status::of(mercury_context_close(context_)); }
  mercury_mode mode() const { return mercury_context_get_mode(context_); }
  template <class T>
  Expected<Buffer<T>> alloc(std::size_t count) const {
    void* memory = nullptr;
    const std::size_t bytes = count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T);
    const int code = mercury_alloc(context_, bytes, &memory);
    if (code < 0) return Status::of(code);
    return Buffer<T>(context_, static_cast<T*>(memory), count);
  }
  Expected<Registration> register_memory(void* memory, std::size_t bytes) const {
    const int code = mercury_register(context_, memory, bytes);
    if (code < 0) return Status::of(code);
    return Registration(context_, memory);
  }
  Expected<Job> open_job(const mercury_job_options& options) const {
    mercury_job* job = nullptr;
    const int code = mercury_job_open(context_, &options, &job);
    if (code < 0) return Status::of(code);
    return Job(job);
  }
  mercury_context* get() const { return context_; }

 private:
  explicit Context(mercury_context* context) : context_(context) {}
  mercury_context* context_;
};

}  // namespace api
}  // namespace mercury
#endif
