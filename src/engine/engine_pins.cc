// Pinned adapters, and the pages that are promised to them and to requests (Engine::SetPinned).
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine_impl.h"

namespace loramux {

void Engine::Impl::ApplyPin(PinRequest pin) {
  if (lost.has_value()) return pin.done(*lost);
  const AdapterGeneration generation = pin.version->generation;
  if (!pin.pinned) {
    observer.Pinned(*pin.version, false);
    LetGo(generation);
    EndPin(generation, InvalidArgument("the adapter was unpinned before its load ended", "pinned"));
    return pin.done(Ok{});
  }
  const Status kept = TryKeep(*pin.version);
  if (!kept.ok()) return pin.done(kept);
  observer.Pinned(*pin.version, true);
  residency.Add(pin.version);
  residency.Keep(generation, true);
  loading_pins.push_back(std::move(pin));
  EndPinsThatAreLoaded();
}

Status Engine::Impl::TryKeep(const AdapterVersion& version) {
  if (parts.registry->IsRetired(version.generation)) return Unavailable("the adapter was unloaded while it was pinned");
  const std::lock_guard lock(inbox.mutex);
  if (inbox.kept_pages.contains(version.generation)) return Ok{};
  const std::int64_t share = AdapterShare();
  const std::int64_t capacity = share > 0 ? share : parts.device->capacity_pages();
  const std::int64_t kept = KeptPages() + version.layout.pages;
  const std::int64_t one_sequence = PagesOf(options.max_model_len);
  const std::int64_t reserve = share > 0 ? 0 : std::min(one_sequence, capacity / 2);
  if (kept + reserve > capacity) {
    const std::string room =
        share > 0 ? "it does not fit the " + std::to_string(share) + " pages that this cache has for adapters"
                  : "fewer than " + std::to_string(reserve) + " of the device's " + std::to_string(capacity) +
                        " pages would stay free for requests";
    return ResourceExhausted("adapter '" + version.name + "' takes " + std::to_string(version.layout.pages) +
                                 " pages; with " + std::to_string(kept - version.layout.pages) +
                                 " pages pinned already, " + room +
                                 ". Unload a pinned adapter, or raise --device-memory.",
                             "pinned");
  }
  std::int64_t needed = 0;
  for (const auto& [id, sequence] : sequences) needed = std::max(needed, PagesNeeded(*sequence, version.generation));
  for (const auto& sequence : inbox.submitted) needed = std::max(needed, PagesNeeded(*sequence, version.generation));
  if (kept + needed > capacity) {
    return Unavailable("adapter '" + version.name +
                           "' cannot be pinned now: a running or waiting request may need the memory; try again later",
                       "pinned");
  }
  inbox.kept_pages.emplace(version.generation, version.layout.pages);
  return Ok{};
}

std::int64_t Engine::Impl::PagesNeeded(const Sequence& sequence, AdapterGeneration kept_too) const {
  if (sequence.state == RequestState::kFinished) return 0;
  const std::int64_t own = AdapterShare() > 0 ? 0 : PagesOf(sequence.max_total_tokens);
  if (sequence.adapter == kBaseModel || sequence.adapter == kept_too || inbox.kept_pages.contains(sequence.adapter)) {
    return own;
  }
  const auto version = sequence.version != nullptr ? sequence.version : residency.Get(sequence.adapter).version;
  return own + version->layout.pages;
}

std::int64_t Engine::Impl::PagesOf(std::int64_t tokens) const {
  return options.spec.state_pages + (tokens + options.spec.page_tokens - 1) / options.spec.page_tokens;
}

std::int64_t Engine::Impl::AdapterShare() const {
  return AdapterPartPages(options.spec, parts.device->capacity_pages(), parts.device->page_bytes());
}

std::int64_t Engine::Impl::KeptPages() const {
  std::int64_t pages = 0;
  for (const auto& [generation, kept] : inbox.kept_pages) pages += kept;
  return pages;
}

void Engine::Impl::LetGo(AdapterGeneration generation) {
  {
    const std::lock_guard lock(inbox.mutex);
    inbox.kept_pages.erase(generation);
  }
  if (residency.Knows(generation)) residency.Keep(generation, false);
  EndPin(generation, Unavailable("the adapter was unloaded while it was pinned"));
}

void Engine::Impl::EndPin(AdapterGeneration generation, Status status) {
  for (std::size_t i = 0; i < loading_pins.size();) {
    if (loading_pins[i].version->generation != generation) {
      ++i;
      continue;
    }
    PinRequest pin = std::move(loading_pins[i]);
    loading_pins.erase(loading_pins.begin() + static_cast<std::ptrdiff_t>(i));
    if (!status.ok()) LetGo(generation);
    pin.done(status);
  }
}

void Engine::Impl::EndPinsThatAreLoaded() {
  for (std::size_t i = loading_pins.size(); i-- > 0;) {
    const AdapterGeneration generation = loading_pins[i].version->generation;
    if (residency.Get(generation).device == TierState::kResident) EndPin(generation, Ok{});
    i = std::min(i, loading_pins.size());
  }
}

std::int64_t Engine::Impl::PagesBesideAdapter(AdapterGeneration adapter) const {
  const std::int64_t share = AdapterShare(), kept = KeptPages();
  const std::int64_t pages = parts.device->capacity_pages() - (share > 0 ? share : kept);
  if (adapter == kBaseModel || inbox.kept_pages.contains(adapter)) return pages;
  const auto version = parts.registry->Find(adapter);
  if (version == nullptr) return 0;
  if (share == 0) return pages - version->layout.pages;
  return version->layout.pages + kept <= share ? pages : 0;
}

}  // namespace loramux
