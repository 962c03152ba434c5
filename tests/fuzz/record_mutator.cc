// Mutates inputs that are sequences of records (fuzz_input.h): removes, repeats, moves and mixes
// whole records, and lets libFuzzer change the bytes of one, so that a change never tears the rest
// of a long input apart.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using Record = std::vector<uint8_t>;
constexpr size_t kLongestRecord = 255;

std::vector<Record> split(const uint8_t* data, size_t size) {
  std::vector<Record> records;
  for (size_t at = 0; at < size;) {
    const size_t bytes = std::min<size_t>(data[at], size - at - 1);
    records.emplace_back(data + at + 1, data + at + 1 + bytes);
    at += 1 + bytes;
  }
  return records;
}

// As many whole records as fit.
size_t join(const std::vector<Record>& records, uint8_t* out, size_t max_size) {
  size_t at = 0;
  for (const Record& record : records) {
    if (at + 1 + record.size() > max_size) break;
    out[at++] = static_cast<uint8_t>(record.size());
    std::copy(record.begin(), record.end(), out + at);
    at += record.size();
  }
  return at;
}

size_t below(std::minstd_rand& random, size_t count) { return count == 0 ? 0 : random() % count; }

void change(Record& record, std::minstd_rand& random) {
  const size_t most = std::min(kLongestRecord, record.size() + 16);
  record.resize(most);
  const size_t used = most - std::min<size_t>(16, most);
  record.resize(LLVMFuzzerMutate(record.data(), std::max<size_t>(used, 1), most));
  if (record.empty()) record.push_back(static_cast<uint8_t>(random()));
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<Record> records = split(data, size);
  const size_t count = records.size();
  const size_t at = below(random, count);
  const auto position = [&](size_t i) { return records.begin() + static_cast<std::ptrdiff_t>(i); };
  switch (count == 0 ? 0 : below(random, 8)) {
    case 0: {  // a new one
      Record fresh(1 + below(random, 24));
      for (uint8_t& byte : fresh) byte = static_cast<uint8_t>(random() >> 8);
      records.insert(position(below(random, count + 1)), std::move(fresh));
      break;
    }
    case 1:  // one fewer
      records.erase(position(at));
      break;
    case 2: {  // one again, here or elsewhere
      const Record copy = records[at];
      const size_t to = below(random, count + 1);
      records.insert(position(to), 1 + below(random, 4), copy);
      break;
    }
    case 3:  // another order
      std::swap(records[at], records[below(random, count)]);
      break;
    default:
      change(records[at], random);
      break;
  }
  return join(records, data, max_size);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data1, size_t size1,
                                            const uint8_t* data2, size_t size2, uint8_t* out,
                                            size_t max_out_size, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<Record> first = split(data1, size1);
  const std::vector<Record> second = split(data2, size2);
  first.resize(below(random, first.size() + 1));
  const size_t from = below(random, second.size() + 1);
  first.insert(first.end(), second.begin() + static_cast<std::ptrdiff_t>(from), second.end());
  return join(first, out, max_out_size);
}
