// Opens pages in headless Chromium, looks for what must not be (requests, errors, overflow) and uses what must work,
// and leaves screenshots to look at: node check.mjs PAGES SCREENSHOTS WHERE-PUPPETEER-IS BROWSER

import { mkdirSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [pages, shots, modules, executablePath] = process.argv.slice(2);
const puppeteer = createRequire(resolve(modules, "package.json"))("puppeteer-core");
const browser = await puppeteer.launch({
  executablePath,
  args: ["--no-sandbox", "--hide-scrollbars"],
});
mkdirSync(shots, { recursive: true });
const faults = [];

const SIZES = [[1400, 900], [390, 844]];
const THEMES = ["light", "dark"];

for (const file of readdirSync(pages).filter((name) => name.endsWith(".html")).sort()) {
  for (const [width, height] of SIZES) {
    for (const theme of THEMES) await look(file, width, height, theme);
  }
}
await browser.close();
for (const fault of faults) console.error(`fault: ${fault}`);
console.log(`${faults.length} faults; screenshots are in ${shots}`);
process.exit(faults.length ? 1 : 0);

async function look(file, width, height, theme) {
  const where = `${file} at ${width}, ${theme}`;
  const fault = (text) => faults.push(`${where}: ${text}`);
  const page = await browser.newPage();
  const url = pathToFileURL(resolve(pages, file)).href;
  await page.setViewport({ width, height, deviceScaleFactor: 1, hasTouch: width < 500 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
  // The document, and what a CSV is saved from, are all that may be asked for.
  const devtools = await page.createCDPSession();
  await devtools.send("Network.enable");
  devtools.on("Network.requestWillBeSent", ({ request }) => {
    if (request.url !== url && !request.url.startsWith("blob:")) fault(`asks for ${request.url}`);
  });
  page.on("dialog", (dialog) => {
    fault(`a text of the result ran as a script: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("pageerror", (error) => fault(`error: ${error.message}`));
  page.on("console", (message) => {
    if (["error", "warn"].includes(message.type())) fault(`console: ${message.text()}`);
  });
  const begun = Date.now();
  await page.goto(url, { waitUntil: "load" });
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  const opened = Date.now() - begun;
  if (opened > 3000) fault(`took ${opened} ms to open`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  if (wide > 0) fault(`${wide} pixels wider than the window`);
  for (const text of await page.evaluate(unlabelled)) fault(text);
  const name = `${file.replace(".html", "")}-${width}-${theme}`;
  await page.screenshot({ path: join(shots, `${name}.png`), fullPage: true });
  if (theme === "light") await use(page, fault, name);
  await page.close();
}

// What a screen reader could not name; runs in the page.
function unlabelled() {
  const found = [];
  const ids = new Set();
  for (const element of document.querySelectorAll("[id]")) {
    if (ids.has(element.id)) found.push(`id ${element.id} is there twice`);
    ids.add(element.id);
  }
  for (const element of document.querySelectorAll("[aria-labelledby], [aria-describedby]")) {
    for (const id of `${element.getAttribute("aria-labelledby") ?? ""} ${element.getAttribute("aria-describedby") ?? ""}`.trim().split(/\s+/)) {
      if (!ids.has(id)) found.push(`no element has the id ${id}`);
    }
  }
  for (const button of document.querySelectorAll("button")) {
    if (!button.textContent.trim() && !button.ariaLabel) found.push("a button without a name");
  }
  for (const link of document.querySelectorAll("a[href^='#']")) {
    if (!document.getElementById(link.hash.slice(1))) found.push(`link to nowhere: ${link.hash}`);
  }
  return found;
}

// Legends, tooltips, keys, choices, sorting, CSV.
async function use(page, fault, name) {
  const pixels = (selector) => page.$eval(`${selector} canvas`, (canvas) => canvas.toDataURL());
  const shown = () => page.$eval("#tip", (tip) => getComputedStyle(tip).visibility === "visible" && tip.innerText);
  const chart = (await page.$("[data-chart] canvas")) && "[data-chart]:has(canvas)";
  if (chart) {
    const plot = await page.$(`${chart} .u-over`);
    await plot.scrollIntoView();
    const box = await plot.boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
    if (!(await shown())) fault("no tooltip over a chart");
    if (!(await page.evaluate(dotsInPlace, chart))) fault("points are not marked where they are");
    await page.screenshot({ path: join(shots, `${name}-tooltip.png`) });
    await page.mouse.move(1, 1);
    if (await shown()) fault("the tooltip stays");
    await page.focus(chart);
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowRight");
    if (!(await shown())) fault("arrow keys show nothing");
    if (!(await page.$eval("#said", (said) => said.textContent))) fault("arrow keys say nothing");
    await page.keyboard.press("Escape");
    if (await shown()) fault("Escape leaves the tooltip");
    if (await page.$(".legend button")) {
      const before = await pixels(chart);
      await page.click(".legend button");
      if ((await pixels(chart)) === before) fault("the legend hides nothing");
      await page.click(".legend button");
      if ((await pixels(chart)) !== before) fault("the legend does not bring back what it hid");
    }
    const scale = await page.$("figure:has(canvas) .scale");
    if (scale) {
      const before = await pixels(chart);
      await scale.click();
      if ((await pixels(chart)) === before) fault("the scale does not change");
      await scale.click();
    }
  }
  const option = await page.$("section:has(canvas) .choices input:not(:checked)");
  if (option) {
    const section = await option.evaluate((input) => `#${input.closest("section").id}`);
    const before = await pixels(section);
    await option.evaluate((input) => input.click());
    if ((await pixels(section)) === before) fault(`a choice in ${section} changes nothing`);
  }
  const lane = await page.$(".lane");
  if (lane) {
    await lane.focus();
    await page.keyboard.press("ArrowDown");
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    if (!(await shown())) fault("no tooltip at a request");
    if (!(await page.evaluate(besideLane))) fault("the tooltip is not beside its request");
    await page.screenshot({ path: join(shots, `${name}-lane.png`) });
    await page.keyboard.press("Escape");
  }
  const csv = await page.evaluate(saved);
  if (csv.some((text) => text.split("\r\n").length < 3)) fault("a CSV without rows");
  const sortable = await page.$("thead th.n button");
  if (sortable) {
    await sortable.evaluate((button) => button.click());
    if (!(await sortable.evaluate((button) => button.parentElement.ariaSort))) fault("a table cannot be sorted");
  }
  await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
  await page.screenshot({ path: join(shots, `${name}-unfolded.png`), fullPage: true });
  await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = false)));
  await page.pdf({ path: join(shots, `${name}.pdf`), printBackground: true, format: "A4" });
}


// Whether what is marked lies in the chart, and the tooltip beside it; runs in the page.
function dotsInPlace(chart) {
  const area = document.querySelector(`${chart} .u-over`).getBoundingClientRect();
  const dots = [...document.querySelectorAll(`${chart} .dot`)].filter((dot) => dot.style.display === "block");
  const inside = dots.every((dot) => {
    const box = dot.getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    return x > area.left && x < area.right + 2 && y > area.top - 2 && y < area.bottom + 2;
  });
  const tip = document.getElementById("tip").getBoundingClientRect();
  return dots.length > 0 && inside && tip.bottom > area.top - 60 && tip.top < area.bottom + 60;
}

// Whether the tooltip is beside the focused request, and that in the window; runs in the page.
function besideLane() {
  const lane = document.activeElement.getBoundingClientRect();
  const tip = document.getElementById("tip").getBoundingClientRect();
  return lane.top >= 0 && lane.bottom <= innerHeight && tip.bottom > lane.top - 30 && tip.top < lane.bottom + 60;
}

// Presses every CSV button and catches what would be saved; runs in the page.
async function saved() {
  const blobs = [];
  const create = URL.createObjectURL;
  URL.createObjectURL = (blob) => {
    blobs.push(blob.text());
    return "#";
  };
  const click = HTMLAnchorElement.prototype.click;
  HTMLAnchorElement.prototype.click = () => {};
  document.querySelectorAll('.tools button[aria-label^="Save"]').forEach((button) => button.click());
  URL.createObjectURL = create;
  HTMLAnchorElement.prototype.click = click;
  return Promise.all(blobs);
}
