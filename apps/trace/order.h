// Sorts a trace's tensors by what they depend on. Used by trace.cc alone.
#pragma once

#include <string>
#include <vector>

#include "apps/trace/trace.h"

namespace mercury {

// Rows of a file in their order, and per row the names it depends on. Error: kConfig without the
// file, "LINE: reason", for an unknown name, one given twice, or a cycle, which it names.
Result<Trace> order_by_dependency(std::vector<TraceTensor> rows,
                                  const std::vector<std::vector<std::string>>& depends);

}  // namespace mercury
