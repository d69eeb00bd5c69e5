// All rows, what was decided on them, and which of them are looked at.

export const NONE = -1;

export class Store {
  constructor(overview) {
    Object.assign(this, overview);
    this.decided = new Map();
    this.past = [];
    for (const [row, action, choice] of overview.decided) {
      this.decided.set(row, { action, choice });
      this.past.push([row]);
    }
    this.before = new Map();
    this.filter = { rows: "suspicious", given: NONE, suggested: NONE, score: 1, open: false };
    this.place = 0;
    this.refresh();
  }

  /** The rows that fit the filter, in order. */
  refresh() {
    const { rows, given, suggested, score, open } = this.filter;
    const front = rows === "all" ? this.order : this.order.slice(0, this.suspicious);
    this.view = front.filter((row) => (given === NONE || this.given[row] === given)
      && (suggested === NONE || this.suggested[row] === suggested)
      && this.score[row] <= score && !(open && this.decided.has(row)));
    this.place = Math.min(this.place, Math.max(0, this.view.length - 1));
  }

  get row() {
    return this.view[this.place];
  }

  get done() {
    return this.view.reduce((count, row) => count + this.decided.has(row), 0);
  }

  name(label) {
    return label === NONE ? "no suggestion" : this.classes[label];
  }

  /** The next row without a decision, the first such if none follows; where there is none, the next row. */
  advance() {
    const open = (row) => !this.decided.has(row);
    const ahead = this.view.findIndex((row, i) => i > this.place && open(row));
    const any = ahead < 0 ? this.view.findIndex(open) : ahead;
    this.place = any >= 0 ? any : Math.min(this.place + 1, this.view.length - 1);
  }

  move(steps) {
    this.place = Math.max(0, Math.min(this.view.length - 1, this.place + steps));
  }

  /** Wishes for these rows, noted as decided; those that cannot take a suggestion are left out. */
  decide(rows, action, choice = null) {
    const wishes = rows.filter((row) => action !== "take" || this.suggested[row] !== NONE)
      .map((row) => ({ row, action, ...(action === "other" && { choice }) }));
    for (const { row } of wishes) {
      const label = { keep: this.given[row], take: this.suggested[row], other: choice }[action] ?? null;
      const stack = this.before.get(row) ?? [];
      stack.push(this.decided.get(row));
      this.before.set(row, stack);
      this.decided.set(row, { action: named(this, row, action, label), choice: label });
    }
    if (wishes.length) this.past.push(wishes.map((wish) => wish.row));
    return wishes;
  }

  /** Wishes that take the last decision back, on all rows that it was made for. */
  undo() {
    const rows = this.past.pop() ?? [];
    for (const row of rows) {
      const earlier = this.before.get(row)?.pop();
      if (earlier) this.decided.set(row, earlier);
      else this.decided.delete(row);
    }
    return rows.map((row) => ({ row, action: "undo" }));
  }

  /** What was decided on a row, in words. */
  verdict(row) {
    const found = this.decided.get(row);
    if (!found) return "";
    return { keep: "kept", unsure: "unsure", exclude: "excluded" }[found.action] ?? `now ${this.name(found.choice)}`;
  }
}

/** A class that is chosen by its number may be the given or the suggested one. */
export function named(store, row, action, label) {
  if (label === null) return action;
  if (label === store.given[row]) return "keep";
  return label === store.suggested[row] ? "take" : "other";
}
