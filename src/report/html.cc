#include "report/html.h"

#include <fmt/format.h>

#include "report/shown_text.h"

namespace loramux {
namespace {

constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b2230;--soft:#5b6577;--line:#dfe3ea;--grid:#e9ecf1;
--s1:#2563eb;--s2:#d9580d;--s3:#0b8a5f;--s4:#9333ea;
--s5:#0891b2;--s6:#b8860b;--s7:#db2777;--s8:#6b7280;--good:#0b7a4b;--bad:#c02626;--bar:#cfdcf8;--bar2:#f6d5bf}
@media (prefers-color-scheme:dark){:root{--bg:#11151c;--card:#1a202b;--ink:#e6eaf1;--soft:#98a3b6;--line:#2d3646;--grid:#262e3c;
--s1:#6ea3ff;--s2:#ff9a52;--s3:#3fcf9a;--s4:#c792ff;
--s5:#4dd0e6;--s6:#e5b94a;--s7:#ff7ab8;--s8:#a3abb8;--good:#46d39a;--bad:#ff7b7b;--bar:#2b4378;--bar2:#6a4020}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1280px;margin:0 auto;padding:28px 24px 48px}
h1{font-size:24px;margin:0 0 2px;overflow-wrap:anywhere}h2{font-size:17px;margin:34px 0 10px}
.sub{color:var(--soft);margin:0 0 20px;overflow-wrap:anywhere}
.answer{font-size:19px;font-weight:600;margin:0 0 14px}
.note{border-left:3px solid var(--bad);padding:6px 12px;margin:0 0 16px;background:var(--card)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px}
.tile,figure,.card{background:var(--card);border:1px solid var(--line);border-radius:8px}
.tile{padding:12px 14px}
.tile b{display:block;white-space:nowrap;font-size:20px;font-weight:650;line-height:1.25;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px;display:block}.good{color:var(--good)}.bad{color:var(--bad)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(360px,1fr));gap:14px}
figure{margin:0;padding:12px 14px 8px;min-width:0;position:relative}
figcaption{font-weight:600;display:flex;justify-content:space-between;gap:12px;flex-wrap:wrap}
.legend{font-weight:400;font-size:13px;color:var(--soft)}.legend i{display:inline-block;width:12px;height:3px;margin:0 5px 3px 12px;
border-radius:2px;background:currentColor}
svg{display:block;width:100%;height:auto;overflow:visible}svg text{fill:var(--soft);font-size:12px}svg text.name{font-size:11.5px}
.grid{stroke:var(--grid)}.axis{stroke:var(--line)}.slo{stroke:var(--bad);stroke-dasharray:5 4}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.area{opacity:.14;stroke:none}.dot{opacity:.28}
.c1{color:var(--s1)}.c2{color:var(--s2)}.c3{color:var(--s3)}.c4{color:var(--s4)}
.c5{color:var(--s5)}.c6{color:var(--s6)}.c7{color:var(--s7)}.c8{color:var(--s8)}
svg .c1{stroke:var(--s1)}svg .c2{stroke:var(--s2)}svg .c3{stroke:var(--s3)}svg .c4{stroke:var(--s4)}
svg .c5{stroke:var(--s5)}svg .c6{stroke:var(--s6)}svg .c7{stroke:var(--s7)}svg .c8{stroke:var(--s8)}
svg text.f1,svg .f1{fill:var(--s1)}svg .f2{fill:var(--s2)}svg .f3{fill:var(--s3)}svg .f4{fill:var(--s4)}
svg .f5{fill:var(--s5)}svg .f6{fill:var(--s6)}svg .f7{fill:var(--s7)}svg .f8{fill:var(--s8)}
.hair{stroke:var(--soft);stroke-dasharray:2 3;visibility:hidden}
.tip{position:absolute;pointer-events:none;visibility:hidden;background:var(--ink);color:var(--bg);border-radius:5px;padding:4px 8px;
font-size:12px;white-space:pre;z-index:1;font-variant-numeric:tabular-nums}
.card{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 12px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500;font-size:13px}tr:last-child td{border-bottom:0}
th:first-child,td:first-child,.text{text-align:left}td.wrap{white-space:normal;overflow-wrap:anywhere;min-width:220px}
td.name{max-width:260px;overflow:hidden;text-overflow:ellipsis}
td.bar{position:relative;min-width:110px;z-index:0}td.bar i{position:absolute;left:4px;top:5px;bottom:5px;
background:var(--bar);border-radius:3px;z-index:-1}td.bar.two i{background:var(--bar2)}
details{margin-top:34px}summary{cursor:pointer;font-size:17px;font-weight:600}pre{padding:14px;overflow-x:auto;font-size:13px;margin:10px 0}
@media (max-width:560px){.plots{grid-template-columns:1fr}main{padding:18px 12px}}
)";

// Shows a cross hair with the values of all lines at the pointer. The page is complete without the script.
constexpr std::string_view kScript = R"(
for(const f of document.querySelectorAll("figure[data-plot]")){
const p=JSON.parse(f.dataset.plot),s=f.querySelector("svg"),h=s.querySelector(".hair"),t=f.querySelector(".tip");
const at=(pts,x)=>{let lo=0,hi=pts.length-1;if(hi<0)return null;while(hi-lo>1){const m=(lo+hi)>>1;pts[m][0]<=x?lo=m:hi=m}
return Math.abs(pts[lo][0]-x)<=Math.abs(pts[hi][0]-x)?pts[lo]:pts[hi]};
const n=v=>v>=1e4?Math.round(v).toLocaleString("en"):+v.toPrecision(3)+"";
s.addEventListener("pointermove",e=>{const r=s.getBoundingClientRect(),k=p.w/r.width,px=(e.clientX-r.left)*k;
if(px<p.l||px>p.r){h.style.visibility=t.style.visibility="hidden";return}
let u=(px-p.l)/(p.r-p.l),x=p.log?Math.exp(Math.log(p.x0)+u*Math.log(p.x1/p.x0)):p.x0+u*(p.x1-p.x0);
h.setAttribute("x1",px);h.setAttribute("x2",px);h.style.visibility="visible";
t.textContent=p.x+" "+n(x)+p.s.map(q=>{const v=at(q.p,x);return v&&v[1]!=null?"\n"+q.n+"  "+n(v[1]):""}).join("");
t.style.visibility="visible";const fr=f.getBoundingClientRect();let left=e.clientX-fr.left+14;
if(left+t.offsetWidth>fr.width-6)left=e.clientX-fr.left-t.offsetWidth-14;t.style.left=left+"px";t.style.top=(e.clientY-fr.top-10)+"px"});
s.addEventListener("pointerleave",()=>{h.style.visibility=t.style.visibility="hidden"})}
)";

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string result;
  for (const char c : ValidUtf8(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
        result += control ? "\xEF\xBF\xBD" : std::string(1, c);
      }
    }
  }
  return result;
}

std::string HtmlPage(std::string_view title, std::string_view body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'\">\n"
      "<title>{}</title>\n<style>{}</style></head>\n<body><main>\n{}\n</main><script>{}</script></body></html>\n",
      EscapeHtml(title), kStyle, body, kScript);
}

std::string HtmlTile(std::string_view label, std::string_view value, std::string_view note, std::string_view tone) {
  return fmt::format("<div class=\"tile\"><span>{}</span><b class=\"{}\">{}</b><span>{}</span></div>\n",
                     EscapeHtml(label), tone, EscapeHtml(value), EscapeHtml(note));
}

}  // namespace loramux
