// Sets the colours before the page is drawn. A classic script, so that it runs before the first paint.
"use strict";
(() => {
  const key = "loramux.theme";
  const read = () => { try { return localStorage.getItem(key) ?? "auto"; } catch { return "auto"; } };
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  apply(read());
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = read();
    select.addEventListener("change", () => {
      try { localStorage.setItem(key, select.value); } catch { /* the choice lasts as long as the page */ }
      apply(select.value);
    });
  });
})();
