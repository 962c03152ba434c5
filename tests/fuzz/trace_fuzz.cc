// The trace importer: the input is a trace's CSV text.
//
// Beyond not crashing: every dependency stands before what needs it, the sums do not overflow, and
// an imported trace that is written down again imports to the same; an error names file and line.
#include <sstream>
#include <string>
#include <string_view>

#include "apps/trace/trace.h"
#include "tests/fuzz/fuzz_input.h"

namespace mercury::fuzz {
namespace {

std::string written(const Trace& trace) {
  std::ostringstream out;
  out << "layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority,update_ns,depends"
      << "\n";
  uint32_t position = 0;
  for (const TraceTensor& t : trace.tensors) {
    out << position++ << ',' << t.name << ',' << t.numel << ',' << name_of(t.dtype) << ','
        << t.forward_ns << ',' << t.backward_ns << ',' << t.priority << ',' << t.update_ns << ',';
    for (size_t i = 0; i < t.depends.size(); ++i) {
      out << (i > 0 ? ";" : "") << trace.tensors[t.depends[i]].name;
    }
    out << "\n";
  }
  return out.str();
}

void check(const Trace& trace) {
  must(!trace.tensors.empty() && trace.tensors.size() <= kMaxTraceTensors, "a trace's length");
  uint64_t bytes = 0;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const TraceTensor& t = trace.tensors[i];
    must(t.numel > 0 && t.bytes() <= kMaxTraceTensorBytes, "a tensor's size");
    must(!__builtin_add_overflow(bytes, t.bytes(), &bytes), "a trace's bytes overflow");
    for (const uint32_t before : t.depends)
      must(before < i, "a tensor stands before what it needs");
  }
  must(bytes == trace.bytes(), "a trace's bytes");
  must(trace.forward_ns() / kMaxTraceTimeNs <= trace.tensors.size() &&
           trace.backward_ns() / kMaxTraceTimeNs <= trace.tensors.size(),
       "a trace's times");
}

}  // namespace
}  // namespace mercury::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mercury;
  using namespace mercury::fuzz;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Trace> first = parse_trace(text, "file.csv");
  if (!first) {
    must(first.error().message.starts_with("file.csv:"), "an error does not say where");
    return 0;
  }
  check(*first);
  const Result<Trace> second = parse_trace(written(*first), "again.csv");
  must(second.has_value(), "a written trace is not imported");
  must(written(*second) == written(*first), "a trace changes when it is imported again");
  return 0;
}
