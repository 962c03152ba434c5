// SIGINT and SIGTERM as a question that a program asks where it can stop. The second signal of
// either kind ends the process at once, whatever it is doing.
#pragma once

#include <string>

namespace mercury {

// From this call on; until then a signal ends the process, which has nothing to report yet.
void catch_interruptions();
bool interrupted();
// What a shell says of a program that a signal has ended: 128 and the signal's number. 0: none has.
int interruption_status();
// "SIGINT"; empty: none.
std::string interruption_name();

}  // namespace mercury
