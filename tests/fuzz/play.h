// An input played to a world of its own, which must leave nothing open.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_input.h"

namespace mercury::fuzz {

// The lowest number that is free: what was opened and not closed moves it up.
inline int lowest_free_descriptor() {
  const int fd = ::eventfd(0, EFD_CLOEXEC);
  ::close(fd);
  return fd;
}

// Each record is a step of the World; when all have been taken it comes to its end.
template <class World>
void play(const uint8_t* data, size_t size, size_t most_records) {
  const int before = lowest_free_descriptor();
  {
    World world;
    Input input(data, size);
    for (size_t i = 0; i < most_records && !input.empty(); ++i) world.step(next_record(input));
    world.end();
  }
  must(lowest_free_descriptor() == before, "a descriptor is left open");
}

}  // namespace mercury::fuzz
