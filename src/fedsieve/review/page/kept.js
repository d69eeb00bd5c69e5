// In place of a server: rows that are in the page, and decisions that the browser keeps until they are downloaded.

import { at, trouble } from "./dom.js";
import { sha256 } from "./sha256.js";
import { named } from "./store.js";

const held = JSON.parse(at("review-data").textContent);
const KEY = `fedsieve review ${held.judged.labels} ${held.overview.owner}`;
const FIRST = "0".repeat(64);
const WHO = "fedsieve reader";
const LOST = "This browser keeps nothing for pages from files: download the decisions before you close the page.";

let lines = remembered(KEY, "[]", JSON.parse);

function remembered(key, otherwise, read) {
  try {
    return read(localStorage.getItem(key) ?? otherwise);
  } catch {
    return read(otherwise);
  }
}

function remember(key, text) {
  try {
    localStorage.setItem(key, text);
  } catch {
    trouble(LOST);
  }
}

/** By sample, the decisions that were not taken back, the last on top. */
function stacked() {
  const stacks = new Map();
  for (const [number, text] of lines.entries()) {
    const entry = { ...JSON.parse(text), number };
    const stack = stacks.get(entry.sample.where) ?? [];
    if (entry.action === "undo") stack.pop();
    else stack.push(entry);
    stacks.set(entry.sample.where, stack);
  }
  return stacks;
}

/** What stands, in the order of the lines: row, action, class. */
function standing() {
  const { overview, samples } = held;
  const rows = new Map(Object.values(samples).map((sample) => [sample.where, sample.row]));
  const tops = [...stacked().values()].filter((stack) => stack.length).map((stack) => stack.at(-1));
  return tops.sort((a, b) => a.number - b.number).map(({ sample, action, after }) => (
    [rows.get(sample.where), action, after === null ? null : overview.classes.indexOf(after)]));
}

/** Who decides; who takes something back does it in the name of whose decision it was. */
function reader(where, action) {
  if (action === "undo") return stacked().get(where).at(-1).who;
  return at("who").value.trim() || held.overview.reader;
}

function line({ row, action, choice = null }) {
  const { given, suggested, classes, owner } = held.overview;
  const { where } = held.samples[row];
  const label = { keep: given[row], take: suggested[row], other: choice }[action] ?? null;
  return JSON.stringify({
    sample: { owner, where },
    before: classes[given[row]],
    after: label === null ? null : classes[label],
    action: named(held.overview, row, action, label),
    who: reader(where, action),
    when: new Date().toISOString(),
    judged: held.judged,
    previous: lines.length ? sha256(lines.at(-1)) : FIRST,
  });
}

at("who").value = remembered(WHO, held.overview.reader, String);
at("who").addEventListener("input", () => remember(WHO, at("who").value));
at("who-label").hidden = false;

export const backend = {
  overview: async () => ({ ...held.overview, decided: standing() }),
  sample: async (row) => held.samples[row],
  samples: async (rows) => rows.map((row) => held.samples[row]),
  estimates: null,
  image: (row, side) => held.images[row][side] ?? held.images[row].small,
  decide: async (wishes) => {
    for (const wish of wishes) lines.push(line(wish));
    remember(KEY, JSON.stringify(lines));
  },
  download: () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(lines.map((text) => `${text}\n`), { type: "application/jsonl" }));
    link.download = "decisions.jsonl";
    link.click();
    URL.revokeObjectURL(link.href);
  },
};
