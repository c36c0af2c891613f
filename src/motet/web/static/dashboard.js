// Live parts (server-sent events), values under the pointer, light and dark. Pages work without this script.
"use strict";

// ---- live parts ----

function nodesOf(html) {
  return [...new DOMParser().parseFromString(html, "text/html").body.childNodes];
}

// Put new content in place; what the reader opened, ticked or focused stays so.
function replaceContent(place, html) {
  const open = new Set([...place.querySelectorAll("details[open]")].map((d) => d.id));
  const ticked = new Set([...place.querySelectorAll("input:checked")].map((i) => i.value));
  const active = document.activeElement;
  const focus = place.contains(active) ? active.getAttribute("href") || active.id || active.value : null;
  place.replaceChildren(...nodesOf(html));
  for (const d of place.querySelectorAll("details")) if (open.has(d.id)) d.open = true;
  for (const i of place.querySelectorAll("input[type=checkbox]")) if (ticked.has(i.value)) i.checked = true;
  if (focus) {
    const same = [...place.querySelectorAll("a, input, button, summary")].find((e) => (e.getAttribute("href") || e.id || e.value) === focus);
    if (same) same.focus({ preventScroll: true });
  }
  showValues(place);
}

function watch(place) {
  const source = new EventSource(place.dataset.live);
  const before = place.querySelector(".state")?.textContent;
  source.addEventListener("part", (e) => {
    replaceContent(place, JSON.parse(e.data));
    place.dataset.parts = String(Number(place.dataset.parts || 0) + 1);
    const now = place.querySelector(".status .state")?.textContent;
    // buttons above depend on the state; a page whose state changed is loaded again
    if (place.id === "live" && before && now && now !== before) { source.close(); location.replace(location.pathname); }
  });
  source.addEventListener("over", () => source.close());
  addEventListener("pagehide", () => source.close());
}

async function fetchPart(place) {
  try {
    const answer = await fetch(place.dataset.fetch);
    if (answer.ok) replaceContent(place, await answer.text());
  } catch { /* the sentence that stands there stays */ }
  if (place.dataset.every) {
    place.removeAttribute("aria-live"); // said once; what comes later is there to be read
    setTimeout(() => askAgain(place), 1000 * place.dataset.every);
  }
}

// Nobody is asked while nobody looks.
function askAgain(place) {
  if (!document.hidden) { fetchPart(place); return; }
  document.addEventListener("visibilitychange", () => fetchPart(place), { once: true });
}

// A run that was just started has no page yet: ask until it has one.
async function waitFor(place) {
  const answer = await fetch(place.dataset.wait, { headers: { "X-Waiting": "1" } });
  const text = await answer.text();
  const page = new DOMParser().parseFromString(text, "text/html");
  const again = page.querySelector("[data-wait]");
  if (!again) { location.replace(place.dataset.wait); return; }
  place.replaceChildren(...again.childNodes);
  setTimeout(() => waitFor(place), 1000);
}

// ---- values under the pointer ----

function showValues(within) {
  for (const svg of within.querySelectorAll("svg.chart")) {
    svg.addEventListener("pointermove", (e) => point(svg, e));
    svg.addEventListener("pointerleave", () => svg.querySelector(".tip")?.remove());
  }
}

function nearest(svg, x, y) {
  let best = null;
  for (const line of svg.querySelectorAll(".line")) {
    for (const text of line.dataset.points.split(";")) {
      const [px, py, value] = text.split("|");
      if (value === undefined) continue;
      const far = Math.hypot(px - x, (py - y) / 2);
      if (!best || far < best.far) best = { far, px: Number(px), py: Number(py), value, name: line.dataset.name };
    }
  }
  return best;
}

function point(svg, e) {
  const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
  const found = nearest(svg, ((e.clientX - box.left) / box.width) * view.width, ((e.clientY - box.top) / box.height) * view.height);
  svg.querySelector(".tip")?.remove();
  if (!found || found.far > 60) return;
  const make = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [k, v] of Object.entries(attributes)) made.setAttribute(k, v);
    return made;
  };
  const tip = make("g", { class: "tip" });
  const right = found.px > view.width * 0.55;
  const text = make("text", { x: found.px + (right ? -10 : 10), y: Math.max(found.py - 10, 14), "text-anchor": right ? "end" : "start" });
  text.textContent = `${found.name}, ${found.value}`;
  tip.append(make("circle", { cx: found.px, cy: found.py, r: 4.5 }), text);
  svg.append(tip);
}

// ---- the page ----

document.getElementById("theme")?.addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("motet-theme", next); } catch { /* storage is switched off */ }
});
for (const place of document.querySelectorAll("[data-live]")) watch(place);
for (const place of document.querySelectorAll("[data-fetch]")) fetchPart(place);
for (const place of document.querySelectorAll("[data-wait]")) setTimeout(() => waitFor(place), 700);
for (const field of document.querySelectorAll("[data-reload]")) {
  field.addEventListener("change", () => {
    const form = field.form;
    form.querySelector("button[formaction]").click();
  });
}
showValues(document);
