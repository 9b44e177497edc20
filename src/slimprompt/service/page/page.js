"use strict";
// Sends each image with the class names to /predict and shows the answers. All text is set by textContent: names are hostile.

const byId = (id) => document.getElementById(id);
const DELAY = 400;        // milliseconds without typing before the images are sent again
const AT_ONCE = 4;        // requests at a time; the service encodes them together
const LONGEST = 1600;     // larger images are reduced before they are sent
const SHOWN = 5;          // classes shown of each image
const MOST = 100;         // images on the page
const TRIES = 6;          // of a request that the busy service puts off

const state = { models: [], limits: {}, items: [], run: null, timer: 0 };

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
const named = (text) => text.split(/(?<=_)/).flatMap((part, place) => (place ? [make("wbr"), part] : [part]));  // may wrap after _
const percent = (share) => {  // 0 and 100 % are said only of 0 and 1
  if (share < 1 && share >= 0.9995) return ">\u00a099.9\u00a0%";
  return share > 0 && share < 0.0005 ? "<\u00a00.1\u00a0%" : `${(100 * share).toFixed(1)}\u00a0%`;
};
const pause = (seconds) => new Promise((done) => { setTimeout(done, 1000 * seconds); });
const model = () => state.models.find((one) => one.name === byId("model").value) ?? state.models[0];
const names = () => byId("names").value.split("\n").map((line) => line.trim()).filter(Boolean);
const ownNames = () => names().join("\n") === (model()?.classes ?? []).join("\n");
const plural = (number, one, many) => `${number} ${number === 1 ? one : many}`;

// Requests

class Refusal extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function fetchWithToken(path, options = {}) {
  for (let text = null; ; text = "This token was not accepted.") {
    const token = sessionStorage.getItem("slimprompt-token");
    let response;
    try {
      response = await fetch(path, { ...options, headers: token ? { Authorization: `Bearer ${token}` } : {} });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refusal(0, "The service cannot be reached.");
    }
    if (response.status !== 401) return response;
    if (sessionStorage.getItem("slimprompt-token") === token) await askToken(token ? text ?? "The token has changed." : null);
  }
}

let asking = null;
function askToken(text) {
  asking ??= new Promise((done) => {
    const dialog = byId("token-dialog");
    byId("token-text").textContent = text ?? "It is kept until this tab is closed.";
    byId("token").value = "";
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem("slimprompt-token", byId("token").value.trim());
      dialog.close();
    };
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => { asking = null; done(); };
    dialog.showModal();
  });
  return asking;
}

async function answerOf(response) {
  if (response.ok) return response.json();
  let detail = "";
  try { detail = (await response.json()).detail; } catch { /* not JSON, such as the page of a proxy */ }
  throw new Refusal(response.status, typeof detail === "string" && detail ? detail : `The service answered with status ${response.status}.`);
}

async function ask(item, signal) {
  for (let tries = 1; ; tries++) {
    const form = new FormData();
    form.append("images", item.upload, item.file.name || "image");
    form.append("model", model().name);
    if (!ownNames()) form.append("classes", names().join("\n"));
    form.append("top", Math.max(names().length, 1));
    form.append("min_confidence", byId("confidence").value / 100);
    if (comparing()) form.append("zero_shot", "true");
    const response = await fetchWithToken("predict", { method: "POST", body: form, signal });
    if (tries < TRIES && (response.status === 429 || response.status === 503)) {
      showError(item, "The service is busy; trying again …");
      await pause(Number(response.headers.get("Retry-After")) || 1);
      signal.throwIfAborted();
      continue;
    }
    return answerOf(response);
  }
}

const comparing = () => byId("compare").checked && model().method !== "zero-shot";

// Images

async function reduced(file) {
  let bitmap;
  try { bitmap = await createImageBitmap(file); } catch { return file; }  // the service says what is wrong with it
  const scale = LONGEST / Math.max(bitmap.width, bitmap.height);
  const known = /^image\/(jpeg|png|webp|gif|bmp)$/.test(file.type);
  if (scale >= 1 && known) return file;
  const canvas = make("canvas", { width: Math.max(1, Math.round(bitmap.width * Math.min(scale, 1))), height: Math.max(1, Math.round(bitmap.height * Math.min(scale, 1))) });
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";  // behind transparent pixels, as the service does
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return (await new Promise((done) => { canvas.toBlob(done, "image/jpeg", 0.93); })) ?? file;
}

async function addFiles(files) {
  const added = [...files].slice(0, MOST - state.items.length).map((file) => ({ file, expanded: false }));
  if (!added.length) {
    if (files.length) byId("status").textContent = `At most ${MOST} images fit on this page.`;
    return;
  }
  for (const item of added.reverse()) {
    item.card = makeCard(item);
    state.items.unshift(item);
    byId("results").prepend(item.card);
  }
  byId("clear").hidden = false;
  await Promise.all(added.map(async (item) => { item.upload = await reduced(item.file); }));
  update(added);
}

function makeCard(item) {
  const url = URL.createObjectURL(item.file);
  const image = make("img", { src: url, alt: "" });
  image.addEventListener("load", () => URL.revokeObjectURL(url));
  image.addEventListener("error", () => { URL.revokeObjectURL(url); image.replaceWith(make("div", { className: "no-image" })); });
  const name = item.file.name || "image";
  const remove = make("button", { type: "button", className: "quiet", textContent: "Remove" });
  remove.setAttribute("aria-label", `Remove ${name}`);
  remove.addEventListener("click", () => removeItem(item));
  item.title = make("h3", { textContent: "…" });
  item.second = make("p", { className: "second" });
  item.error = make("p", { className: "wrong" });
  item.details = make("div", { className: "wide" });
  return make("li", {},
    make("div", {}, image, make("p", { className: "file", textContent: name })),
    make("div", { className: "body" }, make("div", {}, make("div", { className: "head" }, item.title, remove), item.second, item.error), item.details));
}

function removeItem(item) {
  const next = (item.card.nextElementSibling ?? item.card.previousElementSibling)?.querySelector("button");
  state.items = state.items.filter((one) => one !== item);
  item.card.remove();
  byId("clear").hidden = !state.items.length;
  (next ?? byId("files")).focus();
}

// Answers

function update(items = state.items) {
  clearTimeout(state.timer);
  if (items === state.items || !state.run) {
    state.run?.abort();
    state.run = new AbortController();
  }
  if (!model() || !items.length) return;
  byId("names-error").textContent = "";
  byId("names").removeAttribute("aria-invalid");
  if (!names().length) {
    showNamesError("Give at least one class name.");
    items.forEach(showStale);
    return;
  }
  const waiting = items.filter((item) => item.upload);
  for (const item of waiting) {
    item.card.setAttribute("aria-busy", "true");
    item.card.classList.remove("stale");
  }
  const { signal } = state.run;
  const count = waiting.length;
  const work = async () => { for (let item = waiting.shift(); item; item = waiting.shift()) await answer(item, signal); };
  Promise.all(Array.from({ length: AT_ONCE }, work)).then(() => { if (!signal.aborted) announce(items, count); });
}

async function answer(item, signal) {
  if (item.upload.size > state.limits.max_upload_mb * 1e6) {
    showError(item, `This file has ${(item.upload.size / 1e6).toFixed(1)} MB; at most ${state.limits.max_upload_mb} MB can be sent.`);
    return;
  }
  try {
    const result = await ask(item, signal);
    item.result = { row: result.predictions[0], zeroShot: result.zero_shot?.[0] };
    byId("problem").hidden = true;
    showResult(item);
  } catch (error) {
    if (signal.aborted) return;
    item.result = null;
    if (error.status === 422) { showNamesError(error.message); showStale(item); return; }
    if (error.status === 0) showProblem(error.message);
    showError(item, error.message);
  }
}

function announce(items, count) {
  const answered = state.items.filter((item) => item.result && items.includes(item));
  const parts = answered.slice(0, 3).map(({ file, result }) => `${file.name || "image"}: ${result.row.answer}`);
  const failed = count - answered.length;
  byId("status").textContent = [
    answered.length ? `${plural(answered.length, "image", "images")} answered. ${parts.join("; ")}${answered.length > 3 ? "; …" : "."}` : "",
    failed ? `${plural(failed, "image", "images")} without an answer.` : "",
  ].join(" ").trim();
}

function showStale(item) {  // an answer that does not belong to the names beside it
  item.card.setAttribute("aria-busy", "false");
  item.card.classList.toggle("stale", item.details.hasChildNodes());
}

function showNamesError(message) {
  byId("names-error").textContent = message;
  byId("names").setAttribute("aria-invalid", "true");
}

function showProblem(message) {
  byId("problem").querySelector("span").textContent = message;
  byId("problem").hidden = false;
}

function showError(item, message) {
  item.card.setAttribute("aria-busy", "false");
  item.title.textContent = "No answer";
  item.second.textContent = "";
  item.error.textContent = message;
  item.details.replaceChildren();
}

function showResult(item) {
  const { row, zeroShot } = item.result;
  const best = row.classes[0];
  item.card.setAttribute("aria-busy", "false");
  item.error.textContent = "";
  item.title.replaceChildren(...named(row.answer), " ");
  if (row.answer === best.name) item.title.append(make("span", { className: "share", textContent: percent(best.probability) }));
  const other = zeroShot && zeroShot.answer !== best.name ? `Zero-shot says ${zeroShot.answer}. ` : "";
  const below = row.answer === best.name ? "" : `Best: ${best.name}, ${percent(best.probability)}. `;
  item.second.replaceChildren(...named(`${below}${other}Concept match ${row.concept_match.toFixed(3)}`));
  item.details.replaceChildren(makeTable(item));
  if (row.classes.length > SHOWN) item.details.append(makeToggle(item));
}

function makeToggle(item) {
  const total = item.result.row.classes.length;
  const toggle = make("button", { type: "button", className: "quiet", textContent: item.expanded ? "Fewer classes" : `All ${total} classes` });
  toggle.setAttribute("aria-expanded", String(item.expanded));
  toggle.addEventListener("click", () => {
    item.expanded = !item.expanded;
    showResult(item);
    item.details.querySelector("button").focus();
  });
  return toggle;
}

function makeTable(item) {
  const { row, zeroShot } = item.result;
  const other = new Map(zeroShot?.classes.map((one) => [one.name, one.probability]));
  const shown = item.expanded ? row.classes : row.classes.filter((one, place) => place < SHOWN || one.name === zeroShot?.classes[0].name);
  const learned = model().method === "prompt" ? "learned prompt" : model().method;
  const titles = ["class", learned, ...(zeroShot ? ["zero-shot"] : [])].map((text) => make("th", { scope: "col", role: "columnheader", textContent: text }));
  const rows = shown.map(({ name, probability }) => make("tr", { role: "row", className: name === row.answer ? "answer" : "" },
    make("th", { scope: "row", role: "rowheader" }, ...named(name)),
    makeBar(probability, ""),
    ...(zeroShot ? [makeBar(other.get(name) ?? 0, "zero-shot")] : [])));
  // The roles keep it a table for screen readers where the style sheet of small screens makes it a grid.
  return make("table", { role: "table" },
    make("caption", { className: "hidden-label", textContent: `Probabilities of ${item.file.name || "image"}` }),
    make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...titles)), make("tbody", { role: "rowgroup" }, ...rows));
}

function makeBar(share, kind) {
  const line = make("i");
  line.style.setProperty("--p", 100 * share);
  line.setAttribute("aria-hidden", "true");
  return make("td", { role: "cell" }, make("div", { className: `bar ${kind}` }, line, make("span", { textContent: percent(share) })));
}

// Controls

function showModel() {
  const one = model();
  byId("facts").textContent = `${state.models.length > 1 ? `${one.name}, a` : "A"} ${one.method === "prompt" ? "learned text prompt" : `${one.method} classifier`} on ${one.backbone}, ${plural(one.classes.length, "class", "classes")}.`;
  byId("names").value = one.classes.join("\n");
  byId("names-note").textContent = one.takes_new_names ? "Any names can be used: edit them and see the answers change."
    : "This model learned these classes from their images. Some can be left out; new names need a prompt or zero-shot.";
  byId("compare-field").hidden = one.method === "zero-shot";
  byId("reset").hidden = true;
}

function namesChanged() {
  byId("reset").hidden = ownNames();
  clearTimeout(state.timer);
  state.timer = setTimeout(update, DELAY);
}

async function start() {
  try {
    const facts = await answerOf(await fetchWithToken("classes"));
    Object.assign(state, facts);
    byId("model").replaceChildren(...facts.models.map((one) => make("option", { value: one.name, textContent: one.name })));
    byId("model-field").hidden = facts.models.length < 2;
    byId("problem").hidden = true;
    showModel();
    update();
  } catch (error) {
    byId("facts").textContent = "";
    showProblem(error.message);
  }
}

for (const id of ["files", "photo"]) {
  byId(id).addEventListener("change", (event) => { addFiles(event.target.files).then(() => { event.target.value = ""; }); });
}
byId("problem").querySelector("button").addEventListener("click", () => { if (state.models.length) update(); else start(); });
byId("model").addEventListener("change", () => { showModel(); update(); });
byId("names").addEventListener("input", namesChanged);
byId("reset").addEventListener("click", () => { showModel(); update(); byId("names").focus(); });
byId("compare").addEventListener("change", () => update());
byId("confidence").addEventListener("input", () => {
  byId("confidence-value").textContent = `${byId("confidence").value} %`;
  clearTimeout(state.timer);
  state.timer = setTimeout(update, DELAY);
});
byId("clear").addEventListener("click", () => {
  state.run?.abort();
  state.run = null;
  for (const item of [...state.items]) removeItem(item);
  byId("status").textContent = "All images were removed.";
});
addEventListener("paste", (event) => { if (event.clipboardData?.files.length) { event.preventDefault(); addFiles(event.clipboardData.files); } });
for (const kind of ["dragenter", "dragover"]) {
  addEventListener(kind, (event) => { if (event.dataTransfer?.types.includes("Files")) { event.preventDefault(); byId("drop").classList.add("over"); } });
}
addEventListener("dragleave", (event) => { if (!event.relatedTarget) byId("drop").classList.remove("over"); });
addEventListener("drop", (event) => {
  byId("drop").classList.remove("over");
  if (event.dataTransfer?.files.length) { event.preventDefault(); addFiles(event.dataTransfer.files); }
});
start();
