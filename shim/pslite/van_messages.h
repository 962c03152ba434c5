// Messages as both trees of ps-lite have them, and what they are to the van.
#pragma once

#if __has_include(<ps/ps.h>)

#include <ps/ps.h>

#include <memory>

#include "shim/pslite/van_class.h"

namespace ps {

template <typename M>
auto priority_of(const M& meta, int) -> decltype(meta.priority) {
  return meta.priority;
}
template <typename M>
int priority_of(const M&, long) {
  return 0;  // BytePS's tree has none
}

// BytePS's tree has pushes and pulls, and nothing that is both.
template <typename M>
auto is_pull(const M& meta, int) -> decltype(meta.pull) {
  return meta.pull;
}
template <typename M>
bool is_pull(const M& meta, long) {
  return !meta.push;
}

// What an answer repeats of its request, beside what every tree has.
template <typename M>
auto repeat(const M& asked, M* answer, int) -> decltype(asked.val_len, void()) {
  answer->key = asked.key;
  answer->addr = asked.addr;
  answer->val_len = asked.val_len;
  answer->option = asked.option;
}
template <typename M>
void repeat(const M&, M*, long) {}

inline Bytes bytes_of(const SArray<char>& part) {
  return Bytes{std::make_shared<SArray<char>>(part), part.data(), part.size()};
}

inline SArray<char> array_of(const Bytes& part) {
  const std::shared_ptr<const void> owner = part.owner;
  SArray<char> array;
  array.reset(part.data, part.size, [owner](char*) {});
  return array;
}

inline ValueType type_of(const Meta& meta, size_t* value_bytes) {
  const DataType type = meta.data_type.size() > 1 ? meta.data_type[1] : OTHER;
  *value_bytes = type == FLOAT || type == INT32 ? 4 : type == DOUBLE || type == INT64 ? 8 : 1;
  if (type == FLOAT) return ValueType::kFloat32;
  if (type == DOUBLE) return ValueType::kFloat64;
  if (type == INT32) return ValueType::kInt32;
  if (type == INT64) return ValueType::kInt64;
  return type == OTHER || type == CHAR ? mercury_van::type_of_command(meta.head) : ValueType::kNone;
}

inline mercury_dtype mercury_type(ValueType type) {
  if (type == ValueType::kFloat32) return MERCURY_DTYPE_F32;
  if (type == ValueType::kFloat64) return MERCURY_DTYPE_F64;
  return type == ValueType::kInt32 ? MERCURY_DTYPE_I32 : MERCURY_DTYPE_I64;
}

inline KeyRequest request_of_worker(const Message& msg, int server) {
  KeyRequest what;
  what.app = msg.meta.app_id;
  what.customer = msg.meta.customer_id;
  what.command = msg.meta.head;
  what.push = msg.meta.push;
  what.pull = is_pull(msg.meta, 0);
  what.type = type_of(msg.meta, &what.value_bytes);
  what.priority = priority_of(msg.meta, 0);
  const size_t rank = static_cast<size_t>(Postoffice::IDtoRank(server));
  what.first_key = Postoffice::Get()->GetServerKeyRanges()[rank].begin();
  for (const SArray<char>& part : msg.data) what.data.push_back(bytes_of(part));
  return what;
}

}  // namespace ps

#endif
