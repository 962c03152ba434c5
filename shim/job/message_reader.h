// Takes the fields of a control message out of its CBOR map, and checks each. Private to this
// folder. What a field may be is said by whoever reads it (messages.cc); what is wrong first is
// kept.
//
// Owner/thread: one thread. Not for the datapath: the library allocates, and may throw
// std::bad_alloc.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shim/job/messages.h"
#include "transport/base/endpoint.h"
#include "transport/base/result.h"

namespace mercury {

using Json = nlohmann::json;

// Join and Roster nest three deep; later versions may have something more to say.
inline constexpr int kMessageDepth = 6;

// In one byte string each: 16 bytes of address, 2 of port, all big-endian.
inline constexpr size_t kEndpointBytes = 18;

class MessageReader {
 public:
  explicit MessageReader(const Json& map) : map_(map) {}
  const std::string& wrong() const { return wrong_; }
  void fail(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }

  const Json* find(const char* key) {
    const auto it = map_.find(key);
    return it == map_.end() ? nullptr : &*it;
  }
  int64_t number(const char* key, int64_t least, int64_t most) {
    return number(find(key), key, least, most);
  }
  int64_t number(const Json* value, const char* what, int64_t least, int64_t most) {
    if (value && value->is_number_unsigned() &&
        value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      value = nullptr;
    }
    if (value && value->is_number_integer()) {
      const auto read = value->get<int64_t>();
      if (read >= least && read <= most) return read;
    }
    fail(std::string("'") + what + "' is not a number from " + std::to_string(least) + " to " +
         std::to_string(most));
    return least;
  }
  template <class N>
  void read(const char* key, N& out, int64_t least, int64_t most) {
    out = static_cast<N>(number(key, least, most));
  }
  // A field that senders of an earlier version, or without a use for it, leave out.
  template <class N>
  void read_optional(const char* key, N& out, int64_t least, int64_t most) {
    if (find(key)) read(key, out, least, most);
  }
  void read(const char* key, bool& out) {
    const Json* value = find(key);
    if (!value || !value->is_boolean()) return fail(std::string("'") + key + "' is not a boolean");
    out = value->get<bool>();
  }
  void read(const char* key, std::string& out) {
    const Json* value = find(key);
    if (!value || !value->is_string() || value->get_ref<const std::string&>().size() > kMaxText) {
      return fail(std::string("'") + key + "' is not a short text");
    }
    out = value->get<std::string>();
    // It will be printed on terminals, in logs and as JSON.
    std::replace_if(
        out.begin(), out.end(), [](char c) { return c < 32 || c > 126; }, '?');
  }
  void read_optional(const char* key, std::string& out) {
    if (find(key)) read(key, out);
  }
  void read(const char* key, Errc& out, bool ok_allowed) {
    const auto code = static_cast<uint16_t>(number(key, ok_allowed ? 0 : 1, 65535));
    if (!is_known_errc(code)) return fail(std::string("'") + key + "' is no error code");
    out = static_cast<Errc>(code);
  }
  void read(const char* key, std::vector<Endpoint>& out, size_t most) {
    endpoints(find(key), key, out, most);
  }
  void endpoints(const Json* value, const char* what, std::vector<Endpoint>& out, size_t most) {
    const bool binary = value && value->is_binary();
    const size_t bytes = binary ? value->get_binary().size() : 0;
    if (bytes == 0 || bytes % kEndpointBytes != 0 || bytes / kEndpointBytes > most) {
      return fail(std::string("'") + what + "' is not a list of addresses");
    }
    out.resize(bytes / kEndpointBytes);
    const uint8_t* at = value->get_binary().data();
    for (Endpoint& endpoint : out) {
      std::memcpy(endpoint.ip.bytes.data(), at, 16);
      endpoint.port = static_cast<uint16_t>(at[16] << 8 | at[17]);
      if (endpoint.port == 0) fail(std::string("'") + what + "' has an address without a port");
      at += kEndpointBytes;
    }
  }
  // Calls row(const Json& element) for each of 1 to `most` elements.
  template <class F>
  void rows(const char* key, size_t most, F row) {
    const Json* value = find(key);
    if (!value || !value->is_array() || value->empty() || value->size() > most) {
      return fail(std::string("'") + key + "' is not a list of 1 to " + std::to_string(most));
    }
    for (const Json& element : *value) row(element);
  }

 private:
  const Json& map_;
  std::string wrong_;
};

}  // namespace mercury
