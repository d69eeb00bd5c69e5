// Many rows at once: a page of tiles, of which some are chosen.

import { announce, at, made } from "./dom.js";
import { tileContent } from "./shown.js";
import { NONE } from "./store.js";

const PAGE = 48;

export class Many {
  constructor(store, backend) {
    this.store = store;
    this.backend = backend;
    this.chosen = new Set();
    this.tiles = [];
    at("tiles").addEventListener("click", (event) => {
      const tile = event.target.closest("[role=option]");
      if (!tile) return;
      this.focus(this.tiles.indexOf(tile));
      this.toggle();
    });
  }

  /** Draws the page on which the store's place is. */
  draw() {
    const { store } = this;
    const begins = Math.floor(store.place / PAGE) * PAGE;
    this.shown = store.view.slice(begins, begins + PAGE);
    this.chosen.clear();
    this.tiles = this.shown.map((row) => this.tile(row));
    at("tiles").className = `tiles ${store.kind}`;
    at("tiles").replaceChildren(...this.tiles);
    at("page-shown").textContent = `${begins + 1} to ${begins + this.shown.length} of ${store.view.length.toLocaleString("en")}`;
    this.fill();
    this.mark();
    this.focus(store.place - begins);
  }

  tile(row) {
    const { store } = this;
    const what = `${store.name(store.given[row])} → ${store.suggested[row] === NONE ? "?" : store.name(store.suggested[row])}`;
    return made("div", { role: "option", tabindex: "-1", class: "tile", "data-row": `${row}` },
      made("div", { class: "content" }),
      made("span", { class: "pair" }, what),
      made("span", { class: "verdict" }));
  }

  /** The samples themselves; texts and tables are asked for together. */
  async fill() {
    const rows = this.shown;
    const samples = this.store.kind === "image" ? rows.map((row) => ({ row })) : await this.backend.samples(rows);
    if (rows !== this.shown) return;
    for (const [i, sample] of samples.entries()) {
      this.tiles[i].firstChild.replaceChildren(tileContent(this.backend, this.store.kind, sample));
    }
  }

  mark() {
    for (const [i, row] of this.shown.entries()) {
      const verdict = this.store.verdict(row);
      this.tiles[i].setAttribute("aria-selected", `${this.chosen.has(row)}`);
      this.tiles[i].lastChild.textContent = verdict;
      this.tiles[i].classList.toggle("decided", Boolean(verdict));
      const score = this.store.score[row].toFixed(2);
      this.tiles[i].setAttribute("aria-label", `${this.tiles[i].children[1].textContent}, score ${score}${verdict && `, ${verdict}`}`);
    }
    const count = this.chosen.size;
    at("chosen").textContent = count ? `${count} chosen` : "this row";
  }

  /** The rows that an action is for: those chosen, or the one in focus. */
  targets() {
    return this.chosen.size ? this.shown.filter((row) => this.chosen.has(row)) : [this.store.row];
  }

  focus(index) {
    const tile = this.tiles[index];
    if (!tile) return;
    for (const other of this.tiles) other.tabIndex = -1;
    tile.tabIndex = 0;
    tile.focus({ preventScroll: false });
    this.store.place = this.store.view.indexOf(Number(tile.dataset.row));
  }

  toggle() {
    const row = this.store.row;
    if (!this.chosen.delete(row)) this.chosen.add(row);
    this.mark();
    announce(`${this.chosen.size} chosen`);
  }

  chooseAll(all) {
    this.chosen = new Set(all ? this.shown : []);
    this.mark();
    announce(`${this.chosen.size} chosen`);
  }

  turn(pages) {
    const begins = Math.floor(this.store.place / PAGE) * PAGE + pages * PAGE;
    if (begins < 0 || begins >= this.store.view.length) return;
    this.store.place = begins;
    this.draw();
  }

  /** Arrow keys: along the row, or to the tile above or below. */
  step(key) {
    const across = Math.max(1, this.tiles.filter((tile) => tile.offsetTop === this.tiles[0].offsetTop).length);
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[key];
    this.focus(this.shown.indexOf(this.store.row) + steps);
  }
}
