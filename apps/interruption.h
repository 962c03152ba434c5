// SIGINT and SIGTERM as a question that a program asks where it can stop. The second signal of
// either kind ends the process at once, whatever it is doing.
#pragma once

namespace mercury {

// From this call on; until then a signal ends the process, which has nothing to report yet.
void catch_interruptions();
bool interrupted();

}  // namespace mercury
