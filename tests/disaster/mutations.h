// The seeded bugs: patches in tests/disaster/mutations, each built into a program of its own
// beside this one (tests/disaster/mutate.py). None of them is in this build.
#pragma once

#include <span>
#include <string>

namespace mercury::disaster {

struct Mutation {
  const char* name;
  const char* what;
};

std::span<const Mutation> mutations();  // made from the patches by mutate.py --table
// Where the program with that bug stands; empty if there is no such mutation.
std::string mutant_path(const std::string& name);

}  // namespace mercury::disaster
