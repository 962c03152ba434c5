/* Stream sockets over Mercury, for programs that ask for them by name. For programs that were never
 * changed there is mercury-run; docs/sockets.md has both.
 *
 * Each function does what the C library's of the same name does, with the same arguments, results
 * and errno, and works on any descriptor. A stream socket of AF_INET or AF_INET6 that connects to,
 * or accepts, what Mercury reaches is Mercury's from then on; everything else is the kernel's by
 * itself. Descriptors are real: select, splice, dup, fork, close are the kernel's, and have no
 * function here.
 *
 * The environment of mercury-run says what goes through Mercury, and where its daemon is; without,
 * everything but port 22 may. Threads: any; also in handlers of signals.
 */
#ifndef MERCURYSTACK_SOCKET_H
#define MERCURYSTACK_SOCKET_H

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef MERCURY_API
#define MERCURY_API __attribute__((visibility("default")))
#endif

struct mmsghdr;
struct timespec;

MERCURY_API int mercury_socket(int domain, int type, int protocol);
MERCURY_API int mercury_bind(int fd, const struct sockaddr* address, socklen_t length);
/* A daemon that is not there is no error: the kernel's clients come in. */
MERCURY_API int mercury_listen(int fd, int backlog);
MERCURY_API int mercury_accept(int fd, struct sockaddr* address, socklen_t* length);
MERCURY_API int mercury_accept4(int fd, struct sockaddr* address, socklen_t* length, int flags);
/* Over Mercury it is done when it returns, on a non-blocking socket too, after a round trip. */
MERCURY_API int mercury_connect(int fd, const struct sockaddr* address, socklen_t length);
MERCURY_API int mercury_getsockname(int fd, struct sockaddr* address, socklen_t* length);
MERCURY_API int mercury_getpeername(int fd, struct sockaddr* address, socklen_t* length);
MERCURY_API int mercury_getsockopt(int fd, int level, int name, void* value, socklen_t* length);
MERCURY_API int mercury_setsockopt(int fd, int level, int name, const void* value,
                                   socklen_t length);

/* These say how a connection ended: in order, ECONNRESET, ETIMEDOUT. The C library's own would say
 * end of file for each. */
MERCURY_API ssize_t mercury_read(int fd, void* data, size_t bytes);
MERCURY_API ssize_t mercury_readv(int fd, const struct iovec* parts, int count);
MERCURY_API ssize_t mercury_recv(int fd, void* data, size_t bytes, int flags);
MERCURY_API ssize_t mercury_recvfrom(int fd, void* data, size_t bytes, int flags,
                                     struct sockaddr* from, socklen_t* length);
MERCURY_API ssize_t mercury_recvmsg(int fd, struct msghdr* message, int flags);
MERCURY_API int mercury_recvmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags,
                                 struct timespec* patience);

/* Those with flags refuse MSG_OOB (EOPNOTSUPP). What the end of a peer on the same host makes fail
 * with EPIPE is followed by POLLHUP and EPOLLHUP, as by TCP. Else they are the C library's. */
MERCURY_API ssize_t mercury_send(int fd, const void* data, size_t bytes, int flags);
MERCURY_API ssize_t mercury_sendto(int fd, const void* data, size_t bytes, int flags,
                                   const struct sockaddr* to, socklen_t length);
MERCURY_API ssize_t mercury_sendmsg(int fd, const struct msghdr* message, int flags);
MERCURY_API int mercury_sendmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags);
MERCURY_API ssize_t mercury_write(int fd, const void* data, size_t bytes);
MERCURY_API ssize_t mercury_writev(int fd, const struct iovec* parts, int count);
MERCURY_API ssize_t mercury_sendfile(int out, int in, off_t* offset, size_t bytes);

/* These say POLLHUP and EPOLLHUP as TCP does: once both directions have ended. Between two programs
 * of one host the C library's own say so as soon as the peer has ended. What waits in epoll is
 * known by the numbers that mercury_epoll_ctl() had, of the epoll and the socket, and its data. */
MERCURY_API int mercury_shutdown(int fd, int how);
/* poll(): mercury_poll() is of jobs. */
MERCURY_API int mercury_poll_fds(struct pollfd* fds, nfds_t count, int timeout_ms);
MERCURY_API int mercury_ppoll(struct pollfd* fds, nfds_t count, const struct timespec* timeout,
                              const sigset_t* mask);
MERCURY_API int mercury_epoll_create(int size);
MERCURY_API int mercury_epoll_create1(int flags);
/* Also needed for sockets that are registered before they connect. */
MERCURY_API int mercury_epoll_ctl(int epoll, int operation, int fd, struct epoll_event* event);
MERCURY_API int mercury_epoll_wait(int epoll, struct epoll_event* events, int most, int timeout_ms);
MERCURY_API int mercury_epoll_pwait(int epoll, struct epoll_event* events, int most, int timeout_ms,
                                    const sigset_t* mask);
MERCURY_API int mercury_epoll_pwait2(int epoll, struct epoll_event* events, int most,
                                     const struct timespec* timeout, const sigset_t* mask);

#ifdef __cplusplus
}
#endif
#endif
