#include "router/model_list.h"

#include <utility>

#include <fmt/format.h>

#include "router/ask_servers.h"
#include "server/guard/access.h"

namespace loramux {
namespace {

namespace asio = boost::asio;

constexpr TimeNs kFresh = kNsPerSecond, kUsable = 10 * kNsPerSecond;
constexpr std::size_t kMostKeys = 256;                         // whose lists are kept
constexpr std::size_t kMostListBytes = std::size_t{16} << 20;  // of one server's list
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

bool Visible(const HttpRequest& request, const std::string& id) {
  const ApiKey* const caller = CallerOf(request);
  return caller == nullptr || caller->Allows(id);
}

}  // namespace

void ModelList::AddRoutes(RouteTable& routes) {
  routes.Add("GET", "/v1/models", [this](HttpExchange& exchange) { return Answer(exchange, true); });
  routes.Add("GET", "/v1/models/*", [this](HttpExchange& exchange) { return Answer(exchange, false); });
}

void ModelList::Forget() {
  lists_.clear();
  pool_.AskForModels();
}

void ModelList::Drop(TimeNs now) {
  std::erase_if(lists_, [&](const auto& entry) { return now - entry.second.at > kUsable; });
  if (lists_.size() >= kMostKeys) lists_.clear();
}

// False: no server answers.
asio::awaitable<bool> ModelList::Refresh(const HttpRequest& request, const std::string& key) {
  List list;
  list.at = pool_.clock().Now();
  list.changes = pool_.changes();
  HttpCallRequest question{.path = "/v1/models", .timeout = kListPatience};
  for (const char* name : {"Authorization", "x-api-key"}) {
    const std::string_view value = request.Header(name);
    if (!value.empty()) question.headers.emplace_back(name, value);
  }
  std::vector<std::shared_ptr<RoutedServer>> servers = pool_.All();
  std::erase_if(servers, [](const auto& server) { return !server->fault.empty(); });
  const std::vector<ServerAnswer> answers = co_await AskServers(servers, std::move(question), kMostListBytes);
  bool any = false;
  for (const ServerAnswer& answer : answers) {
    const Json document = answer.status == 200 ? ParseAnswer(answer.body) : Json();
    if (!document.is_object()) continue;
    any = true;
    Merge(document, "data", [&](const Json& card, std::string id) {
      const auto parent = card.find("parent");
      const bool adapter = parent != card.end() && !parent->is_null();
      (adapter ? list.adapters : list.bases).emplace(std::move(id), card);
    });
    Merge(document, "broken", [&](const Json& card, std::string id) { list.broken.emplace(std::move(id), card); });
  }
  if (!any) co_return false;
  for (const auto& [id, card] : list.adapters) list.broken.erase(id);  // some server can serve it
  Drop(list.at);
  lists_.insert_or_assign(key, std::move(list));
  co_return true;
}

asio::awaitable<void> ModelList::Answer(HttpExchange& exchange, bool all) {
  const std::string key = KeyOf(exchange.request());
  const TimeNs now = pool_.clock().Now();
  const auto usable = [&](const List& list) {
    return now - list.at <= (list.changes == pool_.changes() ? kUsable : kFresh);
  };
  auto found = lists_.find(key);
  if (found == lists_.end() || !usable(found->second)) {
    const bool refreshed = co_await Refresh(exchange.request(), key);
    found = lists_.find(key);
    if (!refreshed && (found == lists_.end() || now - found->second.at > kUsable)) {
      HttpReply reply = ErrorReply(503, "No server answers /v1/models.");
      co_await exchange.Send(std::move(reply));
      co_return;
    }
  }
  const List& list = found->second;
  HttpReply reply;
  if (all) {
    Json data = Json::array(), broken = Json::array();
    for (const auto* cards : {&list.bases, &list.adapters}) {
      for (const auto& [id, card] : *cards) {
        if (Visible(exchange.request(), id)) data.push_back(card);
      }
    }
    for (const auto& [id, card] : list.broken) {
      if (Visible(exchange.request(), id)) broken.push_back(card);
    }
    Json body = {{"object", "list"}, {"data", std::move(data)}};
    if (!broken.empty()) body["broken"] = std::move(broken);
    reply.body = DumpJson(body);
  } else {
    const std::string& id = exchange.request().tail;
    auto card = list.bases.find(id);
    bool known = card != list.bases.end();
    if (!known) {
      card = list.adapters.find(id);
      known = card != list.adapters.end();
    }
    if (known && Visible(exchange.request(), id)) {
      reply.body = DumpJson(card->second);
    } else {
      reply = ErrorReply(404, fmt::format("The model `{}` does not exist on any server.", id), "model");
    }
  }
  co_await exchange.Send(std::move(reply));
}

}  // namespace loramux
