// From opening the page to the last decision.

import { backend } from "./api.js";
import { Choose } from "./choose.js";
import { announce, at, made, trouble } from "./dom.js";
import { Many } from "./many.js";
import { drawEstimates, drawProgress, Filter } from "./panels.js";
import { Single } from "./single.js";
import { Store } from "./store.js";

const ACTIONS = { k: "keep", t: "take", u: "unsure", x: "exclude" };
const ARROWS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"];
const EVERY = 5;

class Review {
  constructor(overview) {
    this.begun = Date.now();
    this.store = new Store(overview);
    this.store.session = 0;
    this.single = new Single(this.store, backend);
    this.many = new Many(this.store, backend);
    this.choose = new Choose(overview.classes, (number) => this.decide("other", number));
    this.filter = new Filter(this.store, () => this.draw());
    this.grid = false;
    at("title").textContent = `Labels of ${overview.owner}`;
    document.title = `${overview.owner}: FedSieve review`;
    at("notes").append(...overview.notes.map((note) => made("p", { class: "warning", role: "note" }, note)));
    this.store.place = -1;
    this.store.advance();
    this.listen();
    this.draw();
    this.estimate();
    if (overview.minutes !== null) setInterval(() => drawProgress(this.store, this.begun), 1000);
  }

  listen() {
    for (const name of ["keep", "take", "unsure", "exclude"]) at(name).addEventListener("click", () => this.decide(name));
    at("other").addEventListener("click", () => this.choose.open());
    at("undo").addEventListener("click", () => this.undo());
    at("back").addEventListener("click", () => this.go(-1));
    at("next").addEventListener("click", () => this.go(1));
    at("mode").addEventListener("click", () => this.turn());
    at("page-back").addEventListener("click", () => this.many.turn(-1));
    at("page-next").addEventListener("click", () => this.many.turn(1));
    at("open-help").addEventListener("click", () => at("help").showModal());
    at("classes").addEventListener("click", (event) => {
      const button = event.target.closest("[data-class]");
      if (button) this.decide("other", Number(button.dataset.class));
    });
    for (const button of at("many").querySelectorAll("[data-do]")) {
      button.addEventListener("click", () => this.act(button.dataset.do));
    }
    if (backend.download) {
      at("download").hidden = false;
      at("download").addEventListener("click", () => backend.download());
    }
    document.addEventListener("keydown", (event) => this.key(event));
  }

  draw() {
    const nothing = this.store.view.length === 0;
    at("empty").hidden = !nothing;
    at("single").hidden = nothing || this.grid;
    at("many").hidden = nothing || !this.grid;
    at("mode").replaceChildren(this.grid ? "One by one " : "Many at once ", made("kbd", {}, "G"));
    drawProgress(this.store, this.begun);
    if (!nothing) (this.grid ? this.many : this.single).draw();
  }

  act(name) {
    if (name === "undo") this.undo();
    else if (name === "other") this.choose.open();
    else this.decide(name);
  }

  decide(action, choice = null) {
    if (!this.store.view.length) return;
    const rows = this.grid ? this.many.targets() : [this.store.row];
    const wishes = this.store.decide(rows, action, choice);
    if (!wishes.length) {
      announce("There is no suggestion to take.");
      return;
    }
    this.store.session += wishes.length;
    const written = backend.decide(wishes);
    if (this.grid) {
      this.many.chosen.clear();
      this.many.mark();
      announce(`${wishes.length} rows: ${this.store.verdict(wishes[0].row)}`);
      if (rows.length === 1) this.many.step("ArrowRight");
    } else {
      if (!this.store.filter.open) this.store.advance();
      else this.store.refresh();
      this.single.draw();
    }
    drawProgress(this.store, this.begun);
    if (this.store.session % EVERY === 0 || wishes.length > 1) written.then(() => this.estimate());
  }

  undo() {
    const wishes = this.store.undo();
    if (!wishes.length) {
      announce("There is nothing to undo.");
      return;
    }
    backend.decide(wishes).then(() => this.estimate());
    this.store.refresh();
    const place = this.store.view.indexOf(wishes[0].row);
    if (place >= 0) this.store.place = place;
    this.draw();
    announce(`Taken back${wishes.length > 1 ? ` on ${wishes.length} rows` : ""}.`);
  }

  go(steps) {
    this.store.move(steps);
    this.draw();
  }

  turn() {
    this.grid = !this.grid;
    this.draw();
    if (!this.grid) at("main").focus();
  }

  async estimate() {
    if (!backend.estimates) return;
    try {
      drawEstimates(await backend.estimates());
    } catch (problem) {
      trouble(problem.message);
    }
  }

  /** Single keys, unless somebody types, a dialogue is open, or they are switched off. */
  key(event) {
    const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
    if (typing || document.querySelector("dialog[open]") || event.altKey || event.metaKey) return;
    if (event.ctrlKey ? event.key !== "z" : !at("single-keys").checked && event.key.length === 1 && event.key !== "?") return;
    if (this.pressed(event.key.length === 1 ? event.key.toLowerCase() : event.key, event.target)) event.preventDefault();
  }

  pressed(key, target) {
    const digit = "1234567890".indexOf(key);
    if (ACTIONS[key]) this.decide(ACTIONS[key]);
    else if (key === "o") this.choose.open();
    else if (key === "z") this.undo();
    else if (key === "g") this.turn();
    else if (key === "f") this.filter.toggle();
    else if (key === "?") at("help").showModal();
    else if (key.length === 1 && digit >= 0 && digit < this.store.classes.length) this.decide("other", digit);
    else if (this.grid) return this.pressedAmongMany(key, target);
    else if (key === "ArrowLeft") this.go(-1);
    else if (key === "ArrowRight") this.go(1);
    else return false;
    return true;
  }

  pressedAmongMany(key, target) {
    const tile = target.closest("[role=option]");
    if (key === " " && tile) this.many.toggle();
    else if (key === "Enter" && tile) this.turn();
    else if (key === "a") this.many.chooseAll(true);
    else if (key === "Escape") this.many.chooseAll(false);
    else if (key === "PageDown") this.many.turn(1);
    else if (key === "PageUp") this.many.turn(-1);
    else if (ARROWS.includes(key)) this.many.step(key);
    else return false;
    return true;
  }
}

if (location.search) history.replaceState(null, "", location.pathname); // the token need not stay in the address
backend.overview().then((overview) => {
  window.review = new Review(overview);
}, (problem) => trouble(problem.message));
