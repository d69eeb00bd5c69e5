// Around the rows: progress, time, filter, what the decisions tell.

import { at, made, perCent } from "./dom.js";
import { NONE } from "./store.js";

export function drawProgress(store, begun) {
  const [done, all] = [store.done, store.view.length];
  at("progress").max = Math.max(1, all);
  at("progress").value = done;
  at("counted").textContent = `${done.toLocaleString("en")} of ${all.toLocaleString("en")} decided${done === all ? " · nothing is left" : ""}${timeTold(store, begun)}`;
}

/** What is left of the time budget, and how far the reader's pace leads within it. */
function timeTold(store, begun) {
  if (store.minutes === null) return "";
  const spent = (Date.now() - begun) / 1000;
  const left = store.minutes * 60 - spent;
  if (left <= 0) return " · time is up";
  const clock = `${Math.floor(left / 60)}:${`${Math.floor(left % 60)}`.padStart(2, "0")}`;
  const pace = store.session > 2 ? `, about ${Math.round((left * store.session) / spent).toLocaleString("en")} more rows at this pace` : "";
  return ` · ${clock} left${pace}`;
}

const between = (low, high, shown) => `${shown(low)} to ${shown(high)}`;

function share(found) {
  return found.of ? [perCent(found.wrong / found.of), made("small", {}, between(found.low, found.high, perCent))] : ["not known yet"];
}

export function drawEstimates(told) {
  const counted = (number, one) => `${number} ${one}${number === 1 ? "" : "s"}`;
  const whole = (value) => Math.round(value).toLocaleString("en");
  at("found").replaceChildren(`${told.found}`);
  at("flags").replaceChildren(...share(told.flags));
  at("missed").replaceChildren(...share(told.missed));
  at("left-label").textContent = `wrong labels left in ${told.left.rows.toLocaleString("en")} rows`;
  const known = told.left.expected !== null;
  at("left").replaceChildren(...(known
    ? [`about ${whole(told.left.expected)}`, made("small", {}, between(told.left.low, told.left.high, whole))]
    : ["not known yet"]));
  const readers = told.agreement.map((pair) => ` ${pair.first} and ${pair.second} decided ${counted(pair.rows, "row")} both`
    + ` and differ on ${pair.differ}: Cohen's kappa ${pair.kappa.toFixed(2)}.`);
  at("ground").textContent = `From ${counted(told.flags.of, "flagged row")} and ${counted(told.missed.of, "control")}, drawn at random; the ranges hold with 95 %.${readers.join("")}`;
  at("estimates").hidden = false;
}

export class Filter {
  constructor(store, changed) {
    this.store = store;
    for (const name of ["given", "suggested"]) {
      at(`filter-${name}`).append(made("option", { value: `${NONE}` }, "any"),
        ...store.classes.map((label, number) => made("option", { value: `${number}` }, label)));
    }
    at("filter").addEventListener("input", () => this.apply(changed));
    at("filter").addEventListener("reset", () => setTimeout(() => this.apply(changed)));
    at("filter").addEventListener("submit", (event) => event.preventDefault());
    at("filter").addEventListener("keydown", (event) => event.key === "Escape" && this.toggle());
    at("open-filter").addEventListener("click", () => this.toggle());
  }

  apply(changed) {
    this.store.filter = {
      rows: at("filter-rows").value,
      given: Number(at("filter-given").value),
      suggested: Number(at("filter-suggested").value),
      score: Number(at("filter-score").value),
      open: at("filter-open").checked,
    };
    at("filter-score-shown").textContent = this.store.filter.score.toFixed(2);
    this.store.place = 0;
    this.store.refresh();
    changed();
  }

  toggle() {
    at("filter").hidden = !at("filter").hidden;
    at("open-filter").setAttribute("aria-expanded", `${!at("filter").hidden}`);
    at(at("filter").hidden ? "main" : "filter-rows").focus();
  }
}
