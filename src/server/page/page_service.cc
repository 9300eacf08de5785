#include "server/page/page_service.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "auth/access.h"
#include "server/page/page_files.h"

namespace loramux {
namespace {

// A file as it is sent.
struct ServedFile {
  std::string_view content;
  std::string content_type, tag;
};

std::string ContentType(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/javascript; charset=utf-8";
}

std::string TagOf(std::string_view content) {
  const Sha256 digest = Sha256Of(content);
  return fmt::format("\"{:02x}\"", fmt::join(std::span(digest).first(8), ""));
}

// A browser asks whether its copy is still good, and another version of the program is never mixed with it.
HttpReply ReplyWith(const HttpRequest& request, const ServedFile& file) {
  HttpReply reply;
  reply.headers = {{"Content-Security-Policy", kPagePolicy},
                   {"X-Content-Type-Options", "nosniff"},
                   {"Referrer-Policy", "no-referrer"},
                   {"Cross-Origin-Resource-Policy", "same-origin"},
                   {"Cache-Control", "no-cache"},
                   {"ETag", file.tag}};
  if (request.Header("If-None-Match") == file.tag) {
    reply.status = 304;
    return reply;
  }
  reply.content_type = file.content_type;
  reply.body = file.content;
  return reply;
}

}  // namespace

void AddPageRoutes(RouteTable& routes) {
  for (const PageFile& file : PageFiles()) {
    const auto served = [file = ServedFile{file.content, ContentType(file.name), TagOf(file.content)}](
                            const HttpRequest& request) { return ReplyWith(request, file); };
    std::string path = fmt::format("/page/{}", file.name);
    if (file.name == "index.html") path = "/";
    if (file.name == "docs.html") path = "/docs";
    routes.AddSimple("GET", path, served, RouteAccess::kOpen);
  }
}

void AddOpenApiRoute(RouteTable& routes, std::string document) {
  const auto body = std::make_shared<const std::string>(std::move(document));
  const auto served = [body, file = ServedFile{*body, "application/json", TagOf(*body)}](const HttpRequest& request) {
    return ReplyWith(request, file);
  };
  routes.AddSimple("GET", "/openapi.json", served, RouteAccess::kOpen);
}

}  // namespace loramux
