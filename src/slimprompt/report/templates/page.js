"use strict";
// Sorts and filters tables, and lists the runs behind a number. The page is readable without this script.

const text = (cell) => (cell.dataset.v ?? cell.textContent).trim();
const compare = new Intl.Collator("en", { numeric: true }).compare;

function sortBy(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  rows.forEach((row, index) => { row.dataset.index ??= index; });
  const missing = (value) => value === "" || value === "\u2014" || value === "\u2013";
  rows.sort((one, other) => {
    const original = one.dataset.index - other.dataset.index;
    if (direction === "none") return original;
    const [a, b] = [text(one.cells[column]), text(other.cells[column])];
    if (missing(a) || missing(b)) return missing(a) - missing(b) || original;  // missing values come last in both directions
    const [x, y] = [Number(a), Number(b)];
    const order = Number.isNaN(x) || Number.isNaN(y) ? compare(a, b) : x - y;
    return (direction === "ascending" ? order : -order) || original;
  });
  body.append(...rows);
}

for (const button of document.querySelectorAll("th > button.sort")) {
  button.addEventListener("click", () => {
    const header = button.parentElement;
    const table = header.closest("table");
    const next = { none: "ascending", ascending: "descending", descending: "none" }[header.getAttribute("aria-sort") ?? "none"];
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    if (next !== "none") header.setAttribute("aria-sort", next);
    sortBy(table, Number(button.dataset.column), next);
  });
}

function applyFilter(tools) {
  const list = document.getElementById(tools.dataset.for);
  const items = list.tBodies ? [...list.tBodies[0].rows] : [...list.children];
  const words = (tools.querySelector("input")?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const kind = tools.querySelector("select")?.value ?? "";
  let shown = 0;
  for (const item of items) {
    const content = item.textContent.toLowerCase();
    item.hidden = !words.every((word) => content.includes(word)) || (kind !== "" && !(item.dataset.kind ?? "").split("|").includes(kind));
    shown += !item.hidden;
  }
  tools.querySelector("output").textContent = shown === items.length ? "" : `${shown} of ${items.length} shown`;
}
for (const tools of document.querySelectorAll(".tools[data-for]")) {
  tools.hidden = false;
  for (const control of tools.querySelectorAll("input, select")) control.addEventListener("input", () => applyFilter(tools));
}

// What is wider than the screen says so, and fades where more of it follows.
function showWidth(box) {
  box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
  box.classList.toggle("more", box.scrollWidth > box.clientWidth + box.scrollLeft + 1);
}
const widths = new ResizeObserver((entries) => { for (const entry of entries) showWidth(entry.target); });
for (const box of document.querySelectorAll(".scroll, .plot")) {
  widths.observe(box);
  box.addEventListener("scroll", () => showWidth(box), { passive: true });
}

const dialog = document.getElementById("runs-dialog");
function showRuns(link) {
  const list = dialog.querySelector("ul");
  list.replaceChildren();
  for (const number of link.dataset.runs.split(" ")) {
    const row = document.getElementById(`run-${number}`);
    const entry = document.createElement("li");
    list.append(entry);
    if (!row) { entry.textContent = `run ${number} of runs.csv`; continue; }  // the page has too many runs to list them
    const anchor = document.createElement("a");
    anchor.href = `#run-${number}`;
    anchor.textContent = row.dataset.title;
    anchor.addEventListener("click", () => { row.hidden = false; dialog.close(); });
    entry.append(anchor);
  }
  dialog.querySelector("h2").textContent = `${link.textContent.trim()}: computed from ${list.children.length === 1 ? "one run" : `${list.children.length} runs`}`;
  dialog.showModal();
}
if (dialog) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a.n[data-runs]");
    if (link) { event.preventDefault(); showRuns(link); }
    if (event.target === dialog) dialog.close();
  });
  dialog.querySelector("button").addEventListener("click", () => dialog.close());
}

function unfold(element) {
  for (let parent = element?.closest("details"); parent; parent = parent.parentElement.closest("details")) parent.open = true;
}
const reveal = () => { try { unfold(document.querySelector(location.hash || "#none")); } catch { /* the hash is not a valid selector */ } };
addEventListener("hashchange", reveal);
reveal();
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("section > details:not([open])")];
  for (const one of closed) one.open = true;
});
addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
