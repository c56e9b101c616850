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
    if (lines && lines.dataset.end && !location.hash.startsWith("#L")) lines.scrollTop = lines.scrollHeight;
    if (!lines || !lines.dataset.stream) return;
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
    const opened = source;
    source.addEventListener("error", () => {
      // A server that has too many to follow it, or that is gone, is asked again; otherwise the browser does that itself.
      if (opened.readyState === EventSource.CLOSED) setTimeout(() => { if (source === opened) follow(); }, 15000);
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

  // The values of a chart under the pointer

  const curves = new WeakMap();
  const points = (path) => {
    if (!curves.has(path)) {
      const numbers = path.getAttribute("d").match(/-?[\d.]+/g).map(Number);
      curves.set(path, numbers);
    }
    return curves.get(path);
  };
  const near = (numbers, x) => {
    let low = 0;
    let high = numbers.length / 2 - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (numbers[2 * middle] < x) low = middle; else high = middle;
    }
    return Math.abs(numbers[2 * low] - x) <= Math.abs(numbers[2 * high] - x) ? low : high;
  };
  // A picture tells values as exactly as its curve is drawn: no digits beyond that.
  const number = (value, exact) => {
    const decimals = Math.max(0, -Math.ceil(Math.log10(exact)));
    if (decimals > 8) return value.toExponential(2);
    return value.toLocaleString("en", { maximumFractionDigits: decimals });
  };
  const valueText = (value, one, exact) => {
    const unit = one.replace(/^[\d.]+/, "");
    if (!/^ B(\/s)?$/.test(unit)) return number(value, exact) + unit;
    const names = ["B", "kB", "MB", "GB", "TB"];
    let scale = 1;
    while (Math.abs(value) / scale >= 999.5 && names.length > 1) { scale *= 1000; names.shift(); }
    return `${number(value / scale, exact / scale)} ${names[0]}${unit.slice(2)}`;
  };
  const placeText = (place, one, exact) => (one.endsWith(" s") ? span(place) : one.replace("1", number(place, /[a-z]/.test(one) ? Math.max(1, exact) : exact)));
  let bubble = null;
  const unpoint = () => {
    if (bubble) bubble.hidden = true;
    for (const line of document.querySelectorAll(".chart .cross")) line.remove();
  };
  const point = (svg, event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * 1000;
    const nearest = new Map();
    for (const path of svg.querySelectorAll(".curve, .dot")) {
      const numbers = points(path);
      const index = near(numbers, at);
      const away = Math.abs(numbers[2 * index] - at);
      const look = path.getAttribute("class");
      const name = path.dataset.name || look;
      const known = nearest.get(name);
      if (!known || away < known.away) {
        nearest.set(name, { away, x: numbers[2 * index], y: numbers[2 * index + 1], name: path.dataset.name, look });
      }
    }
    let found = [...nearest.values()].filter((one) => one.away < 60);
    if (svg.closest(".charts") && found.length) {
      // Of many curves the one under the pointer, and its row.
      const height = ((event.clientY - box.top) / box.height) * 120;
      const distance = (one) => Math.abs(one.y - height) / 2 + one.away;
      found = [found.reduce((one, other) => (distance(other) < distance(one) ? other : one))];
      light(found[0].name);
    }
    if (!found.length || !svg.dataset.x) { unpoint(); return; }
    const [begin, end] = svg.dataset.x.split(" ").map(Number);
    const [low, high] = svg.dataset.y.split(" ").map(Number);
    const [axis, words] = svg.dataset.words.split("|");
    const place = found.reduce((one, other) => (other.away < one.away ? other : one)).x;
    for (const line of document.querySelectorAll(".chart .cross")) line.remove();
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [name, value] of [["class", "cross"], ["x1", place], ["x2", place], ["y1", 0], ["y2", 120]]) line.setAttribute(name, value);
    svg.append(line);
    if (!bubble) {
      bubble = document.createElement("div");
      bubble.className = "bubble";
      bubble.setAttribute("aria-hidden", "true");
      document.body.append(bubble);
    }
    const head = document.createElement("strong");
    const along = begin + ((end - begin) * place) / 1000;
    if (svg.hasAttribute("data-wide")) head.textContent = number(10 ** along, 10 ** along / 1000);
    else head.textContent = placeText(along, axis, (end - begin) / 10000);
    const rows = found.map((one) => {
      const row = document.createElement("div");
      const name = document.createElement("span");
      name.className = `key ${one.look.split(" ").pop()}`;
      name.textContent = one.name || "";
      const value = document.createElement("span");
      value.className = "number";
      value.textContent = valueText(low + (high - low) * (1 - one.y / 120), words, (high - low) / 2400);
      row.append(name, value);
      return row;
    });
    bubble.replaceChildren(head, ...rows);
    bubble.hidden = false;
    const width = bubble.offsetWidth;
    const left = event.clientX + 14 + width > document.documentElement.clientWidth ? event.clientX - 14 - width : event.clientX + 14;
    bubble.style.left = `${Math.max(4, left) + scrollX}px`;
    bubble.style.top = `${box.top + scrollY + 4}px`;
  };
  // A row of a table of variants and its curves light each other.
  let lit = null;
  const light = (name) => {
    if (name === lit) return;
    lit = name;
    for (const one of document.querySelectorAll(".variants .lit")) one.classList.remove("lit");
    if (!name) return;
    for (const one of document.querySelectorAll(`.variants [data-name="${CSS.escape(name)}"]`)) {
      one.classList.add("lit");
      if (one.matches("path")) one.parentNode.append(one);
    }
  };
  document.addEventListener("pointermove", (event) => {
    const svg = event.target.closest(".chart > svg[data-x]");
    if (svg) { point(svg, event); return; }
    unpoint();
    const row = event.target.closest(".variants tr[data-name]");
    light(row && row.dataset.name);
  });
  document.addEventListener("focusin", (event) => {
    const row = event.target.closest(".variants tr[data-name]");
    if (row) light(row.dataset.name);
  });
  document.addEventListener("pointerleave", unpoint);

  // Parts that are looked at again

  const trouble = (is) => { document.getElementById("trouble").hidden = !is; };
  const settle = () => {
    const live = document.querySelector(".live[data-icon]");
    if (live) document.getElementById("icon").href = live.dataset.icon;
    countChosen();
    tick();
  };
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && event.detail.elt.classList.contains("live")) event.preventDefault();
  });
  const chosen = new Set();
  const across = new Map();  // how far tables are scrolled
  const unfolded = new Set();
  document.addEventListener("htmx:beforeSwap", (event) => {
    chosen.clear();
    unfolded.clear();
    across.clear();
    document.querySelectorAll(".scroll").forEach((one, number) => across.set(number, one.scrollLeft));
    for (const box of event.detail.target.querySelectorAll("input[name=run]:checked")) chosen.add(box.id);
    event.detail.target.querySelectorAll("details").forEach((one, number) => { if (one.open) unfolded.add(number); });
  });
  document.addEventListener("htmx:afterSwap", () => {
    lit = null;
    document.querySelectorAll(".scroll").forEach((one, number) => { one.scrollLeft = across.get(number) || 0; });
    for (const id of chosen) {
      const box = document.getElementById(id);
      if (box) box.checked = true;
    }
    const live = document.querySelector(".live");
    if (live) live.querySelectorAll("details").forEach((one, number) => { if (unfolded.has(number)) one.open = true; });
    unpoint();
    settle();
    const lines = document.getElementById("lines");
    if (lines && lines !== followed) { followed = lines; follow(); }
  });
  document.addEventListener("htmx:sendError", () => trouble(true));
  document.addEventListener("htmx:responseError", () => trouble(true));
  document.addEventListener("htmx:afterOnLoad", () => trouble(false));

  // One run, or one version, cannot be compared.

  const countChosen = () => {
    const button = document.querySelector("[data-compare]");
    if (button) button.disabled = document.querySelectorAll(".compare-form input:checked").length < 2;
  };
  document.addEventListener("change", countChosen);

  // Keys

  const typing = (element) => element.closest("input:not([type=checkbox], [type=radio]), select, textarea, [contenteditable]");
  let before = "";
  let entered = false;
  const rows = () => [...document.querySelectorAll("a[data-row]")];
  const step = (by) => {
    const all = rows();
    if (!all.length) return;
    const row = document.activeElement.closest("tr");  // from the box of a row, too
    const at = all.findIndex((one) => one === document.activeElement || (row && row.contains(one)));
    all[Math.min(all.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by))].focus();
  };
  const search = () => {
    const field = document.querySelector("[data-search]") || document.querySelector("[data-log-search]");
    if (field) field.focus();
    else location.href = "/runs";
  };
  const keys = () => document.getElementById("keys").showModal();
  const places = { r: "/runs", a: "/artifacts", m: "/models", d: "/devices" };
  const sequences = Object.fromEntries(
    Object.entries(places).map(([key, place]) => [`g ${key}`, () => { location.href = place; }]),
  );
  const single = { "/": search, j: () => step(1), k: () => step(-1), "?": keys };
  // Escape leaves a field with what is in it; Enter in a filter leads to the first row that it finds.
  const typed = (event) => {
    if (event.key === "Escape" && !event.target.closest("dialog")) { event.preventDefault(); event.target.blur(); }
    if (event.key === "Enter") entered = Boolean(event.target.closest("form[hx-target='#runs'], form[hx-target='#names']"));
  };
  document.addEventListener("htmx:afterSettle", () => {
    if (entered) { entered = false; step(1); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing(event.target)) { typed(event); return; }
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
