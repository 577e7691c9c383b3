// What the page was written with, and numbers as people read them.

const data = JSON.parse(document.getElementById("data").textContent);

const thousands = (text) => text.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");

function number(value) {
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(2);
  const digits = size === 0 ? 0 : size < 0.01 ? 4 : size < 10 ? 2 : size < 100 ? 1 : 0;
  const [whole, fraction] = value.toFixed(digits).split(".");
  return thousands(whole) + (fraction ? "." + fraction : "");
}

// At most three digits, no zeros behind the point: for axes.
function short(value) {
  if (Math.abs(value) >= 1e6) return value.toExponential(0);
  return thousands(String(Number(value.toPrecision(3))));
}

function milliseconds(value) {
  return value >= 10000 ? number(value / 1000) + " s" : number(value) + " ms";
}

function formatted(value, unit) {
  switch (unit) {
    case "ms": return milliseconds(value);
    case "seconds": return number(value) + " s";
    case "share": return number(value * 100) + " %";
    case "requests": return short(value) + " req/s";
    case "tokens_per_second": return number(value) + " tokens/s";
    case "clients": return value === 1 ? "1 client" : short(value) + " clients";
    default: return number(value);
  }
}

function span(low, high, unit) {
  const [from, to] = [formatted(low, unit), formatted(high, unit)];
  const word = to.slice(to.lastIndexOf(" "));
  return (to.includes(" ") && from.endsWith(word) ? from.slice(0, -word.length) : from) + " – " + to;
}

// A tick; `most` is the largest number of the axis, so that all ticks have one unit.
function tick(value, unit, most, log) {
  if (unit === "share") return short(value * 100) + " %";
  if (unit === "seconds") return short(value) + " s";
  if (unit !== "ms") return short(value);
  return (log ? value >= 1000 : most >= 2000) ? short(value / 1000) + " s" : short(value) + " ms";
}

// Round numbers from low to high, about so many.
function steps(low, high, about) {
  const rough = (high - low) / Math.max(1, about);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.99);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-9); n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

function logSteps(low, high, about) {
  const decades = Math.log10(high / low);
  if (decades < 0.7) return steps(low, high, about);
  const per = decades * 3 <= about * 1.4 ? [1, 2, 5] : decades * 2 <= about * 1.4 ? [1, 3] : [1];
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const n of per) {
      const value = Number((n * 10 ** power).toPrecision(3));
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found;
}

const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

// A series' piece of line with its marker.
function swatch(series) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("class", `swatch s${data.series[series].colour}`);
  svg.setAttribute("aria-hidden", "true");
  svg.appendChild(document.createElementNS(ns, "use")).setAttribute("href", `#w${series}`);
  return svg;
}
