"use strict";
// Labels images by mouse or keyboard, and saves path, label and split of all labelled images as a CSV file.

const { rows, file } = JSON.parse(document.getElementById("csv-rows").content.textContent);
const before = rows.map((row) => row[1]);
const controls = [...document.querySelectorAll(".choices")];
const items = controls.map((one) => one.closest("li"));
const words = (name) => name.toLowerCase().replace(/[_\s]+/g, " ").trim();
const nameOf = new Map([...document.querySelectorAll("#class-names option")].map((one) => [words(one.value), one.value]));
let saved = true;

function show() {
  controls.forEach((one, index) => {
    const row = Number(one.dataset.row);
    const label = rows[row][1];
    const buttons = [...one.querySelectorAll("button")];
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.label === label));
    const input = one.querySelector("input");
    const typed = !buttons.some((button) => button.dataset.label === label);
    if (typed || document.activeElement !== input) input.value = typed ? label : "";
    input.classList.toggle("chosen", typed);
    items[index].classList.toggle("changed", label !== before[row]);
    items[index].classList.toggle("out", label === "" && before[row] !== "");
  });
  const changed = rows.filter((row, index) => row[1] !== before[index]).length;
  const kept = rows.filter((row) => row[1] !== "").length;
  document.getElementById("changes").textContent = `${changed} changed; ${kept} images in ${file}`;
}

function choose(index, label) {
  const name = label.trim();
  if (!nameOf.has(words(name))) nameOf.set(words(name), name);  // another spelling is the same class
  rows[controls[index].dataset.row][1] = nameOf.get(words(name));
  saved = false;
  show();
}

function move(index) {
  const item = items[Math.max(0, Math.min(items.length - 1, index))];
  item.focus();
  item.scrollIntoView({ block: "nearest" });
}

// As slimprompt.spreadsheet writes cells: no text becomes a formula in a spreadsheet.
function cell(text) {
  const formula = text.length > 1 && /^[=+\-@\t]/.test(text) && Number.isNaN(Number(text));
  const safe = (formula ? "'" : "") + text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function save() {
  const lines = [["path", "label", "split"], ...rows.filter((row) => row[1] !== "")];
  const text = lines.map((line) => line.map(cell).join(",") + "\n").join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = file;
  link.click();
  saved = true;
}

controls.forEach((one, index) => {
  one.hidden = false;
  items[index].tabIndex = 0;
  for (const button of one.querySelectorAll("button")) {
    button.addEventListener("click", () => choose(index, button.dataset.label));
  }
  const input = one.querySelector("input");
  input.addEventListener("change", () => { if (input.value.trim()) choose(index, input.value); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; move(index); }
    if (event.key === "Enter") { if (input.value.trim()) choose(index, input.value); move(index + 1); }
    event.stopPropagation();
  });
});
document.querySelector(".editor").hidden = false;
document.getElementById("save").addEventListener("click", save);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const index = items.indexOf(document.activeElement?.closest("li"));
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === "s") save();
  else if (index < 0 && step) move(0);
  else if (index < 0) return;
  else if (step) move(index + step);
  else if (event.key === "/") controls[index].querySelector("input").focus();
  else if (/^\d$/.test(event.key)) {
    const buttons = [...controls[index].querySelectorAll("button")];
    const button = event.key === "0" ? buttons.at(-1) : buttons.slice(0, -1)[Number(event.key) - 1];
    if (!button) return;
    choose(index, button.dataset.label);
    move(index + 1);
  } else return;
  event.preventDefault();
});

addEventListener("beforeunload", (event) => { if (!saved) event.preventDefault(); });
show();
