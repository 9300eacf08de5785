#include "router/model_list.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "auth/access.h"
#include "http/json_reader.h"
#include "http/run_on.h"
#include "router/ask_servers.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

constexpr TimeNs kFresh = kNsPerSecond, kUsable = 10 * kNsPerSecond;
constexpr std::size_t kMostKeys = 256;                         // API keys whose lists are kept
constexpr std::size_t kMostListBytes = std::size_t{16} << 20;  // most bytes of one server's list
constexpr std::size_t kReadAtOnce = 64 * 1024;                 // bytes of all lists; more are read on another thread
constexpr auto kListPatience = std::chrono::seconds(5);

// What the servers tell callers apart by.
std::string KeyOf(const HttpRequest& request) {
  return std::string(request.Header("authorization")) + '\n' + std::string(request.Header("x-api-key"));
}

// Adds the cards of one server. The first server that names a model describes it.
template <typename Place>
void Merge(const Json& document, std::string_view member, Place place) {
  const auto list = document.find(member);
  if (list == document.end() || !list->is_array()) return;
  for (const Json& card : *list) {
    const auto id = card.is_object() ? card.find("id") : card.end();
    if (id == card.end() || !id->is_string()) continue;
    place(card, id->get<std::string>());
  }
}

bool Visible(const HttpRequest& request, const std::string& id) { return CallerOf(request).Allows(id); }

// The cards that the caller may see, as the elements of an array.
void AppendCards(const HttpRequest& request, const std::map<std::string, std::string>& cards, std::string& array) {
  for (const auto& [id, card] : cards) {
    if (!Visible(request, id)) continue;
    if (!array.empty()) array += ',';
    array += card;
  }
}

}  // namespace

// A question to the servers. Requests for the same list wait for its answer.
struct ModelList::Flight {
  explicit Flight(const asio::any_io_executor& executor) : landed(executor, asio::steady_timer::time_point::max()) {}
  asio::steady_timer landed;
  bool done = false;
  ListPtr list;  // null: no server answered
};

void ModelList::AddRoutes(RouteTable& routes) {
  routes.Add("GET", "/v1/models", [this](HttpExchange& exchange) { return Answer(exchange, true); });
  routes.Add("GET", "/v1/models/*", [this](HttpExchange& exchange) { return Answer(exchange, false); });
}

void ModelList::Forget() {
  lists_.clear();
  flights_.clear();  // they may bring what was true before
  pool_.AskForModels();
}

// A list that may be used without asking; null: there is none.
ModelList::ListPtr ModelList::Kept(const std::string& key, TimeNs now) const {
  const auto found = lists_.find(key);
  if (found == lists_.end()) return nullptr;
  const List& list = *found->second;
  return now - list.at <= (list.changes == pool_.changes() ? kUsable : kFresh) ? found->second : nullptr;
}

void ModelList::Keep(const std::string& key, ListPtr list) {
  std::erase_if(lists_, [&](const auto& entry) { return list->at - entry.second->at > kUsable; });
  std::size_t bytes = list->bytes;
  for (const auto& [other, kept] : lists_) bytes += kept->bytes;
  if (lists_.size() >= kMostKeys || bytes > kMostBytes) lists_.clear();
  lists_.insert_or_assign(key, std::move(list));
}

// Null: no server answers.
asio::awaitable<ModelList::ListPtr> ModelList::Ask(const HttpRequest& request) const {
  const auto list = std::make_shared<List>();
  list->at = pool_.clock().Now();
  list->changes = pool_.changes();
  HttpCallRequest question{.path = "/v1/models", .timeout = kListPatience};
  for (const char* name : {"Authorization", "x-api-key"}) {
    const std::string_view value = request.Header(name);
    if (!value.empty()) question.headers.emplace_back(name, value);
  }
  std::vector<std::shared_ptr<RoutedServer>> servers = pool_.All();
  std::erase_if(servers, [](const auto& server) { return !server->fault.empty(); });
  const std::size_t most = std::min(kMostListBytes, kMostBytes / std::max<std::size_t>(1, servers.size()));
  std::vector<ServerAnswer> answers = co_await AskServers(servers, std::move(question), most);
  bool any = false;
  const auto read = [&] {
    for (ServerAnswer& answer : answers) {
      const Json document = answer.status == 200 ? ParseAnswer(answer.body) : Json();
      answer.body = std::string();
      if (!document.is_object()) continue;
      any = true;
      const auto add = [&](std::map<std::string, std::string>& cards, const Json& card, std::string id) {
        const auto [place, is_new] = cards.try_emplace(std::move(id));
        if (!is_new) return;
        place->second = DumpJson(card);
        list->bytes += place->first.size() + place->second.size();
      };
      Merge(document, "data", [&](const Json& card, std::string id) {
        const auto parent = card.find("parent");
        const bool adapter = parent != card.end() && !parent->is_null();
        add(adapter ? list->adapters : list->bases, card, std::move(id));
      });
      Merge(document, "broken", [&](const Json& card, std::string id) { add(list->broken, card, std::move(id)); });
    }
    for (const auto& [id, card] : list->adapters) list->broken.erase(id);  // some server can serve it
  };
  std::size_t bytes = 0;
  for (const ServerAnswer& answer : answers) bytes += answer.body.size();
  if (bytes <= kReadAtOnce) {
    read();
  } else {
    co_await RunOn(pool_.workers(), read);
  }
  co_return any ? list : nullptr;
}

// The list as the servers have it now, which are asked once for all who wait. Null: no server answers.
asio::awaitable<ModelList::ListPtr> ModelList::Fresh(const HttpRequest& request, const std::string& key) {
  const auto flying = flights_.find(key);
  if (flying != flights_.end()) {
    const std::shared_ptr<Flight> flight = flying->second;
    boost::system::error_code ignored;
    while (!flight->done) co_await flight->landed.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    co_return flight->list;
  }
  const auto flight = std::make_shared<Flight>(pool_.executor());
  flights_.emplace(key, flight);
  std::exception_ptr failure;
  try {
    flight->list = co_await Ask(request);
  } catch (...) {
    failure = std::current_exception();
  }
  flight->done = true;
  flight->landed.cancel();
  const auto own = flights_.find(key);
  const bool forgotten = own == flights_.end() || own->second != flight;
  if (!forgotten) flights_.erase(own);
  if (failure) std::rethrow_exception(failure);
  if (!forgotten && flight->list != nullptr) Keep(key, flight->list);
  co_return flight->list;
}

asio::awaitable<void> ModelList::Answer(HttpExchange& exchange, bool all) {
  const HttpRequest& request = exchange.request();
  const std::string key = KeyOf(request);
  const TimeNs now = pool_.clock().Now();
  ListPtr list = Kept(key, now);
  if (list == nullptr) list = co_await Fresh(request, key);
  if (list == nullptr) {
    const auto old = lists_.find(key);
    if (old != lists_.end() && now - old->second->at <= kUsable) list = old->second;
  }
  HttpReply reply;
  if (list == nullptr) {
    reply = ErrorReply(503, "No server answers /v1/models.");
  } else if (all) {
    std::string data, broken;
    AppendCards(request, list->bases, data);
    AppendCards(request, list->adapters, data);
    AppendCards(request, list->broken, broken);
    reply.body = R"({"object":"list","data":[)" + data + "]";
    if (!broken.empty()) reply.body += R"(,"broken":[)" + broken + "]";
    reply.body += "}";
  } else {
    const std::string& id = request.tail;
    auto card = list->bases.find(id);
    bool known = card != list->bases.end();
    if (!known) {
      card = list->adapters.find(id);
      known = card != list->adapters.end();
    }
    if (known && Visible(request, id)) {
      reply.body = card->second;
    } else {
      reply = ErrorReply(404, fmt::format("The model `{}` does not exist on any server.", id), "model");
    }
  }
  co_await exchange.Send(std::move(reply));
}

}  // namespace loramux
