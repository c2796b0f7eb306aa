// Puts what the server says in its place, once a second. The server has computed all of it; nothing is decided here but
// how wide things are, and which lines of the output are shown.
"use strict";

const MOST_LINES = 2000;
const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);

/** Set an element's text if it is another one: what does not change is not drawn again, and keeps the selection. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Make an element with a class, a text and children. */
function make(tag, className = "", text = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

function shape(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

const drawn = new Map();

/** Call `draw` if the data is not what it was drawn from last time. */
function ifChanged(key, data, draw) {
  const text = JSON.stringify(data);
  if (drawn.get(key) === text) return;
  drawn.set(key, text);
  draw(data);
}

function bar(className) {
  return make("div", `bar ${className}`, "", make("i"));
}

function fill(element, part) {
  element.firstElementChild.style.width = `${(part * 100).toFixed(1)}%`;
}

// --- jobs and cluster ---------------------------------------------------------------------------------------------

function drawJobs(jobs) {
  at("no-jobs").hidden = jobs.length > 0;
  at("jobs").replaceChildren(...jobs.map((job) => {
    const link = make("a", "", job.name);
    link.href = `#job=${encodeURIComponent(job.name)}`;
    const state = make("span", "pill", job.state);
    state.dataset.tone = job.tone;
    const facts = [job.workers === "-" ? "" : `${job.workers} workers`, job.since].filter(Boolean).join(" · ");
    const item = make("li", "", "", link, " ", state, make("div", "quiet", facts));
    if (job.reason) item.append(make("div", "", job.reason));
    if (job.command) item.append(make("div", "quiet", "", make("code", "", job.command)));
    return item;
  }));
}

function drawCluster(cluster) {
  at("cluster").hidden = !cluster;
  if (!cluster) return;
  say(at("cluster-summary"), `${cluster.counts} · policy ${cluster.policy}`);
  at("cluster-hosts").replaceChildren(...cluster.hosts.map((host) => {
    const full = bar("speed");
    fill(full, host.full);
    const title = make("b", "", host.name);
    const facts = `${host.used} of ${host.slots} slots used · ${host.state}${host.type ? ` · ${host.type}` : ""}`;
    return make("li", "", "", title, make("div", "quiet", facts), full, make("div", "", host.jobs.join(", ")));
  }));
}

// --- ranks --------------------------------------------------------------------------------------------------------

let chosen = "";  // The worker whose output is shown; "" is all.
const tiles = new Map();

function tileOf(worker) {
  let tile = tiles.get(worker.worker);
  if (!tile) {
    tile = make("button", "tile", "", make("span", "word"), make("b"), make("span", "numbers"), bar("speed"), bar("wait"));
    tile.type = "button";
    tile.addEventListener("click", () => choose(chosen === String(worker.worker) ? "" : String(worker.worker)));
    tiles.set(worker.worker, tile);
  }
  const [word, title, numbers, speed, wait] = tile.children;
  tile.classList.toggle("slow", worker.slow);
  tile.setAttribute("aria-pressed", String(chosen === String(worker.worker)));
  if (tile.getAttribute("aria-label") !== worker.label) {
    tile.setAttribute("aria-label", worker.label);
    tile.title = worker.label + (worker.stalled_at ? `; last stall at ${worker.stalled_at}` : "");
  }
  say(word, worker.state);
  say(title, at("hosts").classList.contains("dense") && worker.rank !== null ? String(worker.rank) : worker.title);
  say(numbers, `${worker.rate}/s · waits ${worker.waiting_text}`);
  fill(speed, worker.speed);
  fill(wait, worker.waiting);
  return tile;
}

/** Make these the children of an element, and touch none that is in its place already. */
function place(parent, children) {
  children.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] || null);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}

const hosts = new Map();

function drawHosts(job) {
  at("hosts").classList.toggle("dense", job.dense);
  place(at("hosts"), job.hosts.map((host) => {
    if (!hosts.has(host.name)) hosts.set(host.name, make("div", "host", "", make("h3"), make("div", "tiles")));
    const element = hosts.get(host.name);
    const count = host.workers.length;
    say(element.children[0], `${host.name} · ${count} ${count === 1 ? "worker" : "workers"}`);
    place(element.children[1], host.workers.map(tileOf));
    return element;
  }));
  const gone = job.gone.map((each) => `worker ${each.worker} on ${each.host} ${each.end}`);
  say(at("gone"), gone.length ? `Gone: ${gone.join("; ")}` : "");
  const options = job.hosts.flatMap((host) => host.workers.map((each) => [String(each.worker), each.title]))
    .concat(job.gone.map((each) => [String(each.worker), `worker ${each.worker} (gone)`]));
  ifChanged("options", options, () => {
    at("of").replaceChildren(new Option("all ranks", ""), new Option("the launcher", "launcher"),
      ...options.map(([value, text]) => new Option(text, value)));
    at("of").value = chosen;
    if (at("of").value !== chosen) choose("");
  });
}

function choose(worker) {
  chosen = worker;
  at("of").value = worker;
  for (const [number, tile] of tiles) tile.setAttribute("aria-pressed", String(String(number) === worker));
  showOutput();
}

// --- chart and timeline -------------------------------------------------------------------------------------------

const MARKS = {
  loss: (x, y) => `M${x - 6} ${y - 16}h12l-6 11z`,
  join: (x, y) => `M${x - 6} ${y - 5}h12l-6 -11z`,
  stall: (x, y) => `M${x - 5} ${y - 11}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0`,
  finish: (x, y) => `M${x - 5} ${y - 15}h10v10h-10z`,
};

function drawChart(chart) {
  at("chart-section").hidden = !chart;
  if (!chart) return;
  const [width, height, left, top] = [Math.max(at("chart").clientWidth, 200), 150, 28, 22];
  const x = (part) => left + part * (width - left - 8);
  const y = (part) => height - 22 - part * (height - 22 - top);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": chart.label });
  svg.append(shape("line", { class: "axis", x1: left, x2: width - 8, y1: y(0), y2: y(0) }));
  svg.append(shape("line", { class: "axis", x1: left, x2: width - 8, y1: y(1), y2: y(1) }));
  svg.append(shape("text", { x: left - 6, y: y(0) + 4, "text-anchor": "end" }, "0"));
  svg.append(shape("text", { x: left - 6, y: y(1) + 4, "text-anchor": "end" }, String(chart.largest)));
  const most = Math.max(1, Math.floor(width / 110));
  const every = Math.ceil(chart.ticks.length / most);
  chart.ticks.filter((_, index) => index % every === 0).forEach((tick) => {
    const anchor = tick.x > .93 ? "end" : tick.x < .04 ? "start" : "middle";
    svg.append(shape("text", { x: x(tick.x), y: height - 5, "text-anchor": anchor }, tick.text));
  });
  const points = chart.points.map(([px, py]) => `${x(px).toFixed(1)} ${y(py).toFixed(1)}`);
  const first = chart.points[0];
  svg.append(shape("path", { class: "area", d: `M${x(first[0])} ${y(0)}L${points.join("L")}V${y(0)}z` }));
  svg.append(shape("path", { class: "line", d: `M${points.join("L")}` }));
  for (const mark of chart.marks) {
    const element = shape("path", { class: `m-${mark.kind}`, d: MARKS[mark.kind](x(mark.x), y(mark.y)) });
    element.append(shape("title", {}, mark.text));
    svg.append(element);
  }
  at("chart").replaceChildren(svg);
}

function drawTimeline(timeline) {
  say(at("timeline-note"), timeline.note || `The last ${timeline.seconds} s: waiting for others, and moving data.`
    + (timeline.left_out ? ` ${timeline.left_out} more ranks are not shown.` : ""));
  if (timeline.note) return at("timeline").replaceChildren();
  const [width, row, left] = [Math.max(at("timeline").clientWidth, 200), 20, 58];
  const height = timeline.lanes.length * row;
  const label = timeline.lanes.map((lane) => `rank ${lane.rank}: waits ${lane.waiting}, moves ${lane.moving}`).join("; ");
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  timeline.lanes.forEach((lane, index) => {
    const y = index * row + 3;
    svg.append(shape("text", { x: 0, y: y + 11 }, `rank ${lane.rank}`));
    svg.append(shape("rect", { class: "lane", x: left, y, width: width - left, height: row - 6, rx: 3 }));
    for (const [begin, end, waits] of lane.spans) {
      const x = left + begin * (width - left);
      const wide = Math.max(.6, (end - begin) * (width - left));
      svg.append(shape("rect", { class: waits ? "waits" : "moves", x, y, width: wide, height: row - 6 }));
    }
  });
  at("timeline").replaceChildren(svg);
}

// --- what happened, output -----------------------------------------------------------------------------------------

function drawRows(id, rows) {
  at(id).replaceChildren(...rows.map((row) => make("li", "", "",
    make("time", "", row.time), make("span", `kind kind-${row.kind}`, row.kind), make("span", "", row.text))));
}

let lines = [];
let whose = new Map();

function lineOf(line, wanted) {
  const who = line.worker === null ? "launcher" : whose.get(line.worker) || `worker ${line.worker}`;
  const kind = line.worker === null ? "launcher" : line.error ? "err" : "";
  const element = make("span", kind, "", make("span", "who", `${who} │ `));
  const found = wanted ? line.text.toLowerCase().indexOf(wanted) : -1;
  if (found < 0) element.append(line.text);
  else element.append(line.text.slice(0, found), make("mark", "", line.text.slice(found, found + wanted.length)),
    line.text.slice(found + wanted.length));
  return element;
}

function isShown(line, wanted) {
  const of = chosen === "" || (chosen === "launcher" ? line.worker === null : String(line.worker) === chosen);
  return of && (!wanted || line.text.toLowerCase().includes(wanted));
}

function showOutput(added = null) {
  const output = at("output");
  const wanted = at("search").value.toLowerCase();
  const shown = (added || lines).filter((line) => isShown(line, wanted)).map((line) => lineOf(line, wanted));
  if (added) output.append(...shown);
  else output.replaceChildren(...shown);
  while (output.children.length > MOST_LINES) output.firstElementChild.remove();
  say(at("found"), wanted || chosen ? `${output.children.length} of ${lines.length} lines` : `${lines.length} lines`);
  if (at("follow").checked) output.scrollTop = output.scrollHeight;
}

function takeLines(added, first) {
  if (!added.length) return;
  const last = lines.length ? lines[lines.length - 1].n : -1;
  if (added[0].n <= last) lines = [];  // Another server counts anew.
  const before = lines.length;
  lines = lines.filter((line) => line.n >= first);
  const again = !lines.length || lines.length < before;
  lines.push(...added);
  lines = lines.slice(-MOST_LINES);
  showOutput(again ? null : added);
}

// --- the page -------------------------------------------------------------------------------------------------------

function drawJob(job) {
  say(at("name"), job.name);
  say(at("state"), job.state);
  at("state").dataset.tone = job.tone;
  say(at("sentence"), job.sentence);
  say(at("command").firstElementChild, job.command);
  ifChanged("facts", job.facts, (facts) => at("facts").replaceChildren(
    ...facts.map((fact) => make("div", "", "", make("dt", "", fact.name), make("dd", "", fact.value)))));
  whose = new Map(job.hosts.flatMap((host) => host.workers.map((each) => [each.worker, each.title])));
  drawHosts(job);
  ifChanged("chart", [job.chart, at("chart").clientWidth], ([chart]) => drawChart(chart));
  ifChanged("timeline", [job.timeline, at("timeline").clientWidth], ([timeline]) => drawTimeline(timeline));
  at("stalls-section").hidden = job.stalls.length === 0;
  ifChanged("stalls", job.stalls, (rows) => drawRows("stalls", rows));
  ifChanged("moments", job.moments, (rows) => drawRows("moments", rows));
  takeLines(job.lines, job.lines_first);
}

function draw(model) {
  const wanted = current;
  const error = model.error || (model.job && model.job.error) || (wanted && !model.job ? `There is no job ${wanted}.` : "");
  at("error").hidden = !error;
  say(at("error"), error);
  at("overview").hidden = Boolean(wanted);
  const job = model.job && model.job.name ? model.job : null;
  at("job").hidden = !job || !wanted;
  say(at("crumb"), wanted ? `jobs › ${wanted}` : "jobs");
  document.title = wanted ? `${wanted} · farandole` : "farandole";
  if (!wanted) {
    ifChanged("jobs", model.jobs || [], drawJobs);
    ifChanged("cluster", model.cluster, drawCluster);
  } else if (job) {
    drawJob(job);
  }
}

function jobOf(hash) {
  return hash.startsWith("#job=") ? decodeURIComponent(hash.slice(5)) : "";
}

let stream = null;
let current = "";  // The job that is shown; "" is the list.
let firstShown = false;

function listen() {
  if (stream) stream.close();
  drawn.clear();
  tiles.clear();
  hosts.clear();
  lines = [];
  chosen = "";
  at("output").replaceChildren();
  const wanted = current = jobOf(location.hash);
  stream = new EventSource(wanted ? `/events?job=${encodeURIComponent(wanted)}` : "/events");
  stream.onopen = () => { at("live").dataset.live = "good"; say(at("live"), "live"); };
  stream.onerror = () => { at("live").dataset.live = "waits"; say(at("live"), "connecting again"); };
  stream.onmessage = (event) => {
    const model = JSON.parse(event.data);
    if (!firstShown && model.first && !location.hash) location.replace(`#job=${encodeURIComponent(model.first)}`);
    firstShown = true;
    draw(model);
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
  };
}

addEventListener("hashchange", () => { if (location.hash !== "#main") { listen(); at("main").focus(); } });
addEventListener("DOMContentLoaded", () => {
  at("search").addEventListener("input", () => showOutput());
  at("of").addEventListener("change", () => choose(at("of").value));
  at("follow").addEventListener("change", () => showOutput());
  listen();
});
