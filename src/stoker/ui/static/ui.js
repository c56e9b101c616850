// What the pages do beyond htmx: times that say how long ago, live lines, keys, the icon that tells a run's state.
"use strict";

(() => {
  const MOST_LINES = 5000;

  // Times

  const ago = (seconds) => {
    if (seconds < 45) return "just now";
    for (const [unit, length] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
      if (seconds >= length) {
        const number = Math.floor(seconds / length);
        return `${number} ${unit}${number === 1 ? "" : "s"} ago`;
      }
    }
    return "a minute ago";
  };
  const span = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  };
  const tick = () => {
    const now = Date.now() / 1000;
    for (const time of document.querySelectorAll("time[datetime]")) {
      const passed = now - Date.parse(time.dateTime) / 1000;
      const words = passed < 7 * 86400 ? ago(passed) : time.title.slice(0, 16);
      if (time.textContent !== words) time.textContent = words;
    }
    for (const one of document.querySelectorAll("[data-since]")) {
      const words = span(now - Number(one.dataset.since));
      if (one.textContent !== words) one.textContent = words;
    }
  };

  // Lines that are being written

  let source = null;
  const follow = () => {
    if (source) { source.close(); source = null; }
    const lines = document.getElementById("lines");
    if (!lines || !lines.dataset.stream) return;
    lines.scrollTop = lines.scrollHeight;
    const about = document.querySelector("[data-following]");
    source = new EventSource(lines.dataset.stream);
    source.addEventListener("lines", (event) => {
      const news = JSON.parse(event.data);
      const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
      let next = Number(lines.dataset.next);
      if (news.left_out) {
        const gap = document.createElement("div");
        gap.className = "line left-out";
        gap.textContent = `… ${news.left_out.toLocaleString("en")} lines more; the download has them`;
        lines.append(gap);
        next += news.left_out;
      }
      const before = lines.lastElementChild;
      lines.insertAdjacentHTML("beforeend", news.html);
      for (let row = before ? before.nextElementSibling : lines.firstElementChild; row; row = row.nextElementSibling) {
        const number = row.querySelector(".n");
        number.textContent = next;
        number.id = `L${next}`;
        next += 1;
      }
      lines.dataset.next = next;
      while (lines.childElementCount > MOST_LINES) lines.firstElementChild.remove();
      if (atEnd) lines.scrollTop = lines.scrollHeight;
    });
    source.addEventListener("end", () => {
      source.close();
      if (about) about.textContent = "It has ended.";
    });
  };

  // A click on a line's number makes the page's address lead to that line.
  document.addEventListener("click", (event) => {
    if (event.target.matches(".line .n[id]")) location.hash = event.target.id;
  });

  // Parts that are looked at again

  const trouble = (is) => { document.getElementById("trouble").hidden = !is; };
  const settle = () => {
    const live = document.querySelector(".live[data-icon]");
    if (live) document.getElementById("icon").href = live.dataset.icon;
    tick();
  };
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && event.detail.elt.classList.contains("live")) event.preventDefault();
  });
  const chosen = new Set();
  const unfolded = new Set();
  document.addEventListener("htmx:beforeSwap", (event) => {
    chosen.clear();
    unfolded.clear();
    for (const box of event.detail.target.querySelectorAll("input[name=run]:checked")) chosen.add(box.id);
    event.detail.target.querySelectorAll("details").forEach((one, number) => { if (one.open) unfolded.add(number); });
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const id of chosen) {
      const box = document.getElementById(id);
      if (box) box.checked = true;
    }
    const live = document.querySelector(".live");
    if (live) live.querySelectorAll("details").forEach((one, number) => { if (unfolded.has(number)) one.open = true; });
    settle();
    const lines = document.getElementById("lines");
    if (lines && lines !== followed) { followed = lines; follow(); }
  });
  document.addEventListener("htmx:sendError", () => trouble(true));
  document.addEventListener("htmx:responseError", () => trouble(true));
  document.addEventListener("htmx:afterOnLoad", () => trouble(false));

  // Keys

  const typing = (element) => element.closest("input, select, textarea, [contenteditable]");
  let before = "";
  const rows = () => [...document.querySelectorAll("a[data-row]")];
  const step = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    all[Math.min(all.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))].focus();
  };
  const search = () => {
    const field = document.querySelector("[data-search]") || document.querySelector("[data-log-search]");
    if (field) field.focus();
    else location.href = "/runs";
  };
  const keys = () => document.getElementById("keys").showModal();
  const sequences = { "g r": () => { location.href = "/runs"; }, "g d": () => { location.href = "/devices"; } };
  const single = { "/": search, j: () => step(1), k: () => step(-1), "?": keys };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const action = sequences[`${before} ${event.key}`] || single[event.key];
    before = event.key;
    if (action) { event.preventDefault(); action(); }
  });

  let followed = null;
  const begin = () => {
    for (const button of document.querySelectorAll("[data-keys]")) button.addEventListener("click", keys);
    followed = document.getElementById("lines");
    follow();
    settle();
    setInterval(tick, 1000);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
  addEventListener("pagehide", () => { if (source) source.close(); });
})();
