#!/usr/bin/env bash
# An aggregate that is written out in the argument of a co_await: GCC 12 destroys its members once more than it makes them.
#
# Versions    g++ 12.2.0-14+deb12u1 (Debian 12)
# Behaviour   `co_await Send(Reply{200, Text()})`, where Reply is an aggregate with a member that has a destructor, and Send
#             takes it by value: after the coroutines have ended, one destructor more has run than constructors, at -O0 and
#             at -O2. `Reply reply{200, Text()}; co_await Send(std::move(reply));` is right.
# Why         With a std::string as the member, its memory is freed twice, long after the line that did it.
# What to do  Give the aggregate a name before the co_await.
# Seen        -1 objects left for the aggregate in the call, 0 for the one with a name
source "$(dirname "$0")/common.sh"
cd "$work"
for name in g++-12 gcc-12 cpp-12 libgcc-12-dev libstdc++-12-dev; do
  apt-get download -qq -o APT::Sandbox::User=root "$name=12.2.0-14+deb12u1"
done
for file in *.deb; do dpkg -x "$file" root; done
cat >count.cc <<'CC'
#include <coroutine>
#include <cstdio>
#include <exception>
#include <utility>

struct Task {
  struct promise_type {
    Task get_return_object() { return Task{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
  explicit Task(std::coroutine_handle<promise_type> begun) : handle(begun) {}
  Task(Task&& other) : handle(std::exchange(other.handle, {})) {}
  ~Task() {
    if (handle) handle.destroy();
  }
  bool await_ready() { return false; }
  void await_suspend(std::coroutine_handle<>) { handle.resume(); }
  void await_resume() {}
  std::coroutine_handle<promise_type> handle;
};

int objects = 0;
struct Counted {
  Counted() { ++objects; }
  Counted(const Counted&) { ++objects; }
  ~Counted() { --objects; }
};
struct Reply {
  int status;
  Counted text;
};

Task Send(Reply) { co_return; }
Task InTheCall() { co_await Send(Reply{200, Counted()}); }
Task WithAName() {
  Reply reply{200, Counted()};
  co_await Send(std::move(reply));
}

int Left(Task (*coroutine)()) {
  objects = 0;
  {
    Task task = coroutine();
    task.handle.resume();
  }
  return objects;
}

int main() { std::printf("%d %d", Left(InTheCall), Left(WithAName)); }
CC
for level in -O0 -O2; do
  root/usr/bin/x86_64-linux-gnu-g++-12 -std=c++20 "$level" count.cc -o count
  left=$(./count)
  echo "objects left at $level (in the call, with a name): $left"
  [ "$left" = "-1 0" ] || { echo "CHANGED: expected -1 0"; exit 1; }
done
