// The ranks of a group as processes of MPI. All calls of MPI are made under one lock and return at once, so that every
// wait here is bounded, and several threads wait for different things.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define OMPI_SKIP_MPICXX  // the bindings for C++, which MPI has dropped
#include <mpi.h>

#include "base/check.h"
#include "collective/mpi_plugin.h"

namespace loramux {
namespace {

constexpr int kTag = 1;

// Waits between looks: at first none, because what a step waits for comes in microseconds; then ever longer ones, so
// that an idle server leaves the processor to others.
class Pause {
 public:
  explicit Pause(TimeNs longest) : longest_(longest) {}
  // The time since the first call.
  TimeNs Next() {
    const TimeNs waited = clock_.Now() - begin_;
    if (waited < 100 * kNsPerUs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(longest_, waited / 8)));
    }
    return waited;
  }

 private:
  const TimeNs longest_;
  OsClock clock_;
  const TimeNs begin_ = clock_.Now();
};

class MpiRank final : public Collectives {
 public:
  MpiRank(int rank, int ranks, TimeNs wait_limit, const std::array<MPI_Comm, 3>& channels)
      : Collectives(rank, ranks, wait_limit), channels_(channels) {}
  ~MpiRank() override {
    if (!failed() || ended()) Finalise();  // ranks that were lost would never join in
  }

  // MPI_Abort waits for mpirun, which may be busy with the end of another rank.
  void Abort(int exit_status) override {
    std::thread([exit_status] { MPI_Abort(MPI_COMM_WORLD, exit_status); }).detach();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    std::_Exit(exit_status);
  }

 private:
  MPI_Comm Of(GroupChannel channel) const { return channels_[static_cast<std::size_t>(channel)]; }

  static int SizeOf(std::size_t bytes) {
    CHECK_LE(bytes, static_cast<std::size_t>(std::numeric_limits<int>::max()));
    return static_cast<int>(bytes);
  }

  Error Failed(std::int64_t rank, int code) const {
    char text[MPI_MAX_ERROR_STRING];
    int size = 0;
    MPI_Error_string(code, text, &size);
    return Unavailable("rank " + std::to_string(rank) + " of " + std::to_string(ranks()) +
                       " is lost: " + std::string(text, static_cast<std::size_t>(size)));
  }

  // Waits until all requests have ended; the first that has not is that of `peers[i]`.
  Status Wait(std::vector<MPI_Request>& requests, const std::vector<std::int64_t>& peers) {
    Pause pause(kNsPerMs / 2);
    for (std::size_t next = 0; next < requests.size();) {
      int done = 0;
      {
        const std::lock_guard lock(mpi_);
        const int code = MPI_Test(&requests[next], &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) return Failed(peers[next], code);
      }
      if (done != 0) {
        ++next;
        continue;
      }
      if (auto error = failure()) return *std::move(error);
      if (pause.Next() > wait_limit()) return Lost(peers[next]);
    }
    return Ok{};
  }

  Status Exchange(std::span<const Sent> sent, std::span<const Received> received) override {
    std::vector<MPI_Request> requests;
    std::vector<std::int64_t> peers;
    {
      const std::lock_guard lock(mpi_);
      const MPI_Comm channel = Of(GroupChannel::kStep);
      for (const Received& piece : received) {
        const int code = MPI_Irecv(piece.bytes.data(), SizeOf(piece.bytes.size()), MPI_BYTE,
                                   static_cast<int>(piece.from), kTag, channel, &requests.emplace_back());
        if (code != MPI_SUCCESS) return Failed(piece.from, code);
        peers.push_back(piece.from);
      }
      for (const Sent& piece : sent) {
        const int code = MPI_Isend(piece.bytes.data(), SizeOf(piece.bytes.size()), MPI_BYTE, static_cast<int>(piece.to),
                                   kTag, channel, &requests.emplace_back());
        if (code != MPI_SUCCESS) return Failed(piece.to, code);
        peers.push_back(piece.to);
      }
    }
    Status status = Wait(requests, peers);
    if (!status.ok()) Abandon(requests);
    return status;
  }

  Status SendMessage(GroupChannel channel, std::int64_t to, std::span<const std::byte> message) override {
    std::vector<MPI_Request> request(1);
    {
      const std::lock_guard lock(mpi_);
      const int code = MPI_Isend(message.data(), SizeOf(message.size()), MPI_BYTE, static_cast<int>(to), kTag,
                                 Of(channel), request.data());
      if (code != MPI_SUCCESS) return Failed(to, code);
    }
    Status status = Wait(request, {to});
    if (!status.ok()) Abandon(request);
    return status;
  }

  Result<std::optional<std::vector<std::byte>>> ReceiveMessage(GroupChannel channel, std::int64_t from,
                                                               TimeNs limit) override {
    const auto source = static_cast<int>(from);
    Pause pause(kNsPerMs);
    std::vector<MPI_Request> request(1);
    std::optional<std::vector<std::byte>> message;
    while (!message) {
      {
        const std::lock_guard lock(mpi_);
        int there = 0;
        MPI_Status status;
        int code = MPI_Iprobe(source, kTag, Of(channel), &there, &status);
        if (code != MPI_SUCCESS) return Failed(from, code);
        if (there != 0) {
          int size = 0;
          MPI_Get_count(&status, MPI_BYTE, &size);
          message.emplace(static_cast<std::size_t>(size));
          code = MPI_Irecv(message->data(), size, MPI_BYTE, source, kTag, Of(channel), request.data());
          if (code != MPI_SUCCESS) return Failed(from, code);
        }
      }
      if (message) break;
      if (auto error = failure()) return *std::move(error);
      if (pause.Next() >= limit) return message;
    }
    const Status status = Wait(request, {from});
    if (status.ok()) return message;
    Abandon(request);
    const std::lock_guard lock(mpi_);
    abandoned_.push_back(*std::move(message));
    return status.error();
  }

  // The process ends soon: a rank was lost.
  void Abandon(std::vector<MPI_Request>& requests) {
    const std::lock_guard lock(mpi_);
    for (MPI_Request& request : requests) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }

  void Finalise() {
    auto ended = std::make_shared<std::atomic<bool>>(false);
    std::thread([ended] {
      MPI_Finalize();
      ended->store(true);
    }).detach();
    for (Pause pause(10 * kNsPerMs); !ended->load() && pause.Next() < wait_limit();) {
    }
  }

  const std::array<MPI_Comm, 3> channels_;
  std::mutex mpi_;
  std::vector<std::vector<std::byte>> abandoned_;  // MPI may still write to them
};

Error NotStarted(const std::string& what) {
  return Unavailable("--tensor-parallel-size: MPI cannot be started: " + what);
}

Result<std::unique_ptr<Collectives>> Open(TimeNs wait_limit) {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
    return NotStarted("MPI_Init_thread failed");
  }
  if (provided < MPI_THREAD_SERIALIZED) return NotStarted("it lacks MPI_THREAD_SERIALIZED, which several threads need");
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::array<MPI_Comm, 3> channels{};
  for (MPI_Comm& channel : channels) {
    if (MPI_Comm_dup(MPI_COMM_WORLD, &channel) != MPI_SUCCESS) return NotStarted("MPI_Comm_dup failed");
    MPI_Comm_set_errhandler(channel, MPI_ERRORS_RETURN);
  }
  return std::unique_ptr<Collectives>(std::make_unique<MpiRank>(rank, ranks, wait_limit, channels));
}

constexpr MpiPlugin kPlugin = {.version = LORAMUX_MPI_INTERFACE, .open = Open};

}  // namespace
}  // namespace loramux

extern "C" __attribute__((visibility("default"))) const loramux::MpiPlugin* loramux_mpi_plugin() {
  return &loramux::kPlugin;
}
