// One row at a time, with the evidence for both of its classes.

import { announce, at, made } from "./dom.js";
import { cellsTable, crisp, picture, tileContent } from "./shown.js";
import { NONE } from "./store.js";

const AHEAD = 3;
const WAIT = 700;

export class Single {
  constructor(store, backend) {
    this.store = store;
    this.backend = backend;
    this.kept = new Map();
    for (const [number, name] of store.classes.slice(0, 10).entries()) {
      at("classes").append(made("button", { type: "button", "data-class": `${number}` }, made("kbd", {}, `${(number + 1) % 10}`), ` ${name}`));
    }
    at("classes").hidden = store.classes.length > 10;
  }

  draw() {
    const { store } = this;
    const row = store.row;
    const [given, suggested] = [store.given[row], store.suggested[row]];
    at("given-name").textContent = store.name(given);
    at("suggested-name").textContent = store.name(suggested);
    at("take").disabled = suggested === NONE;
    at("about").textContent = `${store.place + 1} of ${store.view.length.toLocaleString("en")} · score ${store.score[row].toFixed(3)} (0 is surely wrong)`;
    const verdict = store.verdict(row);
    if (verdict) at("about").append(" · ", made("span", { class: "verdict" }, verdict));
    for (const name of ["keep", "take", "other", "unsure", "exclude"]) {
      at(name).setAttribute("aria-pressed", `${store.decided.get(row)?.action === name}`);
    }
    this.drawSample(row);
    announce(`${store.place + 1} of ${store.view.length}. Given ${store.name(given)}, suggested ${store.name(suggested)}, `
      + `score ${store.score[row].toFixed(2)}.${verdict ? ` Decided: ${verdict}.` : ""}`);
    for (let step = 1; step <= AHEAD; step += 1) this.prefetch(store.view[store.place + step]);
  }

  drawSample(row) {
    at("single").className = `single ${this.store.kind}`;
    const frame = at("shown");
    frame.className = `shown ${this.store.kind}`;
    if (this.store.kind === "image") {
      frame.replaceChildren(crisp(picture(this.backend, row, "large", "The sample")));
    } else {
      frame.replaceChildren();
    }
    at("where").textContent = "";
    at("twin").hidden = true;
    at("given-evidence").replaceChildren();
    at("suggested-evidence").replaceChildren();
    this.load(row).then((sample) => {
      if (row === this.store.row) this.fill(row, sample);
    }, (problem) => {
      at("where").textContent = problem.message;
    });
  }

  fill(row, sample) {
    const { store } = this;
    at("where").textContent = sample.where;
    if (store.kind === "text") at("shown").replaceChildren(made("blockquote", {}, sample.text));
    if (store.kind === "table") {
      const near = (name) => (sample.evidence?.[name] ?? []).slice(0, 2).map((one) => ({ ...one, name, heading: store.name(store[name][row]) }));
      const beside = [...near("given"), ...near("suggested")];
      at("shown").replaceChildren(cellsTable(sample, beside));
    }
    this.twin(sample);
    this.evidence("given", store.given[row], sample);
    this.evidence("suggested", store.suggested[row], sample);
    if (sample.evidence === null) {
      this.kept.delete(row);
      setTimeout(() => row === store.row && this.load(row).then((later) => row === store.row && this.fill(row, later)), WAIT);
    }
  }

  /** A row that is nearly the same and bears another label: one of the two is wrong. */
  twin({ twin }) {
    if (!twin) return;
    const said = `nearly the same as ${twin.where}, which is labelled ${this.store.name(twin.label)}`;
    at("twin").replaceChildren(made("p", {}, said), made("figure", { title: twin.where }, tileContent(this.backend, this.store.kind, twin)));
    if (at("twin").hidden) announce(`${at("live").textContent} It is ${said}.`);
    at("twin").hidden = false;
  }

  evidence(name, label, sample) {
    const place = at(`${name}-evidence`);
    const found = sample.evidence === null ? [] : sample.evidence[name];
    place.hidden = this.store.kind === "table" || label === NONE || !found;
    if (place.hidden) return;
    const believed = `most like it, believed to be ${this.store.name(label)}`;
    place.setAttribute("aria-label", believed);
    if (sample.evidence === null) {
      place.replaceChildren(made("p", {}, "looking for similar rows …"));
    } else if (!found.length) {
      place.replaceChildren(made("p", {}, `no row is believed to be ${this.store.name(label)}`));
    } else {
      const figures = found.map((near) => made("figure", { title: near.where }, tileContent(this.backend, this.store.kind, near)));
      place.replaceChildren(made("p", {}, believed), ...figures);
    }
  }

  load(row) {
    if (!this.kept.has(row)) {
      const found = this.backend.sample(row);
      this.kept.set(row, found);
      found.catch(() => this.kept.delete(row));
      if (this.kept.size > 50) this.kept.delete(this.kept.keys().next().value);
    }
    return this.kept.get(row);
  }

  prefetch(row) {
    if (row === undefined) return;
    if (this.store.kind === "image") new Image().src = this.backend.image(row, "large");
    this.load(row).catch(() => {});
  }
}
