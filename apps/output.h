// Files that a program writes for its user: reports, timelines, captures.
#pragma once

#include <string>

#include "transport/base/result.h"

namespace mercury {

// Whether `path` could be written, before a long run rather than after it; leaves nothing where
// nothing was. "-" is standard output; an empty path is no file.
Status check_output(const std::string& path);

// Writes `text` in place of what was there. "-" is standard output.
Status write_output(const std::string& path, const std::string& text);

}  // namespace mercury
