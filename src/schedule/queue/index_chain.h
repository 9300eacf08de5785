// A doubly linked list of small numbers. Each number is in it at most once and can be removed in constant time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace loramux {

// The list. Memory grows with the largest number that was ever in it.
class IndexChain {
 public:
  // No number.
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  bool empty() const { return first_ == kNone; }
  // The first number; kNone if the list is empty.
  std::uint32_t first() const { return first_; }
  // The number after `index`; kNone at the end. REQUIRES: `index` is in the list.
  std::uint32_t next(std::uint32_t index) const { return links_[index].next; }
  // The last number; kNone if the list is empty.
  std::uint32_t last() const { return last_; }
  // The number before `index`; kNone at the beginning. REQUIRES: `index` is in the list.
  std::uint32_t previous(std::uint32_t index) const { return links_[index].previous; }
  std::size_t size() const { return size_; }
  bool Contains(std::uint32_t index) const { return index < links_.size() && links_[index].in; }

  // Appends `index`. REQUIRES: it is not in the list.
  void Append(std::uint32_t index) { InsertAfter(last_, index); }
  // Inserts `index` behind `previous`; at the beginning if that is kNone. REQUIRES: `index` is not in the list,
  // `previous` is.
  void InsertAfter(std::uint32_t previous, std::uint32_t index) {
    if (links_.size() <= index) links_.resize(index + std::size_t{1});
    const std::uint32_t next = previous == kNone ? first_ : links_[previous].next;
    links_[index] = {.next = next, .previous = previous, .in = true};
    (previous == kNone ? first_ : links_[previous].next) = index;
    (next == kNone ? last_ : links_[next].previous) = index;
    ++size_;
  }
  // Removes `index`. REQUIRES: it is in the list.
  void Remove(std::uint32_t index) {
    const Link link = links_[index];
    (link.previous == kNone ? first_ : links_[link.previous].next) = link.next;
    (link.next == kNone ? last_ : links_[link.next].previous) = link.previous;
    links_[index] = {};
    --size_;
  }

 private:
  // The neighbours of a number. `in`: it is in the list.
  struct Link {
    std::uint32_t next = kNone, previous = kNone;
    bool in = false;
  };
  std::vector<Link> links_;  // by number
  std::uint32_t first_ = kNone, last_ = kNone;
  std::size_t size_ = 0;
};

}  // namespace loramux
