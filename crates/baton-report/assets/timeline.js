// Single requests: a lane each, on one ruler.

const PHASES = {
  client: "due, not yet sent (client)",
  server: "sent, no token yet",
  queue: "in a queue",
  prefill: "prefill",
  transfer: "transfer",
  first_step: "first step of decode",
  tokens: "answer; lines are tokens, at most 64 of them",
};

class Lanes {
  constructor(spec, element) {
    this.spec = spec;
    this.element = element;
    this.choice = { load: 0, which: 0, along: 0, until: 0 };
    const seen = new Set(spec.requests.flatMap((request) => request.ph.map(([phase]) => phase)));
    const legend = make("ul", "phases");
    for (const phase of Object.keys(PHASES).filter((phase) => seen.has(phase))) {
      const item = legend.appendChild(make("li"));
      item.append(make("i", `ph-${phase}`), PHASES[phase]);
    }
    this.lanes = make("ol", "lanes");
    this.lanes.setAttribute("aria-label", "Requests; arrow keys go from one to the next");
    this.ruler = make("div", "ruler");
    this.ruler.setAttribute("aria-hidden", "true");
    element.replaceChildren(legend, this.ruler, this.lanes);
    this.keys();
  }

  show(choice) {
    this.choice = choice;
    this.draw();
  }

  // One load's requests: the same request of all systems together, or the slowest first.
  requests() {
    const { load, which } = this.choice;
    const wanted = this.spec.requests.filter((r) => r.l === load && !hidden.has(r.s) && (which ? r.slow : r.few));
    const end = (r) => (this.choice.until && r.t.length ? r.t[0] : Math.max(0, ...r.ph.map((phase) => phase[2])));
    return which ? wanted.sort((a, b) => end(b) - end(a)) : wanted.sort((a, b) => a.i - b.i || a.s - b.s);
  }

  draw() {
    hideTooltip();
    const requests = this.requests();
    const shift = (r) => (this.choice.along ? r.at : 0);
    const end = (r) => Math.max(0, ...r.ph.map((phase) => phase[2]));
    // What lies beyond the first token runs out of the picture.
    const shown = (r) => (this.choice.until && r.t.length ? r.t[0] * 1.03 : end(r));
    const low = this.choice.along ? Math.min(...requests.map((r) => r.at)) : 0;
    const high = Math.max(low + 1e-6, ...requests.map((r) => shift(r) + shown(r)));
    const at = (ms) => ((ms - low) / (high - low)) * 100;
    const ticks = make("div", "ticks");
    for (const ms of steps(low, high, innerWidth < 720 ? 4 : 8)) {
      const mark = ticks.appendChild(make("span", "", tick(ms, "ms", high)));
      mark.style.left = `${at(ms)}%`;
    }
    this.ruler.replaceChildren(make("span"), ticks, make("span"));
    this.lanes.replaceChildren(...requests.map((r, place) => this.lane(r, requests[place - 1], (ms) => at(shift(r) + ms), end(r))));
    if (!requests.length) this.lanes.append(make("li", "", "No such request."));
    this.lanes.firstChild?.setAttribute("tabindex", "0");
  }

  lane(request, before, at, end) {
    const lane = make("li", `lane s${data.series[request.s].colour}`);
    if (before && before.i !== request.i && !this.choice.which) lane.classList.add("first");
    if (request.bad) lane.classList.add("failed");
    lane.tabIndex = -1;
    const who = make("span", "who");
    who.append(swatch(request.s), `#${request.i}`, make("small", "", request.n));
    const track = make("div", "track");
    for (const [phase, from, to] of request.ph.filter(([, from]) => at(from) <= 100)) {
      const bar = track.appendChild(make("span", `ph-${phase}`));
      bar.style.left = `${at(from)}%`;
      bar.style.width = `${Math.min(at(to), 100) - at(from)}%`;
    }
    track.append(tokenMarks(request.t.map(at).filter((place) => place <= 100)));
    if (request.bad) {
      const broke = track.appendChild(make("span", "broke", "×"));
      broke.style.left = `${at(end)}%`;
    }
    lane.append(who, track, make("span", "end", request.ph.length ? milliseconds(this.choice.until ? request.t[0] ?? end : end) : "never sent"));
    const told = this.told(request, end);
    lane.setAttribute("aria-label", `${told.title}: ${told.rows.map((row) => `${row.name} ${row.value}`).join(", ")}`);
    const show = () => {
      const box = track.getBoundingClientRect();
      tooltip(told.title, told.rows, box.left + Math.min(box.width * 0.6, (box.width * Math.min(100, at(end))) / 100), box.bottom + 18);
    };
    lane.addEventListener("pointerenter", show);
    // Once it has been scrolled to.
    lane.addEventListener("focus", () => requestAnimationFrame(() => document.activeElement === lane && show()));
    lane.addEventListener("pointerleave", hideTooltip);
    lane.addEventListener("blur", hideTooltip);
    return lane;
  }

  told(request, end) {
    const parts = new Map();
    for (const [phase, from, to] of request.ph) {
      const [count, sum] = parts.get(phase) ?? [0, 0];
      parts.set(phase, [count + 1, sum + to - from]);
    }
    const rows = [...parts].map(([phase, [count, sum]]) => ({
      name: PHASES[phase].split(";")[0] + (count > 1 ? `, in ${count} parts` : ""),
      value: milliseconds(sum),
    }));
    rows.push({ name: "all of it", value: milliseconds(end) });
    const name = data.series[request.s].name;
    return { title: `${name}, request ${request.i}, ${request.n}`, rows };
  }

  keys() {
    this.lanes.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return hideTooltip();
      const lane = event.target.closest(".lane");
      const to = { ArrowDown: lane?.nextElementSibling, ArrowUp: lane?.previousElementSibling, Home: this.lanes.firstChild, End: this.lanes.lastChild }[event.key];
      if (!lane || !to) return;
      event.preventDefault();
      lane.tabIndex = -1;
      to.tabIndex = 0;
      to.focus();
    });
  }
}

// One path for all tokens of a lane: hundreds of elements would slow the page down.
function tokenMarks(places) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", "0 0 100 10");
  svg.setAttribute("preserveAspectRatio", "none");
  const path = svg.appendChild(document.createElementNS(ns, "path"));
  path.setAttribute("d", places.map((x) => `M${x.toFixed(3)} 0V10`).join(""));
  return svg;
}
