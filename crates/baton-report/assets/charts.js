// Charts: uPlot gives scales, axes and grid; the marks are drawn here, since a series has its own points.

const DASHES = [[], [7, 3], [2, 2.5], [9, 3, 2, 3], [4, 1.5], [5, 2], [2, 2], [8, 2, 2, 2]];
const hidden = new Set();
const charts = [];

// What `var(--name)` is in the theme that is shown.
const probe = document.body.appendChild(make("span"));
probe.hidden = true;
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

function marker(ctx, shape, x, y, r) {
  ctx.beginPath();
  switch (shape % 4) {
    case 0: ctx.arc(x, y, r, 0, 2 * Math.PI); break;
    case 1: ctx.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8); break;
    case 2: ctx.moveTo(x, y - r * 1.2); ctx.lineTo(x + r * 1.15, y + r); ctx.lineTo(x - r * 1.15, y + r); ctx.closePath(); break;
    default: ctx.moveTo(x, y - r * 1.3); ctx.lineTo(x + r * 1.3, y); ctx.lineTo(x, y + r * 1.3); ctx.lineTo(x - r * 1.3, y); ctx.closePath();
  }
  ctx.fill();
}

class Chart {
  constructor(spec, element) {
    this.spec = spec;
    this.element = element;
    this.view = 0;
    this.log = { x: spec.x.log, y: spec.y.log };
    this.plot = null;
    this.stop = null;
    this.scaleButton(spec.kind === "quantiles" ? "x" : "y");
    this.keys();
    new ResizeObserver(() => {
      if (this.plot && this.plot.width !== this.width()) this.draw();
    }).observe(element);
  }

  width() {
    return Math.max(160, Math.floor(this.element.clientWidth));
  }

  lines() {
    const views = this.spec.views;
    return views[Math.min(this.view, views.length - 1)].filter((line) => !hidden.has(line.s));
  }

  show(view) {
    this.view = view;
    this.draw();
  }

  // Milliseconds may be far apart or close together: the reader decides what to see.
  scaleButton(axis) {
    if (this.spec[axis].unit !== "ms") return;
    const button = make("button", "scale");
    button.type = "button";
    const say = () => {
      button.textContent = this.log[axis] ? "logarithmic" : "linear";
      button.setAttribute("aria-label", `${axis === "x" ? "Horizontal" : "Vertical"} axis is ${button.textContent}; change`);
    };
    button.addEventListener("click", () => {
      this.log[axis] = !this.log[axis];
      say();
      this.draw();
    });
    say();
    this.element.closest("figure").querySelector(".plot-head").append(button);
  }

  // From the numbers that are shown, intervals included.
  range(axis, lines) {
    const spec = this.spec[axis];
    if (spec.names) return [-0.5, spec.names.length - 0.5];
    if (spec.unit === "share") return [0, 1];
    let low = Infinity, high = -Infinity;
    for (const line of lines) {
      const ends = axis === "y" && line.low ? [line.y, line.low, line.high] : [line[axis]];
      for (const values of ends) {
        for (const value of values) {
          if (this.log[axis] && value <= 0) continue;
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
      }
    }
    if (low > high) return this.log[axis] ? [1, 10] : [0, 1];
    if (this.log[axis]) {
      const pad = Math.max(1.15, (high / low) ** 0.06);
      return [low / pad, high * pad];
    }
    if (this.spec.kind === "samples" && axis === "x") return [Math.min(0, low), high || 1];
    return [Math.min(0, low * 1.06), high > 0 ? high * 1.06 : 1];
  }

  axis(axis, range, width) {
    const spec = this.spec[axis];
    const log = this.log[axis];
    const about = axis === "x" ? Math.max(2, Math.min(9, width / 85)) : 5;
    const crowded = spec.names && spec.names.length * 62 > width - 60;
    const splits = spec.names ? spec.names.map((_, place) => place)
      : spec.unit === "share" ? [0, 0.25, 0.5, 0.75, 1]
      : log ? logSteps(range[0], range[1], about) : steps(range[0], range[1], about);
    const text = (value) => spec.names ? spec.names[value] : tick(value, spec.unit, range[1], log);
    const longest = Math.max(...splits.map((value) => text(value).length));
    return {
      scale: axis,
      stroke: colour("soft"),
      font: "12px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif",
      grid: { stroke: colour("grid"), width: 1, show: !(axis === "x" && spec.names) },
      ticks: { show: false },
      border: { show: axis === "x", stroke: colour("strong-line"), width: 1 },
      splits: () => splits,
      values: () => splits.map(text),
      gap: 6,
      rotate: crowded ? 40 : 0,
      ...(axis === "x"
        ? { label: spec.label, labelSize: 20, labelGap: 0, size: crowded ? 26 + longest * 4.4 : 26 }
        : { size: 18 + longest * 6.6 }),
    };
  }

  draw() {
    this.quiet();
    this.plot?.destroy();
    this.element.querySelector(".nothing")?.remove();
    this.plot = null;
    const lines = (this.shown = this.lines());
    if (!lines.length) {
      this.element.append(make("p", "nothing", hidden.size ? "Nothing of what is chosen" : "Too few answers for this"));
      return;
    }
    const [width, height] = [this.width(), this.element.clientHeight];
    const [x, y] = [this.range("x", lines), this.range("y", lines)];
    const scale = (axis, range) => ({ time: false, auto: false, distr: this.log[axis] ? 3 : 1, range: () => range });
    const options = {
      width, height,
      padding: [10, 14, 0, 4],
      legend: { show: false },
      cursor: { show: false },
      scales: { x: scale("x", x), y: scale("y", y) },
      axes: [this.axis("x", x, width), this.axis("y", y, width)],
      series: [{}, { scale: "y", paths: () => null, points: { show: false } }],
      hooks: { draw: [(plot) => this.marks(plot, lines)] },
    };
    this.plot = new uPlot(options, [x, y], this.element);
    this.overlay(lines);
  }

  // How far a series' marks are moved sideways, so that intervals at the same place do not cover each other.
  aside(line, lines) {
    if (!["points", "marks"].includes(this.spec.kind) || lines.length < 2) return 0;
    const room = this.spec.x.names ? 9 : 4;
    return (lines.indexOf(line) - (lines.length - 1) / 2) * Math.min(room, 40 / lines.length);
  }

  // Each line's points in pixels of the plotting area.
  where(plot, lines) {
    return lines.map((line) => {
      const aside = this.aside(line, lines);
      return line.x.map((value, place) => [
        plot.valToPos(value, "x") + aside,
        plot.valToPos(this.log.y ? Math.max(line.y[place], 1e-9) : line.y[place], "y"),
      ]);
    });
  }

  marks(plot, lines) {
    this.places = this.where(plot, lines);
    const ctx = plot.ctx;
    const ratio = uPlot.pxRatio;
    const { left, top, width, height } = plot.bbox;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left - 6 * ratio, top - 6 * ratio, width + 12 * ratio, height + 12 * ratio);
    ctx.clip();
    const many = this.spec.kind === "quantiles" || this.spec.kind === "samples";
    for (const line of lines) {
      const style = data.series[line.s];
      const aside = this.aside(line, lines) * ratio;
      const px = (place) => plot.valToPos(line.x[place], "x", true) + aside;
      const py = (value) => plot.valToPos(this.log.y ? Math.max(value, 1e-9) : value, "y", true);
      ctx.strokeStyle = ctx.fillStyle = colour(`s${style.colour}`);
      ctx.lineWidth = (many ? 1.8 : 2) * ratio;
      ctx.lineJoin = "round";
      ctx.setLineDash(DASHES[style.dash].map((n) => n * ratio));
      ctx.beginPath();
      if (this.spec.kind !== "marks") line.x.forEach((_, place) => ctx[place ? "lineTo" : "moveTo"](px(place), py(line.y[place])));
      ctx.stroke();
      ctx.setLineDash([]);
      if (many) continue;
      ctx.lineWidth = 1.2 * ratio;
      const cap = 3.5 * ratio;
      line.low?.forEach((low, place) => {
        const high = line.high[place];
        if (low === high) return;
        ctx.beginPath();
        ctx.moveTo(px(place), py(low));
        ctx.lineTo(px(place), py(high));
        for (const end of [low, high]) {
          ctx.moveTo(px(place) - cap, py(end));
          ctx.lineTo(px(place) + cap, py(end));
        }
        ctx.globalAlpha = 0.75;
        ctx.stroke();
        ctx.globalAlpha = 1;
      });
      line.x.forEach((_, place) => marker(ctx, style.colour, px(place), py(line.y[place]), 4 * ratio));
    }
    ctx.restore();
  }

  overlay(lines) {
    const over = this.plot.over;
    this.hair = over.appendChild(make("div", "hair"));
    this.dots = lines.map((line) => over.appendChild(make("div", `dot s${data.series[line.s].colour}`)));
    const at = (event) => {
      const box = over.getBoundingClientRect();
      this.point(this.nearest(lines, event.clientX - box.left, event.clientY - box.top), lines);
    };
    over.addEventListener("pointermove", at);
    over.addEventListener("pointerdown", at);
    over.addEventListener("pointerleave", () => this.quiet());
  }

  // What can be stopped at: sets of points, as [line, place], that a tooltip tells together.
  stops(lines) {
    if (this.allStops?.lines === lines) return this.allStops.found;
    const found = [];
    if (this.spec.kind === "path") {
      lines.forEach((line, at) => line.x.forEach((_, place) => found.push([[at, place]])));
    } else if (this.spec.kind === "quantiles") {
      lines[0].y.forEach((_, place) => found.push(lines.map((_, at) => [at, place])));
    } else {
      const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
      for (const x of xs) {
        const here = lines.map((line, at) => [at, line.x.indexOf(x)]).filter(([, place]) => place >= 0);
        found.push(here);
      }
    }
    this.allStops = { lines, found };
    return found;
  }

  nearest(lines, x, y) {
    const stops = this.stops(lines);
    const distance = (stop) => Math.min(...stop.map(([at, place]) => {
      const [px, py] = this.places[at][place];
      if (this.spec.kind === "quantiles") return Math.abs(py - y);
      return this.spec.kind === "path" ? Math.hypot(px - x, py - y) : Math.abs(px - x);
    }));
    let best = 0, least = Infinity;
    stops.forEach((stop, index) => {
      const far = distance(stop);
      if (far < least) [best, least] = [index, far];
    });
    return best;
  }

  point(index, lines) {
    const stop = this.stops(lines)[index];
    if (!stop) return;
    this.stop = index;
    const [firstLine, firstPlace] = stop[0];
    const { kind, x } = this.spec;
    const value = lines[firstLine].x[firstPlace];
    const rows = stop.map(([at, place]) => this.told(lines[at], place));
    // Said once, if it is the same for all.
    const notes = kind === "path" ? [] : stop.map(([at, place]) => lines[at].notes?.[place] ?? "");
    const same = notes.length > 1 && notes.every((note) => note === notes[0]);
    if (!same) notes.forEach((note, at) => note && rows[at].details.push(note));
    const title = kind === "quantiles" ? `${number(lines[0].y[firstPlace] * 100)} % of answers within`
      : kind === "path" ? lines[firstLine].notes[firstPlace]
      : x.names ? x.names[value]
      : formatted(value, x.unit);
    const shared = same && notes[0] ? ` · ${notes[0]}` : "";
    this.dots.forEach((dot) => (dot.style.display = "none"));
    for (const [at, place] of stop) {
      const [left, top] = this.places[at][place];
      Object.assign(this.dots[at].style, { display: "block", left: `${left}px`, top: `${top}px` });
    }
    const [left, top] = this.places[firstLine][firstPlace];
    const along = kind === "quantiles" ? { left: 0, top: `${top}px`, width: "100%", height: "1px" } : { left: `${this.plot.valToPos(value, "x")}px`, top: 0, width: "1px", height: "100%" };
    Object.assign(this.hair.style, { display: kind === "path" ? "none" : "block", ...along });
    const box = this.plot.over.getBoundingClientRect();
    const right = Math.max(...stop.map(([at, place]) => this.places[at][place][0]));
    tooltip(title + shared, rows, kind === "quantiles" ? box.left + right : box.left + left, box.top + Math.min(...stop.map(([at, place]) => this.places[at][place][1])));
  }

  // A line's row of the tooltip.
  told(line, place) {
    const { kind, x, y } = this.spec;
    const sideways = kind === "quantiles";
    const details = [];
    const told = { series: line.s, value: formatted(sideways ? line.x[place] : line.y[place], sideways ? x.unit : y.unit), details };
    if (line.low && line.low[place] !== line.high[place]) details.push(span(line.low[place], line.high[place], y.unit));
    if (kind === "path") details.push(`at ${formatted(line.x[place], x.unit)}`);
    return told;
  }

  quiet() {
    this.stop = null;
    this.dots?.forEach((dot) => (dot.style.display = "none"));
    if (this.hair) this.hair.style.display = "none";
    hideTooltip();
  }

  keys() {
    this.element.addEventListener("keydown", (event) => {
      if (!this.plot) return;
      if (event.key === "Escape") return this.quiet();
      const lines = this.shown;
      const last = this.stops(lines).length - 1;
      const from = this.stop ?? -1;
      const step = this.spec.kind === "quantiles" ? 5 : 1;
      const to = { ArrowRight: from + step, ArrowLeft: from - step, ArrowUp: from + step, ArrowDown: from - step, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.point(Math.max(0, Math.min(last, to)), lines);
      say(document.getElementById("tip").innerText);
    });
    this.element.addEventListener("blur", () => this.quiet());
  }
}

const tip = document.getElementById("tip");

function tooltip(title, rows, left, top) {
  const table = make("table");
  for (const row of rows) {
    const line = table.insertRow();
    const name = line.insertCell();
    if (row.series !== undefined) name.append(swatch(row.series), data.series[row.series].name);
    else name.append(row.name);
    const value = line.insertCell();
    value.className = "v";
    value.append(row.value);
    for (const detail of row.details ?? []) value.append(make("small", "", detail));
  }
  tip.replaceChildren(make("b", "", title), table);
  const box = tip.getBoundingClientRect();
  const [roomX, roomY] = [document.documentElement.clientWidth, document.documentElement.clientHeight];
  let x = left + 16;
  if (x + box.width > roomX - 8) x = left - box.width - 16;
  const y = Math.min(top - 12, roomY - box.height - 8);
  tip.style.transform = `translate(${Math.round(Math.max(8, x))}px, ${Math.round(Math.max(8, y))}px)`;
  tip.style.visibility = "visible";
}

function hideTooltip() {
  tip.style.visibility = "hidden";
}

function say(text) {
  document.getElementById("said").textContent = text;
}
