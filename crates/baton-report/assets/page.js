// What the page does: choices, legend, tables, theme, print.

const bySection = new Map();
for (const element of document.querySelectorAll("[data-chart]")) {
  const spec = data.charts.find((chart) => chart.id === element.dataset.chart);
  const chart = new Chart(spec, element);
  charts.push(chart);
  const section = element.closest("section");
  bySection.set(section, [...(bySection.get(section) ?? []), chart]);
}
const timelines = [];
for (const element of document.querySelectorAll("[data-timeline]")) {
  const lanes = new Lanes(data.timelines.find((timeline) => timeline.id === element.dataset.timeline), element);
  timelines.push(lanes);
}

// Choices: each section's own.
for (const group of document.querySelectorAll(".choices")) {
  group.hidden = false;
  group.addEventListener("change", () => choose(group.closest("section")));
}
for (const section of document.querySelectorAll("main > section")) choose(section);

function choose(section) {
  const chosen = [...section.querySelectorAll(".choices fieldset")].map((fieldset) => {
    const select = fieldset.querySelector("select");
    const inputs = [...fieldset.querySelectorAll("input")];
    return select ? [select.selectedIndex, select.length] : [inputs.findIndex((input) => input.checked), inputs.length];
  });
  const view = chosen.reduce((index, [value, count]) => index * count + value, 0);
  for (const chart of bySection.get(section) ?? []) chart.show(view);
  const lanes = timelines.find((timeline) => section.contains(timeline.element));
  if (lanes) lanes.show({ load: chosen[0][0], which: chosen[1][0], along: chosen[2][0], until: chosen[3][0] });
}

function redraw() {
  for (const chart of charts) chart.draw();
}

// The legend is everybody's: what it hides is hidden in every chart.
document.querySelector(".legend")?.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const series = Number(button.dataset.series);
  if (!hidden.delete(series)) hidden.add(series);
  button.setAttribute("aria-pressed", String(!hidden.has(series)));
  redraw();
  for (const lanes of timelines) lanes.draw();
});

// Tables: sorting, CSV, copying.
const textOf = (cell) => [...cell.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data).join("");

function csvField(text) {
  const isNumber = text.trim() !== "" && Number.isFinite(Number(text));
  const guard = /^[=+\-@\t\r]/.test(text) && !isNumber ? "'" : "";
  return /[",\n\r]/.test(text) ? `"${guard}${text.replaceAll('"', '""')}"` : guard + text;
}

function csv(table) {
  const heads = [...table.tHead.rows[0].cells];
  const lines = [heads.map((head) => head.dataset.keys).join(",")];
  for (const row of table.tBodies[0].rows) {
    const fields = [...row.cells].map((cell, place) => {
      const value = cell.dataset.v;
      if ("interval" in heads[place].dataset) return value || ",,";
      return csvField(value ?? textOf(cell));
    });
    lines.push(fields.join(","));
  }
  return lines.join("\r\n") + "\r\n";
}

function save(name, text) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function sortBy(table, head) {
  const place = head.cellIndex;
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row) => {
    const cell = row.cells[place];
    const value = parseFloat(cell.dataset.v ?? textOf(cell));
    return head.classList.contains("n") ? (Number.isNaN(value) ? Infinity : value) : textOf(cell);
  };
  // Loads no longer stand together.
  table.querySelectorAll(".apart").forEach((row) => row.classList.remove("apart"));
  const keyed = [...table.tBodies[0].rows].map((row) => [key(row), row]);
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a < b ? -1 : a > b ? 1 : 0);
  keyed.sort(([a], [b]) => (down ? compare(b, a) : compare(a, b)));
  table.tBodies[0].append(...keyed.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table[data-table]")) {
  const tools = make("div", "tools");
  const caption = table.caption.textContent;
  const tool = (className, text, name, act) => {
    const button = tools.appendChild(make("button", `quiet ${className}`, text));
    button.type = "button";
    button.setAttribute("aria-label", `${name}: ${caption}`);
    button.addEventListener("click", () => act(button));
  };
  tool("copy", "Copy", "Copy as CSV", async (button) => {
    await navigator.clipboard.writeText(csv(table));
    button.textContent = "Copied";
    say("Copied");
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  tool("", "CSV", "Save as CSV", () => save(`baton-${table.dataset.table}.csv`, csv(table)));
  if (!navigator.clipboard) tools.querySelector(".copy").remove();
  table.closest(".table").append(tools);
  if (table.tBodies[0].rows.length < 3) continue;
  for (const head of table.tHead.rows[0].cells) {
    const button = make("button", "", head.textContent);
    button.type = "button";
    button.addEventListener("click", () => sortBy(table, head));
    head.replaceChildren(button);
  }
}

// Themes: the system's, until the reader chooses.
const theme = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
function nameTheme() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", `${theme.textContent} colours`);
}
theme.hidden = false;
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
  redraw();
});
dark.addEventListener("change", () => {
  nameTheme();
  redraw();
});
nameTheme();

// On paper everything is in light colours, and canvases are as wide as their column of it.
matchMedia("print").addEventListener("change", redraw);

// A tooltip does not follow what it tells of.
addEventListener("scroll", hideTooltip, { passive: true, capture: true });

// The section that is read is marked in the bar.
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(entry.target.id)?.setAttribute("aria-current", "true");
  }
}, { rootMargin: "-15% 0px -75% 0px" });
for (const section of document.querySelectorAll("main > section")) watch.observe(section);
