// An ordinary program of libzmq, which knows nothing of Mercury: a server whose workers answer many
// clients through a proxy, and clients in threads that check each answer.
//
//   cppzmq_program serve ENDPOINT
//   cppzmq_program ask ENDPOINT
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>
#include <zmq.hpp>

namespace {

constexpr int kWorkers = 4;
constexpr int kClients = 4;
constexpr int kQuestions = 200;
constexpr size_t kLargest = 16'000'000;

// Some bytes that no other question has.
std::string question(int client, int number, size_t bytes) {
  std::string text(bytes, '\0');
  uint64_t state = static_cast<uint64_t>(client) << 32 | static_cast<uint64_t>(number);
  for (char& byte : text) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(state >> 56);
  }
  return text;
}

void work(zmq::context_t& context) {
  zmq::socket_t socket(context, zmq::socket_type::rep);
  socket.connect("inproc://workers");
  zmq::message_t message;
  while (socket.recv(message)) socket.send(message, zmq::send_flags::none);
}

int serve(const char* endpoint) {
  zmq::context_t context;
  zmq::socket_t clients(context, zmq::socket_type::router);
  clients.set(zmq::sockopt::ipv6, true);
  clients.bind(endpoint);
  zmq::socket_t workers(context, zmq::socket_type::dealer);
  workers.bind("inproc://workers");
  std::vector<std::thread> threads;
  for (int i = 0; i < kWorkers; ++i) threads.emplace_back(work, std::ref(context));
  zmq::proxy(clients, workers);  // until it is killed
  return 1;
}

bool ask(zmq::context_t& context, const char* endpoint, int client) {
  zmq::socket_t socket(context, zmq::socket_type::req);
  socket.set(zmq::sockopt::ipv6, true);
  socket.set(zmq::sockopt::rcvtimeo, 60'000);
  socket.set(zmq::sockopt::linger, 0);
  socket.connect(endpoint);
  for (int number = 0; number < kQuestions; ++number) {
    const bool large = client == 0 && number == kQuestions / 2;
    const std::string text =
        question(client, number, large ? kLargest : static_cast<size_t>(number * number));
    socket.send(zmq::buffer(text), zmq::send_flags::none);
    zmq::message_t answer;
    if (!socket.recv(answer) || answer.to_string_view() != text) {
      std::fprintf(stderr, "client %d: question %d of %zu bytes: an answer of %zu bytes\n", client,
                   number, text.size(), answer.size());
      return false;
    }
  }
  return true;
}

int ask_all(const char* endpoint) {
  zmq::context_t context;
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (int client = 0; client < kClients; ++client) {
    threads.emplace_back([&, client] { failed += ask(context, endpoint, client) ? 0 : 1; });
  }
  for (std::thread& thread : threads) thread.join();
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "serve") return serve(argv[2]);
  if (argc == 3 && std::string_view(argv[1]) == "ask") return ask_all(argv[2]);
  std::fprintf(stderr, "usage: cppzmq_program serve|ask ENDPOINT\n");
  return 2;
}
