// epoll_ctl(), and what this process is to remember of it.
#pragma once

#include <sys/epoll.h>

namespace mercury::sockets {

int control_epoll(int epoll, int operation, int fd, epoll_event* event);

}  // namespace mercury::sockets
